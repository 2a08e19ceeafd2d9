"""Room on the disk: what would have to be kept is refused before the last byte is taken."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqttd.storage.room import RESERVE
from tests.unit.storage.test_workers import Worker

MIB = 1 << 20


class Disk:
    """A file system of so many MiB, of which some are free."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total

    def __call__(self, path: str) -> Any:
        return SimpleNamespace(f_blocks=self.total, f_frsize=MIB, f_bavail=self.free)


def stuck(worker: Worker) -> bool:
    worker.reactor.advance(10)  # when it is looked at next
    for _ in range(3):
        worker.reactor.turn()
        worker.node.settle()
    return any(worker.store._stuck)


@pytest.mark.parametrize(("total", "reserve"), [(1 << 20, RESERVE // MIB), (160, 20)])
def test_a_reserve_is_left_for_what_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, reserve: int
) -> None:
    """On a full disk no session could end: the one that had filled it was there for ever."""
    disk = Disk(total)
    monkeypatch.setattr(os, "statvfs", disk)
    worker = Worker(tmp_path)
    alarms = worker.node.broker.alarms
    worker.away("away", "t")
    assert not stuck(worker)
    disk.free = reserve - 1
    assert stuck(worker)
    (alarm,) = [each for each in alarms.active() if each.name == "store_full"]
    assert "are left" in alarm.text and "end sessions" in alarm.text
    disk.free = reserve + 1
    assert stuck(worker), "no to and fro"
    disk.free = 2 * reserve
    assert not stuck(worker) and not alarms.active()
    worker.stop()


def test_pages_that_nothing_is_on_are_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(tmp_path)
    worker.away("away", "t")
    for _ in range(60):
        worker.node.publish("t", os.urandom(100_000), 1)
        worker.settle()
    disk = Disk(32)
    disk.free = 1
    monkeypatch.setattr(os, "statvfs", disk)
    assert stuck(worker)
    worker.node.connect("away", 5)  # a clean start
    worker.settle()
    disk.free = 4
    assert not stuck(worker), "its pages are free, the file is as large as before"
    worker.stop()


def test_a_disk_without_a_byte_free_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 stood for what nobody has looked at: both alarms were cleared, and all was taken again."""
    disk = Disk(1 << 20)
    monkeypatch.setattr(os, "statvfs", disk)
    worker = Worker(tmp_path, min_free=256 * MIB)
    alarms = worker.node.broker.alarms
    assert worker.store.describe()["free_bytes"] is None, "not known yet"
    assert not alarms.active()
    for free in (1, 0):
        disk.free = free
        assert stuck(worker)
        assert {each.name for each in alarms.active()} == {"store_full", "disk_low"}
        assert worker.store.describe()["free_bytes"] == free * MIB
        assert worker.store.describe()["full"] is True
    disk.free = 256
    assert not stuck(worker) and not alarms.active()
    assert worker.store.describe()["full"] is False
    worker.stop()
