"""Shows comparisons as a table, and keeps them as JSON with versions, date and machine shape.

The machine is told by what decides a figure (cores, CPU model, kernel, memory, open files), never
by its name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.brokers import raise_file_limit
from benchmarks.compare import Comparison
from benchmarks.load import Measurement
from benchmarks.workloads import LATENCY, MEMORY, RATE

__all__ = ["as_json", "machine", "page", "table"]

HEAD = ("workload", "", "ours", "theirs", "ratio", "spread", "bound", "")


def machine() -> dict[str, Any]:
    """The shape of this machine, and how busy it was in the last minute."""
    return {
        "cores": os.cpu_count(),
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "open_files": raise_file_limit(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _first(path: str, key: str) -> str:
    try:
        text = Path(path).read_text("utf-8")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def table(rows: Sequence[Comparison]) -> str:
    """The rows in Markdown, aligned; the notes of what was refused or admitted below."""
    cells = [HEAD, *(_row(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"- {row.workload.name}: {note}" for row in rows for note in row.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def page(result: Mapping[str, Any], rows: Sequence[Comparison]) -> str:
    """A Markdown page of a result: what, where, the table, both configurations."""
    shape = result["machine"]
    head = [
        f"# {result['broker']} against {result['against']}, {result['date'][:10]}",
        "",
        f"{shape['cores']} x {shape['cpu']}, {shape['memory']} of memory, {shape['kernel']},"
        f" {shape['python']}, {shape['open_files']} open files. Broker on core"
        f" {result['cores']['broker']}, load on core {result['cores']['mqttload']};"
        f" {result['duration']:g} s measured after {result['warmup']:g} s of warm-up, rounds:"
        f" {result['rounds']}.",
        "",
        *[f"- {version}" for version in result["versions"].values()],
        "",
        table(rows),
    ]
    for broker, files in result["configurations"].items():
        for name, text in files.items():
            head += ["", f"{broker}, `{name}`:", "", "```text", text.rstrip(), "```"]
    return "\n".join(head) + "\n"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) if column < 2 else cell.rjust(width)
              for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
    return "| " + " | ".join(padded) + " |"


def _row(row: Comparison) -> tuple[str, ...]:
    if row.value is None:
        ratio, spread, verdict = "refused", "", "FAIL"
    else:
        ratio = _ratio(row, row.value)
        spread = f"[{_ratio(row, row.low)}, {_ratio(row, row.high)}]"
        verdict = {None: "", True: "pass", False: "FAIL"}[row.passed]
    return (row.workload.name, row.workload.title, _figure(row, row.ours),
            _figure(row, row.theirs), ratio, spread, _bound(row), verdict)  # fmt: skip


def _ratio(row: Comparison, value: float) -> str:
    if row.workload.measure == MEMORY:
        return f"{value:+,.0f} B"
    return f"{value:.1f} x" if value >= 10 else f"{value:.2f} x"


def _bound(row: Comparison) -> str:
    if row.bound is None:
        return ""
    if row.workload.measure == MEMORY:
        return f"<= {row.bound:+,.0f} B"
    return f"{'>=' if row.workload.measure == RATE else '<='} {row.bound:g} x"


def _figure(row: Comparison, value: float) -> str:
    if row.basis == "rate":
        return f"{value:,.0f}/s"
    if row.basis == "rss":
        return f"{value:,.0f} B"
    return f"{value:.3g} us" + ("" if row.workload.measure == LATENCY else " CPU")


def as_json(
    rows: Sequence[Comparison],
    runs: Mapping[str, Mapping[str, Sequence[Measurement]]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """One object: what was measured where, each row, and every run behind it."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        **about,
        "results": [_result(row) for row in rows],
        "runs": {
            workload: {name: [run.as_dict() for run in found] for name, found in by_broker.items()}
            for workload, by_broker in runs.items()
        },
    }


def _result(row: Comparison) -> dict[str, Any]:
    return {
        "workload": row.workload.name,
        "title": row.workload.title,
        "scenario": row.workload.scenario,
        "arguments": list(row.workload.args),
        "measure": row.workload.measure,
        "basis": row.basis,
        "ours": row.ours,
        "theirs": row.theirs,
        "value": row.value,
        "spread": None if row.value is None else [row.low, row.high],
        "bound": row.bound,
        "passed": row.passed,
        "notes": list(row.notes),
    }
