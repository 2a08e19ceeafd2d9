"""A raw MQTT client over a blocking socket: it sends the bytes it is given and reads strictly.

It repairs nothing. Every wait has a deadline, and there are no sleeps: a test waits for an event,
and "nothing is delivered" is shown by a PINGRESP that comes first.

    send / expect / expect_close / expect_nothing      one packet at a time, in wire order
    connect / subscribe / publish / message / ...      whole exchanges, for the parts of a test
                                                       that are not its point

An exchange that waits for its answer puts other packets aside; `expect` finds them there first, in
the order they came.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from typing import Any, Final

from tests.support import packets as mq
from tests.support.packets import Packet, Props, Will
from tests.support.waiting import MOST_OF_ONE, Patience

__all__ = ["DEADLINE", "RawClient"]

#: Seconds any single wait may take: less than `retry_interval`, what is sent again comes too late.
DEADLINE: Final = 25.0
#: The same before `connect` is through: less than `connect_timeout`, which ends any connection.
BEFORE_CONNACK: Final = 9.0
CLOSED: Final = None


class RawClient:
    """One TCP connection to a broker.

    `port` is on loopback, `sock` a connection that is there already (see `tests.support.doors`);
    `version` (4 or 5, or 3 for MQTT 3.1) decides how packets are written and read. Attributes:
    `connack`, the broker's answer to `connect`; `aliases`, the topic aliases the broker has set on
    this connection.
    """

    def __init__(
        self, port: int, version: int = mq.V311, deadline: float = 0.0, sock: Any = None
    ) -> None:
        self.version = version
        self.deadline = deadline or BEFORE_CONNACK
        self.sock: Any = sock
        if sock is None:
            self.sock = socket.create_connection(("127.0.0.1", port), timeout=self.deadline)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connack: Packet | None = None
        self.aliases: dict[int, str] = {}
        self.closed = False
        self._rest = b""
        self._pos = 0  # where the next packet starts in _rest
        self._aside: deque[Packet] = deque()
        self._packet_id = 0

    # -- bytes and packets ---------------------------------------------------------------------

    def send(self, *parts: bytes) -> None:
        """Write the bytes in one go; a connection the broker has closed swallows them."""
        try:
            self.sock.settimeout(self.deadline)
            self.sock.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass

    def send_slowly(self, data: bytes) -> None:
        """Write one byte per segment."""
        for index in range(len(data)):
            self.send(data[index : index + 1])

    def receive(self, deadline: float | None = None) -> Packet | None:
        """The next packet, or None at the end of the stream. Raises TimeoutError."""
        if self._aside:
            return self._aside.popleft()
        return self._receive_wire(deadline)

    def _receive_wire(self, deadline: float | None = None) -> Packet | None:
        patience = Patience(self.deadline if deadline is None else deadline)
        while True:
            packet = self._cut_packet()
            if packet is not None:
                return packet
            if not self._fill(patience):
                left = self._rest[self._pos :]
                assert not left, f"stream ends inside a packet: {left[:40].hex(' ')}"
                return CLOSED

    def _fill(self, patience: Patience) -> bool:
        if self.closed:
            return False
        if not patience.left():
            raise TimeoutError(
                f"nothing from the broker in time; rest: {self._rest[self._pos :]!r}"
            )
        self.sock.settimeout(min(patience.seconds, MOST_OF_ONE))
        try:
            data = self.sock.recv(262144)
        except TimeoutError:
            return True
        except ConnectionResetError:
            data = b""
        self._rest = self._rest[self._pos :] + data
        self._pos = 0
        self.closed = not data
        return bool(data)

    def _cut_packet(self) -> Packet | None:
        rest, begin = self._rest, self._pos
        length = shift = 0
        for pos in range(begin + 1, begin + 6):
            if pos >= len(rest):
                return None
            length |= (rest[pos] & 0x7F) << shift
            if rest[pos] < 0x80:
                break
            shift += 7
            if shift == 28:
                raise mq.WireError("remaining length of five bytes")
        start = pos + 1
        if shift and rest[pos] == 0:
            raise mq.WireError("over-long remaining length")
        if len(rest) < start + length:
            return None
        self._pos = start + length
        packet = mq.read(rest[begin], rest[start : start + length], self.version)
        alias = packet.prop(mq.TOPIC_ALIAS) if packet.type == mq.PUBLISH else None
        if alias is not None:
            if packet.topic:
                self.aliases[alias] = packet.topic
            assert alias in self.aliases, f"topic alias {alias} was never set"
            packet.topic = self.aliases[alias]
        return packet

    def expect(self, kind: int, deadline: float | None = None, **fields: Any) -> Packet:
        """The next packet must be of this type, with these fields; returns it."""
        packet = self.receive(deadline)
        assert packet is not None, f"expected {mq.name_of(kind)}, the broker closed"
        assert packet.type == kind, f"expected {mq.name_of(kind)}, got {packet}"
        for name, value in fields.items():
            got = getattr(packet, name)
            assert got == value, f"{packet.name}.{name} is {got!r}, expected {value!r}: {packet}"
        return packet

    def wait_for(self, kind: int, deadline: float | None = None, **fields: Any) -> Packet:
        """The next packet of this type; others are put aside for `expect`."""
        found = next((p for p in self._aside if p.type == kind), None)
        if found is not None:
            self._aside.remove(found)
        while found is None:
            packet = self._receive_wire(deadline)
            assert packet is not None, (
                f"expected {mq.name_of(kind)}, the broker closed after {list(self._aside)}"
            )
            if packet.type == kind:
                found = packet
            else:
                self._aside.append(packet)
        for name, value in fields.items():
            got = getattr(found, name)
            assert got == value, f"{found.name}.{name} is {got!r}, expected {value!r}: {found}"
        return found

    def expect_close(self, *reasons: int, deadline: float | None = None) -> Packet | None:
        """End of stream must come next, for 5.0 possibly after one DISCONNECT.

        With `reasons`, 5.0 must give that DISCONNECT one of them. Returns the DISCONNECT, if any.
        Before a CONNACK, a refusing CONNACK may come instead of the DISCONNECT.
        """
        packet = self.receive(deadline)
        last = packet
        if packet is not None:
            refusal = packet.type == mq.CONNACK and self.connack is None and packet.reason
            assert refusal or packet.type == mq.DISCONNECT, f"expected the close, got {packet}"
            assert packet.reason >= 0x80 or refusal, f"expected an error code, got {packet}"
            packet = self.receive(deadline)
            assert packet is None, f"expected the end of the stream, got {packet}"
        if reasons and self.version == mq.V5:
            assert last is not None, f"closed without a reason, expected one of {reasons}"
            assert last.reason in reasons, f"reason 0x{last.reason:02x} is not in {reasons}"
        return last

    def expect_nothing(self) -> None:
        """Nothing is on its way: the answer to a PINGREQ comes before anything else."""
        self.send(mq.pingreq())
        self.expect(mq.PINGRESP)

    def ping(self) -> None:
        """The broker has handled all we sent so far (packets on the way are put aside)."""
        self.send(mq.pingreq())
        self.wait_for(mq.PINGRESP)

    # -- whole exchanges -----------------------------------------------------------------------

    def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        props: Props = (),
        reason: int = 0,
        **fields: Any,
    ) -> RawClient:
        """Send CONNECT and take the CONNACK, which must carry `reason`."""
        self.send(
            mq.connect(
                client_id,
                self.version,
                clean=clean,
                keep_alive=keep_alive,
                will=will,
                props=props,
                **fields,
            )
        )
        self.connack = self.expect(mq.CONNACK, reason=reason)
        if self.deadline == BEFORE_CONNACK:
            self.deadline = DEADLINE
        return self

    @property
    def resumed(self) -> bool:
        """Session Present of the CONNACK."""
        assert self.connack is not None
        return self.connack.session_present

    def next_id(self) -> int:
        """A packet id not used on this connection for a long while."""
        self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    def subscribe(
        self, *filters: str | tuple[str, int], qos: int = 0, props: Props = ()
    ) -> list[int]:
        """Subscribe (to filters or (filter, options) pairs); returns the codes of the SUBACK."""
        packet_id = self.next_id()
        pairs = [f if isinstance(f, tuple) else (f, qos) for f in filters]
        self.send(mq.subscribe(pairs, packet_id, version=self.version, props=props))
        codes = self.wait_for(mq.SUBACK, packet_id=packet_id).reasons
        assert len(codes) == len(pairs), f"{len(codes)} codes for {len(pairs)} filters"
        return codes

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe and take the UNSUBACK; returns its codes (none in 3.1.1)."""
        packet_id = self.next_id()
        self.send(mq.unsubscribe(filters, packet_id, version=self.version))
        return self.wait_for(mq.UNSUBACK, packet_id=packet_id).reasons

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        packet_id: int = 0,
        **fields: Any,
    ) -> Packet | None:
        """Publish and finish the handshake (a ping, for QoS 0); returns PUBACK or PUBREC."""
        packet_id = packet_id or self.next_id()
        self.send(mq.publish(topic, payload, qos, packet_id, version=self.version, **fields))
        if qos == 0:
            self.ping()
            return None
        if qos == 1:
            return self.wait_for(mq.PUBACK, packet_id=packet_id)
        received = self.wait_for(mq.PUBREC, packet_id=packet_id)
        if received.reason < 0x80:
            self.send(mq.pubrel(packet_id, self.version))
            self.wait_for(mq.PUBCOMP, packet_id=packet_id, reason=0)
        return received

    def message(self, *, deadline: float | None = None, ack: bool = True, **fields: Any) -> Packet:
        """The next packet must be a PUBLISH with these fields; its handshake is finished."""
        packet = self.expect(mq.PUBLISH, deadline, **fields)
        if ack and packet.qos == 1:
            self.send(mq.puback(packet.packet_id, self.version))
        elif ack and packet.qos == 2:
            self.send(mq.pubrec(packet.packet_id, self.version))
            self.wait_for(mq.PUBREL, packet_id=packet.packet_id, reason=0)
            self.send(mq.pubcomp(packet.packet_id, self.version))
        return packet

    def collect(self, count: int) -> list[Packet]:
        """The next `count` messages, all handshakes answered as they come and finished."""
        messages: list[Packet] = []
        unreleased = 0
        while len(messages) < count or unreleased:
            packet = self.receive()
            assert packet is not None, f"the broker closed after {len(messages)} messages"
            if packet.type == mq.PUBREL:
                unreleased -= 1
                self.send(mq.pubcomp(packet.packet_id, self.version))
                continue
            assert packet.type == mq.PUBLISH, f"expected PUBLISH, got {packet}"
            messages.append(packet)
            if packet.qos == 1:
                self.send(mq.puback(packet.packet_id, self.version))
            elif packet.qos == 2:
                unreleased += 1
                self.send(mq.pubrec(packet.packet_id, self.version))
        assert len(messages) == count, f"{len(messages)} messages instead of {count}"
        return messages

    def payloads(self, count: int) -> list[bytes]:
        """The payloads of the next `count` messages."""
        return [self.message().payload for _ in range(count)]

    # -- endings -------------------------------------------------------------------------------

    def disconnect(self, reason: int = 0, props: Props = ()) -> None:
        """Send DISCONNECT and see the broker close."""
        self.send(mq.disconnect(self.version, reason, props))
        self.drain()

    def drop(self) -> None:
        """Go away without DISCONNECT, and see that the broker noticed."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.drain()

    def drain(self) -> list[Packet]:
        """Read to the end of the stream; returns what came before it."""
        seen = []
        while (packet := self.receive()) is not None:
            seen.append(packet)
        self.sock.close()
        return seen

    def reset(self) -> None:
        """Go away with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Close our end, without waiting for anything."""
        self.sock.close()
