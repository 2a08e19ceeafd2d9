"""What the supervisor decides by itself: where clients belong, what is refused, what adds up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ProcessTerminated
from twisted.python.failure import Failure

from mqttd.workers import process, sums
from mqttd.workers.place import VARIABLE, Place, count_of, place_of, worker_of


@given(st.text(), st.integers(1, 64))
def test_every_client_has_a_worker(client_id: str, count: int) -> None:
    assert 1 <= worker_of(client_id, count) <= count
    assert worker_of(client_id, count) == worker_of(client_id, count)


def test_clients_are_shared_out_evenly() -> None:
    found = Counter(worker_of(f"client-{n}", 4) for n in range(10_000))
    assert all(2_300 < each < 2_700 for each in found.values())


def test_a_place_is_what_the_environment_says() -> None:
    place = Place(2, 3, 3, {"tcp:default": 4})
    assert place_of({VARIABLE: place.dump()}) == place
    assert place_of({}) is None
    assert count_of(3) == 3
    assert count_of("cores") >= 1


def test_figures_add_up_but_for_what_all_have() -> None:
    each: list[dict[str, float]] = [
        {"sessions": 2, "retained_messages": 7, "messages_sent": 10, "messages_crossed": 0},
        {"sessions": 3, "retained_messages": 7, "messages_sent": 4, "messages_crossed": 4},
    ]
    assert sums.counted(each) == {
        "sessions": 5,
        "retained_messages": 7,
        "messages_sent": 10,
        "messages_crossed": 4,
    }


def test_a_worker_s_lines_become_entries_of_the_log() -> None:
    found: list[tuple[Any, ...]] = []
    worker = process.WorkerProcess(
        2, None, lambda *entry: found.append(entry), lambda *_: None, lambda *_: None
    )
    line = (
        b'{"time": "2026-11-22T08:31:02.125Z", "level": "info", "module": "mqttd.broker",'
        b' "message": "connected", "client_id": "lamp"}\nno JSON\n'
    )
    for at in range(len(line)):
        worker.logged(line[at : at + 1])
    told = (1795336262.125, "info", "mqttd.broker", "connected",
            {"client_id": "lamp", "worker": 2}, "")  # fmt: skip
    assert found[0] == told
    assert found[1][1:5] == ("warn", "mqttd", "no JSON", {"worker": 2})


def test_listeners_of_all_workers_have_the_sum_of_what_each_takes() -> None:
    one = {"id": "tcp:default", "state": "running", "connections": 1, "max_connections": 10}
    found = sums.listeners_of([[one], [{**one, "connections": 2}]])
    assert found == [{**one, "connections": 3, "max_connections": 20}]


def test_17_a_worker_that_ends_again_and_again_is_down_until_it_has_lived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(process.time, "monotonic", lambda: now)
    worker = process.WorkerProcess(
        2, None, lambda *_: None, lambda *_: None, lambda one, why: pauses.append(one.next_pause())
    )
    pauses: list[float] = []

    def serves() -> str:
        worker.serves()
        worker.said({"alive": True})
        return worker.down

    def ends() -> str:
        worker.over(Failure(ProcessTerminated(signal=9)))
        return worker.down

    assert serves() == ""
    now += 60
    worker.said({"alive": True})
    assert ends() == "ended by SIGKILL"
    assert serves() == ""  # once is no habit
    now += 1
    assert ends() == "ended by SIGKILL, 2 times in a row"
    assert serves() == "ended by SIGKILL, 2 times in a row"
    now += 5.5
    assert worker.down == "gives no sign of life"
    worker.said({"alive": True})
    assert worker.down == ""
    assert ends() == "ended by SIGKILL"
    assert pauses == [0.1, 0.2, 0.1]
