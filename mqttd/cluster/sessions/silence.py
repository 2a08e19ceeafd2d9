"""Nothing is said of its sessions by a node that another takes over, until that is done.

    lease over, member anew --> `all/heir/<node>` not done --> who claims is refused, who asks waits
                                                      done --> asked now: what is here is said

What such a node has is older than what its heir has: what others have kept for it goes to the heir,
and so does what is published meanwhile. So the claims of others are answered by the heir; this node
says that it has nothing when the heir has said what there is.

Promise: in the order in which they were asked.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.cluster.etcd.client import EtcdError

__all__ = ["Silence"]


class Silence:
    """`lasts` says whether another takes this node's sessions over, or may have begun to;
    `is_left` whether some node's are being taken over.
    """

    def __init__(self) -> None:
        self.lasts: Callable[[], bool] = lambda: False
        self.is_left: Callable[[str], bool] = lambda name: False
        self._waiting: list[Callable[[], object]] = []

    def keeps(self, asked: Callable[[], object]) -> bool:
        """Whether this is not answered now; it is called when it may be."""
        if not self.lasts():
            return False
        self._waiting.append(asked)
        return True

    def check(self) -> None:
        """Raises EtcdError while it lasts."""
        if self.lasts():
            raise EtcdError("another node is taking over the sessions of this one")

    def check_of(self, owner: str) -> None:
        """Raises EtcdError for what its heir is about to have, be its node back or not."""
        if self.is_left(owner):
            raise EtcdError(f"its session goes from node {owner!r} to another")

    def look(self) -> None:
        """Answer those that wait, if it is over."""
        if self._waiting and not self.lasts():
            waiting, self._waiting = self._waiting, []
            for asked in waiting:
                asked()
