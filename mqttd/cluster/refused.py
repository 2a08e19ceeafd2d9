"""What of a configuration does not go together with a cluster yet."""

from __future__ import annotations

from mqttd.config.schema import Config

__all__ = ["refused"]


def refused(config: Config) -> str:
    """What of a configuration does not go together with a cluster; empty where all does."""
    said = 'is not possible with cluster.kind = "etcd" yet'
    if config.session.upgrade_qos:
        return f"session.upgrade_qos = true {said}"
    if config.session.replicate != "none":
        said = f"session.replicate = {config.session.replicate!r} needs"
        if config.store.kind == "memory":
            return f'{said} a store of the node\'s own: store.kind = "sqlite"'
        if not config.cluster.keep_sessions:
            return f"{said} a time to take sessions over: cluster.keep_sessions"
    return ""
