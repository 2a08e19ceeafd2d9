"""A node's share in its cluster, as those see it who take over what others have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.cluster.admin.shown import Shown
from mqttd.cluster.etcd.client import Etcd
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.etcd.membership import Membership
from mqttd.cluster.etcd.reading import Said
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.links.stream import Streams
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.cluster.wills.heirs import Heirs
from mqttd.config.schema import Cluster as Settings
from mqttd.config.schema import Config

__all__ = ["Share"]


class Share(Protocol):
    """See `mqttd.cluster.cluster.Cluster`."""

    name: str
    config: Config
    settings: Settings
    reactor: Any
    keys: Keys
    etcd: Etcd
    membership: Membership
    broker: Broker
    mesh: NodeMesh
    moves: Moves
    owners: Owners
    view: View
    shown: Shown
    heirs: Heirs
    streams: Streams
    stopped: bool
    everything: Callable[[list[Said]], None]
    other: Callable[[Said], None]

    @property
    def minority(self) -> bool:
        """Whether the others do not count with this node."""

    def settled(self, filters: list[str]) -> Deferred[None]:
        """Fires when the other nodes have these filters, or are slow to."""
