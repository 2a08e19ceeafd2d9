"""Runs the clients of `benchmarks` that go beside mqttload, or in its place, on its core.

churn       beside it: `Churning` is a context manager, `fault` says whether it kept its pace
subscribe   in its place: `subscribe_run` gives a Measurement
decisions   in its place: `decisions_run` gives one
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from benchmarks.load import Failure, Measurement

__all__ = ["Churning", "decisions_run", "failed", "subscribe_run"]

#: Share of the changes asked for that there must have been.
PACE: Final = 0.9
RATE: Final = 200


def failed(why: str) -> Measurement:
    """A run without figures; of a long reason its first line and its last."""
    lines = [line.strip() for line in why.strip().splitlines() if line.strip()]
    told = " ... ".join([*lines[:1], *lines[1:][-1:]])
    return Measurement(False, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, (told,))


def _measured(
    name: str, what: Sequence[str], port: int, pid: int, core: int, limit: float
) -> dict[str, float]:
    """What `benchmarks.NAME` prints of a broker; raises Failure."""
    command = [*_pinned(core, name), *what, "--port", str(port), "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failure(f"benchmarks.{name} did not end within {limit:g} s") from None
    if done.returncode:
        raise Failure(done.stderr.strip()[-500:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def subscribe_run(port: int, pid: int, core: int, limit: float) -> Measurement:
    """What one wildcard SUBSCRIBE costs; raises Failure."""
    found = _measured("subscribe", (), port, pid, core, limit)
    return replace(
        failed(""), ok=True, errors=(), cpu=found["cpu"], p50=found["wall"], p99=found["worst"],
        more={name: round(value, 2) for name, value in found.items()},
    )  # fmt: skip


def decisions_run(what: str, port: int, pid: int, core: int, limit: float) -> Measurement:
    """What a message or a filter costs that rights are asked for; raises Failure."""
    found = _measured("decisions", (what,), port, pid, core, limit)
    return replace(
        failed(""), ok=True, errors=(), cpu=found["cpu"],
        more={name: round(value, 3) for name, value in found.items()},
    )  # fmt: skip


class Churning:
    """A client that changes filters from `__enter__` to `__exit__`."""

    def __init__(self, port: int, core: int) -> None:
        self.command = [*_pinned(core, "churn"), "--port", str(port), "--rate", str(RATE)]
        #: What was wrong with it, once it has ended.
        self.fault = ""

    def __enter__(self) -> Churning:
        self._process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # "ready", or nothing if it has ended
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            out, said = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, said = self._process.communicate()
        self.fault = fault_of(out, said)


def fault_of(out: str, said: str) -> str:
    """What was wrong with the churn that printed this; empty if nothing was."""
    try:
        found = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return f"churn ended early: {said.strip()[-300:]}"
    if found["refused"]:
        return f"churn: {found['refused']} filters refused"
    if found["changes"] < PACE * RATE * found["seconds"]:
        return f"churn: only {found['changes'] / found['seconds']:.0f} changes a second"
    return ""


def _pinned(core: int, module: str) -> list[str]:
    return ["taskset", "-c", str(core), sys.executable, "-m", f"benchmarks.{module}"]
