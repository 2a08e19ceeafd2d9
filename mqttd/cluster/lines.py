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
        #: Nodes that are said to be linked, and in which epoch of theirs.
        self._linked: dict[str, int] = {}

    def say(self, what: str, text: str, **fields: object) -> None:
        """A warning, unless there was one about the same (`what`) lately."""
        now = time.monotonic()
        if now >= self._said.get(what, 0.0):
            self._said[what] = now + _QUIET
            self.log.warn(text, **fields)

    def linked(self, node: str, epoch: int) -> None:
        """There is a link to a node: said once, until it is said that there is none.

        A node that begins ends its first one, to have all retained messages with the next.
        """
        if self._linked.get(node) != epoch:
            self._linked[node] = epoch
            self.log.info("node {node} is linked", node=node)

    def unlinked(self, node: str, error: str) -> None:
        """There is none any more."""
        self._linked.pop(node, None)
        line = "the link to node {node} is gone: {error}"
        self.say(f"unlinked {node}", line, node=node, error=error)

    def warn_if(self, bad: object, text: str, **fields: object) -> None:
        """A line that is a warning where something is bad."""
        self.log.emit(LogLevel.warn if bad else LogLevel.info, text, **fields)
