"""kill -9 of a broker under load, again and again: ledgers of everybody against each other.

Here it is done some times, and with MQTTD_LONG=1 some hundred; `python -m tests.faults.crashes`
does it as often as wanted. The mutants are brokers with a fault that the ledgers must find.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.crashes import Lane, mutants

LONG = os.environ.get("MQTTD_LONG") == "1"
CYCLES = 400 if LONG else 12


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    with Lane(tmp_path) as lane:
        assert lane.run(tmp_path, 1, CYCLES, every=6) == []


def test_what_was_acknowledged_outlasts_power_cuts(tmp_path: Path) -> None:
    """`fsync`: whatever the disk has of what no fsync has covered."""
    with Lane(tmp_path, "power") as lane:
        assert lane.run(tmp_path, 3, CYCLES, every=6) == []


def test_nothing_acknowledged_is_lost_on_a_disk_that_fails(tmp_path: Path) -> None:
    """Sessions, wills, retained messages and the start itself meet it as messages do."""
    with Lane(tmp_path, "disk") as lane:
        assert lane.run(tmp_path, 5, CYCLES, every=6) == []


@pytest.mark.skipif(not LONG, reason="takes minutes; MQTTD_LONG=1")
@pytest.mark.parametrize(
    ("kind", "mutant"), [(kind, name) for kind in ("kill", "disk") for name in mutants(kind)]
)
def test_the_ledgers_find_the_fault(tmp_path: Path, kind: str, mutant: str) -> None:
    """The harness sees what it is there for."""
    with Lane(tmp_path, kind, faulty=True) as lane:
        assert lane.run(tmp_path, 7, 60, mutants(kind)[mutant], every=2) != []
