"""What an acknowledgement promises of a message: nothing, that it is written, that the disk has it.

    durability.default, durability.topics --> Durability.of(topic) --> NONE | OS | FSYNC

Promise: without filters a comparison; else each topic is matched once in a row.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.topic import match

__all__ = ["FSYNC", "NAMES", "NONE", "OS", "Durability"]

NONE: Final = 0
OS: Final = 1
FSYNC: Final = 2
NAMES: Final = ("none", "os", "fsync")


class Durability:
    """The class of each topic: the highest of the filters that match, else the default."""

    __slots__ = ("_level", "_topic", "default", "filters")

    def __init__(self, default: int, filters: dict[str, int]) -> None:
        self.default = default
        self.filters = filters
        self._topic: str = ""
        self._level: int = default

    def of(self, topic: str) -> int:
        """What is promised of messages on this topic."""
        if not self.filters:
            return self.default
        if topic != self._topic:
            level = -1
            for topic_filter, wanted in self.filters.items():
                if wanted > level and match(topic, topic_filter):
                    level = wanted
            self._level = self.default if level < 0 else level
            self._topic = topic
        return self._level
