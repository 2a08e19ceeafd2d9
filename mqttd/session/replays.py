"""The replays of one session that are not at their end, and which of them a new message asks.

    lines   filter -> Replay --behind--> Replay ...     the first line is the one that goes on
    kinds   key -> Kind                                 the wildcards of these filters
    gone    topic -> number of the last replay whose turn it had

What is new of a topic does not overtake what is retained of it (4.6), so that goes `ahead`. All
replays that have begun have then come to the topic, and none of them is asked for it again: the
next message of it costs a look-up, and so does one of a topic of which nothing is retained. Those
that are asked are found by their filters, a look-up for each kind of them.

Promise: a message looks up at most `_KINDS` filters and asks `_ASKED` replays, however many wait.
More filters that all match a topic need not be told apart: a client that has as many messages of
that topic to come gets no further ones, and of kinds beyond `_KINDS` one for all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mqttd.session.ground.message import Delivery
from mqttd.session.kinds import Kind, kind_of
from mqttd.session.replay import Replay
from mqttd.session.state import State

__all__ = ["Replays"]

#: Replays of one filter: each holds memory, and is asked for what goes ahead of a delivery.
_REPLAYS: Final = 16
#: Kinds of filters that are told apart, and replays that one message asks.
_KINDS: Final = 64
_ASKED: Final = 64
#: Bytes of a topic that has had its turn, beside its text.
_GONE: Final = 140


class Replays:
    """Those of one session."""

    __slots__ = (
        "asked",
        "begun",
        "fresh",
        "gone",
        "held",
        "kinds",
        "last",
        "lines",
        "looked",
        "other",
        "others",
        "placed",
    )

    def __init__(self) -> None:
        #: In the order in which they go on; an `OrderedDict` finds the first behind many that went.
        self.lines: OrderedDict[str, Replay] = OrderedDict()
        #: Lines that there have been.
        self.placed: int = 0
        #: Added, or noted anew, since the last SUBACK.
        self.fresh: list[Replay] = []
        #: How many have begun, and the last of them.
        self.begun: int = 0
        self.last: Replay | None = None
        self.kinds: dict[str, Kind] = {}
        #: What is of none of these kinds, and the last of that which has begun.
        self.others: Kind | None = None
        self.other: Replay | None = None
        self.gone: dict[str, int] = {}
        #: Bytes that `gone` takes.
        self.held: int = 0
        #: Filters that the last message looked up, and replays that it asked.
        self.looked: int = 0
        self.asked: int = 0

    def __len__(self) -> int:
        """Return how many filters have some."""
        return len(self.lines)

    def first(self) -> Replay:
        """The one that goes on; there must be one."""
        return next(iter(self.lines.values()))

    def line(self, topic_filter: str) -> list[Replay]:
        """Those of this filter, one behind the other."""
        first = self.lines.get(topic_filter)
        return [] if first is None else first.line()

    def all(self) -> list[Replay]:
        """Those of all filters."""
        found: list[Replay] = []
        for first in self.lines.values():
            found += first.line()
        return found

    # -- come and go ---------------------------------------------------------------------------

    def add(self, replay: Replay) -> Replay | None:
        """Behind those of the same filter; of more than `_REPLAYS` in place of the last, returned.

        Each SUBSCRIBE has all of it sent (MQTT-3.8.4-4, -5).
        """
        topic_filter = replay.topic_filter
        replay.gone = self.gone
        self.fresh.append(replay)
        first = self.lines.get(topic_filter)
        if first is None:
            replay.kind = self._kind(kind_of(topic_filter))
            self._place(replay)
            return None
        replay.kind = first.kind
        line = first.line()
        dropped = line.pop() if len(line) == _REPLAYS else None
        line[-1].behind = replay
        return dropped

    def begin(self, replay: Replay) -> None:
        """It is about to be asked; once."""
        if replay.since:
            return
        self.begun += 1
        replay.since = self.begun
        replay.begin()
        self.last = replay
        kind = replay.kind
        if kind is not None:
            kind.since = self.begun
            if kind is self.others:
                self.other = replay

    def end(self, replay: Replay) -> Replay | None:
        """The first of a line is at its end: the next of that line, which is the last line now."""
        del self.lines[replay.topic_filter]
        behind = replay.behind
        if behind is None:
            self._leave(replay)
        else:
            self._place(behind)
        return behind

    def remove(self, topic_filter: str) -> None:
        """Give up those of a filter, if there are any."""
        first = self.lines.pop(topic_filter, None)
        if first is not None:
            self._leave(first)

    def _place(self, replay: Replay) -> None:
        self.placed += 1
        replay.place = self.placed
        self.lines[replay.topic_filter] = replay

    def _kind(self, key: str) -> Kind | None:
        """That of one more filter; None where it has no wildcard."""
        if not key:
            return None
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) < _KINDS:
                kind = Kind(key)
                self.kinds[key] = kind
            else:
                kind = self.others
                if kind is None:
                    kind = Kind("")
                    self.others = kind
        kind.filters += 1
        return kind

    def _leave(self, replay: Replay) -> None:
        kind = replay.kind
        if kind is not None:
            kind.filters -= 1
            if not kind.filters and kind is not self.others:
                del self.kinds[kind.key]

    # -- ahead of what is new ------------------------------------------------------------------

    def concerns(self, topic: str) -> bool:
        """Whether any of them may still come to this topic."""
        last = self.last
        return last is not None and last.reaches(topic) and self.gone.get(topic, 0) != self.begun

    def ahead(self, session: State, topic: str) -> list[Delivery]:
        """What they would still come to for this topic, which then has had its turn."""
        since = self.gone.get(topic, 0)
        if not since:
            self.held += _GONE + len(topic)
        self.gone[topic] = self.begun
        found: list[Delivery] = []
        asked = 0
        for first in self._matching(topic, since):
            replay: Replay | None = first
            while replay is not None and asked < _ASKED:
                if replay.since > since:
                    asked += 1
                    delivery = replay.ahead(session, topic)
                    if delivery is not None:
                        found.append(delivery)
                replay = replay.behind
        self.asked = asked
        other, others = self.other, self.others
        if other is not None and others is not None and others.filters and others.since > since:
            if not found:
                copy = other.copy(session, topic)
                if copy is not None:
                    found.append(copy)
        return found

    def _matching(self, topic: str, since: int) -> list[Replay]:
        """The first ones of lines whose filters may match, in the order of the lines.

        since: of kinds of which none has begun after this there is nothing to find.
        """
        found: list[Replay] = []
        first = self.lines.get(topic)
        if first is not None:
            found.append(first)
        looked = 1
        if self.kinds:
            levels = topic.split("/")
            for kind in self.kinds.values():
                if kind.since > since:
                    looked += 1
                    first = self.lines.get(kind.filter_of(levels))
                    if first is not None:
                        found.append(first)
        self.looked = looked
        if len(found) > 1:
            found.sort(key=_place_of)
        return found


def _place_of(replay: Replay) -> int:
    return replay.place
