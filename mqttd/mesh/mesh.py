"""A process's view of its neighbours, whatever lies between: their filters, the last messages.

    worker or node 1 ---- stream ---- 2        every two of them; a hub would be one more process
          \\                       /           whose death stops everything
           '--------- 3 ----------'

A `Neighbour` has a `Peer` in the tables, with the filters it wants, a `Ferry` for what must arrive,
and a link while there is one. How it is told of our filters is the business of those that derive
from this: workers say it over the link (`mqttd.workers.mesh`), nodes write it where all read it
(`mqttd.cluster.nodes`).

Retained messages are one set: a change goes to all, and of two changes of one topic at the same
time the later one stays, whatever the order in which they come (`RECENT`). Limits are asked where
a message comes in; what a neighbour has accepted is taken, and counts, whatever there is already.
Whoever starts takes the set of one that serves already.

Promise: what a filter costs does not depend on how many subscribe to it; MQTT 5.0, 4.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mqttd.broker.abroad import Abroad
from mqttd.broker.broker import Broker
from mqttd.broker.retained import Retained
from mqttd.broker.turns import Job
from mqttd.codec.frame import ONE_BYTE, packet_id_at
from mqttd.codec.topic import split_shared
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.frames import (
    ACK,
    ADD,
    BEGIN,
    DELETE,
    END,
    REMOVE,
    RETAIN,
    frame,
    number_of,
    numbered,
    packed,
    unpacked,
)
from mqttd.mesh.landing import Control
from mqttd.mesh.link import FULL, Link
from mqttd.mesh.peer import Choice, Ferry, Member, Peer
from mqttd.session.receiver import Receiver

__all__ = [
    "FOLLOWED",
    "RECENT",
    "Frames",
    "Mesh",
    "Neighbour",
    "Other",
    "delete_frame",
    "key_of",
    "retain_frame",
]

#: Retained messages that are told in a turn.
_SLICE: Final = 500
#: Milliseconds for which a change of a retained message is remembered.
RECENT: Final = 10_000
#: The most changes of which half are remembered, whatever their age.
_CHANGES: Final = 100_000
#: The most neighbours of one number; a change has a number of its own in each so many microseconds.
_SLOTS: Final = 64
#: What is said of a retained message.
FOLLOWED: Final = 1
_V5: Final = 2
_OF_ALL: Final = 4


class Other:
    """Takes the frames that are not about messages; see `mqttd.workers.relay`."""

    def other(self, link: Link, kind: int, body: bytes) -> None:
        """One frame."""
        raise NotImplementedError

    def gone(self, link: Link) -> None:
        """The neighbour is gone."""
        raise NotImplementedError


class Neighbour:
    """One other process."""

    def __init__(
        self,
        broker: Broker,
        number: int,
        place: str,
        ferry: Ferry | None = None,
        once: Ferry | None = None,
    ) -> None:
        self.number = number
        self.ferry = Ferry(broker) if ferry is None else ferry
        self.peer = Peer(broker, self.ferry, self.ferry if once is None else once, place)
        self.link: Link | None = None
        self.arriving: Arriving | None = None
        #: It has told all its filters, and, where it was asked for, all retained messages.
        self.met: bool = False
        #: Retained topics that it has told, while it tells all of them.
        self.topics: set[str] | None = None


class Mesh(Abroad):
    """The neighbours of `broker`, whose own number is `number`."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.number = number
        self.neighbours: dict[int, Neighbour] = {}
        self.choice = Choice()
        #: How many subscriptions each filter has here.
        self.filters: dict[str, int] = {}
        #: Topic -> when its retained message changed last, of those that did lately.
        self.changes: dict[str, int] = {}
        self.older: dict[str, int] = {}
        self._turned: int = broker.now
        self._last: int = 0
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
        neighbour.topics = set() if takes else None
        arriving = Arriving(self.broker, link, self.frames(neighbour), self.choice)
        neighbour.peer.choice = self.choice
        neighbour.arriving = arriving
        ferry = neighbour.ferry
        ferry.posted = 0
        ferry.taken = 0
        ferry.way = link
        link.send(frame(BEGIN, b"\x01" if takes else b"\x00"))
        self.introduce(neighbour, link)
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
        """The first that is said on a link."""
        raise NotImplementedError

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
        neighbour.ferry.down()
        if self.others is not None:
            self.others.gone(link)
        link.end("the neighbour is gone")
        self.broker.perform_later()

    def link_to(self, number: int) -> Link | None:
        """The stream to a neighbour, if there is one."""
        return self.neighbours[number].link

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
        route = self.broker.router.of(topic)
        stamp = self._stamp(topic)
        for neighbour in self.neighbours.values():
            flags = 0
            if neighbour.peer in route.sessions:
                flags = self.follows(neighbour, topic, kept.qos)
            self._change(neighbour, retain_frame(stamp, flags, kept))

    def deleted(self, topic: str) -> None:
        """See `Abroad.deleted`."""
        if self._applying:
            return
        stamp = self._stamp(topic)
        route = self.broker.router.of(topic)
        for neighbour in self.neighbours.values():
            known = neighbour.peer in route.sessions
            flags = self.follows(neighbour, topic, -1) if known else 0
            self._change(neighbour, delete_frame(stamp, flags, topic))

    def follows(self, neighbour: Neighbour, topic: str, qos: int) -> int:
        """The packet follows, of this QoS (-1: that is not known): what is said so."""
        return FOLLOWED

    def _change(self, neighbour: Neighbour, data: bytes) -> None:
        if neighbour.link is not None:
            neighbour.ferry.tell(data)
            neighbour.ferry.cross()

    def _stamp(self, topic: str) -> int:
        """When this change was made: later than any before, and no neighbour's."""
        now = self.microseconds()
        now += self.number - 1 - now % _SLOTS
        if now <= self._last:
            now = self._last + _SLOTS
        self._last = now
        self.changes[topic] = now
        if len(self.changes) > _CHANGES:
            self.turn(self.broker.now)
        return now

    def microseconds(self) -> int:
        """A clock that all have."""
        # All processes of a machine have this one, and nobody sets it.
        return time.monotonic_ns() // 1000

    def _is_late(self, topic: str, stamp: int) -> bool:
        """Whether a later change of this topic is known; else this is the last one."""
        known = self.changes.get(topic, 0) or self.older.get(topic, 0)
        if known > stamp:
            return True
        if stamp:
            self.changes[topic] = stamp
            if stamp > self._last:
                self._last = stamp
        return False

    def keep(self, neighbour: Neighbour, body: bytes) -> None:
        """A neighbour has a last message for a topic."""
        stamp = number_of(body)
        flags, kept = retained_from(body[8:])
        topic = kept.topic()
        broker = self.broker
        if flags & FOLLOWED and neighbour.arriving is not None:
            neighbour.arriving.retained = key_of(topic)
        if neighbour.topics is not None:
            neighbour.topics.add(topic)
        if self._is_late(topic, stamp):
            return
        if flags & _OF_ALL and self._is_same(topic, kept):
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
        if neighbour.topics is not None:
            neighbour.topics.discard(topic)
        if not self._is_late(topic, number_of(body)):
            self.delete(topic)

    def delete(self, topic: str) -> None:
        """Forget a topic's last message here alone."""
        self._applying = True
        try:
            self.broker.retainer.delete(topic)
        finally:
            self._applying = False

    def taken_over(self, neighbour: Neighbour) -> None:
        """A neighbour has told all retained messages: there are no others."""
        topics = neighbour.topics
        if topics is None:
            return
        neighbour.topics = None
        for topic in list(self.broker.retainer.topics):
            if topic in topics or topic in self.changes or topic in self.older:
                continue  # or a third worker has told it meanwhile
            if not topic.startswith("$SYS/"):
                self.delete(topic)

    def give(self, neighbour: Neighbour) -> None:
        """A neighbour wants all retained messages."""
        link = neighbour.link
        if link is not None:
            self.broker.turns.add(_Giving(self, neighbour, link))
            if self.given is not None:
                self.given(neighbour.number)

    def tick(self, now: int) -> None:
        """A few times a second."""
        if now - self._turned > RECENT:
            self.turn(now)

    def turn(self, now: int) -> None:
        """Half of the changes that are remembered are old by now."""
        self._turned = now
        self.older = self.changes
        self.changes = {}

    def welcome(self, neighbour: Neighbour) -> None:
        """A neighbour has told everything."""
        neighbour.met = True
        if self.met is not None:
            self.met(neighbour.number)


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


class _Giving(Job):
    """All retained messages, some in each turn."""

    def __init__(self, mesh: Mesh, neighbour: Neighbour, link: Link) -> None:
        self.mesh = mesh
        self.neighbour = neighbour
        self.link = link
        self.topics = list(mesh.broker.retainer.topics)
        self.at: int = 0

    def slice(self) -> bool:
        """See `Job.slice`."""
        neighbour = self.neighbour
        link = self.link
        if neighbour.link is not link:
            return False
        broker = self.mesh.broker
        if link.out_bytes > FULL:
            return True
        end = self.at + _SLICE
        for topic in self.topics[self.at : end]:
            kept = broker.retainer.get(topic, broker.now)
            if isinstance(kept, Retained) and not topic.startswith("$SYS/"):
                neighbour.ferry.tell(retain_frame(0, _OF_ALL, kept))
        self.at = end
        if end < len(self.topics):
            return True
        link.send(frame(END, b"\x01"))
        return False


def key_of(topic: str) -> bytes:
    """A topic as a PUBLISH begins with it."""
    raw = topic.encode()
    return len(raw).to_bytes(2, "big") + raw


def retain_frame(stamp: int, flags: int, kept: Retained) -> bytes:
    """What is said of a retained message."""
    username = kept.username
    fields = [
        ONE_BYTE[flags | (_V5 if kept.v5 else 0)],
        kept.expires_at.to_bytes(8, "big"),
        kept.expiry_at.to_bytes(4, "big"),
        kept.source.encode(),
        b"" if username is None else b"\0" + username.encode(),
        kept.peerhost.encode(),
        kept.listener.encode(),
        kept.wire,
    ]
    return numbered(RETAIN, stamp, packed(fields))


def delete_frame(stamp: int, flags: int, topic: str) -> bytes:
    """What is said of a topic that has no retained message any more."""
    return numbered(DELETE, stamp, ONE_BYTE[flags] + topic.encode())


def retained_from(body: bytes) -> tuple[int, Retained]:
    """What was said of a retained message: the flags, and the message."""
    fields = unpacked(body)
    if len(fields) != 8:
        raise ValueError(f"{len(fields)} values, expected 8")
    said, expires_at, expiry_at, source, username, peerhost, listener, wire = fields
    flags = said[0]
    qos = wire[0] >> 1 & 3
    made = Retained(wire, qos, flags & _V5 != 0, 0, 0, source.decode())
    if qos:
        at = packet_id_at(wire)
        made.id_at = at
        made.packet_id = wire[at] << 8 | wire[at + 1]
    made.expires_at = int.from_bytes(expires_at, "big")
    made.expiry_at = int.from_bytes(expiry_at, "big")
    made.username = username[1:].decode() if username else None
    made.peerhost = peerhost.decode()
    made.listener = listener.decode()
    return flags, made
