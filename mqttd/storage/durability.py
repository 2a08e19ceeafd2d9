"""What an acknowledgement promises of a message: nothing, that it is written, that the disk has it.

    durability.topics, else the listener's, else durability.default
        --> Durability.of(topic, listener's) --> NONE | OS | FSYNC

Promise: without filters a comparison; else each topic is matched once in a row.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.topic import match

__all__ = ["FSYNC", "NAMES", "NONE", "OS", "UNSAID", "Durability"]

NONE: Final = 0
OS: Final = 1
FSYNC: Final = 2
#: Nothing is said.
UNSAID: Final = -1
NAMES: Final = ("none", "os", "fsync")


class Durability:
    """The class of each topic: the highest of the filters that match, else of its listener."""

    __slots__ = ("_level", "_topic", "default", "filters")

    def __init__(self, default: int, filters: dict[str, int]) -> None:
        self.default = default
        self.filters = filters
        self._topic: str = ""
        self._level: int = UNSAID

    def of(self, topic: str, listener: int = UNSAID) -> int:
        """What is promised of messages on this topic, of a listener that promises this."""
        level = self._of_topic(topic) if self.filters else UNSAID
        if level == UNSAID:
            level = listener
        return self.default if level == UNSAID else level

    def _of_topic(self, topic: str) -> int:
        if topic != self._topic:
            level = UNSAID
            for topic_filter, wanted in self.filters.items():
                if wanted > level and match(topic, topic_filter):
                    level = wanted
            self._level = level
            self._topic = topic
        return self._level
