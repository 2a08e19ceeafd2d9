"""What becomes of messages, kept as runs of bytes or told to hooks one by one: the same."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import pack
from mqttd.pipeline.log.parts import part_of
from mqttd.session.ground.message import Delivery
from mqttd.session.ground.runs import Run, joined
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.route import RECORDED, TOLD
from mqttd.testing import MemoryBroker

#: Who reads what: client id, version, QoS, more of the CONNECT.
READERS: list[tuple[str, int, int, dict[str, Any]]] = [
    ("zero", 4, 0, {}),
    ("one", 5, 1, {}),
    ("older", 4, 1, {"username": "user"}),
    ("two", 5, 2, {"properties": {prop.SESSION_EXPIRY_INTERVAL: 60}}),
    ("small", 5, 1, {"properties": {prop.MAXIMUM_PACKET_SIZE: 24, prop.RECEIVE_MAXIMUM: 1}}),
    ("alias", 5, 2, {"properties": {prop.TOPIC_ALIAS_MAXIMUM: 2}}),
    ("lent", 5, 1, {"properties": {prop.RECEIVE_MAXIMUM: 2}}),
    ("lent older", 4, 2, {}),
    ("lent zero", 5, 0, {}),
    ("marked", 5, 1, {}),
    ("as published", 5, 2, {}),
]
#: What they subscribe to, where it is not a/#.
FILTERS = dict.fromkeys(("lent", "lent older", "lent zero"), "$share/g/a/#")
Story = list[tuple[Any, ...]]


@st.composite
def bursts(draw: st.DrawFn) -> tuple[str, int, list[Publish]]:
    """Packets of one chunk: runs of them differ in their payloads alone."""
    packets: list[Publish] = []
    for _ in range(draw(st.integers(1, 3))):
        qos = draw(st.sampled_from([0, 0, 1, 1, 2]))
        topic = draw(st.sampled_from(["a", "a", "a/b", "nobody", "$mqttd/x"]))
        retain = draw(st.integers(0, 7)) == 0
        expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 9} if draw(st.integers(0, 7)) == 0 else None
        size = draw(st.sampled_from([0, 3, 20]))
        for _ in range(draw(st.sampled_from([1, 1, 4]))):
            packets.append(Publish(topic, b"x" * size, qos, retain, False, 0, expiry))
    return "publish", draw(st.integers(0, 1)), packets


stories = st.lists(
    st.one_of(
        bursts(),
        bursts(),
        bursts(),
        st.tuples(st.just("silent"), st.sampled_from(READERS)),
        st.tuples(st.just("answer"), st.sampled_from(READERS)),
        st.tuples(st.just("drop"), st.sampled_from(READERS)),
        st.tuples(st.just("hook"), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


def subscribe(client: Any, name: str, qos: int) -> None:
    """As this reader does."""
    published = name == "as published"
    marks = {prop.SUBSCRIPTION_IDENTIFIER: [7]} if name == "marked" else None
    wanted = Subscription(FILTERS.get(name, "a/#"), qos, published, published)
    client.send(Subscribe(1, [wanted], marks))


def lived(
    story: Story, who: set[str], hooked: bool, unheard: bool = False, **changed: Any
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What is kept of deliveries in a story, and what hooks hear where they are asked.

    With `unheard`, what a hook hears of messages that reach nobody is among what is kept.
    By event and client: the number of the publish it is of, topic, QoS and RETAIN as published,
    size of the payload.
    """
    limits = Settings()
    limits.max_inflight = 3
    limits.mqueue_store_qos0 = True
    for name, value in changed.items():
        setattr(limits, name, value)
    node = MemoryBroker(limits)
    columns = Columns(100_000, lambda: None, lambda: None)
    node.broker.add_notes(columns)
    node.broker.add_deliveries(columns, True, True)
    heard: defaultdict[Any, list[Any]] = defaultdict(list)

    def hear(point: str) -> None:
        node.hooks.hook(
            point,
            lambda client, message: heard[point, client.client_id].append(
                (message.id, message.topic, message.qos, message.retain, len(message.payload))
            ),
        )

    if hooked:
        hear("message.delivered")
        hear("message.acked")
    dropped: list[Any] = []
    if unheard:
        node.hook(
            "message.dropped",
            lambda client, reason, message: dropped.append(
                (message.id, message.topic, message.payload, message.properties, reason)
            ),
        )
    clients = {}
    for name, version, qos, more in READERS:
        if name in who:
            clients[name] = node.connect(name, version, clean_start=not more, **more)
            subscribe(clients[name], name, qos)
    publishers = [node.connect("old", 4), node.connect("new", 5)]
    packet_id = 0
    for step in story:
        if step[0] == "publish":
            data = b""
            for packet in step[2]:
                packet_id += 1
                packet.packet_id = packet_id if packet.qos else 0
                version = 5 if step[1] else 4
                data += serialize(packet, version)
            publishers[step[1]].feed(data)
        elif step[0] == "hook":
            node.hook("message.acked", lambda client, message: None, topic_filter="a/b")
        elif step[1][0] in clients:
            name, version, qos, more = step[1]
            if step[0] == "drop":
                clients[name].drop()
                clients[name] = node.connect(name, version, clean_start=not more, **more)
                subscribe(clients[name], name, qos)
            else:
                clients[name].acknowledge = step[0] == "answer"
        node.advance(1.0)
    assert not node.faults
    found: defaultdict[Any, list[Any]] = defaultdict(list)
    numbers: dict[int, int] = {}
    events = list(decode_block(pack(columns.take(), 0), "n")) if columns.count else []
    for one in events:
        number = int.from_bytes(one.message_id or b"", "big")
        if one.event == "message.publish":
            assert one.timestamp == number >> 64
            numbers[number] = len(numbers)
        else:
            assert one.timestamp >= number >> 64
            # What is sent to a new subscriber may have an id of its own.
            number = -1 if one.retain else numbers[number]
            row = (number, one.topic, one.qos, one.retain, one.payload_size)
            found[one.event, one.client_id].append(row)
    for row in dropped:
        if not row[1].startswith("$mqttd/"):
            found["message.dropped", ""].append((numbers[row[0]], *row[1:]))
    told = {
        key: [(-1 if row[3] else numbers[row[0]], *row[1:]) for row in rows]
        for key, rows in heard.items()
    }
    return dict(found), told


@settings(max_examples=30, deadline=None)
@given(stories, st.sets(st.sampled_from([name for name, *_ in READERS])), st.booleans())
@pytest.mark.slow
def test_deliveries_as_bytes_and_as_hooks_hear_of_them(
    story: Story, who: set[str], unheard: bool
) -> None:
    fast, _ = lived(story, who, False, unheard)
    kept, told = lived(story, who, True, unheard)
    assert {key: rows for key, rows in kept.items() if key[0] != "message.dropped"} == told
    assert fast == kept
    assert fast == lived(story, who, False, unheard, fast_path=False)[0]
    assert fast == lived(story, who, False, unheard, coalesce_runs=False)[0]


@st.composite
def told(draw: st.DrawFn) -> tuple[str, list[Run]]:
    """A client, and runs of up to four topics that may follow one another."""
    found: list[Run] = []
    number = draw(st.sampled_from([0, (1 << 64) - 4096]))
    came: int = draw(st.integers(0, 2))
    for _ in range(draw(st.integers(1, 30))):
        topic = str(draw(st.sampled_from(["a", "a", "ü/b", "", "$mqttd/x"]))).encode()
        size = draw(st.sampled_from([5, 5, 1 << 31]))
        run = Run(came, number, topic, draw(st.sampled_from([0, 2, 3])), size, draw(counts))
        number += run.count + draw(st.sampled_from([0, 0, 1]))
        came += draw(st.sampled_from([0, 0, 0, 1]))
        found.append(run)
    return draw(st.sampled_from(["one", "ö", ""])), found


counts = st.sampled_from([1, 1, 1, 3])


@given(
    st.lists(st.tuples(st.booleans(), told(), st.integers(1, 3)), min_size=1, max_size=5),
    st.sampled_from([1 << 16, 40_000]),
    st.booleans(),
)
def test_14_runs_are_kept_together_as_they_are_one_by_one(
    turns: list[tuple[bool, tuple[str, list[Run]], int]], sample: int, hidden: bool
) -> None:
    together = Columns(1 << 20, lambda: None, lambda: None)
    apart = Columns(1 << 20, lambda: None, lambda: None)
    for columns in (together, apart):
        columns.sample = sample
        columns.hide_topic = columns.hide_user = hidden
    for at, (acked, (client, found), clients) in enumerate(turns):
        runs = joined(found)
        for i in range(clients):
            together.note_deliveries(acked, at, f"{client}{i}", client or None, runs)
            for run in found:
                for more in range(run.count):
                    single = Run(run.came, run.number + more, run.topic, run.first, run.size)
                    apart.note_deliveries(acked, at, f"{client}{i}", client or None, [single])
    assert together.count == apart.count
    if apart.count:
        blocks = [pack(columns.take(), 9) for columns in (together, apart)]
        assert list(decode_block(blocks[0], "n")) == list(decode_block(blocks[1], "n"))


@given(told(), st.integers(0, 5), st.integers(0, 5), st.integers(-1, 40), st.booleans())
def test_what_was_published_and_what_became_of_it_are_made_of_the_same(
    found: tuple[str, list[Run]], at: int, later: int, limit: int, named: bool
) -> None:
    """A part that is used again is the one that would be made, where it can be."""
    runs = found[1]
    if not runs:
        return
    part = part_of(runs, at, limit, named)
    again = part.again(later)
    alike = len({(run.came, run.first) for run in runs}) == 1
    assert (again is not None) is alike
    if again is not None:
        made = part_of(runs, later, -1, named)
        for name in ("runs", "rows", "apart", "counts", "flags", "id_times", "ids", "topics",
                     "sizes"):  # fmt: skip
            assert getattr(again, name) == getattr(made, name)


def test_messages_of_a_topic_share_its_name() -> None:
    """As long as its route is in the table: a queue of thousands holds it once."""
    node = MemoryBroker()
    columns = Columns(100_000, lambda: None, lambda: None)
    node.broker.add_notes(columns)
    node.broker.add_deliveries(columns, True, True)
    away = node.connect("away", clean_start=False, properties={prop.SESSION_EXPIRY_INTERVAL: 60})
    away.subscribe(Subscription("a/#", 1))
    away.disconnect()
    alice = node.connect("alice")
    for number in range(3):
        for topic in ("a/b", "a/c"):
            alice.publish(topic, b"%d" % number, 1)
    weighed = node.broker.topics.bytes
    session = node.session("away")
    assert session is not None and session.mqueue is not None
    kept = [entry.run.topic for entry in session.mqueue.items() if isinstance(entry, Delivery)]
    assert kept == [b"a/b", b"a/c"] * 3
    assert len({id(topic) for topic in kept}) == 2
    assert node.broker.router.of("a/b").name is kept[0]
    node.broker.topics.drop_cache()
    assert weighed > 0 and node.broker.topics.bytes == 0
    alice.publish("a/b", b"again", 1)
    (last,) = session.mqueue.items()[6:]
    assert last.run.topic == b"a/b"


def test_14_a_run_of_deliveries_is_one_run_of_the_log() -> None:
    node = MemoryBroker()
    columns = Columns(100_000, lambda: None, lambda: None)
    node.broker.add_notes(columns)
    node.broker.add_deliveries(columns, True, True)
    for name in ("one", "other"):
        node.connect(name).subscribe(Subscription("a/#", 1))
    alice = node.connect("alice")
    assert node.broker.router.of("a/b").gear & (RECORDED | TOLD) == RECORDED
    for qos in (0, 1):
        packets = [
            Publish("a/b", b"%3d" % i, qos, False, False, i if qos else 0) for i in range(1, 9)
        ]
        alice.feed(b"".join(serialize(packet, 5) for packet in packets))
        taken = columns.take()
        # Published; to each of both; acknowledged by each.
        assert (taken.rows, len(taken.columns[1])) == ((24, 3), (40, 5))[qos]
    # Who keeps deliveries no more keeps those of this turn.
    node.broker.add_deliveries(columns, True, False, ["a/c"])
    assert node.broker.router.of("a/b").gear & (RECORDED | TOLD) == RECORDED


def missed(kept: bool, *hooked: str) -> list[tuple[Any, ...]]:
    """What receivers miss that are away, small, slow or full: kept as runs, or as a hook hears it.

    By client: the number of the publish, its topic, QoS, RETAIN and size, and the reason.
    """
    limits = Settings()
    limits.high_watermark = 4096
    limits.mqueue_max_length = 2
    limits.mqueue_store_qos0 = False
    node = MemoryBroker(limits)
    columns = Columns(100_000, lambda: None, lambda: None)
    node.broker.add_notes(columns)
    found: list[tuple[Any, ...]] = []
    if kept:
        node.broker.add_deliveries(columns, False, False, dropped=True)
    else:
        node.hook(
            "delivery.dropped",
            lambda client, reason, message: found.append(
                (client.client_id, client.username, message.id, message.topic, message.qos,
                 message.retain, len(message.payload), reason)
            ),
        )  # fmt: skip
    for point in hooked:
        node.hook(point, lambda client, message: None)
    assert node.broker.router.of("a/b").gear & RECORDED == (0 if hooked or not kept else RECORDED)
    small = {prop.MAXIMUM_PACKET_SIZE: 50}
    for name, version, qos, more in (
        ("away", 5, 1, {"properties": {prop.SESSION_EXPIRY_INTERVAL: 60}, "clean_start": False}),
        ("small", 5, 1, {"properties": small, "username": "u"}),
        ("slow", 4, 0, {"room": 1000}),
        ("slow too", 5, 1, {"room": 1000}),
    ):
        client = node.connect(name, version, **more)
        client.acknowledge = False
        client.subscribe(Subscription("a/#", qos))
        client.reading = "room" not in more
        if name == "away":
            client.drop()
    alice = node.connect("alice")
    packets = [Publish("a/b", b"x" * 100, i % 3, i == 4, False, i) for i in range(12)]
    packets += [Publish("a/b", b"x" * 90)] * 120
    for at in range(0, len(packets), 12):
        alice.feed(b"".join(serialize(packet, 5) for packet in packets[at : at + 12]))
    node.advance(1.0)
    assert not node.faults
    events = list(decode_block(pack(columns.take(), 0), "n"))
    names = [one.message_id for one in events if one.event == "message.publish"]
    if kept:
        found = [
            (one.client_id, one.username, int.from_bytes(one.message_id or b"", "big"), one.topic,
             one.qos, one.retain, one.payload_size, one.reason)
            for one in events
            if one.event == "delivery.dropped"
        ]  # fmt: skip
    return sorted(
        (row[0], row[1] or "", names.index(row[2].to_bytes(16, "big")), *row[3:]) for row in found
    )


def test_what_a_receiver_misses_is_kept_as_runs_and_the_same_as_a_hook_hears() -> None:
    # Exporting it made every delivery remember its message: ten times the CPU at QoS 0.
    kept = missed(True)
    assert {(row[0], row[-1]) for row in kept} == {
        ("away", "offline_qos0"),
        ("away", "queue_full"),
        ("small", "too_large"),
        ("slow", "slow_consumer"),
        ("slow too", "slow_consumer"),
    }
    assert kept == missed(False)
    assert kept == missed(True, "message.delivered")


def test_14_what_becomes_of_long_topics_is_told_before_much_of_them_is_held() -> None:
    # By Topic Alias a packet of some bytes names a topic of 64 KiB, and each run holds one.
    node = MemoryBroker()
    session = node.connect("one").channel.session
    columns = Columns(100_000, lambda: None, lambda: None)
    node.broker.add_deliveries(columns, True, False)
    for i in range(200):
        node.broker.deliveries.add(False, session, Run(1, 2 * i, b"%05d" % i * 13_000, 0, 1))
    assert columns.count > 100


def test_14_a_delivery_is_charged_with_the_topic_of_its_run() -> None:
    made = [Delivery(b"wire", 1, True, 1, 0, "alice") for _ in range(2)]
    for delivery, topic in zip(made, (b"a", b"a" * 10_000), strict=True):
        delivery.run = Run(1, 2, topic, 2, 1)
    assert made[1].weigh() - made[0].weigh() == 9_999
