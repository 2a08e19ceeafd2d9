"""Issue 12: whoever comes in crowds, says nothing or guesses keeps nobody else out.

Crowds come from 127.0.0.66, honest clients from other addresses of this machine; each row of the
issue's table that is about doors, in small.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mqttd.admin.ctl.main import Client
from mqttd.secrets.passwords import Cost, hash_password
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import client_context, doors_of, write_certificates
from tests.support.waiting import until

DEADLINE = 15.0
CROWD, HONEST = "127.0.0.66", "127.0.0.7"
HELLO = b"\x16\x03\x01"
SECRET = hash_password("secret", Cost(64, 1, 1))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("doors")
    write_certificates(folder / "etc" / "certs")
    long = {"bind": "127.0.0.1:0", "defer_accept": False, "first_byte_timeout": "1m",
            "connect_timeout": "1m"}  # fmt: skip
    tls = {"bind": "127.0.0.1:0", "handshake_timeout": "1m", "max_handshakes": 8}
    made = start_broker(
        folder,
        files={"users.conf": f"alice:{SECRET}\nbob:{SECRET}\n"},
        auth={"chain": ["username", "anonymous"], "anonymous": "always",
              "failures": {"ban": "30s"}},
        listener={
            "tcp": {"default": {"bind": "127.0.0.1:0"},
                    "few": {**long, "max_connections_per_address": 5},
                    "shy": {**long, "max_strangers_per_address": 3},
                    "full": {**long, "max_connections": 4},
                    "rush": {**long, "accept_rate": 5},
                    "rush_twisted": {**long, "accept_rate": 5, "transport": "twisted"},
                    "twisted": {**long, "max_connections_per_address": 5, "transport": "twisted"},
                    "behind": {**long, "max_connections_per_address": 5,
                               "proxy_protocol": ["127.0.0.0/8"]}},
            "ssl": {"engine": {**tls, "max_handshakes_per_address": 4},
                    "twisted": {**tls, "transport": "twisted"}},
        },
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def ports(broker: Broker) -> dict[str, int]:
    assert broker.directory is not None
    return {name.removeprefix("tcp:"): door.port for name, door in doors_of(broker).items()}


def metric(broker: Broker, name: str) -> int:
    assert broker.directory is not None
    told = Client(str(broker.directory / "data" / "mqttd.sock")).get("/metrics")
    return int(told["counters"][name])


def dial(port: int, source: str = CROWD) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE, (source, 0))


def client(port: int, source: str = HONEST, **fields: Any) -> RawClient:
    made = RawClient(port, mq.V5, DEADLINE, dial(port, source))
    made.connect(fields.pop("client_id", ""), **fields)
    return made


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(100) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def is_refused(port: int, source: str) -> bool:
    """Whether one more is closed; on a busy machine it is, before `connect` has returned."""
    try:
        more = dial(port, source)
    except ConnectionResetError:
        return True
    with contextlib.closing(more):
        until(lambda: is_closed(more), "one more to be closed", DEADLINE)
    return True


def has_answer(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


@contextlib.contextmanager
def crowd(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(count):
            socks.append(stack.enter_context(dial(port)))
            if said:
                socks[-1].sendall(said)
        yield socks


@pytest.mark.parametrize("name", ["few", "twisted"])
def test_an_address_has_so_many_connections(
    broker: Broker, ports: dict[str, int], name: str
) -> None:
    port = ports[name]
    inside = [client(port, CROWD) for _ in range(5)]
    assert is_refused(port, CROWD), "the sixth was to be closed"
    client(port).close()
    for one in inside:
        one.ping()
    inside.pop().close()
    until(lambda: _gets_in(port, CROWD), "a place that is free again", DEADLINE)
    for one in inside:
        one.close()
    assert metric(broker, "refused_crowded") > 0
    assert broker.says("this address has max_connections_per_address")


def _gets_in(port: int, source: str) -> bool:
    try:
        client(port, source).close()
    except (AssertionError, OSError):
        return False
    return True


@pytest.mark.parametrize("name", ["rush", "rush_twisted"])
def test_who_comes_faster_than_allowed_waits_in_a_line_of_its_address(
    broker: Broker, ports: dict[str, int], name: str
) -> None:
    """Ten get in at once, then five a second: the crowd needs four seconds more."""
    waiting = metric(broker, "accepts_paused_rate")
    with crowd(ports[name], 30, mq.connect("", mq.V5)) as socks:
        client(ports[name]).close()
        answered = sum(map(has_answer, socks))
        assert answered < 20, "the crowd was there first"
        for sock in socks:
            sock.settimeout(DEADLINE)
            assert sock.recv(1) == b"\x20"  # nobody was sent away
    assert metric(broker, "accepts_paused_rate") > waiting


def test_behind_a_proxy_the_address_is_that_of_the_header(ports: dict[str, int]) -> None:
    def through(address: str) -> RawClient:
        sock = dial(ports["behind"])
        sock.sendall(f"PROXY TCP4 {address} 198.51.100.1 40000 1883\r\n".encode())
        made = RawClient(ports["behind"], mq.V5, DEADLINE, sock)
        made.send(mq.connect("", mq.V5))
        return made

    inside = [through("192.0.2.66") for _ in range(5)]
    for one in inside:
        one.expect(mq.CONNACK, reason=0)
    assert through("192.0.2.66").receive() is None
    others = [through(f"192.0.2.{n}") for n in range(7, 14)]
    for one in others:
        one.expect(mq.CONNACK, reason=0)
    for one in inside + others:
        one.close()


def test_the_oldest_silent_stranger_makes_room(broker: Broker, ports: dict[str, int]) -> None:
    port = ports["shy"]
    other = dial(port, HONEST)  # a stranger too, and silent for longest; not of that house
    with crowd(port, 3) as silent:
        inside = client(port, CROWD)
        until(lambda: _ends_one(port, silent[0]), "the oldest to make room", DEADLINE)
        assert not is_closed(silent[2]) and not is_closed(other)
        inside.ping()
        inside.close()
    other.close()
    assert metric(broker, "strangers_ended") > 0


def _ends_one(port: int, sock: socket.socket) -> bool:
    with contextlib.closing(dial(port)):
        time.sleep(0.05)  # between two tries
        return is_closed(sock)


def test_a_listener_full_of_strangers_lets_honest_clients_in(ports: dict[str, int]) -> None:
    with crowd(ports["full"], 4):
        for _ in range(2):
            client(ports["full"]).close()
    inside = [client(ports["full"]) for _ in range(4)]
    waits = dial(ports["full"])
    for one in inside:
        one.ping()  # nobody who is let in makes room
        one.close()
    waits.close()


@pytest.mark.parametrize("name", ["engine", "twisted"])
@pytest.mark.parametrize("source", [CROWD, HONEST])
def test_tls_handshakes_that_never_end_keep_nobody_out(
    broker: Broker, ports: dict[str, int], name: str, source: str
) -> None:
    assert broker.directory is not None
    context = client_context(broker.directory / "etc" / "certs")
    port = ports[f"ssl:{name}"]
    whole = _hello(context)
    with crowd(port, 30, HELLO), crowd(port, 30, whole):
        for _ in range(3):
            raw = dial(port, source)
            sock = context.wrap_socket(raw, server_hostname="localhost")
            made = RawClient(port, mq.V5, DEADLINE, sock)
            made.connect("honest")
            made.close()


def _hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def log_in(port: int, user: str, password: bytes, source: str, client_id: str = "c") -> int:
    made = RawClient(port, mq.V5, DEADLINE, dial(port, source))
    made.send(mq.connect(client_id, mq.V5, username=user, password=password))
    reason = made.expect(mq.CONNACK).reason
    made.close()
    return int(reason)


def test_who_guesses_is_answered_late_then_refused_and_locks_nobody_out(
    broker: Broker, ports: dict[str, int]
) -> None:
    port = ports["default"]
    assert log_in(port, "alice", b"secret", HONEST) == 0
    codes = [log_in(port, "alice", b"guess %d" % n, CROWD) for n in range(5)]
    assert codes == [0x86] * 5
    # Many at a time, who do not wait for their answers.
    many = []
    for n in range(60):
        one = RawClient(port, mq.V5, DEADLINE, dial(port, CROWD))
        one.send(mq.connect(f"c{n}", mq.V5, username="alice", password=b"guess %d" % n))
        many.append(one)
    codes = [one.expect(mq.CONNACK).reason for one in many]
    assert set(codes) <= {0x86, 0x89, 0x8A} and 0x8A in codes
    assert log_in(port, "alice", b"secret", CROWD, "new") == 0x8A
    assert log_in(port, "alice", b"secret", HONEST) == 0
    assert log_in(port, "alice", b"secret", "127.0.0.8") == 0
    assert log_in(port, "bob", b"secret", CROWD) == 0  # another user of that house
    for one in many:
        one.close()
    assert broker.says("log-ins barred")
    assert metric(broker, "auth_failures_delayed") > 0
    assert metric(broker, "auth_failures_refused") > 0
    assert metric(broker, "auth_username_cached") > 0
