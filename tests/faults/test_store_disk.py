"""A disk that takes no more: QoS 1 and 2 that would have to be kept are refused, and go on later.

The broker's files may not grow (RLIMIT_FSIZE of the running process), which its writes meet as
an I/O error; then they may again.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from tests.faults.test_broker_kill import Brokers
from tests.support import packets as mq
from tests.support.ctl import run, told
from tests.support.waiting import until

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def brokers(tmp_path: Path) -> object:
    made = Brokers(tmp_path)
    made.start()
    yield made
    for client in made.clients:
        client.close()
    made.kill()


def limit(brokers: Brokers, size: int) -> None:
    """Let no file of the broker grow beyond so many bytes."""
    assert brokers.broker is not None and brokers.broker.process is not None
    resource.prlimit(brokers.broker.process.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))


def test_what_cannot_be_kept_is_refused_and_nothing_acknowledged_is_lost(brokers: Brokers) -> None:
    """0x97 in MQTT 5.0; before, the connection ends without an acknowledgement; QoS 0 flows."""
    assert brokers.broker is not None
    brokers.resume("away").subscribe("kept/#", qos=2)
    brokers.clients[-1].reset()
    live = brokers.client().connect("live")
    live.subscribe("#", qos=2)
    publisher = brokers.client().connect("publisher")
    publisher.publish("kept/1", b"before", qos=1)
    limit(brokers, 4096)
    # Whoever publishes when it begins waits: nothing is acknowledged that is not written.
    publisher.send(mq.publish("kept/1", b"waits", 1, 77, version=mq.V5))
    assert brokers.broker.says("store failed")
    other = brokers.client().connect("other")
    for qos in (1, 2):
        refused = other.publish("kept/1", b"refused", qos=qos)
        assert refused is not None and refused.reason == 0x97
    assert other.publish("r", b"refused", qos=1, retain=True).reason == 0x97
    old = brokers.client(mq.V311).connect("old")
    old.send(mq.publish("kept/1", b"refused", 1, 5))
    old.expect_close()
    other.publish("kept/1", b"QoS 0", qos=0)
    assert other.publish("free", b"nobody keeps it", qos=1).reason in (0, 0x10)
    limit(brokers, UNLIMITED)
    assert publisher.wait_for(mq.PUBACK, packet_id=77).reason == 0
    assert brokers.broker.says("store works again")
    until(lambda: other.publish("kept/1", b"after", qos=2).reason == 0, "it is taken again")
    assert b"refused" not in [p.payload for p in live.collect(5)]
    brokers.restart()
    found = [p.payload for p in brokers.resume("away").collect(4)]
    assert [payload for payload in found if payload != b"QoS 0"] == [b"before", b"waits", b"after"]


def test_bans_say_of_the_store_what_is_wrong_and_nobody_waits_to_be_told(brokers: Brokers) -> None:
    assert brokers.broker is not None
    assert "stored" not in told(brokers.broker, "bans", "add", "client_id", "before")
    limit(brokers, 4096)
    # It holds; the store is found to fail when it is to be kept.
    said = told(brokers.broker, "bans", "add", "client_id", "waits")
    assert "not stored yet" in said and "store.db cannot be written" in said
    refused = run(brokers.broker, "bans", "add", "client_id", "refused")
    assert refused.returncode == 1 and "bans.json" not in refused.stderr
    assert "not made" in refused.stderr and "store.db cannot be written" in refused.stderr
    assert "not stored yet" in told(brokers.broker, "bans", "del", "client_id", "before")
    limit(brokers, UNLIMITED)
    assert brokers.broker.says("store works again")
    assert "stored" not in told(brokers.broker, "bans", "add", "client_id", "after")
    brokers.restart()
    assert brokers.broker is not None
    bans = json.loads(told(brokers.broker, "--json", "bans", "list"))["bans"]
    assert [ban["value"] for ban in bans] == ["waits", "after"]


def test_of_a_role_that_is_not_stored_yet_nobody_waits_to_be_told(brokers: Brokers) -> None:
    """The command waited for 30 s and said that the broker did not answer."""
    assert brokers.broker is not None
    role = ("roles", "put", "readers", "--rule", '{allow, all, subscribe, ["a/#"]}')
    limit(brokers, 4096)
    run(brokers.broker, "bans", "add", "client_id", "waits")  # the store is found to fail
    said = run(brokers.broker, *role)
    assert said.returncode == 1 and "store.db cannot be written" in said.stderr
    limit(brokers, UNLIMITED)
    assert brokers.broker.says("store works again")
    told(brokers.broker, *role)
    limit(brokers, 4096)
    said = run(brokers.broker, "roles", "del", "readers")
    assert said.returncode == 1 and "this holds, but is not stored yet" in said.stderr
    limit(brokers, UNLIMITED)


@pytest.mark.parametrize(("version", "refused"), [(mq.V5, 0x97), (mq.V311, 0x80)])
def test_a_subscribe_that_cannot_be_written_is_answered(
    brokers: Brokers, version: int, refused: int
) -> None:
    """It was answered by nothing until there was room again."""
    assert brokers.broker is not None
    kept = brokers.resume("kept", version)
    assert kept.subscribe("before", qos=1) == [1]
    limit(brokers, 4096)
    assert kept.subscribe("held", qos=1) == [refused]
    assert brokers.broker.says("store failed")
    assert kept.subscribe("before", "then", qos=1) == [1, refused]
    limit(brokers, UNLIMITED)
    assert brokers.broker.says("store works again")
    until(lambda: kept.subscribe("after", qos=1) == [1], "it is taken again")
    brokers.restart()
    kept = brokers.resume("kept", version)
    publisher = brokers.client().connect("publisher")
    for topic in ("held", "then", "before", "after"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert [packet.payload for packet in kept.collect(2)] == [b"before", b"after"]


def test_the_broker_is_killed_while_its_disk_is_full(brokers: Brokers) -> None:
    """What was acknowledged before is there; what waited may be."""
    brokers.resume("away").subscribe("t", qos=1)
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
    limit(brokers, 4096)
    publisher.send(mq.publish("t", b"waits", 1, 77, version=mq.V5))
    assert brokers.broker is not None and brokers.broker.says("store failed")
    brokers.restart()
    away = brokers.resume("away")
    assert [p.payload for p in away.collect(20)] == [b"%d" % number for number in range(20)]


def test_a_store_as_large_as_it_may_be_refuses_until_some_is_taken(tmp_path: Path) -> None:
    """`store.max_bytes`; and `store.min_free`, which no disk here has."""
    brokers = Brokers(tmp_path)
    brokers.settings["store"] = {"max_bytes": "64KiB", "min_free": "1024GiB"}
    brokers.start()
    try:
        assert brokers.broker is not None and brokers.broker.says("disk low")
        brokers.resume("away").subscribe("t", qos=1)
        brokers.clients[-1].reset()
        publisher = brokers.client().connect("publisher")
        kept = 0
        while publisher.publish("t", b"%d" % kept + bytes(2000), qos=1).reason == 0:
            kept += 1
        assert 20 < kept < 40
        assert brokers.broker.says("store full")
        assert publisher.publish("t", b"refused", qos=2).reason == 0x97
        away = brokers.resume("away")
        found = [int(packet.payload.rstrip(b"\0")) for packet in away.collect(kept)]
        assert found == list(range(kept))
        assert brokers.broker.says("store has room")
        until(lambda: publisher.publish("t", b"after", qos=1).reason == 0, "it is taken again")
    finally:
        for client in brokers.clients:
            client.close()
        brokers.kill()
