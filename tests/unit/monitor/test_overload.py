"""The event loop's lateness, and what becomes of new clients while it is too late."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from mqttd.codec.packets import Connect, Pingreq, Pingresp
from mqttd.monitor.overload import Overload
from tests.support.memory import MemoryBroker


def test_a_single_pause_is_no_overload_a_second_of_them_is() -> None:
    told: list[bool] = []
    clock = Clock()
    overload = Overload(clock, 0.5, lambda begins, lag: told.append(begins))
    overload.start()
    clock.advance(0.25 + 2.0)
    assert overload.lag == pytest.approx(2.0)
    for _ in range(4):
        clock.advance(0.25)
    assert told == []
    assert overload.lag == 0
    for _ in range(4):
        clock.advance(0.25 + 0.6)
    assert told == [True]
    for _ in range(3):
        clock.advance(0.25)
    assert told == [True]  # not yet for a whole second
    clock.advance(0.25)
    assert told == [True, False]
    overload.stop()
    assert not clock.getDelayedCalls()


def test_without_a_threshold_it_only_measures() -> None:
    clock = Clock()
    overload = Overload(clock, 0, lambda begins, lag: pytest.fail("refuses"))
    overload.start()
    for _ in range(8):
        clock.advance(100)
    assert overload.lag > 99


@pytest.mark.parametrize("version,code", [(5, 0x89), (4, 3), (3, 3)])
def test_new_clients_are_refused_and_those_that_are_there_served(version: int, code: int) -> None:
    node = MemoryBroker()
    there = node.connect("there")
    node.broker.overloaded = True
    late = node.client(version)
    name = "MQIsdp" if version == 3 else "MQTT"
    late.send(Connect("late", version=version, protocol_name=name))
    assert late.read()[3] == code
    assert late.closed
    there.send(Pingreq())
    assert there.take() == [Pingresp()]
    assert node.broker.metrics.refused_overload == 1
    node.broker.overloaded = False
    node.connect("late", version=version)
