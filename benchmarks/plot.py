"""Draws a result as SVG: python -m benchmarks.plot RESULT.json > PLOT.svg

One bar per workload that is compared by its cost; the axis is logarithmic, the line at 1 is the
first of the peers, the thin mark on a bar its spread. A merged result is drawn like any other.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.workloads import COST

__all__ = ["main", "svg"]

LABEL, WIDTH, ROW, HEAD = 250, 760, 24, 44
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)


def svg(result: Mapping[str, Any]) -> str:
    """The picture of one result; raises ValueError if nothing in it is a ratio."""
    peer = result["peers"][0]
    rows = [
        row
        for row in result["results"]
        if (row["measure"], row["peer"], row["who"]) == (COST, peer, result["broker"])
        and row["value"]
    ]
    if not rows:
        raise ValueError("no ratio in this result")
    ends = [end for row in rows for end in row["spread"]]
    low = min(0.5, *ends)
    high = max(2.0, *ends) * 1.25
    height = HEAD + ROW * len(rows) + 30

    def x(value: float) -> float:
        return LABEL + (WIDTH - LABEL - 60) * math.log(value / low) / math.log(high / low)

    ours, theirs = result["broker"], result["versions"][peer]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="24" font-size="15">{escape(ours)} per core, times {escape(theirs)}</text>',
    ]
    for tick in TICKS:
        if low <= tick <= high:
            colour, width = ("#333", 1.5) if tick == 1 else ("#ddd", 1)
            parts.append(
                f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{HEAD - 6}" y2="{height - 24}"'
                f' stroke="{colour}" stroke-width="{width}"/>'
                f'<text x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>'
            )
    for number, row in enumerate(rows):
        parts += _bar(row, HEAD + ROW * number, x(1), x(row["value"]), *map(x, row["spread"]))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(
    row: Mapping[str, Any], y: float, one: float, end: float, low: float, high: float
) -> Sequence[str]:
    colour = "#2b7a78" if row["value"] >= 1 else "#c0563b"
    middle = y + ROW / 2
    return (
        f'<text x="{LABEL - 10}" y="{middle + 4:.1f}" text-anchor="end">'
        f"{escape(row['title'])}</text>",
        f'<rect x="{min(one, end):.1f}" y="{y + 4:.1f}" width="{abs(end - one):.1f}"'
        f' height="{ROW - 8}" fill="{colour}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"'
        ' stroke="#111" stroke-width="1"/>',
        f'<text x="{max(end, high, one) + 6:.1f}" y="{middle + 4:.1f}">{row["value"]:.1f}</text>',
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a result, write its picture to standard output; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("usage: python -m benchmarks.plot RESULT.json > PLOT.svg", file=sys.stderr)
        return 2
    try:
        print(svg(json.loads(Path(given[0]).read_text("utf-8"))), end="")
    except (OSError, ValueError, KeyError) as error:
        print(f"{given[0]}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
