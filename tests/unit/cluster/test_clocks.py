"""That nodes' clocks differ is an alarm, and that what they say was late is none."""

from __future__ import annotations

import pytest

from mqttd.broker.ground.alarms import Alarms
from mqttd.cluster.admin.clocks import ALARM, FAR, NEAR, OF, Clocks

NOW = 1_000_000.0


class Node:
    """One that hears what others say of their clocks."""

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.linked = {"b", "c"}
        self.changes: list[str] = []
        self.alarms.listeners.append(lambda event, fields: self.changes.append(event))
        self.clocks = Clocks(self.alarms, self.linked.__contains__, lambda: NOW)

    def hears(self, name: str, *ahead: float) -> str:
        for by in ahead:
            self.clocks.told(name, NOW + by)
        return next((alarm.text for alarm in self.alarms.active() if alarm.name == ALARM), "")


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.parametrize("by", [7200.0, FAR, -FAR, -10.0])
def test_a_clock_that_is_far_off_is_said_until_it_is_near(node: Node, by: float) -> None:
    assert not node.hears("b", *[by] * (OF - 1))
    said = node.hears("b", by)
    assert f"b is {abs(by):.0f} s {'ahead of' if by > 0 else 'behind'} it" in said
    assert node.hears("b", *[by] * OF) == said
    assert node.hears("b", *[(FAR + NEAR) / 2] * OF) == said
    assert not node.hears("b", *[NEAR / 2] * OF)
    assert len(node.changes) == 2


def test_what_has_waited_on_its_way_is_no_other_clock(node: Node) -> None:
    assert not node.hears("b", *[-30.0, -20.0, -10.0, -5.0, -0.1] * 2)


def test_all_that_are_off_are_in_one_alarm_and_those_that_are_gone_in_none(node: Node) -> None:
    node.hears("b", *[10.0] * OF)
    said = node.hears("c", *[-10.0] * OF)
    assert "b is 10 s ahead of it, c is 10 s behind it" in said
    node.linked.remove("b")
    node.clocks.tick()
    assert "b is" not in node.hears("c") and "c is" in node.hears("c")
    node.linked.clear()
    node.clocks.tick()
    assert not node.hears("c")
