"""The stream between two neighbours: what is written in a turn goes in one write.

    Peer, Mesh, Relay --send--> Link.out --end of turn--> Pipe --Unix stream--> the other worker
                                              '----> Stream --TCP, TLS--> the other node

A `Link` is a `Connection`, so that a message's way appends to it as to a client's output, and the
turn writes it with the others. Nothing that is put here is ever dropped: when more than `limit`
bytes wait, whoever caused that is not read from until they have gone (`hold_back`), and nobody
else. How many may wait is what may be under way (`Flight`); for a node that does not say what it
has handled, of version 3 or less, it is fixed. Who publishes to one that cannot follow waits until
it can (`rest`), whatever is under way; what is no message goes on. What may not go before a store
has kept something waits behind a `Gate`, and all that is put later behind it, but for what says
that something is taken.

Promise: one write per turn and link; bytes go in the order they were put.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.turns import Job
from mqttd.mesh.flight import Flight
from mqttd.mesh.frames import ACK, OLDER, REST, TAKEN, TELL, frame, numbered
from mqttd.mesh.handled import Handled
from mqttd.session.ground.connection import CLOSED, OPEN, Connection, Edge, Turn
from mqttd.session.ground.output import give_back, take
from mqttd.session.ground.unfinished import READ

__all__ = ["Gate", "Link", "Nowhere", "Pipe", "Stream"]

#: Milliseconds between two words of how much is handled: for a node each is a read and a turn.
_GAP: Final = 4
#: Bytes that may wait here for a node that does not say what it has handled.
_OLDER: Final = 64 << 10
#: Bytes under way to another worker up to which who lines up goes on: what it reads at once.
_SHARE: Final = 256 << 10
#: What is put where there is no room is work: a read of that is about what a turn has.
_CRAM: Final = 3
_TELL: Final = frame(TELL, b"")
_REST: Final = frame(REST, b"\x01")
_GO_ON: Final = frame(REST, b"\x00")


class Pipe(Edge):
    """A descriptor; `watch` is called when it takes no more for now, or does again."""

    def __init__(self, fd: int, watch: Callable[[bool], object]) -> None:
        self.fd = fd
        self.watch = watch

    def flush(self, channel: Connection) -> None:
        """See `Edge.flush`."""
        pieces = take(channel)
        if not pieces:
            return
        first: Any = pieces[0]
        if channel.out_at:
            first = memoryview(first)[channel.out_at :]
        vector: list[Any] = [first]
        vector += pieces[1:]
        try:
            written = os.writev(self.fd, vector)
        except BlockingIOError:
            written = 0
        except OSError:
            channel.out = None
            channel.out_bytes = 0
            channel.out_at = 0
            channel.end("the neighbour is gone")
            return
        give_back(channel, pieces, written)
        if isinstance(channel, Link):
            channel.mark(written)
        blocked = channel.out is not None
        if blocked != channel.blocked:
            channel.blocked = blocked
            self.watch(blocked)
        channel.account()

    def shut(self, channel: Connection) -> None:
        """Whoever reads the descriptor closes it."""
        channel.turn.backlog -= channel.backlogged
        channel.backlogged = 0

    def pause(self, channel: Connection) -> None:
        """A link is always read."""

    def resume(self, channel: Connection) -> None:
        """A link is always read."""

    def peer(self, channel: Connection) -> tuple[str, int]:
        """It has no address."""
        return ("", 0)


class Gate:
    """What was put to a link since this was shut, until the next one."""

    __slots__ = ("is_open", "link", "parts")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.parts: list[bytes] = []
        self.is_open: bool = False

    def open(self) -> None:
        """It may go, if no other gate is shut before it."""
        self.is_open = True
        self.link.pass_gates()


class Link(Connection):
    """The way to neighbour `number`."""

    __slots__ = (
        "behind",
        "flight",
        "gates",
        "goes_on",
        "handled",
        "number",
        "resting",
        "rests",
        "shut_in",
        "tells",
        "waiting",
    )

    def __init__(self, turn: Turn, edge: Edge, number: int) -> None:
        super().__init__(turn, edge, -1, "")
        self.number = number
        self.version = 5
        self.v5 = True
        self.state = OPEN
        self.limit = _OLDER
        #: The other end says what it has handled, so what is under way has a bound, and `limit` is
        #: what that leaves.
        self.tells: bool = False
        self.flight = Flight()
        #: What has come by it, which is told to the other end then.
        self.handled = Handled()
        #: Those that are not read from until there is room.
        self.waiting: list[Connection] = []
        #: What else goes on then.
        self.behind: list[Callable[[], object]] = []
        #: The next of them go in a turn that is about to come.
        self.goes_on: bool = False
        #: The other end cannot follow with what messages bring, and what goes on when it can.
        self.rests: bool = False
        self.resting: list[Callable[[], object]] = []
        self.gates: deque[Gate] = deque()
        #: Bytes that wait behind them.
        self.shut_in: int = 0

    def bound(self, far: int) -> None:
        """The other end says what it has handled; `far`: see `Flight`."""
        self.tells = True
        self.flight.far = far
        self._limit()
        if far:
            self.handled.gap = _GAP
            self._ask()

    def send(self, data: bytes) -> None:
        """See `Connection.send`."""
        gates = self.gates
        if gates and data[0] != ACK and data[0] != TAKEN and data[0] != REST:
            gates[len(gates) - 1].parts.append(data)
            self.shut_in += len(data)
        else:
            super().send(data)

    def shut(self) -> Gate:
        """What is put from now on waits until this gate is open."""
        gate = Gate(self)
        self.gates.append(gate)
        self.special = True  # runs of QoS 0 keep their place by `send`
        return gate

    def pass_gates(self) -> None:
        """What is behind gates that are open goes."""
        gates = self.gates
        if self.state != OPEN:
            gates.clear()
        while gates and gates[0].is_open:
            for data in gates.popleft().parts:
                self.shut_in -= len(data)
                super().send(data)
        if not gates:
            self.special = False
        if self.dirty:
            self.turn.perform_later()

    def let_go(self) -> None:
        """All gates are open: what they wait for does not come."""
        for gate in list(self.gates):
            gate.open()

    def older(self, size: int) -> bytes:
        """See `Connection.older`."""
        return frame(OLDER, size.to_bytes(4, "big"))

    def over(self, size: int) -> bool:
        """Nothing is dropped; who sends so much is held back when it has sent."""
        self.cram(size)
        return False

    def put(self, data: bytes) -> None:
        """As `send`, and hold whoever sends it back where that is too much."""
        self.send(data)
        if self.rests or self.is_full():
            self.cram(len(data))

    def cram(self, size: int) -> None:
        """So many bytes are more than there is room for: whose they are waits behind them."""
        broker = self.turn
        assert isinstance(broker, Broker)
        broker.clogged = self
        broker.topics.work += size >> _CRAM

    def lets_wait(self) -> bool:
        """See `Connection.lets_wait`: while the other end cannot follow."""
        return self.rests

    def is_full(self) -> bool:
        """See `Connection.is_full`."""
        room = self.flight.left() if self.tells else self.limit
        return self.out_bytes + self.shut_in > room or self.is_late()

    def has_place(self) -> bool:
        """Whether who lines up may go on: half of the room is for those who publish here."""
        if not self.tells:
            return not self.is_full()
        flight = self.flight
        most = flight.room >> 1
        if most > _SHARE and not flight.is_far():
            most = _SHARE
        under_way = flight.written - flight.handled + self.out_bytes + self.shut_in
        return under_way < most and not self.is_late()

    def rest(self, on: bool) -> None:
        """The other end cannot follow with what messages bring, or can again."""
        self.rests = on
        self._limit()
        if not on:
            resting = self.resting
            self.resting = []
            for then in resting:
                then()
            if self.is_awaited():
                self._wait()

    def send_rest(self, on: bool) -> None:
        """Say that this end cannot follow, or can again."""
        if self.tells:
            self.send(_REST if on else _GO_ON)

    def _limit(self) -> None:
        """What a message is put to without a question."""
        if self.tells:
            self.limit = -1 if self.rests else self.flight.left()

    def mark(self, written: int) -> None:
        """So much was written, at the end of a turn."""
        if self.tells:
            flight = self.flight
            flight.sent(written, self.out_bytes, self.turn.now)
            self._limit()
            if self.is_awaited():
                self._ask()

    def taken(self, handled: int) -> None:
        """The other end has handled so much."""
        flight = self.flight
        flight.taken(handled, self.turn.now, self.is_awaited())
        self._limit()
        if self.is_awaited():
            if not self.is_full():
                self.drained()
            elif flight.written > handled:
                self._ask()

    def brought(self, size: int) -> None:
        """So much has come by it."""
        self.handled.brought(size)

    def leaves(self, later: int, begun: int) -> None:
        """All of that is handled but what its turn had no time for, and what is not whole."""
        self.handled.left = later + begun
        self.tell(later > 0)

    def tell(self, busy: bool) -> None:
        """Tell the other end how much is handled, where it should know."""
        if self.tells:
            handled = self.handled.due(busy, self.turn.now)
            if handled:
                self.send(numbered(TAKEN, handled))

    def is_awaited(self) -> bool:
        """Whether somebody waits for room."""
        return len(self.behind) > 0 or (len(self.waiting) > 0 and not self.rests)

    def is_late(self) -> bool:
        """Whether what is put in now is handled late: few bytes may be much work."""
        return self.flight.is_late(self.turn.now)

    def _ask(self) -> None:
        """Have the other end say when it has handled what is put in so far."""
        flight = self.flight
        if not flight.asked:
            super().send(_TELL)
            flight.asked = flight.written + self.out_bytes

    def hold_back(self, sender: Connection) -> None:
        """See `Connection.hold_back`; who has something under way waits behind it."""
        if self.state != OPEN or sender.state != OPEN:
            return
        if sender.withheld:
            sender.pause()  # it was read from for another reason
        elif not sender.paused or sender.works():
            sender.pause()
            sender.withheld = True
            self.waiting.append(sender)
            if not self.rests:
                self._wait()

    def when_drained(self, then: Callable[[], object]) -> None:
        """See `Connection.when_drained`."""
        if self.rests:
            self.resting.append(then)
        elif self.is_full():
            self.behind.append(then)
            self._wait()
        else:
            then()

    def line_up(self, then: Callable[[], object]) -> None:
        """See `Connection.line_up`."""
        self.behind.append(then)
        self._wait()

    def _wait(self) -> None:
        if self.tells:
            self._ask()
        else:
            self.thirsty = True

    def drained(self) -> None:
        """There is room: those that were held back go on."""
        self.thirsty = False
        if self.is_late():
            return  # until the other end says that it is not
        if not self.tells or self.state != OPEN:
            waiting = self.waiting
            self.waiting = []
            for sender in waiting:
                sender.let_go_on()
            behind = self.resting + self.behind
            self.resting = []
            self.behind = []
            for then in behind:
                then()
            return
        # In turn, as far as there is room: each sender may bring as much as one read.
        while self.behind and self.has_place():
            self.behind.pop(0)()
        room = 0 if self.rests else 1 + self.limit // READ
        waiting = self.waiting[:room]
        del self.waiting[:room]
        for sender in waiting:
            sender.let_go_on()
        if self.is_awaited():
            self._ask()
            waits = len(self.waiting) > 0 and not self.rests
            if waits and self.flight.is_far() and not self.goes_on and not self.is_full():
                # An answer may be long in coming: the next go as soon as these were read.
                self.goes_on = True
                broker = self.turn
                assert isinstance(broker, Broker)
                broker.turns.add(_Next(self))

    def close(self, code: int, detail: str) -> None:
        """See `Connection.close`."""
        self.end(detail)

    def lost(self) -> None:
        """The neighbour is gone."""
        self.state = CLOSED
        self.out = None
        self.out_bytes = 0
        self.out_at = 0
        self.gates.clear()
        self.shut_in = 0
        self.flight = Flight()
        self.rests = False
        self.drained()


class _Next(Job):
    """The next that wait for room on a link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def slice(self) -> bool:
        """See `Job.slice`."""
        link = self.link
        link.goes_on = False
        if not link.is_full():
            link.drained()
        return False


class Stream(Edge):
    """One of Twisted's transports; whoever has it says when it is `full` and has `room`."""

    def __init__(self, transport: Any) -> None:
        self.transport: Any = transport

    def flush(self, channel: Connection) -> None:
        """See `Edge.flush`."""
        out = channel.out
        if out is None or channel.blocked:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        channel.out = None
        channel.out_bytes = 0
        self.transport.write(data)
        if isinstance(channel, Link):
            channel.mark(len(data))
        if not channel.blocked:
            channel.account()

    def full(self, channel: Connection) -> None:
        """The other end takes no more for now."""
        channel.blocked = True

    def room(self, channel: Connection) -> None:
        """It takes more."""
        if channel.blocked:
            channel.blocked = False
            if channel.out is None:
                channel.account()
            else:
                self.flush(channel)

    def shut(self, channel: Connection) -> None:
        """The end of the link."""
        channel.turn.backlog -= channel.backlogged
        channel.backlogged = 0
        self.transport.abortConnection()

    def pause(self, channel: Connection) -> None:
        """A link is always read."""

    def resume(self, channel: Connection) -> None:
        """A link is always read."""

    def peer(self, channel: Connection) -> tuple[str, int]:
        """Nobody asks."""
        return ("", 0)


class Nowhere(Edge):
    """What is said to it is said to nobody."""

    def flush(self, channel: Connection) -> None:
        """See `Edge.flush`."""
        channel.out = None
        channel.out_bytes = 0
        channel.account()

    def shut(self, channel: Connection) -> None:
        """There is nothing to close."""

    def pause(self, channel: Connection) -> None:
        """It is not read."""

    def resume(self, channel: Connection) -> None:
        """It is not read."""

    def peer(self, channel: Connection) -> tuple[str, int]:
        """It has no address."""
        return ("", 0)
