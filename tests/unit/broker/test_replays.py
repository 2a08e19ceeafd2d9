"""Retained messages that a subscription is still to get: over a break, and beside what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.records import Record, record_of, restore
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from mqttd.session.routes.route import NO_LOCAL, OWED
from mqttd.storage.recovery import read as contents
from mqttd.storage.restore import restore as recover
from mqttd.types import SessionState
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.storage.test_journal import Kept, make

STAYS = {prop.SESSION_EXPIRY_INTERVAL: 1000}
NARROW = {**STAYS, prop.RECEIVE_MAXIMUM: 1}


def retained(broker: Broker, count: int, qos: int = 1) -> None:
    for number in range(count):
        broker.publish_text(f"r/{number}", b"old", qos, True)


def answered(packet: Packet) -> list[Packet]:
    if isinstance(packet, Publish) and packet.qos:
        answer = Puback if packet.qos == 1 else Pubrec
        return [answer(packet.packet_id)]
    return [Pubcomp(packet.packet_id)] if isinstance(packet, Pubrel) else []


def read(client: MemoryClient, most: int = 1 << 30) -> list[Publish]:
    """What comes while its reader acknowledges, until so many have come; those it leaves be."""
    got: list[Publish] = []
    idle = 0
    while idle < 3 and len(got) < most:
        idle += 1
        client.node.run_soon()
        for packet in client.take():
            idle = 0
            if isinstance(packet, Publish):
                got.append(packet)
            if len(got) <= most:
                client.send(*answered(packet))
    return got


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_has_not_gone_when_the_connection_breaks_goes_on_with_the_next(
    version: int, qos: int
) -> None:
    """It was lost, though the client was told that its session is there (4.1)."""
    node = MemoryBroker()
    retained(node.broker, 500, 2)
    properties = STAYS if version == 5 else None
    client = node.connect("c", version, clean=False, properties=properties)
    client.send(Subscribe(1, [Subscription("r/#", qos)]))
    got = read(client, 150)
    client.drop()
    # What is retained anew meanwhile comes as a message, and once.
    node.broker.publish_text("r/0", b"new", 2, True)
    node.broker.publish_text("r/late", b"new", 2, True)
    client = node.connect("c", version, clean=False, properties=properties)
    assert client.connack is not None and client.connack.session_present
    got += read(client)
    assert {packet.topic for packet in got} == {f"r/{n}" for n in range(500)} | {"r/late"}
    first = [(packet.topic, packet.payload) for packet in got if not packet.dup]
    assert len(first) == len(set(first))
    assert [p.retain for p in got if p.payload == b"new"] == [False, False]
    account = client.session.account
    client.drop()
    assert node.broker.registry.end_session("c", 0x98, "kicked")
    for number in range(500):
        node.broker.publish_text(f"r/{number}", b"", 1, True)
    node.broker.publish_text("r/late", b"", 1, True)
    assert node.broker.retainer.root.first is None, "a place is left in the tree"
    assert account.replays == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("away", [False, True])
def test_what_is_new_of_a_topic_does_not_overtake_what_is_retained_of_it(
    qos: int, away: bool
) -> None:
    """MQTT-4.6.0-5, -6."""
    node = MemoryBroker()
    node.settings.mqueue_store_qos0 = True
    node.broker.publish_text("a", b"first", 1)
    retained(node.broker, 300, qos)
    client = node.connect("c", 5, clean=False, properties=NARROW)
    client.send(Subscribe(1, [Subscription("a", 1), Subscription("r/#", qos)]))
    node.broker.publish_text("a", b"in flight", 1)
    client.send(Subscribe(2, [Subscription("+/+", qos)]))
    if away:
        client.drop()
    for number in range(0, 300, 7):
        node.broker.publish_text(f"r/{number}", b"new", qos)
    if away:
        client = node.connect("c", 5, clean=False, properties=NARROW)
    got = read(client)
    for number in range(300):
        came = [(p.payload, p.retain) for p in got if p.topic == f"r/{number}" and not p.dup]
        if qos or not away:  # else it may have gone with the connection
            assert came[0] == (b"old", True)
        assert (b"new", False) in came if number % 7 == 0 else (b"new", False) not in came
        assert came == sorted(came, key=lambda one: one[1], reverse=True)


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_retained_later_than_the_subscription_comes_once(version: int) -> None:
    """As to any subscription that is there (MQTT-3.3.1-12); a QoS 2 message came twice."""
    node = MemoryBroker()
    node.settings.max_inflight = 1
    retained(node.broker, 1)
    client = node.connect("c", version)
    client.send(Subscribe(1, [Subscription("r/0", 1)]))
    client.send(Subscribe(2, [Subscription("b", 2), Subscription("b/#", 2)]))
    node.broker.publish_text("b", b"once", 2, True)
    got = [(p.topic, p.retain) for p in read(client)]
    assert sorted(got) == [("b", False), ("r/0", True)]


def test_retained_messages_of_qos_0_wait_for_no_window() -> None:
    node = MemoryBroker()
    retained(node.broker, 10)
    client = node.connect("c", 5, properties=NARROW)
    client.send(Subscribe(1, [Subscription("r/1", 1)]))
    assert [p.qos for p in client.published()] == [1]
    client.send(Subscribe(2, [Subscription("r/#", 0)]))
    assert [p.qos for p in client.published()] == [0] * 10


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("apart", [False, True])
def test_each_subscribe_to_a_filter_has_what_is_retained_sent(version: int, apart: bool) -> None:
    """MQTT-3.8.4-5: filters of one packet are as packets of their own; -4: "re-sent".

    The second of two replaced the first, which had not begun or was not at its end.
    """
    node = MemoryBroker()
    node.settings.max_inflight = 1
    retained(node.broker, 3, 2)
    client = node.connect("c", version)
    first, second = Subscription("r/#", 1), Subscription("r/#", 2)
    if apart:
        client.send(Subscribe(1, [first]), Subscribe(2, [second]))
    else:
        client.send(Subscribe(1, [first, Subscription("r/0", 1), second]))
    node.broker.publish_text("r/2", b"new", 1)
    got = read(client)
    assert sorted((p.topic, p.qos) for p in got if p.retain) == sorted(
        [(f"r/{number}", qos) for number in range(3) for qos in (1, 2)]
        + ([] if apart else [("r/0", 1)])
    )
    of_last = [p.payload for p in got if p.topic == "r/2"]
    assert of_last == [b"old", b"old", b"new"], "MQTT-4.6.0-6"
    assert client.session.replays is None and client.session.account.replays == 0


@pytest.mark.parametrize(
    ("handling", "copies"), [((0, 0), 2), ((0, 1), 1), ((1, 1), 1), ((0, 2), 1), ((2, 0), 1)]
)
def test_a_filter_twice_in_a_packet_has_its_own_retain_handling(
    handling: tuple[int, int], copies: int
) -> None:
    """MQTT-3.3.1-9 to -11."""
    node = MemoryBroker()
    retained(node.broker, 3)
    client = node.connect("c", 5)
    twice = [Subscription("r/#", 1, retain_handling=one) for one in handling]
    client.send(Subscribe(1, twice))
    assert sorted(p.topic for p in read(client)) == sorted(["r/0", "r/1", "r/2"] * copies)


def test_of_many_subscribes_to_a_filter_some_wait_and_the_last_is_heard() -> None:
    """They would hold memory, and each is asked for what goes ahead of a delivery."""
    node = MemoryBroker()
    retained(node.broker, 2)
    client = node.connect("c", 5, properties=NARROW)
    client.send(
        Subscribe(1, [Subscription("r/#", 1)] * 1000), Subscribe(2, [Subscription("r/#", 0)])
    )
    assert len(client.session.all_replays()) <= 16
    got = read(client)
    assert 17 < len(got) <= 32 and [p.qos for p in got[-2:]] == [0, 0]
    client.send(Subscribe(3, [Subscription("r/#", 1)] * 3), Unsubscribe(4, ["r/#"]))
    assert client.session.replays is None and client.session.account.replays == 0


def topics(packets: list[Publish]) -> set[str]:
    return {packet.topic for packet in packets}


def test_after_a_restart_what_is_retained_is_still_owed(tmp_path: Path) -> None:
    """From the first on: what the client has had of it comes again."""
    first = make(tmp_path)
    retained(first.node.broker, 200)
    client = first.client("c", kept=True)
    client.send(Subscribe(1, [Subscription("r/#", 1, no_local=True), Subscription("r/1", 1)]))
    first.settle()
    assert len(client.published()) == 100  # the window; nothing is acknowledged
    first.node.broker.perform()
    first.settle()
    first.base.close()

    again = restarted(tmp_path)
    client = again.client("c", kept=True)
    got: list[Publish] = []
    for _ in range(5):
        got += read(client)
        again.node.broker.perform()
        again.settle()
    assert topics(got) == {f"r/{n}" for n in range(200)}
    assert client.session.subscriptions == {"r/#": 1 | NO_LOCAL, "r/1": 1}
    again.base.close()

    last = restarted(tmp_path)
    client = last.client("c", kept=True)
    assert not read(client), "all of it has gone"
    last.base.close()


@pytest.mark.parametrize("handling", [0, 2])
def test_what_is_owed_outlasts_a_second_subscribe(tmp_path: Path, handling: int) -> None:
    """Where that asks for no retained messages the store forgot that the first was owed some."""
    first = make(tmp_path)
    retained(first.node.broker, 200)
    client = first.client("c", kept=True)
    client.send(Subscribe(1, [Subscription("r/#", 1)]))
    client.send(Subscribe(2, [Subscription("r/#", 1, retain_handling=handling)]))
    first.settle()
    first.base.close()

    again = restarted(tmp_path)
    client = again.client("c", kept=True)
    got: list[Publish] = []
    for _ in range(5):
        got += read(client)
        again.node.broker.perform()
        again.settle()
    assert topics(got) == {f"r/{n}" for n in range(200)}
    again.base.close()

    last = restarted(tmp_path)
    client = last.client("c", kept=True)
    assert not read(client), "all of it has gone"
    last.base.close()


def restarted(path: Path) -> Kept:
    kept = make(path)
    stored = contents(kept.base, kept.ledger)
    recover(kept.node.broker, kept.journal, kept.base, stored)
    return kept


def test_a_session_that_moves_takes_along_what_it_is_owed() -> None:
    here, there = MemoryBroker(), MemoryBroker()
    for node in (here, there):
        retained(node.broker, 10)
    client = here.connect("c", 5, clean=False, properties=NARROW)
    client.send(Subscribe(1, [Subscription("r/#", 1)]))
    record = record_of(here.broker, client.session)
    session = restore(there.broker, "c", SessionState(record, (), 0), Record(record))
    there.broker.registry.put_back(session)
    client = there.connect("c", 5, clean=False, properties=NARROW)
    assert topics(read(client)) == {f"r/{n}" for n in range(10)}


def full(node: MemoryBroker) -> MemoryClient:
    """A client whose window is full, and who has set all that is retained below `own`."""
    client = node.connect("c", 5, clean=False, properties=NARROW)
    for number in range(3):
        client.send(Publish(f"own/{number}", b"old", 0, True))
    client.send(Subscribe(1, [Subscription("r/0", 1)]))
    client.take()
    return client


def test_a_replay_that_finds_nothing_waits_for_no_window() -> None:
    """It held up those of other filters, and was marked as owed."""
    node = MemoryBroker()
    retained(node.broker, 3)
    client = full(node)
    client.send(
        Subscribe(2, [Subscription("own/#", 1, no_local=True), Subscription("r/+", 0)]),
        Subscribe(3, [Subscription("r/+/none", 1), Subscription("r/#", 0)]),
    )
    assert [p.topic for p in client.published()] == ["r/2", "r/1", "r/0"] * 2
    assert not client.session.replays


def test_what_is_deleted_while_it_waits_holds_up_nobody() -> None:
    node = MemoryBroker()
    retained(node.broker, 3)
    client = full(node)
    client.send(Subscribe(2, [Subscription("r/1", 1), Subscription("r/2", 1)]))
    client.send(Subscribe(3, [Subscription("r/+", 0)]))
    assert client.published() == []
    for topic in ("r/1", "r/2"):
        node.broker.retainer.delete(topic)
    client.session.drain()
    node.broker.perform()
    assert [p.topic for p in client.published()] == ["r/0"]


def test_retained_messages_of_qos_0_wait_for_no_window_of_a_higher_subscription() -> None:
    node = MemoryBroker()
    retained(node.broker, 1)
    client = full(node)
    node.broker.publish_text("z", b"zero", 0, True)
    client.send(Subscribe(2, [Subscription("z", 2)]))
    assert [p.payload for p in client.published()] == [b"zero"]


def test_one_that_finds_nothing_is_not_owed(tmp_path: Path) -> None:
    first = make(tmp_path)
    retained(first.node.broker, 3)
    client = full(first.node)
    first.settle()
    client.take()
    client.send(
        Subscribe(2, [Subscription("own/#", 1, no_local=True), Subscription("r/+", 1)]),
        Subscribe(3, [Subscription("own/+", 1, no_local=True)]),
    )
    first.settle()
    rows = first.base.execute("SELECT filter FROM subscription WHERE options & ?", (OWED,))
    assert rows.fetchall() == [("r/+",)]
    assert [f for f, o, _ in Record(record_of(first.node.broker, client.session)).subscriptions
            if o & OWED] == ["r/+"]  # fmt: skip
    first.base.close()
