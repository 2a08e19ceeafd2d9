"""Wildcards of mounted clients: below a mountpoint as in a tree of its own, for them alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.broker.broker import Broker
from mqttd.broker.routing.mounts import wildcard_at
from mqttd.codec.packets import Subscription
from mqttd.readmodel.routes import Routes
from mqttd.session.session import Session
from mqttd.types import ClientInfo
from tests.support.memory import MemoryBroker

from .reference import filters, matches, topics

#: One is below another, one has a `$` of its own, and two clients live in the same one.
PLACES = ["", "", "a/", "a/b/", "a/$/", "a/"]


def member_of(broker: Broker, number: int) -> Session:
    session = Session(broker, f"c{number}", None)
    place = PLACES[number]
    if place:
        session.client = ClientInfo(f"c{number}", None, "", 0, "", 5, False, mountpoint=place)
    broker.registry.put_back(session)
    return session


def reaches(number: int, own: str, topic: str) -> bool:
    """Whether a client's filter matches, both as the client knows them."""
    place = PLACES[number]
    if topic == place[:-1]:
        return own == "#"  # outside: `a/#` matches `a`, which is not handed to who lives in `a/`
    if not topic.startswith(place):
        return False
    rest = topic[len(place) :]
    # An empty name is none, but in the tree it is one.
    return matches(own, rest) if rest else own in ("#", "+", "+/#", "/#")


wild = st.one_of(filters, st.sampled_from(["#", "+", "+/a", "+/#"]))
below = st.tuples(st.sampled_from(["", "a/", "a/b/", "a/$/"]), topics).map("".join)
steps = st.tuples(st.integers(0, 3), st.integers(0, len(PLACES) - 1), wild, st.booleans())


@settings(deadline=None)
@given(
    st.lists(steps, min_size=1, max_size=12),
    st.lists(below, min_size=1, max_size=6),
)
def test_a_route_leads_to_whom_the_rules_say(
    steps: list[tuple[int, int, str, bool]], names: list[str]
) -> None:
    """With the filters of all of them, their groups, and after some have gone."""
    node = MemoryBroker()
    broker = node.broker
    router = broker.router
    sessions = [member_of(broker, number) for number in range(len(PLACES))]
    held: set[tuple[int, str, bool]] = set()

    def look() -> None:
        for topic in names:
            route = router.of(topic)
            alone = {session.client_id for session in route.sessions}
            wanted = {f"c{n}" for n, own, is_shared in held
                      if not is_shared and reaches(n, own, topic)}  # fmt: skip
            assert alone == wanted
            assert not any(options & ~15 for options in route.options)
            shown = Routes(broker).of(topic).routes
            assert {name for one in shown if not one.group for name in one.clients} == alone
            for group in route.groups or ():
                full = group.topic_filter  # type: ignore[attr-defined]
                members = {
                    f"c{n}"
                    for n, own, is_shared in held
                    if is_shared and PLACES[n] + own == full and reaches(n, own, topic)
                }
                chosen = group.choose("p", topic)
                assert chosen is None if not members else chosen and chosen.client_id in members
                named = [one.clients for one in shown if one.group and one.topic_filter == full]
                assert {name for names in named for name in names} == members

    def change(comes: bool, number: int, own: str, is_shared: bool) -> None:
        full = ("$share/g/" if is_shared else "") + PLACES[number] + own
        if comes:
            held.add((number, own, is_shared))
            broker.pubsub.subscribe(sessions[number], Subscription(full, 1), 1, number)
        else:
            held.discard((number, own, is_shared))
            broker.pubsub.unsubscribe(sessions[number], full)

    for comes, number, own, is_shared in steps:
        change(comes > 0, number, own, is_shared)
        look()
    for number, own, is_shared in list(held):
        change(False, number, own, is_shared)
    look()
    assert not router.mounts.prefixes and not router.trie.filters and not router.groups


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_who_subscribes_again_with_another_mountpoint_is_counted_once(share: str) -> None:
    node = MemoryBroker()
    broker = node.broker
    session = member_of(broker, 0)
    for place in ("", "a/", "a/", "", "a/", "b/", "a/"):
        session.client = ClientInfo("c0", None, "", 0, "", 5, False, mountpoint=place)
        broker.pubsub.subscribe(session, Subscription(f"{share}a/#", 1), 1, 0)
        route = broker.router.of("a/$x")
        groups = [group.choose("p", "a/$x") for group in route.groups or ()]
        assert [*route.sessions, *(one for one in groups if one)] == [session] * (place != "a/")
    broker.pubsub.unsubscribe(session, f"{share}a/#")
    assert not broker.router.mounts.prefixes and not broker.router.groups


@given(filters)
def test_the_first_wildcard_is_found(topic_filter: str) -> None:
    places = [at for at, character in enumerate(topic_filter) if character in "+#"]
    assert wildcard_at(topic_filter) == (places[0] if places else -1)
