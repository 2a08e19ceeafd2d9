"""A 3.1.1 client does not acknowledge: it is sent the message again while the connection lives."""

from __future__ import annotations

from mqttd.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Subscription
from tests.support.memory import MemoryBroker, MemoryClient

INTERVAL = 30_000
#: It looks once in this time: the wheel may be a little late.
LOOK = INTERVAL + 1_000


def pair() -> tuple[MemoryBroker, MemoryClient, MemoryClient]:
    node = MemoryBroker()
    node.settings.retry_interval = INTERVAL
    reader, writer = node.connect("reader"), node.connect("writer")
    reader.send(Subscribe(1, [Subscription("#", 2)]))
    reader.take()
    return node, reader, writer


def publish(writer: MemoryClient, payload: bytes, packet_id: int, qos: int = 1) -> None:
    writer.send(Publish("t", payload, qos, packet_id=packet_id))


def test_what_is_not_acknowledged_for_an_interval_comes_again() -> None:
    node, reader, writer = pair()
    publish(writer, b"first", 1)
    publish(writer, b"second", 2)
    reader.take()
    node.advance(LOOK)
    publish(writer, b"later", 3)
    reader.send(Puback(1))
    reader.take()
    node.advance(LOOK)
    again = reader.published()
    assert [(packet.payload, packet.packet_id, packet.dup) for packet in again] == [
        (b"second", 2, True)
    ]
    node.advance(LOOK)
    assert [packet.payload for packet in reader.published()] == [b"second", b"later"]


def test_a_new_message_under_an_id_that_was_free_again_is_not_sent_twice() -> None:
    node, reader, writer = pair()
    for packet_id in (1, 2, 3):
        publish(writer, b"old", packet_id)
    node.advance(LOOK)
    for packet_id in (1, 2, 3):
        reader.send(Puback(packet_id))
        publish(writer, b"new", packet_id)
    reader.take()
    node.advance(LOOK)
    assert reader.published() == []
    node.advance(LOOK)
    assert [packet.payload for packet in reader.published()] == [b"new"] * 3


def test_after_pubrec_it_is_pubrel_that_comes_again() -> None:
    node, reader, writer = pair()
    publish(writer, b"x", 1, 2)
    reader.take()
    node.advance(LOOK)
    reader.send(Pubrec(1))
    assert reader.take() == [Pubrel(1)]
    node.advance(LOOK)
    assert reader.take() == [Pubrel(1)]
    reader.send(Pubcomp(1))
    node.advance(2 * LOOK)
    assert reader.take() == []


def test_a_new_connection_begins_anew() -> None:
    node, reader, writer = pair()
    reader = node.connect("reader", clean=False)
    reader.send(Subscribe(1, [Subscription("#", 2)]))
    publish(writer, b"x", 1)
    node.advance(LOOK)
    reader.drop()
    reader = node.connect("reader", clean=False)
    assert [packet.payload for packet in reader.published()] == [b"x"]
    node.advance(LOOK)
    assert reader.published() == []
    node.advance(LOOK)
    assert [packet.payload for packet in reader.published()] == [b"x"]
