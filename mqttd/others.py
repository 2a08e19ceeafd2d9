"""What a broker has to do with other processes at its start: nodes of its cluster, former workers.

Promise: a broker by itself imports nothing of either; whatever is wrong is a `StartError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.error import CannotListenError

from mqttd.net.tls import TlsError
from mqttd.options import StartError
from mqttd.storage.store import StoreError

if TYPE_CHECKING:
    from twisted.logger import Logger

    from mqttd.cluster.cluster import Cluster
    from mqttd.config.schema import Config

__all__ = ["cluster_of", "from_workers", "listen"]


def from_workers(data_dir: str, log: Logger) -> None:
    """Take over the sessions of a broker that had workers; raises StartError."""
    from mqttd.workers.resharding import reshard

    try:
        moved = reshard(data_dir, 1)
    except StoreError as error:
        raise StartError(f"node.workers = 1: {error}") from None
    if moved >= 0:
        log.info("{moved} sessions moved from workers", moved=moved)


def cluster_of(config: Config, reactor: Any) -> Cluster | None:
    """Our share in a cluster of nodes, where there is one; raises StartError."""
    if config.cluster.kind == "none":
        return None
    from mqttd.cluster.cluster import Cluster
    from mqttd.cluster.refused import refused

    if text := refused(config):
        raise StartError(text)
    try:
        return Cluster(config, reactor)
    except (TlsError, OSError) as error:
        raise StartError(f"cluster: {error}") from None


def listen(cluster: Cluster | None) -> None:
    """Open the door for other nodes; raises StartError."""
    if cluster is not None:
        try:
            cluster.listen()
        except CannotListenError as error:
            raise StartError(f"cluster.bind: {error}") from None
