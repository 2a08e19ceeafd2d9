"""Weights are what things take: the account against the memory of a process, shape by shape.

`MQTTD_LONG=1` fills more, so that what is there anyway and the allocator's steps count less.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.weights import SHAPES

ROOT = Path(__file__).parents[3]
LONG = bool(os.environ.get("MQTTD_LONG"))
#: Mebibytes that the account is to say.
SIZE = 96 if LONG else 12
FACTOR = 1.5
#: The small form looks at one of each kind.
SHORT = (
    "retained_properties",
    "retained_levels",
    "retained_long",
    "aliases",
    "topics",
    "filters_levels",
    "filters_of_many",
    "queue_properties",
    "queue_looked_at",
    "queue_parsed",
    "wills_properties",
    "unfinished_connect",
)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say")
@pytest.mark.parametrize("shape", SHAPES if LONG else SHORT)
@pytest.mark.slow
def test_a_weight_is_within_a_factor_of_what_it_takes(shape: str) -> None:
    """Issue 12: 1 MB of user properties counted as one byte, 127 levels as one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.weights", shape, str(SIZE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    said, took = map(int, done.stdout.split()[1:3])
    assert took / FACTOR <= said <= took * FACTOR, f"{said} said, {took} taken"
