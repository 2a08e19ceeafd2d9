"""A member of etcd that hangs is told from an etcd that is slow.

    no answer of a member for `SOON` s --> it and all others are asked to read a key
    another has answered that, `GRACE` s ago, and it has not --> it hangs: another is asked now
    nobody answers --> etcd is slow, or has no majority: all wait as they did
    none of the others can say, as while a leader is elected --> it is compared anew

Reads go through the majority, so a member whose disk hangs is found as one that has stopped.

Promise: one comparison of a member at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred

__all__ = ["SOON", "Hanging"]

#: Seconds without an answer after which a member is compared with others, and that it is behind
#: them then.
SOON: Final = 0.3
GRACE: Final = 0.2


class Hanging:
    """Which of `endpoints` hangs.

    read: fires when the member has answered, and fails when it does not.
    hangs: told which one hangs, and one that answers.
    """

    def __init__(
        self,
        reactor: Any,
        endpoints: Sequence[str],
        read: Callable[[str], Deferred[Any]],
        hangs: Callable[[str, str], object],
    ) -> None:
        self.reactor = reactor
        self.endpoints = tuple(endpoints)
        self.read = read
        self.hangs = hangs
        self._compared: set[str] = set()

    def look(self, endpoint: str) -> None:
        """Compare it if it does not answer soon."""
        asked = self.read(endpoint)
        asked.addErrback(lambda failure: None)
        self.await_soon(endpoint, asked)

    def await_soon(self, endpoint: str, asked: Deferred[Any]) -> None:
        """Compare it if this is not answered soon."""
        if len(self.endpoints) < 2:
            return
        due = self.reactor.callLater(SOON, self.compare, endpoint)

        def answered(result: Any) -> Any:
            if due.active():
                due.cancel()
            return result

        asked.addBoth(answered)

    def compare(self, endpoint: str) -> None:
        """Ask it and all others."""
        if endpoint in self._compared:
            return
        self._compared.add(endpoint)
        others = [(each, self.read(each)) for each in self.endpoints if each != endpoint]
        own = self.read(endpoint)
        better: list[str] = []
        left = len(others)

        def failed(failure: object) -> None:
            nonlocal left
            left -= 1
            if not left and not better:
                own.cancel()

        def answered(result: object, other: str) -> None:
            if not better and endpoint in self._compared:
                better.append(other)
                # Once more round the loop: what has come while that was late is read before.
                self.reactor.callLater(GRACE, self.reactor.callLater, 0, late)

        def late() -> None:
            if endpoint in self._compared:
                self.hangs(endpoint, better[0])
                own.cancel()

        def over(result: object) -> None:
            self._compared.discard(endpoint)
            for _, asked in others:
                asked.cancel()

        for other, asked in others:
            asked.addCallbacks(answered, failed, (other,))
        own.addBoth(over)
