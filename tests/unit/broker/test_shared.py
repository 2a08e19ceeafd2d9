"""Shared subscriptions: who gets a message, and who gets it when that one is away."""

from __future__ import annotations

import random
from collections import Counter
from zlib import crc32

import pytest

from mqttd.broker.routing.router import Router
from mqttd.broker.routing.shared import MAX_TURNS, STRATEGIES, Group
from mqttd.session.channel.channel import Channel, Server
from mqttd.session.ground.connection import Edge
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.route import IDENTIFIED
from mqttd.session.routes.topics import Topics
from mqttd.session.session import Session


def sessions(count: int) -> list[Session]:
    """Sessions that are online."""
    node = Server(Settings(), 0, Topics(1 << 20, 100))
    members = [Session(node, f"member{number}", None) for number in range(count)]
    for member in members:
        member.channel = Channel(node, Edge(), -1, "test")
    return members


def group_of(strategy: str, members: list[Session]) -> Group:
    group = Group("g", "t/+", strategy, random.Random(1))
    for member in members:
        assert group.add(member, 1)
    return group


def test_round_robin_takes_the_members_in_turn() -> None:
    members = sessions(3)
    group = group_of("round_robin", members)
    assert [group.choose("p", "t/1") for _ in range(6)] == members * 2


def test_each_publisher_has_a_turn_of_its_own() -> None:
    """Two publishers that alternate each reach all members; they do not begin at the same one."""
    members = sessions(2)
    group = group_of("round_robin", members)
    chosen = [(group.choose("p", "t/1"), group.choose("q", "t/1")) for _ in range(4)]
    assert [p for p, _ in chosen] == members * 2
    assert [q for _, q in chosen] == members[::-1] * 2


def test_many_publishers_of_one_message_spread_over_the_members() -> None:
    members = sessions(4)
    group = group_of("round_robin", members)
    times = Counter(group.choose(f"publisher{number}", "t/1") for number in range(4 * MAX_TURNS))
    assert set(times.values()) == {MAX_TURNS}
    assert len(group.turns) == MAX_TURNS


def test_another_strategy_is_that_of_groups_that_are_there() -> None:
    settings = Settings()
    router = Router(settings)
    members = sessions(3)
    for member in members:
        router.subscribe_shared(member, "$share/g/t/+", "g", "t/+", 1)
    group = router.groups["$share/g/t/+"]
    assert [group.choose("p", "t/1") for _ in range(3)] == members
    settings.shared_strategy = "sticky"
    router.take_over(settings)
    assert len({group.choose("p", "t/1") for _ in range(3)}) == 1
    settings.shared_strategy = "round_robin"
    router.take_over(settings)
    assert {group.choose("p", "t/1") for _ in range(3)} == set(members)


def test_random_takes_any_member() -> None:
    members = sessions(3)
    group = group_of("random", members)
    times = Counter(group.choose("p", "t/1") for _ in range(3000))
    assert len(times) == 3
    assert min(times.values()) > 800
    assert Group("g", "t", "random").choose("p", "t") is None


def test_random_is_repeatable_with_a_given_source() -> None:
    members = sessions(3)
    first, second = group_of("random", members), group_of("random", members)
    assert [first.choose("p", "t") for _ in range(50)] == [
        second.choose("p", "t") for _ in range(50)
    ]


def test_sticky_keeps_to_one_member_while_it_is_online() -> None:
    members = sessions(3)
    group = group_of("sticky", members)
    assert {group.choose(f"p{number}", f"t/{number}") for number in range(20)} == {members[0]}
    channel = members[0].channel
    members[0].channel = None
    assert group.choose("p", "t/1") is members[1]
    members[0].channel = channel
    assert group.choose("p", "t/1") is members[1]
    group.remove(members[1])
    assert group.choose("p", "t/1") is members[0]


@pytest.mark.parametrize("strategy", ["hash_clientid", "hash_topic"])
def test_a_hash_keeps_what_belongs_together_with_one_member(strategy: str) -> None:
    members = sessions(4)
    group = group_of(strategy, members)
    names = [f"name{number}" for number in range(200)]
    chosen = {name: group.choose(name, name) for name in names}
    assert set(chosen.values()) == set(members)
    other = "other"
    for name in names:
        again = (
            group.choose(name, other) if strategy == "hash_clientid" else group.choose(other, name)
        )
        assert again is chosen[name]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_member_that_is_online_comes_first(strategy: str) -> None:
    members = sessions(5)
    group = group_of(strategy, members)
    for member in members[:2] + members[3:]:
        member.channel = None
    assert {group.choose(f"p{number}", f"t/{number}") for number in range(50)} == {members[2]}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_while_all_are_away_one_is_chosen_to_queue(strategy: str) -> None:
    members = sessions(3)
    group = group_of(strategy, members)
    for member in members:
        member.channel = None
    chosen = {group.choose(f"p{number}", f"t/{number}") for number in range(50)}
    assert chosen <= set(members)
    if strategy == "round_robin":
        assert chosen == set(members)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_and_go(strategy: str) -> None:
    members = sessions(3)
    group = group_of(strategy, members)
    assert not group.add(members[0], 2, 77)
    assert group.options(members[0]) == 2 | IDENTIFIED
    assert group.identifiers(members[0]) == [77]
    assert group.options(members[1]) == 1
    assert group.identifiers(members[1]) is None
    for left, member in enumerate(reversed(members)):
        assert len(group) == 3 - left
        assert group.choose("p", "t/1") in members[: 3 - left]
        assert group.remove(member)
        assert not group.remove(member)
        assert group.options(member) == 0
        assert group.identifiers(member) is None
    assert len(group) == 0
    assert group.choose("p", "t/1") is None


def test_an_unknown_strategy_is_refused_with_those_known() -> None:
    with pytest.raises(
        ValueError, match="unknown shared subscription strategy 'fair'.*round_robin"
    ):
        Group("g", "t", "fair")


class Slow:
    """The same choice by a walk over all members, in the order they came."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.order: list[Session] = []
        self.random = random.Random(1)
        self.turns: dict[str, int] = {}
        self.publishers = 0
        self.stuck: Session | None = None

    def remove(self, member: Session) -> None:
        self.order.remove(member)
        if self.stuck is member:
            self.stuck = None

    def choose(self, source: str, topic: str) -> Session:
        count = len(self.order)
        if self.strategy == "sticky":
            if self.stuck is None or not self.stuck.online():
                place = 0 if self.stuck is None else self.order.index(self.stuck)
                self.stuck = self.order[self.online_from(place)]
            return self.stuck
        if self.strategy == "random":
            return self.order[self.online_from(self.random.randrange(count))]
        if self.strategy != "round_robin":
            name = source if self.strategy == "hash_clientid" else topic
            return self.order[self.online_from(crc32(name.encode()) % count)]
        turn = self.turns.get(source, -1)
        if turn < 0:
            turn = self.publishers
            self.publishers += 1
        place = self.online_from(turn % count)
        self.turns[source] = place + 1
        return self.order[place]

    def online_from(self, place: int) -> int:
        ring = [*range(place, len(self.order)), *range(place)]
        return next((at for at in ring if self.order[at].online()), place)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(20))
def test_members_that_come_go_leave_and_join_are_chosen_as_by_a_walk(
    strategy: str, seed: int
) -> None:
    chance = random.Random(seed)
    members = sessions(chance.choice([2, 5, 40]))
    channels = {member: member.channel for member in members}
    for member in chance.sample(members, len(members) // 2):
        member.detach()  # before it joins, as those that a store gives back
    group, slow = group_of(strategy, members), Slow(strategy)
    slow.order.extend(members)
    restless = chance.choice([0.02, 0.2, 0.9])
    for step in range(600):
        if chance.random() < restless:
            member = chance.choice(members)
            event = chance.random()
            if event < 0.1:
                if len(slow.order) > 1 and member in slow.order:
                    assert group.remove(member)
                    slow.remove(member)
                elif member not in slow.order:
                    assert group.add(member, 1)
                    slow.order.append(member)
            elif event < 0.5:
                member.detach()
            else:
                channel = channels[member]
                assert channel is not None
                member.attach(channel, 0, 0)
        if step % 150 == 149:
            for member in members:
                member.detach()
        source, topic = f"p{chance.randrange(5)}", f"t/{chance.randrange(5)}"
        assert group.choose(source, topic) is slow.choose(source, topic)
    assert sorted(set(group.here)) == group.here


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_that_were_found_away_are_not_looked_at_again(strategy: str) -> None:
    members = sessions(30)
    group = group_of(strategy, members)
    channels = [member.channel for member in members]
    for member in members:
        member.detach()
    assert group.choose("p", "t/1") in members
    assert group.here == []
    channel = channels[7]
    assert channel is not None
    members[7].attach(channel, 0, 0)
    assert group.here == [7]
    assert {group.choose(f"p{number}", f"t/{number}") for number in range(50)} == {members[7]}
    group.remove(members[3])
    group.remove(members[7])
    assert group.here == []
    assert members[3].awaited_by is None or group not in members[3].awaited_by
