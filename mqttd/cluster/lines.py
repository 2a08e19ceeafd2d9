"""The lines that a node writes about others and about etcd."""

from __future__ import annotations

import time
from typing import Final

from twisted.logger import Logger, LogLevel

__all__ = ["Lines"]

#: Seconds between two lines about one thing.
_QUIET: Final = 10.0


class Lines:
    """Those that go to `log`."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self._said: dict[str, float] = {}

    def say(self, what: str, text: str, **fields: object) -> None:
        """A warning, unless there was one about the same (`what`) lately."""
        now = time.monotonic()
        if now >= self._said.get(what, 0.0):
            self._said[what] = now + _QUIET
            self.log.warn(text, **fields)

    def warn_if(self, bad: object, text: str, **fields: object) -> None:
        """A line that is a warning where something is bad."""
        self.log.emit(LogLevel.warn if bad else LogLevel.info, text, **fields)
