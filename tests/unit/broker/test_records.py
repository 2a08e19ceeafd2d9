"""What a session is owed, as packets: the bytes that are there, or others that say the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.records import Record, queue_of, record_of, restore
from mqttd.cluster.sessions.packets import Packets
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.parser import parse_packet
from mqttd.session.session import Session
from mqttd.types import SessionState
from tests.support.memory import MemoryBroker
from tests.unit.storage.test_apart import lay_apart
from tests.unit.storage.test_journal import make

EXPIRES = {prop.SESSION_EXPIRY_INTERVAL: 600}
#: What a message may have.
PROPERTIES = [
    None,
    {prop.CONTENT_TYPE: "x"},
    {prop.MESSAGE_EXPIRY_INTERVAL: 100},
    {prop.MESSAGE_EXPIRY_INTERVAL: 100, prop.RESPONSE_TOPIC: "r"},
]


def slow(broker: Publishing, session: Session) -> list[bytes]:
    """The same by taking each message apart."""
    packets: list[bytes] = []
    sent = session.pending_in_flight()
    for at, delivery in enumerate(sent + session.queued()):
        if at >= len(sent) and delivery.expires_at and delivery.expires_at <= broker.now:
            continue
        message = delivery.copy().get_message(1)
        identifiers = delivery.identifiers
        if identifiers is None and delivery.v5:
            apart = parsed(delivery.wire)
            identifiers = (apart.properties or {}).get(prop.SUBSCRIPTION_IDENTIFIER)  # type: ignore[assignment]
        retain = delivery.wire[0] & 1 == 1
        packets.append(message.wire(delivery.qos, retain, True, identifiers, broker.now))
    return packets


def parsed(wire: bytes) -> Publish:
    at = 1
    while wire[at] & 0x80:
        at += 1
    packet = parse_packet(wire[0], wire[at + 1 :], 5)
    assert isinstance(packet, Publish)
    return packet


def told(packets: list[bytes]) -> list[tuple[object, ...]]:
    """What they say, without the ids that the record has."""
    found = [parsed(wire) for wire in packets]
    assert all(bool(packet.packet_id) == bool(packet.qos) for packet in found)
    return [
        (packet.topic, packet.payload, packet.qos, packet.retain, packet.properties)
        for packet in found
    ]


def owed(
    node: MemoryBroker, reader: int, writer: int, identifier: int, group: str
) -> tuple[Session, int]:
    """A session with some in flight and some queued, of all kinds; and how many."""
    node.broker.settings.max_inflight = 3
    client = node.connect("reader", reader, clean=reader < 5, properties=EXPIRES)
    properties = {prop.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else None
    wanted = Subscription(group + "t/#", 2, False, True)
    client.send(Subscribe(1, [wanted], properties if reader == 5 else None))
    node.run_soon()
    publisher = node.connect("writer", writer)
    packet_id = 0
    count = 0
    for qos, retain, more in itertools.product((0, 1, 2), (False, True), PROPERTIES):
        if writer < 5 and more is not None:
            continue
        packet_id += bool(qos)
        publisher.send(
            Publish(f"t/{count}", b"%d" % count, qos, retain, False, packet_id if qos else 0, more)
        )
        count += 1
    session = node.broker.sessions["reader"]
    return session, count


@pytest.mark.parametrize("group", ["", "$share/g/"])
@pytest.mark.parametrize("identifier", [0, 7])
@pytest.mark.parametrize("writer", [4, 5])
@pytest.mark.parametrize("reader", [4, 5])
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "store"])
def test_a_queue_is_given_as_the_bytes_that_are_there_or_as_what_they_say(
    tmp_path: Path, kept: bool, reader: int, writer: int, identifier: int, group: str
) -> None:
    store = make(tmp_path) if kept else None
    node = MemoryBroker() if store is None else store.node
    if store is not None:
        node.broker.settings.mqueue_in_memory = 200
    session, _ = owed(node, reader, writer, identifier, group)
    session.set_expiry(600)
    if store is not None:
        store.settle()
    node.broker.now += 3_000
    packets = queue_of(node.broker, session)
    assert len(packets) > 3
    assert told(packets) == told(slow(node.broker, session))
    state = SessionState(record_of(node.broker, session), tuple(packets), 1)
    other = MemoryBroker()
    again = restore(other.broker, "reader", state, Record(state.record))
    before = told(packets)
    assert told(queue_of(other.broker, again)) == before
    # A store takes the bytes of all that does not expire, and no copy of them.
    assert all(
        each.bare() or ((each.expires_at or each.group) and not each.message)
        for each in again.queued()
    )
    marked = [parsed(wire).dup for wire in packets]
    queue = itertools.chain(again.pending_in_flight(), again.queued())
    assert [each.group is not None for each in queue] == marked
    if group and not kept:
        assert marked == [parsed(wire).qos > 0 for wire in packets]
    else:
        assert group or not any(marked)
    if store is not None:
        store.base.close()


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "store"])
def test_what_waits_for_an_older_connection_goes_with_its_identifiers(
    tmp_path: Path, kept: bool
) -> None:
    """In flight, queued, and queued in the file alone."""
    store = make(tmp_path) if kept else None
    node = MemoryBroker() if store is None else store.node
    node.broker.settings.max_inflight = 2
    if store is not None:
        lay_apart(store, in_memory=300)
    client = node.connect("reader", 5, properties={prop.SESSION_EXPIRY_INTERVAL: 600})
    client.send(Subscribe(1, [Subscription("t", 1)], {prop.SUBSCRIPTION_IDENTIFIER: [7]}))
    client.drop()
    node.connect("reader", 4, False)
    publisher = node.connect("writer", 4)
    publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 7)))
    if store is not None:
        store.settle()
    packets = [parsed(wire) for wire in queue_of(node.broker, node.broker.sessions["reader"])]
    assert [packet.payload for packet in packets] == [b"%d" % n for n in range(1, 7)]
    assert all(packet.properties == {prop.SUBSCRIPTION_IDENTIFIER: [7]} for packet in packets)
    if store is not None:
        store.base.close()


@pytest.mark.parametrize("leaves", ["a part at a time", "at once"])
@pytest.mark.parametrize("expiry", [5, 50])
def test_what_expires_while_a_session_moves_is_counted(expiry: int, leaves: str) -> None:
    """Before it left, and on its way: nobody knew of it."""
    here, there = MemoryBroker(), MemoryBroker()
    client = here.connect("reader", 5, False, properties=EXPIRES)
    client.send(Subscribe(1, [Subscription("t", 1)]))
    client.drop()
    told: list[tuple[str, str]] = []
    for node in (here, there):
        node.hooks.hook(
            "delivery.dropped", lambda of, why, message: told.append((of.client_id, why))
        )
    writer = here.connect("writer", 5)
    expires = {prop.MESSAGE_EXPIRY_INTERVAL: expiry}
    writer.send(*(Publish("t", b"", 1, False, False, n, expires) for n in (1, 2)))
    writer.send(Publish("t", b"stays", 1, packet_id=3))
    here.advance(10_000)
    there.advance(100_000)

    def packets(session: Session) -> Sequence[bytes]:
        return Packets(here.broker, session)

    registry = here.broker.registry
    if leaves == "at once":
        state = registry.hand_over("reader", 2)
    else:
        state = registry.hand_over("reader", 2, packets)
    assert state is not None
    for _ in range(2):  # it is sent again
        assert len([each for each in state.queue if each]) == (3 if expiry == 50 else 1)
    there.broker.registry.keep("reader", 2, state)
    counts = here.broker.metrics.dropped_expired, there.broker.metrics.dropped_expired
    assert counts == ((0, 2) if expiry == 50 else (2, 0))
    assert told == [("reader", "expired")] * 2
    assert there.broker.sessions["reader"].held() == 1


def test_what_comes_along_is_held_to_no_share_of_the_store(tmp_path: Path) -> None:
    """It was acknowledged where it comes from: what comes later may be too much."""
    here, there = MemoryBroker(), make(tmp_path)
    client = here.connect("reader", 5, False, properties=EXPIRES)
    client.send(Subscribe(1, [Subscription("t", 1)]))
    client.drop()
    writer = here.connect("writer", 5)
    writer.send(*(Publish("t", b"x", 1, packet_id=n) for n in range(1, 6)))
    state = here.broker.registry.hand_over("reader", 2)
    assert state is not None
    broker = there.node.broker
    broker.account.most_kept = 10
    broker.registry.keep("reader", 2, state)
    assert broker.sessions["reader"].held() == 5
    writer = there.node.connect("writer", 5)
    writer.send(Publish("t", b"x", 1, packet_id=1))
    there.settle()
    assert broker.sessions["reader"].held() == 5
    assert broker.metrics.dropped_store_share == 1
    there.base.close()


@pytest.mark.parametrize("away", [False, True])
def test_hooks_hear_once_of_a_session_that_another_process_takes_over(away: bool) -> None:
    node = MemoryBroker()
    told: list[str] = []
    node.hooks.hook("session.takenover", lambda client, acc: told.append(client.client_id))
    client = node.connect("reader", 5, False, properties=EXPIRES)
    if away:
        client.drop()
    assert node.broker.registry.hand_over("reader", 2) is not None
    assert told == ["reader"]
