"""A copy of the store of a running broker, and the tools for one that is down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_broker_kill import Brokers


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    made.start()
    yield made
    for client in made.clients:
        client.close()
    made.kill()


def ctl(brokers: Brokers, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "mqttd-ctl"
    config = brokers.path / "etc" / "mqttd.conf"
    return subprocess.run(
        [program, "--config", config, *words], capture_output=True, text=True, timeout=60
    )


def test_a_backup_of_a_running_broker_can_be_put_back(brokers: Brokers) -> None:
    """What came after it is not in it; nobody else may read it."""
    brokers.resume("away").subscribe("t", qos=1)
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    publisher.publish("t", b"before", qos=1)
    copy = brokers.path / "copy.db"
    made = ctl(brokers, "backup", str(copy))
    assert made.returncode == 0, made.stderr
    assert copy.stat().st_mode & 0o777 == 0o600
    publisher.publish("t", b"after", qos=1)
    assert ctl(brokers, "backup", str(copy)).returncode == 1  # never over a file that is there
    busy = ctl(brokers, "store", "check")
    assert busy.returncode == 1 and "stop the broker first" in busy.stderr
    assert brokers.broker is not None
    brokers.broker.stop()
    assert ctl(brokers, "store", "check").stdout == "nothing wrong\n"
    os.replace(copy, brokers.path / "data" / "store.db")
    brokers.start()
    away = brokers.resume("away")
    assert away.message().payload == b"before"
    away.expect_nothing()


def test_an_export_goes_to_another_broker(brokers: Brokers, tmp_path: Path) -> None:
    brokers.resume("away").subscribe("t", qos=2)
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    for number in range(10):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    publisher.publish("r", b"retained", qos=1, retain=True)
    assert brokers.broker is not None
    brokers.broker.stop()
    lines = tmp_path / "lines.json"
    assert ctl(brokers, "store", "export", str(lines)).returncode == 0
    assert json.loads(lines.read_text().splitlines()[0])["type"] == "store"
    store = brokers.path / "data" / "store.db"
    store.unlink()
    taken = ctl(brokers, "store", "import", str(lines))
    assert taken.returncode == 0, taken.stderr
    brokers.start()
    assert [p.payload for p in brokers.resume("away").collect(10)] == [
        b"%d" % number for number in range(10)
    ]
    reader = brokers.client().connect("reader")
    reader.subscribe("r", qos=1)
    assert reader.message().payload == b"retained"
