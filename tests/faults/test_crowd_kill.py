"""kill -9 of a broker under load, again and again: ledgers of everybody against each other.

MQTTD_LONG=1 does it some hundred times; `python -m tests.faults.test_crowd_kill ROUNDS SEED
[power]` as often as wanted, with a disk that forgets what no fsync has covered. The mutants are
brokers with a fault that the ledgers must find.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.crowd import Crowd
from tests.faults.disk import Disk
from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient

ROUNDS = 200 if os.environ.get("MQTTD_LONG") == "1" else 4

MUTANTS = {
    # PUBACK and PUBREC go before what they promise is written.
    "early": """
from mqttd.storage.journal import StoreJournal
StoreJournal.wait = lambda self, promise: promise.keep(self)
""",
    # An incoming QoS 2 id is not written with its message.
    "no id": """
from mqttd.storage.journal import StoreJournal
StoreJournal.received = lambda self, owner, packet_id: 0
""",
    # A message to a client that is there is not written: gone before it is acknowledged.
    "not kept": """
from mqttd.storage.journal import StoreJournal
sent = StoreJournal.sent
StoreJournal.sent = lambda self, owner, packet_id, entry, v5: (
    0 if packet_id else sent(self, owner, packet_id, entry, v5)
)
""",
}


def retained(port: int) -> dict[str, int]:
    """What a new subscriber of r/# gets."""
    client = RawClient(port, mq.V5).connect()
    client.subscribe("r/#", qos=0)
    client.ping()
    found = {}
    while client._aside:
        packet = client.expect(mq.PUBLISH)
        found[packet.topic] = int(packet.payload)
    client.disconnect()
    return found


def rounds(
    path: Path,
    seed: int,
    count: int,
    program: str = "",
    every: int = 10,
    power: bool = False,
    **more: object,
) -> list[str]:
    """Kill the broker so often, or cut its power (`fsync`); what was wrong."""
    queue = {"max_length": 1_000_000, "max_bytes": "1GiB"}
    settings: dict[str, object] = {"store": {"kind": "sqlite"}, "mqueue": queue, **more}
    disk = Disk(path, undo=True) if power else None
    if disk is not None:
        settings["durability"] = {"default": "fsync"}
        settings["environment"] = disk.environment
    crowd = Crowd(seed)
    dice = random.Random(seed)
    for number in range(count):
        # Payloads are in memory, on disk, or some here and some there.
        settings["mqueue"] = {**queue, "in_memory": dice.choice(("0B", "2KiB", "1MiB"))}
        broker = start_broker(path, program=program, **settings)
        try:
            crowd.begin(broker.port)
            crowd.burst(dice.randint(1, 400))
        finally:
            broker.stop(hard=True)
        crowd.gone()
        if disk is not None:
            disk.lose_power(path / "data", dice)
        if number % every == every - 1 or number == count - 1:
            broker = start_broker(path, program=program, **settings)
            try:
                crowd.begin(broker.port)
                wrong = crowd.retained_faults(retained(broker.port)) + crowd.finish()
            finally:
                broker.stop(hard=True)
            crowd.gone()
            if disk is not None:
                disk.lose_power(path / "data", dice)
            if wrong:
                return [f"seed {seed}, round {number}", *wrong]
    return []


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    assert rounds(tmp_path, 1, ROUNDS) == []


def test_what_was_acknowledged_outlasts_power_cuts(tmp_path: Path) -> None:
    """`fsync`: whatever the disk has of what no fsync has covered."""
    assert rounds(tmp_path, 3, ROUNDS // 2, power=True) == []


@pytest.mark.skipif(ROUNDS < 100, reason="takes minutes; MQTTD_LONG=1")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_ledgers_find_the_fault(tmp_path: Path, mutant: str) -> None:
    """The harness sees what it is there for."""
    assert rounds(tmp_path, 7, 60, MUTANTS[mutant], every=1) != []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        wrong = rounds(
            Path(directory), int(sys.argv[2]), int(sys.argv[1]), every=20, power=len(sys.argv) > 3
        )
        print("\n".join(wrong) or "nothing wrong")
