"""Who has a client id, as etcd knows it: an answer to a claim of ours may not have come.

Promise: it is asked until it answers, or we are a member no more.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from twisted.internet.task import deferLater

from mqttd.cluster.etcd.client import EtcdError, get
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.etcd.many import Many

__all__ = ["whose"]

#: Seconds before etcd is asked again.
_AGAIN: Final = 1.0


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    keys: Keys
    many: Many
    reactor: Any
    lease: int


async def whose(owners: _Owners, client_id: str) -> tuple[str, str, int] | None:
    """Owner, from whom, and since when; nobody is "". None: we are no member, and not told."""
    while owners.lease:
        try:
            answer = await owners.many.transaction([], [get(owners.keys.own(client_id))])
        except EtcdError:
            await deferLater(owners.reactor, _AGAIN)
            continue
        kv = answer.found[0] if answer.found else None
        if kv is None:
            return "", "", 0
        known = owners.keys.owner(kv)
        return known.node, known.origin, kv.changed
    return None
