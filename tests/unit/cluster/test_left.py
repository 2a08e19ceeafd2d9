"""A node that is killed while one of its sessions is elsewhere: what its store has is not later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.left import LEFT, left_of
from mqttd.cluster.sessions.transit import DONE, LOOK, WANT, WHOLE
from mqttd.types import SessionState
from tests.unit.cluster.test_looks_again import Said, claims_all, said, sends_all
from tests.unit.cluster.test_remains import Node as Kept
from tests.unit.cluster.test_unanswered import taken_unheard
from tests.unit.cluster.test_users import ALICE, HOME, KEYS, OTHER, Node

__all__ = ["said"]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.kept.base.close()


def noted(kept: Kept) -> dict[str, tuple[str, int]]:
    """What the store says of sessions that leave."""
    kept.broker.perform()
    kept.kept.settle()
    query = "SELECT key, value FROM kept WHERE plugin = ?"
    return {key: left_of(value) for key, value in kept.kept.base.execute(query, (LEFT,))}


def test_the_store_knows_to_whom_it_goes_until_it_is_there(kept: Kept) -> None:
    kept.hand("a", 5)
    assert noted(kept) == {"s": ("a", 5)}
    kept.moves.hand("s", "b", 7, None)
    assert noted(kept) == {"s": ("b", 7)}
    kept.says("b", DONE, 7)
    assert noted(kept) == {} and kept.rows() == [0, 0, 0]


def test_or_until_it_is_here_again(kept: Kept) -> None:
    kept.hand("a", 5)
    state = kept.moves.departures.recall("s")
    kept.broker.registry.keep("s", 6, state)
    assert noted(kept) == {}
    assert kept.after_a_crash() == {"s": 0}


@pytest.fixture
def node() -> Node:
    """`c`, begun anew: its store has the session, which it had given to `b` in revision 11."""
    made = Node()
    made.etcd.write(KEYS.own("s"), claimed("b", "c", ALICE), OTHER)
    made.memory.broker.registry.recover([("s", SessionState(made.record_of("alice"), ()))])
    made.moves.transit.left.goes("s", "b", 11)
    return made


def test_what_we_have_claimed_since_is_asked_for(node: Node, said: Said) -> None:
    """It counted for what had come back, and what had was refused."""
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "b", ALICE), 99)
    assert claims_all(node) == 0
    assert ("b", WANT, revision, 0) in said
    assert "s" not in node.memory.broker.sessions
    sends_all(node, "b", revision)
    node.turn()
    assert node.owners.owned["s"] == revision and "s" in node.memory.broker.sessions
    assert not node.moves.departures.of and node.moves.transit.left.of("s") is None


def test_where_that_is_nothing_it_is_what_the_store_has(node: Node) -> None:
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "b", ALICE), 99)
    claims_all(node)
    node.sends("b", revision)
    node.turn()
    assert node.owners.owned["s"] == revision and "s" in node.memory.broker.sessions


def test_of_a_third_of_whom_we_have_claimed_it_that_one_is_asked_and_then_who_had_it(
    node: Node, said: Said
) -> None:
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "a", ALICE), 99)
    claims_all(node)
    assert ("a", WANT, revision, 0) in said
    node.sends("a", revision)
    assert said[-1] == ("b", WANT, revision, 0)


def test_who_has_claimed_it_of_us_since_is_given_what_comes_of_that(node: Node, said: Said) -> None:
    """We had claimed it of `b` between the two, before we were killed; `a` was given what we had
    given away."""
    node.etcd.revision += 5
    revision = taken_unheard(node, "a")
    node.owners.taken("s", "a", revision)
    assert said[-1] == ("b", WANT, revision - 1, 0)
    assert ("a", WHOLE, revision, 1) not in said
    sends_all(node, "b", revision - 1)
    assert ("a", WHOLE, revision, 1) in said


def test_who_had_claimed_it_then_is_sent_it_again(node: Node, said: Said) -> None:
    node.owners.taken("s", "b", 11)
    assert ("b", WHOLE, 11, 1) in said and ("b", WANT, 10, 0) not in said
    assert node.moves.departures.of["s"].doubt


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_is_ours_is_here(node: Node, is_ours: bool) -> None:
    """We had it back, or nobody has it and who had claimed it is not there any more."""
    if is_ours:
        node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), 99)
    else:
        node.etcd.kept.clear()
        node.members.discard("b")
        node.mesh.leave(node.nodes["b"])
    done = Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
    node.turn(3)
    assert done.result == 0
    assert "s" in node.memory.broker.sessions and not node.moves.departures.of
    assert node.moves.transit.left.of("s") is None
    assert node.etcd.lease() == HOME


def test_17_who_has_claimed_it_of_him_is_given_what_we_have_and_he_is_not_asked_again(
    node: Node, said: Said
) -> None:
    """`b` had claimed it of us, and may have what we had had before: that was given to `a`."""
    claims_all(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.owners.wanted("s", "b", revision - 1)  # it had no answer of etcd, and asks as we do
    node.sends("b", 11, what=LOOK)
    node.turn(2)
    said.clear()
    node.owners.wanted("s", "a", revision)
    node.turn(2)
    assert not [each for each in said if each[:2] == ("b", WANT)]
    assert ("a", WHOLE, revision, 1) in said or node.moves.departures.of["s"].to == "a"


def test_what_has_ended_where_it_was_is_here_again(node: Node) -> None:
    """Known: an end leaves nothing in etcd, as a node that is not awaited any more, with all that
    it had. Then this is better than nothing."""
    node.etcd.kept.clear()
    assert claims_all(node) == 0
    assert node.moves.departures.of["s"].to == "b"
    node.sends("b", 11, what=LOOK)
    node.turn(2)
    assert node.etcd.read() == ("c", "", ALICE) and "s" in node.memory.broker.sessions
