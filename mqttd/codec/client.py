"""A client's end of one connection: bytes in, packets out, acknowledgements by itself.

    bytes --feed--> packets for the program         send, publish --> out, bytes to be written
              '---> PUBACK, PUBREC, PUBREL, PUBCOMP --'

What programs that speak to a broker share: load generators, Spark's executors, clients of tests.
No socket, no clock: whoever has them calls `feed` and writes what `take_out` gives.

Promise: a packet identifier is used again only when its exchange has ended; what arrives is
acknowledged in the order in which it came (4.3, 4.6).
"""

from __future__ import annotations

from mqttd.codec.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize

__all__ = ["ClientCore"]

_MAX_PACKET_ID = 65535


class ClientCore:
    """One connection at a time; `restart` begins the next.

    `in_flight` holds what was published and not yet acknowledged: packet id -> PUBLISH, or PUBREL
    after PUBREC; the program takes out what `feed` tells it has ended. With `acknowledge` False
    what comes is not answered.
    """

    def __init__(self, version: int, acknowledge: bool = True) -> None:
        self.version = version
        self.acknowledge = acknowledge
        self.in_flight: dict[int, Publish | Pubrel] = {}
        #: Bytes in `out`.
        self.unsent = 0
        self._out: list[bytes] = []
        self._parser = Parser(version, role="client")
        self._packet_id = 0

    def packet_id(self) -> int:
        """An identifier that is free."""
        while True:
            self._packet_id = self._packet_id % _MAX_PACKET_ID + 1
            if self._packet_id not in self.in_flight:
                return self._packet_id

    def send(self, packet: Packet) -> None:
        """Put a packet behind what is to be written; raises MqttError if it cannot be one."""
        self.put(serialize(packet, self.version))

    def put(self, data: bytes) -> None:
        """Put a packet that is bytes already behind what is to be written."""
        self._out.append(data)
        self.unsent += len(data)

    def take_out(self) -> bytes:
        """What is to be written, which is the caller's now."""
        data = b"".join(self._out)
        self._out.clear()
        self.unsent = 0
        return data

    def restart(self) -> None:
        """The next connection: what was not written, and what came half, is forgotten."""
        self.take_out()
        self._parser = Parser(self.version, role="client")

    def send_again(self) -> None:
        """Send what is in flight to a broker that knows nothing of it: in a new session."""
        for packet_id, packet in list(self.in_flight.items()):
            if isinstance(packet, Pubrel):
                del self.in_flight[packet_id]
            else:
                self.send(packet)

    def feed(self, data: bytes) -> list[Packet]:
        """Take bytes of the broker, and answer them; returns the packets for the program.

        Those are all but the PUBREC of an exchange that goes on: a PUBACK, PUBCOMP or PUBREC among
        them says that the exchange has ended. Raises MqttError for what is no MQTT.
        """
        found = self._parser.feed(data)
        return [packet for packet in found if not self._answered(packet)]

    def _answered(self, packet: Packet) -> bool:
        """Answer a packet; True if the program has nothing to do with it."""
        if isinstance(packet, Publish):
            if packet.qos and self.acknowledge:
                packet_id = packet.packet_id
                self.send(Puback(packet_id) if packet.qos == 1 else Pubrec(packet_id))
        elif isinstance(packet, Pubrel):
            if self.acknowledge:
                self.send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Pubrec):
            if packet.reason_code < 0x80 and packet.packet_id in self.in_flight:
                answer = Pubrel(packet.packet_id)
                self.in_flight[packet.packet_id] = answer
                self.send(answer)
                return True
        return False
