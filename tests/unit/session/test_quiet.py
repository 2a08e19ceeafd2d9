"""What a connection keeps when it has been busy and is quiet: nothing that it does not need."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Subscription
from mqttd.session.filters import NEW, OTHER, SAME
from mqttd.session.ground.settings import Settings
from mqttd.session.session import Session
from tests.support.memory import MemoryBroker

FILTERS = ["a", "a/b", "+/b", "$share/g/a", "x" * 300]


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from(FILTERS), st.integers(0, 47), st.sampled_from([0, 7])
        ),
        max_size=30,
    )
)
def test_one_subscription_or_many_a_session_says_what_it_was_told(
    steps: list[tuple[bool, str, int, int]],
) -> None:
    node = MemoryBroker()
    account = node.broker.account
    session = Session(node.broker, "c", None)
    alone = session.weight
    wanted: dict[str, tuple[int, int]] = {}
    for adds, topic_filter, options, identifier in steps:
        if adds:
            before = wanted.get(topic_filter)
            kind = NEW if before is None else SAME if before == (options, identifier) else OTHER
            assert session.add_subscription(topic_filter, options, identifier) == kind
            wanted[topic_filter] = options, identifier
        else:
            assert session.remove_subscription(topic_filter) == (topic_filter in wanted)
            wanted.pop(topic_filter, None)
        assert (session.subscriptions or {}) == {each: wanted[each][0] for each in wanted}
        assert session.subscribed() == len(wanted)
        assert all(session.options_of(each) == wanted.get(each, (-1, 0))[0] for each in FILTERS)
        assert session.weight - alone == account.subscriptions
    for topic_filter in list(wanted):
        session.remove_subscription(topic_filter)
    assert session.subscriptions is None and session.identifiers is None
    assert session.weight == alone and account.subscriptions == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_an_empty_window_is_given_back_at_once(qos: int) -> None:
    node = MemoryBroker()
    client = node.connect("c")
    client.send(Subscribe(1, [Subscription("a", qos)]))
    client.read()
    for packet_id in (1, 2):
        client.send(Publish("a", b"x", qos, packet_id=packet_id))
    session = client.session
    assert len(session.inflight or ()) == 2 and len(session.awaiting_rel or ()) == 2 * (qos - 1)
    for packet_id in (1, 2):
        if qos == 1:
            client.send(Puback(packet_id))
        else:
            client.send(Pubrel(packet_id), Pubrec(packet_id), Pubcomp(packet_id))
    assert session.inflight is None and session.awaiting_rel is None


def test_who_a_client_is_is_known_until_the_next_tick() -> None:
    node = MemoryBroker()
    client = node.connect("c")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    assert client.channel.known is not None
    node.advance(300)
    assert client.channel.known is None and client.channel.warm is None


def test_its_last_properties_are_kept_for_some_seconds() -> None:
    node = MemoryBroker()
    client = node.connect("c", 5)
    client.send(Publish("a", b"x", 0, properties={prop.CONTENT_TYPE: "text/plain"}))
    node.advance(1000)
    assert client.channel.warm is not None and client.channel.warm.block is not None
    node.advance(15_000)
    assert client.channel.warm is None and not node.broker.warm


def test_a_client_of_a_class_keeps_nothing_for_its_rights() -> None:
    node = MemoryBroker()
    client = node.connect("c")
    client.send(Publish("a", b"x"))
    right = client.channel.right
    assert right >= 0 and client.channel.warm is None
    node.advance(15_000)
    assert client.channel.right == right
    node.broker.access_changed()
    client.send(Publish("a", b"x"))
    assert client.channel.right > right


def test_the_topics_of_one_who_has_gone_leave_no_room_behind() -> None:
    """There are always some in use, such as those below $SYS."""
    settings = Settings()
    node = MemoryBroker(settings)
    client = node.connect("c")
    for number in range(5000):
        client.send(Publish(f"a/{number}", b"x"))
    topics = node.broker.router
    full = sys.getsizeof(topics.table)
    assert len(topics.table) == 5000
    for _ in range(150):
        client.send(Publish("a/7", b"x"))
        node.advance(1000)
    assert len(topics.table) == 1
    assert sys.getsizeof(topics.table) < full // 100
