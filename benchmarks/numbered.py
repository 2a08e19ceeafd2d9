"""Numbered messages at a steady rate from a process of its own, and which were acknowledged.

    due = rate x time since the start --> connections, in batches --> PUBACK --> one byte a number

The rate is that of the clock on the wall: what could not be sent while the broker was away is sent
behind, as far as the window lets it. A message is sent until it is acknowledged: with DUP where the
broker still has the session, as a new one where it has not (4.4 of the specification).

A payload is 8 bytes: 2 of the publisher, 6 of the number, from 0.
"""

from __future__ import annotations

import json
import multiprocessing
import select
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from mqttd.codec import properties as prop
from mqttd.codec.packets import Connack, Connect, Puback, Publish
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize

__all__ = ["Publishers", "payload_of"]

#: Seconds between two looks at what is due.
TICK = 0.005
SESSION_SECONDS = 3600


def payload_of(publisher: int, number: int) -> bytes:
    """What the message `number` of a publisher has in it."""
    return (publisher << 48 | number).to_bytes(8, "big")


class Publishers:
    """A process with `connections` publishers; each writes to `t/N`.

    `port` is where the broker is now (0: nowhere). After `stop`, `folder` has `N.acknowledged`,
    a byte for each number sent (1: acknowledged), and `publishers.json`.
    """

    def __init__(self, folder: Path, rate: float, connections: int = 4, window: int = 1000) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        self._port: Any = context.Value("i", 0)
        self._acknowledged: Any = context.Value("q", 0)
        self._stopping: Any = context.Event()
        self._process = context.Process(
            target=_run,
            args=(folder, rate, connections, window, self._port, self._acknowledged,
                  self._stopping),
            daemon=True,
        )  # fmt: skip
        self._process.start()

    @property
    def port(self) -> int:
        """Where the broker is."""
        return int(self._port.value)

    @port.setter
    def port(self, port: int) -> None:
        self._port.value = port

    @property
    def acknowledged(self) -> int:
        """How many messages were, all together."""
        return int(self._acknowledged.value)

    def stop(self, timeout: float = 60.0) -> dict[str, Any]:
        """Send nothing new, wait until all is acknowledged, and give what happened.

        Raises RuntimeError if that takes longer than `timeout`.
        """
        self._stopping.set()
        self._process.join(timeout)
        if self._process.exitcode != 0:
            self._process.kill()
            raise RuntimeError(f"the publishers did not end: {self._process.exitcode}")
        found: dict[str, Any] = json.loads((self.folder / "publishers.json").read_text())
        return found


class _Publisher:
    """One connection and its numbers."""

    def __init__(self, index: int, window: int) -> None:
        self.index = index
        self.window = window
        self.room = 0
        self.socket: socket.socket | None = None
        self.parser = Parser(5, role="client")
        #: A byte for each number that was sent: 1 when it is acknowledged.
        self.acknowledged = bytearray()
        self.under_way: dict[int, int] = {}
        self.again: deque[int] = deque()
        self.connections = self.resent = self.refused = 0
        self.packet_id = 0
        self.retry_at = 0.0

    def connect(self, port: int) -> None:
        """Connect, and send again what the broker did not acknowledge."""
        self.parser = Parser(5, role="client")
        connection = socket.create_connection(("127.0.0.1", port), 5)
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = Connect(
            f"publisher-{self.index}",
            5,
            clean_start=False,
            properties={prop.SESSION_EXPIRY_INTERVAL: SESSION_SECONDS},
        )
        connection.sendall(serialize(hello, 5))
        answer: list[Any] = []
        while not answer:
            answer = list(self.parser.feed(self._received()))
        connack = answer[0]
        if not isinstance(connack, Connack) or connack.reason_code:
            raise EOFError
        self.connections += 1
        given = (connack.properties or {}).get(prop.RECEIVE_MAXIMUM, 65535)
        self.room = min(self.window, given if isinstance(given, int) else 65535)
        self.resent += len(self.under_way)
        if connack.session_present:
            packets = [self._packet(*one, True) for one in self.under_way.items()]
            connection.sendall(b"".join(packets))
        else:
            self.again.extendleft(reversed(self.under_way.values()))
            self.under_way = {}

    def _packet(self, packet_id: int, number: int, dup: bool) -> bytes:
        payload = payload_of(self.index, number)
        packet = Publish(f"t/{self.index}", payload, 1, dup=dup, packet_id=packet_id)
        return serialize(packet, 5)

    def drop(self) -> None:
        """The connection is broken."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        self.retry_at = time.monotonic() + 0.02

    def send(self, due: int) -> None:
        """Send as many of the first `due` numbers as there is room for."""
        assert self.socket is not None
        packets = []
        room = self.room - len(self.under_way)
        while room > 0:
            if self.again:
                number = self.again.popleft()
            elif len(self.acknowledged) < due:
                number = len(self.acknowledged)
                self.acknowledged.append(0)
            else:
                break
            room -= 1
            self.packet_id = self.packet_id % 65535 + 1
            while self.packet_id in self.under_way:
                self.packet_id = self.packet_id % 65535 + 1
            self.under_way[self.packet_id] = number
            packets.append(self._packet(self.packet_id, number, False))
        if packets:
            self.socket.sendall(b"".join(packets))

    def take(self) -> int:
        """Read what came; how many were acknowledged."""
        count = 0
        for packet in self.parser.feed(self._received()):
            if isinstance(packet, Puback):
                number = self.under_way.pop(packet.packet_id)
                if packet.reason_code < 0x80:
                    self.acknowledged[number] = 1
                    count += 1
                else:
                    self.refused += 1
                    self.again.append(number)
        return count

    def _received(self) -> bytes:
        assert self.socket is not None
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        return data


def _run(
    folder: Path,
    rate: float,
    connections: int,
    window: int,
    port: Any,
    acknowledged: Any,
    stopping: Any,
) -> None:
    publishers = [_Publisher(index, window) for index in range(connections)]
    while not port.value:
        time.sleep(0.01)
    began = time.monotonic()
    ended = 0.0
    seconds: list[int] = []  # acknowledged in each
    while True:
        now = time.monotonic()
        if stopping.is_set() and not ended:
            ended = now
        due = int(((ended or now) - began) * rate / connections)
        here = {}
        for one in publishers:
            try:
                if one.socket is None and port.value and now >= one.retry_at:
                    one.connect(port.value)
                if one.socket is not None:
                    one.send(due)
                    here[one.socket] = one
            except (OSError, EOFError):
                one.drop()
        if ended and not any(
            one.under_way or one.again or len(one.acknowledged) < due for one in publishers
        ):
            break
        ready, _, _ = select.select(list(here), [], [], TICK)
        for connection in ready:
            one = here[connection]
            try:
                count = one.take()
            except (OSError, EOFError):
                one.drop()
                continue
            acknowledged.value += count
            second = int(time.monotonic() - began)
            seconds += [0] * (second + 1 - len(seconds))
            seconds[second] += count
        if time.monotonic() - now < TICK:
            time.sleep(TICK)
    for one in publishers:
        one.drop()
        (folder / f"{one.index}.acknowledged").write_bytes(one.acknowledged)
    told = {
        "offered_per_second": rate,
        "seconds_offered": round(ended - began, 3),
        "seconds": round(time.monotonic() - began, 3),
        "sent": sum(len(one.acknowledged) for one in publishers),
        "acknowledged": acknowledged.value,
        "sent_again": sum(one.resent for one in publishers),
        "refused": sum(one.refused for one in publishers),
        "connections": sum(one.connections for one in publishers),
        "acknowledged_in_each_second": seconds,
    }
    (folder / "publishers.json").write_text(json.dumps(told))
