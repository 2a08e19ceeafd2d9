"""Those who wait for a module are answered in as many turns as they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.access.test_guard import Backend, Bench


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
