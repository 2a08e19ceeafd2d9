"""A process's view of its neighbours, whatever lies between: their filters, the last messages.

    worker or node 1 ---- stream ---- 2        every two of them; a hub would be one more process
          \\                       /           whose death stops everything
           '--------- 3 ----------'

A `Neighbour` has a `Peer` in the tables, with the filters it wants, a `Ferry` for what must arrive,
and a link while there is one. How it is told of our filters is the business of those that derive
from this: workers say it over the link (`mqttd.workers.mesh`), nodes write it where all read it
(`mqttd.cluster.links.nodes`).

Retained messages are one set: a change goes to all, and of two changes of one topic at the same
time the later one stays, whatever the order in which they come (`RECENT`). Limits are asked where
a message comes in; what a neighbour has accepted is taken, and counts, whatever there is already.
Whoever starts takes the set of one that serves already; what changed lately all tell, on each link
that begins, and nothing is forgotten before every neighbour has it.

Promise: what a filter costs does not depend on how many subscribe to it; MQTT 5.0, 4.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.retained.retained import Retained
from mqttd.broker.routing.abroad import Abroad, Taken
from mqttd.codec.frame import body_at, topic_end_at
from mqttd.codec.topic import split_shared
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.changes import Changes
from mqttd.mesh.frames import (
    ACK,
    ADD,
    BEGIN,
    DELETE,
    END,
    REMOVE,
    REST,
    RETAIN,
    TAKEN,
    frame,
    number_of,
    unpacked,
)
from mqttd.mesh.landing import Control
from mqttd.mesh.link import Link
from mqttd.mesh.neighbour import Neighbour
from mqttd.mesh.peer import NEVER, Choice, Member
from mqttd.mesh.retained import (
    FOLLOWED,
    OF_ALL,
    Who,
    delete_frame,
    here,
    key_of,
    retain_frame,
    retained_from,
)
from mqttd.mesh.telling import Giving, Telling
from mqttd.session.routes.receiver import Receiver

__all__ = ["RECENT", "AllTaken", "Frames", "Mesh", "Other"]

#: Milliseconds for which a change of a retained message is remembered at least.
RECENT: Final = 10_000


class Other:
    """Takes the frames that are not about messages; see `mqttd.workers.relay`."""

    def other(self, link: Link, kind: int, body: bytes) -> None:
        """One frame."""
        raise NotImplementedError

    def gone(self, link: Link) -> None:
        """The neighbour is gone."""
        raise NotImplementedError


class AllTaken(Taken):
    """Several others have to take something."""

    def __init__(self, then: Taken) -> None:
        self.then = then
        self.count: int = 0

    def taken(self) -> None:
        """See `Taken.taken`."""
        self.count -= 1
        if not self.count:
            self.then.taken()


class Mesh(Abroad):
    """The neighbours of `broker`, whose own number is `number`."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.number = number
        self.neighbours: dict[int, Neighbour] = {}
        self.choice = Choice()
        #: How many subscriptions each filter has here.
        self.filters: dict[str, int] = {}
        #: Of retained messages.
        self.changes = Changes(number, broker.now)
        #: Of whom those were that were told last, and those that came.
        self.told_of = Who()
        self.heard_of = Who()
        #: What is told now came from a neighbour.
        self._applying: bool = False
        self.others: Other | None = None
        #: Called with the number of a neighbour that has been met.
        self.met: Callable[[int], object] | None = None
        #: Called with the number of a neighbour that takes over what all have.
        self.given: Callable[[int], object] | None = None
        broker.router.abroad = self
        broker.retainer.abroad = self

    # -- links ---------------------------------------------------------------------------------

    def linked(self, number: int, link: Link, takes: bool) -> Arriving:
        """There is a stream to this one; `takes`: its retained messages are the ones to have.

        Returns what takes the bytes that come.
        """
        neighbour = self.neighbours[number]
        if neighbour.link is not None:
            self.unlinked(neighbour.link)
        neighbour.link = link
        neighbour.met = False
        neighbour.topics = set(self.changes.all()) if takes else None
        neighbour.due = NEVER
        arriving = Arriving(self.broker, link, self.frames(neighbour), self.choice)
        neighbour.peer.choice = self.choice
        neighbour.arriving = arriving
        ferry = neighbour.ferry
        ferry.posted = 0
        ferry.taken = 0
        ferry.way = link
        link.send(frame(BEGIN, b"\x01" if takes else b"\x00"))
        if self.broker.congested:
            link.send_rest(True)
        self.introduce(neighbour, link)
        telling = Telling(self.broker, self.changes, neighbour, self.introduced)
        if telling.slice():
            self.broker.turns.add(telling)
        neighbour.peer.channel = link
        self.rise(neighbour, link)
        self.broker.perform_later()
        return arriving

    def rise(self, neighbour: Neighbour, link: Link) -> None:
        """Everything else is told: let messages go."""
        neighbour.ferry.up(link)

    def frames(self, neighbour: Neighbour) -> Control:
        """Who takes what a neighbour says that is no message."""
        return Frames(self, neighbour)

    def introduce(self, neighbour: Neighbour, link: Link) -> None:
        """The first that is said on a link; then the retained messages that changed lately."""
        raise NotImplementedError

    def introduced(self, neighbour: Neighbour, link: Link) -> None:
        """These are said, too."""

    def unlinked(self, link: Link) -> None:
        """The stream is over."""
        neighbour = self.neighbours[link.number]
        if neighbour.link is not link:
            return
        neighbour.link = None
        neighbour.arriving = None
        neighbour.peer.channel = None
        neighbour.peer.fresh = None
        neighbour.met = False
        neighbour.topics = None
        neighbour.ferry.down()
        if self.others is not None:
            self.others.gone(link)
        link.end("the neighbour is gone")
        self.broker.perform_later()

    def congested(self, on: bool) -> None:
        """See `Abroad.congested`."""
        for neighbour in self.neighbours.values():
            if neighbour.link is not None:
                neighbour.link.send_rest(on)
        self.broker.perform_later()

    def link_to(self, number: int) -> Link | None:
        """The stream to a neighbour, if there is one."""
        return self.neighbours[number].link

    def arrives(self, taken: Taken) -> bool:
        """See `Abroad.arrives`."""
        all_taken = AllTaken(taken)
        for neighbour in self.neighbours.values():
            ferry, once = neighbour.ferry, neighbour.peer.once
            if ferry.call(all_taken):
                all_taken.count += 1
            if once is not ferry and once.call(all_taken):
                all_taken.count += 1
        return all_taken.count > 0

    # -- filters -------------------------------------------------------------------------------

    def add(self, neighbour: Neighbour, full_filter: str) -> None:
        """A neighbour wants what matches this."""
        peer = neighbour.peer
        if peer.fresh is not None:
            peer.fresh.add(full_filter)
        if full_filter in peer.filters:
            return
        router = self.broker.router
        group, topic_filter = split_shared(full_filter)
        if group is None:
            router.add_peer(topic_filter, peer)
            peer.filters[full_filter] = peer
        else:
            member = Member(peer, full_filter)
            member.group = router.add_peer_member(full_filter, group, topic_filter, member)
            peer.filters[full_filter] = member

    def remove(self, neighbour: Neighbour, full_filter: str) -> None:
        """A neighbour wants it no more."""
        peer = neighbour.peer
        if peer.fresh is not None:
            peer.fresh.discard(full_filter)
        held: Receiver | None = peer.filters.pop(full_filter, None)
        if held is None:
            return
        if isinstance(held, Member):
            self.broker.router.remove_peer_member(full_filter, held)
            held.group = None
        else:
            self.broker.router.remove_peer(full_filter, held)

    # -- retained messages ---------------------------------------------------------------------

    def retained(self, topic: str, kept: object) -> None:
        """See `Abroad.retained`."""
        if self._applying:
            return
        assert isinstance(kept, Retained)
        route = self.broker.topics.at(_key(kept.wire), topic)
        stamp = self._stamp(topic)
        for neighbour in self.neighbours.values():
            flags = 0
            if neighbour.peer in route.sessions:
                flags = self.follows(neighbour, route.key, kept.qos)
            since = neighbour.since(kept.expires_at)
            self._change(neighbour, retain_frame(stamp, flags, kept, since, self.told_of))

    def deleted(self, topic: str, qos: int) -> None:
        """See `Abroad.deleted`."""
        if self._applying:
            return
        stamp = self._stamp(topic)
        route = self.broker.router.of(topic)
        for neighbour in self.neighbours.values():
            comes = qos >= 0 and neighbour.peer in route.sessions
            flags = self.follows(neighbour, route.key, qos) if comes else 0
            self._change(neighbour, delete_frame(stamp, flags, topic))

    def follows(self, neighbour: Neighbour, key: bytes, qos: int) -> int:
        """The packet follows, of this QoS: the flag that says so, if it does not say so itself."""
        if not qos:
            return FOLLOWED
        lane = neighbour.peer.once if qos == 2 else neighbour.ferry
        lane.flag = key
        return 0

    def _change(self, neighbour: Neighbour, data: bytes) -> None:
        if neighbour.link is not None:
            neighbour.ferry.tell(data)
            neighbour.ferry.cross()

    def _stamp(self, topic: str) -> int:
        """When this change was made."""
        self._named(topic)
        stamp = self.changes.stamp(self.microseconds())
        self._remember(topic, stamp)
        return stamp

    def _remember(self, topic: str, stamp: int) -> None:
        self.changes.remember(topic, stamp)
        if self.changes.is_full():
            self.turn(self.broker.now)

    def _named(self, topic: str) -> None:
        """Somebody has said something of this topic, or it has changed here."""
        for neighbour in self.neighbours.values():
            if neighbour.topics is not None:
                neighbour.topics.add(topic)

    def microseconds(self) -> int:
        """A clock that all have."""
        # All processes of a machine have this one, and nobody sets it.
        return time.monotonic_ns() // 1000

    def _is_late(self, topic: str, stamp: int, kept: Retained | None) -> bool:
        """Whether this change of the topic is known, or a later one; else it is the last one."""
        known = self.changes.of(topic)
        if known > stamp or (known and known == stamp and not self._outdoes(topic, kept)):
            return True
        if stamp:
            self._remember(topic, stamp)
        return False

    def _outdoes(self, topic: str, kept: Retained | None) -> bool:
        """Of two changes of one moment all keep the same: a message, of two the greater."""
        if kept is None:
            return False
        known = self.broker.retainer.get(topic, self.broker.now)
        return not isinstance(known, Retained) or _greatness(kept) > _greatness(known)

    def keep(self, neighbour: Neighbour, body: bytes) -> None:
        """A neighbour has a last message for a topic."""
        stamp = number_of(body)
        broker = self.broker
        flags, kept = retained_from(body[8:], self.heard_of)
        if kept.expires_at:
            kept.expires_at = here(kept.expires_at, broker.since())
        key = _key(kept.wire)
        topic = key[2:].decode()
        if flags & FOLLOWED and neighbour.arriving is not None:
            neighbour.arriving.retained = key
        self._named(topic)
        if self._is_late(topic, stamp, kept):
            return
        if flags & OF_ALL and self._is_same(topic, kept):
            return
        self._applying = True
        try:
            size = len(kept.wire)
            origin = (kept.peerhost, kept.listener)
            broker.pubsub.retain(topic, kept, size, origin, kept.checked, accepted=True)
        finally:
            self._applying = False

    def _is_same(self, topic: str, kept: Retained) -> bool:
        known = self.broker.retainer.get(topic, self.broker.now)
        return isinstance(known, Retained) and known.wire == kept.wire

    def drop(self, neighbour: Neighbour, body: bytes) -> None:
        """A topic has no last message any more."""
        topic = body[9:].decode()
        if body[8] and neighbour.arriving is not None:
            neighbour.arriving.retained = key_of(topic)
        if not self._is_late(topic, number_of(body), None):
            self.delete(topic)

    def delete(self, topic: str) -> None:
        """Forget a topic's last message here alone."""
        self._applying = True
        try:
            self.broker.retainer.delete(topic)
        finally:
            self._applying = False

    def takes_over(self) -> bool:
        """Whether a neighbour is telling all retained messages."""
        return any(each.topics is not None for each in self.neighbours.values())

    def taken_over(self, neighbour: Neighbour) -> None:
        """A neighbour has told all retained messages: there are no others."""
        topics = neighbour.topics
        if topics is None:
            return
        neighbour.topics = None
        for topic in list(self.broker.retainer.topics):
            if topic not in topics and not topic.startswith("$SYS/"):
                self.delete(topic)

    def give(self, neighbour: Neighbour) -> None:
        """A neighbour wants all retained messages."""
        if neighbour.link is not None:
            self.broker.turns.add(Giving(self.broker, self.changes, neighbour))
            if self.given is not None:
                self.given(neighbour.number)

    def tick(self, now: int) -> None:
        """A few times a second; what some neighbour may not have is not forgotten."""
        for each in self.neighbours.values():
            if each.link is not None:
                each.link.tell(False)
        if now - self.changes.turned <= RECENT:
            return
        for neighbour in self.neighbours.values():
            # Who tells all it has tells what was before changes that have come meanwhile.
            if neighbour.link is None or neighbour.topics is not None:
                return
            if neighbour.ferry.taken < neighbour.due:
                return
        self.turn(now)

    def turn(self, now: int) -> None:
        """Half of the changes that are remembered are old by now."""
        for neighbour in self.neighbours.values():
            if neighbour.due != NEVER:
                neighbour.due = neighbour.ferry.posted
        self.changes.turn(now)

    def welcome(self, neighbour: Neighbour) -> None:
        """A neighbour has told everything."""
        neighbour.met = True
        if self.met is not None:
            self.met(neighbour.number)


def _key(wire: bytes) -> bytes:
    """The topic of a PUBLISH as it begins with it."""
    body = body_at(wire)
    return wire[body : topic_end_at(wire, body)]


def _greatness(kept: Retained) -> tuple[bytes, str, str]:
    """What everybody has of a message alike."""
    return kept.wire, kept.source, kept.username or ""


class Frames(Control):
    """What one neighbour says that is no message."""

    def __init__(self, mesh: Mesh, neighbour: Neighbour) -> None:
        self.mesh = mesh
        self.neighbour = neighbour

    def control(self, link: Link, kind: int, body: bytes) -> None:
        """See `Control.control`."""
        mesh = self.mesh
        neighbour = self.neighbour
        peer = neighbour.peer
        if kind == ACK:
            neighbour.ferry.acknowledge(number_of(body))
        elif kind == TAKEN:
            link.taken(number_of(body))
        elif kind == REST:
            link.rest(body == b"\x01")
        elif kind == ADD:
            for topic_filter in unpacked(body):
                mesh.add(neighbour, topic_filter.decode())
        elif kind == REMOVE:
            for topic_filter in unpacked(body):
                mesh.remove(neighbour, topic_filter.decode())
        elif kind == RETAIN:
            mesh.keep(neighbour, body)
        elif kind == DELETE:
            mesh.drop(neighbour, body)
        elif kind == BEGIN:
            peer.fresh = set()
            if body == b"\x01":
                mesh.give(neighbour)
        elif kind == END:
            self._told(body)
        elif mesh.others is not None:
            mesh.others.other(link, kind, body)

    def _told(self, body: bytes) -> None:
        """All filters are told, or (1) all retained messages."""
        mesh = self.mesh
        neighbour = self.neighbour
        peer = neighbour.peer
        if body == b"\x01":
            mesh.taken_over(neighbour)
        elif peer.fresh is not None:
            fresh = peer.fresh
            peer.fresh = None
            for topic_filter in list(peer.filters):
                if topic_filter not in fresh:
                    mesh.remove(neighbour, topic_filter)
        if peer.fresh is None and neighbour.topics is None:
            mesh.welcome(neighbour)
