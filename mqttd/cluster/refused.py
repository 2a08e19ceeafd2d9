"""What of a configuration does not go together with a cluster yet."""

from __future__ import annotations

from mqttd.config.schema import Config

__all__ = ["refused"]


def refused(config: Config) -> str:
    """What of a configuration does not go together with a cluster; empty where all does."""
    said = 'is not possible with cluster.kind = "etcd" yet'
    if config.node.workers != 1:
        return f"node.workers = {config.node.workers!r} {said}: each node is one process"
    if config.session.upgrade_qos:
        return f"session.upgrade_qos = true {said}"
    return ""
