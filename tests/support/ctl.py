"""`mqttd-ctl` as an operator calls it: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.broker import Broker

__all__ = ["run", "told"]

PROGRAM = Path(sys.executable).parent / "mqttd-ctl"


def run(
    at: Broker | Path, *argv: str, stdin: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Call it for a broker, the directory of one, or a configuration file."""
    if isinstance(at, Broker):
        assert at.directory is not None
        at = at.directory
    config = at / "etc/mqttd.conf" if at.is_dir() else at
    return subprocess.run(
        [PROGRAM, "--config", config, *argv],
        input=stdin, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def told(at: Broker | Path, *argv: str, stdin: str = "") -> str:
    """What it prints, without the end of the last line; it must succeed."""
    done = run(at, *argv, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")
