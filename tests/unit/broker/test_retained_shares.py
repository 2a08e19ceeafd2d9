"""Retained messages by who has set them: what one user may have, and that the sums are right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import reasons
from mqttd.codec.packets import Disconnect, Puback, Publish
from mqttd.session.ground.settings import Settings
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

OVER = reasons.QUOTA_EXCEEDED


def node_with(count: int = 0, size: int = 0) -> MemoryBroker:
    settings = Settings()
    settings.retained_max_per_user = count
    settings.retained_max_bytes_per_user = size
    return MemoryBroker(settings)


def retain(client: MemoryClient, topic: str, payload: bytes = b"x") -> int:
    """The reason code that the broker answers with."""
    client.send(Publish(topic, payload, 1, True, packet_id=1))
    (answer,) = client.take()
    assert isinstance(answer, Puback)
    return answer.reason_code if answer.reason_code >= 0x80 else 0


@pytest.mark.parametrize("username", ["u", None], ids=["a user", "nobody"])
def test_a_user_may_have_so_many(username: str | None) -> None:
    node = node_with(count=3)
    # Also from another client: users are counted, not connections.
    clients = [node.connect(name, 5, username=username) for name in ("a", "b")]
    other = node.connect("c", 5, username="other")
    assert [retain(clients[i % 2], f"t/{i}") for i in range(5)] == [0, 0, 0, OVER, OVER]
    assert node.broker.metrics.dropped_retained_full == 2
    assert retain(other, "t/5") == 0
    assert retain(clients[0], "t/0", b"again") == 0
    assert retain(other, "t/0", b"taken over") == 0
    assert retain(clients[0], "t/6") == 0
    assert retain(clients[0], "t/7") == OVER
    assert retain(clients[0], "t/6", b"") == 0
    assert retain(clients[0], "t/7") == 0
    audit(node.broker, [client.channel for client in (*clients, other)])


def test_the_brokers_own_figures_take_no_place_of_clients() -> None:
    settings = Settings()
    settings.retained_max_messages = 2
    node = MemoryBroker(settings)
    client = node.connect("a", 5)
    for i in range(5):
        node.broker.publish_text(f"$SYS/broker/{i}", b"1", 0, True)
    assert [retain(client, f"t/{i}") for i in range(3)] == [0, 0, OVER]
    node.broker.publish_text("$SYS/broker/0", b"", 0, True)
    node.broker.publish_text("$SYS/broker/1", b"2", 0, True)
    assert retain(client, "t/2") == OVER
    assert retain(client, "t/0", b"") == 0
    assert [retain(client, f"t/{i}") for i in (2, 3)] == [0, OVER]
    audit(node.broker, [client.channel])


def test_a_user_may_have_so_much_topics_included() -> None:
    node = node_with(size=150_000)
    client = node.connect("a", 5, username="u")
    assert retain(client, "large", bytes(90_000)) == 0
    assert retain(client, "larger", bytes(70_000)) == OVER
    assert retain(client, "large", bytes(10)) == 0
    assert retain(client, "deep/" + "/".join(map(str, range(250))), b"x") == 0
    codes = [retain(client, f"{i}/" + "/".join(map(str, range(250)))) for i in range(5)]
    assert codes[0] == 0 and codes[-1] == OVER
    audit(node.broker, [client.channel])


@pytest.mark.parametrize("limit", ["max_bytes", "share"])
@pytest.mark.parametrize("size", [512 << 20, 0], ids=["half", "no limit"])
def test_no_user_has_more_than_half_of_what_all_may_have_in_fact(limit: str, size: int) -> None:
    node = node_with(size=size)
    setattr(node.broker.retainer, limit, 200_000)
    client, other = (node.connect(name, 5, username=name) for name in ("a", "b"))
    codes = [retain(client, f"a/{i}", bytes(10_000)) for i in range(30)]
    kept = codes.count(0)
    assert codes == [0] * kept + [OVER] * (30 - kept)
    if size:
        assert 8 <= kept <= 10
        assert [retain(other, f"b/{i}", bytes(10_000)) for i in range(8)] == [0] * 8
    else:
        assert kept >= 17 and retain(other, "b/0", bytes(10_000)) == OVER
    audit(node.broker, [client.channel, other.channel])


@pytest.mark.parametrize("full", ["retained", "memory"])
def test_figures_of_the_broker_have_their_place_when_clients_have_filled_it(full: str) -> None:
    node = node_with()
    node.broker.retainer.max_bytes = 10_000
    client = node.connect("a", 5, username="a")
    codes = [retain(client, f"a/{i}", bytes(1000)) for i in range(20)]
    assert codes[0] == 0 and codes[-1] == OVER
    node.broker.account.full = full == "memory"
    lost = node.broker.metrics.dropped_retained_full
    for n in range(100):
        node.broker.publish_text(f"$SYS/broker/{n}", b"%d" % n, retain=True)
        assert f"$SYS/broker/{n}" in node.broker.retainer.topics
    assert node.broker.metrics.dropped_retained_full == lost
    # A client that may publish there has no such place.
    assert retain(client, "$SYS/mine", bytes(1000)) == OVER
    audit(node.broker, [client.channel])


def test_a_client_of_3_1_1_is_told_nothing_and_its_message_is_delivered() -> None:
    node = node_with(count=1)
    client = node.connect("a", 4, username="u")
    for topic in ("1", "2"):
        client.send(Publish(topic, b"x", 1, True, packet_id=1))
    assert not any(isinstance(packet, Disconnect) for packet in client.take())
    assert len(node.broker.retainer) == 1


def test_the_broker_itself_is_no_user() -> None:
    node = node_with(count=1)
    for i in range(3):
        node.broker.publish_text(f"$SYS/{i}", b"x", 0, True)
        node.broker.publish_text(f"own/{i}", b"x", 0, True)
    assert len(node.broker.retainer) == 6 and not node.broker.retainer.users


def test_a_reload_brings_other_limits() -> None:
    node = node_with(count=1)
    client = node.connect("a", 5, username="u")
    assert [retain(client, topic) for topic in "12"] == [0, OVER]
    node.settings.retained_max_per_user = 2
    node.broker.settings_changed()
    assert [retain(client, topic) for topic in "23"] == [0, OVER]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["u", "v", None]),
            st.sampled_from(["a", "a/b", "a/b/c", "d", "e/f"]),
            st.sampled_from([0, 1, 100, 3000]),
        ),
        max_size=30,
    ),
    count=st.integers(0, 4),
    size=st.sampled_from([0, 2000, 8000]),
)
def test_the_shares_are_what_is_there(
    steps: list[tuple[str | None, str, int]], count: int, size: int
) -> None:
    node = node_with(count, size)
    clients = {name: node.connect(f"c{name}", 5, username=name) for name in ("u", "v", None)}
    for username, topic, length in steps:
        retain(clients[username], topic, bytes(length))
        audit(node.broker, [client.channel for client in clients.values()])
        for share in node.broker.retainer.users.values():
            assert not count or share.count <= count
            assert not size or share.bytes <= size
