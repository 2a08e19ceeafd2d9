"""`why`: messages that are lost on purpose, in each way there is, and the reason that is told.

A few of each in CI, a thousand with MQTTD_LONG=1.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told as ctl
from tests.support.etcd import start_etcd
from tests.support.nodes import Nodes, start_nodes
from tests.support.waiting import until

COUNT = 1000 if os.environ.get("MQTTD_LONG") == "1" else 3
#: A session that stays.
STAYS = [(0x11, 3600)]
EXPIRY, MAXIMUM_PACKET_SIZE = 0x02, 0x27

ACL = """{deny, all, publish, ["denied/#"]}.
{allow, all}.
"""
HOOK = """
from mqttd.types import OK, STOP

def stops(message):
    return STOP(None)

def looks(message):
    return OK

service.hooks.hook("message.publish", stops, topic_filter="hooked/#")
service.hooks.hook("message.publish", looks, priority=9)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = start_broker(
        tmp_path_factory.mktemp("why"), acl=ACL, program=HOOK,
        mqueue={"max_length": 2 * COUNT + 100, "max_bytes": "64MiB"},
        output={"high_watermark": "64KiB", "low_watermark": "4KiB"},
        retained={"max_payload": "64B"},
        trace={"rate": 20000},
    )  # fmt: skip
    yield started
    started.stop()


def api(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data/mqttd.sock"))


def lost(broker: Broker, topic: str, **more: Any) -> list[dict[str, Any]]:
    """The messages on these topics that were lost, once there are as many as there must be."""
    query = {"topic": topic, "lost": "true", "limit": 200, **more}
    found: list[dict[str, Any]] = []

    def all_there() -> bool:
        found.clear()
        cursor = None
        while True:
            page = api(broker).get("/why", cursor=cursor, **query)
            found.extend(page["messages"])
            cursor = page["cursor"]
            if cursor is None:
                return len(found) >= COUNT

    until(all_there, f"{COUNT} of {topic}")
    assert len(found) == COUNT
    return found


def reasons(broker: Broker, topic: str) -> set[tuple[str, str, str]]:
    """Reason, receiver and detail of what was lost there."""
    return {
        (step["reason"], step.get("receiver", ""), step.get("detail", ""))
        for life in lost(broker, topic)
        for step in life["steps"]
        if step["what"] == "lost"
    }


def client(broker: Broker, client_id: str, **more: Any) -> RawClient:
    return RawClient(broker.port, mq.V5).connect(client_id, **more)


def away(broker: Broker, client_id: str, topic_filter: str, qos: int = 1, **more: Any) -> None:
    """A session that subscribes, and whose client goes."""
    subscriber = client(broker, client_id, props=STAYS, **more)
    subscriber.subscribe(topic_filter, qos=qos)
    subscriber.disconnect()


def each(publish: Callable[[str, bytes], object], topic: str, payload: bytes = b"x") -> None:
    for number in range(COUNT):
        publish(f"{topic}/{number}", payload)


@pytest.fixture
def publisher(broker: Broker) -> Iterator[RawClient]:
    made = client(broker, "publisher")
    yield made
    made.disconnect()


def test_nobody_has_subscribed(broker: Broker, publisher: RawClient) -> None:
    each(lambda topic, payload: publisher.publish(topic, payload), "nobody")
    assert reasons(broker, "nobody/#") == {("no_subscriber", "", "")}
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "nobody1")
    assert reasons(broker, "nobody1/#") == {("no_subscriber", "", "")}


def test_access_control_denies(broker: Broker, publisher: RawClient) -> None:
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "denied")
    ((reason, receiver, rule),) = reasons(broker, "denied/#")
    assert (reason, receiver) == ("denied", "")
    assert "acl.conf:1" in rule


def test_a_hook_stops(broker: Broker, publisher: RawClient) -> None:
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "hooked")
    ((reason, _, detail),) = reasons(broker, "hooked/#")
    assert reason == "hook"
    assert "stops" in detail


def test_a_queue_is_full(broker: Broker, publisher: RawClient) -> None:
    away(broker, "full", "full/#")
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "full/first")
    for number in range(COUNT + 100):
        publisher.publish(f"full/other/{number}", b"", 1)
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "full/last")
    assert reasons(broker, "full/first/#") == {("queue_full", "full", "")}


def test_a_message_expires(broker: Broker, publisher: RawClient) -> None:
    away(broker, "late", "expires/#")
    for number in range(COUNT):
        publisher.publish(f"expires/{number}", b"x", 1, props=[(EXPIRY, 1)])

    end = time.monotonic() + 1
    until(lambda: time.monotonic() > end, "the interval to run out")
    late = client(broker, "late", clean=False, props=STAYS)
    late.ping()
    late.disconnect()
    assert reasons(broker, "expires/#") == {("expired", "late", "")}


def test_a_message_is_too_large(broker: Broker, publisher: RawClient) -> None:
    small = client(broker, "small", props=[(MAXIMUM_PACKET_SIZE, 64)])
    small.subscribe("large/#", qos=1)
    for qos in (0, 1):
        topic = f"large/{qos}"
        each(lambda topic, payload, qos=qos: publisher.publish(topic, payload, qos), topic,
             b"x" * 64)  # fmt: skip
        assert reasons(broker, f"{topic}/#") == {("too_large", "small", "")}
    small.disconnect()


def test_a_reader_is_slow(broker: Broker, publisher: RawClient) -> None:
    slow = RawClient(broker.port, mq.V5, sock=_narrow(broker.port)).connect("slow")
    slow.subscribe("slow/#")
    payload = b"x" * 60000
    until(lambda: publisher.publish("slow/fill", payload) or _dropped(broker) > 0)
    each(lambda topic, payload: publisher.publish(topic, payload), "slow/lost", payload)
    assert reasons(broker, "slow/lost/#") == {("slow_consumer", "slow", "")}
    slow.reset()


def _dropped(broker: Broker) -> int:
    return int(api(broker).get("/metrics")["counters"]["dropped_slow_consumer"])


def _narrow(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.settimeout(20)
    return made


def test_a_session_ends(broker: Broker, publisher: RawClient) -> None:
    away(broker, "ends", "ends/#")
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "ends")
    client(broker, "ends").disconnect()  # Clean Start
    ((reason, receiver, _),) = reasons(broker, "ends/#")
    assert (reason, receiver) == ("session_ended", "ends")


def test_the_last_member_of_a_group_goes(broker: Broker, publisher: RawClient) -> None:
    away(broker, "member", "$share/g/grouped/#")
    each(lambda topic, payload: publisher.publish(topic, payload, 1), "grouped")
    client(broker, "member").disconnect()
    ((reason, receiver, detail),) = reasons(broker, "grouped/#")
    assert (reason, receiver) == ("member_gone", "member")
    assert "no other member" in detail


def test_a_client_is_away_at_qos_0(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, mqueue={"store_qos0": False}, trace={"rate": 20000})
    try:
        away(broker, "away", "away/#", 0)
        with_one = client(broker, "publisher")
        each(lambda topic, payload: with_one.publish(topic, payload), "away")
        assert reasons(broker, "away/#") == {("offline_qos0", "away", "")}
    finally:
        broker.stop()


def test_retained_messages_have_no_room(broker: Broker, publisher: RawClient) -> None:
    each(lambda topic, payload: publisher.publish(topic, payload, 1, retain=True), "kept",
         b"x" * 65)  # fmt: skip
    ((reason, _, detail),) = reasons(broker, "kept/#")
    assert reason == "retained_full"
    assert "no room" in detail


def test_memory_is_shed(tmp_path: Path) -> None:
    """QoS 0 that would wait, and the session that holds most of a full memory."""
    broker = start_broker(
        tmp_path, store={"kind": "memory"}, memory={"budget": "8MiB"},
        mqueue={"max_length": 100_000, "max_bytes": "1GiB"}, trace={"rate": 20000},
    )  # fmt: skip
    try:
        away(broker, "quiet", "quiet/#", 0)
        away(broker, "shed", "shed/#", 1)
        publisher = client(broker, "publisher")
        each(lambda topic, payload: publisher.publish(topic, payload), "quiet/waits")
        each(lambda topic, payload: publisher.publish(topic, payload, 1), "shed/first")

        def is_shed() -> bool:
            publisher.publish("shed/fill", b"x" * 200_000, 1)
            return bool(api(broker).get("/metrics")["counters"]["memory_shed"])

        until(is_shed)
        assert reasons(broker, "quiet/waits/#") == {("memory", "quiet", "")}
        ((reason, receiver, detail),) = reasons(broker, "shed/first/#")
        assert (reason, receiver) == ("session_ended", "shed")
        assert "full memory" in detail
    finally:
        broker.stop()


def test_the_store_takes_nothing(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, store={"max_bytes": "64KiB"}, trace={"rate": 20000})
    try:
        away(broker, "kept", "kept/#", 1)
        publisher = client(broker, "publisher")

        def is_full() -> bool:
            answer = publisher.publish("kept/fill", b"x" * 8000, 1)
            assert answer is not None
            return bool(answer.reason == 0x97)

        until(is_full)
        each(lambda topic, payload: publisher.publish(topic, payload, 1), "kept/lost")
        assert reasons(broker, "kept/lost/#") == {("not_kept", "", "")}
    finally:
        broker.stop()


def test_there_is_no_way_to_a_node(tmp_path: Path) -> None:
    """A node is killed: QoS 0 finds no link, QoS 1 waits for it until it is known to be gone."""
    etcd = start_etcd(tmp_path / "etcd")
    nodes: Nodes = {}
    try:
        nodes = start_nodes(
            tmp_path, etcd, {"one": {"lease": "3s"}, "two": {"lease": "3s"}},
            trace={"rate": 20000},
        )  # fmt: skip
        one, two = nodes["one"], nodes["two"]
        assert one.says("node two is linked")
        subscriber = client(two, "subscriber")
        subscriber.subscribe("node/#", qos=1)
        publisher = client(one, "publisher")
        two.stop(hard=True)
        subscriber.close()
        assert one.says("the link to node two is gone")
        each(lambda topic, payload: publisher.publish(topic, payload), "node/0")
        each(lambda topic, payload: publisher.publish(topic, payload, 1), "node/1")
        assert reasons(one, "node/0/#") == {("worker_away", "", "node two")}
        assert one.says("node two is gone")
        assert reasons(one, "node/1/#") == {("node_gone", "", "node two")}
    finally:
        for node in nodes.values():
            node.stop()
        etcd.stop()


# -- followed from hand to hand ------------------------------------------------------------------


def test_a_traced_topic_is_told_from_hand_to_hand(broker: Broker, publisher: RawClient) -> None:
    ctl(broker, "trace", "topic", "traced/#", "--for", "10m")
    subscriber = client(broker, "subscriber")
    subscriber.subscribe("traced/+", qos=1)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    publisher.publish("traced/1", b"four", 1, props=[(0x26, ("traceparent", parent))])
    subscriber.message(topic="traced/1")
    subscriber.ping()

    def known() -> dict[str, Any]:
        (life,) = api(broker).get("/why", topic="traced/#")["messages"]
        return dict(life)

    until(lambda: [one["state"] for one in known()["receivers"]] == ["acked"])
    life = known()
    steps = {step["what"]: step for step in life["steps"]}
    assert list(steps) == ["published", "asked", "sent", "routed", "acked"]
    assert steps["published"]["traceparent"] == parent
    assert "acl.conf:2" in steps["published"]["rule"]
    assert any("looks" in who for who, _ in steps["asked"]["hooks"])
    assert [one["topic_filter"] for one in steps["routed"]["filters"]] == ["traced/+"]
    assert life["lost"] == []
    text = ctl(broker, "why", life["id"])
    assert "acknowledged by subscriber" in text
    ctl(broker, "trace", "stop", "topic", "traced/#")
    publisher.publish("traced/2", b"", 1)
    subscriber.message(topic="traced/2")
    assert len(api(broker).get("/why", topic="traced/#")["messages"]) == 1
    subscriber.disconnect()


def test_a_traced_client_is_told_of(broker: Broker) -> None:
    watched, other = client(broker, "watched"), client(broker, "other")
    away(broker, "reader", "both/#")
    watched.publish("both/before", b"", 1)
    ctl(broker, "trace", "client", "watched")
    for number in range(3):
        watched.publish(f"both/{number}", b"", number % 3)
        other.publish(f"both/other/{number}", b"", 1)
    found = api(broker).get("/why", topic="both/#")["messages"]
    assert [life["topic"] for life in found] == ["both/2", "both/1", "both/0"]
    assert {one["state"] for life in found for one in life["receivers"]} == {"queued"}
    assert "watched" in ctl(broker, "trace", "list")
    ctl(broker, "trace", "stop", "client", "watched")
    watched.publish("both/after", b"", 1)
    assert len(api(broker).get("/why", client_id="watched")["messages"]) == 3
    watched.disconnect()
    other.disconnect()


def test_a_sample_is_followed_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, trace={"sample": 1.0})
    publisher = client(broker, "publisher")
    away(broker, "reader", "sampled/#")
    until(lambda: publisher.publish("sampled/1", b"", 1) is not None
          and len(api(broker).get("/why", topic="sampled/#")["messages"]) >= 3)  # fmt: skip
    life = api(broker).get("/why", topic="sampled/#")["messages"][0]
    broker.stop()
    broker = start_broker(tmp_path)
    try:
        assert api(broker).get(f"/why/{life['id']}") == life
        with pytest.raises(CtlError, match="nothing is kept"):
            api(broker).get("/why/" + "0" * 32)
    finally:
        broker.stop()


def test_a_flood_is_counted(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, trace={"rate": 1}, acl=ACL)
    try:
        publisher = client(broker, "publisher")
        for number in range(20):
            publisher.publish(f"denied/{number}", b"", 1)

        def counted() -> bool:
            found = api(broker).get("/why", reason="denied")
            kept = len(found["messages"])
            return bool(kept < 20 and kept + found["unrecorded"].get("denied", 0) == 20)

        until(counted)
    finally:
        broker.stop()
