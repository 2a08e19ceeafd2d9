"""What a broker has to do with other processes at its start: nodes of its cluster, former workers.

Promise: a broker by itself imports nothing of either; whatever is wrong is a `StartError`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.internet.error import CannotListenError

from mqttd.admin.api import Api
from mqttd.net.addresses import address_text
from mqttd.net.tls import TlsError
from mqttd.options import StartError, check_cluster
from mqttd.storage.store import Store, StoreError, store_of

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.logger import Logger
    from twisted.python.failure import Failure

    from mqttd.admin.doors.tcp import AdminTcpService
    from mqttd.admin.http.parts import Parts
    from mqttd.cluster.cluster import Cluster
    from mqttd.config.schema import Config
    from mqttd.control import Control
    from mqttd.plugins.plugins import Plugins

__all__ = ["api_of", "cluster_of", "from_workers", "join", "kept", "listen"]


def from_workers(data_dir: str, log: Logger) -> None:
    """Take over the sessions of a broker that had workers; raises StartError."""
    from mqttd.workers.resharding import LEFT, reshard

    left: list[str] = []
    try:
        moved = reshard(data_dir, 1, left)
    except StoreError as error:
        raise StartError(f"node.workers = 1: {error}") from None
    if moved >= 0:
        log.info("{moved} sessions moved from workers", moved=moved)
    for what in left:
        log.error(LEFT, what=what)


def cluster_of(config: Config, reactor: Any) -> Cluster | None:
    """Our share in a cluster of nodes, where there is one; raises StartError."""
    check_cluster(config)
    if config.cluster.kind == "none":
        return None
    from mqttd.cluster.cluster import Cluster
    from mqttd.cluster.links.tls import plain_etcd

    try:
        cluster = Cluster(config, reactor)
        if config.session.replicate != "none":
            from mqttd.cluster.replication.replication import Replication

            cluster.replication = Replication(cluster, config)
        if text := plain_etcd(config.cluster):
            cluster.log.warn("{text}", text=text)
        return cluster
    except (TlsError, OSError) as error:
        raise StartError(f"cluster: {error}") from None


def api_of(cluster: Cluster | None, parts: Parts, reactor: Any) -> Api:
    """The HTTP interface: that of this process, or of a node of a cluster."""
    if cluster is None:
        return Api(parts, reactor.seconds)
    from mqttd.cluster.front import NodeFront

    parts.broker.memory.others.append(cluster.shown.asking.held)
    return NodeFront(cluster, parts, reactor.seconds)


def kept(
    config: Config, reactor: Any, log: Callable[[str, dict[str, object]], None],
    cluster: Cluster | None,
) -> Store | None:  # fmt: skip
    """The store of this broker, where there is one, copied where it is to be; raises StartError."""
    try:
        store = store_of(config, reactor, log)
    except StoreError as error:
        raise StartError(str(error)) from None
    if cluster is not None and cluster.replication is not None and store is not None:
        cluster.replication.keep(store)
    return store


def join(cluster: Cluster) -> Deferred[None]:
    """Become a node; fails with StartError where it cannot be one."""
    from mqttd.cluster.cluster import ClusterError

    def cannot(failure: Failure) -> NoReturn:
        failure.trap(ClusterError)
        raise StartError(failure.getErrorMessage()) from None

    return cluster.join().addErrback(cannot)


def listen(cluster: Cluster | None, control: Control, plugins: Plugins) -> None:
    """Open the door for other nodes, which are told where our event log is; raises StartError."""
    if cluster is not None:
        try:
            cluster.listen()
        except CannotListenError as error:
            reason = getattr(error.socketError, "strerror", None) or error.socketError
            text = f"cluster.bind = {cluster.settings.bind!r}: {reason}"
            if getattr(error.socketError, "errno", 0) == errno.EADDRINUSE:
                text += "; another program, perhaps a node, listens there: choose another bind"
            raise StartError(text) from None
        cluster.exported = lambda: _exported(cluster, control.tcp, plugins.loaded())


def _exported(cluster: Cluster, tcp: AdminTcpService | None, loaded: Sequence[str]) -> str:
    """Where other programs read this node's event log; empty: they do not."""
    if tcp is None or "spark" not in loaded:
        return ""
    if cluster.settings.export:
        return cluster.settings.export
    host = tcp.settings.address[0]
    if host in ("", "0.0.0.0", "::"):
        host = cluster.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    scheme = "https" if tcp.settings.certificate else "http"
    return f"{scheme}://{address_text(host, tcp.port)}"
