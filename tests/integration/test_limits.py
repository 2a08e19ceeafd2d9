"""Limits seen from outside: each is told to the client, counted, logged, and hurts nobody else."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl import Client
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import doors_of

DEADLINE = 30.0  # seconds; what is waited for takes a part of one
TRANSPORTS = ("engine", "twisted")

#: Listener name -> what is limited there; each exists on both transports.
LIMITED: dict[str, dict[str, Any]] = {
    "few": {"max_connections": 3},
    "closed": {"access": ["allow 10.0.0.0/8", "deny all"]},
    "silent": {"first_byte_timeout": "500ms"},
    "small": {"max_packet_size": "2KiB"},
    "messages": {"messages_rate": 50},
    "sending": {"send_rate": "100KB"},
    "storm": {"accept_rate": 5},
    "flapping": {"flapping_disconnects": 3, "flapping_ban": "1h"},
    "proxied": {
        "access": ["deny 192.0.2.7", "allow all"],
        "proxy_protocol": ["127.0.0.0/8"],
    },
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    tcp: dict[str, Any] = {"default": {"bind": "127.0.0.1:0"}}
    for name, settings in LIMITED.items():
        for transport in TRANSPORTS:
            tcp[f"{name}-{transport}"] = {
                "bind": "127.0.0.1:0",
                "transport": transport,
                **settings,
            }
    started = start_broker(
        tmp_path_factory.mktemp("limits"),
        listener={"tcp": tcp},
        auth={"chain": ["anonymous"], "anonymous": "always"},
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


def to(broker: Broker, name: str, version: int = mq.V5) -> RawClient:
    port = doors_of(broker)[f"tcp:{name}"].port
    return RawClient(port, version, deadline=DEADLINE)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_beyond_the_most_wait_until_there_is_room(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    name = f"few-{transport}"
    inside = [to(broker, name).connect(f"few{n}") for n in range(3)]
    waiting = to(broker, name)
    waiting.send(mq.connect("late", mq.V5))
    wait_until(lambda: metric("accepts_paused_full") == 1)
    inside[0].ping()
    with pytest.raises(TimeoutError):
        waiting.receive(0.3)
    inside[0].disconnect()
    waiting.expect(mq.CONNACK, reason=0)
    assert metric("connections_refused") == 0
    assert f"listener='tcp:{name}' reason='there are max_connections'" in broker.output
    for client in (*inside, waiting):
        client.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_address_that_may_not_connect_is_turned_away(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    with contextlib.suppress(ConnectionResetError):  # it may be reset before we look at it
        client = to(broker, f"closed-{transport}")
        client.send(mq.connect("c", mq.V5))
        assert client.receive() is None
    assert metric("refused_address") == 1
    wait_until(lambda: f"listener='tcp:closed-{transport}' peer='127.0.0.1:" in broker.output)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_behind_a_proxy_the_address_it_names_counts(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    for host, reason in (("192.0.2.7", 0x87), ("192.0.2.8", 0)):
        client = to(broker, f"proxied-{transport}")
        client.send(b"PROXY TCP4 %s 192.0.2.1 1000 1883\r\n" % host.encode())
        client.connect("c", reason=reason)
        client.drop()
    assert metric("refused_address") == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_connection_without_a_byte_is_closed_early(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    silent = to(broker, f"silent-{transport}")
    begun = to(broker, f"silent-{transport}")
    begun.send(mq.connect("begun", mq.V5)[:1])
    assert silent.receive() is None
    assert metric("first_byte_timeouts") == 1
    wait_until(lambda: "reason='not a byte in time'" in broker.output)
    begun.send(mq.connect("begun", mq.V5)[1:])
    begun.expect(mq.CONNACK, reason=0)
    begun.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_packet_larger_than_the_listener_takes_ends_the_connection(
    broker: Broker, transport: str
) -> None:
    client = to(broker, f"small-{transport}").connect("small")
    assert client.connack is not None
    assert client.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 2048
    client.send(mq.publish("t", b"x" * 3000, version=mq.V5))
    client.expect(mq.DISCONNECT, reason=0x95)
    client.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_above_the_rate_wait_and_all_arrive(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    watcher = to(broker, "default").connect("watcher")
    watcher.subscribe(f"rate/{transport}")
    sender = to(broker, f"messages-{transport}").connect("sender", keep_alive=1)
    begin = time.monotonic()
    sender.send(
        *(mq.publish(f"rate/{transport}", b"%d" % n, 1, n + 1, version=mq.V5) for n in range(150))
    )
    for n in range(150):
        watcher.message(payload=b"%d" % n)
    assert time.monotonic() - begin > 1.5  # 50 at once, then 50 a second
    for _ in range(150):
        sender.expect(mq.PUBACK)
    sender.ping()
    assert metric("rate_limited") >= 1
    assert f"rate limited: listener='tcp:messages-{transport}'" in broker.output
    sender.drop()
    watcher.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_output_is_written_at_its_rate_and_all_arrives(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    watcher = to(broker, f"sending-{transport}").connect("watcher")
    watcher.subscribe(f"out/{transport}", qos=1)
    sender = to(broker, "default").connect("sender")
    begin = time.monotonic()
    for n in range(30):
        sender.publish(f"out/{transport}", b"%02d" % n + b"x" * 10_000, 1)
    for n in range(30):
        assert watcher.message().payload.startswith(b"%02d" % n)
    assert time.monotonic() - begin > 1.5  # 100 kB at once, then 100 kB/s
    assert metric("rate_limited_out") >= 1
    sender.drop()
    watcher.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_above_the_accept_rate_wait_and_all_get_in(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    begin = time.monotonic()
    clients = [to(broker, f"storm-{transport}") for _ in range(18)]
    for n, client in enumerate(clients):
        client.connect(f"storm{n}")
    if transport == "engine":  # Twisted accepts a whole batch, and pays for it later
        assert time.monotonic() - begin > 1.0  # 10 at once, then 5 a second
    assert metric("accepts_paused_rate") >= 1
    for client in clients:
        client.drop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_that_comes_and_goes_is_banned_until_the_ban_is_lifted(
    broker: Broker, metric: Callable[[str], int], transport: str
) -> None:
    name, client_id = f"flapping-{transport}", f"moth-{transport}"
    for _ in range(3):
        to(broker, name).connect(client_id).disconnect()
    wait_until(lambda: metric("clients_flapping") == 1)
    to(broker, name).connect(client_id, reason=0x8A).drop()
    to(broker, name, mq.V311).connect(client_id, reason=5).drop()
    to(broker, name).connect("other").drop()
    control = control_of(broker)
    bans = {ban["value"]: ban for ban in control.get("/bans")["bans"]}
    assert bans[client_id]["reason"].startswith("flapping: 3 disconnects")
    control.request("DELETE", f"/bans?kind=client_id&value={client_id}")
    to(broker, name).connect(client_id).drop()


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
        wait_until(lambda: "'refusing': True" in broker.output or "refusing=True" in broker.output)
        RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("new", reason=0x89).drop()
        RawClient(broker.port, mq.V311, deadline=DEADLINE).connect("new", reason=3).drop()
        there.ping()
        flag.unlink()
        wait_until(lambda: "refusing=False" in broker.output)
        RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("new").drop()
        assert control_of(broker).get("/metrics")["counters"]["refused_overload"] == 2
    finally:
        broker.stop()


def test_ports_of_one_broker_do_not_share_what_is_limited(broker: Broker) -> None:
    """What a full listener keeps waiting gets in through another door."""
    inside = [to(broker, "few-engine").connect(f"full{n}") for n in range(3)]
    with socket.create_connection(("127.0.0.1", doors_of(broker)["tcp:few-engine"].port)):
        to(broker, "default").connect("elsewhere").drop()
    for client in inside:
        client.drop()
