"""A session as one record and a queue of packets: what is stored, and handed from owner to owner.

    Session --record_of--> bytes (JSON)   principal, expiry, subscriptions, packet ids
            --queue_of---> packets        PUBLISH of MQTT 5.0, those in flight first

    bytes --Record--> restore --> Session, subscribed, its window and its queue as they were
    packets a part at a time --Making--------^

Times are in seconds since 1970, because a monotonic clock means nothing elsewhere. Whoever reads a
record without its packet ids, as before there were any, sends what was in flight as new.

A packet that came through a shared group has DUP and, as its packet id, which of the shared
subscriptions of the record that is, from 1: so it says itself what of it goes to another member if
the session ends there, whatever is before it by then. Whoever does not know that sends it as any.

MQTT 5.0, 4.1: the session state; 4.4: what is sent again keeps its packet id; 4.8.2: shared groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.shared import Group
from mqttd.codec import properties as prop
from mqttd.codec.frame import ONE_BYTE, packet_id_at, with_id
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import is_shared, split_shared
from mqttd.session.ground.message import RELEASED, Delivery, Message
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.routes.route import OPTIONS, OWED
from mqttd.session.session import Session
from mqttd.types import ClientInfo, SessionState

__all__ = [
    "Making",
    "Record",
    "groups_of",
    "leave",
    "numbers_of",
    "packet_of",
    "queue_more",
    "queue_of",
    "record_of",
    "restore",
    "subscribe_all",
]

_VERSION: Final = 1
#: As many as there are: those that a session has were within its limit where it comes from.
_PACKET_IDS: Final = 65_535
#: The flag of one that came through a shared group.
_DUP: Final = 8
#: Stands for a QoS 2 message of which only the id is left.
_RELEASES: Final = b"\x34\x05\x00\x00\x00\x01\x00"


class Record:
    """A record as it was read; raises ValueError for bytes that are none."""

    def __init__(self, data: bytes) -> None:
        try:
            found: Any = json.loads(data)
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}: expected {_VERSION}")
            self.username: str | None = found["username"]
            self.mountpoint: str = found["mountpoint"]
            self.expiry: int = found["expiry"]
            #: When its connection ended; 0 while there is one.
            self.away_since: int = found["away_since"]
            self.written_at: int = found["written_at"]
            #: When it began; 0 where that is not known.
            self.created_at: int = found.get("created_at", 0)
            #: Full filter, options, identifier (0: none).
            self.subscriptions: list[tuple[str, int, int]] = [
                (full_filter, options, identifier)
                for full_filter, options, identifier in found["subscriptions"]
            ]
            #: Packet ids in flight, in their order; of each that is below 0 PUBREC has come, the
            #: others are those of the first packets of the queue.
            self.window: list[int] = [int(each) for each in found.get("window", ())]
            #: Incoming QoS 2 packet ids that await PUBREL.
            self.incoming: list[int] = [int(each) for each in found.get("incoming", ())]
        except (KeyError, TypeError) as error:
            raise ValueError(f"no session record: {error!r}") from None


def record_of(broker: Publishing, session: Session) -> bytes:
    """The record of a session as it is now."""
    seconds = broker.clock() // 1_000_000
    away = 0 if session.channel is not None else (broker.now - session.away_since) // 1000
    client = session.client
    identifiers = session.identifiers or {}
    found = {
        "version": _VERSION,
        "username": session.username,
        "mountpoint": client.mountpoint if isinstance(client, ClientInfo) else "",
        "expiry": session.expiry_interval,
        "away_since": 0 if session.channel is not None else seconds - away,
        "written_at": seconds,
        "created_at": seconds - (broker.now - session.created_at) // 1000,
        "subscriptions": [
            (full_filter, options | _owed(session, full_filter), identifiers.get(full_filter, 0))
            for full_filter, options in (session.subscriptions or {}).items()
        ],
        "window": [
            -packet_id if entry is RELEASED else packet_id
            for packet_id, entry in (session.inflight or {}).items()
        ],
        "incoming": list(session.awaiting_rel or ()),
    }
    return json.dumps(found).encode()


def _owed(session: Session, full_filter: str) -> int:
    if session.replays is None:
        return 0
    return 0 if all(each.done() for each in session.replays.line(full_filter)) else OWED


def queue_of(broker: Publishing, session: Session, ends: bool = False) -> list[bytes]:
    """What a session's client is still owed, oldest first; what is in flight never expires.

    ends: the session ends here, and with it what has expired, which counts as dropped then.
    """
    now = broker.now
    numbers = numbers_of(session)
    flying = session.pending_in_flight()
    packets = [packet_of(broker, delivery, now, numbers) for delivery in flying]
    for delivery in session.each_queued():
        if not delivery.expires_at or delivery.expires_at > now:
            packets.append(packet_of(broker, delivery, now, numbers))
        elif ends:
            session.drop(delivery, "expired")
    return packets


def leave(session: Session) -> tuple[bytes, ...]:
    """What waits for a session that has ended here; the journal forgets it."""
    broker = session.server
    assert isinstance(broker, Publishing)
    queue = tuple(queue_of(broker, session, True))
    session.leave_journal()
    return queue


def _shared(session: Session) -> list[str]:
    """Its shared subscriptions, in the order of its record."""
    return [each for each in session.subscriptions or () if is_shared(each)]


def numbers_of(session: Session) -> dict[tuple[str | None, str], int]:
    """Name and filter of the shared groups of a session, as they are numbered in its packets."""
    return {split_shared(each): at for at, each in enumerate(_shared(session), 1)}


def groups_of(broker: Publishing, session: Session) -> list[Group | None]:
    """These groups, the first of them of number 1."""
    return [broker.router.groups.get(each) for each in _shared(session)]


def packet_of(
    broker: Publishing,
    delivery: Delivery,
    now: int,
    numbers: dict[tuple[str | None, str], int],
) -> bytes:
    """A delivery as a packet of MQTT 5.0, as of `now`: its bytes, where they are one.

    numbers: see `numbers_of`.
    """
    wire = _wire_of(broker, delivery, now)
    group = delivery.group
    if not isinstance(group, Group) or not delivery.qos:
        return wire
    number = numbers.get((group.name, group.topic_filter), 0)
    if not 0 < number <= _PACKET_IDS:
        return wire  # the client has left that group
    return ONE_BYTE[wire[0] | _DUP] + with_id(wire, packet_id_at(wire), number)[1:]


def _wire_of(broker: Publishing, delivery: Delivery, now: int) -> bytes:
    if delivery.v5 and (not delivery.expires_at or delivery.expiry_at):
        if not delivery.qos or delivery.packet_id:
            return delivery.fresh(True, now).wire
    if delivery.message is None:
        delivery = delivery.copy()  # in the queue it stays without its message
    message = delivery.get_message(broker.next_message_id())
    retain = delivery.wire[0] & 1 == 1
    return message.wire(delivery.qos, retain, True, delivery.identifiers, now)


class Making:
    """A session that is put together from packets as they come: its window first, then its queue.

    Nobody knows it before `restore` has it: what the journal keeps of it until then, from `begin`
    on, is of an owner that no session has, so a process that ends there had nothing of it.
    """

    def __init__(
        self, broker: Publishing, client_id: str, username: str | None, window: Sequence[int]
    ) -> None:
        self.broker = broker
        self.session = Session(broker, client_id, username)
        self.session.speak(True)
        #: It is wanted no more, or somebody has it.
        self.over = False
        self._window = window
        self._place = 0

    def begin(self) -> None:
        """It outlasts its connection, and has no expiry yet."""
        self.session.owner = self.broker.journal.reserve()

    def take(self, packets: Sequence[bytes], late: int, groups: Sequence[Group | None]) -> None:
        """More of what waits, `late` milliseconds after it was written; groups: see `groups_of`."""
        broker, session = self.broker, self.session
        for packet in packets:
            self._release()
            delivery = _read(broker, packet, late, groups)
            if self._place < len(self._window):
                packet_id = self._window[self._place]
                self._place += 1
                if delivery is not None:
                    session.put_inflight(packet_id, delivery)
            elif delivery is not None:
                _queue(broker, session, delivery)

    def _release(self) -> None:
        """Those of which PUBREC has come, until one is awaited whose packet is next."""
        window, session = self._window, self.session
        while self._place < len(window) and window[self._place] < 0:
            packet_id = -window[self._place]
            self._place += 1
            session.put_inflight(packet_id, _RELEASES)
            session.release(packet_id)

    def all_is_here(self) -> Session:
        """Nothing more comes; it is whose it is given to."""
        self.over = True
        while self._place < len(self._window):
            self._release()
            self._place += 1  # its packet has not come
        return self.session

    def drop(self) -> None:
        """Nobody wants it."""
        if not self.over:
            self.over = True
            self.session.ended = True
            self.session.leave_journal()
            self.session.forget()


def restore(broker: Publishing, client_id: str, state: SessionState, record: Record) -> Session:
    """A session as it was, away, with its subscriptions in the router; nothing is sent yet."""
    making, queue = state.made, state.queue
    if isinstance(making, Making) and not making.over:
        queue = ()
    else:
        making = Making(broker, client_id, record.username, record.window)
    session = making.session
    session.set_expiry(record.expiry)
    seconds = broker.clock() // 1_000_000
    away = seconds - record.away_since if record.away_since else 0
    session.away_since = broker.now - milliseconds(max(away, 0))
    age = seconds - record.created_at if record.created_at else 0
    session.created_at = broker.now - milliseconds(max(age, away, 0))
    if session.owner:
        session.server.journal.dated(session.owner, seconds - max(age, away, 0))
    subscribe_all(broker, session, record)
    if queue:
        late = milliseconds(max(seconds - record.written_at, 0))
        making.take(queue, late, groups_of(broker, session))
    making.all_is_here()
    for packet_id in record.incoming:
        session.await_release(packet_id, _PACKET_IDS)
    for full_filter, options, identifier in record.subscriptions:
        if options & OWED:
            broker.pubsub.owe(session, full_filter, options, identifier)
    return session


def subscribe_all(broker: Publishing, session: Session, record: Record) -> None:
    """Give a session the subscriptions of a record, and the mountpoint that they are below."""
    if record.mountpoint:
        session.client = ClientInfo(
            session.client_id, record.username, "", 0, "", 5, False, mountpoint=record.mountpoint
        )
    for full_filter, options, identifier in record.subscriptions:
        broker.pubsub.put_back(session, full_filter, options & OPTIONS, identifier)


def queue_more(broker: Publishing, session: Session, packets: Sequence[bytes], late: int) -> None:
    """Queue packets that came `late` milliseconds after they were written."""
    groups = groups_of(broker, session)
    for packet in packets:
        delivery = _read(broker, packet, late, groups)
        if delivery is not None:
            _queue(broker, session, delivery)


def _queue(broker: Publishing, session: Session, delivery: Delivery) -> None:
    if delivery.expires_at and delivery.expires_at <= broker.now:
        session.drop(delivery, "expired")  # on its way
        return
    account = broker.account
    most = account.most_kept
    account.most_kept = -1  # it was acknowledged where it comes from
    session.enqueue(delivery)
    account.most_kept = most


def _read(
    broker: Publishing, packet: bytes, late: int, groups: Sequence[Group | None]
) -> Delivery | None:
    try:
        return _delivery(broker, packet, late, groups)
    except (MqttError, IndexError):
        return None


def _delivery(
    broker: Publishing, wire: bytes, late: int, groups: Sequence[Group | None]
) -> Delivery | None:
    """A packet as a delivery, None if it is no PUBLISH; what has expired, as from now.

    Raises MqttError and IndexError for bytes that are no packet.
    """
    at = 1
    while wire[at] & 0x80:
        at += 1
    packet = parse_packet(wire[0], wire[at + 1 :], 5)
    if not isinstance(packet, Publish):
        return None
    properties = dict(packet.properties) if packet.properties is not None else {}
    named = properties.pop(prop.SUBSCRIPTION_IDENTIFIER, None)
    expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
    expires_at = 0
    if isinstance(expiry, int):
        expires_at = max(broker.now + milliseconds(expiry) - late, broker.now, 1)
    identifiers: list[int] | None = None
    if isinstance(named, list):
        identifiers = [number for number in named if isinstance(number, int)]
    group = groups[packet.packet_id - 1] if packet.dup and packet.packet_id <= len(groups) else None
    if not expires_at:
        if packet.dup:
            wire = ONE_BYTE[wire[0] ^ _DUP] + wire[1:]
        # Named when somebody asks: a store takes the bytes as they are, and no copy of them.
        id_at = packet_id_at(wire) if packet.qos else 0
        made = Delivery(wire, packet.qos, True, packet.packet_id, id_at, "")
        made.identifiers = identifiers
        return made if group is None else made.lent(group)
    message = Message(
        broker.next_message_id(),
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        properties or None,
        "",
        None,
        expires_at,
    )
    made = Delivery.of(message, packet.qos, packet.retain, True, identifiers, broker.now)
    made.message = None
    return made if group is None else made.lent(group)
