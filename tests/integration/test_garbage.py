"""Connections leave nothing behind that only a full collection of garbage would free.

What has grown old is frozen (`mqttd.monitor.garbage`): a cycle in there is memory that is gone for
ten minutes, in a large broker for ever. So the collector stands still here, and is asked at the end
how much it finds.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.doors import TRANSPORTS, Door, doors_of, write_certificates
from tests.support.waiting import until

MANY: Final = 20
DEADLINE: Final = 10.0
HELLO: Final = b"\x16\x03\x01\x02\x00\x01"  # the beginning of one
#: Objects that may be found, however many connections there were: what the question itself leaves.
FEW: Final = MANY

#: The collector stands still; a line on this socket has it collect, the answer is what it found.
PROGRAM: Final = """
import gc
from collections import Counter
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol

class Asked(Protocol):
    def dataReceived(self, data):
        if data == b"connections":
            self.say(service.doors.doors["ssl:door"].describe()["connections"])
            return
        gc.set_debug(gc.DEBUG_SAVEALL)
        found = gc.collect()
        gc.set_debug(0)
        kinds = Counter(f"{{type(one).__module__}}.{{type(one).__name__}}" for one in gc.garbage)
        gc.garbage.clear()
        gc.collect()
        self.say(f"{{found}} {{kinds.most_common(8)}}")

    def say(self, what):
        self.transport.write(f"{{what}}\\n".encode())

service.garbage = service.quiet = None
reactor.callWhenRunning(gc.disable)
reactor.listenUNIX({path!r}, Factory.forProtocol(Asked))
"""

Make = Callable[[Door, int, ssl.SSLContext], None]


def dialled(door: Door) -> socket.socket:
    return socket.create_connection((door.host, door.port), DEADLINE)


def silent(door: Door, number: int, context: ssl.SSLContext) -> None:
    """The beginning of a hello, and nothing until the broker has had enough."""
    with dialled(door) as sock, contextlib.suppress(ConnectionResetError):
        sock.sendall(HELLO)
        assert sock.recv(1) == b""


def gone(door: Door, number: int, context: ssl.SSLContext) -> None:
    """The beginning of a hello, and away."""
    with dialled(door) as sock:
        sock.sendall(HELLO)


def wrong(door: Door, number: int, context: ssl.SSLContext) -> None:
    """A record that is no hello."""
    with dialled(door) as sock, contextlib.suppress(ConnectionResetError):
        sock.sendall(b"\x16\x03\x01\x00\x05hello")
        while sock.recv(100):
            pass


def distrustful(door: Door, number: int, context: ssl.SSLContext) -> None:
    """A client that does not know the authority."""
    with dialled(door) as sock, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")


def fine(door: Door, number: int, context: ssl.SSLContext) -> None:
    """A client that says goodbye."""
    with context.wrap_socket(dialled(door), server_hostname="localhost") as sock:
        sock.sendall(mq.connect(f"fine-{number}", mq.V5))
        assert sock.recv(100)
        sock.sendall(mq.disconnect(mq.V5))
        with contextlib.suppress(OSError):
            sock.recv(1)


def rude(door: Door, number: int, context: ssl.SSLContext) -> None:
    """A client that goes without a word."""
    with context.wrap_socket(dialled(door), server_hostname="localhost") as sock:
        sock.sendall(mq.connect(f"rude-{number}", mq.V5))
        assert sock.recv(100)


class Asking:
    """The broker, and somebody in it who may be asked."""

    def __init__(self, folder: Path, transport: str) -> None:
        write_certificates(folder / "etc" / "certs")
        door = {"bind": "127.0.0.1:0", "transport": transport, "handshake_timeout": "300ms"}
        path = str(folder / "asked.sock")
        self.broker = start_broker(
            folder,
            program=PROGRAM.format(path=path),
            listener={"ssl": {"door": {**door, "accept_rate": 0}}},
        )
        self.door = doors_of(self.broker)["ssl:door"]
        self.context = ssl.create_default_context(cafile=folder / "etc" / "certs" / "ca.crt")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(path)

    def close(self) -> None:
        self.socket.close()
        self.broker.stop()

    def connected(self) -> int:
        """How many connections the listener has."""
        return int(self._ask(b"connections"))

    def found(self) -> tuple[int, str]:
        """What a full collection finds now: how many objects, and of which kinds most."""
        count, _, kinds = self._ask(b"garbage").partition(" ")
        return int(count), kinds

    def _ask(self, what: bytes) -> str:
        self.socket.sendall(what)
        said = b""
        while not said.endswith(b"\n"):
            said += self.socket.recv(10_000)
        return said.decode()


@pytest.fixture(scope="module", params=TRANSPORTS)
def asking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asking]:
    made = Asking(tmp_path_factory.mktemp("garbage"), request.param)
    yield made
    made.close()


@pytest.mark.parametrize("make", [silent, gone, wrong, distrustful, fine, rude])
def test_connections_leave_no_garbage(asking: Asking, make: Make) -> None:
    make(asking.door, 0, asking.context)  # what only the first one leaves
    until(lambda: asking.connected() == 0)
    asking.found()
    for number in range(MANY):
        make(asking.door, number, asking.context)
    until(lambda: asking.connected() == 0)
    count, kinds = asking.found()
    assert count < FEW, f"{count}: {kinds}"
    assert "Traceback" not in asking.broker.output, asking.broker.output
