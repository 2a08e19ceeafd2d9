"""Links on which nothing comes any more: a network may lose all that is sent, and not say so.

    every node tells its figures every two seconds --> nothing has come for `ROUNDS` of them
        --> the link is ended, and dialled again --> what was not acknowledged is kept, and sent

TCP itself gives up what it has sent after a quarter of an hour, and who has sent nothing after two
hours. Until then all would wait that goes to that node, and no session could move.

Promise: a link that is not read, or is to a node that tells no figures, is not ended; nor are
rounds that this process has slept through counted.
"""

from __future__ import annotations

from typing import Final

from mqttd.cluster.admin.figures import EVERY, Figures
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.links.stream import Streams

__all__ = ["ROUNDS", "Mute"]

ROUNDS: Final = 5


class Mute:
    """Those of `streams`, on which `figures` are told."""

    def __init__(self, streams: Streams, mesh: NodeMesh, figures: Figures) -> None:
        self.streams = streams
        self.mesh = mesh
        self.figures = figures
        self._next = 0

    def tick(self) -> None:
        """A few times a second."""
        now = self.mesh.broker.now
        if now < self._next:
            return
        self._next = now + EVERY
        for name, stream in list(self.streams.of.items()):
            node = self.mesh.nodes.get(name)
            tells = node is not None and self.figures.of(node) is not None
            stream.mute = 0 if stream.came or stream.rests or not tells else stream.mute + 1
            stream.came = False
            if stream.mute >= ROUNDS:
                stream.give_up(f"nothing has come from it for {ROUNDS * EVERY // 1000} s")
