"""Peers that do harm by doing nothing: half-open, too slow, never reading, and too many of them.

The long forms, with rates beside those without a fault, are in `benchmarks/faults.py`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support import waiting
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import (
    KINDS,
    TRANSPORTS,
    client_context,
    dial,
    doors_of,
    start_with_doors,
    write_certificates,
)

DEADLINE = 60.0  # seconds; what is waited for takes a part of one
until = partial(waiting.until, deadline=DEADLINE)
KIB = 1024
WATERMARK = 256 * KIB

OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
#: Connections of the test with many: 10,000 where this process may have so many.
MANY = 10_000 if OPEN_FILES == resource.RLIM_INFINITY else min(10_000, OPEN_FILES - 500)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(
        tmp_path,
        listener={
            "tcp": {
                "default": {
                    "bind": "127.0.0.1:0",
                    "first_byte_timeout": 0,
                    "connect_timeout": "5s",
                    "accept_rate": 0,
                    "max_strangers_per_address": 0,
                },
                "twisted": {"bind": "127.0.0.1:0", "transport": "twisted"},
            }
        },
        auth={"chain": ["anonymous"]},
        output={"high_watermark": WATERMARK, "low_watermark": "64KiB", "send_timeout": "3s"},
    )
    yield started
    started.stop()


def counters(broker: Broker) -> dict[str, int]:
    assert broker.directory is not None
    control = Client(str(broker.directory / "data" / "mqttd.sock"))
    found: dict[str, int] = control.get("/metrics")["counters"]
    return found


def test_ten_thousand_half_open_connections_cost_little_and_expire(broker: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    there = RawClient(broker.port, deadline=DEADLINE).connect("there")
    before = broker.resident_kib()
    sockets: list[socket.socket] = []
    try:
        for n in range(MANY):
            sock = socket.create_connection(("127.0.0.1", broker.port), timeout=DEADLINE)
            if n % 2:
                sock.sendall(mq.connect("half", mq.V5)[:7])
            sockets.append(sock)
        until(lambda: counters(broker)["connections_accepted"] > MANY)
        each = (broker.resident_kib() - before) * KIB / MANY
        there.ping()
        print(f"{MANY} half-open connections: {each:.0f} bytes each")
        assert each < 4 * KIB
        until(lambda: counters(broker)["connect_timeouts"] == MANY)
        assert all(sock.recv(1) == b"" for sock in sockets[:: MANY // 10])
        RawClient(broker.port, deadline=DEADLINE).connect("new").drop()
    finally:
        for sock in sockets:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_handshakes_that_fail_leave_no_memory_behind(tmp_path: Path, transport: str) -> None:
    """A TLS connection takes 30 to 50 KiB, and gives them back although it had grown old."""
    write_certificates(tmp_path / "etc" / "certs")
    door = {"bind": "127.0.0.1:0", "transport": transport, "handshake_timeout": "300ms"}
    broker = start_broker(tmp_path, listener={"ssl": {"door": {**door, "accept_rate": 0}}})
    try:
        port = doors_of(broker)["ssl:door"].port
        sizes = []
        for _ in range(4):
            sockets = [socket.create_connection(("127.0.0.1", port), DEADLINE) for _ in range(500)]
            for sock in sockets:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
            for sock in sockets:
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(1) == b""
                sock.close()
            sizes.append(broker.resident_kib())
        print(f"{transport}: after each 500 of them {sizes} KiB")
        assert sizes[-1] - sizes[-3] < 1000 * 20, sizes
    finally:
        broker.stop()


def silent_and_stalled(tmp_path: Path, transport: str) -> Broker:
    """A broker with a TLS listener that shakes hands with two at a time, and waits for long."""
    write_certificates(tmp_path / "etc" / "certs")
    door: dict[str, Any] = {"bind": "127.0.0.1:0", "transport": transport}
    door |= {"handshake_timeout": "60s", "max_handshakes": 2}
    # Not left to the kernel until they speak: the broker is to see those that never do.
    door |= {"accept_rate": 0, "defer_accept": False}
    return start_broker(tmp_path, listener={"ssl": {"door": door}})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_silent_tls_connections_keep_nobody_out(tmp_path: Path, transport: str) -> None:
    broker = silent_and_stalled(tmp_path, transport)
    sockets: list[socket.socket] = []
    try:
        door = doors_of(broker)["ssl:door"]
        for _ in range(50):
            sockets.append(socket.create_connection(("127.0.0.1", door.port), DEADLINE))
        until(lambda: counters(broker)["connections_accepted"] >= 50)
        for number in range(5):
            sock = dial(door, tmp_path / "etc" / "certs")
            # All five in half of what the silent ones have.
            RawClient(0, mq.V5, sock=sock, deadline=6).connect(f"real{number}").drop()
    finally:
        for each in sockets:
            each.close()
        broker.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_more_handshakes_are_under_way_than_allowed(tmp_path: Path, transport: str) -> None:
    """Twenty hellos at once that go no further: two are answered, the others as those go."""
    broker = silent_and_stalled(tmp_path, transport)
    stalled: set[socket.socket] = set()
    try:
        door = doors_of(broker)["ssl:door"]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(tmp_path / "etc" / "certs")
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        for _ in range(20):
            stalled.add(socket.create_connection(("127.0.0.1", door.port), DEADLINE))
        for sock in stalled:
            sock.sendall(hello)
        until(lambda: counters(broker)["connections_accepted"] >= 20)
        while len(stalled) > 2:
            until(lambda: len(select.select(stalled, [], [], 0)[0]) == 2)
            time.sleep(0.1)  # for one that must not come
            answered = select.select(stalled, [], [], 0)[0]
            assert len(answered) == 2
            for sock in answered:
                assert sock.recv(1) == b"\x16"
                sock.close()
                stalled.remove(sock)
        for sock in stalled:
            sock.close()
        RawClient(0, mq.V5, sock=dial(door, tmp_path / "etc" / "certs"), deadline=DEADLINE).connect(
            "real"
        ).drop()
    finally:
        for sock in stalled:
            sock.close()
        broker.stop()


def test_a_connect_that_drips_is_closed_in_time_and_one_that_is_too_large_at_once(
    broker: Broker,
) -> None:
    begin = time.monotonic()
    large = RawClient(broker.port, mq.V5, deadline=4)
    large.send(b"\x10\xf0\xa2\x04")  # 70,000 bytes
    large.expect_close()
    drips = [RawClient(broker.port, mq.V5, deadline=DEADLINE) for _ in range(20)]
    hello = mq.connect("x" * 200, mq.V5)
    sent = 0
    while not all(drip.closed for drip in drips):
        assert time.monotonic() - begin < DEADLINE, "a drip keeps its connection"
        for drip in drips:
            drip.send(hello[sent : sent + 1] if sent < 150 else b"")
            try:
                assert drip.receive(0.005) is None
                drip.closed = True
            except TimeoutError:
                pass
        sent += 1
    assert counters(broker)["connect_timeouts"] == 20


@pytest.mark.parametrize("transport", ["default", "twisted"])
def test_subscribers_that_read_nothing_cost_the_others_nothing(
    broker: Broker, transport: str
) -> None:
    """Stalled ones lose QoS 0 above the watermark, keep what is theirs, and are closed."""
    port = doors_of(broker)[f"tcp:{transport}"].port
    stalled = [stall(port, f"stalled{n}") for n in range(4)]
    keeping = stall(port, "keeping", qos=1)
    others = [RawClient(port, mq.V5, deadline=DEADLINE).connect(f"r{n}") for n in range(10)]
    for other in others:
        other.subscribe("news")
    sender = RawClient(port, mq.V5, deadline=DEADLINE).connect("sender")
    before = broker.resident_kib()
    count, size = 160, 64 * KIB
    for n in range(count):
        payload = b"%06d" % n + b"x" * size
        sender.publish("news", payload, 1)
        for other in others:
            assert other.message().payload[:6] == b"%06d" % n
    grown = (broker.resident_kib() - before) * KIB
    found = counters(broker)
    assert found["dropped_slow_consumer"] > 0
    # The stalled by their watermark, the QoS 1 one by its window and its queue (8 MiB) too; a
    # Twisted transport holds what it was given before it said so.
    assert grown < 5 * (WATERMARK + 2 * size) + 24 * 1024 * KIB, grown
    until(lambda: counters(broker)["send_timeouts"] >= 5)
    until(lambda: broker.output.count("reads nothing for 3 s") == 5)
    assert broker.says("Quota exceeded")
    assert counters(broker)["dropped_slow_consumer"] == found["dropped_slow_consumer"]
    for sock in stalled:
        sock.close()
    keeping.close()
    back = RawClient(port, mq.V5, deadline=DEADLINE).connect(
        "keeping", clean=False, props=[(mq.SESSION_EXPIRY, 60)]
    )
    assert back.resumed
    assert back.message(qos=1).payload[:6] < b"%06d" % count
    sender.ping()


def stall(port: int, client_id: str, qos: int = 0) -> socket.socket:
    """A subscriber that reads its SUBACK and nothing more, with little room in the kernel."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    client = RawClient(port, mq.V5, deadline=DEADLINE, sock=sock)
    client.connect(client_id, clean=False, props=[(mq.SESSION_EXPIRY, 60)])
    client.subscribe("news", qos=qos)
    return sock


def test_a_stalled_subscriber_costs_its_watermark_at_every_door(tmp_path: Path) -> None:
    """Never more than the watermark and what was being written waits for it."""
    broker = start_with_doors(
        tmp_path,
        auth={"chain": ["anonymous"], "anonymous": "always"},
        output={"high_watermark": WATERMARK, "low_watermark": "64KiB", "send_timeout": "3s"},
        mqueue={"max_bytes": "1MiB"},
    )
    try:
        certificates = tmp_path / "etc" / "certs"
        doors = {name: door for name, door in doors_of(broker).items() if name != "tcp:default"}
        stalled = []
        for name, door in doors.items():
            for qos in (0, 1):
                sock = dial(door, certificates, room=4096)
                client = RawClient(0, mq.V5, deadline=DEADLINE, sock=sock)
                client.connect(f"{name}-{qos}", clean=False, props=[(mq.SESSION_EXPIRY, 60)])
                client.subscribe("news", qos=qos)
                stalled.append(sock)
        sender = RawClient(broker.port, mq.V5, deadline=DEADLINE).connect("sender")
        control = Client(str(tmp_path / "data" / "mqttd.sock"))
        before = broker.resident_kib()
        size, most = 64 * KIB, dict.fromkeys(doors, 0)
        for n in range(160):
            sender.publish("news", b"x" * size, 1)
            if n % 20 == 19:
                for client_info in control.pages("/clients", "clients"):
                    name = client_info["client_id"].rpartition("-")[0]
                    if name in most:
                        most[name] = max(most[name], client_info["unsent_bytes"])
                        assert client_info["mqueue_bytes"] <= KIB * KIB
        grown = (broker.resident_kib() - before) * KIB
        print(f"{len(stalled)} stalled clients: {grown / len(stalled) / KIB:.0f} KiB each; {most}")
        assert max(most.values()) <= WATERMARK + 2 * size, most
        assert max(most[f"{kind}:engine"] for kind in KINDS) > 0
        # Half of them may keep 1 MiB in their queues; a Twisted transport its own buffers too.
        each = WATERMARK + 2 * size
        assert grown < len(stalled) * (2 * each + KIB * KIB // 2) + 8 * KIB * KIB, grown
        until(lambda: counters(broker)["send_timeouts"] == len(stalled))
        for sock in stalled:
            sock.close()
        sender.ping()
    finally:
        broker.stop()


@pytest.mark.parametrize("transport", ["default", "twisted"])
def test_a_subscriber_that_reads_slowly_is_kept(broker: Broker, transport: str) -> None:
    port = doors_of(broker)[f"tcp:{transport}"].port
    slow = stall(port, "slow")
    sender = RawClient(port, mq.V5, deadline=DEADLINE).connect("sender")
    for _ in range(120):
        sender.publish("news", b"x" * 64 * KIB)
    until = time.monotonic() + 7  # more than twice the time to send
    slow.settimeout(DEADLINE)
    while time.monotonic() < until:
        assert slow.recv(8 * KIB)
        time.sleep(0.1)
    assert counters(broker)["send_timeouts"] == 0
    slow.close()


def test_without_open_files_accepting_pauses_and_goes_on(broker: Broker) -> None:
    assert broker.process is not None
    pid = broker.process.pid
    there = RawClient(broker.port, deadline=DEADLINE).connect("there")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, limits[1]))
    try:
        clients = [RawClient(broker.port, deadline=DEADLINE) for _ in range(30)]
        for n, client in enumerate(clients):
            client.send(mq.connect(f"c{n}"))
        until(lambda: "the process has no open file left" in broker.output)
        cpu, begin = broker.cpu_seconds(), time.monotonic()
        there.ping()
        waiting = answered(clients)
        assert 15 <= len(waiting) <= 25
        assert (broker.cpu_seconds() - cpu) / (time.monotonic() - begin) < 0.5, "it spins"
        for client in clients:
            if client not in waiting:
                client.drop()
        while waiting:
            for client in waiting[:8]:
                client.expect(mq.CONNACK, reason=0)
                client.drop()
            del waiting[:8]
        RawClient(broker.port, deadline=DEADLINE).connect("new").drop()
        until(lambda: "accept resumed" in broker.output)
        there.ping()
        assert counters(broker)["accepts_paused_files"] >= 1
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def answered(clients: list[RawClient], patience: float = 2.0) -> list[RawClient]:
    """Take the CONNACKs that come within a while; returns who got none."""
    poll = selectors.DefaultSelector()
    for client in clients:
        poll.register(client.sock, selectors.EVENT_READ, client)
    waiting = list(clients)
    until = time.monotonic() + patience
    while (left := until - time.monotonic()) > 0:
        for key, _ in poll.select(left):
            key.data.expect(mq.CONNACK, reason=0)
            poll.unregister(key.fileobj)
            waiting.remove(key.data)
    poll.close()
    return waiting
