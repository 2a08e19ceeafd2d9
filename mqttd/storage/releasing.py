"""What waits for groups, and how it goes out when they are written: some of it in each turn.

    Waiting, of the group that is gathered --> of the one under way --> written: `release`
                            corked connections, held bytes, promises, who is told

Promise: of one group a turn has `_SLICE` at most, however much a slow disk has let gather, and
others are served in between; all of it goes out in the order in which it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from mqttd.session.ground.connection import OPEN, Connection
from mqttd.session.journal import Doubt
from mqttd.session.promise import Promise
from mqttd.storage.blocks import Group
from mqttd.storage.ledger import Ledger
from mqttd.storage.patience import Patience
from mqttd.storage.reading import ReadingJournal

__all__ = ["Releasing", "Waiting"]

#: What goes out in a turn: a connection that is written to is one, and so are so many
#: acknowledgements. A thousand for each of ten connections take 1.8 ms.
_SLICE: Final = 32
_TOGETHER: Final = 32
#: With so many acknowledgements in a group, for several clients, these have so many nanoseconds to
#: go on, from its end and from when it is written, before the next one is closed, which has all of
#: them in it. One or two would wait for nobody but themselves.
_MANY: Final = 8
_SEVERAL: Final = 3
_GAP: Final = 400_000
#: Subscriptions and sessions that one group changes. One takes the writer some 5 us, and with
#: 10,000 of each of eight clients acknowledgements of others waited for 1.3 s.
_ROWS: Final = 1000
_REST: Final = 150_000


#: Bytes of a group that waits for nothing any more.
_HEAVY: Final = 64 << 10


class Waiting:
    """What waits for one group."""

    __slots__ = ("channels", "corked", "doubts", "held", "kept", "promises", "sent", "told",
                 "uncorked")  # fmt: skip

    def __init__(self) -> None:
        #: How many of its promises are kept, of what it held sent, of its connections uncorked.
        self.kept: int = 0
        self.sent: int = 0
        self.uncorked: int = 0
        self.promises: list[Promise] = []
        #: Bytes that go out when it is written.
        self.held: list[tuple[Connection, bytes]] = []
        self.channels: set[Connection] = set()
        #: Of what it holds: answers that may become refusals.
        self.doubts: list[tuple[bytes, Doubt]] = []
        #: Connections to which nothing is written before.
        self.corked: list[Connection] = []
        #: Who is told that it is written.
        self.told: deque[Callable[[], None]] = deque()

    def counts(self, many: int) -> bool:
        """Whether it has so many acknowledgements, or more, and for several."""
        if len(self.promises) < _SEVERAL:
            return False
        count = 0
        for promise in self.promises:
            count += promise.count
            if count >= many:
                return True
        return False

    def uncork(self) -> None:
        """Have its connections written to, whatever is kept."""
        for channel in self.corked:
            channel.uncork()
        self.corked = []


class Releasing(ReadingJournal):
    """A journal that lets go of what waited, slice by slice."""

    __slots__ = ("_closed_at", "_free_at", "_parting", "_releasing", "_under_way", "_waiting",
                 "_waiting_for", "failing", "patience", "pause", "unpause")  # fmt: skip

    def __init__(self, ledger: Ledger, since: int) -> None:
        super().__init__(ledger, since)
        self.grouped = True
        #: The disk takes no group for now.
        self.failing: bool = False
        #: Who is told when the group that is gathered now is closed.
        self._parting: list[Callable[[], None]] = []
        self._waiting: Waiting = Waiting()
        self._under_way: Group | None = None
        self._waiting_for: Waiting = self._waiting
        #: What waited for groups that are written, until all of it has gone out.
        self._releasing: deque[Waiting] = deque()
        self.patience: Patience = Patience()
        #: Calls back in so many seconds; without it groups wait for nothing but the one before.
        self.pause: Callable[[float], object] | None = None
        #: The call is not wanted any more.
        self.unpause: Callable[[], object] | None = None
        #: When the last group was closed, and from when on the next one may be.
        self._closed_at: int = 0
        self._free_at: int = 0

    def _begin_to_wait(self, waiting: Waiting) -> None:
        """A group is closed, for which these wait."""
        self._waiting_for = waiting
        if self.pause is not None:
            self._closed_at = monotonic_ns()

    def _rest(self) -> None:
        """The one under way is written: who is answered together is to go on together."""
        waiting = self._waiting_for
        self._releasing.append(waiting)
        if self.pause is not None and waiting.counts(_MANY):
            self._free_at = max(self._closed_at + _GAP, monotonic_ns() + _REST)

    def _pauses(self) -> bool:
        """Whether it is too early for the next one; then it is called back."""
        pause = self.pause
        if pause is None or self.failing:
            return False
        now = monotonic_ns()
        left = self._free_at - now
        if left <= 0:
            left = 0 if self._parting else self.patience.wait(self._lives(), now)
            if left <= 0:
                return False
        pause(left / 1e9)
        return True

    def _lives(self) -> bool:
        """Whether something of the group at hand is to be kept, or it is heavy."""
        group = self.ledger.group
        return group.block.live > 0 or len(group.parts) > 0 or group.weight() > _HEAVY

    def fail(self, failing: bool) -> None:
        """The disk takes no group for now, or takes them again."""
        self.failing = failing
        self.grouped = not failing
        if failing:
            self._part()
            for waiting in (self._waiting, self._waiting_for):
                waiting.uncork()

    def has_enough(self) -> bool:
        """See `Journal.has_enough`."""
        return len(self.ledger.group.rows) >= _ROWS and not self.failing

    def when_parted(self, told: Callable[[], None]) -> None:
        """See `Journal.when_parted`; a disk that takes nothing holds nothing up."""
        if self.failing:
            told()
        else:
            self._parting.append(told)
            self.begin()

    def _part(self) -> None:
        """What is told from now on is in another group."""
        parting, self._parting = self._parting, []
        for told in parting:
            told()

    def release(self) -> bool:
        """Let go of some of what waited for groups that are written; whether there is more.

        Once a turn. Twice as much for each further group that waits behind the first, so that they
        cannot become many, however fast the disk is.
        """
        releasing = self._releasing
        if releasing:
            room = _SLICE << min(len(releasing) - 1, 16)
            while releasing and room > 0:
                room = self._let_go(releasing[0], room)
                if room > 0:
                    releasing.popleft()
            self._see_held()
        return len(releasing) > 0

    def release_all(self) -> None:
        """Let go of all that waited for groups that are written."""
        while self.release():
            pass

    def records(self) -> int:
        """See `Journal.records`."""
        return self.ledger.number

    def _see_held(self) -> None:
        """Bytes are held for somebody, or not."""
        self.holding = len(self._waiting.held) > 0 or (
            self._under_way is not None and len(self._waiting_for.held) > 0
        )
        for waiting in self._releasing:
            if waiting.held:
                self.holding = True

    def _let_go(self, waiting: Waiting, room: int) -> int:
        """Let go of so much of it; returns what room is left, 0 or less where there may be more."""
        corked, held, promises = waiting.corked, waiting.held, waiting.promises
        while room > 0:  # what one of them has others wait for is looked for again
            if waiting.uncorked < len(corked):
                waiting.uncorked += 1
                corked[waiting.uncorked - 1].uncork()
                room -= 1
            elif waiting.sent < len(held):
                waiting.sent += 1
                channel, data = held[waiting.sent - 1]
                if channel.state == OPEN:
                    if data:
                        channel.send(data)
                    else:
                        channel.left()
                room -= 1
            elif waiting.kept < len(promises):
                waiting.kept += 1
                promise = promises[waiting.kept - 1]
                promise.ticket = None  # or they would be a circle
                room -= 1 + promise.count // _TOGETHER
                promise.keep(self)
            elif waiting.told:
                waiting.told.popleft()()
            else:
                break
        return room
