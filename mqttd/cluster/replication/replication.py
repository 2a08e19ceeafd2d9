"""Sessions that outlive their node: its store copied to JetStream, and taken over from there.

    start   --> `all/heir/<node>` says that what our store has was taken over: those sessions end,
                and until that is done nobody is let in (`mqttd.cluster.sessions.silence`)
            --> a new stream --> all of the store --> `all/copy/<node>`: what counts from now on
    a node is gone --> one of the others takes it over (`mqttd.cluster.replication.adoption`)
    we were gone, and did not know --> taken over: everybody is sent away, and all begins anew

A stream is of one life of a node; which one its store speaks of says the file `copied-to` beside
it. So a store that is older than what others have made of it is known by that.

Promise: nothing is asked of JetStream but to append, to read and to cut; who may do what says etcd.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger

from mqttd.cluster.etcd.client import EtcdError, created, put, remove
from mqttd.cluster.etcd.keys import Copy, Heir
from mqttd.cluster.etcd.reading import Said
from mqttd.cluster.links.tls import nats_access
from mqttd.cluster.replication.adoption import LATEST, Adoption
from mqttd.cluster.replication.copying import Copying
from mqttd.cluster.replication.inheriting import Inheriting
from mqttd.cluster.replication.share import Share
from mqttd.codec.reasons import USE_ANOTHER_SERVER
from mqttd.config.schema import Config
from mqttd.nats.client import Nats, NatsError
from mqttd.nats.jetstream import JetStream
from mqttd.nats.protocol import quoted
from mqttd.secrets.files import replace_file
from mqttd.session.channel.channel import Channel
from mqttd.storage.store import Store

__all__ = ["Replication"]

#: Seconds between two looks at who is to be taken over, and of each rank until it begins.
_LOOK: Final = 0.25
_TURN: Final = 0.75
#: Seconds that a node is a member before it takes others over: where all leases have ended at once,
#: those that live are back by then, with their sessions.
_TOGETHER: Final = 2.0
_AGAIN: Final = 0.5
#: Seconds until it is tried again to take a node over.
_LATER: Final = 2.0


class Replication:
    """The share of one node; raises TlsError and OSError for files that cannot be read."""

    def __init__(self, cluster: Share, config: Config) -> None:
        self.cluster = cluster
        self.reactor = cluster.reactor
        self.keys = cluster.keys
        self.name = cluster.name
        self.config = config
        self.log = Logger(namespace="mqttd.cluster")
        self.nats = _client(config, cluster.reactor)
        self.jetstream = JetStream(self.nats)
        self.copying: Copying
        self.inheriting: Inheriting
        #: Those that we take over, and since when others are to be.
        self.adoptions: dict[str, Adoption] = {}
        self.adopted = 0
        #: Streams that had lost what was in them.
        self.torn = 0
        self._since: dict[str, float] = {}
        #: Of which streams our store is one side, and where that is kept.
        self._note = os.path.join(config.node.data_dir, "copied-to")
        self._noted = _words(self._note)
        #: The epoch in which we know what became of our sessions before it.
        self._epoch = 0
        self._since_when = 0.0
        self._looking = LoopingCall(self._look)
        self._looking.clock = cluster.reactor

    def keep(self, store: Store) -> None:
        """This is the node's store, which is not read yet."""
        self.copying = Copying(
            self.jetstream, self.reactor, store, self.config.jetstream.replicas, self._announce,
            self._torn,
        )  # fmt: skip
        store.copies = self.copying

    def serve(self) -> None:
        """The cluster has its parts."""
        cluster = self.cluster
        self.inheriting = Inheriting(cluster, self.log)
        everything, other = cluster.everything, cluster.other

        def all_of(found: list[Said]) -> None:
            if not self._epoch and self._is_taken_over():
                cluster.mesh.forget_all()  # before there are links: our heir hands it out
            everything(found)
            self.inheriting.look()

        def one_of(said: Said) -> None:
            other(said)
            if said.kind == "heir":
                self.inheriting.look()

        cluster.everything, cluster.other = all_of, one_of
        cluster.moves.parted = self.inheriting.left
        cluster.shown.more = self.counters
        cluster.owners.all_lasts = True
        cluster.owners.silence.lasts = self._is_silent
        cluster.owners.silence.is_left = cluster.view.is_taken_over
        cluster.moves.arrivals.is_left = cluster.view.is_left
        cluster.moves.transit.is_taken_over = cluster.view.is_taken_over
        cluster.heirs.is_taken_over = lambda name: name in cluster.view.heirs

    # -- start and end -------------------------------------------------------------------------

    async def begin(self) -> None:
        """We are a member, and our store is read. Raises EtcdError."""
        if not self._looking.running:
            self.nats.start()
            self._looking.start(_LOOK, now=False)
        self._fence()
        if self._is_taken_over():
            await self._end_all()
        self._begin_anew()

    async def rejoined(self) -> None:
        """We are a member anew, in this life. Raises EtcdError."""
        self._fence()
        if self._is_taken_over():
            self.log.error("node {by} has taken the sessions of this one over", by=self._by())
            self.cluster.owners.strict = True  # until all is claimed anew
            self.copying.stop()
            for stream in list(self.cluster.streams.of.values()):
                stream.close()  # what they have sent is not said to be here
            for session in list(self.cluster.broker.sessions.values()):
                channel = self.cluster.broker.channel_of(session)
                if isinstance(channel, Channel):
                    channel.close(USE_ANOTHER_SERVER, "another node has its sessions")
            self.cluster.mesh.forget_all()
            self.copying.settle()
            await self._end_all()
            self._begin_anew()

    def _fence(self) -> None:
        """What we claim in another epoch than this is nobody's: an heir may have looked before."""
        self._epoch = self.cluster.membership.epoch
        self._since_when = self.reactor.seconds()
        self.cluster.owners.fence = [created(self.keys.node(self.name), self._epoch)]

    def stop(self) -> None:
        """The process ends."""
        if self._looking.running:
            self._looking.stop()
        for adoption in self.adoptions.values():
            adoption.heirship.stopped = True
        self.copying.end()
        self.nats.stop()

    def _begin_anew(self) -> None:
        life = f"{random.getrandbits(64):016x}"
        cluster, name = quoted(self.cluster.settings.name), quoted(self.name)
        stream = f"mqttd-{cluster}-{name}-{life}"
        subject = f"mqttd.{cluster}.q.{name}.{life}"
        self.copying.begin(stream, subject)

    def _torn(self) -> None:
        """What was in our stream and is lost is in our store, and nowhere else."""
        text = "{stream} has lost what its servers had acknowledged: the store is copied anew"
        self.log.error(text, stream=self.copying.stream)
        self.torn += 1
        self._begin_anew()

    def _note_down(self, *streams: str) -> None:
        self._noted = list(streams)
        replace_file(self._note, " ".join(streams))

    def _heir(self) -> Heir | None:
        return self.cluster.view.heirs.get(self.name)

    def _by(self) -> str:
        heir = self._heir()
        return "" if heir is None else heir.by

    def _is_taken_over(self) -> bool:
        heir = self._heir()
        return heir is not None and heir.stream in self._noted

    def _is_silent(self) -> bool:
        """Whether another takes our sessions over, has, or may have begun to."""
        member = self.cluster.membership
        if not member.lease or member.epoch != self._epoch:
            return True
        return self.cluster.view.is_taken_over(self.name) or self._is_taken_over()

    async def _end_all(self) -> None:
        """What this node has of sessions is older than what another has."""
        registry, sessions = self.cluster.broker.registry, self.cluster.broker.sessions
        count = len(sessions)
        for client_id in list(sessions):
            registry.hand_over(client_id, LATEST)
        self.cluster.owners.owned.clear()
        kept: Deferred[None] = Deferred()
        self.cluster.broker.journal.when_kept(lambda: kept.callback(None))
        self.cluster.broker.perform_later()
        await kept
        self._note_down()
        self.log.warn("{count} sessions are at another node by now", count=count)

    def _forget_heir(self) -> None:
        """Who has taken over what we were need not say so any longer: our store knows."""
        heir = self._heir()
        if heir is not None and heir.stage == "done" and not self._is_taken_over():
            key = self.keys.heir(self.name)
            done = Deferred.fromCoroutine(
                self.cluster.etcd.transaction([created(key, heir.created)], [remove(key)])
            )
            done.addErrback(lambda failure: failure.trap(EtcdError))

    async def _announce(self, stream: str) -> None:
        """The first copy is whole: others take us over from there."""
        cluster = self.cluster
        said = cluster.view.copies.get(self.name)
        old = "" if said is None else said.stream
        self._note_down(*self._noted, stream)
        value = Copy(stream, self.copying.subject).dump()
        while not cluster.stopped:
            if cluster.membership.epoch:
                try:
                    when = created(self.keys.node(self.name), cluster.membership.epoch)
                    answer = await cluster.etcd.transaction(
                        [when], [put(self.keys.copy(self.name), value)]
                    )
                    if answer.done:
                        break
                except EtcdError:
                    pass
            await deferLater(self.reactor, _AGAIN)
        self._note_down(stream)
        if old and old != stream:
            removed = Deferred.fromCoroutine(self.jetstream.remove(old))
            removed.addErrback(lambda failure: failure.trap(NatsError))

    # -- others are gone -----------------------------------------------------------------------

    def told(self, node: Any, body: bytes) -> bool:
        """A frame of another node; whether it was for us."""
        return self.inheriting.told(node, body)

    def _look(self) -> None:
        cluster = self.cluster
        view = cluster.view
        now = self.reactor.seconds()
        self.inheriting.look()
        cluster.owners.silence.look()
        if not cluster.membership.epoch or cluster.minority or cluster.stopped:
            return
        if self.copying.whole:
            self._forget_heir()
        # Where there is a copy, too, what an heir has had is of a life before that.
        wanted = {
            name for name in view.copies.keys() - view.members if not view.is_taken_over(name)
        }
        for name, heir in view.heirs.items():
            by = view.members.get(heir.by)
            if heir.stage != "done" and (
                by is None or by.epoch != heir.epoch or by.name == self.name
            ):
                wanted.add(name)
        for name in self._since.keys() - wanted:
            del self._since[name]
        for name in wanted:
            since = self._since.setdefault(name, now)
            wait = max(_TURN * view.rank(), self._since_when + _TOGETHER - since)
            if view.home_of(name) < 0 and not view.is_taken_over(name):
                # Perhaps all were gone: it is given the time that its sessions would have waited.
                wait += cluster.settings.lease + cluster.settings.keep_sessions
            if name not in self.adoptions and now - since >= wait:
                self._adopt(name)

    def _adopt(self, name: str) -> None:
        adoption = Adoption(self.cluster, self.jetstream, self.inheriting, name)
        self.adoptions[name] = adoption
        self._since.pop(name, None)

        def over(result: Any) -> None:
            del self.adoptions[name]
            if isinstance(result, int):
                self.adopted += result
            else:
                text = "the sessions of node {node} are not taken over: {error}"
                self.log.warn(text, node=name, error=result.getErrorMessage())
                if not result.check(EtcdError, NatsError):
                    self.log.failure("this is not expected", result)
                self._since[name] = self.reactor.seconds() + _LATER

        done = Deferred.fromCoroutine(adoption.run())
        done.addBoth(over).addErrback(
            lambda failure: self.log.failure("sessions are not taken over", failure)
        )

    def pending(self) -> set[str]:
        """Sessions that are here, and are about to be ours."""
        found: set[str] = set()
        for adoption in self.adoptions.values():
            found |= adoption.pending
        return found

    def counters(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "replication_entries": self.copying.entries,
            "replication_bytes": self.copying.bytes,
            "replication_whole": int(self.copying.whole),
            "replication_sessions_adopted": self.adopted,
            "replication_streams_torn": self.torn,
        }


def _client(config: Config, reactor: Any) -> Nats:
    said, secure = nats_access(config.jetstream)
    return Nats(reactor, config.jetstream.servers, {"name": config.node.name, **said}, secure)


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except FileNotFoundError:
        return []
