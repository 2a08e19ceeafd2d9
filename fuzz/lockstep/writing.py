"""Packets of steps as bytes, by the builder of `tests.support.packets`: none of mqttd's codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fuzz.lockstep.steps import (
    Acknowledge,
    Connect,
    Disconnect,
    Packet,
    Props,
    Publish,
    Raw,
    Subscribe,
    Unsubscribe,
)
from tests.support import packets as mq

__all__ = ["ACKNOWLEDGEMENTS", "Names", "encode"]

#: What builds an acknowledgement of a packet id, for a version, with a reason code.
ACKNOWLEDGEMENTS: Final[dict[int, Callable[[int, int, int], bytes]]] = {
    mq.PUBACK: mq.puback,
    mq.PUBREC: mq.pubrec,
    mq.PUBREL: mq.pubrel,
    mq.PUBCOMP: mq.pubcomp,
}


@dataclass(frozen=True)
class Names:
    """The names of one playing, all of one length: sizes of packets count."""

    prefix: str

    def topic(self, text: str) -> str:
        """A topic, filter or response topic as it is sent."""
        return text.replace("~", self.prefix)

    def client_id(self, number: int | None) -> str:
        """The client identifier of a number."""
        return "" if number is None else f"{self.prefix}c{number}"

    def props(self, props: Props) -> Props:
        """Properties as they are sent."""
        return tuple(
            (i, self.topic(value) if i == mq.RESPONSE_TOPIC else value) for i, value in props
        )


def encode(packet: Packet, version: int, names: Names) -> bytes:
    """The packet as a client of this version writes it; b"" where that version has none."""
    props = names.props(getattr(packet, "props", ())) if version == mq.V5 else ()
    match packet:
        case Connect():
            told, will = packet.will, None
            if told is not None:
                will = mq.Will(
                    names.topic(told.topic),
                    told.payload.encode(),
                    told.qos,
                    told.retain,
                    names.props(told.props),
                )
            return mq.connect(
                names.client_id(packet.client_id),
                version,
                clean=packet.clean,
                props=props,
                will=will,
            )
        case Publish():
            if not packet.topic and version != mq.V5:
                return b""  # by an alias
            return mq.publish(
                names.topic(packet.topic),
                packet.payload.encode(),
                packet.qos,
                packet.packet_id,
                version=version,
                retain=packet.retain,
                dup=packet.dup,
                props=props,
            )
        case Subscribe():
            mask = 0xFF if version == mq.V5 else 0x03
            pairs = [(names.topic(text), options & mask) for text, options in packet.filters]
            return mq.subscribe(pairs, packet.packet_id, version=version, props=props)
        case Unsubscribe():
            filters = [names.topic(text) for text in packet.filters]
            return mq.unsubscribe(filters, packet.packet_id, version=version)
        case Disconnect():
            return mq.disconnect(version, packet.reason, props)
        case Acknowledge():
            return ACKNOWLEDGEMENTS[packet.type](packet.packet_id, version, packet.reason)
        case Raw():
            return bytes.fromhex(packet.hex)
