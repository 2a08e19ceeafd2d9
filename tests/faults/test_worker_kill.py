"""kill -9 of a worker under load: ledgers of everybody against each other.

Here it is done some times, and with MQTTD_LONG=1 a hundred; `python -m tests.faults.workers` does
it as often as wanted.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.workers import Kills

ROUNDS = 100 if os.environ.get("MQTTD_LONG") == "1" else 2


@pytest.mark.parametrize("count", [2, 3] if ROUNDS > 2 else [2])
def test_a_worker_that_dies_loses_nothing_that_was_acknowledged(tmp_path: Path, count: int) -> None:
    kills = Kills(tmp_path, 1, count)
    try:
        for _ in range(ROUNDS):
            assert kills.round() == []
    finally:
        kills.close()
