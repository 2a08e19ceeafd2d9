"""What happens to three nodes under load: ledgers of everybody against each other.

With MQTTD_LONG=1, a hundred rounds; `python -m tests.faults.cluster` does it as often as wanted.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.faults.cluster import KINDS, REPLICATED, Faults

LONG = os.environ.get("MQTTD_LONG") == "1"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.skipif(not LONG, reason="MQTTD_LONG=1: a hundred rounds of faults")
@pytest.mark.parametrize("replicate", [False, True])
def test_nothing_acknowledged_is_lost_and_qos_2_comes_once(tmp_path: Path, replicate: bool) -> None:
    async def rounds() -> None:
        faults = Faults(tmp_path, 1, replicate)
        try:
            await faults.begin()
            for number, kind in enumerate((REPLICATED if replicate else KINDS) * 20):
                assert await faults.round(kind) == [], (number, kind)
        finally:
            await faults.end()

    asyncio.run(rounds())
