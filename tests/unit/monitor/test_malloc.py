"""glibc is told to keep large blocks, where it is glibc."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from mqttd.monitor.malloc import keep_freed

COUNT = """
import resource, sys
from mqttd.monitor.malloc import keep_freed
if sys.argv[1] == "keep":
    assert keep_freed()
held = []
for n in range(200):
    held.append(b"x" * 1_000_000)
    if len(held) > 6:
        held.clear()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")


@glibc
def test_a_block_that_was_freed_is_used_again() -> None:
    faults = [
        int(subprocess.check_output([sys.executable, "-c", COUNT, how])) for how in ("keep", "not")
    ]
    assert faults[0] * 3 < faults[1]


def test_without_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed()
