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
        #: Those that are said to be awaited no longer, since they are gone.
        self._given_up: set[str] = set()

    def say(self, what: str, text: str, **fields: object) -> None:
        """A warning, unless there was one about the same (`what`) lately."""
        now = time.monotonic()
        if now >= self._said.get(what, 0.0):
            self._said[what] = now + _QUIET
            self.log.warn(text, **fields)

    def over(self, what: str, text: str, **fields: object) -> None:
        """What was said (`what`) is over: a line, unless there was none about it."""
        if self._said.pop(what, None) is not None:
            self.log.info(text, **fields)

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

    def gone(self, node: str, lost: int, bad: bool) -> None:
        """A node is not there any more; nothing of what waited for it, or so many messages, goes
        with it. `bad`: also where that is nothing it is a warning."""
        self._given_up.discard(node)
        text = "node {node} is gone"
        if lost:
            text += ", and with it " + _messages(lost) + " that waited for it"
        self._emit(bad or lost > 0, text, node=node, lost=lost)

    def given_up(self, node: str, lost: int) -> None:
        """A node that is not there is awaited no longer: by its lease, and by its heir, say."""
        if node in self._given_up and not lost:
            return
        self._given_up.add(node)
        text = "node {node} is not awaited any more"
        if lost:
            text += ", " + _messages(lost) + f" for it {'is' if lost == 1 else 'are'} lost"
        self._emit(lost > 0, text, node=node, lost=lost)

    def ends(self, held: int) -> None:
        """This node ends, and has so many messages for others in its memory alone."""
        if held:
            text = _messages(held) + " that waited here for nodes without a link {are} lost"
            self.log.error(text, lost=held, are="is" if held == 1 else "are")

    def _emit(self, bad: bool, text: str, **fields: object) -> None:
        """A line that is a warning where something is bad."""
        self.log.emit(LogLevel.warn if bad else LogLevel.info, text, **fields)


def _messages(lost: int) -> str:
    """So many, as the text of a line that has the number."""
    return "{lost} message" if lost == 1 else "{lost} messages"
