"""What the trail calls lost, and what it does not: messages that a plugin or the broker keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.admin.ctl.why import step_text
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.config.schema import Trace
from mqttd.monitor.trail import Trail
from mqttd.pipeline.log.columns import Columns
from mqttd.readmodel.why import Life
from mqttd.testing import MemoryBroker
from mqttd.types import STOP, HookResult
from mqttd_plugins.delayed import delayed


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def trail(node: MemoryBroker, tmp_path: Path) -> Iterator[Trail]:
    made = Trail(node.broker, Trace(), str(tmp_path / "why.jsonl"), clock=node.clock.seconds)
    made.start()
    yield made
    made.stop()


def life(trail: Trail) -> Life:
    """The one message that something is kept of."""
    (found,) = trail.why.find().messages
    return found


def steps(trail: Trail) -> list[str]:
    """What `mqttd-ctl why` says of it."""
    found = life(trail)
    texts = []
    for step in found.steps:
        fields = {name: getattr(step, name) for name in step.__struct_fields__}
        texts.append(step_text(fields))
    return texts


def test_a_message_that_is_delayed_is_held_and_then_lost_or_not(
    node: MemoryBroker, trail: Trail
) -> None:
    node.load(delayed)
    node.connect("alice").publish("$delayed/10/lamp", b"off")
    assert steps(trail) == ["held by plugin delayed until 2023-11-14 22:13:30 UTC"]
    assert (life(trail).lost, life(trail).answer) == ([], [])
    assert trail.why.find(lost=True).messages == []
    node.advance(11)
    assert steps(trail)[1:] == ["lost: no_subscriber"]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_reaches_nobody_is_lost_once_though_somebody_keeps_that(
    node: MemoryBroker, trail: Trail, hooked: bool, qos: int
) -> None:
    columns = Columns(1000, lambda: None, lambda: None)
    node.broker.add_deliveries(columns, False, False, unheard=True)
    if hooked:
        node.hooks.hook("message.publish", lambda *args: None)
    node.connect("alice").publish("lamp", b"off", qos)
    assert steps(trail) == ["lost: no_subscriber"] and columns.count == 1


def test_a_message_that_another_hook_stops_is_lost(node: MemoryBroker, trail: Trail) -> None:
    def stop(message: object) -> HookResult:
        return STOP(None)

    node.load(delayed)
    node.hooks.hook("message.publish", stop, topic_filter="a")
    alice = node.connect("alice")
    alice.publish("$delayed/10/lamp", b"off")
    alice.publish("a", b"")
    (found,) = trail.why.find(lost=True).messages
    assert (found.topic, found.lost) == ("a", ["hook"])


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_retained_is_not_lost_for_want_of_a_subscriber(
    node: MemoryBroker, trail: Trail, qos: int
) -> None:
    alice = node.connect("alice")
    for text in (b"on", b"off"):
        alice.publish("lamp", text, qos, retain=True)
    assert trail.why.find(lost=True).messages == []
    kept = trail.why.find().messages
    assert [step.what for found in kept for step in found.steps] == ["retained", "retained"]
    alice.publish("lamp/other", b"on", qos)
    (found,) = trail.why.find(lost=True).messages
    assert (found.topic, found.lost) == ("lamp/other", ["no_subscriber"])


@pytest.mark.parametrize("qos", [1, 2])
def test_what_another_member_of_its_group_has_is_not_lost(
    node: MemoryBroker, trail: Trail, qos: int
) -> None:
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 3600}
    for name in ("first", "second"):
        member = node.connect(name, 5, False, properties=expiry)
        member.send(Subscribe(1, [Subscription("$share/g/a", 2)]))
        member.drop()
        if name == "first":
            node.connect("alice").send(Publish("a", b"x", qos, packet_id=1))
    assert node.broker.registry.end_session("first", 0x98, "kicked")
    assert trail.why.find(lost=True).messages == []
    assert node.broker.registry.end_session("second", 0x98, "kicked")
    (found,) = trail.why.find(lost=True).messages
    assert found.steps[-1].reason == "member_gone"
    assert node.broker.metrics.dropped_session_ended == 1
