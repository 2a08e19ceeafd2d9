"""The check of a benchmark's messages notices everything that can go wrong."""

from __future__ import annotations

from mqttd.bench.load import Figures, Job
from mqttd.bench.main import added, main, result_of, shares
from mqttd.bench.stamp import HEADER, Arrivals, percentile, stamp


def arrive(*numbers: int, publisher: int = 0) -> Arrivals:
    arrivals = Arrivals()
    for number in numbers:
        arrivals.message(stamp(7, publisher, number, 1_000, 64), 3_000)
    return arrivals


def counts(arrivals: Arrivals) -> tuple[int, int, int, int]:
    return arrivals.received, arrivals.lost, arrivals.duplicates, arrivals.out_of_order


def test_an_unbroken_row_is_clean() -> None:
    assert counts(arrive(0, 1, 2, 3)) == (4, 0, 0, 0)


def test_what_is_missing_is_lost() -> None:
    assert counts(arrive(0, 1, 5)) == (3, 3, 0, 0)


def test_what_comes_twice_is_a_duplicate() -> None:
    assert counts(arrive(0, 1, 1, 0)) == (4, 0, 2, 0)


def test_what_comes_late_is_out_of_order_and_not_lost() -> None:
    assert counts(arrive(0, 2, 1)) == (3, 0, 0, 1)


def test_a_subscriber_that_came_later_starts_where_it_came_in() -> None:
    assert counts(arrive(100, 101)) == (2, 0, 0, 0)


def test_publishers_are_told_apart() -> None:
    arrivals = arrive(0, 1)
    arrivals.message(stamp(7, 1, 0, 1_000, 64), 3_000)
    assert counts(arrivals) == (3, 0, 0, 0)


def test_other_messages_are_foreign() -> None:
    arrivals = Arrivals(run=7)
    arrivals.message(b"hello", 1)
    arrivals.message(stamp(8, 0, 0, 1, 64), 2)
    assert (arrivals.foreign, arrivals.received) == (2, 0)


def test_latency_is_microseconds() -> None:
    assert arrive(0).late_us == [2]
    assert percentile(list(range(1, 101)), 0.99) == 100
    assert percentile([], 0.5) == 0


def test_a_payload_has_the_size_asked_for() -> None:
    assert len(stamp(1, 2, 3, 4, 100)) == 100
    assert len(stamp(1, 2, 3, 4, HEADER)) == HEADER


def test_clients_are_shared_out_with_numbers_of_their_own() -> None:
    parts = shares(Job("pub", first=5, clients=10, rate=90), 3)
    assert [(p.first, p.clients, p.rate) for p in parts] == [(5, 4, 30), (9, 3, 30), (12, 3, 30)]
    assert len(shares(Job("pub", clients=2), 8)) == 2


def test_the_figures_of_processes_are_added() -> None:
    first = Figures(connected=1, faults=["x"], late_us=[1], done=True)
    second = Figures(connected=2, faults=["x"], late_us=[3], lost=1)
    total = added([first, second])
    assert (total.connected, total.lost, total.faults, total.done) == (3, 1, ["x"], False)
    assert result_of(total, 1.0)["latency_us"]["p50"] == 3


def test_a_payload_too_small_for_the_check_is_refused() -> None:
    try:
        main(["pub", "-s", "8"])
    except SystemExit as error:
        assert "at least 24 bytes" in str(error)
    else:
        raise AssertionError
