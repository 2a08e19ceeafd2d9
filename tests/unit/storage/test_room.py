"""Room on the disk: what would have to be kept is refused before the last byte is taken."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqttd.storage import writer
from mqttd.storage.blocks import Group
from mqttd.storage.room import RESERVE, Room
from mqttd.storage.writer import write
from tests.support.waiting import until
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
    room = Room("store.db", lambda event, fields: None, min_free=256 * MIB)
    room.weigh(worker.node.broker, 0)
    assert room.free is None and not room.full and not alarms.active(), "not known yet"
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


def test_room_is_looked_at_while_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asked waited behind the group that could not be written: the disk that was full, the
    reason for it, was told of by no alarm, and `free_bytes` was what it had been before."""
    disk = Disk(1 << 20)
    monkeypatch.setattr(os, "statvfs", disk)
    worker = Worker(tmp_path, min_free=256 * MIB)
    worker.away("away", "t")
    assert not stuck(worker)
    alarms = worker.node.broker.alarms
    failing = threading.Event()
    failing.set()

    def written(base: sqlite3.Connection, group: Group) -> None:
        if failing.is_set():
            disk.free = 0
            raise sqlite3.OperationalError("database or disk is full")
        write(base, group)

    def turned(active: set[str]) -> bool:
        worker.node.broker.perform()
        worker.reactor.turn()
        worker.node.settle()
        return {each.name for each in alarms.active()} == active

    monkeypatch.setattr(writer, "write", written)
    worker.node.publish("t", b"waits", 1)
    until(lambda: turned({"store_failed", "store_full", "disk_low"}), "the alarms")
    said = worker.store.describe()
    assert (said["free_bytes"], said["full"], said["failing"]) == (0, True, True)
    assert worker.store.writer is not None
    worker.reactor.advance(60)
    assert worker.store.writer._waiting.empty(), "each look waited there for the end of it"
    disk.free = disk.total
    failing.clear()
    until(lambda: turned(set()), "there is room")
    worker.stop()


def test_a_disk_that_says_nothing_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the question went up through the writer's thread, and nothing more was kept."""
    worker = Worker(tmp_path, min_free=256 * MIB)

    def fails(path: str) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fails)
    worker.reactor.advance(10)
    worker.away("away", "t")
    assert worker.store.writer is not None and worker.store.writer._thread.is_alive()
    worker.stop()
