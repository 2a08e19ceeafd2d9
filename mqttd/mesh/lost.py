"""What was kept for another process that does not come back, told message by message.

    [MEMBER] [ABOUT] ... PUBLISH    frames, as `mqttd.mesh.peer` keeps it  -->  `why`

Promise: as many are looked at as the trail has room for (`trace.rate`), the others are counted.
"""

from __future__ import annotations

from mqttd.broker.publish.publishing import Publishing
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.mesh.frames import ABOUT, MEMBER, split, unpacked
from mqttd.session.ground.message import Message

__all__ = ["message_of", "tell_lost"]


def tell_lost(broker: Publishing, kept: list[bytes], reason: str, place: str) -> None:
    """These messages for `place` are lost: keep why, of those that there is room for."""
    trail = broker.trail
    if trail is None:
        return
    for number, data in enumerate(kept):
        message = message_of(data)
        if message is None:
            continue
        if not trail.room(reason):
            # That one is counted by the trail itself.
            if len(kept) - number > 1:
                trail.many(reason, "", len(kept) - number - 1, place)
            return
        if not message.id:
            message.id = broker.next_message_id()
        trail.lost(message, reason, "", place)


def message_of(data: bytes) -> Message | None:
    """The message in these frames; None of those that tell of a session that moves.

    Raises ValueError for half a frame.
    """
    source, username, message_id = "", None, 0
    at = 0
    while at < len(data):
        body, end = split(data, at)
        if not end:
            raise ValueError("a frame is cut off")
        kind = data[at]
        if kind == ABOUT:
            named, told, number = unpacked(data[body:end])
            source = named.decode()
            username = told[2:].decode() if len(told) > 1 else None
            message_id = int.from_bytes(number, "big")
        elif kind == MEMBER:
            source = unpacked(data[body:end])[1].decode()
        elif kind >= PUBLISH << 4:
            packet = parse_packet(kind, data[body:end], 5)
            assert isinstance(packet, Publish)
            return Message(
                message_id, packet.topic, packet.payload, packet.qos, packet.retain,
                packet.properties, source, username,
            )  # fmt: skip
        at = end
    return None
