"""Sessions with much in them end in turns, and what they leave to their groups is handed on so."""

from __future__ import annotations

import pytest

from mqttd.broker.sessions.endings import BURIED
from mqttd.broker.sessions.handing import HANDED, burden
from mqttd.broker.sessions.partings import ENOUGH
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
)
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.session.session import Session
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

HOUR: Properties = {prop.SESSION_EXPIRY_INTERVAL: 3600}
#: Messages that one session has left: some slices.
LEFT = 3 * HANDED + 7


def a_turn(node: MemoryBroker) -> None:
    """What was put off for the next turn, and nothing that this puts off."""
    tasks, node.tasks = node.tasks, []
    for task in tasks:
        task()
    node.broker.now += 1


def crowd(*names: str) -> MemoryBroker:
    """Members of one group, all away; nothing waits for them yet."""
    node = MemoryBroker()
    node.settings.mqueue_max_length = 100_000
    for name in names:
        join(node, name).drop()
    return node


def join(node: MemoryBroker, name: str, *, clean: bool = False) -> MemoryClient:
    client = node.connect(name, 5, clean, properties=HOUR)
    client.send(Subscribe(1, [Subscription("$share/g/t/+", 1)]))
    client.take()
    return client


def fill(node: MemoryBroker, name: str, count: int, first: int = 0, payload: bytes = b"") -> None:
    """So many messages of the group wait for this member."""
    group = node.broker.router.groups["$share/g/t/+"]
    session = held(node, name)
    others = [each for each in group.order if each is not session]
    for other in others:
        group.remove(other)
    publisher = node.connect("publisher", 5, room=1 << 30)
    for number in range(first, first + count):
        publisher.send(Publish(f"t/{number}", payload, 1, False, False, 1 + number % 60_000, None))
    publisher.drop()
    node.run_soon()
    for other in others:
        group.add(other, 1)
    assert session.held() >= count


def held(node: MemoryBroker, name: str) -> Session:
    session = node.session(name)
    assert session is not None
    return session


def waiting(node: MemoryBroker, name: str) -> list[int]:
    return [int(delivery.topic()[2:]) for delivery in held(node, name).pending()]


def test_what_a_session_leaves_is_handed_on_in_slices_and_in_order() -> None:
    node = crowd("first", "second")
    heard: list[str] = []
    node.hooks.hook("delivery.dropped", lambda client, reason, message: heard.append(reason))
    other = node.connect("other")
    fill(node, "first", LEFT)
    gone = held(node, "first")
    again = node.connect("first", 5, True)
    assert again.connack.session_present is False
    had = [len(waiting(node, "second"))]
    assert had == [HANDED]
    while node.broker.registry.handing.line:
        other.send(Pingreq())
        assert other.take() == [Pingresp()]
        a_turn(node)
        had.append(len(waiting(node, "second")))
        assert 0 < had[-1] - had[-2] <= HANDED
    assert waiting(node, "second") == list(range(LEFT))
    assert gone.mqueue is None and node.broker.fans.gate.held == 0
    # All of it was told and counted as lost, though somebody else has it.
    assert node.broker.metrics.dropped_session_ended == 0 and not heard
    node.run_soon()
    audit(node.broker, [other.channel, again.channel])


def test_what_ended_first_is_handed_on_first() -> None:
    node = crowd("first", "second", "third")
    fill(node, "first", LEFT)
    fill(node, "second", 10, LEFT)
    for name in ("first", "second"):
        assert node.broker.registry.end_session(name, 0x98, "kicked")
    assert len(node.broker.registry.handing.line) == 2
    node.run_soon()
    # Both were given some of the first slice in turn; then there was one member alone.
    had = [*range(0, HANDED, 2), *range(HANDED, LEFT)]
    assert waiting(node, "third") == [*had, *range(LEFT, LEFT + 10), *range(1, HANDED, 2)]


def test_who_joins_a_group_that_all_have_left_gets_what_still_waits() -> None:
    node = crowd("first", "second")
    fill(node, "first", LEFT)
    assert node.broker.registry.end_session("first", 0x98, "kicked")
    assert node.broker.unsubscribe_client("second", "$share/g/t/+")
    assert "$share/g/t/+" not in node.broker.router.groups
    join(node, "third").drop()
    node.run_soon()
    assert waiting(node, "third") == list(range(HANDED, LEFT))


def test_what_is_handed_on_is_weighed_by_its_bytes() -> None:
    """Two members that ended in turn: 180 bytes had 13 MB written, each time in one turn."""
    node = crowd("first", "second")
    fill(node, "first", 40, payload=b"x" * 100_000)
    assert burden(held(node, "first")) == 1 + HANDED
    assert burden(held(node, "second")) == 1
    node.broker.topics.work = 0
    node.connect("first", 5, True)
    assert node.broker.topics.work >= 40 * 100_000 >> 10
    had = [len(waiting(node, "second"))]
    assert had == [6]  # of 98 KiB each
    while node.broker.registry.handing.line:
        a_turn(node)
        had.append(len(waiting(node, "second")))
        assert 0 < had[-1] - had[-2] <= 6
    assert waiting(node, "second") == list(range(40))


def test_what_little_a_session_leaves_may_be_much_to_hand_on() -> None:
    node = crowd("first", "second", "third")
    for at, name in enumerate(("first", "second")):
        fill(node, name, 7, 10 * at, payload=b"x" * 500_000)
    again(node, "first")
    came = again(node, "second")  # seven messages: it ended in the same turn
    assert not came.take() and len(node.broker.partings.line) == 1
    node.run_soon()
    assert isinstance(came.take()[0], Connack)
    assert sorted(waiting(node, "third")) == [*range(7), *range(10, 17)]


@pytest.mark.parametrize("how", ["follows", "expires", "leaves"])
def test_who_leaves_much_waits_while_the_disk_cannot_follow(how: str) -> None:
    node = crowd("first", "second")
    join(node, "little").drop()
    fill(node, "first", 7, payload=b"x" * 1_000_000)
    node.broker.now += 1
    node.broker.set_congested(True, "store")
    again(node, "little")
    assert node.broker.metrics.sessions_discarded == 1
    if how == "follows":
        again(node, "first")
    elif how == "expires":
        node.advance(3_601_000)
        assert "first" in node.broker.sessions
    else:
        client = node.connect("first", 5, False, properties=HOUR)
        client.send(Disconnect(properties={prop.SESSION_EXPIRY_INTERVAL: 0}))
    assert how == "expires" or not waiting(node, "second")
    node.broker.set_congested(False, "store")
    node.run_soon()
    if how == "expires":
        assert node.broker.metrics.dropped_session_ended == 7
        assert "first" not in node.broker.sessions
        return
    assert waiting(node, "second") == list(range(7))


def test_what_nobody_can_be_given_is_let_go_of_and_counted() -> None:
    node = crowd("first")
    heard: list[str] = []
    node.hooks.hook("delivery.dropped", lambda client, reason, message: heard.append(reason))
    fill(node, "first", LEFT)
    gone = held(node, "first")
    assert node.broker.registry.end_session("first", 0x98, "kicked")
    node.run_soon()
    assert gone.mqueue is None and not node.broker.registry.handing.line
    assert node.broker.metrics.dropped_session_ended == LEFT == heard.count("session_ended")
    audit(node.broker, [])


def test_the_end_of_the_process_leaves_nothing_behind() -> None:
    node = crowd("first", "second")
    fill(node, "first", LEFT)
    assert node.broker.registry.end_session("first", 0x98, "kicked")
    node.broker.stop()
    assert waiting(node, "second") == list(range(LEFT))


def heavy(count: int, expiry: Properties = HOUR) -> tuple[MemoryBroker, list[MemoryClient]]:
    """So many clients with more subscriptions than a slice removes."""
    node = MemoryBroker()
    node.settings.max_subscriptions = 10_000
    clients = []
    for number in range(count):
        client = node.connect(f"c{number}", 5, False, properties=expiry)
        filters = [Subscription(f"f/{number}/{each}", 1) for each in range(2 * BURIED)]
        client.send(Subscribe(1, filters))
        node.run_soon()
        client.take()
        clients.append(client)
    node.broker.now += 1
    return node, clients


def again(node: MemoryBroker, name: str, *, clean: bool = True) -> MemoryClient:
    """A CONNECT, answered or not."""
    client = node.client(5)
    client.feed(serialize(Connect(name, clean_start=clean, version=5), 5))
    return client


def test_clients_that_begin_afresh_over_much_take_turns() -> None:
    node, clients = heavy(12)
    for client in clients:
        client.drop()
    node.broker.now += 1
    light = node.connect("light", 5, False, properties=HOUR)
    light.drop()
    came = [again(node, f"c{number}") for number in range(12)]
    discarded = node.broker.metrics.sessions_discarded
    assert 0 < discarded <= ENOUGH // BURIED + 1
    # Who ends little, or nothing, does not wait.
    for name in ("light", "new"):
        assert isinstance(again(node, name).take()[0], Connack)
    count = node.broker.metrics.sessions_discarded
    while node.broker.partings.line:
        a_turn(node)
        assert node.broker.metrics.sessions_discarded - count <= ENOUGH // BURIED + 1
        count = node.broker.metrics.sessions_discarded
    for client in came:
        (connack,) = client.take()
        assert isinstance(connack, Connack) and not connack.session_present
    assert not node.broker.connecting.undecided
    node.run_soon()
    assert node.broker.router.subscriptions == 0


def test_who_leaves_or_is_banned_before_its_turn_ends_nothing() -> None:
    node, _ = heavy(5)
    came = [again(node, f"c{number}") for number in range(5)]
    assert node.broker.metrics.sessions_discarded == 2
    came[3].drop()
    node.broker.bans.add("client_id", "c4")
    while node.broker.partings.line:
        a_turn(node)
    assert node.broker.metrics.sessions_discarded == 3
    (connack,) = came[4].take()[:1]
    assert isinstance(connack, Connack) and connack.reason_code == reasons.BANNED
    assert held(node, "c3").subscribed() == held(node, "c4").subscribed() == 2 * BURIED
    assert not node.broker.connecting.undecided


def test_sessions_that_end_with_their_connections_take_turns() -> None:
    node, clients = heavy(6, {})
    for client in clients:
        client.channel.end("reset")
    node.broker.perform()
    assert len(node.broker.sessions) == 4
    turns = 0
    while node.broker.partings.line:
        a_turn(node)
        turns += 1
    assert turns > 1 and not node.broker.sessions and not node.broker.channels


@pytest.mark.parametrize("clean", [False, True])
def test_the_end_of_the_process_lets_nobody_in(clean: bool) -> None:
    node, _ = heavy(4)
    came = [again(node, f"c{number}", clean=clean) for number in range(4)]
    node.broker.stop()
    assert not node.broker.partings.line
    assert [len(client.take()) for client in came] == ([1, 1, 0, 0] if clean else [1, 1, 1, 1])


def test_who_comes_for_the_same_session_waits_behind_who_came_first() -> None:
    node, _ = heavy(4)
    came = [again(node, f"c{number}") for number in range(4)]
    later = again(node, "c3", clean=False)
    assert not later.take()
    node.run_soon()
    (first,) = came[3].take()[:1]
    (second,) = later.take()
    assert isinstance(first, Connack) and isinstance(second, Connack)
    assert not first.session_present and not second.session_present
    assert held(node, "c3").channel is later.channel
    assert not node.broker.connecting.undecided and not node.broker.connecting.claims.lines
