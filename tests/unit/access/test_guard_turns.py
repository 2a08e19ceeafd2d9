"""Those who wait for a module are answered in as many turns as they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqttd.types import AUTH_OK
from tests.unit.access.test_guard import WRONG, Backend, Bench


@pytest.mark.parametrize("reason", ["late", "rejected"])
def test_thousands_who_are_not_asked_about_any_more_are_told_in_turns(
    tmp_path: Path, reason: str
) -> None:
    """4,500 who were too late together kept everybody else waiting for half a second."""
    backend = Backend()
    breaker = 1 if reason == "rejected" else 0
    bench = Bench(
        tmp_path, backend, concurrency=1, waiting=1000, deadline=5.0, breaker_failures=breaker
    )
    later: list[Callable[[], object]] = []
    call_later = bench.clock.callLater

    def put_off(seconds: float, call: Any, *args: Any) -> Any:
        return later.append(call) if not seconds else call_later(seconds, call, *args)

    bench.clock.callLater = put_off
    results = [bench.ask(client_id=f"c{number}") for number in range(501)]

    def told() -> int:
        return sum(map(len, results))

    bench.clock.advance(5.0)
    before = told()
    assert 0 < before < 100
    while told() < 501:
        (call,) = later
        later.clear()
        call()
        assert 0 < told() - before <= 50
        before = told()
    assert not later


def serve(bench: Bench, backend: Backend, verdict: Any, times: int) -> None:
    """So many questions are answered, one after the other."""
    for _ in range(times):
        backend.open.pop(0).callback(verdict)


@pytest.mark.parametrize(
    "flood,honest",
    [
        ("2001:db8:66:{:x}::1", "2001:db8:7::1"),
        ("127.66.66.{}", "127.66.7.7"),
        ("127.66.{}.1", "10.0.0.7"),
        ("::ffff:127.66.{}.1", "10.0.0.7"),
    ],
)
def test_a_network_full_of_addresses_has_one_turn_as_any_other(
    tmp_path: Path, flood: str, honest: str
) -> None:
    """With 65,536 addresses of one network there was no turn in time, and no place, for others."""
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=100)
    others = [bench.ask(host=flood.format(number)) for number in range(101)]
    own = bench.ask(host=honest)
    assert [result[0].reason_code for result in others if result] == [0x89]
    serve(bench, backend, WRONG, 2)
    assert not own
    serve(bench, backend, AUTH_OK, 1)
    assert own[0].ok
    serve(bench, backend, WRONG, 98)
    assert all(others)


@pytest.mark.parametrize("again", [False, True])
def test_houses_from_which_somebody_got_in_have_every_other_turn(
    tmp_path: Path, again: bool
) -> None:
    """Behind a flood from more networks than there are turns in time nobody new got in."""
    backend = Backend()
    if again:  # its password is remembered
        backend.recall = lambda client, password: None if client.client_id == "new" else AUTH_OK  # type: ignore[attr-defined]
    bench = Bench(tmp_path, backend, concurrency=1, waiting=100)
    before = bench.ask(client_id="before", host="10.0.0.7")
    if not again:
        serve(bench, backend, AUTH_OK, 1)
    assert before[0].ok
    strangers = [bench.ask(client_id="new", host=f"11.{n}.0.1") for n in range(101)]
    own = [bench.ask(client_id="new", host="10.0.0.7") for _ in range(10)]
    assert not any(own)  # strangers had to make room
    busy = sum(map(len, strangers))
    assert busy == 10
    serve(bench, backend, WRONG, 1)
    for number, result in enumerate(own, 2):
        serve(bench, backend, WRONG, 1)
        assert not result and sum(map(len, strangers)) == busy + number
        serve(bench, backend, AUTH_OK, 1)
        assert result[0].ok


def test_known_houses_stay_known_when_the_chain_is_another(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=2)
    bench.ask(host="10.0.0.7")
    serve(bench, backend, AUTH_OK, 1)
    (tmp_path / "next").mkdir()
    fresh = Bench(tmp_path / "next", backend, concurrency=1, waiting=2)
    fresh.control.follow(bench.control)
    strangers = [fresh.ask(host=f"11.{n}.0.1") for n in range(3)]
    assert not fresh.ask(host="10.0.0.7") and strangers[2][0].reason_code == 0x89
    assert fresh.ask(host="10.0.0.8")[0].reason_code == 0x89


def test_nobody_is_asked_about_who_has_gone_while_it_waited(tmp_path: Path) -> None:
    """Each of them cost a password check, and others' time to wait."""
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=100, breaker_failures=1)
    gone: set[int] = set()
    results = [bench.ask(gone=lambda number=number: number in gone) for number in range(40)]
    gone.update(range(39))
    serve(bench, backend, WRONG, 1)  # who has been asked about is answered, there or not
    assert [result[0].reason_code for result in results if result] == [0x86] + [0x88] * 38
    assert backend.asked == 2 and bench.events == bench.errors == []
    serve(bench, backend, AUTH_OK, 1)
    assert results[39][0].ok
    assert bench.figures()["deny"] == 1


def test_who_has_gone_fails_no_log_in(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=100)
    counted: list[str] = []
    bench.control.on_count = counted.append
    for _ in range(2):
        bench.ask(gone=lambda: True)
    serve(bench, backend, AUTH_OK, 1)
    assert counted == []
