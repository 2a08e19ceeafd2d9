"""The sessions of a node that is gone become this one's.

    `all/heir/<node>` is ours, if the node is not there     `mqttd.cluster.replication.heirship`
    its stream is ended, and read                           `mqttd.cluster.replication.legacy`
    catchers with the filters of its sessions; settled      as where a session moves
    stage marks --> KEPT, MARK of all that are there        `mqttd.cluster.replication.inheriting`
    what it had for others goes there; what others that are gone had for it is kept for it, too
    sessions, what was kept, what was caught --> here, in our store and its copy
    then `own/<client id>` is written, if it is still the node's
    stage done; its stream is removed
    there is nothing whole in the stream: nobody is the heir, and sessions wait for their node

Until it is done the client ids wait: whoever comes is told 0x88. When this node is gone in its
midst, another begins anew with the same stream: what was not owned here yet does not count.

Promise: a session is acknowledged to be somewhere when the quorum has it there.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger

from mqttd.broker.sessions.records import queue_more
from mqttd.cluster.etcd.client import EtcdError, Kv, absent, created, equals, nested, put
from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.replication.heirship import Heirship
from mqttd.cluster.replication.inheriting import Inheriting, Kept, Wanted
from mqttd.cluster.replication.legacy import Legacy, fetch
from mqttd.cluster.replication.share import Share
from mqttd.cluster.sessions.catcher import Catcher, Marks
from mqttd.nats.client import NatsError
from mqttd.nats.jetstream import JetStream, Missing
from mqttd.types import SessionState

__all__ = ["LATEST", "Adoption"]

#: The epoch of an ownership that is later than any.
LATEST: Final = 1 << 62
_AGAIN: Final = 0.5
_SOON: Final = 0.05
#: So often in a row servers have to say that there is no stream: for ten seconds.
_GONE: Final = 20
#: Tries from one line about a stream that cannot be read to the next.
_QUIET: Final = 20
#: Sessions that are taken in between two turns, and of which etcd is told at once.
_SLICE: Final = 50
#: Seconds for the marks of others, at least, and for sessions to be where the node was about to
#: send them; and from the end of a lease until that is known.
_LATE: Final = 10.0
_HEARD: Final = 2.0


class Adoption:
    """That of the node `name`."""

    def __init__(
        self, cluster: Share, jetstream: JetStream, inheriting: Inheriting, name: str
    ) -> None:
        self.cluster = cluster
        self.jetstream = jetstream
        self.inheriting = inheriting
        self.name = name
        self.reactor = cluster.reactor
        self.log = Logger(namespace="mqttd.cluster")
        self.heirship = Heirship(cluster, jetstream, name)
        #: Sessions that are here, and not ours yet.
        self.pending: set[str] = set()
        self._began = 0.0
        #: What was sent on to who has claimed it; sessions whose clients wait at this node.
        self._sent: list[str] = []
        self._awaited = 0
        self._marks = Marks(cluster.mesh.choice, cluster.broker.fans)
        self._kept: list[tuple[str, list[Kept]]] = []
        self._catchers: dict[str, Catcher] = {}
        #: Client id -> the node that has claimed it and waits for it, and since which revision.
        self._wanted: dict[str, tuple[str, int]] = {}

    async def run(self) -> int:
        """How many sessions are here now. Raises EtcdError, NatsError."""
        if not await self.heirship.begin():
            return 0
        self.log.warn("taking over the sessions of node {node}", node=self.name)
        self._began = self.reactor.seconds()
        keeping = LoopingCall(self.heirship.keep_home)
        keeping.clock = self.reactor
        keeping.start(1.0).addErrback(lambda failure: None)
        path = os.path.join(self.cluster.config.node.data_dir, f"heir-of-{self.name}.db")
        try:
            return await self._take_over(path)
        finally:
            keeping.stop()
            self.inheriting.forget(self.name)
            self._let_go()
            for end in ("", "-wal", "-shm"):
                if os.path.exists(path + end):
                    os.unlink(path + end)

    async def _fetched(self, path: str) -> bool:
        """Make the file of what the node has left, however often that has to be tried.

        False: there is no stream, or nothing whole in it. That was there, or there would be no key
        that names it, and servers that have just begun anew may not know of it yet: the answer has
        to come again and again.
        """
        tries = absent = 0
        while True:
            self.heirship.check()
            try:
                await fetch(self.jetstream, self.heirship.stream, self.heirship.subject, path)
                return True
            except Missing as error:
                absent += 1
                said = str(error)
            except NatsError as error:
                absent = 0
                said = str(error)
            if absent == _GONE:
                text = "there is no whole copy of node {node}, whose sessions wait for it: {error}"
                self.log.error(text, node=self.name, error=said)
                return False
            if not tries % _QUIET:
                text = "the stream of node {node} cannot be read now: {error}"
                self.log.warn(text, node=self.name, error=said)
            tries += 1
            await deferLater(self.reactor, _AGAIN)

    async def _take_over(self, path: str) -> int:
        if not await self._fetched(path):
            await self.heirship.give_up()
            return 0
        legacy = Legacy(self.cluster.broker, path)
        try:
            count = await self._take_all(legacy) + self._awaited
        finally:
            legacy.close()
        await self.heirship.go_on("done")
        await self.heirship.clear()
        text = "{count} sessions of node {node} are here now, {sent} were sent on; {seconds:.1f} s"
        seconds = self.reactor.seconds() - self._began
        self.log.warn(text, count=count, node=self.name, sent=len(self._sent), seconds=seconds)
        return count

    async def _take_all(self, legacy: Legacy) -> int:
        owned = await self._owned()
        self._sort(legacy, owned)
        await self._catch(legacy)
        await self.heirship.go_on("marks")
        await self._meet()
        self.inheriting.hand_out(self.name, legacy.book, legacy.under_way)
        self._kept.append(("", await self.inheriting.handed_to(self.name, self.heirship.check)))
        self._take_kept(legacy)
        count = await self._take_in(legacy, owned)
        await self._send_on(legacy, owned)
        await self._give_back(legacy, owned)
        return count

    def _sort(self, legacy: Legacy, owned: dict[str, Kv]) -> None:
        """What the node had claimed back of us, and had not had, is still here (`_give_back`)."""
        for client_id, kv in owned.items():
            owner, origin, _ = self.cluster.keys.owner(kv)
            if owner == self.name:
                self.heirship.home = kv.lease
                leaves = self.cluster.moves.departures.of.get(client_id)
                if origin == self.cluster.name and leaves and leaves.to == self.name:
                    legacy.leave_out(client_id)

    async def _owned(self, always: bool = False) -> dict[str, Kv]:
        """Who has which client id, by etcd; `always`: be this node a member or not."""
        keys = self.cluster.keys
        asks = partial(self.cluster.etcd.range_of, keys.own(""))
        answer = await self.heirship.asked(asks, always)
        return keys.owned(answer.found)

    def _is_left(self, client_id: str, owned: dict[str, Kv]) -> bool:
        """Whether the session of this client id is the node's, or nobody's."""
        kv = owned.get(client_id)
        return kv is None or self.cluster.keys.owner(kv).node in (self.name, "")

    def _wants(self, client_id: str, owned: dict[str, Kv]) -> tuple[str, int] | None:
        """Who has claimed it of the node, and may not have had it: in which revision.

        Of a third that is gone, too: that may have claimed it of the node, which has not heard so.
        """
        if client_id in self._wanted:
            return self._wanted[client_id]
        kv = owned.get(client_id)
        if kv is None:
            return None
        owner, origin, _ = self.cluster.keys.owner(kv)
        node = self.cluster.mesh.nodes.get(origin)
        is_gone = origin not in ("", self.cluster.name) and (node is None or node.link is None)
        return (owner, kv.changed) if origin == self.name or is_gone else None

    async def _catch(self, legacy: Legacy) -> None:
        """Have what is published for them come here, too, from when others say."""
        cluster, transit = self.cluster, self.cluster.moves.transit
        self.inheriting.heirs[self.name] = self._mark
        filters: list[str] = []
        for at, client_id in enumerate(legacy.client_ids()):
            if client_id in cluster.broker.sessions:
                continue
            catcher = transit.catch(client_id, legacy.outline(client_id), True)
            if catcher is not None:
                catcher.marks = self._marks
                self._catchers[client_id] = catcher
                filters += catcher.subscriptions or ()
            if at % _SLICE == 0:
                await deferLater(self.reactor, 0)
        await cluster.settled(filters)
        while any(cluster.mesh.lacks(each) for each in filters):
            self.heirship.check()
            await cluster.settled(filters)

    def _mark(self, name: str, link: int, kept: list[Kept], wanted: Wanted) -> None:
        self._kept.append((name, kept))
        self._marks.add(link)
        for client_id, revision in wanted:
            self._wanted[client_id] = name, revision

    async def _meet(self) -> None:
        """Until all that are there have given what they had.

        One that is gone as well, and not known to be, is after a lease: its heir hands it out.
        """
        nodes, marked = self.cluster.mesh.nodes, self._marks.settled
        began, patience = self.reactor.seconds(), max(_LATE, self.cluster.settings.lease + _HEARD)
        while not (
            0 in marked
            and all(node.number in marked and -node.number in marked for node in nodes.values())
        ):
            self.heirship.check()
            self.inheriting.look()
            if self.reactor.seconds() - began > patience:
                missing = [n for n, at in nodes.items() if not {at.number, -at.number} <= marked]
                self.log.warn("no mark of {nodes}", nodes=missing)
                return
            await deferLater(self.reactor, _SOON)

    def _take_kept(self, legacy: Legacy) -> None:
        # By book, which is nobody else's: of a node that is gone as well another gives it.
        once = {book: have for have, book in legacy.taken_once.values()}
        for name, kept in self._kept:
            marks = once | dict([legacy.taken.get(name, (0, 0))])
            for stream, number, data in kept:
                if not number or number > marks.get(stream, 0):
                    legacy.take(data)

    async def _take_in(self, legacy: Legacy, owned: dict[str, Kv]) -> int:
        client_ids = [each for each in self._catchers if self._is_left(each, owned)]
        count = 0
        for at in range(0, len(client_ids), _SLICE):
            some = client_ids[at : at + _SLICE]
            self.heirship.check()
            for client_id in some:
                self._enter(client_id, legacy.state(client_id))
            await self._are_kept()
            count += await self._own(some, owned)
        return count

    def _are_kept(self) -> Deferred[None]:
        kept: Deferred[None] = Deferred()
        self.cluster.broker.journal.when_kept(lambda: kept.callback(None))
        self.cluster.broker.perform_later()
        return kept

    def _enter(self, client_id: str, state: SessionState) -> None:
        """It is here, with what was caught behind what it had; its filters were here before."""
        broker, transit = self.cluster.broker, self.cluster.moves.transit
        catcher = self._catchers.pop(client_id)
        if client_id not in broker.sessions:
            self.pending.add(client_id)
            # What was taken before is over.
            broker.registry.keep(client_id, self.heirship.changed, state)
            session = broker.sessions.get(client_id)
            if session is not None:
                queue_more(broker, session, transit.caught(catcher), 0)
                broker.fans.replace(catcher, session)
        transit.bury(catcher)

    async def _own(self, client_ids: list[str], owned: dict[str, Kv]) -> int:
        """They are ours, those that nobody has taken meanwhile."""
        cluster, keys = self.cluster, self.cluster.keys
        home, count = cluster.membership.home, 0
        wanted = [each for each in client_ids if each in self.pending]
        changes = []
        for client_id in wanted:
            key, kv = keys.own(client_id), owned.get(client_id)
            when = absent(key) if kv is None else equals(key, kv.changed)
            changes.append(nested(when, put(key, cluster.owners.value_of(client_id), home)))
        while True:
            self.heirship.check()
            mine = created(keys.node(cluster.name), self.heirship.epoch)
            try:
                answer = await cluster.etcd.transaction([mine], changes)
            except EtcdError:
                # It may have been done: what is ours now was ours by this, and is if our lease has
                # ended since.
                await deferLater(self.reactor, _AGAIN)
                known = await self._owned(True)
                for client_id in list(wanted):
                    kv = known.get(client_id)
                    if kv is not None and keys.owner(kv)[:2] == (cluster.name, ""):
                        at = wanted.index(client_id)
                        del wanted[at], changes[at]
                        self._is_ours(client_id, kv.changed)
                        count += 1
                continue
            break
        if not answer.done:
            raise EtcdError("this node is no member any more")
        for client_id, done in zip(wanted, answer.nested, strict=True):
            if done:
                self._is_ours(client_id, answer.revision)
                count += 1
            else:
                self.pending.discard(client_id)
                await self._overtaken(client_id)
        return count

    def _is_ours(self, client_id: str, revision: int) -> None:
        self.pending.discard(client_id)
        if client_id in self.cluster.broker.sessions:  # nobody has taken ours over meanwhile
            self.cluster.owners.owned[client_id] = revision
            self.cluster.broker.registry.own(client_id, revision)

    async def _overtaken(self, client_id: str) -> None:
        """A node has claimed it of the one that is gone, in the moment in which that went."""
        state = self.cluster.broker.registry.hand_over(client_id, LATEST)
        if state is None:
            return
        catcher = self.cluster.moves.transit.catch(client_id, state, True)
        if catcher is None:
            return
        catcher.marks = self._marks
        self._catchers[client_id] = catcher
        found = await self.heirship.asked(partial(self.cluster.owners.whose, client_id))
        del self._catchers[client_id]
        if found is not None and found[1] == self.name:
            self._pass_on(client_id, found[0], found[2], state, catcher)
        else:
            self.cluster.moves.transit.bury(catcher)

    def _pass_on(
        self, client_id: str, owner: str, revision: int, state: SessionState, catcher: Catcher
    ) -> None:
        """What is here of it goes to who has claimed it; to this node, too."""
        cluster = self.cluster
        if owner == cluster.name:
            state = SessionState(state.record, state.queue, revision)
            if client_id not in cluster.broker.sessions:
                # Etcd's answer to that may not have come, or when that node was gone already.
                cluster.moves.arrivals.expect(client_id, self.name, revision, True)
            cluster.moves.arrivals.inherited(client_id, revision, state, catcher)
            self._awaited += 1
            return
        caught = tuple(cluster.moves.transit.caught(catcher))
        state = SessionState(state.record, (*state.queue, *caught), revision)
        cluster.moves.hand(client_id, owner, revision, state, catcher)
        cluster.moves.transit.bury(catcher)
        self._sent.append(client_id)

    async def _send_on(self, legacy: Legacy, owned: dict[str, Kv]) -> None:
        """What another node has claimed of the one that is gone, and may not have had: to that."""
        cluster = self.cluster
        for client_id in list(self._catchers):
            catcher, wants = self._catchers.pop(client_id), self._wants(client_id, owned)
            if wants is None:
                cluster.moves.transit.bury(catcher)  # another node has it, and had it before
                continue
            self._pass_on(client_id, *wants, legacy.state(client_id), catcher)
        since = self.reactor.seconds()
        departures = cluster.moves.departures.of
        while any(each in departures for each in self._sent):
            if self.reactor.seconds() - since > _LATE:
                return
            await deferLater(self.reactor, _SOON)

    async def _give_back(self, legacy: Legacy, owned: dict[str, Kv]) -> None:
        """What the node had claimed of another, and its store has not: that has it still."""
        cluster, known = self.cluster, set(legacy.client_ids())
        changes = []
        for client_id, kv in owned.items():
            owner, origin, user = self.cluster.keys.owner(kv)
            home = cluster.view.home_of(origin)
            if owner == self.name and client_id not in known and home > 0:
                value = claimed(origin, "", user)
                changes.append(nested(equals(kv.key, kv.changed), put(kv.key, value, home)))
        for at in range(0, len(changes), _SLICE):
            await self.heirship.asked(
                partial(cluster.etcd.transaction, [], changes[at : at + _SLICE])
            )

    def _let_go(self) -> None:
        """Of what is not ours after all."""
        for catcher in self._catchers.values():
            self.cluster.moves.transit.bury(catcher)
        self._catchers.clear()
        for client_id in self.pending:
            self.cluster.broker.registry.hand_over(client_id, LATEST)
        self.pending.clear()
