"""That a node is a member: its key in etcd, under the leases that it keeps.

    register --> `all/node/<node>`   lease   others count with it, and know what it wants
                 `all/home/<node>`   home    its sessions wait for it `cluster.keep_sessions` longer

    an older one of this data directory is ended; another node of this name is waited for, and is
    an error as soon as it is seen that it keeps its lease

Promise: nothing is kept here that etcd has not said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.etcd.client import Etcd, EtcdError, Kv, absent, equals, get, put, remove
from mqttd.cluster.etcd.keeper import Keeper
from mqttd.cluster.etcd.keys import Keys, Member, member_of
from mqttd.config.schema import Cluster as Settings

__all__ = ["ClusterError", "Membership", "PutOut"]

#: Seconds before it is looked again whether another node of our name has gone.
_AGAIN: Final = 0.5


class ClusterError(Exception):
    """A node cannot be a member; the text says why."""


class PutOut(EtcdError):
    """This node was put out of the cluster, and is no member until it is asked to join."""


class Membership:
    """That of the node `name`, whose data directory has the id `id`; `member` describes it."""

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        settings: Settings,
        name: str,
        id: str,
        reactor: Any,
        member: Callable[[], Member],
    ) -> None:
        self.etcd = etcd
        self.keys = keys
        self.settings = settings
        self.name = name
        self.id = id
        self.reactor = reactor
        self.member = member
        self.log = Logger(namespace="mqttd.cluster")
        #: 0: there is none. Without `cluster.keep_sessions` both are one.
        self.lease = 0
        self.home = 0
        #: The revision in which the key was created.
        self.epoch = 0
        self.keeper = Keeper(settings, etcd.endpoints, lambda: etcd.token)

    async def register(self, since: float) -> None:
        """Be a member anew; `since` it is tried. Raises EtcdError, PutOut, ClusterError."""
        asked = time.monotonic()
        lease = await self.etcd.lease_grant(self.settings.lease)
        home = await self._home(lease)
        key, out = self.keys.node(self.name), self.keys.out(self.name)
        left: int | None = None
        while True:
            changes = [put(key, self.member().dump(), lease)]
            if home != lease:
                said = json.dumps({"id": self.id}).encode()
                changes.append(put(self.keys.home(self.name), said, home))
            when = [absent(key), absent(out)]
            answer = await self.etcd.transaction(when, changes, [get(key), get(out)])
            if answer.done:
                break
            for kv in answer.found:
                if kv.key == out:
                    await self.etcd.lease_revoke(lease)
                    raise PutOut("this node was put out of the cluster: mqttd-ctl cluster join")
                other = self._other(kv)
                if other is None and not kv.lease:
                    # No node has written it, and it would stay for ever.
                    await self.etcd.transaction([equals(kv.key, kv.changed)], [remove(kv.key)])
                    continue
                if other is not None and other.id == self.id and kv.lease:
                    # Ours of before: the data directory is locked by this process.
                    await self.etcd.lease_revoke(kv.lease)
                    continue
                text = (
                    f"node.name = {self.name!r}: a node of this name is in the cluster"
                    f" {self.settings.name!r}, at {other.address if other else 'no known address'}"
                )
                before, left = left, await self.etcd.lease_left(kv.lease)
                if before is None:
                    self.log.warn("{text}: waiting whether its lease ends", text=text)
                elif left > before or self.reactor.seconds() - since > 2 * self.settings.lease + 2:
                    await self.etcd.lease_revoke(lease)
                    await self._tell()
                    raise ClusterError(f"{text}, and it is alive: this one needs another name")
                await deferLater(self.reactor, _AGAIN)
                await self.etcd.lease_keep(lease)
        self.lease, self.home, self.epoch = lease, home, answer.revision
        leases = (lease,) if home == lease else (lease, home)
        self.keeper.begin(leases, asked + self.settings.lease)

    def _other(self, kv: Kv) -> Member | None:
        """Who has our name; None: what stands there cannot be read."""
        try:
            return member_of(self.name, kv.value, kv.created)
        except ValueError as error:
            self.keys.unreadable.note(kv, f"expected what a node says of itself ({error})", False)
            return None

    async def _tell(self) -> None:
        """Have the node that has our name say that there is another. Raises EtcdError."""
        said = json.dumps({"what": "named", "at": self.member().address, "id": self.id})
        await self.etcd.transaction([], [put(self.keys.ask(self.name), said.encode())])

    @property
    def proved(self) -> float:
        """Until then the lease is proved, by this process's clock."""
        return self.keeper.proved

    async def _home(self, lease: int) -> int:
        if not self.settings.keep_sessions:
            return lease
        if self.home and await self.etcd.lease_keep(self.home):
            return self.home
        return await self.etcd.lease_grant(self.settings.lease + self.settings.keep_sessions)

    def kept(self) -> bool:
        """Whether we are a member, as far as is known; False if a lease has ended.

        Raises EtcdError where etcd does not answer.
        """
        keeper = self.keeper
        if not self.lease or not keeper.ended.isdisjoint((self.lease, self.home)):
            return False
        if keeper.error or time.monotonic() >= keeper.proved:
            raise EtcdError(keeper.error or "it has not been asked for a while")
        return True

    async def end(self, returns: bool) -> None:
        """Be a member no more; `returns`: sessions are left, and wait. Raises EtcdError."""
        self.keeper.end()
        lease, self.lease = self.lease, 0
        if lease:
            await self.etcd.lease_revoke(lease)
            if self.home != lease and not returns:
                await self.etcd.lease_revoke(self.home)
