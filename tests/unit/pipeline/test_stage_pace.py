"""A batch of Spark's sink goes out as receivers take it, and waits for nobody for long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from mqttd.broker.publish.queues import _LOOKED, PLENTY, Queues
from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Subscription
from mqttd.pipeline.stage_pace import HELD
from mqttd.testing import MemoryBroker, MemoryClient
from tests.unit.pipeline.test_staging import Node, Task, rows

QUEUE = 20
MANY = [b"%d" % i for i in range(300)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.broker.settings.mqueue_max_length = QUEUE
    made.broker.settings.max_inflight = 10
    yield made
    made.stop()
    assert not made.faults


def release(task: Task, number: int, *payloads: bytes, query: str = "q", qos: int = 1) -> None:
    """Stage these, and ask for their release."""
    data = rows(*payloads, topic="all/a", qos=qos)
    assert task.ask(f"put/{query}/s{number}/0", data)["ok"]
    asked = {prop.RESPONSE_TOPIC: f"$mqttd/reply/{task.name}", prop.CORRELATION_DATA: b"2"}
    stages = json.dumps({f"s{number}": 1}).encode()
    task.client.publish(f"$mqttd/stage/release/{query}/{number}", stages, 1, properties=asked)


def answered(node: Node, task: Task, each: Callable[[], object], most: float) -> float:
    """How many seconds the answer takes, `each` called in each turn."""
    since = node.clock.seconds()
    while node.clock.seconds() - since < most:
        node.turn()
        each()
        if answers := task.client.messages():
            assert json.loads(answers[0].payload)["ok"]
            return node.clock.seconds() - since
    raise AssertionError("no answer")


def quiet(node: Node, name: str, topic_filter: str = "all/#", **more: Any) -> MemoryClient:
    """A receiver that acknowledges nothing by itself."""
    client = node.connect(name, **more)
    client.subscribe(Subscription(topic_filter, 1))
    client.acknowledge = False
    return client


class Taking:
    """Takes so many messages a turn."""

    def __init__(self, client: MemoryClient, count: int) -> None:
        self.client = client
        self.count = count
        self.taken: list[bytes] = []
        self._waiting: list[Any] = []

    def __call__(self) -> None:
        self._waiting += self.client.messages()
        some, self._waiting = self._waiting[: self.count], self._waiting[self.count :]
        self.taken += [one.payload for one in some]
        for one in some:
            self.client.send(Puback(one.packet_id))


def figures(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(node.loaded.command("stage"))
    return told


@pytest.mark.parametrize("topic_filter", ["all/#", "$share/g/all/#"])
def test_a_receiver_that_takes_it_slowly_loses_nothing(node: Node, topic_filter: str) -> None:
    task = node.task()
    slow = Taking(quiet(node, "slow", topic_filter), 7)
    release(task, 0, *MANY)
    answered(node, task, slow, 20)
    while len(slow.taken) < len(MANY):
        slow()
    assert slow.taken == MANY
    told = figures(node)
    assert told["dropped"] == 0 and told["held_seconds"] > 1


def test_one_that_takes_nothing_is_waited_for_once(node: Node) -> None:
    task = node.task()
    stuck = quiet(node, "stuck")
    release(task, 0, *MANY)
    with capturedLogs() as told:
        assert 4.9 < answered(node, task, lambda: None, 20) < 7
    dropped = figures(node)["dropped"]
    assert dropped == len(MANY) - 10 - QUEUE
    assert node.loaded.metrics()["batch_dropped_total"] == dropped
    assert any("batch 0 of q: 270 deliveries were dropped" in str(formatEvent(e)) for e in told)
    release(task, 1, *MANY[:100])
    assert answered(node, task, lambda: None, 20) < 3
    # It takes something: it is waited for again, and loses nothing.
    taking = Taking(stuck, 7)
    taking()
    release(task, 2, *MANY[:100])
    dropped = figures(node)["dropped"]
    answered(node, task, taking, 20)
    assert figures(node)["dropped"] == dropped


def test_who_is_away_holds_nobody(node: Node) -> None:
    task = node.task()
    kept = {prop.SESSION_EXPIRY_INTERVAL: 1000}
    away = quiet(node, "away", clean_start=False, properties=kept)
    away.drop()
    release(task, 0, *MANY)
    assert answered(node, task, lambda: None, 20) < 3
    assert figures(node)["dropped"] == len(MANY) - QUEUE


def test_a_batch_is_held_for_so_long_and_holds_no_other_query(node: Node) -> None:
    one, two = node.task("one"), node.task("two")
    slow = Taking(quiet(node, "slow"), 1)
    turn = 0

    def seldom() -> None:
        nonlocal turn
        turn += 1
        if not turn % 20:
            slow()

    release(one, 0, *MANY)
    for _ in range(10):
        node.turn()
    assert two.ask("put/other/a/0", rows(b"x"))["ok"]
    assert two.release(0, "a", query="other")["published"] == 1
    assert not one.client.messages()
    assert HELD - 3 < answered(node, one, seldom, 2 * HELD) < HELD + 5
    assert figures(node)["dropped"] > 0


def test_a_release_that_is_asked_for_again_waits_for_the_first(node: Node) -> None:
    task = node.task()
    slow = Taking(quiet(node, "slow"), 7)
    release(task, 0, *MANY)
    node.turn()
    again = node.task("again")
    asked = {prop.RESPONSE_TOPIC: "$mqttd/reply/again", prop.CORRELATION_DATA: b"2"}
    again.client.publish("$mqttd/stage/release/q/0", b'{"s0": 1}', 1, properties=asked)
    answered(node, task, slow, 20)
    answered(node, again, slow, 5)
    while len(slow.taken) < len(MANY):
        slow()
    assert slow.taken == MANY


def test_qos_0_waits_for_nobody(node: Node) -> None:
    task = node.task()
    quiet(node, "stuck")
    release(task, 0, *MANY[:100])
    release(task, 1, *MANY[:100], query="p", qos=0)
    assert answered(node, task, lambda: None, 20) < 2


def test_so_many_receivers_are_looked_at() -> None:
    node = MemoryBroker()
    queues = Queues(node.broker)
    assert queues.room(["a"], 100) == PLENTY
    client = node.connect("one")
    client.subscribe("a", qos=1)
    assert queues.room(["a", "b"], 100) == 1000
    client.acknowledge = False
    for _ in range(1050):
        node.publish("a", b"x" * 100, 1)
    assert queues.room(["a"], 100) == 50
    assert queues.room(["a"], 4 << 20) == 1
    # Who takes QoS 0 alone has no queue, and is counted.
    node.connect("two").subscribe("c", qos=0)
    assert queues.room(["c"], 100) == PLENTY
    assert queues.room(["c"] * (_LOOKED - 1) + ["a"], 100) == 50
    assert queues.room(["c"] * _LOOKED + ["a"], 100) == PLENTY
