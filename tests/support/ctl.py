"""`mqttd-ctl` as an operator calls it: a process of its own, where that is not asked too much."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from mqttd.admin.ctl.main import main
from tests.support import warm
from tests.support.broker import Broker

__all__ = ["run", "told"]

PROGRAM = Path(sys.executable).parent / "mqttd-ctl"


def run(
    at: Broker | Path, *argv: str, stdin: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Call it for a broker, the directory of one, or a configuration file."""
    command = [str(PROGRAM), "--config", str(_config(at)), *argv]
    if warm.can({}):
        return warm.run(command, stdin, timeout)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)


def _config(at: Broker | Path) -> Path:
    if isinstance(at, Broker):
        assert at.directory is not None
        at = at.directory
    return at / "etc/mqttd.conf" if at.is_dir() else at


def told(at: Broker | Path, *argv: str, stdin: str = "") -> str:
    """What it prints, without the end of the last line; it must succeed.

    By its own code in this process: to start another costs half a second of processor, and what is
    waited for is asked for again and again.
    """
    if stdin:
        done = run(at, *argv, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        status = main(["--config", str(_config(at)), *argv])
    assert status == 0, complained.getvalue()
    return said.getvalue().rstrip("\n")
