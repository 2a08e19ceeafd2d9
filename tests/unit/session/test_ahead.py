"""Topics of a chunk that are looked up together: whatever the bytes, the right route or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.packets import Pingreq, Puback, Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.session.routes.ahead import look_ahead
from mqttd.session.routes.route import Route
from tests.support.memory import MemoryBroker

TOPICS = ["a", "a/b", "sensors/7/temperature", "x" * 200]
KEYS = {topic: len(topic).to_bytes(2, "big") + topic.encode() for topic in TOPICS}


def table() -> dict[bytes, Route]:
    return {KEYS[topic]: Route(topic, KEYS[topic]) for topic in TOPICS[:3]}


@given(
    names=st.lists(st.sampled_from(TOPICS), max_size=12),
    sizes=st.lists(st.sampled_from([0, 90, 130, 20_000]), min_size=12, max_size=12),
    cut=st.integers(0, 100),
)
def test_routes_are_found_where_their_topics_begin(
    names: list[str], sizes: list[int], cut: int
) -> None:
    routes = table()
    packets = [serialize(Publish(n, b"p" * s), 4) for n, s in zip(names, sizes, strict=False)]
    between = serialize(Puback(7), 4) + serialize(Pingreq(), 4)
    data = between.join(packets)
    found = look_ahead(data[: len(data) - cut], routes)
    if found is None:
        assert len(names) < 2 or names[0] == names[1] or cut
        return
    expected = []
    at = 0
    for name, packet in zip(names, packets, strict=True):
        expected.append((at + packet.index(KEYS[name]), routes.get(KEYS[name])))
        at += len(packet) + len(between)
    assert list(zip(found.places, found.routes, strict=True)) == expected[: len(found.places)]
    assert len(found.places) == len(names) or cut
    for place, route in expected[: len(found.places)]:
        assert found.take(place - 1) is None
        assert found.take(place) is route


@given(st.binary(max_size=300))
def test_any_bytes_are_looked_at(data: bytes) -> None:
    found = look_ahead(data, table())
    if found is not None:
        assert found.places == sorted(found.places) and len(found.places) >= 2


def test_a_route_that_has_gone_meanwhile_still_leads_right() -> None:
    """The cache holds two topics: each message of the chunk throws out what was looked up."""
    broker = MemoryBroker()
    broker.settings.look_ahead = 0
    broker.broker.router.max_entries = 2
    reader = broker.connect("reader")
    reader.send(Subscribe(1, [Subscription("t/#", 0)]))
    reader.read()
    sender = broker.connect("sender")
    order = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    chunk = b"".join(serialize(Publish(f"t/{n}", b"%d" % n), 4) for n in order)
    for _ in range(3):
        sender.feed(chunk)
        got = reader.published()
        assert [(p.topic, p.payload) for p in got] == [(f"t/{n}", b"%d" % n) for n in order]
    assert broker.broker.router.ahead is None
