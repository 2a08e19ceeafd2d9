"""The memory budget: what is refused, dropped and shed when more is held than it allows."""

from __future__ import annotations

from functools import partial

import pytest

import mqttd
from mqttd.broker.memory.memory import Memory
from mqttd.broker.memory.shedding import offenders
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.session.ground.account import CONNECTION, properties_weight
from mqttd.session.ground.settings import NEVER, Settings
from mqttd.session.session import Session
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

MIB = 1 << 20
LASTING: Properties = {prop.SESSION_EXPIRY_INTERVAL: NEVER}


def node_with(budget: int = 4 * MIB, **more: int) -> MemoryBroker:
    settings = Settings()
    settings.memory_budget = budget
    for name, value in more.items():
        setattr(settings, name, value)
    return MemoryBroker(settings)


def full(node: MemoryBroker) -> MemoryClient:
    """A client that fills the memory, with subscriptions that it may well hold."""
    client = node.connect("filler", 5, properties=dict(LASTING))
    i = 0
    while not node.broker.account.full:
        i += 1
        client.send(Subscribe(1, [Subscription(f"{i}" + "/+" * 120, 1)]))
        node.run_soon()
    return client


def test_over_the_budget_what_is_new_is_refused_until_there_is_room_again() -> None:
    """New sessions, retained messages and subscriptions get 0x97; those that are there go on."""
    node = node_with()
    old = node.connect("old", 5, clean=False, properties=dict(LASTING))
    filler = full(node)
    assert node.broker.memory.step == 3
    assert [alarm.name for alarm in node.broker.alarms.active()] == ["memory"]
    new = node.client(5)
    new.send(Connect("new", version=5))
    (refusal,) = new.take()
    assert isinstance(refusal, Connack) and refusal.reason_code == reasons.QUOTA_EXCEEDED
    third = node.client(4)
    third.send(Connect("new", version=4))
    (refusal,) = third.take()
    assert isinstance(refusal, Connack) and refusal.reason_code == 3
    old.send(Publish("r", b"x", 1, True, packet_id=1))
    (answer,) = old.take()
    assert isinstance(answer, Puback) and answer.reason_code == reasons.QUOTA_EXCEEDED
    old.send(Subscribe(1, [Subscription("a/#", 1)]))
    (granted,) = old.take()
    assert isinstance(granted, Suback) and granted.reason_codes == [reasons.QUOTA_EXCEEDED]
    old.drop()
    back = node.connect("old", 5, clean=False, properties=dict(LASTING))
    assert back.connack is not None and back.connack.session_present
    assert node.broker.metrics.memory_refused == 4
    filler.send(Unsubscribe(1, [f"{i}" + "/+" * 120 for i in range(1, 100)]))
    node.advance(1000)
    assert node.broker.memory.step == 0 and not node.broker.alarms.active()
    node.connect("new", 5)
    assert [fields["step"] for event, fields in node.events if event == "memory short"] == [
        "caches are dropped",
        "QoS 0 messages that would wait are dropped",
        "new sessions, subscriptions and retained messages are refused",
    ]
    assert node.events[-1][0] == "alarm cleared"


def test_13_who_stops_just_beyond_the_budget_keeps_newcomers_out_for_seconds_only() -> None:
    """And nobody goes where nobody new has come."""
    node = node_with()
    honest = node.connect("honest", 5, clean=False, properties=dict(LASTING))
    full(node)
    node.advance(60_000)
    assert node.broker.memory.step == 3 and "filler" in node.broker.sessions

    def comes(name: str) -> int:
        new = node.client(5)
        new.send(Connect(name, version=5))
        (answer,) = new.take()
        assert isinstance(answer, Connack)
        return answer.reason_code

    assert comes("first") == reasons.QUOTA_EXCEEDED
    node.advance(1000)
    assert node.broker.memory.step == 0 and "filler" not in node.broker.sessions
    assert comes("second") == 0 and not honest.closed

    again = full(node)
    assert comes("third") == reasons.QUOTA_EXCEEDED
    node.advance(4000)
    assert not again.closed and comes("third") == reasons.QUOTA_EXCEEDED
    node.advance(2000)
    assert again.closed and comes("third") == 0 and not honest.closed
    assert node.broker.metrics.memory_shed == 2


def test_before_anything_is_refused_caches_and_qos_0_that_waits_go() -> None:
    """In this order, and no more than it takes."""
    node = node_with(MIB)
    node.settings.mqueue_max_bytes = 0
    away = node.connect("away", 5, properties=dict(LASTING))
    away.send(Subscribe(1, [Subscription("q/#", 1)]))
    away.drop()
    sender = node.connect("sender", 5)
    for i in range(100):
        sender.send(Publish(f"topic/{i}", b"x"))
    assert node.broker.router.table
    sender.send(Publish("q/1", b"x" * (MIB // 2), 0))
    sender.send(Publish("q/2", b"x" * (MIB // 2), 1, packet_id=1))
    node.run_soon()
    session = node.broker.sessions["away"]
    assert [delivery.qos for delivery in session.queued()] == [1]
    assert node.broker.metrics.dropped_memory == 1
    assert node.broker.metrics.memory_caches_dropped == 1
    assert not node.broker.account.full
    sender.take()
    sender.send(Publish("q/3", b"x" * 10, 0))
    assert node.broker.metrics.dropped_memory == 2
    audit(node.broker, [sender.channel])


def test_whoever_holds_most_is_shed_and_told_why() -> None:
    node = node_with(8 * MIB)
    node.settings.mqueue_max_bytes = 0
    honest = node.connect("honest", 5)
    honest.send(Subscribe(1, [Subscription("fine", 1)]))
    sleepers = []
    for name in ("a", "b", "c"):
        sleeper = node.connect(name, 5, properties={prop.RECEIVE_MAXIMUM: 1, **LASTING})
        sleeper.send(Subscribe(1, [Subscription(f"q/{name}", 1)]))
        sleeper.take()
        sleepers.append(sleeper)
    for i in range(12):
        for name, size in (("a", MIB // 16), ("b", MIB // 2), ("c", MIB // 4)):
            honest.send(Publish(f"q/{name}", b"x" * size, 1, packet_id=i + 1))
            node.run_soon()
    told = [packet for packet in sleepers[1].take() if isinstance(packet, Disconnect)]
    assert told[0].reason_code == reasons.QUOTA_EXCEEDED and sleepers[1].closed
    assert set(node.broker.sessions) == {"honest", "a", "c"}
    assert node.broker.metrics.memory_shed == 1
    assert [fields["client_id"] for event, fields in node.events if event == "session shed"] == [
        "b"
    ]
    honest.take()
    honest.send(Publish("fine", b"x", 1, packet_id=99))
    assert {type(packet) for packet in honest.take()} == {Publish, Puback}
    audit(node.broker, [client.channel for client in (honest, sleepers[0], sleepers[2])])


def test_many_middle_sized_sessions_of_one_user_go_before_a_large_one_of_another() -> None:
    """Each of them holds less than the honest one, all of them more."""
    node = node_with(64 * MIB)
    node.settings.mqueue_max_bytes = 0
    sender = node.connect("sender", 5)
    names = {"honest": 16, **{f"crowd-{i}": 2 for i in range(40)}}
    for name in names:
        client = node.connect(
            name,
            5,
            properties={prop.RECEIVE_MAXIMUM: 1, **LASTING},
            username=name.partition("-")[0],
        )
        client.send(Subscribe(1, [Subscription(f"q/{name}", 1)]))
        client.take()
    for name, half in names.items():
        for i in range(half + 1):
            sender.send(Publish(f"q/{name}", b"x" * (MIB // 2), 1, packet_id=i + 1))
            node.run_soon()
    shed = node.broker.metrics.memory_shed
    assert 0 < shed < 20
    assert "honest" in node.broker.sessions and "sender" in node.broker.sessions
    assert len([name for name in node.broker.sessions if name.startswith("crowd")]) == 40 - shed
    users = node.broker.memory.describe()["users"]
    assert isinstance(users, list)
    assert [(user["username"], user["sessions"]) for user in users] == [
        ("crowd", 40 - shed),
        ("honest", 1),
    ]
    assert users[0]["bytes"] > MIB * (39 - shed)


def session_of(
    node: MemoryBroker, name: str, username: str | None, size: int, house: str = "h"
) -> Session:
    """A session that weighs so much."""
    made = Session(node.broker, name, username)
    made.charge(size - made.weight)
    made.house = house
    return made


def test_who_goes_first() -> None:
    """Of a user the largest, of a house those of nobody; small sessions last, by house."""
    node = node_with(0)

    session = partial(session_of, node)
    sessions = [
        session("a", "crowd", 50_000),
        session("b", "crowd", 60_000),
        session("alone", None, 100_000),
        session("c", "crowd", 55_000),
        session("nobody", None, 90_000, "other"),
        session("small", "crowd", 9_000),
        session("tiny", "crowd", 3_000),
        session("few", None, 5_000, "other"),
        session("many", None, 4_900, "other"),
    ]
    left, found = offenders(sessions, 9, 10_000)
    gone = [(one.client_id, weight) for weight, one in found]
    # 165 k of the crowd's, then 105 k, then 100 k and 90 k of nobody's, 50 k; and what is small,
    # of which one house has 9.9 k.
    assert [name for name, _ in gone] == ["b", "c", "alone", "nobody", "a", "few", "small", "many"]
    assert [name for _, name in gone] == [
        60_000, 55_000, 100_000, 90_000, 50_000, 5_000, 9_000, 4_900,
    ]  # fmt: skip
    assert left == sum(weight for _, weight in gone)
    assert len(offenders(sessions, 2, 10_000)[1]) == 2
    sessions += [session(f"nobody-{i}", None, 20_000, "other") for i in range(5)]
    assert [one.client_id for _, one in offenders(sessions, 2, 10_000)[1]] == ["nobody", "b"]


def test_a_crowd_that_is_away_goes_before_who_is_connected() -> None:
    """Thousands of sessions of next to nothing each, into which their queues were filled."""
    node = node_with(0)

    session = partial(session_of, node)
    honest = session("honest", "ann", 100_000, "home")
    crowd = [session(f"dwarf-{i}", None, 2_000, "afar") for i in range(300)]
    left, found = offenders([honest, *crowd], 5, 10_000)
    assert [one.client_id for _, one in found] == ["honest"] and left == 100_000
    crowd += [session(f"more-{i}", None, 2_500, "afar") for i in range(2_000)]
    left, found = offenders([honest, *crowd], 5, 10_000)
    assert {weight for weight, _ in found} == {2_500} and len(found) == 5
    assert left == 100_000 + 300 * 2_000 + 2_000 * 2_500


@pytest.mark.parametrize("size,away", [(1_500, True), (30_000, True), (30_000, False)])
def test_a_stranger_with_many_sessions_goes_before_an_honest_one_that_holds_more(
    size: int, away: bool
) -> None:
    """Each of the stranger's is smaller, all of them are nearly everything; none has a name."""
    node = node_with(16 * MIB)
    node.broker.memory.others.append(lambda: 10.0 * MIB if size == 1_500 else 0.0)
    budget = node.broker.memory.budget
    sender = node.connect("sender", 5)

    def reader(name: str, host: str, messages: int) -> MemoryClient:
        client = node.connect(name, 5, properties={prop.RECEIVE_MAXIMUM: 1, **LASTING}, host=host)
        client.send(Subscribe(1, [Subscription(f"q/{name}", 1)]))
        client.take()
        if away:
            client.drop()
        for i in range(messages):
            sender.send(Publish(f"q/{name}", b"x" * size, 1, packet_id=i + 1))
        node.run_soon()
        sender.take()
        return client

    reader("honest", "10.0.0.1", 3)
    count = 0
    while not node.broker.account.full:
        count += 1
        reader(f"stranger-{count}", "10.0.0.66", 2)
    honest = node.broker.sessions["honest"]
    assert honest.held() == 3
    strangers = [name for name in node.broker.sessions if name.startswith("stranger")]
    for name in strangers:
        sender.send(Publish(f"q/{name}", b"x" * size, 1, packet_id=1))
        node.jump(1)
        sender.take()
    assert node.broker.metrics.memory_shed > 10
    assert node.broker.sessions["honest"] is honest and honest.held() == 3
    assert node.broker.memory.used() <= budget + budget // 100


def test_nobody_goes_for_what_sessions_do_not_hold() -> None:
    """A plugin, or retained messages: the end of those who hold a few KB would make no room."""
    node = node_with(4 * MIB)
    away = node.connect("away", 5, properties=dict(LASTING))
    away.send(Subscribe(1, [Subscription("q", 1)]))
    away.drop()
    sender = node.connect("sender", 5)
    node.broker.memory.others.append(lambda: 8.0 * MIB)
    node.advance(1000)
    assert node.broker.memory.step == 3
    for i in range(10):
        sender.send(Publish("q", b"x" * 1000, 1, packet_id=i + 1))
        node.advance(1000)
    assert node.broker.metrics.memory_shed == 0
    assert node.broker.sessions["away"].held() == 10


def test_topics_in_use_make_room_before_anybody_does() -> None:
    """Also where the memory has been short for long; and they take a quarter of it at most."""
    node = node_with(16 * MIB)
    assert node.broker.router.max_bytes == 4 * MIB
    away = node.connect("away", 5, properties=dict(LASTING))
    away.send(Subscribe(1, [Subscription("q", 1)]))
    away.drop()
    sender = node.connect("sender", 5)
    for i in range(8):
        sender.send(Publish("q", b"x" * 100_000, 1, packet_id=i + 1))
    node.broker.memory.others.append(lambda: 14.5 * MIB)
    node.advance(1000)
    for i in range(20_000):
        sender.send(Publish(f"new/{i}" + "/t" * 100, b"x"))
    node.advance(1000)
    assert node.broker.memory.step >= 3
    assert node.broker.metrics.memory_caches_dropped > 10
    assert node.broker.metrics.memory_shed == 0
    assert node.broker.sessions["away"].held() == 8
    node.broker.settings.topic_cache_bytes = MIB
    node.broker.settings_changed()
    assert node.broker.router.max_bytes == MIB


def test_a_process_that_holds_far_more_than_the_account_says_is_an_alarm() -> None:
    node = node_with(512 * MIB)
    memory = node.broker.memory
    trimmed: list[int] = []
    memory.caches.append(lambda: trimmed.append(1))
    memory.grown = lambda: 100 * MIB
    for _ in range(20):
        node.advance(5000)
    assert not node.broker.alarms.active() and not trimmed
    assert node.broker.stats()["memory_process_growth_bytes"] == 100 * MIB
    memory.grown = lambda: 200 * MIB
    for _ in range(11):
        node.advance(5000)
    assert not node.broker.alarms.active() and trimmed == [1]
    node.advance(5000)
    (alarm,) = node.broker.alarms.active()
    assert alarm.name == "memory_account" and "200 MiB" in alarm.text
    assert node.broker.stats()["memory_unexplained_bytes"] > 199 * MIB
    assert not memory.step  # nobody has to go for it
    memory.grown = lambda: 100 * MIB
    node.advance(5000)
    assert not node.broker.alarms.active()


def test_what_a_hundred_queues_share_is_not_taken_for_a_hundred_times_as_much() -> None:
    """The process has not grown so much: nobody is refused."""
    node = node_with(4 * MIB)
    node.broker.memory.grown = lambda: MIB
    for i in range(100):
        away = node.connect(f"c{i}", 5, properties=dict(LASTING))
        away.send(Subscribe(1, [Subscription("q", 1)]))
        away.drop()
    sender = node.connect("sender", 5)
    sender.send(Publish("q", b"x" * (MIB // 2), 1, packet_id=1))
    node.run_soon()  # it goes out in slices
    node.advance(1000)
    assert node.broker.memory.used() > 50 * MIB
    assert node.broker.memory.step == 0
    node.broker.memory.grown = lambda: 50 * MIB
    node.advance(1000)
    assert node.broker.metrics.memory_shed > 80


def test_the_hook_hears_of_it_in_time_and_once() -> None:
    node = node_with(4 * MIB)
    heard: list[tuple[int, int]] = []
    node.hooks.hook("memory.high_water", lambda held, budget, acc: heard.append((held, budget)))
    client = node.connect("c", 5)
    i = 0
    while not heard:
        i += 1
        client.send(Subscribe(1, [Subscription(f"{i}" + "/+" * 120, 1)]))
        node.run_soon()
    client.send(Subscribe(1, [Subscription("a", 1)]))
    node.advance(1000)
    assert len(heard) == 1 and heard[0][1] == 4 * MIB
    assert 0.85 * 4 * MIB <= heard[0][0] <= 4 * MIB
    assert node.broker.memory.step == 0


def test_a_connect_that_never_ends_is_no_room_for_others() -> None:
    """10,000 times 64 KiB of it: the oldest make room, and who is honest gets in."""
    node = node_with(0, memory_unauthenticated=MIB)
    wire = serialize(Connect("c", version=5, username="u" * 60000), 5)
    strangers = []
    for _ in range(60):
        stranger = node.client(5)
        stranger.feed(wire[:-1])
        strangers.append(stranger)
        node.broker.perform()
        assert node.broker.account.unauthenticated <= MIB
        honest = node.connect("honest", 5)
        assert honest.connack is not None and honest.connack.reason_code == 0
        honest.drop()
    assert [stranger.closed for stranger in strangers[:40]] == [True] * 40
    assert not strangers[-1].closed
    assert node.broker.metrics.memory_unauthenticated_closed == sum(s.closed for s in strangers)
    strangers[-1].feed(wire[-1:])
    assert isinstance(strangers[-1].take()[0], Connack)
    audit(node.broker, [stranger.channel for stranger in strangers if not stranger.closed])


def test_nothing_is_left_on_the_account_when_all_have_gone() -> None:
    node = node_with(0)
    client = node.connect("c", 5, properties=dict(LASTING), username="u")
    client.send(Subscribe(1, [Subscription("a/+/b", 2), Subscription("$share/g/x", 1)]))
    client.send(Publish("t", b"x", 2, packet_id=9, properties={prop.TOPIC_ALIAS: 1}))
    client.feed(b"\x30\x7f half")
    other = node.connect("other", 4)
    other.send(Publish("a/1/b", b"x", 2, packet_id=1))
    assert node.broker.account.inflight and node.broker.account.aliases
    audit(node.broker, [client.channel, other.channel])
    client.drop()
    audit(node.broker, [other.channel])
    other.drop()
    node.broker.registry.discard(node.broker.sessions["c"], 0x97, "")
    node.run_soon()
    node.broker.router.drop_cache()
    assert node.broker.memory.used() == 0 and not node.broker.account.purses
    assert node.broker.account.unauthenticated == 0 and not node.broker.strangers


def test_aliases_end_the_connection_where_they_are_more_than_a_session_may_hold() -> None:
    """10,000 aliases of 65 KB were 1.5 GiB on one connection."""
    node = node_with(0, memory_per_session=MIB)
    client = node.connect("c", 5)
    for i in range(40):
        if client.closed:
            break
        client.send(Publish(f"{i}" + "t" * 60000, b"x", properties={prop.TOPIC_ALIAS: i + 1}))
        assert node.broker.account.aliases <= MIB
    told = client.take()[-1]
    assert isinstance(told, Disconnect) and told.reason_code == reasons.QUOTA_EXCEEDED
    assert node.broker.account.aliases == 0


def test_subscriptions_and_queues_are_held_to_what_a_session_and_a_user_may_hold() -> None:
    """130,000 filters of 128 levels in 13 sessions were 1,556 MiB, for ever."""
    node = node_with(0, memory_per_session=MIB, memory_per_user=MIB + MIB // 2)
    codes: list[int] = []
    clients = []
    for name in ("a", "b"):
        client = node.connect(name, 5, username="u")
        clients.append(client)
        for i in range(12):
            filters = [Subscription(f"{i}/{j}" + "/+" * 125, 1) for j in range(10)]
            client.send(Subscribe(1, filters))
            node.run_soon()
            (suback,) = [packet for packet in client.take() if isinstance(packet, Suback)]
            codes += suback.reason_codes
    assert set(codes) == {1, reasons.QUOTA_EXCEEDED}
    a, b = (node.broker.sessions[name].weight for name in "ab")
    assert a <= MIB and a + b <= MIB + MIB // 2
    assert node.broker.account.purses["u"].bytes == a + b
    free = node.connect("c", 5, username="another")
    free.send(Subscribe(1, [Subscription("a/+", 1)]))
    assert isinstance(free.take()[0], Suback)
    audit(node.broker, [client.channel for client in (*clients, free)])


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("from_reload", [False, True])
def test_what_is_in_flight_counts_for_its_user(version: int, from_reload: bool) -> None:
    """A hundred sessions of one user, each with a window of messages it does not acknowledge."""
    limit = 200_000
    node = node_with(0, **({} if from_reload else {"memory_per_user": limit}))
    readers = []
    for i in range(10):
        reader = node.connect(f"r{i}", version, username="u")
        reader.send(Subscribe(1, [Subscription("t", 1)]))
        readers.append(reader)
    other = node.connect("other", 5, username="v")
    other.send(Subscribe(1, [Subscription("t", 1)]))
    sender = node.connect("sender", 5)
    for i in range(10):
        sender.send(Publish("t", b"x" * 10_000, 1, packet_id=i + 1))
        if i == 0 and from_reload:  # the limit comes while something is in flight already
            node.broker.settings.memory_per_user = limit
            node.broker.settings_changed()
    channels = [client.channel for client in (*readers, other, sender)]
    audit(node.broker, channels)
    purse = node.broker.account.purses["u"]
    weights = [node.broker.sessions[f"r{i}"].flying() for i in range(10)]
    assert purse.flying == sum(weights) > limit // 2
    assert purse.bytes + purse.flying <= limit
    dropped = node.broker.metrics.dropped_queue_full
    assert dropped > 50
    sent = [packet for packet in other.take() if isinstance(packet, Publish)]
    assert len(sent) == 10  # another user's limit is his own
    for reader in readers:
        for packet in reader.take():
            if isinstance(packet, Publish):
                reader.send(Puback(packet.packet_id))
    assert purse.flying == sum(node.broker.sessions[f"r{i}"].flying() for i in range(10))
    for client in (*readers, other, sender):
        client.drop()
    audit(node.broker, [])
    assert purse.flying == 0


def test_the_operator_sees_who_holds_what() -> None:
    node = node_with(64 * MIB)
    for i in range(30):
        client = node.connect(f"c{i}", 5, username=f"user{i % 3}", properties=dict(LASTING))
        client.send(Subscribe(1, [Subscription(f"q/{i}", 1)]))
        client.drop()
    sender = node.connect("sender", 5)
    sender.send(Publish("q/7", b"x" * 10000, 1, packet_id=1))
    shown = Memory.describe(node.broker.memory)
    assert shown["budget"] == 64 * MIB and shown["step"] == ""
    sessions = shown["sessions"]
    users = shown["users"]
    kinds = shown["kinds"]
    assert isinstance(sessions, list) and isinstance(users, list) and isinstance(kinds, dict)
    assert len(sessions) == 20 and sessions[0]["client_id"] == "c7"
    assert sessions[0]["queued"] > 10000 and not sessions[0]["connected"]
    assert [user["sessions"] for user in users] == [10, 10, 10]
    assert kinds["queued"] > 10000 and kinds["connections"] == CONNECTION
    assert shown["used"] == sum(kinds.values())


PAIRS: Properties = {prop.USER_PROPERTY: [(f"k{i}", f"v{i}") for i in range(2000)]}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("looked_at", [True, False])
def test_a_queue_takes_no_more_memory_than_it_may(fast: bool, looked_at: bool) -> None:
    """User properties, decoded beside their bytes: 80 MiB in a queue of 8 MiB."""
    node = node_with(0, mqueue_max_bytes=MIB, mqueue_max_length=0)
    if looked_at:
        node.hooks.hook("message.publish", lambda message: message.properties and None)
        node.hooks.hook("message.delivered", lambda client, message: None)
    node.broker.fast = fast
    away = node.connect("away", 5, properties=dict(LASTING))
    away.send(Subscribe(1, [Subscription("q", 1)]))
    away.drop()
    sender = node.connect("sender", 5)
    for i in range(60):
        sender.send(Publish("q", b"x", 1, packet_id=i + 1, properties=dict(PAIRS)))
    session = node.broker.sessions["away"]
    assert 0 < node.broker.account.queued <= MIB
    decoded = sum(
        properties_weight(delivery.message._properties)
        for delivery in session.queued()
        if delivery.message is not None
    )
    assert decoded <= node.broker.account.queued
    assert node.broker.metrics.dropped_queue_full > 10
    audit(node.broker, [sender.channel])


@pytest.mark.parametrize("topic", ["{}" + "/l" * 120, "{}" + "t" * 60000, "plant/{}/temperature"])
@pytest.mark.parametrize("properties", [None, PAIRS])
def test_retained_messages_take_no_more_memory_than_they_may(
    topic: str, properties: Properties | None
) -> None:
    """100 KB of payloads were 900 MiB of user properties, 1,466 MiB of levels, of long topics."""
    node = node_with(0, retained_max_bytes=MIB, retained_max_bytes_per_user=0)
    sender = node.connect("sender", 5)
    codes = []
    for i in range(8000):
        packet = Publish(topic.format(i), b"x", 1, True, packet_id=1, properties=properties)
        sender.send(packet)
        (answer,) = sender.take()
        assert isinstance(answer, Puback)
        codes.append(answer.reason_code)
        if answer.reason_code >= 0x80:
            break
    assert codes[-1] == reasons.QUOTA_EXCEEDED and len(codes) > 5
    retainer = node.broker.retainer
    assert MIB - 200_000 < retainer.bytes + retainer.held <= MIB
    audit(node.broker, [sender.channel])


def test_what_a_plugin_holds_for_clients_counts_too() -> None:
    node = node_with(MIB)
    held = [0.0]
    node.broker.memory.others.append(lambda: held[0])
    node.advance(1000)
    assert node.broker.memory.step == 0
    held[0] = 2.0 * MIB
    node.advance(1000)
    assert node.broker.memory.step == 3 and node.broker.account.other == 2 * MIB
    held[0] = 0.0
    node.advance(1000)
    assert node.broker.memory.step == 0


def test_what_the_process_takes_too_much_comes_off_the_budget() -> None:
    node = node_with(0, memory_per_session=0)
    memory = node.broker.memory
    dropped: list[str] = []
    memory.watch(64 * MIB, lambda: 1, lambda: dropped.append("cache"), 8 * MIB)
    assert (memory.budget, memory.limit) == (64 * MIB, 56 * MIB)
    assert node.broker.retainer.share == 28 * MIB
    memory.watch(64 * MIB, lambda: 1, lambda: None, 60 * MIB)  # but a quarter at most
    assert memory.limit == 48 * MIB


def test_a_process_that_is_too_large_gives_back_what_is_free() -> None:
    """Though little is held: what was freed lies between what is used."""
    node = node_with(64 * MIB)
    grown = [60 * MIB]
    dropped: list[int] = []
    node.broker.memory.watch(0, lambda: grown[0], lambda: dropped.append(grown[0]))
    node.advance(1000)
    assert not dropped
    grown[0] = 65 * MIB
    for _ in range(10):
        node.advance(200)
    assert 1 <= len(dropped) <= 2 and node.broker.memory.step == 0


@pytest.mark.skipif(mqttd.compiled(), reason="changes an edge, which is compiled")
def test_who_makes_room_before_authentication_is_the_oldest_alone() -> None:
    """What its TLS holds is given back later, and all others went because of it."""
    node = node_with(memory_unauthenticated=10 * (50_000 + CONNECTION))
    clients = []
    for count in range(1, 31):
        client = node.client(5)
        client.channel.edge.holding = lambda channel: 50_000  # type: ignore[method-assign]
        clients.append(client)
        client.channel.weigh()
        assert len(node.broker.strangers) == min(count, 10)
        assert node.broker.account.unauthenticated <= node.settings.memory_unauthenticated
        node.broker.perform()
        assert [each.closed for each in clients] == [True] * (count - 10) + [False] * min(count, 10)
    clients[-1].send(Connect("c", version=5))
    assert isinstance(clients[-1].take()[0], Connack)
    for client in clients:
        client.drop()
    audit(node.broker, [])
    assert not node.broker.memory.used()


def test_who_is_ended_for_its_connect_is_not_let_in() -> None:
    """Its own CONNECT is what is too much."""
    node = node_with(memory_unauthenticated=5000)
    client = node.connect("c", 5, clean=False, properties=dict(LASTING))
    intruder = node.client(5)
    intruder.send(Connect("c", version=5, username=None, password=b"x" * 6000))
    assert not intruder.take()
    assert intruder.closed and not client.closed
    assert node.broker.registry.channels == 1
    audit(node.broker, [client.channel])


def test_free_memory_that_nobody_can_use_leaves_less_for_strangers_first() -> None:
    """After attacks a process stays large, though little is held: what comes on top is bounded."""
    node = node_with(64 * MIB)
    process = [0]
    node.broker.memory.watch(0, lambda: process[0], lambda: None)
    resident = node.connect("resident", 5)
    process[0] = 64 * MIB  # as large as it may be, and nothing of it is held
    node.advance(1000)
    assert node.broker.memory.step == 0
    wire = serialize(Connect("c", version=5, username="u" * 60000), 5)
    strangers = []
    for _ in range(600):
        stranger = node.client(5)
        stranger.feed(wire[:-1])
        strangers.append(stranger)
        node.broker.perform()
        assert node.broker.account.unauthenticated < 17 * MIB
    assert strangers[0].closed and not strangers[-1].closed and not resident.closed
    node.run_soon()
    assert node.broker.account.unauthenticated < 17 * MIB
    assert node.connect("new", 5).connack is not None and not node.broker.account.full


def test_a_process_beyond_its_budget_is_what_is_held_while_clients_hold_a_part_of_it() -> None:
    """But where clients hold little nobody is refused for what is not theirs."""
    node = node_with(64 * MIB)
    node.settings.mqueue_max_bytes = 0
    process = [90 * MIB]
    node.broker.memory.watch(0, lambda: process[0], lambda: None)
    away = node.connect("away", 5, properties=dict(LASTING))
    away.send(Subscribe(1, [Subscription("q", 1)]))
    away.drop()
    sender = node.connect("sender", 5)
    node.advance(1000)
    assert node.broker.memory.step == 0 and node.broker.memory.held() < MIB
    for number in range(1, 18):
        assert not node.broker.account.full
        sender.send(Publish("q", b"x" * (MIB // 2), 1, packet_id=number))
        node.run_soon()
    assert "away" not in node.broker.sessions and not sender.closed
    assert node.broker.metrics.memory_shed == 1
    node.advance(1000)
    assert node.broker.memory.step == 0


def test_unfinished_packets_go_before_sessions_where_the_process_is_too_large() -> None:
    node = node_with(64 * MIB)
    process = [64 * MIB]
    node.broker.memory.watch(0, lambda: process[0], lambda: None)
    resident = node.connect("resident", 5, clean=False, properties=dict(LASTING))
    resident.send(Subscribe(1, [Subscription(f"{i}" + "/+" * 120, 1) for i in range(100)]))
    node.advance(1000)
    wire = serialize(Publish("t", bytes(MIB - 100), 1, packet_id=1), 5)
    attackers = []
    for number in range(40):
        attacker = node.connect(f"a{number}", 5, clean=False, properties=dict(LASTING))
        attacker.feed(wire[:-1])
        attackers.append(attacker)
        node.run_soon()
        assert node.broker.account.unfinished < 19 * MIB
    hung_up = [attacker.closed for attacker in attackers].count(True)
    assert hung_up == node.broker.metrics.memory_hung_up > 20
    assert node.broker.metrics.memory_shed == 0 and not resident.closed
    assert len(node.broker.sessions) == 41
    assert not node.broker.account.full


def test_strangers_that_come_again_and_again_do_not_put_the_other_steps_off() -> None:
    node = node_with(4 * MIB)
    filler = node.connect("filler", 5, properties=dict(LASTING))
    wire = serialize(Connect("c", version=5, username="u" * 60000), 5)
    for i in range(2000):
        for _ in range(6):
            node.client(5).feed(wire[:-1])
        filler.send(Subscribe(1, [Subscription(f"{i}/{j}" + "/+" * 120, 1) for j in range(20)]))
        node.run_soon()
        assert node.broker.memory.used() < 4 * MIB + MIB // 2
        if filler.closed:
            break
    assert filler.closed and i < 100 and node.broker.metrics.memory_shed == 1
