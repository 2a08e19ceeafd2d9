"""What a node waits for before it lets clients in: the retained messages of one that serves, and
that nobody is being taken over.

    a node that is ready, by name --> its stream begun anew --> all it has --> met
                                  '-- not in time --> the next one; after the last: begun all
                                      the same, with no set, until one that gets a link gives it
    a node that is gone, and whose heir is not done --> what is published here would be kept for it
                                  by nobody: we have never known its filters

Promise: `GIVE` seconds for a node that answers, `TAKEN_OVER` for heirs.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.links.stream import Streams
from mqttd.cluster.routes.view import View

__all__ = ["Beginning"]

#: Seconds that a start waits for a link to one whose retained messages are to be had, and for them.
MEET: Final = 3.0
GIVE: Final = 60.0
#: Seconds for those who take over what others have left, and until it is looked again.
TAKEN_OVER: Final = 10.0
_AGAIN: Final = 0.2


class Beginning:
    """The retained messages of the others, for `mesh`."""

    def __init__(self, mesh: NodeMesh, view: View, streams: Streams, reactor: Any) -> None:
        self.mesh = mesh
        self.view = view
        self.streams = streams
        self.reactor = reactor
        self.log = Logger(namespace="mqttd.cluster")
        #: The one whose retained messages we want is linked, and has given them.
        self._meets: Deferred[None] | None = None
        self._met: Deferred[None] | None = None
        #: It; None: whoever a link to begins, since those that were asked gave none.
        self._from: str | None = ""
        #: Those that begin their streams with all that they retain.
        self._asked: set[str] = set()
        self._given = False

    def takes(self, node: Node) -> bool:
        """Whether we want all retained messages of a node that we have a link to now."""
        wanted = not self._given and self._from in (node.name, None)
        (self._asked.add if wanted else self._asked.discard)(node.name)
        return wanted

    def linked(self, node: Node) -> None:
        """There is a link to it."""
        if self._meets is not None and node.name == self._from:
            meets, self._meets = self._meets, None
            meets.callback(None)

    async def take(self) -> None:
        """Have the retained messages of one that is ready, if there is any, and heirs be done."""
        await self._take()
        end = self.reactor.seconds() + TAKEN_OVER
        while self.reactor.seconds() < end and any(map(self._is_left, self.view.names())):
            await deferLater(self.reactor, _AGAIN)

    def _is_left(self, name: str) -> bool:
        view = self.view
        return view.is_taken_over(name) or (view.is_left(name) and view.home_of(name) >= 0)

    async def _take(self) -> None:
        ready = [each for each in self.view.members.values() if each.ready]
        for name in sorted(each.name for each in ready if each.name != self.view.name):
            if name not in self.mesh.nodes:
                continue
            self._from = name
            meets: Deferred[None] = Deferred()
            met: Deferred[None] = Deferred()
            self._meets, self._met = meets, met
            stream = self.streams.of.get(name)
            if stream is not None:
                stream.close()  # the next one begins with them
            try:
                await meets.addTimeout(MEET, self.reactor)
                await met.addTimeout(GIVE, self.reactor)
                return
            except Exception:
                self.log.warn("node {node} does not give its retained messages", node=name)
            finally:
                self._meets = self._met = None
            self._from = None

    def met(self, number: int) -> None:
        """A neighbour has told everything."""
        node = self.mesh.neighbours.get(number)
        if isinstance(node, Node) and node.name in self._asked:
            self._given = True
            if self._met is not None:
                met, self._met = self._met, None
                met.callback(None)
