"""The rule that makes a ratio of two brokers' runs: what is compared, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.compare import Comparison, compare
from benchmarks.load import Measurement
from benchmarks.report import table
from benchmarks.workloads import LATENCY, MEMORY, Workload

RATIO = Workload("p2p", "pairs", "p2p")


def run(rate: float = 1000, cpu: float = 2, p50: float = 100) -> Measurement:
    return Measurement(True, rate, cpu, 1.0, 0.5, p50, 0, 0, 0, 0, {}, ())


def beside(
    workload: Workload, ours: list[Measurement], theirs: list[Measurement], bound: float | None
) -> Comparison:
    return compare(workload, "mosquitto", ours, theirs, bound)


OURS, THEIRS = run(900, 1.0), run(100, 12.0)
LOST = replace(OURS, ok=False, faults={"lost": 2})


def test_cost_is_how_much_less_we_need_whatever_the_rates() -> None:
    row = beside(RATIO, [OURS], [THEIRS], 8)
    assert (row.ours, row.theirs, row.value, row.passed) == (1, 12, 12, True)


def test_neighbours_in_time_are_compared_and_their_median_is_the_result() -> None:
    """A slow moment of the machine meets both brokers: its round is one ratio among three."""
    ours = [run(cpu=1), run(cpu=10), run(cpu=2)]
    theirs = [run(cpu=9), run(cpu=90), run(cpu=10)]
    row = beside(RATIO, ours, theirs, 8)
    assert (row.low, row.value, row.high) == (5, 9, 9)
    assert (row.ours, row.theirs) == (2, 10)


def test_below_the_bound_is_not_passed() -> None:
    assert beside(RATIO, [run(cpu=1)], [run(cpu=7)], 8).passed is False
    assert beside(RATIO, [run(cpu=1)], [run(cpu=8)], 8).passed is True
    assert beside(RATIO, [run(cpu=1)], [run(cpu=7)], None).passed is None


@pytest.mark.parametrize(("most", "passed"), [(1.0, True), (0.9, False)])
def test_some_things_may_not_cost_more_than_so_much_whatever_others_pay(
    most: float, passed: bool
) -> None:
    row = beside(replace(RATIO, most=most), [OURS], [THEIRS], None)
    assert row.passed is passed
    assert f"{'pass' if passed else 'FAIL'} <= {most:g} us" in table([row])


def test_latency_is_of_the_quietest_round_of_each_and_lower_is_better() -> None:
    ours, theirs = [run(p50=150), run(p50=90)], [run(p50=60), run(p50=100)]
    row = beside(replace(RATIO, measure=LATENCY), ours, theirs, 1.6)
    assert (row.ours, row.theirs, row.value) == (90, 60, 1.5)
    assert row.passed


def test_memory_is_a_difference_in_bytes() -> None:
    ours = [replace(OURS, rss_per_connection=1100)]
    theirs = [replace(OURS, rss_per_connection=1014)]
    row = beside(replace(RATIO, measure=MEMORY), ours, theirs, 512)
    assert (row.value, row.passed) == (86, True)
    assert "+86 B" in table([row])


@pytest.mark.parametrize("may_queue", [False, True])
def test_our_lost_message_refuses_the_row(may_queue: bool) -> None:
    row = beside(replace(RATIO, peer_may_queue=may_queue), [OURS, LOST], [THEIRS] * 2, 8)
    assert row.refused and row.passed is False
    assert row.notes == ("ours, round 2: lost 2 (refused)",)
    assert "refused" in table([row])
    assert "p2p: ours, round 2: lost 2 (refused)" in table([row])


def test_a_peers_lost_message_refuses_what_is_beside_that_peer() -> None:
    row = beside(RATIO, [OURS], [LOST], 8)
    assert row.refused
    assert row.notes == ("mosquitto, round 1: lost 2 (refused)",)


def test_a_peer_that_leaves_messages_queued_counts_where_that_is_known() -> None:
    row = beside(replace(RATIO, peer_may_queue=True), [OURS], [LOST], 1)
    assert not row.refused
    assert row.notes == ("mosquitto, round 1: lost 2 (counts all the same)",)
    disorder = replace(LOST, faults={"lost": 2, "out_of_order": 1})
    assert beside(replace(RATIO, peer_may_queue=True), [OURS], [disorder], 8).refused


def test_of_a_peer_of_which_nothing_was_asked_nothing_is_missed() -> None:
    ended = replace(run(0, 0), ok=False)
    assert beside(RATIO, [OURS], [ended], None).passed is None
    assert beside(RATIO, [OURS], [ended], 8).passed is False
    assert beside(RATIO, [LOST], [THEIRS], None).passed is False


def test_a_run_without_figures_is_refused_and_not_divided_by() -> None:
    row = beside(RATIO, [OURS], [run(0, 0)], 8)
    assert row.refused
    assert row.notes == ("a figure too small to compare: measure for longer",)
