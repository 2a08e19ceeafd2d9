"""`[durability]`: which PUBACK waits for the disk, which for the system, which for nothing.

The disk notes each fsync; where it takes minutes, who waits for it is killed waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Disk
from tests.faults.test_broker_kill import Brokers
from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.waiting import until


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, undo=True)


@pytest.fixture
def brokers(tmp_path: Path, disk: Disk) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    made.settings["environment"] = disk.environment
    made.settings["durability"] = {
        "default": "os", "topics": {"orders/#": "fsync", "telemetry/#": "none"}
    }  # fmt: skip
    made.settings["listener"] = {
        "tcp": {
            "default": {"bind": "127.0.0.1:0"},
            "safe": {"bind": "127.0.0.1:0", "durability": "fsync"},
        }
    }
    made.start()
    made.resume("away").subscribe("#", qos=1)
    made.clients[-1].reset()
    yield made
    for client in made.clients:
        client.close()
    made.kill()


def at_the_safe_one(brokers: Brokers) -> RawClient:
    assert brokers.broker is not None
    found = re.compile(r"listener tcp:safe: mqtt://127\.0\.0\.1:(\d+)")
    until(lambda: found.search(brokers.broker.output), "the line of the listener")
    port = found.search(brokers.broker.output)
    assert port is not None
    client = RawClient(int(port[1]), mq.V5)
    brokers.clients.append(client)
    return client.connect("safe")


def test_a_puback_waits_for_what_its_topic_or_listener_promises(
    brokers: Brokers, disk: Disk
) -> None:
    plain, safe = brokers.client().connect("plain"), at_the_safe_one(brokers)
    for client, topic, synced in (
        (plain, "orders/1", True), (plain, "t", False), (plain, "telemetry/1", False),
        (safe, "t", True), (safe, "telemetry/1", False), (safe, "orders/1", True),
    ):  # fmt: skip
        brokers.settle()
        before = disk.syncs()
        assert client.publish(topic, b"", qos=1).reason == 0
        assert (disk.syncs() > before) == synced, topic


def test_what_promises_nothing_passes_those_that_wait_for_the_disk(
    brokers: Brokers, disk: Disk
) -> None:
    waits, passes = brokers.client().connect("waits"), brokers.client().connect("passes")
    brokers.settle()
    disk.slow(600_000)
    waits.send(mq.publish("orders/1", b"", 1, 1, version=mq.V5))
    waits.ping()
    assert passes.publish("telemetry/1", b"", qos=1).reason == 0
    brokers.kill()
    waits.expect_close()
