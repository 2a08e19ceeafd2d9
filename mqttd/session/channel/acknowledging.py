"""What clients answer to the messages they were sent: PUBACK, PUBREC, PUBCOMP; and PUBREL.

    QoS 1   PUBLISH -->  <-- PUBACK                                  the id is free again
    QoS 2   PUBLISH -->  <-- PUBREC   PUBREL -->  <-- PUBCOMP        RELEASED in between
    in      PUBLISH <--  --> PUBREC   PUBREL <--  --> PUBCOMP        the id awaited PUBREL

MQTT 5.0, 4.3.2 and 4.3.3.
"""

from __future__ import annotations

from mqttd.codec import reasons
from mqttd.codec.reasons import MalformedPacket, ProtocolViolation
from mqttd.session.ground.message import RELEASED, Delivery, entry_delivery, entry_qos
from mqttd.session.publish.incoming import Incoming

__all__ = ["Acknowledging"]


class Acknowledging(Incoming):
    """A connection whose client acknowledges what it is sent."""

    __slots__ = ()

    def take_puback(self, packet_id: int, code: int) -> None:
        """QoS 1: the message has arrived, or was refused with `code`."""
        session = self.session
        assert session is not None
        if packet_id == 0:
            raise MalformedPacket("PUBACK with packet id 0")
        inflight = session.inflight
        if inflight is None:
            return
        entry = inflight.get(packet_id)
        if entry is None:
            return
        if entry_qos(entry) != 1:
            raise ProtocolViolation("PUBACK for a QoS 2 message")
        session.done(inflight, packet_id, entry)
        router = self.router
        router.metrics.messages_acked += 1
        if router.tap_acked or (router.tap_followed and isinstance(entry, Delivery)):
            if code >= 0x80:
                router.nacked(session, entry_delivery(entry, session.v5), code)
            else:
                router.acked(session, entry_delivery(entry, session.v5), packet_id)
        if session.waiting:
            session.drain()

    def take_pubrec(self, packet_id: int, code: int) -> None:
        """QoS 2: the message has arrived once, or was refused with `code`."""
        session = self.session
        assert session is not None
        if packet_id == 0:
            raise MalformedPacket("PUBREC with packet id 0")
        inflight = session.inflight
        entry = inflight.get(packet_id) if inflight is not None else None
        if entry is None:
            if code < 0x80:
                self.send(self.answer(0x62, packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND))
            return
        if entry_qos(entry) == 1:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        router = self.router
        if code >= 0x80:
            told = router.tap_acked or router.tap_followed
            if told and entry is not RELEASED:
                router.nacked(session, entry_delivery(entry, session.v5), code)
            session.acknowledge(packet_id)
            return
        if entry is not RELEASED:
            session.release(packet_id)
            if router.tap_acked or (router.tap_followed and isinstance(entry, Delivery)):
                router.acked(session, entry_delivery(entry, session.v5), packet_id)
        session.send_kept(self, self.answer(0x62, packet_id, 0), 2)

    def take_pubrel(self, packet_id: int) -> None:
        """QoS 2 in: the publisher will not send it again."""
        session = self.session
        assert session is not None
        if packet_id == 0:
            raise MalformedPacket("PUBREL with packet id 0")
        known = session.complete(packet_id)
        code = 0 if known else reasons.PACKET_IDENTIFIER_NOT_FOUND
        session.send_kept(self, self.answer(0x70, packet_id, code), 2)

    def take_pubcomp(self, packet_id: int) -> None:
        """QoS 2: the id is free again."""
        session = self.session
        assert session is not None
        if packet_id == 0:
            raise MalformedPacket("PUBCOMP with packet id 0")
        inflight = session.inflight
        entry = inflight.get(packet_id) if inflight is not None else None
        if entry is None:
            return
        if entry is not RELEASED:
            raise ProtocolViolation("PUBCOMP before PUBREL")
        session.acknowledge(packet_id)
        if self.router.tap_completed:
            self.router.completed(session, packet_id)
