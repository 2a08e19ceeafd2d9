"""A node's share in a cluster: membership by a lease, and what follows when it ends.

    start: store read --> lease, `node/<node>` --> view of the others --> links --> retained
           messages of one that is ready --> client ids claimed --> clients are let in
    a thread keeps the lease --> etcd says it has ended --> member anew, all written anew
                             '-> no answer for a whole lease: this node is in a minority

In a minority no new filter is accepted and nobody let in whose session is not here;
`cluster.minority` says what becomes of clients that are there. It ends by itself.

Promise: nothing here is called for a message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd import __version__
from mqttd.access.roles.roles import Roles
from mqttd.broker.broker import Broker
from mqttd.cluster.admin.shown import Shown
from mqttd.cluster.apart import OLDER, PUT_OUT, Apart
from mqttd.cluster.beginning import Beginning
from mqttd.cluster.commons import Commons
from mqttd.cluster.etcd.client import Etcd, EtcdError, Kv, created, put
from mqttd.cluster.etcd.keys import Keys, Member
from mqttd.cluster.etcd.membership import ClusterError, Membership, PutOut
from mqttd.cluster.etcd.reading import Said
from mqttd.cluster.etcd.steps import in_turns
from mqttd.cluster.etcd.upkeep import Upkeep
from mqttd.cluster.etcd.watch import Watch
from mqttd.cluster.identity import node_id
from mqttd.cluster.leaving import Leaving
from mqttd.cluster.links.hello import SPEAKS
from mqttd.cluster.links.lines import Lines
from mqttd.cluster.links.nodes import Node, NodeMesh, Settling
from mqttd.cluster.links.stream import Streams
from mqttd.cluster.links.tls import etcd_access, node_options
from mqttd.cluster.links.unlinked import Unlinked
from mqttd.cluster.routes.routes import Routes
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.cluster.still import Still
from mqttd.cluster.wills.heirs import Heirs
from mqttd.config.schema import Config
from mqttd.mesh.frames import STATE

if TYPE_CHECKING:
    from mqttd.cluster.replication.replication import Replication

__all__ = ["Cluster", "ClusterError"]

#: Seconds between two looks at whether the leases are kept.
_AGAIN: Final = 0.2
#: Seconds between two looks at all that etcd has.
_LOOK: Final = 60.0
#: Seconds for what we have written to come back by the watch.
_BEHIND: Final = 5.0


class Cluster:
    """The node that `config` describes. Raises TlsError."""

    def __init__(self, config: Config, reactor: Any) -> None:
        self.config = config
        self.settings = config.cluster
        self.reactor = reactor
        self.name = config.node.name
        self.log = Logger(namespace="mqttd.cluster")
        self.lines = Lines(self.log)
        self.keys = Keys(self.settings.name)
        self.etcd = Etcd(reactor, self.settings.endpoints, *etcd_access(self.settings))
        self.etcd.key, self.etcd.hung = self.keys.node(self.name), self._failed
        self.tls = node_options(self.settings)
        self.owners = Owners(self.etcd, self.keys, self.name, reactor, self._is_there)
        self.owners.moving.pace.rate = self.settings.moves_rate
        self.routes = Routes(self.etcd, self.keys, self.name, reactor)
        self.routes.failed = self._failed
        self.heirs = Heirs(
            self.etcd, self.keys, self.name, reactor,
            lambda name, epoch: self.view.is_of(name, epoch), lambda: self.view.rank(),
            self._is_there,
        )  # fmt: skip
        self.heirs.before.note = os.path.join(config.node.data_dir, "wills-kept")
        self.owners.lost = self._lost
        self.broker: Broker
        self.mesh: NodeMesh
        self.moves: Moves
        self.commons: Commons
        self.leaves = Leaving(self)
        #: The URL of our event log, empty where there is none.
        self.exported: Callable[[], str] = str
        #: See `Follower`.
        self.everything: Callable[[list[Said]], None]
        self.other: Callable[[Said], None]
        self.view: View
        self.shown: Shown
        self.streams: Streams
        self.beginning: Beginning
        self.id = node_id(config.node.data_dir)
        self.membership = Membership(
            self.etcd, self.keys, self.settings, self.name, self.id, reactor, self._member
        )
        self.upkeep = Upkeep(
            self.etcd, self.settings.compact, self.keys.node(self.name), self._write_anew,
            lambda: not self.minority and not self.view.rank(),
        )  # fmt: skip
        self.apart: Apart
        self.still: Still
        #: Messages that were kept for nodes until their leases ended.
        self.dropped = 0
        self.stopped = False
        self.address = ""
        self._ready = self._keeping = self._looking = False
        self._watch: Watch | None = None
        #: Our lease has ended: what was ours is still to be claimed, and others to be asked again.
        self._anew = self._rejoins = False
        self._next_keep = self._next_look = 0.0
        self._looks = DeferredLock()
        self._in_time = time.monotonic()
        self.replication: Replication | None = None  # set by who makes both

    def serve(self, broker: Broker, roles: Roles) -> None:
        """This is the broker, and these are its roles; before clients are let in."""
        self.broker, self.upkeep.alarms = broker, broker.alarms
        self.apart = Apart(self.settings, broker, self.owners)
        self.still = Still(self.membership, self.apart)
        self.etcd.is_older = lambda text: self.apart.begin(OLDER, text)
        self.heirs.serve(broker)
        self.mesh = NodeMesh(broker, self.routes.changed, self.routes.hold, self._told)
        self.mesh.saw = self.routes.look
        self.routes.mesh = self.mesh
        broker.subscribing.pacer = self.routes.pacer
        self.moves = Moves(
            broker, self.mesh, self.reactor, self.name, self.settled, lambda: self.routes.revision
        )
        self.owners.serve(broker, self.moves)
        self.commons = Commons(broker, self.membership)
        self.commons.share(roles)
        self.commons.asked = self.leaves.asked
        self.everything, self.other = self.commons.all, self.commons.one
        arrivals, view = self.moves.arrivals, View(self.name, self.keys, self.mesh, self)
        self.view, arrivals.home_of, arrivals.brief_of = view, view.home_of, view.brief_of
        self.unlinked = Unlinked(self.name, self.mesh)
        self.apart.alone = lambda: self.unlinked.alone(view.members)
        streams = Streams(broker, self.mesh, self.reactor, self.settings.name, self.name, self.tls)
        streams.linked = self._linked
        streams.unlinked = self._unlinked
        streams.not_greeted = self._not_greeted
        streams.failed = self.unlinked.failed
        self.streams = streams
        self.shown = Shown(
            self.settings, self.name, self.etcd, self.routes, self.owners, self.view,
            self.reactor, self.unlinked, streams, self.apart.hinders,
        )  # fmt: skip
        self.beginning = Beginning(self.mesh, self.view, streams, self.reactor)
        self.mesh.met, streams.takes = self.beginning.met, self.beginning.takes
        if self.replication is not None:
            self.replication.serve()

    # -- start and end -------------------------------------------------------------------------

    def listen(self) -> None:
        """Be reached by other nodes; raises what Twisted does."""
        host, port = self.settings.address
        self.address = self.settings.reached(self.name, self.streams.listen(host, port))

    def join(self, result: object = None) -> Deferred[None]:
        """Become a member: fires when clients may be let in."""
        return Deferred.fromCoroutine(self._join())

    async def _join(self) -> None:
        since = self.reactor.seconds()
        self.mesh.begin()
        self.commons.begin()
        await self._answered(lambda: self._meet(since))
        await self.beginning.take()
        await self.settled(list(self.mesh.filters))
        await self._answered(self._claim_all)

    async def _meet(self, since: float) -> None:
        await self._register(since)
        await self.heirs.settle()
        await self._look()
        await self.heirs.sweep()
        if self.replication is not None:
            await self.replication.begin()

    async def _answered(self, step: Callable[[], Awaitable[None]]) -> None:
        """One step, however often that has to be tried."""
        while not self.stopped:
            try:
                await step()
                self.upkeep.waits = ""
                if self.apart.state == PUT_OUT:
                    self.apart.end()
                return
            except PutOut:
                self.apart.begin(PUT_OUT)
            except EtcdError as error:
                self.upkeep.waits = text = str(error)
                self.lines.say("etcd", "waiting for etcd (cluster.endpoints): {error}", error=text)
            await deferLater(self.reactor, 0.5)

    async def _claim_all(self) -> None:
        ours = {*self.broker.sessions, *self.owners.owned}
        if self.replication is not None:
            ours -= self.replication.pending()
        if lost := await self.owners.amends.claim_all(list(ours)):
            text = "{count} sessions go to other nodes, which have their client ids by now"
            self.log.warn(text, count=lost)

    async def _register(self, since: float) -> None:
        """Be a member anew, with leases of our own; raises EtcdError, ClusterError."""
        member = self.membership
        await member.register(since)
        self.streams.epoch = member.epoch
        self.owners.lease, self.owners.home = member.lease, member.home
        self.routes.begin(member.epoch, member.lease)
        self.heirs.begin(member.epoch, member.lease)
        text = "member of the cluster {cluster} as {node}, epoch {epoch}"
        self.log.info(text, cluster=self.settings.name, node=self.name, epoch=member.epoch)

    def _member(self) -> Member:
        told = (self.name, self.id, self.address, __version__, SPEAKS, self._ready)
        return Member(*told, replicate=self.config.session.replicate, tls=self.tls is not None)

    def opened(self) -> None:
        """Clients are let in."""
        self.takes(True)
        self.heirs.release()

    def takes(self, ready: bool) -> None:
        """Whether other nodes may give their sessions to this one."""
        self._ready = ready
        self._tell_ready()

    async def _write_anew(self) -> None:
        key, epoch = self.keys.node(self.name), self.membership.epoch
        change = put(key, self._member().dump(), self.membership.lease)
        if epoch:
            await self.etcd.transaction([created(key, epoch)], [change])

    def _tell_ready(self) -> None:
        told = Deferred.fromCoroutine(self._write_anew())
        told.addErrback(lambda failure: self.reactor.callLater(1.0, self._tell_ready))

    def leaving(self) -> None:
        """Clients are about to be sent away: what is ours goes with the lease, all at once."""
        self.stopped, self.owners.lease = True, 0
        self.routes.end()

    def stop(self) -> Deferred[Any]:
        """Leave: our keys go with the lease."""
        self.leaving()
        self.broker.perform()
        self.lines.ends(self.view.absent.held())
        self._unwatch()
        self.streams.stop()
        return Deferred.fromCoroutine(self._leave()).addErrback(lambda _: None)

    async def _leave(self) -> None:
        if self.replication:
            self.replication.stop()
        if self.membership.lease:
            try:
                await self.heirs.end(len(self.view.members) <= 1)
                await self.leaves.forget()
                await self.membership.end(self.leaves.returns())
            except EtcdError:
                pass
        await self.etcd.close()

    # -- what etcd says ------------------------------------------------------------------------

    async def _look(self) -> None:
        """Take in all that there is, and watch from there; one look after the other."""
        await self._looks.run(self._take_in)

    async def _take_in(self) -> None:
        # What is heard of meanwhile would be undone by what was read before it, for a moment.
        self._unwatch()
        self._next_look = min(self._next_look, time.monotonic() + _AGAIN)
        answer = await self.etcd.range_of(self.keys.all, self.keys.routes)
        self._next_look = time.monotonic() + _LOOK
        await in_turns(self.view.reset(answer.found, answer.revision), self.reactor)
        if self.view.missed:
            self._anew, self._next_keep, self.owners.known = True, 0.0, -1
        self.moves.seen()
        self._watch = Watch(
            self.etcd, self.keys.all, answer.revision + 1, self._changed, self._watch_ended
        )
        self.lines.over("watch", "etcd is watched again, at {at}", at=self._watch.endpoint)
        self.broker.perform_later()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _changed(self, revision: int, events: list[tuple[Kv, bool]]) -> None:
        self.view.apply(revision, events)
        self.moves.seen()
        self.broker.perform_later()

    def _watch_ended(self, text: str) -> None:
        self._watch = None
        self.lines.say("watch", "etcd is not watched: {error}", error=text)
        self._next_look = 0.0

    def _look_again(self) -> None:
        self._looking, self._next_look = True, time.monotonic() + 1.0

        def done(result: Any) -> None:
            self._looking = False
            if result is not None:
                self._failed(result.getErrorMessage())
                self._next_look = time.monotonic() + 0.5

        Deferred.fromCoroutine(self._look()).addBoth(done)

    def joined(self, member: Member, node: Node | None) -> None:
        """See `Follower.joined`."""
        if node is not None:
            self.log.info("node {node} is there, at {at}", node=member.name, at=member.address)
            self.streams.joined(member)
            self.moves.joined(node)

    def left(self, member: Member, node: Node | None, lost: int) -> None:
        """See `Follower.left`."""
        if node is not None:
            self.dropped += lost
            # Who was drained before, or has not begun yet, is nobody's news.
            self.lines.gone(member.name, lost, member.ready)
            self.streams.left(member)
            self.moves.left(member.name)
            self.heirs.left(member.name, member.epoch)
        elif member.epoch == self.membership.epoch and not self.stopped:
            self._expired()

    def _is_there(self, name: str) -> bool:
        return name in self.view.members

    @property
    def minority(self) -> bool:
        """Whether the others do not count with this node; see `Apart`."""
        return bool(self.apart.state)

    # -- the lease -----------------------------------------------------------------------------

    def tick(self) -> None:
        """A few times a second."""
        now = time.monotonic()
        self.mesh.tick(self.broker.now)
        self.view.tick()
        self.routes.tick()
        self.leaves.tick()
        self.shown.tick()
        self.upkeep.tick()
        self.etcd.tick()
        self.unlinked.tick(self.apart.state != PUT_OUT)
        if not self.membership.epoch or self.stopped or self.etcd.older:
            return
        self.still.tick(now)
        self.owners.audit.tick(now, self.minority)
        if self.owners.was_by_user != self.owners.is_by_user():
            self.owners.was_by_user = self.owners.is_by_user()
            self._anew, self._next_keep = True, 0.0  # etcd is to say whose they are, or no more
        if not self._keeping and now >= self._next_keep:
            self._keeping = True
            self._next_keep = now + _AGAIN
            kept = Deferred.fromCoroutine(self._keep())
            kept.addErrback(self._not_kept).addBoth(self._kept)
        if self.routes.revision <= self.mesh.applied:
            self._in_time = now
        elif now - self._in_time > _BEHIND:
            self._in_time, self._next_look = now, 0.0  # what we have written does not come back
        if self._ready:
            self.commons.export(self.exported())
        if now >= self._next_look and not self._looking:
            self._look_again()

    def _not_kept(self, failure: Any) -> None:
        self._anew = True
        if failure.check(PutOut):
            self.apart.begin(PUT_OUT)
        else:
            self._failed(failure.getErrorMessage())

    def _kept(self, result: object) -> None:
        self._keeping = False

    async def _keep(self) -> None:
        if not self.membership.kept():
            self._anew = self._rejoins = True
            await self._register(self.reactor.seconds())
        if self._rejoins:
            await self._look()
            self.moves.anew()
            if self.replication is not None:
                await self.replication.rejoined()
            self._rejoins = False
        if self._anew or self.minority:
            await self._heal()
        self.still.end()

    async def _heal(self) -> None:
        self.owners.lease, self.owners.home = self.membership.lease, self.membership.home
        self._anew = False  # unless more is missed meanwhile
        await self._claim_all()
        self.owners.strict = False
        self.owners.known = -1 if self._anew else self.owners.lease
        self.moves.seen()  # who waits to be let in until that is known
        if self.minority:
            self.apart.end()

    def _expired(self) -> None:
        """Our key is gone: be a member anew at once."""
        self.membership.lease = self.owners.lease = 0
        self.routes.end()
        self._next_keep = 0.0

    # -- links ---------------------------------------------------------------------------------

    def _linked(self, node: Node) -> None:
        self.lines.linked(node.name, node.epoch)
        self.moves.linked(node)
        self.beginning.linked(node)

    def _unlinked(self, node: Node, text: str) -> None:
        member = self.view.members.get(node.name)
        if not self.stopped and member is not None and member.ready:
            self.lines.unlinked(node.name, text)

    def _not_greeted(self, member: Member, text: str) -> None:
        self.lines.say(
            f"hello {member.name}", f"no stream to node {member.name}: {{error}}", error=text
        )

    # -- sessions that move --------------------------------------------------------------------

    def given_up(self, name: str, lost: int) -> None:
        """See `Follower.given_up`."""
        self.dropped += lost
        self.lines.given_up(name, lost)
        self.moves.given_up(name)

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """See `Follower.taken`."""
        self.owners.taken(client_id, by, revision)

    def _told(self, node: Node, kind: int, body: bytes) -> None:
        if kind != STATE:
            self.shown.told(node, kind, body)
        elif not (self.replication and self.replication.told(node, body)):
            self.moves.told(node, body)

    def _lost(self, client_id: str, why: str) -> None:
        self.log.error("session of {client_id} is lost: {why}", client_id=client_id, why=why)

    def settled(self, filters: list[str]) -> Deferred[None]:
        """Fires when the other nodes have these filters, or are slow to."""
        done: Deferred[None] = Deferred()
        if not self.mesh.waits(Settling(filters, lambda: done.callback(None))):
            done.callback(None)
        return done

    # -- told to operators ---------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """This node and the others, for the HTTP interface."""
        state = self.apart.state or ("member" if self._ready else "starting")
        state = "draining" if self.leaves.draining and not self.minority else state
        proved = self.membership.proved
        ago = max(0.0, time.monotonic() - proved + self.settings.lease) if proved else None
        told = self.shown.describe(state, self.membership.epoch, ago, self.leaves.stays)
        return told | self.upkeep.shown()

    def routes_of(self, name: str, limit: int) -> dict[str, Any] | None:
        """The filters that nodes want, or one of them; None: there is no such node."""
        return self.shown.routes_of(name, limit)

    def counters(self) -> dict[str, float]:
        """The same in numbers, for the metrics."""
        return {
            **self.shown.counters(), **self.upkeep.counters(), **self.streams.door.counters(),
            "cluster_dropped_node_gone": self.dropped,
            "cluster_wills_left_out": len(self.heirs.written.left_out),
        }  # fmt: skip

    def _failed(self, text: str) -> None:
        self.lines.say("etcd", "etcd: {error}", error=text)
