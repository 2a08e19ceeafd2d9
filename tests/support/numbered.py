"""A client that publishes numbered messages with QoS 1 and knows which were acknowledged.

It goes on through broken connections: what was not acknowledged is published again as a new
message, so the broker may have a number more than once, but an acknowledged one at least once.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from mqttd.codec.packets import Connack, Connect, Puback, Publish
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize

__all__ = ["Publisher"]


class Publisher(threading.Thread):
    """Publishes 0, 1, 2, ... to `topic` until `stop`; `port()` is where the broker is now.

    `acknowledged` holds the numbers that got a PUBACK with success. At most `window` are under
    way; `rate` is messages a second, 0 for as fast as it goes.
    """

    def __init__(
        self, port: Callable[[], int], topic: str, window: int = 100, rate: float = 0.0
    ) -> None:
        super().__init__(daemon=True, name=f"publisher of {topic}")
        self.port = port
        self.topic = topic
        self.window = window
        self.rate = rate
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.connections = 0
        self._next = 0
        self._again: list[int] = []
        self._ending = threading.Event()

    def stop(self, timeout: float = 30.0) -> None:
        """Wait for what is under way, and end."""
        self._ending.set()
        self.join(timeout)
        assert not self.is_alive()

    def run(self) -> None:
        """Connect, publish, and connect again."""
        while not self._ending.is_set():
            try:
                self._connection()
            except (OSError, EOFError):
                time.sleep(0.02)

    def _connection(self) -> None:
        under_way: dict[int, int] = {}
        with socket.create_connection(("127.0.0.1", self.port()), 5) as connection:
            parser = Parser(5, role="client")
            connection.sendall(serialize(Connect(f"p-{self.topic}", 5), 5))
            connection.settimeout(5)
            try:
                answer: list[object] = []
                while not answer:
                    answer = list(parser.feed(self._read(connection)))
                if not isinstance(answer[0], Connack) or answer[0].reason_code:
                    raise EOFError
                self.connections += 1
                began, sent = time.monotonic(), 0
                packet_id = 0
                while under_way or not self._ending.is_set():
                    room = self.window - len(under_way)
                    if self.rate:
                        due = int((time.monotonic() - began) * self.rate) - sent
                        room = min(room, due)
                    if self._ending.is_set():
                        room = 0
                    packets = []
                    for _ in range(room):
                        packet_id = packet_id % 65535 + 1
                        number = self._again.pop() if self._again else self._next
                        if number == self._next:
                            self._next += 1
                        under_way[packet_id] = number
                        packets.append(Publish(self.topic, b"%d" % number, 1, packet_id=packet_id))
                    if packets:
                        sent += len(packets)
                        connection.sendall(b"".join(serialize(one, 5) for one in packets))
                    elif not under_way:
                        time.sleep(0.002)
                        continue
                    for packet in parser.feed(self._read(connection)):
                        if isinstance(packet, Puback):
                            number = under_way.pop(packet.packet_id)
                            if packet.reason_code < 0x80:
                                self.acknowledged.append(number)
                            else:
                                self.refused.append((number, packet.reason_code))
            finally:
                self._again += under_way.values()

    def _read(self, connection: socket.socket) -> bytes:
        data = connection.recv(65536)
        if not data:
            raise EOFError
        return data
