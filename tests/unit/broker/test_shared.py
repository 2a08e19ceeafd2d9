"""Shared subscriptions: who gets a message, and who gets it when that one is away."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mqttd.broker.shared import MAX_TURNS, STRATEGIES, Group
from mqttd.session.channel import Channel, Server
from mqttd.session.connection import Edge
from mqttd.session.route import IDENTIFIED
from mqttd.session.session import Session
from mqttd.session.settings import Settings
from mqttd.session.topics import Topics


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
