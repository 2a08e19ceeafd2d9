"""Shows comparisons as a table, and keeps them as JSON with versions, date and machine shape.

A row of the table is a workload, a pair of columns each peer: its figure, and what ours is beside
it. The machine is told by what decides a figure (cores, CPU model, kernel, memory, open files),
never by its name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.brokers import raise_file_limit
from benchmarks.compare import Comparison
from benchmarks.load import Measurement
from benchmarks.workloads import COST, MEMORY

__all__ = ["aligned", "as_json", "figure", "machine", "page", "ratio", "table"]


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
    peers = list(dict.fromkeys(row.peer for row in rows))
    cells = [["workload", "", "ours"]]
    for peer in peers:
        cells[0] += [peer, "ours beside it"]
    cells[0].append("")
    notes: list[str] = []
    for group in _by_row(rows):
        first = group[0]
        name = first.workload.name + (" pure" if "pure" in first.who else "")
        line = [name, first.workload.title, figure(first.workload.measure, first.ours)]
        known = {row.peer: row for row in group}
        for peer in peers:
            row = known.get(peer)
            line += ["", ""] if row is None else _cells(row)
        cells.append([*line, _verdict(group)])
        notes += dict.fromkeys(f"- {name}: {note}" for row in group for note in row.notes)
    return "\n".join([aligned(cells), *([""] if notes else []), *notes])


def _by_row(rows: Sequence[Comparison]) -> Iterable[list[Comparison]]:
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for row in rows:
        groups.setdefault((row.workload.name, row.who), []).append(row)
    return groups.values()


def _cells(row: Comparison) -> list[str]:
    measure = row.workload.measure
    theirs = figure(measure, row.theirs)
    if row.value is None:
        return [theirs, "refused"]
    low, high = ratio(measure, row.low), ratio(measure, row.high)
    spread = "" if row.low == row.high else f" [{low}, {high}]"
    return [theirs, f"{ratio(measure, row.value)}{spread}{_bound(row)}"]


def _bound(row: Comparison) -> str:
    if row.bound is None:
        return ""
    sign = ">=" if row.workload.measure == COST else "<="
    unit = f"{row.bound:+,.0f} B" if row.workload.measure == MEMORY else f"{row.bound:g} x"
    return f" {sign} {unit}"


def _verdict(group: Sequence[Comparison]) -> str:
    """Whether all bounds of a row were met; empty without any."""
    asked = [row.passed for row in group if row.passed is not None]
    most = group[0].workload.most
    text = "" if not asked else "pass" if all(asked) else "FAIL"
    return f"{text} <= {most:g} us" if text and most is not None else text


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first row is its head; text left, figures right."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [_line(row, widths) for row in cells]
    marks = ["-" * (width + 2) if n < 2 else "-" * (width + 1) + ":"
             for n, width in enumerate(widths)]  # fmt: skip
    lines.insert(1, "|" + "|".join(marks) + "|")
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) if column < 2 else cell.rjust(width)
              for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
    return "| " + " | ".join(padded) + " |"


def ratio(measure: str, value: float) -> str:
    """A ratio, or a difference of memory."""
    if measure == MEMORY:
        return f"{value:+,.0f} B"
    digits = 0 if value >= 20 else 1 if value >= 5 else 2 if value >= 0.1 else 4
    return f"{value:.{digits}f} x"


def figure(measure: str, value: float) -> str:
    """What was measured, with its unit."""
    if measure == MEMORY:
        return f"{value:,.0f} B"
    return f"{value:,.0f} us" if value >= 100 else f"{value:.3g} us"


def page(result: Mapping[str, Any], rows: Sequence[Comparison]) -> str:
    """A Markdown page of a result: what, where, the table, the configurations."""
    shape = result["machine"]
    head = [
        f"# {result['broker']} beside {', '.join(result['peers'])}, {result['date'][:10]}",
        "",
        f"{shape['cores']} x {shape['cpu']}, {shape['memory']} of memory, {shape['kernel']},"
        f" {shape['python']}, {shape['open_files']} open files, load average"
        f" {shape['load_average']:g}. Broker on core"
        f" {result['cores']['broker']}, load on core {result['cores']['mqttload']};"
        f" {result['duration']:g} s measured after {result['warmup']:g} s of warm-up, rounds:"
        f" {result['rounds']}. Figures are broker CPU per delivery (per connection), latency or"
        " bytes; ratios say how many times more the peer needs, with the lowest and the highest"
        " round.",
        "",
        *[f"- {version}" for version in result["versions"].values()],
        "",
        table(rows),
    ]
    for broker, files in result["configurations"].items():
        for name, text in files.items():
            head += ["", f"{broker}, `{name}`:", "", "```text", text.rstrip(), "```"]
    return "\n".join(head) + "\n"


def as_json(
    rows: Sequence[Comparison],
    runs: Mapping[str, Mapping[str, Sequence[Measurement]]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """One object: what was measured where, each comparison, and every run behind it."""
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
    workload = row.workload
    return {
        "workload": workload.name,
        "title": workload.title,
        "group": workload.group,
        "scenario": workload.scenario,
        "arguments": list(workload.args),
        "setting": str(workload.setting),
        "measure": workload.measure,
        "who": row.who,
        "peer": row.peer,
        "ours": row.ours,
        "theirs": row.theirs,
        "value": row.value,
        "spread": None if row.value is None else [row.low, row.high],
        "bound": row.bound,
        "most": workload.most,
        "passed": row.passed,
        "notes": list(row.notes),
    }
