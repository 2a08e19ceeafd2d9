"""Messages noted as bytes, and as whole messages: whichever way they go, the log has the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscription
from mqttd.codec.properties import decode_properties
from mqttd.codec.serializer import serialize
from mqttd.pipeline.log import packed
from mqttd.pipeline.log.blocks import Taken, encode_block, parse_header
from mqttd.pipeline.log.columns import TEXT, Columns
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import PAYLOADS, joined, pack, taken_of
from mqttd.pipeline.log.packed import Columns as Packed
from mqttd.pipeline.log.zstd import zstd
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.route import MISSED, NOTED
from mqttd.testing import MemoryBroker
from tests.unit.pipeline.test_blocks import rows

PROPERTIES: list[Any] = [
    None,
    None,
    {prop.CONTENT_TYPE: "text", prop.USER_PROPERTY: [("k", "v"), ("k", "w")]},
    {prop.MESSAGE_EXPIRY_INTERVAL: 7},
    {prop.RESPONSE_TOPIC: "b", prop.CORRELATION_DATA: b"\x00\x01", prop.MESSAGE_EXPIRY_INTERVAL: 1},
]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Publish]]:
    """Who publishes, and packets that differ in their payloads at most."""
    qos = draw(st.sampled_from([0, 0, 1, 2]))
    topic = draw(st.sampled_from(["a", "a/b", "nobody", "other", "$mqttd/x"]))
    retain = draw(st.integers(0, 4)) == 0
    client = draw(st.integers(0, 1))
    properties = draw(st.sampled_from(PROPERTIES)) if client else None
    count, size = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([0, 3, 20]))
    payloads = [draw(st.binary(min_size=size, max_size=size)) for _ in range(count)]
    return client, [
        Publish(topic, payload, qos, retain, False, 0, dict(properties) if properties else None)
        for payload in payloads
    ]


def noted(
    story: list[tuple[int, list[Publish]]], hooks: tuple[str, ...], **changed: Any
) -> list[Any]:
    """What is kept of a story by a broker with these hooks and settings."""
    limits = Settings()
    for name, value in changed.items():
        setattr(limits, name, value)
    node = MemoryBroker(limits)
    columns = Columns(10_000, lambda: None, lambda: None, limit=10)
    node.broker.add_notes(columns, ["a/#", "nobody", "$mqttd/#"])
    for point in hooks:
        node.hooks.hook(point, lambda *args: None)
    node.connect("reader").subscribe(Subscription("a/#", 2))
    clients = [node.connect("old", version=4), node.connect("new", username="user")]
    for number, (who, packets) in enumerate(story):
        data = b""
        for at, packet in enumerate(packets):
            packet.packet_id = number * 10 + at + 1 if packet.qos else 0
            data += serialize(packet, 5 if who else 4)
        clients[who].feed(data)
    if not columns.count:
        return []
    found = []
    for event in decode_block(pack(columns.take(), 0), "n"):
        block = event.properties
        properties = decode_properties(block, 0, len(block), 3)[0] if block else {}
        assert event.message_id is not None
        assert int.from_bytes(event.message_id, "big") >> 64 == event.timestamp
        found.append((*event[2:4], *event[5:14], properties))
    return found


@settings(max_examples=20, deadline=None)
@given(story=st.lists(runs(), min_size=1, max_size=8))
@pytest.mark.slow
def test_bytes_and_whole_messages_say_the_same(story: list[tuple[int, list[Publish]]]) -> None:
    fast = noted(story, ())
    assert fast == noted(story, (), fast_path=False)
    assert fast == noted(story, (), coalesce_runs=False)
    assert fast == noted(story, ("message.publish",))
    assert fast == noted(story, ("message.dropped", "message.delivered"))
    count = sum(len(packets) for _, packets in story if packets[0].topic in ("a", "a/b", "nobody"))
    assert len(fast) == count


@given(st.lists(rows(), min_size=1, max_size=20))
def test_columns_and_the_slow_way_say_the_same(found: list[Any]) -> None:
    columns = Columns(10_000, lambda: None, lambda: None)
    for row in found:
        columns.append(row)
    taken = columns.take()
    plain = encode_block(found, 7, 3)
    whole = taken.columns.copy()
    whole[PAYLOADS] = b"".join((whole[PAYLOADS], *taken.pieces))
    assert taken_of(found) == taken._replace(columns=whole, pieces=())
    for codec in (None, zstd(), zstd(9)):
        data = pack(taken, 7, 3, codec)
        assert list(decode_block(data, "n")) == list(decode_block(plain, "n"))
        ours, theirs = parse_header(data), parse_header(plain)
        assert (ours.base, ours.rows, ours.mask) == (theirs.base, theirs.rows, theirs.mask)
        assert (ours.first_time, ours.last_time) == (theirs.first_time, theirs.last_time)


@given(st.lists(st.lists(rows(), min_size=1, max_size=5), min_size=1, max_size=5))
def test_blocks_that_are_joined_say_what_they_said(batches: list[list[Any]]) -> None:
    parts = []
    for batch in batches:
        columns = Columns(10_000, lambda: None, lambda: None)
        for row in batch:
            columns.append(row)
        taken = columns.take()
        data = pack(taken, 0, 0, zstd())
        parts.append(Taken(Packed(data).all(), *taken[1:5]))
    whole = encode_block([row for batch in batches for row in batch], 0)
    data = pack(joined(parts), 0)
    assert [*decode_block(data, "n")] == [*decode_block(whole, "n")]


def test_14_deliveries_are_noted_as_hooks_tell_of_them() -> None:
    node = MemoryBroker()
    columns = Columns(10_000, lambda: None, lambda: None)
    told: list[tuple[str, str, str, int]] = []

    def hear(point: str) -> None:
        node.hooks.hook(
            point,
            lambda client, message: told.append(
                (point, client.client_id, message.topic, message.id)
            ),
        )

    def noted() -> list[tuple[str, str, str, int]]:
        return [
            (one.event, one.client_id, one.topic, int.from_bytes(one.message_id or b"", "big"))
            for one in decode_block(pack(columns.take(), 0), "n")
        ]  # fmt: skip

    token = node.broker.add_deliveries(columns, True, True)
    for point in ("message.delivered", "message.acked"):
        hear(point)
    for name, qos in (("zero", 0), ("one", 1), ("two", 2)):
        node.connect(name, username="user").subscribe(Subscription("a/#", qos))
    alice = node.connect("alice")
    for topic in ("a/b", "nobody"):
        for qos in (0, 1, 2):
            alice.publish(topic, b"x", qos)
    assert len(told) == 9 + 4 and noted() == told
    node.broker.remove_deliveries(token)
    told.clear()
    # Of some topics, and what becomes of them only.
    node.broker.add_deliveries(columns, False, True, ["a/c"])
    for topic in ("a/b", "a/c"):
        alice.publish(topic, b"x", 2)
    assert noted() == [one for one in told if one[0] == "message.acked" and one[2] == "a/c"]
    assert len(told) == 10


@pytest.mark.parametrize("hooked", [False, True])
def test_long_topics_are_weighed_however_few_bytes_bring_them(hooked: bool) -> None:
    """By aliases: 20,000 bytes bring 60 MB of topics, and as many for who receives them."""
    limits = Settings()
    limits.max_inflight = limits.receive_maximum = 65535
    node = MemoryBroker(limits)
    taken: list[Taken] = []
    columns = Columns(16_384, lambda: None, lambda: taken.append(columns.take()))
    node.broker.add_notes(columns)
    node.broker.add_deliveries(columns, True, True)
    if hooked:
        node.hooks.hook("message.publish", lambda *args: None)
    reader = node.connect("r" * 200)
    reader.subscribe(Subscription("#", 1))
    writer = node.connect("writer")
    both = ["a/" * 100 + "x" * 60_000, "b/" * 100 + "y" * 60_000]
    alias = prop.TOPIC_ALIAS
    writer.feed(b"".join(
        serialize(Publish(topic, b"", 1, False, False, at + 1, {alias: at + 1}), 5)
        for at, topic in enumerate(both)))  # fmt: skip
    writer.feed(b"".join(
        serialize(Publish("", b"", 1, False, False, at + 3, {alias: at % 2 + 1}), 5)
        for at in range(1000)))  # fmt: skip
    reader.take()
    told = 0
    for one in taken:
        assert sum(map(len, one.columns)) < TEXT + 2 * 2**17
        told += one.rows
    assert told + columns.count >= 2 * 1002
    assert len(taken) > 20


@pytest.mark.parametrize("gears", ["runs", "hooked", "told"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_reaches_nobody_is_noted_behind_what_was_published(gears: str, qos: int) -> None:
    """Whether the messages are bytes on their way, or somebody looks at each."""
    node = MemoryBroker()
    columns = Columns(16_384, lambda: None, lambda: None)
    node.broker.add_notes(columns)
    node.broker.add_deliveries(columns, False, False, None, False, True)
    if gears == "hooked":
        node.hooks.hook("message.publish", lambda *args: None)
    elif gears == "told":
        node.hooks.hook("message.delivered", lambda *args: None)
    route = node.broker.router.of("away")
    assert route.gear & MISSED and (gears != "runs" or route.gear == MISSED | NOTED)
    writer = node.connect("writer")
    packets = [Publish("away", b"%02d" % at, qos, False, False, at + 1) for at in range(12)]
    packets += [Publish(f"away/{at}", b"", qos, False, False, at + 20) for at in range(12)]
    packets.append(Publish("kept", b"x", qos, True, False, 40))
    writer.feed(b"".join([serialize(packet, 5) for packet in packets]))
    node.connect("reader").subscribe(Subscription("here", 0))
    writer.feed(serialize(Publish("here", b"yes", qos, False, False, 41), 5))
    assert not node.broker.router.of("here").gear & MISSED
    events = list(decode_block(pack(columns.take(), 0), "n"))
    published = [(one.message_id, one.topic) for one in events if one.event == "message.publish"]
    unheard = [one for one in events if one.event == "message.dropped"]
    assert [(one.message_id, one.topic) for one in unheard] == published[:-1]
    assert {(one.client_id, one.reason) for one in unheard} == {("writer", "no_subscriber")}
    assert len(published) == 26


def test_what_a_hook_has_made_of_a_message_is_noted_once() -> None:
    from mqttd.types import OK, STOP

    node = MemoryBroker()
    columns = Columns(10_000, lambda: None, lambda: None)
    token = node.broker.add_notes(columns)
    node.hooks.hook(
        "message.publish",
        lambda message: STOP(None) if message.topic == "b" else OK(message.replace(payload=b"y")),
    )
    alice = node.connect("alice")
    for topic in ("a", "b"):
        for qos in (0, 1, 2):
            alice.publish(topic, b"x", qos)
    events = list(decode_block(pack(columns.take(), 0), "n"))
    assert [(one.topic, one.qos, one.payload) for one in events] == [
        ("a", 0, b"y"), ("a", 1, b"y"), ("a", 2, b"y"),
    ]  # fmt: skip
    node.broker.remove_notes(token)
    alice.publish("a", b"x")
    assert not columns.count


@given(st.lists(st.integers(0, (1 << 64) - 1)), st.sampled_from([1, 2, 4, 8]))
def test_numbers_are_sorted_by_their_bytes_and_back(numbers: list[int], width: int) -> None:
    data = b"".join((number % (1 << 8 * width)).to_bytes(width, "little") for number in numbers)
    found = packed.shuffled(data, width)
    assert found[: len(numbers)] == bytes(number & 255 for number in numbers)
    assert packed.gathered(found, width) == data
