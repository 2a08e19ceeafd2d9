"""Packets of MQTT 5.0 that no client library would build: as long and as many as they can be.

    publish(b"a/b", b"", 1, properties=pairs(900_000))
    subscribe([b"#"] * 260_000)

Bytes in, bytes out, with the standard library alone; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FOREVER", "connect", "pairs", "publish", "subscribe", "text", "unsubscribe", "varint"]

#: A Session Expiry Interval: the session never ends.
FOREVER = 0xFFFFFFFF


def varint(number: int) -> bytes:
    """A variable byte integer."""
    out = bytearray()
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(value: bytes) -> bytes:
    """A string with its length."""
    return len(value).to_bytes(2, "big") + value


def packet(first: int, body: bytes) -> bytes:
    """A packet with its fixed header."""
    return bytes((first,)) + varint(len(body)) + body


def pairs(size: int, each: int = 100) -> bytes:
    """User properties of about `size` bytes together, each of about `each`."""
    half = max((each - 5) // 2, 1)
    one = b"\x26" + text(b"k" * half) + text(b"v" * half)
    return one * max(size // len(one), 1)


def connect(
    client_id: bytes,
    expiry: int = 0,
    receive_maximum: int = 0,
    will: bytes = b"",
    user: bytes = b"",
    password: bytes = b"",
    clean: bool = False,
) -> bytes:
    """A CONNECT; `will` is the payload of one with QoS 1."""
    properties = b"\x11" + expiry.to_bytes(4, "big") if expiry else b""
    if receive_maximum:
        properties += b"\x21" + receive_maximum.to_bytes(2, "big")
    flags = 2 if clean else 0
    body = text(client_id)
    if will:
        flags |= 0x04 | 0x08
        body += b"\0" + text(b"wills/" + client_id) + text(will)
    if user:
        flags |= 0xC0
        body += text(user) + text(password)
    head = b"\0\x04MQTT\x05" + bytes((flags,)) + b"\0\0"
    return packet(0x10, head + varint(len(properties)) + properties + body)


def publish(
    topic: bytes,
    payload: bytes = b"",
    qos: int = 0,
    retain: bool = False,
    properties: bytes = b"",
    packet_id: int = 1,
) -> bytes:
    """A PUBLISH."""
    named = packet_id.to_bytes(2, "big") if qos else b""
    body = text(topic) + named + varint(len(properties)) + properties + payload
    return packet(0x30 | qos << 1 | retain, body)


def subscribe(filters: Iterable[bytes], qos: int = 0, packet_id: int = 1) -> bytes:
    """A SUBSCRIBE."""
    option = bytes((qos,))
    entries = b"".join([text(one) + option for one in filters])
    return packet(0x82, packet_id.to_bytes(2, "big") + b"\0" + entries)


def unsubscribe(filters: Iterable[bytes], packet_id: int = 1) -> bytes:
    """An UNSUBSCRIBE."""
    entries = b"".join([text(one) for one in filters])
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"\0" + entries)
