"""One broker for all third-party clients.

Set MQTTD_TEST_PORT to run them against a broker that already listens on that port of loopback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import start_broker
from tests.support.etcd import Etcd, start_etcd


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    given = os.environ.get("MQTTD_TEST_PORT")
    if given:
        yield int(given)
        return
    broker = start_broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker.port
    finally:
        broker.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of one member, of this test alone; some modules have another of this name."""
    started = start_etcd(tmp_path / "etcd")
    yield started
    started.stop()
