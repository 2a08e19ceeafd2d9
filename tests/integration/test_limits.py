"""Limits seen from outside: each is told to the client, counted, logged, and hurts nobody else."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support import waiting
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import KINDS, TRANSPORTS, dial, doors_of, write_certificates

DEADLINE = 30.0  # seconds; what is waited for takes a part of one
until = partial(waiting.until, deadline=DEADLINE)

Kinds = tuple[str, ...]
PLAIN: Kinds = ("tcp", "unix")
SOCKETS: Kinds = ("tcp", "ssl", "ws", "wss")

#: Listener name -> what is limited there, and the kinds it exists in, each on both transports.
LIMITED: dict[str, tuple[dict[str, Any], Kinds]] = {
    "few": ({"max_connections": 3}, KINDS),
    "closed": ({"access": ["allow 10.0.0.0/8", "deny all"]}, SOCKETS),
    "silent": ({"first_byte_timeout": "500ms"}, PLAIN),
    "hasty": ({"connect_timeout": "500ms"}, KINDS),
    "small": ({"max_packet_size": "2KiB"}, KINDS),
    "messages": ({"messages_rate": 50}, KINDS),
    "sending": ({"send_rate": "100KB"}, KINDS),
    "storm": ({"accept_rate": 5}, ("tcp",)),
    "flapping": ({"flapping_disconnects": 3, "flapping_ban": "1h"}, ("tcp", "wss")),
    "proxied": (
        {"access": ["deny 192.0.2.7", "allow all"], "proxy_protocol": ["127.0.0.0/8"]},
        ("tcp",),
    ),
}


def at(name: str) -> list[str]:
    """The listeners of this name: `KIND:NAME-TRANSPORT`."""
    return [f"{kind}:{name}-{transport}" for kind in LIMITED[name][1] for transport in TRANSPORTS]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("limits")
    write_certificates(folder / "etc" / "certs")
    listener: dict[str, dict[str, Any]] = {"tcp": {"default": {"bind": "127.0.0.1:0"}}}
    for name, (settings, _) in LIMITED.items():
        for door in at(name):
            kind, _, full = door.partition(":")
            made = {**settings, "transport": full.rpartition("-")[2]}
            if kind == "unix":
                made["path"] = str(folder / full)
            else:
                made["bind"] = "127.0.0.1:0"
            if kind in ("ssl", "wss") and name == "hasty":
                made["handshake_timeout"] = "500ms"
            listener.setdefault(kind, {})[full] = made
    started = start_broker(
        folder, listener=listener, auth={"chain": ["anonymous"], "anonymous": "always"}
    )
    yield started
    started.stop()


@pytest.fixture
def metric(broker: Broker) -> Callable[[str], int]:
    """How much a metric has grown since the beginning of the test."""
    control = control_of(broker)
    before = control.get("/metrics")["counters"]
    return lambda name: int(control.get("/metrics")["counters"][name] - before[name])


def control_of(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data" / "mqttd.sock"))


def to(broker: Broker, door: str, version: int = mq.V5) -> RawClient:
    assert broker.directory is not None
    sock = dial(doors_of(broker)[door], broker.directory / "etc" / "certs")
    return RawClient(0, version, deadline=DEADLINE, sock=sock)


def raw(broker: Broker, door: str) -> socket.socket:
    """A connection through this door that has said nothing."""
    where = doors_of(broker)[door]
    if where.kind != "unix":
        return socket.create_connection((where.host, where.port), timeout=DEADLINE)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE)
    sock.connect(where.host)
    return sock


def ended(sock: Any) -> bool:
    """Whether the broker ends this connection, sooner or later."""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError, ssl.SSLError):
        while sock.recv(1000):
            pass
    return True


@pytest.mark.parametrize("door", at("few"))
def test_connections_beyond_the_most_wait_until_there_is_room(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    inside = [to(broker, door).connect(f"few{n}") for n in range(3)]
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(lambda: to(broker, door).connect("late"))
        until(lambda: metric("accepts_paused_full") == 1)
        inside[0].ping()
        described = doors_listed(broker)[door]
        assert (described["connections"], described["max_connections"]) == (3, 3)
        assert not waiting.done()
        inside[0].disconnect()
        inside.append(waiting.result(DEADLINE))
    assert metric("connections_refused") == 0
    assert broker.says(f'listener={door} reason="there are max_connections"')
    for client in inside:
        client.drop()
    until(lambda: doors_listed(broker)[door]["connections"] == 0)


def doors_listed(broker: Broker) -> dict[str, Any]:
    return {entry["id"]: entry for entry in control_of(broker).get("/listeners")["listeners"]}


@pytest.mark.parametrize("door", at("closed"))
def test_an_address_that_may_not_connect_is_turned_away(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    with contextlib.suppress(ConnectionResetError):  # it may be reset before it is there
        assert ended(raw(broker, door))
    until(lambda: metric("refused_address") == 1)
    until(lambda: f"listener={door} peer=127.0.0.1:" in broker.output)


@pytest.mark.parametrize("door", at("proxied"))
def test_behind_a_proxy_the_address_it_names_counts(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    for host, reason in (("192.0.2.7", 0x87), ("192.0.2.8", 0)):
        client = to(broker, door)
        client.send(b"PROXY TCP4 %s 192.0.2.1 1000 1883\r\n" % host.encode())
        client.connect("c", reason=reason)
        client.drop()
    assert metric("refused_address") == 1


@pytest.mark.parametrize("door", at("silent"))
def test_a_connection_without_a_byte_is_closed_early(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    silent = to(broker, door)
    begun = to(broker, door)
    begun.send(mq.connect("begun", mq.V5)[:1])
    assert silent.receive() is None
    assert metric("first_byte_timeouts") == 1
    until(lambda: 'reason="not a byte in time"' in broker.output)
    begun.send(mq.connect("begun", mq.V5)[1:])
    begun.expect(mq.CONNACK, reason=0)
    begun.drop()


def test_who_stops_half_way_to_connect_is_ended_at_every_door(broker: Broker) -> None:
    """Silent, in the middle of the TLS hello, of the HTTP request, of CONNECT: all are ended."""
    stuck: list[Any] = []
    for door in at("hasty"):
        kind = door.partition(":")[0]
        stuck.append(raw(broker, door))
        if kind in ("ssl", "wss"):
            stuck.append(raw(broker, door))
            stuck[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
        if kind == "ws":
            stuck.append(raw(broker, door))
            stuck[-1].sendall(b"GET /mqtt HTTP/1.1\r\nHost: loc")
        begun = to(broker, door)
        begun.send(mq.connect("half", mq.V5)[:9])
        stuck.append(begun.sock)
    assert all(ended(sock) for sock in stuck)
    for sock in stuck:
        sock.close()
    for door in at("hasty"):
        assert doors_listed(broker)[door]["connections"] == 0
        to(broker, door).connect("in time").drop()


@pytest.mark.parametrize("door", at("small"))
def test_a_packet_larger_than_the_listener_takes_ends_the_connection(
    broker: Broker, door: str
) -> None:
    client = to(broker, door).connect("small")
    assert client.connack is not None
    assert client.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 2048
    client.send(mq.publish("t", b"x" * 3000, version=mq.V5))
    client.expect(mq.DISCONNECT, reason=0x95)
    client.drop()


@pytest.mark.parametrize("door", at("small"))
def test_before_connect_a_packet_has_64_kib_at_most(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    client = to(broker, door)
    client.send(b"\x10\x81\x80\x04")  # 65,537 bytes
    client.expect_close()
    assert metric("malformed_packets") == 1
    client.close()


def test_messages_above_the_rate_wait_and_all_arrive(
    broker: Broker, metric: Callable[[str], int]
) -> None:
    """At every door at once: each has its own rate, in order, without a loss."""
    watcher = to(broker, "tcp:default").connect("watcher")
    watcher.subscribe("rate/#")
    senders = {
        door: to(broker, door).connect(f"sender-{door}", keep_alive=1) for door in at("messages")
    }
    begin = time.monotonic()
    for door, sender in senders.items():
        sender.send(
            *(mq.publish(f"rate/{door}", b"%d" % n, 1, n + 1, version=mq.V5) for n in range(150))
        )
    got: dict[str, list[int]] = {door: [] for door in senders}
    last = dict.fromkeys(senders, 0.0)
    for _ in range(150 * len(senders)):
        message = watcher.message()
        door = message.topic.partition("/")[2]
        got[door].append(int(message.payload))
        last[door] = time.monotonic() - begin
    assert got == {door: list(range(150)) for door in senders}
    assert min(last.values()) > 1.5, last  # 50 at once, then 50 a second
    for sender in senders.values():
        for _ in range(150):
            sender.expect(mq.PUBACK)
        sender.ping()
        sender.drop()
    assert metric("rate_limited") >= len(senders)
    for door in senders:
        assert broker.says(f"rate limited: listener={door}")
    watcher.drop()


def test_output_is_written_at_its_rate_and_all_arrives(
    broker: Broker, metric: Callable[[str], int]
) -> None:
    """At every door at once."""
    watchers = {door: to(broker, door).connect(f"watcher-{door}") for door in at("sending")}
    for watcher in watchers.values():
        watcher.subscribe("out", qos=1)
    sender = to(broker, "tcp:default").connect("sender")
    begin = time.monotonic()
    for n in range(30):
        sender.publish("out", b"%02d" % n + b"x" * 10_000, 1)
    for door, watcher in watchers.items():
        for n in range(30):
            assert watcher.message().payload.startswith(b"%02d" % n)
        assert time.monotonic() - begin > 1.5, door  # 100 kB at once, then 100 kB/s
    assert metric("rate_limited_out") >= len(watchers)
    for client in (sender, *watchers.values()):
        client.drop()


@pytest.mark.parametrize("door", at("storm"))
def test_connections_above_the_accept_rate_wait_and_all_get_in(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    begin = time.monotonic()
    clients = [to(broker, door) for _ in range(18)]
    for n, client in enumerate(clients):
        client.connect(f"storm{n}")
    if door.endswith("engine"):  # Twisted accepts a whole batch, and pays for it later
        assert time.monotonic() - begin > 1.0  # 10 at once, then 5 a second
    assert metric("accepts_paused_rate") >= 1
    for client in clients:
        client.drop()


@pytest.mark.parametrize("door", at("flapping"))
def test_a_client_that_comes_and_goes_is_banned_until_the_ban_is_lifted(
    broker: Broker, metric: Callable[[str], int], door: str
) -> None:
    client_id = f"moth-{door}"
    for _ in range(3):
        to(broker, door).connect(client_id).disconnect()
    until(lambda: metric("clients_flapping") == 1)
    to(broker, door).connect(client_id, reason=0x8A).drop()
    to(broker, door, mq.V311).connect(client_id, reason=5).drop()
    to(broker, door).connect(f"other-{door}").drop()
    control = control_of(broker)
    bans = {ban["value"]: ban for ban in control.get("/bans")["bans"] if ban["kind"] == "client"}
    value = json.dumps([client_id, None, "127.0.0.1"])  # nobody else's of this client id
    assert bans[value]["reason"].startswith("flapping: 3 disconnects")
    control.request("DELETE", f"/bans?kind=client&value={quote(value)}")
    to(broker, door).connect(client_id).drop()


# -- an event loop that is late ------------------------------------------------------------------

SLEEPY = """
import os, time
from twisted.internet import task

def busy():
    if os.path.exists({flag!r}):
        time.sleep(0.5)

task.LoopingCall(busy).start(0.01)
"""


def test_new_clients_are_refused_while_the_event_loop_is_late(tmp_path: Path) -> None:
    flag = tmp_path / "busy"
    broker = start_broker(tmp_path, program=SLEEPY.format(flag=str(flag)), overload={"lag": "50ms"})
    try:
        there = RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("there")
        flag.touch()
        until(lambda: "refusing=true" in broker.output)
        RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("new", reason=0x89).drop()
        RawClient(broker.port, mq.V311, deadline=DEADLINE).connect("new", reason=3).drop()
        there.ping()
        flag.unlink()
        until(lambda: "refusing=false" in broker.output)
        RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("new").drop()
        assert control_of(broker).get("/metrics")["counters"]["refused_overload"] == 2
    finally:
        broker.stop()


def test_ports_of_one_broker_do_not_share_what_is_limited(broker: Broker) -> None:
    """What a full listener keeps waiting gets in through another door."""
    inside = [to(broker, "tcp:few-engine").connect(f"full{n}") for n in range(3)]
    with socket.create_connection(("127.0.0.1", doors_of(broker)["tcp:few-engine"].port)):
        to(broker, "tcp:default").connect("elsewhere").drop()
    for client in inside:
        client.drop()
