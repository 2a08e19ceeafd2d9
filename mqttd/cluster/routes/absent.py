"""Nodes that are gone and awaited: what is published for their sessions is kept meanwhile.

    a node is gone, its home is there --> its filters stay, nobody behind them: QoS 1 and 2 is kept
    it is back, with its store        --> filters and messages are the new one's, in their order
    it has told its own filters       --> those that it does not want any more go
    its home is gone                  --> so is all of that, and counted
    and we were, as it was taken over --> its heir has not had what we have: QoS 1 goes there

What had been sent to it and not acknowledged it may have: it says how much, when it is linked
(`mqttd.cluster.links.nodes`), and the rest is sent again. QoS 2 is kept in the store meanwhile, too
(`mqttd.mesh.ferry`).

Of sessions that move it is told anew all but one thing: that they are where they were to go. A node
that has only stood still keeps them until then, with all that is published for them.

Promise: above `mqttd.mesh.peer.MOST` bytes for a node publishers wait, until it is back or awaited
no more: who publishes much takes nothing from others that was acknowledged to them. A node that
joins meanwhile knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.sessions.transit import is_done
from mqttd.mesh.frames import STATE, split
from mqttd.mesh.peer import NEVER

__all__ = ["Absent"]

#: Milliseconds in which a node that is ready has told its filters.
_TELLS: Final = 10_000


class Absent:
    """The nodes of `mesh` that are awaited."""

    def __init__(self, mesh: NodeMesh) -> None:
        self.mesh = mesh
        self.nodes: dict[str, Node] = {}
        #: Since when each of them is, as `Broker.now`.
        self.began: dict[str, int] = {}
        #: Node -> filters that it had before, and has not told since it is back; and since when.
        self.untold: dict[str, set[str]] = {}
        self._since: dict[str, int] = {}

    def begin(self, node: Node) -> None:
        """This node is gone, and awaited."""
        self.end(node.name)
        mesh = self.mesh
        if node.link is not None:
            mesh.unlinked(node.link)
        if mesh.nodes.get(node.name) is node:
            del mesh.nodes[node.name]
        self.nodes[node.name] = node
        self.began[node.name] = mesh.broker.now

    def hand_on(self, node: Node, to: Node) -> None:
        """This node is awaited no more, and who has taken it over has not had what is here for it.

        Of QoS 1, which may come twice: others there may have had it, or it has.
        """
        for data in node.ferry.drop():
            if _qos(data) == 1:
                to.ferry.keep(data)
        self.mesh.broker.perform_later()

    def end(self, name: str) -> int:
        """It is awaited no more: how many messages were kept for it."""
        node = self.nodes.pop(name, None)
        return 0 if node is None else self.mesh.leave(node)

    def held(self) -> int:
        """Messages that nodes have not had which there is no link to, and that no store has."""
        unlinked = [node for node in self.mesh.nodes.values() if node.link is None]
        nodes = (*unlinked, *self.nodes.values())
        return sum(1 for node in nodes for _, data in node.ferry.kept if _qos(data))

    def back(self, node: Node) -> None:
        """It is there again: what was kept is its own, before anything else."""
        old = self.nodes.pop(node.name, None)
        if old is None:
            return
        if old.once is node.once:
            node.once.begin_anew()
        else:
            node.once.regain(old.once)
        ferry, kept = old.ferry, node.ferry
        node.stream = old.stream
        for at, (_, data) in enumerate(ferry.kept):
            if _qos(data) or is_done(data):
                kept.kept.append((NEVER, data))
                kept.kept_bytes += len(data)
                if at < len(ferry.before):
                    kept.before.append(ferry.before[at])
        ferry.kept.clear()
        filters = set(old.peer.filters)
        for full_filter in filters:
            self.mesh.add(node, full_filter)
        self.mesh.leave(old)
        self.untold[node.name] = filters
        self._since[node.name] = self.mesh.broker.now

    def part(self, name: str) -> None:
        """It is there again, but what it was before is another's, and so is what is kept for it."""
        old = self.nodes.get(name)
        if old is not None:
            old.once = old.peer.once = old.once.part()

    def take(self, name: str) -> list[tuple[int, int, bytes]]:
        """It is awaited no more, and what was kept for it is another's: the stream on which that
        was sent, its number there (0: it was not), the message. For QoS 2: book and number.
        """
        node = self.nodes.pop(name, None)
        if node is None:
            return self._left_to(name)
        ferry = node.ferry
        before = list(ferry.before)
        kept = [
            (node.stream, before[at] if at < len(before) else 0, data)
            for at, (_, data) in enumerate(ferry.kept)
            if _qos(data)
        ]
        ferry.kept.clear()
        once = node.once
        kept += [(once.book, number, data) for number, data in once.numbers() if _qos(data)]
        once.drop()
        self.mesh.leave(node)
        return kept

    def _left_to(self, name: str) -> list[tuple[int, int, bytes]]:
        """As `take`, of one that was gone already when we came: what our store had for it."""
        once = self.mesh.ferries.get(name)
        if once is None or name in self.mesh.nodes:
            return []
        kept = [(once.book, number, data) for number, data in once.numbers()]
        once.drop()
        return kept

    def told(self, name: str, full_filter: str) -> None:
        """A node wants this filter."""
        if name in self.untold:
            self.untold[name].discard(full_filter)

    def is_untold(self, name: str, full_filter: str) -> bool:
        """Whether a node that is back had this filter before, and may have it still."""
        return full_filter in self.untold.get(name, ())

    def tick(self, ready: Callable[[str], bool]) -> None:
        """A few times a second; `ready` says whether a node has let clients in."""
        now = self.mesh.broker.now
        for name, since in list(self._since.items()):
            if name in self.mesh.nodes and not (ready(name) and now - since > _TELLS):
                continue
            del self._since[name]
            node = self.mesh.nodes.get(name)
            for full_filter in self.untold.pop(name):
                if node is not None:
                    self.mesh.remove(node, full_filter)


def _qos(data: bytes) -> int:
    """Of the message in these frames; 0 for none, as where a session moves."""
    at = 0
    while at < len(data):
        kind = data[at]
        if kind == STATE:
            return 0
        if kind >= 0x30:
            return kind >> 1 & 3
        at = split(data, at)[1]
    return 0
