"""A copy of the store of a running broker, and the tools for one that is down."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.test_broker_kill import Brokers
from tests.support.ctl import run


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    made.start()
    yield made
    for client in made.clients:
        client.close()
    made.kill()


def ctl(brokers: Brokers, *words: str) -> subprocess.CompletedProcess[str]:
    return run(brokers.path, *words)


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
    refused = ctl(brokers, "restore", str(copy))
    assert refused.returncode == 1 and "store.db is there already" in refused.stderr
    os.unlink(brokers.path / "data" / "store.db")
    restored = ctl(brokers, "restore", str(copy))
    assert restored.returncode == 0, restored.stderr
    assert "1 session, 1 message" in restored.stdout
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


def test_users_and_bans_travel_too_or_nothing_does(brokers: Brokers, tmp_path: Path) -> None:
    users = brokers.path / "etc" / "users.conf"
    proof = "$7$101$" + "A" * 16 + "$" + "B" * 88
    users.write_text(f"# who\nann:{proof}\n")
    users.chmod(0o600)
    assert ctl(brokers, "bans", "add", "client_id", "eve", "--reason", "rude").returncode == 0
    assert brokers.broker is not None
    brokers.broker.stop()
    lines = tmp_path / "lines.json"
    exported = ctl(brokers, "store", "export", str(lines))
    assert exported.returncode == 0, exported.stderr
    assert lines.stat().st_mode & 0o777 == 0o600
    store = brokers.path / "data" / "store.db"
    store.unlink()
    users.write_text(f"ann:{proof[:-1]}C\n")
    other = ctl(brokers, "store", "import", str(lines))
    assert other.returncode == 1 and "user 'ann' is there already, and differs" in other.stderr
    assert not store.exists() and users.read_text() == f"ann:{proof[:-1]}C\n"
    users.write_text("# mine\n")
    text = lines.read_text()
    lines.write_text(text[: len(text) // 2])
    cut = ctl(brokers, "store", "import", str(lines))
    assert cut.returncode == 1 and f"{lines}: line " in cut.stderr
    assert not store.exists() and users.read_text() == "# mine\n"
    lines.write_text(text)
    taken = ctl(brokers, "store", "import", str(lines))
    assert taken.returncode == 0, taken.stderr
    assert users.read_text() == f"# mine\nann:{proof}\n"
    assert users.stat().st_mode & 0o777 == 0o600
    brokers.start()
    brokers.client().connect("eve", reason=0x8A)


def test_a_running_store_is_compacted_and_nobody_waits_for_it(brokers: Brokers) -> None:
    """What one session holds back is moved together, and the file becomes small."""
    brokers.resume("slow").subscribe("slow/#", qos=1)
    brokers.resume("away").subscribe("t", qos=1)
    for client in brokers.clients:
        client.reset()
    publisher = brokers.client().connect("publisher")
    for number in range(60):
        publisher.publish("t", bytes(100_000), qos=1)
        if number % 10 == 0:
            publisher.publish(f"slow/{number}", b"%d" % number, qos=1)
    away = brokers.resume("away")
    away.collect(60)
    brokers.settle()
    done = ctl(brokers, "store", "compact", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["before"] > 6_000_000 > 1_000_000 > told["after"], told
    publisher.publish("t", b"behind", qos=1)
    assert away.message().payload == b"behind"
    brokers.restart()
    assert [p.payload for p in brokers.resume("slow").collect(6)] == [
        b"%d" % number for number in range(0, 60, 10)
    ]
    brokers.kill()
    assert ctl(brokers, "store", "check").stdout == "nothing wrong\n"
    brokers.start()


def test_what_is_damaged_is_told_by_each_command_and_compact_drops_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The copy said nothing, could never be restored, and the row was there for ever."""
    brokers.resume("away").subscribe("t", qos=1)
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    for payload in (b"first", b"second", b"third"):
        publisher.publish("t", payload, qos=1)
    assert brokers.broker is not None
    brokers.broker.stop()
    store = brokers.path / "data" / "store.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as base:
        row = base.execute("SELECT id FROM block ORDER BY id LIMIT 1 OFFSET 1").fetchone()[0]
        base.execute("UPDATE block SET words = zeroblob(length(words)) WHERE id = ?", (row,))
    exported = ctl(brokers, "store", "export", str(tmp_path / "lines.json"))
    assert exported.returncode == 0 and f"block {row}: its words are damaged" in exported.stderr
    brokers.start()
    copy = brokers.path / "copy.db"
    made = ctl(brokers, "backup", str(copy))
    assert made.returncode == 0 and "1 damaged row in the store" in made.stderr
    compacted = ctl(brokers, "store", "compact")
    assert f"dropped, it could not be read: {store}: block {row}" in compacted.stdout
    second = ctl(brokers, "--json", "backup", str(brokers.path / "second.db"))
    assert json.loads(second.stdout)["damaged"] == 0 and not second.stderr
    brokers.broker.stop()
    assert ctl(brokers, "store", "check").stdout == "nothing wrong\n"
    store.unlink()
    restored = ctl(brokers, "restore", str(copy))
    assert restored.returncode == 0 and "1 session, 2 messages" in restored.stdout
    assert f"left out: block {row}: its words are damaged" in restored.stderr
    brokers.start()
    assert [p.payload for p in brokers.resume("away").collect(2)] == [b"first", b"third"]


def test_a_store_is_not_made_where_none_is_used(brokers: Brokers, tmp_path: Path) -> None:
    """restore and import said what they had taken, and the broker that was started had nothing."""
    assert brokers.broker is not None
    brokers.broker.stop()
    store = brokers.path / "data" / "store.db"
    copy = tmp_path / "copy.db"
    copy.write_bytes(store.read_bytes())
    brokers.settings = {"store": {"kind": "memory"}}
    assert brokers.start().says("store not used") and str(store) in brokers.broker.output
    brokers.broker.stop()
    store.unlink()
    for command in ("restore", "store import"):
        refused = ctl(brokers, *command.split(), str(copy))
        assert refused.returncode == 1 and 'store.kind is "memory"' in refused.stderr
        assert not store.exists()
    assert ctl(brokers, "restore", str(copy), "--path", str(store)).returncode == 0
    store.unlink()
