"""When the engine rests between turns so that the kernel gathers what comes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from mqttd.transports.engine import Engine
from tests.support import packets as mq
from tests.support.memory import MemoryBroker
from tests.support.waiting import Patience

MESSAGE = mq.publish("t", b"x")
READS = 64  # after so many the engine decides anew


class Site:
    """Ten clients of an engine, the first of which subscribes to what the others publish."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        self.rests: list[float] = []
        #: Bytes that the subscriber is still to get.
        self.sent = 0
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now * 1_000_000)
        monkeypatch.setattr(time, "sleep", self.rests.append)
        self.engine = Engine(MemoryBroker().broker)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        address = listening.getsockname()
        self.engine.listen("tcp:door", listening, 0)
        self.clients = [socket.create_connection(address, timeout=10) for _ in range(10)]
        for n, client in enumerate(self.clients):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(mq.connect(f"c{n}"))
        self.clients[0].sendall(mq.subscribe([("t", 0)]))
        self.pass_time(1_000)
        for client in self.clients:
            assert client.recv(4)[:1] == b"\x20"
        assert self.clients[0].recv(5)[:1] == b"\x90"
        self.rests.clear()

    def pass_time(self, milliseconds: int) -> None:
        """Turns long after all others: what was counted before is settled, and nothing rests."""
        self.now += milliseconds
        for _ in range(3):
            self.engine.doRead()

    def turns(self, packets: int, count: int = 3 * READS // 9, every: int = 1) -> None:
        """In each turn `packets` of every publisher come with one read."""
        for _ in range(count):
            for client in self.clients[1:]:
                client.sendall(MESSAGE * packets)
                self.sent += len(MESSAGE) * packets
            self.now += every
            self.engine.doRead()

    def received(self) -> bytes:
        """All that was sent, and what came beyond it: a busy kernel may take its time."""
        subscriber = self.clients[0]
        subscriber.settimeout(0.05)
        data = b""
        patience = Patience(30.0)
        while len(data) < self.sent and patience.left():
            self.engine.doRead()
            with contextlib.suppress(TimeoutError):
                data += subscriber.recv(1 << 16)
        subscriber.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            data += subscriber.recv(1 << 16)
        self.sent = 0
        return data

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.engine.doRead()
        self.engine.close_all()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(monkeypatch)
    yield made
    made.close()


def test_it_rests_while_few_packets_come_with_each_read(site: Site) -> None:
    site.turns(2)
    assert site.rests
    assert max(site.rests) < 0.001
    count = len(site.rests)
    site.turns(3)
    assert len(site.rests) > count + 10


def test_it_counts_its_rests_which_are_as_long_as_configured(site: Site) -> None:
    metrics, settings = site.engine.server.metrics, site.engine.server.settings
    settings.gather = 0.0007
    before = metrics.gather_rests
    site.turns(2)
    assert metrics.gather_rests - before == len(site.rests) > 0
    assert set(site.rests) == {0.0007}


def test_it_never_rests_while_each_read_brings_one_packet(site: Site) -> None:
    site.turns(1)
    assert site.rests == []


def test_it_never_rests_while_reads_are_large_anyway(site: Site) -> None:
    site.turns(9)
    assert site.rests == []


def test_it_never_rests_while_packets_are_large(site: Site) -> None:
    """A step at 8 KiB, where a read of 64 KiB has fewer than eight of them: twice the CPU time."""
    large = mq.publish("large", bytes(9_000))
    for _ in range(3 * READS // 9):
        for client in site.clients[1:]:
            client.sendall(large * 2)
        site.now += 1
        site.engine.doRead()
    assert site.rests == []


def test_it_never_rests_while_reads_are_far_between(site: Site) -> None:
    site.turns(2, every=5)
    assert site.rests == []


def test_it_rests_after_no_turn_that_brought_nothing(site: Site) -> None:
    site.turns(2)
    count = len(site.rests)
    for _ in range(5):
        site.engine.doRead()
    assert len(site.rests) == count


@pytest.mark.parametrize(("packets", "every"), [(1, 1), (9, 1), (2, 5)])
def test_it_stops_resting_when_it_no_longer_pays(site: Site, packets: int, every: int) -> None:
    site.turns(2)
    assert site.rests
    site.turns(packets, every=every)  # long enough to notice
    count = len(site.rests)
    site.turns(packets, every=every)
    assert len(site.rests) == count


def test_with_and_without_rests_the_subscriber_gets_the_same_bytes(site: Site) -> None:
    site.turns(2)
    assert site.rests
    with_rests = site.received()
    site.engine.server.settings.gather = 0.0
    site.pass_time(1_000)
    site.rests.clear()
    site.turns(2)
    site.turns(2)
    assert site.rests == []
    assert site.received() == with_rests * 2
    assert set(with_rests.split(MESSAGE)) == {b""}
