"""A client on a blocking socket, for the clients of `benchmarks` beside mqttload, or instead."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from mqttd.codec.packets import Connect, Packet
from mqttd.codec.serializer import serialize

__all__ = ["Client", "cpu_of"]

CONNACK = 0x20


class Client:
    """Connected, with MQTT 3.1.1 or 5.0; raises OSError as sockets do, RuntimeError if refused."""

    def __init__(self, port: int, name: str, timeout: float = 30.0, version: int = 4) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.version = version
        self.send(Connect(name, version, keep_alive=0))
        kind, body = self.next()
        if kind != CONNACK or body[1]:
            raise RuntimeError(f"CONNECT was answered with {kind:#x} {body.hex()}")

    def send(self, packet: Packet) -> None:
        """Send one packet."""
        self.socket.sendall(serialize(packet, self.version))

    def next(self) -> tuple[int, bytes]:
        """Wait for a packet: its first byte, and what follows its length."""
        while True:
            for packet in self.whole():
                return packet
            self.receive()

    def receive(self) -> bool:
        """Take what has come; False where nothing did and the socket does not wait."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self._rest += data
        return True

    def whole(self) -> Iterator[tuple[int, bytes]]:
        """The whole packets of what has come."""
        while True:
            data = self._rest
            length, at = 0, 1
            while at < len(data) and data[at] >= 0x80:
                length |= (data[at] & 0x7F) << 7 * (at - 1)
                at += 1
            if at >= len(data):
                return
            length |= data[at] << 7 * (at - 1)
            at += 1
            if len(data) < at + length:
                return
            self._rest = data[at + length :]
            yield data[0], data[at : at + length]


def cpu_of(pid: int) -> float:
    """Seconds of CPU that the threads of a process have had."""
    folder = Path(f"/proc/{pid}/task")
    return sum(int((folder / name / "schedstat").read_text().split()[0])
               for name in os.listdir(folder)) / 1e9  # fmt: skip
