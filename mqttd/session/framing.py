"""From a stream of bytes to packets, each handed to whom it concerns.

    chunk  | PUBLISH | PUBLISH | PUBACK | PUBL        --> Forwarding, Acknowledging
                                           `-- kept until the rest has come (`unfinished`)

`feed` is called with what was read, in pieces of any size; the loop over the complete packets of a
chunk is the broker's hot path, PUBLISH first. It walks the fixed header by itself, for speed; a
test holds it to `mqttd.codec.frame`. What other packets mean is the business of the class above.

Promise: a packet is handed on when it is complete, and no byte of it before, but that a packet that
is too large, or that cannot be the first, ends the connection before it is read. MQTT 5.0, 2.1.
"""

from __future__ import annotations

from mqttd.codec.frame import size_at
from mqttd.codec.reasons import MalformedPacket, MqttError, PacketTooLarge, ProtocolViolation
from mqttd.codec.sniff import looks_like
from mqttd.session.acknowledging import Acknowledging
from mqttd.session.connection import CLOSED, NEW, OPEN, WAITING, Edge
from mqttd.session.general import Router
from mqttd.session.unfinished import Unfinished
from mqttd.session.wheel import Timer

__all__ = ["Framing", "Inlet"]


class Inlet(Timer):
    """What is read passes through here where its rate is limited (`mqttd.session.limits`)."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.due_at = 0
        self.slotted = 0
        #: Nothing may pass for now; it goes on by itself.
        self.waiting: bool = False

    def take(self, data: bytes) -> None:
        """Pass on what may pass, and keep the rest."""
        raise NotImplementedError

    def size(self) -> int:
        """Bytes that are kept."""
        raise NotImplementedError

    def close(self) -> None:
        """The connection is gone."""
        raise NotImplementedError


class Framing(Acknowledging):
    """A connection whose bytes are taken apart into packets."""

    __slots__ = ("intake", "largest", "messages", "need", "rest")

    def __init__(self, router: Router, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(router, edge, fd, listener)
        #: The packet that is not complete; what came while authentication is under way.
        self.rest: Unfinished | None = None
        #: Below 0 while the first byte is waited for.
        self.need: int = 0
        #: The largest packet taken once the connection is open.
        self.largest: int = 0
        self.intake: Inlet | None = None
        #: PUBLISH packets that came.
        self.messages: int = 0

    def feed(self, data: bytes) -> None:
        """Take a chunk of received bytes; handles every complete packet in it."""
        router = self.router
        router.metrics.bytes_received += len(data)
        if self.state == WAITING:
            self.hold(data)
            return
        if self.state == CLOSED:
            return
        rest = self.rest
        if rest is not None:
            # Before CONNECT exactly what was sent: bounded by `max_connect_size`.
            data = rest.add(data, self.state == NEW)
            if not data:
                return
            self.rest = None
        self._take(data)

    def came(self, count: int) -> None:
        """So many bytes were read to where the `rest` has room."""
        rest = self.rest
        assert rest is not None
        self.router.metrics.bytes_received += count
        data = rest.came(count)
        if data:
            self.rest = None
            self._take(data)

    def unfinished(self) -> int:
        """Bytes held of what was received and could not be handled yet."""
        held = 0 if self.rest is None else self.rest.size
        return held if self.intake is None else held + self.intake.size()

    def _take(self, data: bytes) -> None:
        """Handle a chunk that begins with a packet, and see whether to read on."""
        router = self.router
        if self.intake is None:
            self.packets(data)
        else:
            self.intake.take(data)
        if self.out_bytes > self.limit and (self.blocked or self.paced):
            # Its acknowledgements cannot be written: do not read more from it.
            self.pause()
            self.thirsty = True
        elif (
            (router.congested or router.backlog > router.settings.backlog)
            and self.state == OPEN
            and not self.paused
        ):
            self.pause()
            router.stalled.append(self)

    def resume(self) -> None:
        """Read from the peer again."""
        if self.intake is not None and self.intake.waiting:
            return  # goes on by itself
        super().resume()

    def packets(self, data: bytes) -> None:
        """Handle every complete packet of a chunk, whatever the limits; the rest is kept."""
        self.router.packet_type = 0
        before = self._published()
        try:
            self._loop(data)
        except MqttError as error:
            self.fail(error, self.router.packet_type)
        self.messages += self._published() - before

    def _published(self) -> int:
        """PUBLISH packets of everybody so far: counted where they are handled, for all at once."""
        metrics = self.router.metrics
        return (
            metrics.messages_received_qos0
            + metrics.messages_received_qos1
            + metrics.messages_received_qos2
        )

    def _loop(self, data: bytes) -> None:
        """The loop over the packets of a chunk."""
        router = self.router
        n: int = len(data)
        pos: int = 0
        count: int = 0
        opened: bool = self.state == OPEN
        largest: int = self.largest if opened else router.settings.max_connect_size
        while n - pos >= 2:
            first: int = data[pos]
            length: int = data[pos + 1]
            p: int = pos + 2
            if length >= 0x80:
                length &= 0x7F
                shift: int = 7
                complete: bool = False
                while p < n:
                    b: int = data[p]
                    p += 1
                    length |= (b & 0x7F) << shift
                    if b < 0x80:
                        if b == 0 and self.v5:
                            raise MalformedPacket("remaining length with bytes to spare")
                        complete = True
                        break
                    shift += 7
                    if shift > 21:
                        raise MalformedPacket("remaining length of more than four bytes")
                if not complete:
                    if not opened and first != 0x10:
                        raise _not_connect(data)
                    break
            end: int = p + length
            if end - pos > largest:
                raise PacketTooLarge(f"packet of {end - pos} bytes, at most {largest} are taken")
            if not opened and first != 0x10:
                raise _not_connect(data)
            if end > n:
                break
            count += 1
            if first & 0xF0 == 0x30 and opened:
                pos = self.take_publish(data, pos, p, end)
            elif length == 2 and opened and 0x40 <= first < 0x80:
                packet_id: int = data[p] << 8 | data[p + 1]
                if first == 0x40:
                    self.take_puback(packet_id, 0)
                elif first == 0x62:
                    self.take_pubrel(packet_id)
                elif first == 0x50:
                    self.take_pubrec(packet_id, 0)
                elif first == 0x70:
                    self.take_pubcomp(packet_id)
                else:
                    self.take_packet(first, data[p:end])
                pos = end
            elif first == 0xC0 and length == 0 and opened:
                self.send(b"\xd0\x00")
                pos = end
            else:
                self.take_packet(first, data[p:end])
                pos = end
                if self.state == WAITING and pos < n:
                    self.hold(data[pos:])
                    pos = n
                elif self.state == OPEN and not opened:
                    # CONNECT was accepted at once: go on with the session's own limits.
                    opened = True
                    largest = self.largest
                    if self.intake is not None and pos < n:
                        self.intake.take(data[pos:])
                        pos = n
            if self.state != OPEN:
                break
        if count:
            # Only complete packets keep a client alive (MQTT-3.1.2-22).
            router.metrics.packets_received += count
            self.last = router.now
        if pos < n and self.state != CLOSED:
            self._keep(data, pos, n)

    def _keep(self, data: bytes, pos: int, n: int) -> None:
        """Keep an incomplete packet, and how many bytes it needs in all."""
        if self.state == WAITING:
            return
        if not self.state == OPEN and data[pos] != 0x10:
            raise ProtocolViolation("the first packet is not CONNECT")
        size = size_at(data, pos, n)
        self.rest = Unfinished(data[pos:], size if size > 0 else n - pos + 1)

    def hold(self, data: bytes) -> None:
        """Keep what comes while authentication is under way."""
        raise NotImplementedError

    def take_packet(self, first: int, body: bytes) -> None:
        """Any packet that the loop does not serve itself."""
        raise NotImplementedError

    def fail(self, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: log, answer as its version allows, close."""
        raise NotImplementedError


def _not_connect(data: bytes) -> ProtocolViolation:
    seen = looks_like(data)
    text = "the first packet is not CONNECT"
    return ProtocolViolation(f"{text} but {seen}" if seen else text)
