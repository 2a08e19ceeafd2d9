"""What was kept for a node while there was no link to it, until that node has it.

    s at c --a, b--> PUBACK, PUBREC: kept, the link to x is cut
    s goes from c to d, its link to x is whole: c has a, b taken by x --TAIL--> d --c--> x

It is acknowledged as if the node had it, so its publisher may go on elsewhere. What that publishes
there would be at the node before it: what was kept is much, and is sent as the node handles it,
while the marks that a session on its way waits for come the other way.

Promise: a look at each link for a session that leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqttd.cluster.links.nodes import Node, NodeMesh, Settling
from mqttd.mesh.frames import STATE
from mqttd.mesh.peer import Ferry

__all__ = ["Arrears"]


class Arrears:
    """Those of the links of `mesh`; `then` is called when a node has what was kept for it."""

    def __init__(self, mesh: NodeMesh, then: Callable[[], object]) -> None:
        self.mesh = mesh
        self.then = then
        #: Lanes by which what was kept is going, and a token for this link of each.
        self._going: dict[Ferry, object] = {}

    def linked(self, node: Node) -> None:
        """There is a link: what was kept goes now."""
        for ferry in (node.ferry, node.once):
            token = object()
            if ferry.kept and ferry.call(Settling([], partial(self._over, ferry, token))):
                self._going[ferry] = token

    def _over(self, ferry: Ferry, token: object) -> None:
        """It is there, or the link is cut again."""
        if self._going.get(ferry) is token:
            del self._going[ferry]
            self.then()

    def any(self) -> bool:
        """Whether a node has not yet what was kept for it."""
        return any(
            ferry in self._going or (ferry.link is None and _has_message(ferry))
            for node in self.mesh.nodes.values()
            for ferry in (node.ferry, node.once)
        )


def _has_message(ferry: Ferry) -> bool:
    return any(data[0] != STATE for _, data in ferry.kept)
