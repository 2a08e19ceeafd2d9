"""What the system says of memory, from files as it writes them."""

from __future__ import annotations

import mmap
from pathlib import Path

from mqttd.monitor.machine import grown, memory_of_machine

MIB = 1 << 20


def machine(root: Path, group: str = "", **limits: str) -> int:
    (root / "meminfo").write_text("MemTotal:        4096 kB\nMemFree:  1 kB\n")
    (root / "cgroup").write_text(group)
    for name, text in limits.items():
        path = root / "fs" / name.replace("__", "/").replace("_max", ".max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_of_machine(str(root / "meminfo"), str(root / "cgroup"), str(root / "fs"))


def test_the_machine_says_how_much_there_is(tmp_path: Path) -> None:
    assert machine(tmp_path) == 4 * MIB


def test_a_control_group_may_have_less(tmp_path: Path) -> None:
    """Its own limit, or one above it; "max" is none."""
    assert machine(tmp_path, "0::/a/b\n", a__memory_max=str(MIB), a__b__memory_max="max\n") == MIB


def test_one_that_allows_more_than_there_is_changes_nothing(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/a\n", a__memory_max=str(64 * MIB)) == 4 * MIB


def test_version_1_has_files_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "fs/memory/x/memory.limit_in_bytes"
    path.parent.mkdir(parents=True)
    path.write_text(str(2 * MIB))
    assert machine(tmp_path, "3:cpu,memory:/x\n") == 2 * MIB


def test_where_nobody_says_the_answer_is_0(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert memory_of_machine(missing, missing, missing) == 0


def test_a_process_that_grows_says_so() -> None:
    before = grown()
    with mmap.mmap(-1, 64 * MIB) as held:  # what malloc has kept of other tests is not new
        for page in range(0, 64 * MIB, mmap.PAGESIZE):
            held[page] = 1
        assert grown() - before > 32 * MIB
