"""The rule that makes a ratio of two brokers' runs: who is compared by rate, who by CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.compare import basis, compare
from benchmarks.load import Measurement
from benchmarks.report import table
from benchmarks.workloads import CPU, LATENCY, MEMORY, Workload

RATIO = Workload("p2p", "pairs", "p2p", bound=8)


def run(
    rate: float = 1000, cpu: float = 2, cores: float = 1.0, loader: float = 0.5, p50: float = 100
) -> Measurement:
    return Measurement(True, rate, cpu, cores, loader, p50, 0, 0, 0, 0, {}, ())


OURS, THEIRS = run(900, 1.0), run(100, 12.0)
LOST = replace(OURS, ok=False, faults={"lost": 2})


def test_rates_are_compared_where_both_brokers_were_the_limit() -> None:
    row = compare(RATIO, [OURS], [THEIRS], 8)
    assert (row.basis, row.value, row.passed) == ("rate", 9, True)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(run(cores=0.89), run(), id="ours had time left"),
        pytest.param(run(), run(cores=0.89), id="theirs had time left"),
        pytest.param(run(loader=0.9), run(), id="the load was the limit with ours"),
        pytest.param(run(), run(loader=0.9), id="the load was the limit with theirs"),
    ],
)
def test_cpu_is_compared_where_a_broker_was_not_the_limit(
    ours: Measurement, theirs: Measurement
) -> None:
    assert basis(RATIO, [ours], [theirs]) == "cpu"


def test_exactly_nine_tenths_of_a_core_is_a_busy_broker() -> None:
    assert basis(RATIO, [run(cores=0.9, loader=0.899)], [run(cores=0.9)]) == "rate"


def test_the_cpu_ratio_is_how_much_less_we_need() -> None:
    row = compare(RATIO, [replace(OURS, cores=0.5)], [THEIRS], 8)
    assert (row.basis, row.value) == ("cpu", 12)


def test_connections_go_by_cpu_whatever_the_cores_did() -> None:
    row = compare(replace(RATIO, always_cpu=True), [OURS], [THEIRS], 1.2)
    assert (row.basis, row.value) == ("cpu", 12)


def test_neighbours_in_time_are_compared_and_their_median_is_the_result() -> None:
    """A slow moment of the machine meets both brokers: its round is one ratio among three."""
    ours = [run(900), run(90), run(1000)]
    theirs = [run(100), run(10), run(200)]
    row = compare(RATIO, ours, theirs, 8)
    assert (row.low, row.value, row.high) == (5, 9, 9)
    assert (row.ours, row.theirs) == (900, 100)


def test_the_figure_compared_is_one_for_all_rounds() -> None:
    ours = [run(900, 1), run(900, 1, cores=0.5), run(900, 1)]
    row = compare(RATIO, ours, [THEIRS] * 3, 8)
    assert (row.basis, row.low, row.high) == ("rate", 9, 9)


def test_below_the_bound_is_not_passed() -> None:
    assert compare(RATIO, [run(700)], [run(100)], 8).passed is False
    assert compare(RATIO, [run(800)], [run(100)], 8).passed is True
    assert compare(RATIO, [run(700)], [run(100)], None).passed is None


def test_latency_is_of_the_quietest_round_of_each_and_lower_is_better() -> None:
    ours, theirs = [run(p50=150), run(p50=90)], [run(p50=60), run(p50=100)]
    row = compare(replace(RATIO, measure=LATENCY), ours, theirs, 1.6)
    assert (row.basis, row.ours, row.theirs, row.value) == ("p50", 90, 60, 1.5)
    assert row.passed


def test_trickle_cpu_is_a_cost_and_lower_is_better() -> None:
    row = compare(replace(RATIO, measure=CPU), [run(cpu=40)], [run(cpu=25)], 1.5)
    assert (row.value, row.passed) == (1.6, False)


def test_memory_is_a_difference_in_bytes() -> None:
    ours = [replace(OURS, rss_per_connection=1100)]
    theirs = [replace(OURS, rss_per_connection=1014)]
    row = compare(replace(RATIO, measure=MEMORY), ours, theirs, 512)
    assert (row.value, row.passed) == (86, True)
    assert "+86 B" in table([row])


@pytest.mark.parametrize("may_queue", [False, True])
def test_our_lost_message_refuses_the_row(may_queue: bool) -> None:
    row = compare(replace(RATIO, peer_may_queue=may_queue), [OURS, LOST], [THEIRS] * 2, 8)
    assert row.refused and row.passed is False
    assert row.notes == ("ours, round 2: lost 2 (refused)",)
    assert "refused" in table([row])
    assert "p2p: ours, round 2: lost 2 (refused)" in table([row])


def test_a_peers_lost_message_refuses_the_row_too() -> None:
    assert compare(RATIO, [OURS], [LOST], 8).refused


def test_a_peer_that_leaves_messages_queued_counts_where_that_is_known() -> None:
    row = compare(replace(RATIO, peer_may_queue=True), [OURS], [LOST], 8)
    assert not row.refused
    assert row.notes == ("theirs, round 1: lost 2 (counts all the same)",)
    disorder = replace(LOST, faults={"lost": 2, "out_of_order": 1})
    assert compare(replace(RATIO, peer_may_queue=True), [OURS], [disorder], 8).refused


def test_a_run_without_figures_is_refused_and_not_divided_by() -> None:
    row = compare(RATIO, [OURS], [run(0, 0)], 8)
    assert row.refused
    assert row.notes == ("a figure too small to compare: measure for longer",)
