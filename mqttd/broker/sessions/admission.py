"""Whether the store has room for a session that would be kept.

    CONNECT --> to be kept, and not kept by now? --> room in the journal? in its user's share?

A session that goes on is let in whatever is left: who takes his messages makes room.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.sessions.registry import Registry
from mqttd.codec.packets import Connect
from mqttd.session.ground.account import ROW
from mqttd.types import ClientInfo

__all__ = ["NO_ROOM", "is_kept"]

#: Why it is refused.
NO_ROOM: Final = "the store has no room for a session that is kept"


def is_kept(registry: Registry, client: ClientInfo, connect: Connect) -> bool:
    """Whether the session that this CONNECT asks for can be; one that cannot is counted."""
    if not registry.expiry_of(connect):
        return True
    session = registry.sessions.get(client.client_id)
    if session is not None and session.owner:
        return True
    broker = registry.broker
    user = client.username
    size = ROW + len(client.client_id.encode()) + (0 if user is None else len(user.encode()))
    if broker.journal.has_room(size) and broker.account.may_begin(user, size):
        return True
    broker.metrics.refused_not_kept += 1
    return False
