"""A client of a sequence: it reads strictly, acknowledges, and writes down what it sees.

Beside what `tests.support.packets` refuses to read, these are faults whatever the model says:

- a packet longer than the client's Maximum Packet Size (MQTT-3.1.2-24)
- a topic alias above its Topic Alias Maximum (MQTT-3.1.2-26)
- more messages unacknowledged than its Receive Maximum (MQTT-3.3.4-9)
- a packet id for another message while it is in use (MQTT-2.2.1-4), or with DUP for another payload
- a message again after its PUBREC (MQTT-4.3.3-6), or with DUP twice on one connection (4.4)
- PUBREL without PUBREC, a packet before CONNACK or a second one (MQTT-3.2.0-1, -2)
- no end within `DEADLINE` where the client has closed, no PINGRESP
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from fuzz.lockstep.seen import Seen, SeenMessage, shortened
from fuzz.lockstep.steps import Connect, Publish
from fuzz.lockstep.writing import ACKNOWLEDGEMENTS, Names
from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.packets import Packet

__all__ = ["DEADLINE", "Client", "Flight"]

DEADLINE: Final = 3.0  # seconds

#: What acknowledges what.
DUE: Final = {1: mq.PUBACK, 2: mq.PUBREC, mq.PUBREL: mq.PUBCOMP}


@dataclass
class Flight:
    """A message that a client identifier has not acknowledged to the end."""

    payload: str
    qos: int
    received: bool = False  # PUBREC is sent


@dataclass(frozen=True, order=True)
class Due:
    """An acknowledgement that the client owes; sorted as two brokers have them."""

    payload: str
    type: int
    packet_id: int = field(compare=False)


class Client:
    """One client, connected or not; `flights` are those of all client identifiers."""

    def __init__(self, number: int, names: Names, flights: dict[str, dict[int, Flight]]) -> None:
        self.number = number
        self.names = names
        self.flights = flights
        self.seen = Seen()
        self.raw: RawClient | None = None
        self.connected = False
        self.automatic = True
        self.client_id = ""
        self.due: list[Due] = []
        #: Packet ids that the client has yet to release.
        self.to_release: set[int] = set()
        self.pings = 0
        self._unacked: set[int] = set()
        self._receive_maximum = self._max_packet = self._alias_maximum = 0

    @property
    def version(self) -> int:
        """That of the connection."""
        assert self.raw is not None
        return self.raw.version

    # -- the connection ------------------------------------------------------------------------

    def connect(self, sock: Any, packet: Connect) -> None:
        """A new connection, on which this CONNECT will be sent."""
        self.raw = RawClient(0, packet.version, DEADLINE, sock)
        self.connected = False
        self.automatic = not packet.by_hand
        self.client_id = self.names.client_id(packet.client_id)
        props = dict(packet.props) if packet.version == mq.V5 else {}
        self._receive_maximum = props.get(mq.RECEIVE_MAXIMUM, 65535)
        self._max_packet = props.get(mq.MAXIMUM_PACKET_SIZE, 1 << 28)
        self._alias_maximum = props.get(mq.TOPIC_ALIAS_MAXIMUM, 0)
        self.due, self.to_release, self.pings = [], set(), 0
        self._unacked = set()

    def drop(self) -> None:
        """Go without DISCONNECT, and see that the broker has noticed."""
        assert self.raw is not None
        try:
            self.raw.drop()
        except TimeoutError:
            self.fault("connection stays open")
        except AssertionError as error:
            self.fault(str(error))
        self.ended("closed by the client")

    def shut(self) -> None:
        """Let the socket go, whatever comes."""
        if self.raw is not None:
            self.raw.close()
            self.raw = None

    def ended(self, how: str) -> None:
        """The connection is over."""
        self.shut()
        self.connected, self.due = False, []
        self.seen.end = self.seen.end or how

    def fault(self, what: str) -> None:
        """The broker has done what none may."""
        self.seen.faults.append(what)

    # -- writing -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes to the broker; if it has closed, reading will tell."""
        if self.raw is not None:
            self.raw.send(data)

    def ping(self) -> None:
        """PINGREQ, whose PINGRESP is awaited."""
        self.pings += 1
        self.write(mq.pingreq())

    def acknowledge(self, due: Due, reason: int = 0, kind: int = 0) -> None:
        """Acknowledge what is due, with a reason code (5.0), or by the wrong packet."""
        kind = kind or due.type
        reason = reason if self.version == mq.V5 else 0
        if kind == due.type == mq.PUBCOMP and reason:
            reason = 0x92  # the only one that it may have (3.7.2.1)
        self.write(ACKNOWLEDGEMENTS[kind](due.packet_id, self.version, reason))
        flights = self.flights[self.client_id]
        over = kind == mq.PUBREC and reason >= 0x80  # 2.2.1
        if kind == due.type:
            self.due = [one for one in self.due if one is not due]
            over |= kind != mq.PUBREC
            if not over and due.packet_id in flights:
                flights[due.packet_id].received = True
        if over:
            flights.pop(due.packet_id, None)
            self._unacked.discard(due.packet_id)

    def acknowledge_all(self) -> None:
        """Whatever is due."""
        while self.due and self.raw is not None:
            self.acknowledge(self.due[0])

    def will_release(self, packet: Publish) -> None:
        """The PUBREL of a message at QoS 2 follows its PUBREC."""
        if packet.qos == 2 and packet.release:
            self.to_release.add(packet.packet_id)

    # -- reading -------------------------------------------------------------------------------

    def read(self) -> None:
        """All that is there; something is, so the first packet is waited for."""
        deadline = DEADLINE
        while self.raw is not None:
            try:
                packet = self.raw.receive(deadline)
            except TimeoutError:
                return
            except AssertionError as error:  # a WireError, too
                self.fault(str(error))
                self.ended("unreadable")
                return
            if packet is None:
                self.ended("closed")
                return
            self.handle(packet)
            deadline = 0.0

    def handle(self, packet: Packet) -> None:
        """One packet."""
        if len(packet.raw) > self._max_packet:
            self.fault(f"{packet.name} too long: {len(packet.raw)} bytes of {self._max_packet}")
        if packet.type == mq.CONNACK:
            self._connack(packet)
        elif packet.type == mq.DISCONNECT:
            self.seen.end = f"DISCONNECT 0x{packet.reason:02x}"
        elif not self.connected:
            self.fault(f"{packet.name} before CONNACK")
        elif packet.type == mq.PINGRESP:
            self.pings -= 1
        elif packet.type == mq.PUBLISH:
            self._message(packet)
        elif packet.type == mq.PUBREL:
            self._released(packet)
        elif packet.type in (mq.SUBACK, mq.UNSUBACK):
            self.seen.reply(packet, *(f"0x{code:02x}" for code in packet.reasons))
        else:
            # Whether anybody has subscribed (0x10) is told or not, as a broker likes (3.4.2.1).
            reason = 0 if packet.reason == 0x10 else packet.reason
            self.seen.reply(packet, *([f"0x{reason:02x}"] if reason else []))
            if packet.type == mq.PUBREC and packet.packet_id in self.to_release:
                self.to_release.discard(packet.packet_id)
                if reason < 0x80:
                    self.write(mq.pubrel(packet.packet_id, self.version))
        if self.automatic:
            self.acknowledge_all()

    def _connack(self, packet: Packet) -> None:
        if self.connected:
            self.fault("second CONNACK")
        if packet.reason:
            self.seen.end = f"CONNACK 0x{packet.reason:02x}"
            return
        self.connected = True
        assigned = packet.prop(mq.ASSIGNED_CLIENT_ID)
        self.client_id = assigned or self.client_id
        if not packet.session_present:
            self.flights[self.client_id] = {}
        self.flights.setdefault(self.client_id, {})
        told = ["resumed"] * packet.session_present + ["assigned"] * (assigned is not None)
        expiry = packet.prop(mq.SESSION_EXPIRY)
        self.seen.reply(packet, *told, *([] if expiry is None else [f"expiry {expiry}"]))

    def _message(self, packet: Packet) -> None:
        lane = f"{packet.topic.replace(self.names.prefix, '~')} QoS {packet.qos}"
        self.seen.messages.setdefault(lane, []).append(SeenMessage.of(packet))
        alias = packet.prop(mq.TOPIC_ALIAS)
        if alias is not None and not 0 < alias <= self._alias_maximum:
            self.fault(f"topic alias {alias} above {self._alias_maximum}")
        if packet.qos:
            self._in_flight(packet, shortened(packet.payload))

    def _in_flight(self, packet: Packet, payload: str) -> None:
        packet_id, flights = packet.packet_id, self.flights[self.client_id]
        before = flights.get(packet_id)
        if before and not packet.dup:
            self.fault(f"packet id reused: {packet_id} of {before}, now of {payload}")
        if before and packet.dup:
            if before.payload != payload:
                self.fault(f"DUP of another: {packet_id} of {before}, now of {payload}")
            if before.received:
                self.fault(f"PUBLISH after PUBREC: {packet_id} of {before}")
            if packet_id in self._unacked and self.version == mq.V5:
                self.fault(f"DUP once more: {packet_id} of {before}")
        flights[packet_id] = Flight(payload, packet.qos)
        self._unacked.add(packet_id)
        if self.version == mq.V5 and len(self._unacked) > self._receive_maximum:
            self.fault(f"Receive Maximum exceeded: {len(self._unacked)} of {self._receive_maximum}")
        self.due.append(Due(payload, DUE[packet.qos], packet_id))

    def _released(self, packet: Packet) -> None:
        flight = self.flights[self.client_id].get(packet.packet_id)
        payload = flight.payload if flight and flight.qos == 2 else "?"
        if flight and flight.qos == 2 and not flight.received:
            self.fault(f"PUBREL without PUBREC: {packet.packet_id} of {flight}")
        self.seen.releases.append(payload + (f" 0x{packet.reason:02x}" if packet.reason else ""))
        self.due.append(Due(payload, DUE[mq.PUBREL], packet.packet_id))
