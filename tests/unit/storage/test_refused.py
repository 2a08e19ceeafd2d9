"""Files that are no store of this mqttd's, and disks that take none: what the operator is told."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqttd.storage import database
from mqttd.storage.database import StoreError, connect


def test_a_newer_store_is_left_as_it_is_and_the_way_back_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    base = connect(path)
    base.execute("PRAGMA user_version = 99")
    base.close()
    with pytest.raises(StoreError, match=r"has version 99 .* restore a copy .*mqttd-ctl restore"):
        connect(path)


@pytest.mark.parametrize(
    ("free", "told"), [(8, r"store\.db: disk I/O error; the disk has 32768 bytes free$"),
                       (1 << 20, r"store\.db: disk I/O error$")]
)  # fmt: skip
def test_a_disk_without_room_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, told: str
) -> None:
    def fails(path: str, base: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def disk(path: str) -> object:
        return SimpleNamespace(f_bavail=free, f_frsize=4096)

    monkeypatch.setattr(database, "_prepare", fails)
    monkeypatch.setattr(os, "statvfs", disk)
    with pytest.raises(StoreError, match=told):
        connect(str(tmp_path / "store.db"))
