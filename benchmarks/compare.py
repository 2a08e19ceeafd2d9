"""How two brokers' runs of one workload become one ratio, and whether it is good enough.

    cost      broker CPU per delivery, theirs / ours: higher is better
    latency   p50, ours / theirs, of each broker's quietest round: lower is better
    memory    bytes per connection, ours - theirs: lower is better

Deliveries per second are shown but never compared: they tell who waited for whom, and where the
load generator or another process took the core they tell of that.

Run k of one broker is compared with run k of the other, its neighbour in time; the median of
those is the result, the lowest and the highest its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.load import Measurement
from benchmarks.workloads import COST, LATENCY, MEMORY, Measure, Workload

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our figure of one workload beside one peer's.

    `who` is ours (mqttd, or mqttd pure), `peer` the other's name, "itself" for the same broker set
    otherwise. `value` is a ratio, for memory a difference in bytes; None if it was refused, `notes`
    then say why. `passed` is None where there is no bound.
    """

    workload: Workload
    peer: str
    ours: float
    theirs: float
    value: float | None
    low: float
    high: float
    bound: float | None
    passed: bool | None
    notes: tuple[str, ...] = field(default=())
    who: str = "mqttd"

    @property
    def refused(self) -> bool:
        """Whether no figure may be taken from these runs."""
        return self.value is None


def compare(
    workload: Workload,
    peer: str,
    ours: Sequence[Measurement],
    theirs: Sequence[Measurement],
    bound: float | None,
    who: str = "mqttd",
) -> Comparison:
    """Compare the runs of one workload; a failed check of ours refuses the row.

    A peer's failed check refuses it too, except for messages left queued where the workload
    admits that; the note then says so.
    """
    measure = workload.measure
    notes, refused = _deviations(workload, peer, ours, theirs)
    mine, other = [_figure(run, measure) for run in ours], [_figure(run, measure) for run in theirs]
    middle = min if measure == LATENCY else median
    mid_ours, mid_theirs = middle(mine), middle(other)
    values = [_value(measure, a, b) for a, b in zip(mine, other, strict=True)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        refused = True
        notes.append("a figure too small to compare: measure for longer")
    if refused or not known:
        sound = not any(run.deviation() for run in ours)
        passed = None if bound is None and sound else False  # of such a peer nothing was asked
        return Comparison(workload, peer, mid_ours, mid_theirs, None, 0, 0, bound, passed,
                          tuple(notes), who)  # fmt: skip
    result = mid_ours / mid_theirs if measure == LATENCY else median(known)
    passed = None if bound is None else _passes(measure, result, bound)
    if workload.most is not None:
        passed = passed is not False and mid_ours <= workload.most
    return Comparison(workload, peer, mid_ours, mid_theirs, result, min(known), max(known),
                      bound, passed, tuple(notes), who)  # fmt: skip


def _deviations(
    workload: Workload, peer: str, ours: Sequence[Measurement], theirs: Sequence[Measurement]
) -> tuple[list[str], bool]:
    notes: list[str] = []
    refused = False
    for who, runs in (("ours", ours), (peer, theirs)):
        for number, run in enumerate(runs, 1):
            deviation = run.deviation()
            if not deviation:
                continue
            counts = who == peer and workload.peer_may_queue and run.only_queued
            refused = refused or not counts
            how = "counts all the same" if counts else "refused"
            notes.append(f"{who}, round {number}: {deviation} ({how})")
    return notes, refused


def _figure(run: Measurement, measure: Measure) -> float:
    if measure == COST:
        return run.cpu
    return run.p50 if measure == LATENCY else float(run.rss_per_connection)


def _value(measure: Measure, ours: float, theirs: float) -> float | None:
    if measure == MEMORY:
        return ours - theirs
    if ours <= 0 or theirs <= 0:
        return None
    return theirs / ours if measure == COST else ours / theirs


def _passes(measure: Measure, value: float, bound: float) -> bool:
    return value >= bound if measure == COST else value <= bound
