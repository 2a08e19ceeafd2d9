"""The fault injector fails in each way it names, and heals."""

from __future__ import annotations

import time
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from mqttd.interfaces import IRetainedStore
from mqttd.testing import FaultInjector, result_of
from tests.unit.testing.stores import MemoryRetained


def double(value: int) -> int:
    return 2 * value


def test_healthy_calls_go_through() -> None:
    faults = FaultInjector()
    assert faults.wrap(double)(2) == 4
    assert faults.calls == 1


def test_raising_for_a_while() -> None:
    faults = FaultInjector().raises(OSError("gone")).only(2)
    faulty = faults.wrap(double)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            faulty(1)
    assert faulty(1) == 2
    assert faults.calls == 3


def test_failing_deferreds() -> None:
    faulty: Any = FaultInjector().fails(OSError("gone")).wrap(double)
    with pytest.raises(OSError, match="gone"):
        result_of(faulty(1))


def test_slow_answers_come_by_the_clock() -> None:
    clock = Clock()
    faulty: Any = FaultInjector(clock).slow(2.0).wrap(double)
    answer: Deferred[int] = faulty(1)
    clock.advance(1.9)
    assert not answer.called
    clock.advance(0.2)
    assert result_of(answer) == 2
    with pytest.raises(ValueError, match="needs a clock"):
        FaultInjector().slow(1)


def test_blocking_holds_the_thread() -> None:
    begin = time.monotonic()
    assert FaultInjector().blocks(0.05).wrap(double)(1) == 2
    assert time.monotonic() - begin >= 0.05


def test_never_can_still_be_fired() -> None:
    faults = FaultInjector().never()
    answer: Any = faults.wrap(double)(1)
    with pytest.raises(AssertionError, match="has not fired"):
        result_of(answer)
    faults.hung[0].callback(7)


def test_a_provider_keeps_its_interface_and_fails_where_told() -> None:
    faults = FaultInjector()
    store = faults.around(MemoryRetained(), "put")
    verifyObject(IRetainedStore, store)
    faults.raises(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        store.put("alice", b"x")
    assert dict(store.load()) == {}
    faults.healthy()
    store.put("alice", b"x")
    assert dict(store.load()) == {"alice": b"x"}
