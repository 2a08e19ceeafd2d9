"""twistd's process where a machine has several nodes of a cluster: it starts them, and that is all.

    twistd mqttd, cluster.kind = "etcd", workers = 3, node.name = "a"
      supervisor    pid file, one log, signals
        |-- node a      what the configuration says: data, mqttd.sock, cluster.bind, doors
        |-- node a-2    data/a-2, ports of the doors and cluster.bind one higher   } one port for
        '-- node a-3    data/a-3, two higher                                       } clients

Each is a node as any other (`mqttd.cluster`), so one of them is asked for all, as in a cluster:
`mqttd-ctl` reaches the first. The listeners share their ports (`reuse_port`); what there is once, a
Unix socket or an endpoint, is at the first. Each two that serve are given a way by which
connections go to the node that their client belongs to (`mqttd.workers.machine`).

Promise: a node that ends is started again, but one that has left, which has ended by itself. With
all of them gone the supervisor ends, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from mqttd.config.schema import Config, SocketListener
from mqttd.monitor.machine import memory_of_machine
from mqttd.options import StartError, check_cluster, check_files
from mqttd.workers.control import stop
from mqttd.workers.place import PARENT, count_of, node_names
from mqttd.workers.process import WorkerProcess
from mqttd.workers.processes import Processes

__all__ = ["NodesService"]

#: The exit status of one that has left its cluster, or was drained to its end.
_LEFT: Final = 0


class NodesService(Processes):
    """The nodes that a machine has of a cluster, of which `config` describes the first.

    Raises StartError, or what the access layer raises for its files; each names the file.
    """

    one = "node"

    def __init__(self, config: Config, reactor: Any, twistd: Mapping[str, Any] | None) -> None:
        super().__init__(config, reactor, twistd, count_of(config.node.workers))
        check_cluster(config)
        check_files(config).close()
        self.names = node_names(config.node.name, self.count)
        for worker, name in zip(self.workers, self.names, strict=True):
            worker.name = name
            worker.shown = {"node": name}
        #: Those that keep the ports of the listeners for us.
        self.held: dict[str, socket.socket] = {}
        self._bind()
        self._tell_others()

    def _bind_one(self, where: str, key: str, settings: SocketListener) -> None:
        if "__" in where:
            text = "several nodes on one machine need names of listeners without two underscores"
            raise StartError(f"{key}: {text}, which stand for a dot in an environment variable")
        super()._bind_one(where, key, settings)

    def bound(self) -> list[dict[str, socket.socket]]:
        """See `Processes.bound`: nodes open their own."""
        return [self.held]

    def _tell_others(self) -> None:
        """A smaller number than before: what other nodes have kept waits for them."""
        first, data_dir = f"{self.config.node.name}-", self.config.node.data_dir
        found = sorted(os.listdir(data_dir)) if os.path.isdir(data_dir) else []
        for name in found:
            path = os.path.join(data_dir, name, "store.db")
            if name.startswith(first) and name not in self.names and os.path.exists(path):
                self.log.warn(
                    "{path} is of a node that is not started, and may have sessions: with"
                    " workers = {count} again, `mqttd-ctl cluster drain {name}` moves them",
                    path=path, count=name.removeprefix(first), name=name,
                )  # fmt: skip

    def _told(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        super()._told(worker, message)
        if "ready" in message:
            for other in self.workers:
                if other is not worker and other.ready:
                    self._join(worker, other, (socket.SOCK_SEQPACKET,), self._way_to)

    def _way_to(self, worker: WorkerProcess, other: WorkerProcess) -> dict[str, Any]:
        return {"way": other.number, "nodes": self.names}

    # -- one of them ---------------------------------------------------------------------------

    def environ_of(self, number: int) -> dict[str, str]:
        """See `Processes.environ_of`."""
        config, name = self.config, self.names[number - 1]
        own = {PARENT: str(number), "MQTTD__NODE__WORKERS": "1"}
        if not config.memory.budget:
            own["MQTTD__MEMORY__BUDGET"] = str(memory_of_machine() // (2 * self.count))
        for where, (host, port) in self.places.items():
            kind, _, listener = where.partition(":")
            key = f"MQTTD__LISTENER__{kind}__{listener}__".upper()
            own[f"{key}BIND"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            own[f"{key}REUSE_PORT"] = "true"
        if number > 1:
            data_dir = os.path.join(config.node.data_dir, name)
            own |= {
                "MQTTD__NODE__NAME": name,
                "MQTTD__NODE__DATA_DIR": data_dir,
                "MQTTD__ADMIN__SOCKET": os.path.join(data_dir, "mqttd.sock"),
            }
            cluster, admin = config.cluster, config.admin
            ports = {"CLUSTER__BIND": cluster.bind}
            ports |= {"CLUSTER__ADVERTISE": cluster.advertise} if cluster.advertise else {}
            ports |= {"CLUSTER__EXPORT": cluster.export} if cluster.export else {}
            if admin.tcp.token_file or admin.tcp.pull_token_file:
                ports["ADMIN__TCP__BIND"] = admin.tcp.bind
            if admin.page.enabled:
                ports["ADMIN__PAGE__BIND"] = admin.page.bind
            own |= {f"MQTTD__{key}": _beside(value, number) for key, value in ports.items()}
        return own

    def _ended(self, worker: WorkerProcess, why: str) -> None:
        if self.stopping or worker.status != _LEFT or not worker.served:
            super()._ended(worker, why)
            return
        self.log.info("node {name} has left: it is not started again", name=worker.name)
        if not any(each.pid for each in self.workers):
            stop(self.reactor)

    def _is_over(self) -> None:
        for one in self.held.values():
            one.close()


def _beside(address: str, number: int) -> str:
    """The address of the node with this number: ports go up; one that is free is free for all."""
    host, colon, port = address.rpartition(":")
    return f"{host}{colon}{int(port) + number - 1}" if port.isdigit() and port != "0" else address
