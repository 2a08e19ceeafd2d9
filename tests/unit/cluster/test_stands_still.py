"""A node that stands still for longer than its lease, and goes on: its sessions, and others'."""

from __future__ import annotations

from base64 import b64encode

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.client import EtcdError
from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import LANE_MARKED, MARKED, TAIL, WANT, WHOLE
from mqttd.mesh.frames import split, unpacked
from mqttd.types import Claim, Held, SessionState
from tests.unit.cluster.test_users import ALICE, BRIEF, HOME, KEYS, LEASE, OTHER, Node


@pytest.fixture
def node() -> Node:
    return Node()


def goes_on(node: Node) -> None:
    """Its lease has ended with all that it had, and it is a member anew."""
    own = b64encode(KEYS.own("s")).decode()
    if own in node.etcd.kept and node.etcd.lease() == LEASE:
        del node.etcd.kept[own]
    done = Deferred.fromCoroutine(node.owners.amends.claim_all(list(node.owners.owned)))
    node.turn()
    assert isinstance(done.result, int)


def marked(node: Node, revision: int) -> None:
    for name in "ab":
        node.sends(name, revision, what=MARKED)
        node.sends(name, revision, what=LANE_MARKED)


def sends_all(node: Node, name: str, revision: int) -> None:
    """What this one has of the session, and the marks of all."""
    node.sends(name, revision, node.record_of("alice"))
    marked(node, revision)
    node.sends(name, revision, what=TAIL)


@pytest.mark.parametrize("knows", ["before", "anew"])
def test_what_is_on_its_way_here_still_is_when_it_is_claimed_anew(node: Node, knows: str) -> None:
    """Who comes meanwhile waits for it; who sends it may have looked at etcd since, or not."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), BRIEF)
    assert isinstance(node.claim("alice", 5), EtcdError)
    before = node.owners.owned["s"]
    goes_on(node)
    assert node.etcd.read() == ("c", "b", ALICE)
    assert node.owners.owned["s"] > before
    assert isinstance(node.claim("alice", 5), EtcdError)
    sends_all(node, "b", before if knows == "before" else node.owners.owned["s"])
    assert node.memory.broker.sessions["s"].username == "alice"
    assert node.claim("alice") == Claim(node.etcd.revision, Held.HERE)
    assert node.etcd.read() == ("c", "", ALICE)
    assert not node.moves.arrivals.of


def test_what_its_giver_has_back_is_not_waited_for(node: Node) -> None:
    """What comes all the same goes there; who comes here claims it anew."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert isinstance(node.claim("alice", 5), EtcdError)
    before = node.owners.owned["s"]
    back = node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    goes_on(node)
    assert "s" not in node.owners.owned
    assert not node.moves.arrivals.pending("s")
    sends_all(node, "b", before)
    assert node.moves.departures.of["s"].revision == back
    assert "s" not in node.memory.broker.sessions
    assert isinstance(node.claim("alice", 5), EtcdError)
    sends_all(node, "b", node.owners.owned["s"])
    assert node.memory.broker.sessions["s"].username == "alice"


def passes_through(node: Node) -> None:
    """On its way here from `b`, `a` has claimed it after us, and `b` has had it back for that."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert isinstance(node.claim("alice", 5), EtcdError)
    node.sends("b", node.owners.owned["s"], node.record_of("alice"))
    node.owners.taken("s", "a", node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER))
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)


def test_what_has_come_is_in_place_of_what_was_on_its_way_before(node: Node) -> None:
    passes_through(node)
    assert isinstance(node.claim("alice", 5), EtcdError)
    sends_all(node, "b", node.owners.owned["s"])
    assert node.memory.broker.sessions["s"].username == "alice"
    assert not node.moves.arrivals.of


def test_what_is_on_its_way_from_here_is_not_given_up_for_what_was_before(node: Node) -> None:
    passes_through(node)
    before = node.moves.arrivals.of["s"].revision
    state = SessionState(node.record_of("alice"), (), 90)
    node.moves.departures.begin("s", "b", 99, state)
    node.moves.arrivals.left("b")  # and is back, and has nothing of what it had sent
    node.sends("b", before)
    leaves = node.moves.departures.of["s"]
    assert (leaves.to, leaves.revision) == ("b", 99)


def said(node: Node, name: str) -> list[bytes]:
    """What was said of sessions to this one since the last time."""
    kept = node.nodes[name].ferry.kept
    frames = [data[split(data, 0)[0] :] for _, data in kept]
    kept.clear()
    return [unpacked(body)[0] for body in frames]


def test_what_was_said_to_it_is_asked_for_again(node: Node) -> None:
    """Others have dropped that with its lease; it has never seen them go."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert isinstance(node.claim("alice", 5), EtcdError)
    said(node, "b")
    node.moves.anew()
    assert said(node, "b") == [WANT]
    sends_all(node, "b", node.owners.owned["s"])
    node.owners.taken("s", "a", node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER))
    assert said(node, "a")[-1] == WHOLE
    node.moves.anew()
    assert said(node, "a") == []  # it asks itself


def test_17_what_is_said_before_others_have_heard_that_we_are_there_anew_is_asked_for_again(
    node: Node,
) -> None:
    """With a link to who we are by now; three nodes waited for each other without end."""
    node.moves.anew()
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert isinstance(node.claim("alice", 5), EtcdError)
    assert WANT not in said(node, "b")
    node.moves.linked(node.nodes["b"])
    assert said(node, "b") == [WANT]
    node.moves.linked(node.nodes["b"])
    assert said(node, "b") == []  # it sends again itself what it keeps


def test_what_was_claimed_before_etcd_said_that_it_lasts_does_so_when_it_is_here(
    node: Node,
) -> None:
    """It had just begun where it comes from: what stays under our lease is nobody's with that."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), BRIEF)
    assert isinstance(node.claim("alice", 5), EtcdError)
    assert node.etcd.lease() == LEASE
    sends_all(node, "b", node.owners.owned["s"])
    node.turn(1)
    assert node.memory.broker.sessions["s"].expiry_interval
    assert node.etcd.read() == ("c", "", ALICE) and node.etcd.lease() == HOME


def test_that_it_lasts_is_said_again_where_etcd_does_not_answer(node: Node) -> None:
    node.comes("alice", False)
    assert node.etcd.lease() == HOME
    since = node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), LEASE)
    node.owners.owned["s"] = since
    node.etcd.away = True
    node.owners.amends._write_later("s", True)
    node.turn(1)
    node.etcd.away = False
    assert node.etcd.lease() == LEASE
    node.turn(10)
    assert node.etcd.lease() == HOME


def test_17_what_we_had_claimed_when_we_were_killed_waits_for_its_node_as_well(node: Node) -> None:
    """Its key is under a home of ours before this one: half of it was let in when `b` was gone for
    its lease, and `b` had it back."""
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "b", ALICE), 99)
    node.sends("b", revision, node.record_of("alice"))
    assert isinstance(node.claim("alice", 5, lasts=True), EtcdError)
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn()
    assert node.moves.arrivals.of["s"].again
    assert "s" not in node.memory.broker.sessions
    node.nodes["b"] = node.mesh.join("b", 2)
    node.moves.joined(node.nodes["b"])
    sends_all(node, "b", revision)
    node.turn(1)
    assert node.memory.broker.sessions["s"].username == "alice"
    assert node.etcd.lease() == HOME
