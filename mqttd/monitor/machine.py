"""What the system says of memory: how much there is for us, and by how much the process has grown.

    /proc/meminfo, the limit of the control group   memory_of_machine     once, at the start
    /proc/self/statm                                grown, excess         near the budget

Promise: where the system does not say, the answer is 0 and nothing is raised.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["excess", "grown", "memory_of_machine"]

#: Limits of version 2 and of version 1 of control groups, as a process sees its own.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def memory_of_machine(
    meminfo: str = "/proc/meminfo",
    group: str = "/proc/self/cgroup",
    groups: str = "/sys/fs/cgroup",
) -> int:
    """Bytes of memory that the machine has, or its control group, if that is less."""
    total = 0
    for line in _read(Path(meminfo)).splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            total = int(value.split()[0]) * 1024
    for path in _own_groups(_read(Path(group)), Path(groups)):
        text = _read(path).strip()
        if text.isdigit() and 0 < int(text) < (total or 1 << 62):
            total = int(text)
    return total


def _own_groups(text: str, root: Path) -> list[Path]:
    """The files that may limit a process of these control groups: its own and those above."""
    found = [root / name for name in _LIMITS]
    for line in text.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            place, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            place, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        for word in path.split("/"):
            place = place / word if word else place
            found.append(place / name)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError):
        return ""


def _resident() -> int:
    words = _read(Path("/proc/self/statm")).split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


#: What the process takes before it serves anybody, and may take beside the budget.
_START = _resident()
_OWN = 32 << 20


def excess() -> int:
    """Bytes that the process takes at its start beyond what stands beside every budget."""
    return max(_START - _OWN, 0)


def grown() -> int:
    """By how many bytes the process has grown since its start; 0 where the system does not say."""
    now = _resident()
    return max(now - _START, 1) if now else 0
