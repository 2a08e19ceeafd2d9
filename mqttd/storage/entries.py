"""A delivery as bytes that can be kept, and the delivery again.

    flags, expires at (8, ms since 1970), id (16), texts (2 + n each), original (4 + n), PUBLISH

Where nothing is remembered beside the PUBLISH, records hold that alone and this is not asked. Of a
shared subscription the group is not kept: after a restart what came through it stays with its
session, which 4.8.2 allows.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.publish.wills import Testament
from mqttd.broker.retained.retained import Retained
from mqttd.codec.frame import ONE_BYTE, body_at, packet_id_at, size_at
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.session.ground.message import Delivery, Message, entry_delivery
from mqttd.storage.ledger import DELIVERY, MESSAGE5

__all__ = [
    "Dumps",
    "dump",
    "dump_retained",
    "dump_will",
    "entry_of",
    "load",
    "load_retained",
    "load_will",
]

_PUBLISH: Final = 3

_V5: Final = 1
_EXPIRES: Final = 2
_NAMED: Final = 4
_SOURCE: Final = 8
_ORIGINAL: Final = 16
_USERNAME: Final = 32
_ORIGIN: Final = 64
_COUNTED: Final = 128


def dump(delivery: Delivery, since: int) -> bytes:
    """A delivery; `since`: what is added to the broker's milliseconds to get those since 1970."""
    return _dump(delivery, since, 0, [])


class Dumps:
    """Dumps deliveries; one that comes again at once, for another session, has the same bytes.

    So they are in a group of the store once: 1 MB of messages for 300 queues was 305 MiB.
    """

    __slots__ = ("_data", "_delivery", "_id", "_since")

    def __init__(self, since: int) -> None:
        self._since = since
        self._delivery: Delivery | None = None
        self._id: int = 0
        self._data: bytes = b""

    def of(self, delivery: Delivery) -> bytes:
        """See `dump`."""
        number = delivery.identity()
        if delivery is not self._delivery or number != self._id:
            self._delivery = delivery
            self._id = number
            self._data = dump(delivery, self._since)
        return self._data

    def forget(self) -> None:
        """None is known any more."""
        self._delivery = None
        self._data = b""


def dump_retained(kept: Retained, since: int) -> bytes:
    """A retained message, with who published it."""
    flags = 0
    texts: list[str] = []
    if kept.username is not None:
        flags |= _USERNAME
        texts.append(kept.username)
    if kept.peerhost:
        flags |= _ORIGIN
        texts += [kept.peerhost, kept.listener]
    return _dump(kept, since, flags, texts)


def _dump(delivery: Delivery, since: int, flags: int, texts: list[str]) -> bytes:
    parts: list[bytes] = [b""]
    if delivery.v5:
        flags |= _V5
    if delivery.expires_at:
        flags |= _EXPIRES
        parts.append((delivery.expires_at + since).to_bytes(8, "big"))
        if delivery.expiry_at:
            flags |= _COUNTED
            parts.append(delivery.expiry_at.to_bytes(4, "big"))
    message_id = delivery.identity()
    if message_id:
        flags |= _NAMED
        parts.append(message_id.to_bytes(16, "big"))
    if delivery.source:
        flags |= _SOURCE
        texts = [delivery.source, *texts]
    for text in texts:
        data = text.encode()
        parts.append(len(data).to_bytes(2, "big"))
        parts.append(data)
    original = delivery.whole()
    if original is not None:
        flags |= _ORIGINAL
        parts.append(len(original).to_bytes(4, "big"))
        parts.append(original)
    parts[0] = ONE_BYTE[flags]
    parts.append(delivery.wire)
    return b"".join(parts)


class _Loaded:
    """What `_dump` has written."""

    __slots__ = ("at", "data", "delivery", "flags")

    def __init__(self, data: bytes, since: int, retained: bool) -> None:
        flags = data[0]
        self.data = data
        self.flags = flags
        self.at: int = 1
        expires_at = 0
        expiry_at = 0
        number = 0
        source = ""
        if flags & _EXPIRES:
            expires_at = int.from_bytes(self._take(8), "big") - since
            if expires_at == 0:
                expires_at = 1
            if flags & _COUNTED:
                expiry_at = int.from_bytes(self._take(4), "big")
        if flags & _NAMED:
            number = int.from_bytes(self._take(16), "big")
        if flags & _SOURCE:
            source = self.text()
        username = self.text() if flags & _USERNAME else None
        peerhost = self.text() if flags & _ORIGIN else ""
        listener = self.text() if flags & _ORIGIN else ""
        original: bytes | None = None
        if flags & _ORIGINAL:
            original = self._take(int.from_bytes(self._take(4), "big"))
        wire = data[self.at :]
        if wire[0] >> 4 != _PUBLISH:
            raise ValueError("no PUBLISH")
        qos = wire[0] >> 1 & 3
        id_at = packet_id_at(wire) if qos else 0
        packet_id = wire[id_at] << 8 | wire[id_at + 1] if qos else 0
        v5 = flags & _V5 != 0
        if retained:
            kept = Retained(wire, qos, v5, packet_id, id_at, source)
            kept.username = username
            kept.peerhost = peerhost
            kept.listener = listener
            kept.checked = -1
            made: Delivery = kept
        else:
            made = Delivery(wire, qos, v5, packet_id, id_at, source)
        made.id = number
        made.original = original
        made.expires_at = expires_at
        made.expiry_at = expiry_at
        self.delivery = made

    def _take(self, size: int) -> bytes:
        at = self.at
        self.at = at + size
        return self.data[at : at + size]

    def text(self) -> str:
        """The next text."""
        return self._take(int.from_bytes(self._take(2), "big")).decode()


def load(data: bytes, since: int) -> Delivery:
    """What `dump` has written. Raises ValueError or IndexError for other bytes."""
    return _Loaded(data, since, False).delivery


def entry_of(kind: int, data: bytes, v5: bool, since: int) -> object:
    """The entry of a session that speaks this version, of a record of this kind.

    Raises ValueError, IndexError or TypeError for other bytes.
    """
    if kind == DELIVERY:
        return load(data, since)
    if data[0] >> 4 != _PUBLISH:
        raise ValueError("no PUBLISH")
    if (kind == MESSAGE5) == v5:
        return data
    return entry_delivery(data, kind == MESSAGE5)


def load_retained(data: bytes, since: int) -> tuple[Retained, int]:
    """What `dump_retained` has written, and the size of its payload. Raises as `load`."""
    kept = _Loaded(data, since, True).delivery
    assert isinstance(kept, Retained)
    wire = kept.wire
    packet = parse_packet(wire[0], wire[body_at(wire) :], 5 if kept.v5 else 4)
    assert isinstance(packet, Publish)
    return kept, len(packet.payload)


def dump_will(will: Message) -> bytes:
    """A will as a PUBLISH of MQTT 5.0, without its expiry, and behind it who may publish it."""
    bare = Message(
        0, will.topic, will.payload, will.qos, will.retain, will.properties, will.client_id
    )
    parts = [bare.wire(will.qos, will.retain, True, None, 0)]
    if isinstance(will, Testament):
        parts.append(b"\x01" if will.free else b"\0")
        for text in (will.peerhost, will.listener, will.mountpoint):
            data = text.encode()
            parts.append(len(data).to_bytes(2, "big"))
            parts.append(data)
    return b"".join(parts)


def load_will(data: bytes, client_id: str, username: str | None, expiry: int) -> Testament:
    """What `dump_will` has written; `expiry` in seconds, 0: never. Raises as `load`.

    Of one that was written without who may publish it, client id and user name alone are known.
    """
    size = size_at(data, 0, len(data))
    found = parse_packet(data[0], data[body_at(data) : size], 5)
    assert isinstance(found, Publish)
    will = Testament(
        0,
        found.topic,
        found.payload,
        found.qos,
        found.retain,
        found.properties or None,
        client_id,
        username,
        expiry,
    )
    will.restored = True
    if size < len(data):
        will.free = data[size] == 1
        will.peerhost, at = _text(data, size + 1)
        will.listener, at = _text(data, at)
        will.mountpoint, at = _text(data, at)
    return will


def _text(data: bytes, at: int) -> tuple[str, int]:
    """The text at this place, and where it ends."""
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end].decode(), end
