"""Turns by work: who causes much is put behind the others, and nothing is lost or turned round."""

from __future__ import annotations

import itertools

import pytest

import mqttd
from mqttd.broker.ground.turns import SLICES, Job, Turns
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.session.channel.framing import ALLOWANCE
from mqttd.session.ground.settings import NEVER, Settings
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

LASTING: Properties = {prop.SESSION_EXPIRY_INTERVAL: NEVER}


def node_with(**more: int) -> MemoryBroker:
    settings = Settings()
    for name, value in more.items():
        setattr(settings, name, value)
    return MemoryBroker(settings)


def a_turn(node: MemoryBroker) -> None:
    """What was put off for the next turn, and nothing that this puts off."""
    tasks, node.tasks = node.tasks, []
    for task in tasks:
        task()


def subscribed(client: MemoryClient, *filters: str, qos: int = 1) -> list[int]:
    client.send(Subscribe(1, [Subscription(each, qos) for each in filters]))
    client.node.run_soon()
    (answer,) = [packet for packet in client.take() if isinstance(packet, Suback)]
    return answer.reason_codes


# What a test derives is interpreted, and cannot derive from what is compiled.
on_the_sources = pytest.mark.skipif(mqttd.compiled(), reason="derives from a compiled class")


class Steps(Job if not mqttd.compiled() else object):  # type: ignore[misc]
    def __init__(self, name: str, steps: int, seen: list[str]) -> None:
        self.name, self.steps, self.seen = name, steps, seen

    def slice(self) -> bool:
        self.steps -= 1
        self.seen.append(self.name)
        return self.steps > 0


@on_the_sources
def test_jobs_take_turns_and_a_turn_is_short() -> None:
    later: list[object] = []
    ends: list[int] = []
    seen: list[str] = []
    turns = Turns(later.append, lambda: ends.append(len(seen)))
    for name, steps in (("a", 3), ("b", 1), ("c", 2)):
        turns.add(Steps(name, steps, seen))
    while later:
        assert len(later) == 1
        later.pop()()  # type: ignore[operator]
    assert "".join(seen) == "abcaca"
    assert ends == [2, 4, 6] and SLICES == 2 and not len(turns)


def test_a_long_subscribe_is_served_in_turns_and_what_is_behind_it_waits() -> None:
    """260,000 times `#` held the loop for 12 s."""
    node = node_with(max_subscriptions=10_000)
    greedy, honest = node.connect("greedy"), node.connect("honest")
    filters = [Subscription(f"f/{i}", i % 3) for i in range(1000)]
    wire = serialize(Subscribe(7, filters), 4) + serialize(Publish("f/1", b"x", 0), 4)
    greedy.feed(wire + serialize(Pingreq(), 4))
    assert not greedy.take() and not greedy.wire.reading
    turns = 0
    while not (came := greedy.take()):
        turns += 1
        a_turn(node)
        assert node.broker.router.subscriptions <= 200 * (turns + 1)
    (suback, published, pong) = came
    assert turns == 4
    assert isinstance(suback, Suback) and suback.reason_codes == [i % 3 for i in range(1000)]
    assert isinstance(published, Publish) and isinstance(pong, Pingresp)
    assert greedy.wire.reading
    greedy.send(Unsubscribe(8, [f"f/{i}" for i in range(999)]))
    assert not greedy.take()
    honest.send(Publish("f/999", b"x", 0))
    assert isinstance(greedy.take()[0], Publish)
    node.run_soon()
    (unsuback,) = greedy.take()
    assert isinstance(unsuback, Unsuback) and node.broker.router.subscriptions == 1
    audit(node.broker, [greedy.channel, honest.channel])


def test_many_short_subscribes_in_one_piece_are_not_one_turn_either() -> None:
    node = node_with()
    each = 20 + 20  # a filter, and the right to it
    client = node.connect("c")
    client.feed(
        b"".join(serialize(Subscribe(i, [Subscription(f"{i}", 1)]), 4) for i in range(1, 2001))
    )
    assert len(client.take()) == ALLOWANCE // each + 1
    a_turn(node)
    assert len(client.take()) == ALLOWANCE // each + 1
    node.run_soon()
    assert len(node.broker.sessions["c"].subscriptions or ()) == 2000


def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    node = node_with()
    client = node.connect("c")
    client.send(Subscribe(1, [Subscription(f"f/{i}", 1) for i in range(1000)]))
    client.drop()
    node.run_soon()
    assert node.broker.router.subscriptions == 0 and not node.broker.router.exact
    assert node.broker.memory.used() == 0 and not len(node.broker.turns)


@pytest.mark.slow
def test_messages_to_many_are_sent_as_far_as_a_turn_goes_in_their_order() -> None:
    """A chunk of small messages to many receivers is much work in few bytes."""
    node = node_with(high_watermark=1 << 30, max_inflight=65535)
    receivers = [node.connect(f"r{i}") for i in range(100)]
    each = 100 >> 3  # bytes that go on as they came are an eighth of a unit for each receiver
    for receiver in receivers:
        subscribed(receiver, "t")
    sender = node.connect("s")
    count = 3 * ALLOWANCE // each
    wire = b"".join(serialize(Publish("t", b"%d" % i, 1, packet_id=i + 1), 4) for i in range(count))
    half = len(wire) // 2
    sender.feed(wire[:half])
    first = len(sender.take())
    built = 10 + 100
    assert first == (ALLOWANCE - built) // each + 1 and not sender.wire.reading
    sender.feed(wire[half:])  # read before it was told to stop
    assert not sender.take()
    a_turn(node)
    assert len(sender.take()) == ALLOWANCE // each + 1
    node.run_soon()
    assert sender.wire.reading
    for receiver in receivers:
        node.run_soon()
        got = []
        while came := receiver.published():
            got += came
            receiver.send(*(Puback(packet.packet_id) for packet in came))
        assert [packet.payload for packet in got] == [b"%d" % i for i in range(count)]
    audit(node.broker, [sender.channel, *(receiver.channel for receiver in receivers)])


def test_new_topics_are_work_too() -> None:
    """150,000 new topics, again and again, with wildcard changes in between."""
    node = node_with()
    sender = node.connect("s")
    sender.feed(b"".join(serialize(Publish(f"{i}", b"x"), 4) for i in range(3000)))
    built = node.broker.metrics.routes_built
    assert 900 <= built <= 1100
    a_turn(node)
    assert node.broker.metrics.routes_built <= 2 * built + 1
    node.run_soon()
    assert node.broker.metrics.routes_built == 3000


def test_what_is_refused_is_work_too() -> None:
    node = node_with()
    node.access.denied.add("not/yours")
    sender = node.connect("sender")
    metrics = node.broker.metrics
    before = metrics.dropped_denied
    sender.send(*[Publish("not/yours", b"")] * 3 * ALLOWANCE)
    assert not sender.wire.reading
    assert metrics.dropped_denied - before <= ALLOWANCE // 5 + 1
    node.run_soon()
    assert sender.wire.reading and metrics.dropped_denied - before == 3 * ALLOWANCE


@pytest.mark.parametrize("denied", [False, True])
def test_what_an_alias_stands_for_is_work_by_its_length(denied: bool) -> None:
    node = node_with()
    sender = node.connect("sender", 5)
    topic = "x" * 65_000
    if denied:
        node.access.denied.add(topic)
    sender.send(Publish(topic, b"", properties={prop.TOPIC_ALIAS: 1}))
    metrics = node.broker.metrics
    before = metrics.packets_received
    sender.send(*[Publish("", b"", properties={prop.TOPIC_ALIAS: 1})] * 1000)
    assert not sender.wire.reading
    assert metrics.packets_received - before <= ALLOWANCE // (65_000 >> 10) + 1
    node.run_soon()
    assert sender.wire.reading
    assert metrics.packets_received - before == 1000


@pytest.mark.parametrize("fast", [True, False])
def test_who_names_much_by_aliases_has_a_few_reads_of_it_a_turn(fast: bool) -> None:
    """12 bytes each, 64 KiB at once: 9 MB of topics went into the store in each turn."""
    node = node_with(fast_path=fast)
    senders = [node.connect(f"sender{number}", 5) for number in range(40)]
    topic = "x" * 65_000
    for sender in senders:
        sender.send(Publish(topic, b"", properties={prop.TOPIC_ALIAS: 1}))
    assert node.broker.topics.named == 0  # it was sent
    metrics = node.broker.metrics
    before = metrics.messages_received_qos0
    for sender in senders:
        sender.send(*[Publish("", b"", properties={prop.TOPIC_ALIAS: 1})] * 10)
        assert not sender.wire.reading
    assert node.broker.topics.named == 65_000 * (metrics.messages_received_qos0 - before)
    most = 0
    while not all(sender.wire.reading for sender in senders):
        named = node.broker.topics.named
        a_turn(node)
        most = max(most, node.broker.topics.named - named)
    assert 0 < most <= (4 << 20) + (256 << 10) + 2 * 65_000
    assert metrics.messages_received_qos0 - before == 400


def test_short_topics_by_aliases_are_read_on() -> None:
    node = node_with()
    sender = node.connect("sender", 5)
    sender.send(Publish("a" * 40, b"", properties={prop.TOPIC_ALIAS: 1}))
    sender.send(*[Publish("", b"", properties={prop.TOPIC_ALIAS: 1})] * 5000)
    assert sender.wire.reading
    assert node.broker.metrics.messages_received_qos0 == 5001


def test_a_session_with_many_subscriptions_ends_bit_by_bit_and_takes_nothing_meanwhile() -> None:
    """30 clients with 10,000 filters that ended at once held the loop for 0.6 s."""
    node = node_with()
    client = node.connect("c", 5, username="u")
    filters = [f"f/{i}" for i in range(2000)]
    subscribed(client, *filters)
    other = node.connect("other", 5)
    client.drop()
    assert "c" not in node.broker.sessions
    assert 0 < node.broker.router.subscriptions < 2000
    other.send(Publish("f/1", b"x", 1, packet_id=1), Publish("f/2", b"x", 0))
    assert node.broker.metrics.messages_queued == 0
    back = node.connect("c", 5, username="u")
    assert subscribed(back, "f/1") == [1]
    node.run_soon()
    assert node.broker.router.subscriptions == 1
    other.take()
    other.send(Publish("f/1", b"y", 1, packet_id=2))
    assert [packet.payload for packet in back.published()] == [b"y"]
    audit(node.broker, [other.channel, back.channel])
    back.drop()
    node.run_soon()
    assert not node.broker.account.purses


def test_a_group_passes_over_a_member_that_has_ended() -> None:
    """Whatever the strategy: a message for the group is not lost with it."""
    for strategy in ("round_robin", "random", "sticky", "hash_topic", "hash_clientid"):
        settings = Settings()
        settings.shared_strategy = strategy
        node = MemoryBroker(settings)
        away = node.connect("away", 5, properties=dict(LASTING))
        subscribed(away, "$share/g/t")
        away.drop()
        gone = node.connect("gone", 5, properties=dict(LASTING))
        subscribed(gone, "$share/g/t", *(f"f/{i}" for i in range(2000)))
        gone.drop()
        node.broker.registry.discard(node.broker.sessions["gone"], 0x98, "")
        sender = node.connect("sender", 5)
        for i in range(8):
            sender.send(Publish("t", b"%d" % i, 1, packet_id=i + 1))
        session = node.broker.sessions["away"]
        assert [delivery.get_message(0).payload for delivery in session.queued()] == [
            b"%d" % i for i in range(8)
        ], strategy


def test_a_message_is_made_once_per_shape_whatever_the_number_of_groups() -> None:
    """20 sessions in 10,000 groups: one PUBLISH of 1 MB held the loop for 14 s."""
    node = node_with(high_watermark=1 << 30)
    members = [node.connect(f"m{i}", 5) for i in range(3)]
    for member in members:
        subscribed(member, *(f"$share/g{i}/t" for i in range(300)), qos=1)
    sender = node.connect("s", 5)
    sender.send(Publish("t", b"x" * 1000, 2, packet_id=1))
    kept = [
        entry for member in members for entry in member.session.queued() + member.session.pending()
    ]
    assert len(kept) >= 300
    assert len({id(delivery.wire) for delivery in kept}) <= 1 + 300 // 100
    assert len({id(delivery.message) for delivery in kept}) == 1
    # By the general way as well, with identifiers.
    node.broker.fast = False
    sender.send(Publish("t", b"y" * 1000, 1, packet_id=2))
    made = {id(d.wire) for member in members for d in member.session.queued() if b"yyy" in d.wire}
    assert len(made) <= 2


def test_replays_go_in_turns() -> None:
    node = node_with(max_subscriptions=10_000, max_inflight=65535, high_watermark=1 << 30)
    sender = node.connect("s")
    for i in range(3000):
        sender.send(Publish(f"r/{i}", b"x", 0, True))
    node.run_soon()
    client = node.connect("c")
    client.send(Subscribe(1, [Subscription("r/#", 0)]))
    first = len(client.published())
    assert 0 < first <= 1000
    node.run_soon()
    assert first + len(client.published()) == 3000
    audit(node.broker, [sender.channel, client.channel])


def test_bans_and_users_that_are_gone_are_looked_for_in_turns() -> None:
    node = node_with()
    clients = [node.connect(f"c{i}", username="eve") for i in range(500)]
    node.broker.bans.add("username", "eve")
    ended = node.broker.enforce_bans()
    assert 0 < ended < 500
    assert sum(client.closed for client in clients) == ended
    node.run_soon()
    assert all(client.closed for client in clients)
    assert node.broker.metrics.clients_kicked == 500


def test_who_has_had_a_turn_gets_one_more_and_not_two() -> None:
    """Each turn put off two, so the eleventh was one of ten seconds."""
    node = node_with(high_watermark=1 << 30)
    for i in range(50):
        # Retain As Published: a shape is cut for each message, and a receiver is a unit of work.
        asked = Subscription("t/#", 0, False, True)
        node.connect(f"r{i}", 5).send(Subscribe(1, [asked]))
    sender = node.connect("s")
    sender.feed(b"".join(serialize(Publish(f"t/{i % 9}", b"", 0), 4) for i in range(3000)))
    turns = 0
    while node.tasks:
        assert len(node.tasks) == 1
        turns += 1
        a_turn(node)
    assert turns + 1 >= 3000 * 50 // ALLOWANCE
    assert sender.wire.reading and node.broker.metrics.messages_sent == 3000 * 50


def test_acknowledgements_do_not_hasten_the_search_for_retained_messages() -> None:
    """Each of them began a search that went on beside the others, all of them in one turn."""
    node = node_with()
    for i in range(20_000):
        node.broker.publish_text(f"a/{i}/y", b"x", 0, True)
    node.broker.publish_text("a/20000/x", b"here", 0, True)
    sender, seeker = node.connect("s"), node.connect("seeker")
    seeker.send(Subscribe(1, [Subscription("m", 1)]))
    seeker.send(Subscribe(2, [Subscription("a/+/x", 1)]))
    turns, found = 0, b""
    while node.tasks:
        for i in range(10):
            sender.send(Publish("m", b"", 1, packet_id=i + 1))
        for packet in seeker.published():
            found += packet.payload
            seeker.send(*[Puback(packet.packet_id)] if packet.qos else [])
        assert len(node.tasks) == 1
        turns += 1
        a_turn(node)
    assert turns > 2
    assert found + b"".join(packet.payload for packet in seeker.published()) == b"here"


def test_searches_that_find_nothing_are_work_of_their_turn() -> None:
    """Filters that fit 1,000 retained topics but for their last word."""
    node = MemoryBroker()
    publisher = node.connect("publisher")
    for words in itertools.product("ab", repeat=10):
        publisher.send(Publish("/".join(("r", *words, "z")), b"x", retain=True))
    publisher.send(Publish("o/" + "x/" * 10 + "q", b"x", retain=True))
    filters = ["/".join(("r", *words, "+", "+", "q")) for words in
               itertools.product("+a", repeat=8)]  # fmt: skip
    client = node.connect("client")
    client.send(Subscribe(1, [Subscription(each, 0) for each in filters]))
    while node.session("client").subscriptions is None or not node.session("client").replays:
        a_turn(node)
    turns = 0
    while node.session("client").replays is not None:
        turns += 1
        a_turn(node)
    assert turns > 1


@pytest.mark.parametrize("properties", [{}, {prop.CONTENT_TYPE: "x"}])
@pytest.mark.parametrize("version", [4, 5])
def test_issue_12_what_a_member_leaves_is_not_copied(version: int, properties: Properties) -> None:
    """40 members with 100 KB each that end at once: each message was there three times."""
    node = node_with()
    other = node.connect("other", 5, properties=dict(LASTING))
    subscribed(other, "$share/g/t", qos=1)
    other.drop()
    member = node.connect("member", version)
    subscribed(member, "$share/g/t", qos=1)
    sender = node.connect("sender", 5)
    for number in range(3):
        said = Publish("t", bytes([number]) * 1000, 1, packet_id=number + 1)
        sender.send(Publish(said.topic, said.payload, 1, packet_id=said.packet_id,
                            properties=dict(properties)))  # fmt: skip
    held = [delivery.wire for delivery in member.session.shared()]
    assert len(held) == 3
    member.drop()
    kept = node.broker.sessions["other"].queued()
    assert [delivery.get_message(0).payload[:1] for delivery in kept] == [b"\0", b"\1", b"\2"]
    assert [delivery.get_message(0).properties or {} for delivery in kept] == 3 * [properties]
    if version == 5:
        assert all(now.wire is was for now, was in zip(kept, held, strict=True))
    audit(node.broker, [sender.channel])


def test_the_identifiers_of_a_route_are_weighed_and_put_together_once() -> None:
    node = node_with()
    client = node.connect("mirror", 5)
    filters = [
        "/".join("+" if number >> at & 1 else "a" for at in range(8)) for number in range(256)
    ]
    for number, each in enumerate(filters):
        # No Local: the client's own messages carry but the identifiers of every second one.
        asked = Subscription(each, 0, no_local=number % 2 == 0)
        more: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [1000 + number]}
        client.send(Subscribe(1, [asked], more))
    node.run_soon()
    client.take()
    router = node.broker.router
    topic = "/".join("a" * 8)
    before = router.bytes
    route = router.of(topic)
    assert router.bytes - before > 48 * (256 + 128)
    again = router.of("/".join("a" * 8))
    assert again.own_blocks is route.own_blocks is not None
    other = node.connect("other", 5)
    for publisher, numbers in ((other, range(256)), (client, range(1, 256, 2))):
        publisher.send(Publish(topic, b""))
        node.run_soon()
        (got,) = client.published()
        assert got.properties is not None
        named = got.properties[prop.SUBSCRIPTION_IDENTIFIER]
        assert isinstance(named, list) and sorted(named) == [1000 + number for number in numbers]


def test_what_topics_with_the_same_filters_share_is_bounded_by_its_bytes() -> None:
    node = node_with()
    client = node.connect("mirror", 5)
    for at in range(0, 8192, 512):
        some = [
            "/".join("+" if n >> k & 1 else "a" for k in range(13)) for n in range(at, at + 512)
        ]
        more: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [1000 + at]}
        client.send(Subscribe(1, [Subscription(each, 0) for each in some], more))
        node.run_soon()
    client.take()
    router = node.broker.router
    for number in range(200):
        router.of("/".join("b" if number >> k & 1 else "a" for k in range(13)))
    held = sum(route.heft for route in router._matches.values())
    assert 0 < held <= 16 << 20


def test_retained_messages_that_expire_together_are_forgotten_in_turns() -> None:
    """Ten thousand were forgotten in one: 40 ms, and more where topics have many levels."""
    node = MemoryBroker()
    client = node.connect("a", 5)
    for number in range(2000):
        topic = f"deep/{'/'.join(str(number))}/{number}"
        expiring: Properties = {prop.MESSAGE_EXPIRY_INTERVAL: 1}
        client.send(Publish(topic, b"x", retain=True, properties=expiring))
    node.run_soon()
    retainer = node.broker.retainer
    assert len(retainer) == 2000
    node.broker.tick(node.broker.now + 1000)
    left = [len(retainer)]
    while node.tasks:
        a_turn(node)
        left.append(len(retainer))
    assert left[-1] == 0 and len(left) > 5
    assert max(before - after for before, after in itertools.pairwise([2000, *left])) <= 1000
