"""A disk that fails at each call that writes: what clients are told, and that it is true.

A burst of QoS 1 and 2 for a session that is away meets the fault; whatever its answers are, the
broker takes messages again by itself, and after kill -9 what was acknowledged is there, once and in
order, and nothing that was refused. MQTTD_LONG=1 goes through all calls of a burst.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Disk
from tests.faults.test_broker_kill import Brokers
from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.waiting import until

BURST = 10
CALLS = range(60) if os.environ.get("MQTTD_LONG") == "1" else (0, 1, 4)
NOT_KEPT = 0x97


class Ledger:
    """What one publisher was told."""

    def __init__(self, publisher: RawClient) -> None:
        self.publisher = publisher
        self.number = 0
        self.kept: list[bytes] = []
        self.refused: list[bytes] = []

    def burst(self) -> None:
        """Publish without waiting, QoS 1 and 2 by turns, and finish every flow."""
        waiting: dict[int, bytes] = {}
        parts: list[bytes] = []
        for _ in range(BURST):
            self.number += 1
            packet_id = self.number % 60_000 + 1
            payload = b"%d" % self.number
            waiting[packet_id] = payload
            parts.append(mq.publish("t", payload, 1 + self.number % 2, packet_id, version=mq.V5))
        self.publisher.send(*parts)
        while waiting:
            packet = self.publisher.receive()
            assert packet is not None, "the broker closed"
            payload = waiting[packet.packet_id]
            if packet.reason >= 0x80:
                assert packet.reason == NOT_KEPT
                self.refused.append(payload)
            elif packet.type == mq.PUBREC:
                self.kept.append(payload)
                self.publisher.send(mq.pubrel(packet.packet_id, mq.V5))
                continue
            elif packet.type == mq.PUBACK:
                self.kept.append(payload)
            del waiting[packet.packet_id]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def brokers(tmp_path: Path, disk: Disk) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    made.settings["environment"] = disk.environment
    made.settings["mqueue"] = {"max_length": 100_000, "in_memory": "1KiB"}
    made.settings["durability"] = {"default": "fsync"}
    made.start()
    made.resume("away").subscribe("t", qos=2)
    made.clients[-1].reset()
    yield made
    for client in made.clients:
        client.close()
    disk.work()
    made.kill()


def check(brokers: Brokers, ledger: Ledger) -> None:
    """After kill -9 the client that was away gets all of that and nothing else, in order."""
    brokers.restart()
    away = brokers.resume("away")
    found = [packet.payload for packet in away.collect(len(ledger.kept))]
    away.expect_nothing()
    assert sorted(found, key=int) == sorted(ledger.kept, key=int)
    for qos in (0, 1):
        numbers = [int(payload) for payload in found if int(payload) % 2 == qos]
        assert numbers == sorted(numbers)
    assert not set(ledger.refused) & set(found)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_every_write_may_fail(brokers: Brokers, disk: Disk, error: int) -> None:
    live = brokers.client().connect("live")
    live.subscribe("free", qos=0)
    other = brokers.client().connect("other")
    ledger = Ledger(brokers.client().connect("publisher"))
    for skip in CALLS:
        before = disk.failed
        disk.fail(error, skip, count=2)
        ledger.burst()
        while disk.failed == before:
            ledger.burst()  # it had fewer calls than that
        other.publish("free", b"flows", qos=0)
        assert live.message().payload == b"flows"
        until(lambda: other.publish("t/other", b"", qos=1).reason in (0, 0x10), "it goes on")
    assert ledger.kept
    check(brokers, ledger)


def test_a_disk_that_stays_full_refuses_and_goes_on_by_itself(brokers: Brokers, disk: Disk) -> None:
    ledger = Ledger(brokers.client().connect("publisher"))
    other = brokers.client().connect("other")
    disk.fail(errno.ENOSPC)
    other.send(mq.publish("t", b"1000000", 1, 9, version=mq.V5))
    assert brokers.broker is not None and brokers.broker.says("store failed")
    ledger.burst()
    assert len(ledger.refused) == BURST
    disk.work()
    assert other.wait_for(mq.PUBACK, packet_id=9).reason == 0
    ledger.kept.append(b"1000000")
    assert brokers.broker.says("store works again")
    until(lambda: ledger.burst() or ledger.kept[1:], "messages are taken again")
    brokers.restart()
    found = brokers.resume("away").collect(len(ledger.kept))
    assert sorted((p.payload for p in found), key=int) == sorted(ledger.kept, key=int)


def test_writes_that_are_cut_short_and_an_fsync_that_takes_its_time(
    brokers: Brokers, disk: Disk
) -> None:
    """SQLite writes the rest; acknowledgements wait for the disk, QoS 0 does not."""
    live = brokers.client().connect("live")
    live.subscribe("free", qos=0)
    other = brokers.client().connect("other")
    ledger = Ledger(brokers.client().connect("publisher"))
    disk.cut_short(count=30)
    ledger.burst()
    disk.work()
    assert disk.failed
    disk.slow(100)
    for _ in range(3):
        ledger.burst()
        other.publish("free", b"flows", qos=0)
        assert live.message().payload == b"flows"
    disk.slow(0)
    assert not ledger.refused
    check(brokers, ledger)
