"""Topics whose words decide: the same receivers as a look-up gives, or none are named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.broker.routing import walks
from mqttd.codec.packets import Puback, Publish, Subscribe, Subscription, Unsubscribe
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import match
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import pack
from mqttd.session.channel.listener import Listener
from mqttd.session.routes.route import HELD, HOOKED, MISSED, NOTED, RECORDED, STUCK, TOLD
from tests.support.memory import MemoryBroker, MemoryClient

WORDS = ["a", "b", "c", "", "$x", "ü"]
topics = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("/".join).filter(len)
PLACES = ["", "a/", "a/b/"]
placed = st.tuples(st.sampled_from(PLACES), topics).map("".join)


@st.composite
def filters(draw: st.DrawFn) -> str:
    words = draw(st.lists(st.sampled_from([*WORDS, "+", "+"]), min_size=1, max_size=4))
    if draw(st.booleans()):
        words.append("#")
    return "/".join(words) or "+"


class Bench:
    """A broker that always looks ahead, and a client that sends two messages at a time."""

    def __init__(self, mountpoint: str = "") -> None:
        self.broker = MemoryBroker()
        self.mountpoint = mountpoint
        self.broker.access.free = True
        self.broker.settings.look_ahead = 0
        self.broker.settings.max_subscriptions = 10_000
        self.router = self.broker.broker.router
        self.stems = self.router.walks
        self.sender = self.broker.connect("sender")
        self.publish("first", "of all")  # asks who the sender is

    def subscriber(self, name: str, *topic_filters: str) -> MemoryClient:
        listeners = self.broker.broker.listeners
        listeners["memory"] = Listener("memory", mountpoint=self.mountpoint)
        made = self.broker.connect(name)
        del listeners["memory"]
        self.add(made, *topic_filters)
        return made

    def add(self, client: MemoryClient, *topic_filters: str) -> None:
        for one in topic_filters:  # one by one: more is more than a turn's work
            client.send(Subscribe(1, [Subscription(one, 1)]))
            client.read()

    def drop(self, client: MemoryClient, *topic_filters: str) -> None:
        for one in topic_filters:
            client.send(Unsubscribe(2, [one]))
            client.read()

    def publish(self, *names: str, qos: int = 0) -> None:
        packets = [
            Publish(name, name.encode() + b" " * 20, qos, packet_id=n + 1 if qos else 0)
            for n, name in enumerate(names)
        ]
        self.sender.feed(b"".join(serialize(packet, 4) for packet in packets))

    def leads(self, topic: str) -> bool:
        """Whether a stem serves this topic, whatever they have brought so far."""
        self.stems.worth = 0
        if not self.sender.channel.stems():
            return False
        raw = topic.encode()
        return self.stems.along(raw, 0, len(raw)) is not None


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), filters()),
            st.tuples(st.just("drop"), st.integers(0, 5)),
            st.tuples(st.just("send"), st.lists(placed, min_size=2, max_size=8)),
        ),
        min_size=2,
        max_size=12,
    ),
    qos=st.integers(0, 1),
    place=st.sampled_from(PLACES),
)
def test_messages_reach_whom_the_filters_say(
    steps: list[tuple[str, str | int | list[str]]], qos: int, place: str
) -> None:
    """Those of a client with a mountpoint, too, which knows nothing of it."""
    bench = Bench(place)
    reader = bench.subscriber("reader")
    held: list[str] = []
    for kind, what in steps:
        if kind == "add" and isinstance(what, str):
            held = [one for one in held if one != what] + [what]
            reader.send(Subscribe(1, [Subscription(what, 1)]))
            reader.read()
        elif kind == "drop" and isinstance(what, int) and what < len(held):
            reader.send(Unsubscribe(2, [held.pop(what)]))
            reader.read()
        elif isinstance(what, list):
            bench.publish(*what, qos=qos)
            bench.sender.read()
            got = reader.published()
            own = [name[len(place) :] for name in what if name.startswith(place)]
            wanted = [name for name in own if name and any(match(name, one) for one in held)]
            assert [packet.topic for packet in got] == wanted
            for packet in got:
                if packet.qos:
                    reader.send(Puback(packet.packet_id))


@pytest.mark.parametrize(
    ("topic_filters", "along", "looked_up"),
    [
        (["#"], ["a", "a/b", "/", "ü/b"], ["$a", "$SYS/b"]),
        (["a/#"], ["a/b", "a/b/c", "b/c", "a/", "a", "b"], []),
        (["+/t/#", "#"], ["x/t/7", "x/t/7/8", "x/u/7", "x/t", "x/7", "x"], ["$x/t"]),
        (["a/+"], ["b/c", "a/b/c", "a/b", "a"], []),
        (["a/+/c"], ["b/c", "a/b/c/d", "a/b/c", "a/b", "a/b/", "a/ü/c"], []),
        (["a/b"], ["b/c", "b"], ["a/b", "a/b/c", "a"]),  # literal: all that begin with `a`
        (["+/+/+/+/+/+/+/x"], ["1/2/3/4/5/6/7/x", "1/2/3/4/5/6/7/8", "1/2"], []),
        (["a/+", "$share/g/a/b/+"], ["a/b", "a/x/y"], ["a/b/c"]),
        ([], ["a", "b/c"], []),
    ],
)
def test_first_words_decide(
    bench: Bench, topic_filters: list[str], along: list[str], looked_up: list[str]
) -> None:
    bench.subscriber("reader", *topic_filters)
    bench.publish("other", "topics")
    assert [name for name in along if not bench.leads(name)] == []
    assert [name for name in looked_up if bench.leads(name)] == []


@pytest.mark.parametrize("topic_filter", ["#", "+/+"])
@pytest.mark.parametrize("raw", [b"", b"a/+", b"a/#", b"a/\0", b"a/\xff", b"a/\xed\xa0\x80"])
def test_what_is_no_topic_is_left_to_the_look_up(
    bench: Bench, topic_filter: str, raw: bytes
) -> None:
    bench.subscriber("reader", topic_filter)
    assert bench.leads("a/b")
    assert bench.stems.along(raw, 0, len(raw)) is None


def test_below_a_mountpoint_topics_are_looked_up(bench: Bench) -> None:
    """Where its clients have a wildcard in the first level, and nowhere else."""
    bench.subscriber("all", "#")
    bench.mountpoint = "dev/7/"
    lamp = bench.subscriber("lamp", "cmd/#")
    assert bench.leads("dev/7/on/1") and bench.leads("dev/8/on")
    bench.add(lamp, "+/on")
    assert not bench.leads("dev/7/on/1") and bench.leads("dev/8/on")
    bench.drop(lamp, "+/on")
    assert bench.leads("dev/7/on/1")


def test_limits_of_a_topic_hold(bench: Bench) -> None:
    bench.subscriber("reader", "#")
    bench.broker.settings.max_topic_levels = 3
    bench.broker.settings.max_topic_length = 10
    assert bench.leads("a/b/c") and not bench.leads("a/b/c/d")
    assert bench.leads("a" * 10) and not bench.leads("a" * 11)


def test_a_topic_longer_than_its_packet_ends_the_connection(bench: Bench) -> None:
    bench.subscriber("reader", "#")
    whole = serialize(Publish("a/b", b"x" * 40), 4)
    bench.sender.feed(whole + whole[:2] + b"\x7f\xff" + whole[4:] + whole)
    assert bench.sender.closed


def test_nothing_is_kept_of_topics_that_a_stem_serves(bench: Bench) -> None:
    reader = bench.subscriber("reader", "#")
    bench.publish("other", "topics")
    before = len(bench.router.table)
    for n in range(100):
        bench.publish(f"a/{n}", f"b/{n}")
    assert len(bench.router.table) == before
    assert len(reader.published()) == 202
    assert bench.stems.size == 1


def test_a_change_of_subscriptions_is_seen_at_once(bench: Bench) -> None:
    reader = bench.subscriber("reader", "a/#")
    assert bench.leads("a/b") and bench.leads("b/c")
    other = bench.subscriber("other")
    bench.add(other, "a/b/+")
    bench.publish("a/b/c", "b/c", "a/b")
    assert [got.topic for got in reader.published()] == ["a/b/c", "a/b"]
    assert [got.topic for got in other.published()] == ["a/b/c"]
    bench.drop(other, "a/b/+")
    bench.publish("a/b/c", "b/c", "a/b")
    assert len(reader.published()) == 2 and not other.published()


def test_literal_filters_that_begin_as_others_change_nothing(bench: Bench) -> None:
    reader = bench.subscriber("reader", "#", "a/b")
    assert bench.leads("b/c") and not bench.leads("a/b")
    root = bench.stems.root
    bench.add(reader, "a/c")
    bench.drop(reader, "a/c")
    assert bench.stems.root is root and root is not None
    bench.add(reader, "b/c")
    assert not bench.leads("b/c")


def test_they_rest_where_they_bring_nothing(bench: Bench) -> None:
    bench.subscriber("reader", "+/+/+", "a/b")
    topic = b"a/b/c"
    tries = 0
    while bench.sender.channel.stems() is not None:
        assert bench.stems.along(topic, 0, len(topic)) is None
        tries += 1
    assert 2000 < tries < 8000
    rested = 0
    while bench.sender.channel.stems() is None:
        rested += 1
    assert 1000 < rested < 10_000


def test_many_places_are_made_before_they_rest(bench: Bench) -> None:
    """Fifty publishers with six words before what varies, and ten messages in a chunk."""
    bench.subscriber("reader", *(f"t/{n}/+/+/+/+/m" for n in range(50)))
    bench.stems.worth = 0
    for n in range(50):
        for _ in range(2):
            assert bench.sender.channel.stems() is not None
            for seq in range(5):
                raw = f"t/{n}/{seq}/x/y/z/m".encode()
                assert bench.stems.along(raw, 0, len(raw)) is not None
    assert bench.stems.size > 250


def test_a_change_within_a_chunk_counts(bench: Bench) -> None:
    """The sender subscribes between two of its messages: what was found ahead is void."""
    reader = bench.subscriber("reader", "#")
    assert bench.leads("a/b")
    first, second = (serialize(Publish("a/b", text), 4) for text in (b"1" * 30, b"2" * 30))
    other = serialize(Publish("a/c", b"0" * 30), 4)
    subscribe = serialize(Subscribe(9, [Subscription("a/b", 0)]), 4)
    bench.sender.feed(other + first + subscribe + second)
    assert len(reader.published()) == 3
    assert [got.payload for got in bench.sender.published()] == [b"2" * 30]


def test_who_may_not_publish_anywhere_is_looked_up(bench: Bench) -> None:
    bench.subscriber("reader", "#")
    assert bench.leads("a/b")
    judge = bench.broker.broker
    judge.epoch += 1
    assert not bench.leads("a/b")  # until the client is asked about again
    bench.publish("a/b", "a/c")
    assert bench.leads("a/b")
    judge.by_flags = True
    assert not bench.leads("a/b")


def test_topics_that_need_more_than_their_bytes_are_looked_up(bench: Bench) -> None:
    bench.subscriber("reader", "#")
    assert bench.leads("a/b")
    bench.router.gears.ask("somebody", HELD, ["x/#"])
    bench.router.all_changed()
    assert not bench.leads("a/b")
    bench.router.gears.forget("somebody")
    bench.router.all_changed()
    assert bench.leads("a/b")


def test_14_topics_that_are_all_kept_are_led(bench: Bench) -> None:
    bench.subscriber("reader", "#")
    gears = bench.router.gears
    for gear, leads in ((NOTED, True), (RECORDED, True), (MISSED, True), (HELD, True),
                        (HOOKED, False), (STUCK, False), (TOLD, False)):  # fmt: skip
        gears.ask("somebody", gear, None)
        bench.router.all_changed()
        assert bench.leads("a/b") is leads
    gears.forget("somebody")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2]), max_size=2), max_size=3),
    st.lists(
        st.tuples(st.lists(placed, min_size=2, max_size=6), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
)
def test_14_what_is_kept_of_them_is_what_a_look_up_keeps(
    readers: list[list[int]], chunks: list[tuple[list[str], int]]
) -> None:
    found = []
    for look_ahead in (0, 1 << 30):
        bench = Bench()
        bench.broker.settings.look_ahead = look_ahead
        columns = Columns(100_000, lambda: None, lambda: None)
        bench.broker.broker.add_notes(columns)
        bench.broker.broker.add_deliveries(columns, True, True, None, True, True)
        for number, which in enumerate(readers):
            names = [("#", "a/+", "a/b/#")[one] for one in which]
            bench.subscriber(f"reader {number}", *names)
        for names, qos in chunks:
            bench.publish(*names, qos=qos)
        kept = list(decode_block(pack(columns.take(), 0), "n")) if columns.count else []
        by_client: dict[str, list[tuple[object, ...]]] = {}
        for one in kept:  # whose turn comes first is not promised
            by_client.setdefault(one.client_id, []).append((*one[2:4], *one[5:14]))
        found.append(by_client)
    assert found[0] == found[1]


def test_14_of_what_is_kept_no_topic_is_looked_up_that_a_stem_serves(bench: Bench) -> None:
    columns = Columns(100_000, lambda: None, lambda: None)
    bench.broker.broker.add_notes(columns)
    bench.broker.broker.add_deliveries(columns, True, True, None, True, True)
    bench.subscriber("reader", "a/#")
    bench.publish("a/1", "a/2", "b/1")  # asks who the sender is
    before = len(bench.router.table)
    columns.take()
    bench.publish("a/3", "a/4", "b/2", "a/3", qos=1)
    assert len(bench.router.table) == before
    events = list(decode_block(pack(columns.take(), 0), "n"))
    assert [(one.event, one.topic) for one in events if one.client_id == "sender"] == [
        ("message.publish", "a/3"), ("message.publish", "a/4"), ("message.publish", "b/2"),
        ("message.publish", "a/3"), ("message.dropped", "b/2"),
    ]  # fmt: skip
    told = [one.topic for one in events if one.event == "message.delivered"]
    assert told == ["a/3", "a/4", "a/3"]


def test_groups_and_identifiers_are_looked_up(bench: Bench) -> None:
    bench.subscriber("member", "$share/g/a/#")
    assert not bench.leads("a/b") and bench.leads("b/c")


def test_where_topics_end_is_found_once(bench: Bench) -> None:
    reader = bench.subscriber("reader", "a/+/+")
    bench.publish("a/1/2", "a/3/4")
    built = bench.broker.broker.metrics.routes_built
    before = len(bench.router.table)
    for n in range(50):
        bench.publish(f"a/{n}/x", f"a/x/{n}")
    assert len(reader.published()) == 102
    assert bench.broker.broker.metrics.routes_built == built
    assert len(bench.router.table) == before


def test_words_of_a_stem_are_bounded(bench: Bench) -> None:
    reader = bench.subscriber("reader", *(f"n{n}/+/#" for n in range(100)))
    assert bench.leads("a/b") and bench.leads("n1/b/c") and bench.leads("n1/b")
    size = bench.stems.size
    for n in range(100):
        assert bench.leads(f"o{n}/b")
    assert bench.stems.size == size  # one for all other words
    more = [f"m{n}/+/#" for n in range(walks._MOST // 2)]
    bench.add(reader, *more)
    assert not bench.leads("a/b")
    bench.drop(reader, *more)
    assert bench.leads("a/b")


def test_first_words_of_literal_filters_are_bounded(bench: Bench) -> None:
    reader = bench.subscriber("reader", "#")
    heads = [f"h{n}" for n in range(walks._HEADS + 1)]
    bench.add(reader, *heads)
    assert not bench.leads("a/b") and bench.stems.heads is None
    bench.drop(reader, *heads)
    assert bench.leads("a/b") and bench.stems.heads == {}


def test_heads_are_counted(bench: Bench) -> None:
    one = bench.subscriber("one", "a/b", "a/c")
    bench.subscriber("two", "a/b", "d")
    assert bench.stems.heads == {"a": 2, "d": 1}
    bench.drop(one, "a/b", "a/c")
    assert bench.stems.heads == {"a": 1, "d": 1}


def test_all_stems_are_bounded(bench: Bench) -> None:
    """A few filters may lead to very many places: each first word with each second one."""
    firsts = [f"a{n}/x/#" for n in range(100)]
    bench.subscriber("reader", *firsts, *(f"+/b{n}/#" for n in range(100)))
    led = 0
    for first in firsts:
        led += bench.leads(first.replace("x/#", "b7/c"))
    assert 50 < led < 100 and bench.stems.size <= walks._MOST
