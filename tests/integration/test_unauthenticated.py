"""What a connection costs that has not said who it is: little, and then what it sent.

Measured from outside, as growth of the resident memory of the broker's process.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.broker import Broker, start_broker

#: So many that what the process had in reserve does not matter; less where each costs much.
MANY, FEW = 3000, 400
#: Above the socket, which is the kernel's, and what the client has sent.
MOST = 4096
#: A CONNECT of 60,000 bytes: below the limit before authentication, which is 64 KiB.
HEAD = b"\x10\xdd\xd4\x03\x00\x04MQTT\x05\x02\x00\x00\x00"
DEADLINE = 60.0  # seconds


@pytest.fixture(scope="module", autouse=True)
def open_files() -> Iterator[None]:
    """As many sockets as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MANY + 500)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of its own for each: memory that an earlier case gave back would be used again."""
    # However long it takes this machine to begin thousands of connections, none is closed for it:
    # not for its silence, nor for another of this address after a second of it.
    patient = {
        "connect_timeout": "1h",
        "first_byte_timeout": "1h",
        "max_strangers_per_address": 0,
    }
    started = start_broker(tmp_path, listener={"tcp": {"default": patient}})
    probe(started)
    yield started
    started.stop()


def send_all(
    opened: ExitStack, broker: Broker, amount: int, pieces: list[bytes]
) -> list[socket.socket]:
    """Connections that each send these pieces, one after the other."""
    clients = []
    for _ in range(amount):
        client = socket.create_connection(("127.0.0.1", broker.port), DEADLINE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients.append(opened.enter_context(client))
    for piece in pieces:
        for client in clients:
            client.sendall(piece)
    probe(broker)
    return clients


def probe(broker: Broker) -> None:
    """Returns when the broker has read what was sent before: it answers a PINGREQ behind it."""
    with socket.create_connection(("127.0.0.1", broker.port), DEADLINE) as client:
        client.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01p\xc0\x00")
        got = b""
        while len(got) < 6:
            got += client.recv(100)
        assert got == b"\x20\x02\x00\x00\xd0\x00"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="it sent nothing"),
        pytest.param([b"\x10"], id="one byte"),
        pytest.param([HEAD, b"x"], id="the head of a CONNECT"),
        pytest.param([HEAD, *[b"x" * 500] * 8], id="drips"),
        pytest.param([HEAD, *[b"x" * 1900] * 31], id="drips up to the limit"),
        pytest.param([HEAD + b"x" * 58_000], id="nearly a CONNECT at once"),
    ],
)
def test_a_connection_without_connect_costs_at_most_4_kib(
    broker: Broker, pieces: list[bytes]
) -> None:
    sent = sum(map(len, pieces))
    amount = MANY if sent < 10_000 else FEW
    before = broker.resident_kib()
    with ExitStack() as opened:
        clients = send_all(opened, broker, amount, pieces)
        grown = (broker.resident_kib() - before) * 1024 / amount
        print(f"{grown:.0f} bytes for {sent} sent, {grown - sent:.0f} more")
        # Large blocks that grow leave holes in malloc's heap, more or less of them as chance has
        # it; what is kept itself is exact, see tests/unit/session/test_before_connect.py.
        holes = sent // 4 if sent > 10_000 else 0
        assert grown <= sent + holes + MOST
        for client in clients:
            client.settimeout(0)
            with pytest.raises(BlockingIOError):  # still open, and nothing said
                client.recv(1)
