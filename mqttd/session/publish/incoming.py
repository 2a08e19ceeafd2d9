"""PUBLISH on its way in: its parts are found, and it is what it stands for.

    bytes --> frame --> properties (scan) --> parts --> forward
                              |
                              '-- topic alias, mountpoint: made the packet that it stands for

Properties are checked by a scan, or by comparison with the last block; nothing is decoded. What the
scan does not take goes the general way, which names the fault. MQTT 5.0, 3.3.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.codec.reasons import MalformedPacket, ProtocolViolation
from mqttd.codec.scan import ALIAS_SHIFT, END_MASK, EXPIRY_SHIFT, OFFSET_MASK, scan_publish
from mqttd.codec.serializer import varint
from mqttd.session.publish.publisher import TRIES
from mqttd.session.publish.recorded import Recording

__all__ = ["Incoming"]

_PUBLISH: Final = 3
#: The identifier of a Response Topic: a client's name that its mountpoint changes.
_RESPONSE: Final = b"\x08"
#: The largest block that a connection keeps for comparison, in bytes.
_LARGEST: Final = 4096


class Incoming(Recording):
    """A connection that takes the PUBLISHes of its client apart."""

    __slots__ = ()

    def take_publish(self, data: bytes, pos: int, p: int, end: int) -> int:
        """One PUBLISH (its body from `p` to `end`), or a run of them; the index behind it."""
        first = data[pos]
        qos = first >> 1 & 3
        if end - p < 2:
            raise MalformedPacket("PUBLISH without a topic")
        topic_end = p + 2 + (data[p] << 8 | data[p + 1])
        at = topic_end + 2 if qos else topic_end
        if at > end or qos > self.router.settings.max_qos or first & 0x0E == 8:
            self.blame(first, data[p:end])
        if not self.router.fast:
            self.publish(first, data[p:end])
            return end
        if not self.v5:
            if self.mount is None:
                return self.forward(data, pos, p, topic_end, at, at, end, 0)
            return self._entered(data, pos, p, topic_end, at, at, end, 0)
        if at >= end:
            raise MalformedPacket("PUBLISH without properties")
        found = at + 1
        if data[at]:
            warm = self.warm
            block = None if warm is None else warm.block
            if warm is not None and block is not None and data[at : at + len(block)] == block:
                found = warm.found + at
                warm.tries = TRIES
                if (found & END_MASK) > end:
                    found = -1
            else:
                found = scan_publish(data, at, end)
                if found >= 0:
                    self.parses((found & END_MASK) - at)
                if block is not None and warm is not None:
                    warm.block = None
                if found >= 0 and (found & END_MASK) - at <= _LARGEST:
                    if warm is None:
                        warm = self.warm_up()
                    if warm.tries > 0:
                        warm.tries -= 1
                        warm.block = data[at : found & END_MASK]
                        warm.found = found - at
                        warm.rest = None
        if found < 0:
            self.publish(first, data[p:end])
            return end
        if found >> ALIAS_SHIFT & OFFSET_MASK:
            if self.mount is None:
                return self._named(data, pos, p, topic_end, at, end, found)
            self.publish(first, data[p:end])
            return end
        if topic_end - p == 2:
            self.router.packet_type = _PUBLISH
            raise ProtocolViolation("empty topic name without a topic alias")
        expiry = found >> EXPIRY_SHIFT & OFFSET_MASK
        if expiry:
            expiry += at
        if self.mount is not None:
            return self._entered(data, pos, p, topic_end, at, found & END_MASK, end, expiry)
        return self.forward(data, pos, p, topic_end, at, found & END_MASK, end, expiry)

    def blame(self, first: int, body: bytes) -> None:
        """A PUBLISH with a bad header, or a QoS that is not offered: the fault by its name."""
        self.router.packet_type = _PUBLISH
        packet = parse_packet(first, body, self.version)
        assert isinstance(packet, Publish)
        self._check_offered(packet)
        raise MalformedPacket("malformed PUBLISH")

    def _entered(
        self,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> int:
        """A PUBLISH of a client with a mountpoint goes on as the packet it stands for."""
        mount = self.mount
        assert mount is not None
        more = len(mount.raw)
        size = topic_end - p - 2 + more
        if topic_end - p == 2 or size > 65535 or _RESPONSE in data[at:body]:
            self.publish(data[pos], data[p:end])  # says so, or mounts the Response Topic too
            return end
        length = varint(end - p + more)
        head = data[pos : pos + 1] + length + size.to_bytes(2, "big") + mount.raw
        made = b"".join((head, data[p + 2 : end]))
        new_p = 1 + len(length)
        shift = new_p + more - p
        if expiry:
            expiry += shift
        self.forward(made, 0, new_p, topic_end + shift, at + shift, body + shift, len(made), expiry)
        return end

    def _named(
        self, data: bytes, pos: int, p: int, topic_end: int, at: int, end: int, found: int
    ) -> int:
        """A PUBLISH with a topic alias goes on as the packet it stands for."""
        self.router.packet_type = _PUBLISH
        alias_at = at + (found >> ALIAS_SHIFT & OFFSET_MASK)
        body = found & END_MASK
        head = self.resolve(data[alias_at] << 8 | data[alias_at + 1], data[p:topic_end])
        start = at + 1
        while data[start - 1] & 0x80:
            start += 1
        own = body - start - 3
        warm = self.warm
        same = warm is not None and warm.block is not None
        rest = warm.rest if same and warm is not None else None
        if rest is None:
            rest = b"".join((varint(own), data[start : alias_at - 1], data[alias_at + 2 : body]))
            if same and warm is not None:
                warm.rest = rest
        middle = data[topic_end:at]
        length = varint(len(head) + len(middle) + len(rest) + end - body)
        made = b"".join((data[pos : pos + 1], length, head, middle, rest, data[body:end]))
        new_p = 1 + len(length)
        new_end = new_p + len(head)
        new_at = new_end + len(middle)
        new_body = new_at + len(rest)
        expiry = found >> EXPIRY_SHIFT & OFFSET_MASK
        if expiry:
            # In front of it another length and, where it stood there, no alias.
            gone = start + (3 if at + expiry > alias_at else 0)
            expiry = new_at + (len(rest) - own) + at + expiry - gone
        self.forward(made, 0, new_p, new_end, new_at, new_body, len(made), expiry)
        return end
