"""A user whose sessions come from other nodes waits for itself, however many these are."""

from __future__ import annotations

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import EtcdError
from mqttd.cluster.etcd.keys import claimed, user_of
from mqttd.cluster.sessions.moving import AT_ONCE, LIGHT, PATIENCE, Moving
from mqttd.types import Claim, Held, SessionState
from tests.unit.cluster.test_users import KEYS, Node

RATE = 1 << 20


class Place:
    """The node; who has asked for a place, and what became of that."""

    def __init__(self, rate: int = RATE) -> None:
        self.clock = Clock()
        self.moving = Moving(self.clock)
        self.moving.pace.rate = rate

    def asks(self, client_id: str, username: str | None) -> list[object]:
        said: list[object] = []
        begun = Deferred.fromCoroutine(self.moving.begin(client_id, username))
        begun.addCallbacks(said.append, lambda failure: said.append(failure.value))
        return said

    def came(self, client_id: str, username: str | None, size: int) -> None:
        record = msgspec.json.encode({"version": 1, "username": username})
        self.moving.charge(client_id, SessionState(record, (bytes(size),)))
        self.moving.end(client_id)


def refused(said: list[object]) -> bool:
    return len(said) == 1 and isinstance(said[0], EtcdError)


def test_some_of_a_user_come_at_the_same_time_and_others_wait() -> None:
    place = Place()
    assert [place.asks(f"s{n}", "u") for n in range(AT_ONCE)] == [[None]] * AT_ONCE
    waits = [place.asks(f"w{n}", "u") for n in range(2)]
    assert waits == [[], []]
    assert place.asks("s0", "u") == [None], "it has a place"
    assert place.asks("other", "v") == [None]
    assert place.asks("nameless", None) == place.asks("another", None) == [None]
    place.moving.end("s1")
    assert waits == [[None], []]
    place.clock.advance(PATIENCE + 0.1)
    assert refused(waits[1]) and place.moving.pace.refused == 1
    assert place.asks("w1", "u") == []
    for each in ("s0", "w0", "other", "nameless", "another", *(f"s{n}" for n in range(2, AT_ONCE))):
        place.moving.end(each)
    place.moving.end("w1")
    place.moving.end("nobody")
    assert not place.moving._places and not place.moving._begun


def test_what_they_weigh_together_counts() -> None:
    """Each of them had a debt of its own: one user could have any number of them move."""
    place = Place()
    for number in range(3):
        assert place.asks(f"s{number}", "u") == [None]
        place.came(f"s{number}", "u", 7 << 20)
    assert refused(place.asks("s9", "u"))
    place.moving.end("s9")
    assert place.asks("s9", "v") == [None]
    for name in ("one", "two"):
        place.came(name, None, 20 << 20)
        assert refused(place.asks(name, None)), "a client that has no user name is one itself"
        place.moving.end(name)
    assert place.asks("three", None) == [None]
    place.clock.advance(9)
    assert place.asks("s9", "u") == [None]
    assert place.moving.pace.refused == 3


def test_a_fleet_with_one_user_name_is_charged_for_what_is_large_alone() -> None:
    """50,000 sessions of some filters each come from a node that is restarted."""
    place = Place()
    for number in range(50_000):
        place.came(f"s{number}", "u", LIGHT // 2)
    assert place.asks("one", "u") == [None]
    place.came("one", "u", 20 << 20)
    assert refused(place.asks("two", "u"))
    place.moving.end("two")
    place.clock.advance(10)
    assert place.asks("two", "u") == [None], "its user has paid"
    assert place.asks("one", "u") == [None]


def test_what_nobody_has_claimed_is_its_user_s_as_its_record_says() -> None:
    place = Place()
    place.came("s1", "u", 40 << 20)
    assert refused(place.asks("s2", "u"))
    place.moving.charge("s3", SessionState(b"no record", (bytes(40 << 20),)))
    assert refused(place.asks("s3", None))


def test_without_a_limit_nobody_waits() -> None:
    place = Place(0)
    for number in range(2 * AT_ONCE):
        assert place.asks(f"s{number}", "u") == [None]
        place.came(f"s{number}", "u", 20 << 20)
    assert not place.moving._begun and not place.moving._places


@pytest.mark.parametrize("username", ["alice", None])
def test_a_user_does_not_have_all_its_sessions_move_at_once(username: str | None) -> None:
    node = Node()
    node.owners.moving.pace.rate = RATE
    names = [f"s{number}" for number in range(2 * AT_ONCE)]
    for name in names:
        node.etcd.write(KEYS.own(name), claimed("a", "", user_of(name, username)))
    said: list[Claim] = []
    for name in names:
        claim = node.owners.claim(name, username, True)
        assert isinstance(claim, Deferred)
        claim.addCallback(said.append)
    node.turn()

    def on_their_way() -> list[str]:
        return [name for name in names if node.moves.arrivals.pending(name)]

    assert len(on_their_way()) == (AT_ONCE if username else 2 * AT_ONCE)
    while on_their_way():
        for name in on_their_way():
            revision = node.owners.owned[name]
            for each in "ab":
                node.moves.arrivals.state(node.nodes[each], name, revision, [])
        node.turn()
    assert len(said) == len(names) and all(each.held is Held.NODE for each in said)
    assert not node.owners.moving._begun and not node.owners.moving._places


def test_a_claim_that_has_waited_is_one_of_who_has_it_then() -> None:
    """Its node may be gone meanwhile, or another may have it."""
    node = Node()
    node.owners.moving.pace.rate = RATE
    for number in range(AT_ONCE):
        begun = Deferred.fromCoroutine(node.owners.moving.begin(f"other{number}", "alice"))
        assert begun.called
    node.etcd.write(KEYS.own("s"), claimed("a", "", user_of("s", "alice")))
    assert node.claim("alice") is None
    node.etcd.write(KEYS.own("s"), claimed("b", "", user_of("s", "alice")))
    node.members.discard("a")
    node.owners.moving.end("other0")
    node.turn()
    claimed_now = node.etcd.read()
    assert claimed_now is not None and (claimed_now.node, claimed_now.origin) == ("c", "b")
