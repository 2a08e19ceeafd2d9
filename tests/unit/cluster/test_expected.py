"""What a node expects of a session: which counts of several claims of it, or sendings."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import DONE, LOOK, MARK, WANT, WHOLE, with_sending
from tests.unit.cluster.test_looks_again import (
    claims_all,
    is_at_c,
    leaves,
    node,
    said,
    sends_all,
)
from tests.unit.cluster.test_unanswered import Said, claimed_in_vain
from tests.unit.cluster.test_users import ALICE, KEYS, OTHER, Node

__all__ = ["node", "said"]


def test_17_what_goes_on_has_outlived_what_has_come_for_a_claim_before_it(
    node: Node, said: Said
) -> None:
    """That one stayed without end, though its session was elsewhere: nobody waited for it."""
    first = claimed_in_vain(node)
    node.sends("b", first, node.record_of("alice"))
    node.etcd.away = True  # it is not said whether it is ours still
    sends_all(node, "b", first)
    node.moves.arrivals.expect("s", "b", first + 2)
    node.moves.arrivals.passed("s", "a", first + 4)
    assert len(list(node.moves.arrivals.line("s"))) == 2
    sends_all(node, "b", first + 2)
    assert ("a", WHOLE, first + 4, 1) in said
    assert ("b", DONE, first, 0) in said and not node.moves.arrivals.of


@pytest.mark.parametrize("overtakes", [True, False])
def test_17_of_two_sendings_the_later_one_counts_whichever_etcd_answers_first(
    node: Node, said: Said, overtakes: bool
) -> None:
    """The marks that were asked for were those of the sending before, and who sent it waited."""
    revision = claimed_in_vain(node)
    asked: list[Deferred[Any]] = []

    def whose(client_id: str) -> Deferred[Any]:
        asked.append(Deferred())
        return asked[-1]

    node.moves.whose = whose
    record = node.record_of("alice")
    for sending in (b"12345678", b"abcdefgh"):
        node.sends("b", revision, with_sending(record, sending))
    for each in asked[::-1] if overtakes else asked:
        each.callback(("c", "b", revision))
    (comes,) = node.moves.arrivals.line("s")
    assert comes.sending == b"abcdefgh"


def test_17_what_is_awaited_since_before_is_ours_where_who_was_to_have_it_has_nothing(
    node: Node, said: Said
) -> None:
    """`a` was killed before it had heard of its claim: our client was given a new session."""
    node.comes("alice", False)
    first = node.owners.owned["s"]
    node.turn(5)
    node.owners.taken("s", "a", node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER))
    client = node.comes("alice", False)
    second = node.owners.owned["s"]
    for _ in range(2):
        node.sends("a", second)
        assert not client.take() and not node.memory.broker.sessions
    sends_all(node, "b", first)
    assert node.owners.owned["s"] == second and not node.moves.arrivals.of
    assert ("b", DONE, first, 0) in said and "s" in node.memory.broker.sessions


def test_17_who_had_it_before_is_asked_after_a_claim_without_an_answer_as_well(
    node: Node, said: Said
) -> None:
    """Etcd says then that it is ours, of `b`, and not any more who had it before."""
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    claimed_in_vain(node)
    assert node.claim("alice") is None
    node.sends("b", node.owners.owned["s"])
    assert said[-1] == ("a", WANT, node.owners.owned["s"], 0)


def test_17_so_it_is_where_another_claims_it_of_us(node: Node, said: Said) -> None:
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    revision = claimed_in_vain(node)
    node.owners.taken("s", "b", revision + 6)
    assert said[-1] == ("b", WANT, revision + 5, 0)
    node.sends("b", revision + 5)
    assert said[-1] == ("a", WANT, revision + 5, 0)


def offered(node: Node) -> int:
    """`a` has sent what our client waits for of `b`; in which revision."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.sends("a", revision, node.record_of("alice"))
    assert node.moves.arrivals.of["s"].state is None
    return revision


@pytest.mark.parametrize("how", ["nothing", "looks", "given up"])
def test_17_what_a_node_has_that_is_back_is_taken_where_who_is_asked_has_nothing(
    node: Node, said: Said, how: str
) -> None:
    """It may be older: that one had it since, and was to say so when it was back itself."""
    revision = offered(node)
    if how == "given up":
        node.mesh.leave(node.nodes["b"])
        node.moves.left("b")
        assert node.moves.arrivals.of["s"].state is None
        node.moves.arrivals.home_of = lambda name: -1
        node.moves.given_up("b")
    else:
        if how == "looks":
            node.sends("b", revision, what=LOOK)
            assert said == [("b", WANT, revision, 0)]  # it may send it to us by now
        node.sends("b", revision)
    assert ("a", MARK, revision, 3) in said
    sends_all(node, "a", revision)
    node.turn(1)
    assert "s" in node.memory.broker.sessions and said[-1] == ("a", DONE, revision, 0)


@pytest.mark.parametrize("is_known", [True, False])
def test_17_what_a_node_has_that_is_back_is_not_wanted_where_who_is_asked_has_it(
    node: Node, said: Said, is_known: bool
) -> None:
    """Whether etcd has answered our claim, or not: then of whom that is we know all the same."""
    if is_known:
        revision = offered(node)
    else:
        revision = claimed_in_vain(node)
        node.sends("a", revision, node.record_of("alice"))
    sends_all(node, "b", revision)
    assert "s" in node.memory.broker.sessions
    assert ("a", DONE, revision, 0) in said and said[-1] == ("b", DONE, revision, 0)


@pytest.mark.parametrize("how", ["claimed", "gone", "elsewhere"])
def test_17_so_it_is_where_nothing_comes_of_what_was_sent(node: Node, said: Said, how: str) -> None:
    """Another has claimed it since; who has sent it is gone, or sends it elsewhere by now."""
    revision = offered(node)
    if how == "claimed":
        node.etcd.write(KEYS.own("s"), claimed("a", "", ALICE), OTHER)
        node.sends("b", revision, what=LOOK)
        assert said[-1] == ("a", LOOK, revision, 0)
    elif how == "gone":
        node.mesh.leave(node.nodes["a"])
        node.moves.left("a")
        node.sends("b", revision)
        assert not node.memory.broker.sessions  # it is awaited
        node.moves.joined(node.mesh.join("a", 2))
        assert said[-1] == ("a", WANT, revision, 0)
    else:
        node.sends("a", revision, what=LOOK)
        node.sends("b", revision)
        node.sends("a", revision)
        assert "s" in node.memory.broker.sessions  # a new one
        assert ("a", MARK, revision, 3) not in said


@pytest.mark.parametrize("before", ["a", "c"])
def test_17_who_had_it_before_and_has_sent_it_already_is_not_asked_for_it(
    node: Node, said: Said, before: str
) -> None:
    """He sends it to us, so he would say nothing to that. Nor are we, if that was us."""
    revision = offered(node)
    node.moves.arrivals.of["s"].before = before
    node.sends("b", revision)
    assert ("a", WANT, revision, 0) not in said and ("a", MARK, revision, 3) in said


@pytest.mark.parametrize("is_of_us", [True, False])
def test_17_what_is_here_is_not_back_where_who_has_it_may_have_had_it_since(
    node: Node, said: Said, is_of_us: bool
) -> None:
    """By a claim of a third. It was gone when it was sent what is here, and says what it has."""
    is_at_c(node)
    of = "c" if is_of_us else "a"
    before = node.etcd.write(KEYS.own("s"), claimed("b", of, ALICE), OTHER)
    claims_all(node)
    assert said[-1] == ("b", WHOLE, before, 1)
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.members.remove("b")
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn(1)
    assert ("s" in node.memory.broker.sessions) is is_of_us
    if not is_of_us:
        node.nodes["b"] = node.mesh.join("b", 2)
        node.members.add("b")
        node.moves.joined(node.nodes["b"])
        node.turn(11)
        assert "s" not in node.memory.broker.sessions
        sends_all(node, "b", revision)
        assert "s" in node.memory.broker.sessions and not node.moves.departures.of


def test_17_what_was_sent_by_who_a_node_was_before_is_asked_for_again(
    node: Node, said: Said
) -> None:
    """While etcd was asked about it: nothing follows that."""
    revision = claimed_in_vain(node)
    asked: Deferred[Any] = Deferred()
    node.moves.whose = lambda client_id: asked
    node.sends("b", revision, node.record_of("alice"))
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.moves.joined(node.mesh.join("b", 2))
    asked.callback(("c", "b", revision))
    assert said == [("b", WANT, revision, 0)]


def test_17_who_asks_for_what_goes_to_him_is_sent_it_again_where_nothing_comes_before_it(
    node: Node, said: Said
) -> None:
    """He has lost sight of it, since our lease had ended; we had claimed it of `a` unheard."""
    revision = leaves(node)
    node.moves.arrivals.suppose("s", "a", revision - 2, revision - 1)
    node.sends("b", revision, what=WANT)
    del said[:]
    node.sends("a", revision - 1)
    assert said == [("b", WHOLE, revision, 1)]


def test_17_what_comes_back_by_a_later_claim_than_what_went_is_not_dropped_as_older(
    node: Node, said: Said
) -> None:
    """We had claimed it of `b` since, without an answer, and `a` of us, unheard."""
    revision = leaves(node)
    node.etcd.revision += 1
    node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.sends("b", revision + 1, node.record_of("alice"))
    assert said[-1] == ("b", LOOK, revision + 1, 0)


def test_17_all_by_whom_it_would_have_come_are_asked_before_it_is_nothing(
    node: Node, said: Said
) -> None:
    """`b` awaits it of `a` no more, and of us: one of them may be about to send it."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.sends("b", revision, b"a", b"c", what=LOOK)
    for each in "ba":
        assert said[-1] == (each, WANT, revision, 0) and not node.memory.broker.sessions
        node.sends(each, revision)
    assert "s" in node.memory.broker.sessions


@pytest.mark.parametrize("lasts", [True, False])
def test_17_all_are_asked_before_it_is_begun_anew(node: Node, said: Said, lasts: bool) -> None:
    """Each of two that were killed one after the other had claimed it of the one before, and knew
    nothing of that when it was back; `a` had it for the first of them still."""
    client = node.comes("alice", clean=False)
    comes = node.moves.arrivals.of["s"]
    comes.lasts = lasts
    revision = comes.revision
    node.sends("b", revision)
    assert (("a", WANT, revision, 0) in said) is lasts
    assert bool(client.take()) is not lasts
    node.sends("a", revision)
    assert "s" in node.memory.broker.sessions


def test_17_nothing_that_is_said_for_a_claim_before_is_not_awaited_of_another(
    node: Node, said: Said
) -> None:
    """By `a`, which is back, while we claim it of `b`."""
    node.owners.tried.claims("s", "b", 11)
    node.owners._asking.add("s")
    node.sends("a", 11)
    node.sends("b", 11)
    assert all(each.whole for each in node.moves.arrivals.line("s"))
    node.sends("a", 12, node.record_of("alice"))
    comes = node.moves.arrivals.of["s"]
    assert comes.origin == "b" and comes.offer is not None


def test_17_who_is_sent_what_it_had_claimed_before_it_was_killed_asks_whom_it_claimed_it_of(
    node: Node, said: Said
) -> None:
    """That one has said before what there is."""
    revision = claimed_in_vain(node)
    node.sends("a", revision, node.record_of("alice"))
    assert said == [("b", WANT, revision, 0)]
    node.sends("b", revision)
    assert ("a", MARK, revision, 3) in said


@pytest.mark.parametrize("before", ["", "c"])
def test_17_who_has_sent_it_and_is_gone_is_waited_for_where_who_is_asked_has_nothing(
    node: Node, said: Said, before: str
) -> None:
    """What was here of older claims was taken in its place: it was known who had it before."""
    node.etcd.write(KEYS.own("s"), claimed("b", before, ALICE), OTHER)
    revision = offered(node)
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")
    node.sends("b", revision)
    (comes,) = node.moves.arrivals.line("s")
    assert comes.origin == "a" and not comes.whole


def test_17_who_is_asked_by_now_is_waited_for_though_who_was_before_is_to_be_looked_at(
    node: Node,
) -> None:
    """What etcd said of the first came when that had said that there is nothing there."""
    revision = offered(node)
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")
    asked: Deferred[Any] = Deferred()
    node.moves.whose = lambda client_id: asked
    node.sends("b", revision, b"c", what=LOOK)
    node.sends("b", revision)
    asked.callback(("c", "b", revision))
    (comes,) = node.moves.arrivals.line("s")
    assert comes.origin == "a" and not comes.whole


def test_17_by_whom_it_would_have_come_is_known_before_etcd_has_answered(
    node: Node, said: Said
) -> None:
    """Who was asked said right after that that he has nothing: the session was a new one."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    asked: Deferred[Any] = Deferred()
    node.moves.whose = lambda client_id: asked
    node.sends("b", revision, b"a", what=LOOK)
    node.sends("b", revision)
    node.sends("b", revision)
    assert said[-1] == ("a", WANT, revision, 0) and not node.memory.broker.sessions


def test_17_by_whom_it_would_have_come_is_said_to_who_has_claimed_it_since(
    node: Node, said: Said
) -> None:
    """And we have not heard of that: it asked us alone."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    later = node.etcd.write(KEYS.own("s"), claimed("b", "c", ALICE), OTHER)
    node.sends("b", revision, b"a", what=LOOK)
    assert said[-1] == ("b", LOOK, later, 2)
