"""Nodes that are there and cannot be reached: what is published here is not heard there.

    a stream fails --> why --.
    no link for `PATIENCE` --+--> the alarm `cluster_unlinked`, until there is one, or they are gone

    no link to any, nor the longest there --> `alone`: it is not ready

A node that is dialled by another does not know who it was that did not get in: of a node that has
not come it says who came last.

Promise: a link that is there within `PATIENCE` is no news.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twisted.python.failure import Failure

from mqttd.broker.broker import Broker
from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.nodes import Node, NodeMesh

__all__ = ["ALARM", "PATIENCE", "Unlinked", "reason_of"]

ALARM: Final = "cluster_unlinked"
#: Milliseconds without a link, and for which who came last counts.
PATIENCE: Final = 5000
_LATELY: Final = 60_000
#: What is said of one that does not speak TLS to a node that does.
SPEAKS_PLAIN: Final = "it does not speak TLS, and this node does (cluster.certificate)"
#: Of one that was not looked at yet, or has a link.
_NEVER: Final = (0, 1 << 62)
#: Bytes of a reason.
_MOST: Final = 200


class Unlinked:
    """Those of `mesh`; `name` is this node's."""

    def __init__(self, name: str, mesh: NodeMesh) -> None:
        self.name = name
        self.mesh = mesh
        self.broker: Broker = mesh.broker
        #: Node -> its epoch, and when it was first seen without a link.
        self._since: dict[str, tuple[int, int]] = {}
        self._why: dict[str, str] = {}
        #: Who was not let in last, and when.
        self._stranger = ""
        self._came = 0
        self._text = ""
        #: There was a link.
        self._met = False

    def failed(self, name: str, where: str, text: str) -> None:
        """A stream to the node `name`, or one from `where` whose name is not known, has failed."""
        if name:
            self._why[name] = text[:_MOST]
        else:
            self._stranger = f"{where}: {text}"[:_MOST]
            self._came = self.broker.now

    def reason(self, node: Node) -> str:
        """Why there is no link to a node; empty where there is one."""
        if node.link is not None:
            return ""
        if why := self._why.get(node.name):
            return why
        if self.name < node.name:
            return "it has not answered yet"
        lately = self._stranger and self.broker.now - self._came < _LATELY
        last = f"; who came last was not let in, {self._stranger}" if lately else ""
        return f"it has to come here, and has not{last}"

    def alone(self, members: Mapping[str, Member]) -> str:
        """Why nobody is to be sent here: there is no link to any other that serves; else empty.

        Of nodes that have no link to each other it is not said of the one that is a member for
        longest: clients have somewhere to go, all to the same.
        """
        own = members.get(self.name)
        others = [each for each in members.values() if each.ready and each.name != self.name]
        if own is None or not others or own.epoch < min(each.epoch for each in others):
            return ""
        before = self.broker.now - (PATIENCE if self._met else 0)
        for each in others:
            node = self.mesh.nodes.get(each.name)
            if node is None or node.link is not None:
                return ""
            if self._since.get(each.name, _NEVER)[1] > before:
                return ""
        return "no link to any other node (cluster_unlinked)"

    def tick(self, counts: bool = True) -> None:
        """A few times a second; `counts` is whether this node is one that the others count with."""
        now, nodes = self.broker.now, self.mesh.nodes if counts else {}
        for name in self._why.keys() - nodes.keys():
            del self._why[name]
        since: dict[str, tuple[int, int]] = {}
        for name, node in nodes.items():
            if node.link is not None:
                self._met = True
                self._why.pop(name, None)
                continue
            epoch, began = self._since.get(name, (node.epoch, now))
            since[name] = (node.epoch, began if epoch == node.epoch else now)
        self._since = since
        late = [name for name, (_, began) in sorted(since.items()) if now - began >= PATIENCE]
        if not late:
            if self._text:
                self._text = ""
                self.broker.alarms.clear(ALARM)
            return
        said = "; ".join(f"{name} ({self.reason(nodes[name])})" for name in late)
        text = f"no link to {said}: what is published at one of both is not heard at the other"
        if text != self._text:
            self._text = text
            self.broker.alarms.activate(ALARM, text)


def reason_of(failure: Failure | None) -> str:
    """Why a connection is over, as an operator reads it."""
    if failure is None:
        return ""
    error: Any = failure.value
    errors = error.args[0] if error.args else None
    if isinstance(errors, list) and errors and isinstance(errors[0], tuple):
        text = str(errors[0][-1])  # OpenSSL's: library, function, reason
        if "certificate verify failed" in text:
            return f"its certificate is not of cluster.ca_file, or expired ({text})"
        if "alert" in text and ("unknown ca" in text or "certificate" in text):
            return f"it does not take the certificate of this node ({text})"
        if "wrong version number" in text:
            return f"{SPEAKS_PLAIN}: {text}"
        return text
    return str(failure.getErrorMessage())
