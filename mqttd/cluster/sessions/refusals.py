"""Why a claim is refused (`mqttd.cluster.sessions.owners`)."""

from __future__ import annotations

from mqttd.cluster.etcd.client import EtcdError

__all__ = ["anothers", "not_any_more"]


def not_any_more(giver: str) -> EtcdError:
    """Who gives it away has none to give."""
    return EtcdError(f"node {giver!r} does not have it any more")


def anothers(client_id: str) -> PermissionError:
    """With `session.owner = "user"`."""
    return PermissionError(f"the session of {client_id!r} is another user's")
