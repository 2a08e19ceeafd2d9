"""What all nodes have in common beside routes: bans and roles in etcd, what one is asked to do.

    a ban is made or lifted here --> all/ban/<kind>/<value>, empty when lifted --watch--> every node
    roles                        --> `mqttd.cluster.roles`
    a node begins                --> takes what is there, adds what nobody has heard of
    all/ask/<node>               --> that node does it, and removes the key
    all/out/<node>               --> that node is no member until it is asked to join
    export/<node>                <-- where readers of all event logs find that of this node

Promise: a node has all bans before it lets clients in. What is made while etcd is away, or this
node is no member, holds here, and is told after that. What was asked of etcd in vain does not come
there behind what has changed since: a ban that was lifted, a role that was taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqttd.access.roles.roles import Roles
from mqttd.broker.broker import Broker
from mqttd.broker.rights.bans import Ban, BanError
from mqttd.cluster.etcd.client import EtcdError, Json, put, remove
from mqttd.cluster.etcd.membership import Membership
from mqttd.cluster.etcd.ordered import Ordered
from mqttd.cluster.etcd.reading import Said
from mqttd.cluster.roles import KIND, SharedRoles

__all__ = ["Commons"]

#: Changes in one request and their bytes, and seconds between two tries.
_MANY: Final = 100
_BYTES: Final = 512 << 10
_AGAIN: Final = 0.5


class Commons:
    """The bans of `broker` and of all other nodes; `asked` is told what this one is to do."""

    def __init__(self, broker: Broker, member: Membership) -> None:
        self.broker = broker
        self.member = member
        self.etcd, self.keys, self.name = member.etcd, member.keys, member.name
        self.reactor = member.reactor
        self._ordered = Ordered(self.etcd, self.keys, self.name, 0, 0)
        self.log = Logger(namespace="mqttd.cluster")
        self.asked: Callable[[dict[str, Any]], object] = lambda _: None
        #: Set by who has them, before this begins.
        self.roles: SharedRoles | None = None
        self._pending: dict[bytes, bytes] = {}
        #: Why that is not in etcd, as far as it was tried; and who wants to know.
        self._why = ""
        self._asks: list[Callable[[str], None]] = []
        #: What was told of our event log.
        self._exported: str | None = None
        self._busy = False

    def begin(self) -> None:
        """The bans and roles of this node are read."""
        self.broker.bans.told = self._told
        self.broker.bans.when_told = self.when_told
        if self.roles is not None:
            self.roles.begin()

    def share(self, roles: Roles) -> None:
        """These are the roles of this node."""
        self.roles = SharedRoles(
            roles,
            lambda kind, name, value: self._write(self.keys.role(kind, name), value),
            self.when_told,
            self.keys.unreadable.note,
        )

    # -- from etcd -----------------------------------------------------------------------------

    def all(self, found: list[Said]) -> None:
        """All that there is; what cannot be read stays as it is known here, and is not told."""
        known = {(said.kind, said.node, said.rest) for said in found}
        for said in found:
            if said.kind != KIND:
                self.one(said)
        if self.roles is not None:
            # All at once: each may refer to others, in whichever order they stand.
            roles = [said for said in found if said.kind == KIND and self._counts(said)]
            self.roles.all(roles, {(node, rest) for kind, node, rest in known if kind == KIND})
        for ban in self.broker.bans.list():
            if ("ban", ban.kind, ban.value) not in known:
                self._told(ban, True)

    def one(self, said: Said) -> None:
        """One key says this now."""
        if said.kind == "ask":
            if said.node == self.name and said.what is not None:
                self._write(self.keys.ask(self.name), b"")
                self.asked(said.what)
        elif not self._counts(said):
            return
        elif said.kind == "ban":
            self._apply(said)
        elif said.kind == KIND and self.roles is not None:
            self.roles.take([said])

    def _counts(self, said: Said) -> bool:
        """Whether it can be read, and is not about to be written by us."""
        return said.readable and said.kv.key not in self._pending

    def _apply(self, said: Said) -> None:
        bans, ban = self.broker.bans, said.what
        kind, value = said.node, said.rest
        known = bans.of(kind, value)
        bans.told, told = None, bans.told
        try:
            if ban is None:
                if known is not None:
                    bans.remove(kind, value)
            elif known != ban:
                bans.add(ban.kind, ban.value, ban.reason, ban.until, since=ban.since)
                self.broker.enforce_bans()
        except (ValueError, BanError, OSError) as error:
            line = "a ban of another node cannot be kept here: {error}"
            self.log.error(line, error=str(error))
        finally:
            bans.told = told

    # -- to etcd -------------------------------------------------------------------------------

    def export(self, url: str) -> None:
        """Here our event log is read; empty: nowhere. It stays told when this node is away."""
        if url != self._exported:
            self._exported = url
            self._write(self.keys.export(self.name), url.encode())

    def when_told(self, heard: Callable[[str], None]) -> None:
        """Call this with "" when all that has changed here is in etcd; or with why it is not."""
        if self._why or not self._pending:
            heard(self._why)
        else:
            self._asks.append(heard)

    def _answer(self, why: str) -> None:
        self._why = why
        asks, self._asks = self._asks, []
        for heard in asks:
            heard(why)

    def _told(self, ban: Ban, holds: bool) -> None:
        self._write(self.keys.ban(ban.kind, ban.value), ban.dump() if holds else b"")

    def _write(self, key: bytes, value: bytes) -> None:
        self._pending.pop(key, None)
        self._pending[key] = value
        if not self._busy:
            self._busy = True
            self.reactor.callLater(0, self._start)

    def _start(self) -> None:
        done = Deferred.fromCoroutine(self._write_all())
        done.addErrback(self._failed).addBoth(self._idle)

    def _failed(self, failure: Failure) -> None:
        self.log.failure("bans are not told", failure)
        self._answer(failure.getErrorMessage())

    def _idle(self, result: object) -> None:
        self._busy = False

    def _next(self) -> Iterator[tuple[bytes, bytes]]:
        size = 0
        for number, (key, value) in enumerate(self._pending.items()):
            size += len(key) + len(value)
            if number and (number >= _MANY or size > _BYTES):
                return
            yield key, value

    async def _write_all(self) -> None:
        while self._pending:
            some = dict(self._next())
            short = (self.keys.ask(""), self.keys.exports)
            then = [
                remove(key) if key.startswith(short) and not value else put(key, value)
                for key, value in some.items()
            ]
            try:
                await self._change(then)
            except EtcdError as error:
                self._answer(str(error))
                await deferLater(self.reactor, _AGAIN)
                continue
            for key, value in some.items():
                if self._pending.get(key) == value:
                    del self._pending[key]
            self._why = ""
        self._answer("")

    async def _change(self, then: list[Json]) -> None:
        """Have these made. Raises EtcdError."""
        member = self.member
        if self._ordered.epoch != member.epoch:
            self._ordered = Ordered(self.etcd, self.keys, self.name, member.epoch, member.lease)
        if not (member.lease and await self._ordered.change(then)):
            raise EtcdError("this node is no member of the cluster")
