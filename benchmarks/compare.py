"""How two brokers' runs of one workload become one ratio, and whether it is good enough.

    rate      both brokers kept their core busy (0.9 of it) and mqttload had room (under 0.9)
              -> deliveries per second, ours / theirs
              otherwise a rate shows who waited for whom
              -> CPU per delivery, theirs / ours
    cpu       CPU per delivery, ours / theirs: lower is better
    latency   p50, ours / theirs, of each broker's quietest round: lower is better
    memory    bytes per connection, ours - theirs: lower is better

Run k of one broker is compared with run k of the other, its neighbour in time; the median of
those is the result, the lowest and the highest its spread. Which of the two figures "rate" means
is decided once per workload, by the median use of the cores, so that no median mixes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.load import Measurement
from benchmarks.workloads import CPU, LATENCY, MEMORY, RATE, Measure, Workload

__all__ = ["BUSY", "Comparison", "basis", "compare"]

#: Share of a core from which it counts as fully used.
BUSY: Final = 0.9


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the result.

    `value` is a ratio, for memory a difference in bytes; None if the row was refused, `notes`
    then say why. `passed` is None where there is no bound.
    """

    workload: Workload
    basis: str
    ours: float
    theirs: float
    value: float | None
    low: float
    high: float
    bound: float | None
    passed: bool | None
    notes: tuple[str, ...] = field(default=())

    @property
    def refused(self) -> bool:
        """Whether no figure may be taken from these runs."""
        return self.value is None


def basis(workload: Workload, ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> str:
    """Which figure is compared: `rate`, `cpu`, `p50` or `rss`."""
    if workload.measure == LATENCY:
        return "p50"
    if workload.measure == MEMORY:
        return "rss"
    if workload.measure == CPU or workload.always_cpu:
        return "cpu"
    for runs in (ours, theirs):
        if median(run.cores for run in runs) < BUSY:
            return "cpu"
        if median(run.loader_cores for run in runs) >= BUSY:
            return "cpu"
    return "rate"


def compare(
    workload: Workload,
    ours: Sequence[Measurement],
    theirs: Sequence[Measurement],
    bound: float | None,
) -> Comparison:
    """Compare the runs of one workload; a failed check of ours refuses the row.

    A peer's failed check refuses it too, except for messages left queued where the workload
    admits that; the note then says so.
    """
    which = basis(workload, ours, theirs)
    notes, refused = _deviations(workload, ours, theirs)
    mine, other = [_figure(run, which) for run in ours], [_figure(run, which) for run in theirs]
    if workload.measure == LATENCY:
        mid_ours, mid_theirs = min(mine), min(other)
    else:
        mid_ours, mid_theirs = median(mine), median(other)
    values = [_value(workload.measure, which, a, b) for a, b in zip(mine, other, strict=True)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        refused = True
        notes.append("a figure too small to compare: measure for longer")
    if refused or not known:
        return Comparison(workload, which, mid_ours, mid_theirs, None, 0, 0, bound, False,
                          tuple(notes))  # fmt: skip
    if workload.measure == LATENCY:
        result = mid_ours / mid_theirs
    else:
        result = median(known)
    passed = None if bound is None else _passes(workload.measure, result, bound)
    return Comparison(workload, which, mid_ours, mid_theirs, result, min(known), max(known),
                      bound, passed, tuple(notes))  # fmt: skip


def _deviations(
    workload: Workload, ours: Sequence[Measurement], theirs: Sequence[Measurement]
) -> tuple[list[str], bool]:
    notes: list[str] = []
    refused = False
    for who, runs in (("ours", ours), ("theirs", theirs)):
        for number, run in enumerate(runs, 1):
            if run.ok and not run.faults:
                continue
            counts = who == "theirs" and workload.peer_may_queue and run.only_queued
            refused = refused or not counts
            how = "counts all the same" if counts else "refused"
            notes.append(f"{who}, round {number}: {run.deviation()} ({how})")
    return notes, refused


def _figure(run: Measurement, which: str) -> float:
    if which == "rate":
        return run.rate
    if which == "cpu":
        return run.cpu
    return run.p50 if which == "p50" else float(run.rss_per_connection)


def _value(measure: Measure, which: str, ours: float, theirs: float) -> float | None:
    if measure == MEMORY:
        return ours - theirs
    if ours <= 0 or theirs <= 0:
        return None
    if measure == RATE and which == "cpu":
        return theirs / ours
    return ours / theirs


def _passes(measure: Measure, value: float, bound: float) -> bool:
    return value >= bound if measure == RATE else value <= bound
