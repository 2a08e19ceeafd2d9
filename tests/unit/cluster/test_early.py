"""A session that has come before etcd has said here what was so when it was claimed waits for that.

Its client has published elsewhere by later tables: what it publishes here would go by those of
before, and to who has gone from one node to another since in another order.
"""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import LANE_MARKED, MARKED, TAIL, WHOLE
from mqttd.types import Claim
from tests.unit.cluster.test_users import ALICE, KEYS, LEASE, OTHER, Node


@pytest.fixture
def node() -> Node:
    """`c`; the session is at `b`."""
    made = Node()
    made.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    made.mesh.applied = made.etcd.revision
    return made


def comes(node: Node, revision: int) -> None:
    """All of it, and all marks."""
    node.sends("b", revision, node.record_of("alice"))
    for name in "ab":
        node.sends(name, revision, what=MARKED)
        node.sends(name, revision, what=LANE_MARKED)
    node.sends("b", revision, what=TAIL)


@pytest.mark.parametrize("something", [True, False])
def test_who_comes_is_let_in_when_the_tables_are_those_of_the_claim(
    node: Node, something: bool
) -> None:
    said: list[Claim] = []
    claim = node.owners.claim("s", "alice", True)
    assert not isinstance(claim, Claim)
    claim.addCallback(said.append)
    node.turn()
    revision = node.etcd.revision
    if something:
        comes(node, revision)
    else:
        node.sends("b", revision)
        node.sends("a", revision)
    node.moves.seen()
    assert said == []
    node.mesh.applied = revision
    node.moves.seen()
    assert said[0].epoch == revision and (said[0].state is not None) is something


def test_what_goes_on_to_another_does_not_wait(node: Node) -> None:
    assert node.claim("alice") is None
    revision = node.etcd.revision
    said: list[tuple[str, bytes]] = []
    say = node.moves.transit.say

    def hear(to, what, client_id, revision, *fields) -> None:  # type: ignore[no-untyped-def]
        said.append((to.name, what))
        say(to, what, client_id, revision, *fields)

    node.moves.transit.say = hear  # type: ignore[method-assign]
    later = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    comes(node, revision)
    assert ("a", WHOLE) not in said
    node.owners.taken("s", "a", later)
    node.mesh.applied = later
    node.moves.seen()
    assert ("a", WHOLE) in said


@pytest.mark.parametrize("is_ours", [True, False])
def test_17_who_waits_while_our_lease_ends_is_let_in_if_etcd_says_once_more_that_it_is_ours(
    node: Node, is_ours: bool
) -> None:
    """To who had it we were gone: it may have had it back, and have let its client in."""
    said: list[Claim] = []
    failed: list[object] = []
    claim = node.owners.claim("s", "alice", True)
    assert not isinstance(claim, Claim)
    claim.addCallbacks(said.append, failed.append)
    node.turn()
    revision = node.mesh.applied = node.etcd.revision
    node.owners.lease = 0
    comes(node, revision)
    node.owners.lease = LEASE + 90
    node.moves.seen()
    assert not said and not failed
    if not is_ours:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
    node.turn()
    assert bool(said) is is_ours and bool(failed) is not is_ours


def test_17_what_has_come_while_we_were_no_member_is_looked_at_when_we_are_one(node: Node) -> None:
    """Its claim had no answer."""
    node.moves.arrivals.suppose("s", "b", 1, 2)
    node.owners.lease = 0
    comes(node, 2)
    node.turn(2)
    assert node.moves.arrivals.of["s"].whole
    node.owners.lease = LEASE
    node.turn(2)
    assert not node.moves.arrivals.of
