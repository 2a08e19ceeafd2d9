"""A broker with a memory budget, attacked beside honest clients: short forms of a benchmark's rows.

The long forms, with times and beside mosquitto, are `python -m benchmarks.hostile` and
`python -m benchmarks.hostile.mixed`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hostile.__main__ import OVER, peak
from benchmarks.hostile.honest import Honest
from benchmarks.hostile.ledger import Ledger
from benchmarks.hostile.mixed import one_seed
from benchmarks.hostile.rows import ROWS
from tests.support.broker import Broker, start_broker
from tests.support.waiting import until

#: What the process itself takes leaves little below the bound: on a machine of its own.
pytestmark = pytest.mark.skipif(os.environ.get("MQTTD_LONG") != "1", reason="MQTTD_LONG is not 1")

#: MiB
BUDGET = 32
#: Row -> steps, each of which is a megabyte or sixty kilobytes of what is kept.
STEPS = {"many_filters": 2, "topics": 3000, "endless_sessions": 2000}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(tmp_path, memory={"budget": f"{BUDGET}MiB"})
    yield started
    started.stop()


def assert_within(broker: Broker) -> None:
    assert broker.process is not None
    assert broker.process.poll() is None, broker.output
    assert peak(broker.process.pid) <= (BUDGET + OVER) * 2**20


@pytest.mark.parametrize("name", STEPS)
def test_honest_clients_stay_while_memory_stays_within_the_budget(
    broker: Broker, name: str
) -> None:
    honest = Honest(broker.port, residents=3).open()
    attack = ROWS[name].open(broker.port)
    until(lambda: attack.steps > STEPS[name], "the attack")
    seen = len(honest.old.took)
    until(lambda: len(honest.old.took) > seen + 6, "a round of those who were there")
    attack.stop()
    honest.stop()
    assert not honest.old.failed, honest.old.why
    assert not honest.new.failed, honest.new.why
    assert_within(broker)


def test_nothing_acknowledged_is_lost_in_a_mixture(broker: Broker) -> None:
    ledger = Ledger(broker.port)
    for seed in range(4):
        one_seed(seed, broker.port, ledger, 0.3)
    assert ledger.received == ledger.acknowledged > 0
    ledger.close()
    assert_within(broker)
