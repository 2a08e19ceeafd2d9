"""A client that closes its half of the connection behind a packet still reads the answer.

`printf ... | nc -N` does so, and every program that shuts its socket down for writing. TLS in
Twisted transports, and TLS before 1.3, know no half of a connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.doors import (
    KINDS,
    TRANSPORTS,
    Door,
    client_context,
    dial,
    doors_of,
    start_with_doors,
)

DOORS = [
    f"{kind}:{transport}"
    for kind in KINDS
    for transport in TRANSPORTS
    if transport == "engine" or kind not in ("ssl", "wss")
]
#: Clients of two workers: some are served by the one that has their socket, others are not.
TRIES = 6
ASKED = {
    "subscribe": (mq.subscribe([("t", 1)], 1, version=5), mq.SUBACK),
    "qos 1": (mq.publish("kept", b"1", 1, 1, version=5), mq.PUBACK),
    "qos 2": (mq.publish("kept", b"1", 2, 1, version=5), mq.PUBREC),
}


class Site:
    """A broker with a store, with one process or several."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        assert broker.directory is not None
        self.certificates = broker.directory / "etc" / "certs"
        self.doors: dict[str, Door] = doors_of(broker)
        away = RawClient(broker.port, mq.V5).connect("away", props=[(mq.SESSION_EXPIRY, 600)])
        away.subscribe("kept", qos=2)
        away.disconnect()

    def connect(self, door: str, client_id: str) -> RawClient:
        sock = dial(self.doors[door], self.certificates)
        client = RawClient(0, mq.V5, sock=sock)
        return client.connect(client_id, clean=False, props=[(mq.SESSION_EXPIRY, 600)])


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "workers"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    workers: dict[str, Any] = {"node": {"workers": request.param}} if request.param > 1 else {}
    broker = start_with_doors(tmp_path_factory.mktemp("half"), **workers)
    yield Site(broker)
    broker.stop()


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("door", DOORS)
def test_the_answer_comes_and_then_the_end(site: Site, door: str, asked: str) -> None:
    packet, answer = ASKED[asked]
    for number in range(TRIES):
        client = site.connect(door, f"half-{number}")
        client.send(packet)
        client.sock.shutdown(socket.SHUT_WR)
        assert [found.type for found in client.drain()] == [answer], f"try {number}"


@pytest.mark.parametrize("asked", ASKED)
def test_close_notify_of_tls_1_3_ends_one_half(site: Site, asked: str) -> None:
    packet, answer = ASKED[asked]
    door = site.doors["ssl:engine"]
    for number in range(TRIES):
        wire = Records(door, client_context(site.certificates))
        client = RawClient(0, mq.V5, sock=wire)
        client.connect(f"notify-{number}", clean=False, props=[(mq.SESSION_EXPIRY, 600)])
        wire.send_last(packet)
        assert [found.type for found in client.drain()] == [answer], f"try {number}"


class Records:
    """TLS over a socket that goes on reading behind its own close_notify."""

    def __init__(self, door: Door, context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection((door.host, door.port), timeout=10)
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.came, self.goes, server_hostname="localhost")
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self.came.write(self.sock.recv(65536))
        assert self.tls.version() == "TLSv1.3"

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self.tls.write(data)
        self._flush()

    def send_last(self, data: bytes) -> None:
        """These bytes and close_notify, in one write."""
        self.tls.write(data)
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        self._flush()

    def recv(self, size: int) -> bytes:
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                data = self.sock.recv(65536)
                if not data:
                    return b""
                self.came.write(data)
            except ssl.SSLZeroReturnError:
                return b""

    def close(self) -> None:
        self.sock.close()

    def _flush(self) -> None:
        self.sock.sendall(self.goes.read())
