"""The hook recorder sees what ran, in order, after everybody else."""

from __future__ import annotations

import pytest

from mqttd.broker.hooks.points import POINTS
from mqttd.testing import HookRecorder, MemoryBroker
from mqttd.types import OK, STOP


def test_a_life_of_a_client_is_recorded() -> None:
    node = MemoryBroker()
    with HookRecorder(node.hooks) as seen:
        alice = node.connect("alice")
        alice.subscribe("t", qos=1)
        alice.publish("t", b"x", 1)
        alice.disconnect()
    for point in (
        "client.connect",
        "client.connected",
        "session.created",
        "client.subscribe",
        "message.publish",
        "message.delivered",
        "message.acked",
        "client.disconnected",
        "session.terminated",
    ):
        assert point in seen.points
    assert seen.only("message.publish").acc.payload == b"x"
    assert seen.only("client.connected").args[0].client_id == "alice"
    assert len(seen) == len(list(seen)) == len(seen.points)


def test_it_sees_the_accumulator_after_all_others_and_not_what_was_stopped() -> None:
    node = MemoryBroker()
    seen = HookRecorder(node.hooks, "message.publish")

    def change(message):  # type: ignore[no-untyped-def]
        if message.topic == "stop":
            return STOP
        return OK(message.replace(payload=b"changed"))

    node.hook("message.publish", change, priority=-100)
    node.publish("t", b"x")
    node.publish("stop", b"x")
    assert seen.only("message.publish").acc.payload == b"changed"
    seen.clear()
    with pytest.raises(AssertionError, match="ran 0 times"):
        seen.only("message.publish")


def test_stopped_it_leaves_no_hook() -> None:
    node = MemoryBroker()
    seen = HookRecorder(node.hooks)
    seen.stop()
    seen.stop()
    assert not any(node.hooks.listening(point) for point in POINTS)
