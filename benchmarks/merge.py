"""Several results become one: the median over the runs, and the range they span.

    A.json  B.json  C.json ...  -->  table, JSON, a page beside it   all rows   (--json FILE)
                                -->  the short table of a page       (--into README.md)

One run tells what this hour of this machine allowed; runs at different hours tell what a second
person will find. A run in which a row was refused does not count for that row, which is noted.
The short table joins the rows of a title that differ in their QoS only, and stands in its page
between the marks ``<!-- benchmarks -->`` and ``<!-- /benchmarks -->``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.report import aligned, figure, ratio
from benchmarks.workloads import COST, LATENCY, MEMORY, TWINS, WORKLOADS

__all__ = ["MARKS", "Merged", "merge", "merged", "put", "short", "table"]

MARKS: Final = ("<!-- benchmarks -->", "<!-- /benchmarks -->")
NAMES: Final = {"flashmq": "FlashMQ"}
_QOS: Final = re.compile(r", QoS (\d)$")
_PLACES: Final = {workload.name: place for place, workload in enumerate((*WORKLOADS, *TWINS))}


@dataclass(frozen=True, slots=True)
class Merged:
    """Ours beside one peer in one workload, over `runs` runs; None where all were refused."""

    workload: str
    title: str
    group: str
    measure: str
    who: str
    peer: str
    ours: float
    theirs: float
    value: float | None
    low: float
    high: float
    bound: float | None
    most: float | None
    runs: int
    refused: int

    @property
    def passed(self) -> bool | None:
        """Whether the median meets the bound; None without any."""
        if self.bound is None and self.most is None:
            return None
        if self.value is None or (self.most is not None and self.ours > self.most):
            return False
        if self.bound is None:
            return True
        return self.value >= self.bound if self.measure == COST else self.value <= self.bound


def merged(results: Sequence[Mapping[str, Any]]) -> list[Merged]:
    """The rows of all results, in the table's order: what varies first."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        for row in result["results"]:
            found.setdefault((row["workload"], row["who"], row["peer"]), []).append(row)
    rows = [_merged(group) for group in found.values()]
    return sorted(rows, key=lambda row: _PLACES.get(row.workload, len(_PLACES)))


def _merged(group: Sequence[Mapping[str, Any]]) -> Merged:
    last = group[-1]
    good = [row for row in group if row["value"] is not None]
    values = [row["value"] for row in good]
    figures = good or group
    return Merged(
        last["workload"], last["title"], last["group"], last["measure"], last["who"],
        last["peer"], median(row["ours"] for row in figures),
        median(row["theirs"] for row in figures), median(values) if values else None,
        min(values, default=0), max(values, default=0), last["bound"], last["most"],
        len(good), len(group) - len(good),
    )  # fmt: skip


def table(rows: Sequence[Merged]) -> str:
    """All rows in Markdown, the peers beside one another, the refused below."""
    peers = list(dict.fromkeys(row.peer for row in rows))
    cells = [["workload", "", "ours"]]
    for peer in peers:
        cells[0] += [peer, "ours beside it"]
    cells[0] += ["runs", ""]
    for group in _grouped(rows):
        first = group[0]
        name = first.workload + (" pure" if "pure" in first.who else "")
        line = [name, first.title, figure(first.measure, first.ours)]
        known = {row.peer: row for row in group}
        for peer in peers:
            row = known.get(peer)
            line += ["", ""] if row is None else [figure(row.measure, row.theirs), _bounded(row)]
        asked = [row.passed for row in group if row.passed is not None]
        verdict = "" if not asked else "pass" if all(asked) else "FAIL"
        cells.append([*line, str(min(row.runs for row in group)), verdict])
    notes = [
        f"- {row.workload}, {row.peer}: refused in {row.refused} of {row.runs + row.refused} runs"
        for row in rows
        if row.refused
    ]
    return "\n".join([aligned(cells), *([""] if notes else []), *notes])


def _grouped(rows: Sequence[Merged]) -> list[list[Merged]]:
    groups: dict[tuple[str, str], list[Merged]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.who), []).append(row)
    return list(groups.values())


def _bounded(row: Merged) -> str:
    if row.value is None:
        return "refused"
    text = ratio(row.measure, row.value)
    if row.runs > 1:
        text += f" [{ratio(row.measure, row.low)}, {ratio(row.measure, row.high)}]"
    if row.bound is None:
        return text
    unit = f"{row.bound:+,.0f} B" if row.measure == MEMORY else f"{row.bound:g} x"
    return f"{text} {'>=' if row.measure == COST else '<='} {unit}"


def short(rows: Sequence[Merged], who: str = "mqttd") -> str:
    """The table for a first page: groups with a heading each, a line for a title."""
    rows = [row for row in rows if row.who == who]
    peers = [p for p in dict.fromkeys(row.peer for row in rows) if p in ("mosquitto", "flashmq")]
    titles = [part for peer in peers for part in (NAMES.get(peer, peer), "")]
    lines = [f"| | {' | '.join([who, *titles])} |", f"|---|{'---:|' * (1 + len(titles))}"]
    group = ""
    for family in _families([row for row in rows if row.peer in peers]):
        if family[0][0].group != group:
            group = family[0][0].group
            lines.append(f"| **{group}** |{' |' * (1 + len(titles))}")
        first = [members[0] for members in family]
        levels = [found[1] for row in first if (found := _QOS.search(row.title))]
        title = _QOS.sub("", first[0].title)
        if levels:
            title += f", QoS {' / '.join(levels)}"
        cells = [title, _amounts(first[0].measure, [row.ours for row in first])]
        for peer in peers:
            beside = [row for members in family for row in members if row.peer == peer]
            whole = len(beside) == len(family)
            cells.append(_amounts(first[0].measure, [r.theirs for r in beside]) if whole else "")
            cells.append(" / ".join(_times(row) for row in beside) if whole else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _families(rows: Sequence[Merged]) -> list[list[list[Merged]]]:
    """Workloads whose titles differ in their QoS only: lists of workloads, each of its peers."""
    families: dict[str, list[list[Merged]]] = {}
    for group in _grouped(rows):
        families.setdefault(_QOS.sub("", group[0].title), []).append(group)
    return list(families.values())


def _amounts(measure: str, values: Sequence[float]) -> str:
    """As in "0.37 / 1.75 µs"."""
    texts = [figure(measure, value).rsplit(" ", 1) for value in values]
    unit = texts[0][1].replace("us", "µs")
    return f"{' / '.join(text for text, _ in texts)} {unit}"


def _times(row: Merged) -> str:
    """The ratio with its range over the runs, "8.1 × (7.6–8.4)"; of memory nothing."""
    if row.value is None:
        return "–"
    if row.measure == MEMORY:
        return ""
    # Everywhere in this table more is better.
    values = [1 / v if row.measure == LATENCY else v for v in (row.value, row.low, row.high)]
    middle, *ends = (ratio(COST, value).removesuffix(" x") for value in values)
    ends.sort(key=float)
    return f"{middle} ×" + (f" ({ends[0]}–{ends[1]})" if row.runs > 1 else "")


def put(page: str, text: str) -> str:
    """The page with `text` between its marks; raises ValueError without them."""
    begin, end = (page.find(mark) for mark in MARKS)
    if begin < 0 or end < begin:
        raise ValueError(f"it has no {MARKS[0]} ... {MARKS[1]}")
    return f"{page[: begin + len(MARKS[0])]}\n{text}\n{page[end:]}"


def _page(results: Sequence[Mapping[str, Any]], rows: Sequence[Merged]) -> str:
    last = results[-1]
    versions = sorted({version for result in results for version in result["versions"].values()})
    dates = sorted(result["date"] for result in results)
    return "\n".join(
        [
            f"# {last['broker']} beside {', '.join(last['peers'])}, range over {len(results)} runs",
            "",
            f"From {dates[0]} to {dates[-1]}: {', '.join(dates)}. Medians of the runs' results;"
            " in brackets the lowest and the highest of them. CPU of the broker per delivery (per"
            " connection), times what a peer needs.",
            "",
            *[f"- {version}" for version in versions],
            "",
            table(rows),
            "",
        ]
    )


def merge(files: Sequence[Path], out: Path | None, into: Path | None) -> int:
    """Read, print, write; returns the exit status."""
    try:
        results = [json.loads(file.read_text("utf-8")) for file in files]
        rows = merged(results)
        last = results[-1]
        result = {
            "date": last["date"],
            "broker": last["broker"],
            "peers": last["peers"],
            "dates": [one["date"] for one in results],
            "machine": last["machine"],
            "versions": last["versions"],
            "results": [{**asdict(row), "spread": [row.low, row.high]} for row in rows],
        }
        page = _page(results, rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"not results of this program: {error!r}", file=sys.stderr)
        return 2
    print(f"range over {len(results)} runs\n\n{table(rows)}")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        out.with_suffix(".md").write_text(page, "utf-8")
    if into is not None:
        try:
            into.write_text(put(into.read_text("utf-8"), short(rows)), "utf-8")
        except (OSError, ValueError) as error:
            print(f"{into}: {error}", file=sys.stderr)
            return 2
    return 0 if all(row.passed is not False for row in rows) else 1
