"""What the messages of a topic need besides their receivers: who asked for which topics.

    hook message.publish, topic_filter="a/#"   -->  HOOKED  for a/#
    hook message.acked                         -->  TOLD    for every topic
    a promise before each acknowledgement      -->  HELD    for its topics

The answer becomes part of a `Route` when that is built, so a hook on a corner of the tree costs its
own messages and nobody else's.
"""

from __future__ import annotations

from mqttd.codec.topic import match
from mqttd.session.routes.route import KEPT

__all__ = ["Gears"]


class Gears:
    """Who wants what of which topics; see `mqttd.session.routes.route` for the gears."""

    __slots__ = ("_all", "_some")

    def __init__(self) -> None:
        #: By whoever asks: the gears for every topic, and those for some.
        self._all: dict[str, int] = {}
        self._some: dict[str, list[tuple[str, int]]] = {}

    def ask(self, who: str, gear: int, topic_filters: list[str] | None) -> bool:
        """`who` needs `gear` for these topics (None: all); says whether anything changed."""
        before = (self._all.get(who), self._some.get(who))
        self._all.pop(who, None)
        self._some.pop(who, None)
        if topic_filters is None:
            self._all[who] = gear
        elif topic_filters:
            self._some[who] = [(topic_filter, gear) for topic_filter in topic_filters]
        return before != (self._all.get(who), self._some.get(who))

    def forget(self, who: str) -> bool:
        """`who` needs nothing any more; says whether anything changed."""
        return self.ask(who, 0, [])

    def alike(self) -> int:
        """What the messages of every topic need, if none needs more than being kept; else -1."""
        gear = 0
        for wanted in self._all.values():
            gear |= wanted
        return -1 if self._some or gear & ~KEPT else gear

    def of(self, topic: str) -> int:
        """The gears that the messages of a topic need."""
        if not self._all and not self._some:
            return 0
        gear = 0
        for wanted in self._all.values():
            gear |= wanted
        for some in self._some.values():
            for topic_filter, wanted in some:
                if not gear & wanted and match(topic, topic_filter):
                    gear |= wanted
        return gear
