"""kill -9 of a broker under load, again and again: ledgers of everybody against each other.

MQTTD_LONG=1 does it some hundred times; `python -m tests.faults.test_crowd_kill ROUNDS SEED` as
often as wanted. The mutants are brokers with a fault that the ledgers must find.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.crowd import Crowd
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
    path: Path, seed: int, count: int, program: str = "", every: int = 10, **more: object
) -> list[str]:
    """Kill the broker so often; what was wrong."""
    settings: dict[str, object] = {
        "store": {"kind": "sqlite"},
        "mqueue": {"max_length": 1_000_000, "max_bytes": "1GiB"},
        **more,
    }
    crowd = Crowd(seed)
    dice = random.Random(seed)
    for number in range(count):
        broker = start_broker(path, program=program, **settings)
        try:
            crowd.begin(broker.port)
            crowd.burst(dice.randint(1, 400))
        finally:
            broker.stop(hard=True)
        crowd.gone()
        if number % every == every - 1 or number == count - 1:
            broker = start_broker(path, program=program, **settings)
            try:
                crowd.begin(broker.port)
                wrong = crowd.retained_faults(retained(broker.port)) + crowd.finish()
            finally:
                broker.stop(hard=True)
            crowd.gone()
            if wrong:
                return [f"seed {seed}, round {number}", *wrong]
    return []


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    assert rounds(tmp_path, 1, ROUNDS) == []


@pytest.mark.skipif(ROUNDS < 100, reason="takes minutes; MQTTD_LONG=1")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_ledgers_find_the_fault(tmp_path: Path, mutant: str) -> None:
    """The harness sees what it is there for."""
    assert rounds(tmp_path, 7, 60, MUTANTS[mutant], every=1) != []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(
            rounds(Path(directory), int(sys.argv[2]), int(sys.argv[1]), every=20) or "nothing wrong"
        )
