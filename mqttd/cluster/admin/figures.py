"""How much each node has: told to those that there are links to, every `EVERY` seconds.

    broker --FIGURES {uptime, connections, sessions, clock}--> the other nodes --> who asks one
                                                                              '--> `Clocks`

Promise: some hundred bytes for each node and time, none where the link takes nothing; what another
one has said counts while it is a member and linked. A node that does not know the frame passes
over it.
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from mqttd.cluster.admin.clocks import Clocks
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.mesh.frames import FIGURES, frame

__all__ = ["EVERY", "Figures", "Told"]

EVERY: Final = 2000

Count = Annotated[int, Meta(ge=0)]


class Told(Struct):
    """What a node says of itself; `uptime` in seconds, `clock` since 1970: None where it is kept,
    and of a node that does not say it."""

    uptime: Count
    connections: Count
    sessions: Count
    clock: float | None = None


class Figures:
    """Those of this node and the others of `mesh`."""

    def __init__(self, mesh: NodeMesh) -> None:
        self.mesh = mesh
        self.broker = mesh.broker
        self.clocks = Clocks(mesh.broker.alarms, self._is_linked)
        self._next = 0
        #: Node -> its epoch, and what it has said.
        self._told: dict[str, tuple[int, Told]] = {}

    def tick(self) -> None:
        """A few times a second."""
        broker = self.broker
        if broker.now < self._next:
            return
        self._next = broker.now + EVERY
        said = msgspec.structs.replace(self.here(), clock=time.time())
        data = frame(FIGURES, msgspec.json.encode(said))
        for node in self.mesh.nodes.values():
            if node.link is not None and not node.link.blocked:
                node.link.send(data)
                broker.perform_later()
        for name in self._told.keys() - self.mesh.nodes.keys():
            del self._told[name]
        self.clocks.tick()

    def _is_linked(self, name: str) -> bool:
        node = self.mesh.nodes.get(name)
        return node is not None and node.link is not None

    def here(self) -> Told:
        """How much this node has."""
        broker = self.broker
        uptime = (broker.now - broker.started_at) // 1000
        return Told(uptime, broker.channels, len(broker.sessions))

    def take(self, node: Node, body: bytes) -> None:
        """What another node has said; what is no such thing is as if it were not said."""
        try:
            told = msgspec.json.decode(body, type=Told)
        except msgspec.MsgspecError:
            self._told.pop(node.name, None)
            return
        clock, told.clock = told.clock, None
        self._told[node.name] = (node.epoch, told)
        if clock is not None:
            self.clocks.told(node.name, clock)

    def of(self, node: Node) -> Told | None:
        """How much a node has, if there is a link to it and it has said so."""
        epoch, told = self._told.get(node.name, (0, None))
        return told if node.link is not None and epoch == node.epoch else None
