"""What has become of a node's wills of before, when it is back: one of two publishes each.

    stopped, others are there --> its wills with delay stay in etcd: the others publish them in time
                                  those that do not fit there --> `note`: its own node does
    stopped, nobody is there  --> none is in etcd; `note`: its own node publishes all of them
    a member again, before it hears who has claimed what
              --> the key of before is there --> nobody has published it, and nobody will: a will
                                                 with delay is taken by others while its node is not
              --> it is not, and others are  --> one of them has published it: it is no will now

Promise: what others have published does not come again with a session, here or where that goes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Final

import msgspec

from mqttd.broker.broker import Broker
from mqttd.cluster.etcd.client import Etcd, end_of, get, remove
from mqttd.cluster.etcd.keys import Keys
from mqttd.session.session import Session

__all__ = ["Before"]

#: Wills, and nodes, that are read at once; changes in one request.
_PAGE: Final = 32
_MANY: Final = 100


class Before:
    """The wills that the node `name` had before this `epoch` of its membership."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str) -> None:
        self.etcd = etcd
        self.keys = keys
        self.name = name
        #: A file that says which of those that our store has kept nobody else sees to.
        self.note = ""
        #: Sessions whose wills others have published, or are about to.
        self.theirs: set[Session] = set()
        #: Where etcd has wills that are with their sessions again.
        self.over: list[bytes] = []

    def keep(self, client_ids: Collection[str] | None) -> None:
        """Of these nobody else sees to the wills, once we are gone; None: of all."""
        if client_ids is not None and not client_ids:
            self.forget()
            return
        with open(self.note, "w", encoding="utf-8") as file:
            if client_ids is not None:
                json.dump(list(client_ids), file)

    def kept(self) -> set[str] | None:
        """As the note says; None: of all."""
        try:
            with open(self.note, encoding="utf-8") as file:
                return set(json.load(file))
        except FileNotFoundError:
            return set()
        except (ValueError, TypeError):
            return None

    def forget(self) -> None:
        """What was to be known of before is."""
        if os.path.exists(self.note):
            os.unlink(self.note)

    async def settle(self, broker: Broker, epoch: int, client_ids: Collection[str]) -> None:
        """Let go of the wills of these clients that others have published. Raises EtcdError."""
        held = {session.client_id: session for session in broker.wills.held or ()}
        heir = await self.etcd.transaction([], [get(self.keys.heir(self.name))])
        if heir.found:  # who takes the sessions over sees to their wills, too
            self.theirs.update(held.values())
            return
        keys = await self._keys(epoch)
        nodes = 0
        start = self.keys.node("")
        async for page in self.etcd.pages_of(start, end_of(start), _PAGE):
            nodes += len(page.found)
        noted = self.kept()
        if noted is None or (nodes <= 1 and not keys):
            return
        for client_id, left in keys.items():
            if client_id in broker.sessions or client_id in held:
                self.over += [key for key, delay in left if delay]
        for client_id in {*client_ids, *held} - noted:
            if any(delay for _, delay in keys.get(client_id, ())):
                continue
            if client_id in held:
                self.theirs.add(held[client_id])
            session = broker.sessions.get(client_id)
            if session is not None and session.channel is None:
                session.take_will()

    async def _keys(self, epoch: int) -> dict[str, list[tuple[bytes, int]]]:
        """What etcd has of us from before, by client id, and the delays."""
        found: dict[str, list[tuple[bytes, int]]] = {}
        start = self.keys.wills_ever(self.name)
        async for page in self.etcd.pages_of(start, end_of(start), _PAGE):
            for kv in page.found:
                try:
                    _, written, client_id = self.keys.parts_of_will(kv.key)
                    delay = int(msgspec.msgpack.decode(kv.value)[1])
                except Exception:  # of whatever it has in it
                    continue  # who publishes them says so
                if written != epoch:
                    found.setdefault(client_id, []).append((kv.key, delay))
        return found

    async def clear(self) -> None:
        """etcd has them no more: they are with their sessions. Raises EtcdError."""
        while self.over:
            some = self.over[:_MANY]
            await self.etcd.transaction([], [remove(key) for key in some])
            del self.over[: len(some)]
