"""What etcd has said, or a node had sent, before something else has happened: that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.client import Json
from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import DONE, LOOK, WANT, WHOLE, with_sending
from mqttd.codec.packets import Connack
from mqttd.mesh.frames import packed
from tests.unit.cluster.test_looks_again import (
    OWN,
    claims_all,
    is_at_c,
    leaves,
    node,
    said,
    sends_all,
)
from tests.unit.cluster.test_unanswered import Said, claimed_in_vain, taken_unheard
from tests.unit.cluster.test_users import ALICE, HOME, KEYS, LEASE, OTHER, Node

__all__ = ["node", "said"]


def before_answer(node: Node, happens: Callable[[], object]) -> None:
    """This happens when etcd has read what it is asked for next, and has not answered yet."""
    original = node.etcd.ask

    async def ask(path: str, body: Json, patience: float = 0) -> Json:
        node.etcd.ask = original  # type: ignore[method-assign]
        answer = await original(path, body)
        happens()
        return answer

    node.etcd.ask = ask  # type: ignore[method-assign]


def test_17_what_was_sent_later_counts_though_etcd_is_still_asked_of_what_was_before(
    node: Node,
) -> None:
    """The marks that were asked for after that were of a sending that was over: `b`, `c` and who
    had claimed it of these waited for each other."""
    revision = claimed_in_vain(node)
    asked: list[Deferred[Any]] = []

    def whose(client_id: str) -> Deferred[Any]:
        asked.append(Deferred())
        return asked[-1]

    node.moves.whose = whose
    record = node.record_of("alice")
    node.sends("b", revision, with_sending(record, b"12345678"))
    node.moves.arrivals.expect("s", "b", revision)  # who has claimed it of us asks for it
    node.sends("b", revision, with_sending(record, b"abcdefgh"))
    asked[0].callback(("c", "b", revision))
    (comes,) = node.moves.arrivals.line("s")
    assert comes.sending == b"abcdefgh"


@pytest.mark.parametrize("heard", [True, False])
def test_17_what_is_elsewhere_when_its_node_begins_anew_may_have_been_there_already(
    node: Node, heard: bool
) -> None:
    """It was killed before it had heard so: what `b` has had since came back as it was before."""
    is_at_c(node)
    del node.owners.owned["s"]
    revision = taken_unheard(node, "b")
    if heard:
        node.owners.taken("s", "b", revision)
    else:
        node.owners.is_elsewhere("s", "b", revision, "c")
    node.members.discard("b")
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn(5)
    assert node.etcd.read() == ("b", "c", ALICE) and "s" in node.moves.departures.of


@pytest.mark.parametrize("is_ours", [True, False])
def test_17_what_comes_when_our_lease_has_ended_since_is_kept_where_etcd_says_so_again(
    node: Node, said: Said, is_ours: bool
) -> None:
    """`b` has had it back, as we were gone, and does not know so: by what we say it forgets it."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.turn(5)
    node.owners.lease = LEASE + 10
    if not is_ours:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    sends_all(node, "b", revision)
    assert said[-1] == ("b", DONE if is_ours else LOOK, revision, 0)
    assert ("s" in node.memory.broker.sessions) is is_ours


def test_17_what_was_taken_before_etcd_has_answered_is_ours_no_more(node: Node) -> None:
    """By what it had read before: who came back then was let in without his session."""
    is_at_c(node)
    before_answer(node, lambda: node.owners.taken("s", "b", taken_unheard(node, "b")))
    claims_all(node)
    assert "s" in node.moves.departures.of and "s" not in node.owners.owned


def test_17_so_it_is_where_that_was_to_be_written(node: Node) -> None:
    is_at_c(node)
    node.owners.home += 10
    read = node.etcd.ask

    def happens() -> None:
        before_answer(node, lambda: node.owners.taken("s", "b", taken_unheard(node, "b")))

    before_answer(node, happens)
    claims_all(node)
    assert node.etcd.ask == read
    assert "s" in node.moves.departures.of and "s" not in node.owners.owned


def test_17_what_was_claimed_anew_before_etcd_has_answered_is_ours_still(node: Node) -> None:
    is_at_c(node)
    node.owners.home += 10

    def happens() -> None:
        revision = node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), OTHER)
        node.owners.owned["s"] = revision

    before_answer(node, happens)
    claims_all(node)
    assert node.owners.owned["s"] == node.etcd.revision


def test_17_of_what_was_claimed_without_an_answer_is_said_still_of_whom(node: Node) -> None:
    """Who asked for it next was told that it was nobody's, when a member anew had written it so."""
    claimed_in_vain(node)
    node.owners.home += 10
    claims_all(node)
    assert node.etcd.read() == ("c", "b", ALICE) and "s" not in node.owners.owned


@pytest.mark.parametrize("is_ours", [True, False])
def test_17_what_was_here_under_a_lease_that_has_ended_is_asked_for_until_all_is_claimed(
    node: Node, said: Said, is_ours: bool
) -> None:
    """Its client was let in where it had been before, though others had had the session since."""
    is_at_c(node)
    node.owners.known, node.owners.lease = LEASE, LEASE + 10
    if not is_ours:
        revision = node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    client = node.comes("alice", False)
    if is_ours:
        assert isinstance(client.take()[0], Connack)
        return
    assert not client.take()
    assert said[:1] == [("b", WHOLE, revision, 1)]
    node.sends("b", revision, what=DONE)  # which has a newer one
    sends_all(node, "b", node.owners.owned["s"])
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present
    assert node.etcd.read() == ("c", "b", ALICE)


def test_17_of_all_who_have_claimed_it_while_etcd_is_asked_each_is_told(
    node: Node, said: Said
) -> None:
    """Of two the first was not, and waited for what was never said, with all who came after it."""
    first = claimed_in_vain(node)

    def happens() -> None:
        node.owners.taken("s", "a", first + 1)
        node.owners.taken("s", "b", first + 3)

    before_answer(node, happens)
    node.claim("alice")
    assert ("a", first + 1) in {(to, revision) for to, _, revision, _ in said}


def test_17_what_is_here_is_asked_for_by_and_by(node: Node, said: Said) -> None:
    """It had been claimed unheard, by a node whose lease had ended since, and was at two nodes."""
    is_at_c(node)
    node.owners.audit.tick(1.0)
    node.turn()
    assert "s" in node.memory.broker.sessions
    revision = node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    node.owners.audit.tick(1.5)
    node.turn()
    assert "s" in node.memory.broker.sessions  # it is too soon
    node.etcd.away = True
    node.owners.audit.tick(2.0)
    node.turn()
    node.etcd.away = False
    node.owners.audit.tick(3.0)
    node.turn()
    assert said[-1] == ("b", WHOLE, revision, 1) and not node.memory.broker.sessions


def test_17_what_etcd_has_lost_is_written_anew(node: Node) -> None:
    is_at_c(node)
    del node.etcd.kept[OWN]
    node.owners.silence.lasts = lambda: True
    node.owners.audit.tick(1.0)
    node.turn()
    assert node.etcd.read() is None  # another node takes ours over
    node.owners.silence.lasts = lambda: False
    node.owners.audit.tick(1.0)
    node.turn()
    assert node.etcd.read() == ("c", "", ALICE)


def test_17_nobody_is_let_in_by_what_was_claimed_before_something_was_missed(node: Node) -> None:
    """`b` had claimed it, was killed, and what says so is gone: it is for another by now."""
    client = node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.moves.arrivals.of["s"].lease = LEASE
    node.owners.known = -1
    sends_all(node, "b", revision)
    assert not client.take()
    claims_all(node)
    assert not client.take()
    node.owners.known = LEASE
    node.moves.seen()
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present


def test_17_what_left_here_and_is_refused_there_is_given_to_who_waits_for_it(node: Node) -> None:
    """It was dropped, as if that had come: another was to be asked first, which has nothing."""
    is_at_c(node)
    revision = taken_unheard(node, "b")
    node.owners.taken("s", "b", revision)
    client = node.comes("alice", False)
    node.moves.whose = lambda client_id: Deferred()
    node.sends("b", node.owners.owned["s"], b"c", what=LOOK)
    node.sends("b", revision, what=LOOK)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present


def test_17_and_goes_to_who_has_claimed_it_of_us_before_etcd_has_answered(node: Node) -> None:
    """It was dropped when it had just gone on from here, and its client had a new one."""
    is_at_c(node)
    revision = taken_unheard(node, "b")
    node.owners.taken("s", "b", revision)
    node.comes("alice", False)
    node.moves.whose = lambda client_id: Deferred()
    node.sends("b", node.owners.owned["s"], b"c", what=LOOK)
    before_answer(node, lambda: node.owners.taken("s", "a", taken_unheard(node, "a")))
    node.sends("b", revision, what=LOOK)
    assert node.moves.departures.of["s"].to == "a"


@pytest.mark.parametrize("of", ["a", ""])
def test_17_but_not_where_that_has_had_it_of_a_third_since_or_of_nobody(
    node: Node, of: str
) -> None:
    """So what left here is older."""
    is_at_c(node)
    revision = taken_unheard(node, "b")
    node.owners.taken("s", "b", revision)
    node.etcd.write(KEYS.own("s"), claimed("b", of, ALICE), OTHER)
    client = node.comes("alice", False)
    node.moves.whose = lambda client_id: Deferred()
    node.sends("b", revision, what=LOOK)
    assert client.take() == [] and node.moves.departures.of
    node.moves.whose = node.owners.whose
    sends_all(node, "b", node.owners.owned["s"])
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present
    assert not node.moves.departures.of


def test_17_who_has_taken_it_is_told_so_before_it_is_claimed_of_another(
    node: Node, said: Said
) -> None:
    """Claimed of us once more after that, it says so of the last time alone: the first was unheard
    of, and two nodes waited for each other."""
    is_at_c(node)
    node.owners.taken("s", "b", taken_unheard(node, "b"))
    revision = taken_unheard(node, "b")
    node.comes("alice", False)
    assert ("b", WHOLE, revision, 1) in said and node.etcd.read() == ("c", "b", ALICE)


def test_17_what_has_come_and_was_claimed_of_us_unheard_goes_on_from_here(
    node: Node, said: Said
) -> None:
    """It was dropped, and who had it before was to send it: that was killed by then."""
    revision = claimed_in_vain(node)
    node.sends("b", revision, node.record_of("alice"))
    later = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    sends_all(node, "b", revision)
    assert ("a", WHOLE, later, 1) in said and ("b", LOOK, revision, 0) not in said
    node.owners.taken("s", "a", later)  # nor is it asked for again
    assert not node.moves.arrivals.of


def given_back(node: Node, happens: Callable[[], object]) -> None:
    """What was to go to `b` is ours again, since that is gone; this happens before we hear so."""
    leaves(node)
    before_answer(node, happens)
    node.members.discard("b")
    node.moves.left("b")
    node.turn()


def test_17_what_is_given_back_is_not_here_where_another_has_been_told_so_and_claimed_it(
    node: Node, said: Said
) -> None:
    """Its client was let in here, with what it had when it left, when it had been elsewhere."""

    def happens() -> None:
        assert node.etcd.read() == ("c", "", ALICE)
        by_a.append(taken_unheard(node, "a"))
        node.owners.taken("s", "a", by_a[0])

    by_a: list[int] = []
    given_back(node, happens)
    assert "s" not in node.memory.broker.sessions
    assert said[-1] == ("b", WANT, by_a[0] - 1, 0)
    node.sends("b", by_a[0] - 1)
    assert said[-1] == ("a", WHOLE, by_a[0], 1)


@pytest.mark.parametrize("by", ["", "a"])
def test_17_what_is_given_back_is_looked_at_again_where_our_lease_has_ended_meanwhile(
    node: Node, said: Said, by: str
) -> None:
    def happens() -> None:
        node.owners.lease = 77
        if by:
            node.etcd.write(KEYS.own("s"), claimed(by, "c", ALICE), OTHER)  # and had told us so

    given_back(node, happens)
    assert ("s" in node.memory.broker.sessions) is not by
    assert any(to == "a" and what == WHOLE for to, what, *_ in said) is bool(by)


@pytest.mark.parametrize("renewed", [True, False])
def test_17_what_is_entered_is_had_from_its_node_though_another_is_asked_for_somebody_else(
    node: Node, said: Said, renewed: bool
) -> None:
    """That kept it without end, and what was published for it meanwhile was not in its queue."""
    client = node.comes("alice", False)
    revision, arrivals = node.owners.owned["s"], node.moves.arrivals
    if renewed:  # we were a member anew
        node.owners.owned["s"] = revision + 5
        arrivals.renewed("s", revision + 5, LEASE)
    arrivals.suppose("s", "a", revision + 1, revision + 3)
    assert (arrivals.of["s"].by == revision + 5) is renewed
    sends_all(node, "b", revision)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present
    assert ("b", DONE, revision, 0) in said
    assert not any(each.taken for each in arrivals.line("s"))


def test_17_what_is_here_goes_to_who_has_claimed_it_where_nothing_comes_for_that(
    node: Node, said: Said
) -> None:
    """It was told that there is nothing, and its client had a new session."""
    node.comes("alice", False)
    revision, arrivals = node.owners.owned["s"], node.moves.arrivals
    arrivals.suppose("s", "a", revision + 1, revision + 3)
    assert arrivals.passed("s", "b", revision + 4)
    sends_all(node, "b", revision)
    assert "s" in node.memory.broker.sessions
    node.sends("a", revision + 3)
    assert ("b", WHOLE, revision + 4, 1) in said
    assert "s" not in node.memory.broker.sessions


def test_17_what_was_here_is_not_dropped_where_who_it_comes_of_has_us_look(
    node: Node, said: Said
) -> None:
    """We had claimed back of `b` what was on its way there, and `b` has claimed it since: that had
    us look, and we let go of what nobody else had."""
    before = leaves(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "b", ALICE), HOME)
    comes = node.moves.arrivals.expect("s", "b", revision, True)
    comes.waits, comes.lease = Deferred(), LEASE + 1  # it is not known whether it is ours still
    comes.waits.addErrback(lambda failure: None)
    node.moves.arrivals.brought_back("s", revision)
    assert comes.was_here and not comes.whole and "s" not in node.moves.departures.of
    last = node.etcd.write(KEYS.own("s"), claimed("b", "c", ALICE), OTHER)
    node.moves.told(node.nodes["b"], packed([LOOK, b"s", revision.to_bytes(8, "big"), b"c"]))
    node.turn()
    assert ("b", LOOK, before, 0) in said and ("b", WHOLE, revision, 1) in said
    node.sends("b", revision, what=LOOK)
    assert ("b", WHOLE, last, 1) in said


def test_17_who_sends_what_we_had_claimed_before_we_had_it_back_ourselves_is_to_look(
    node: Node, said: Said
) -> None:
    """`b` is the one that it was to go to, and may have been asked for it: nobody answered, and it
    was kept there without end."""
    before = leaves(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), HOME)
    node.owners.tried.claims("s", "b", before)
    node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), HOME)
    node.sends("b", revision, node.record_of("alice"))
    assert said[-1] == ("b", LOOK, revision, 0)


def test_17_of_two_who_ask_for_the_same_claim_the_first_is_to_look(node: Node, said: Said) -> None:
    """Each for who has claimed it of them: the first waited for what was never said, and the second
    for the first."""
    node.comes("alice", False)
    first = node.owners.owned["s"] + 1
    for by in "abb":
        assert node.moves.arrivals.passed("s", by, first)
    assert said == [("a", LOOK, first, 0)]
    assert node.moves.arrivals.of["s"].next == ("b", first)


def test_17_nothing_is_given_away_by_who_may_have_been_taken_over(node: Node) -> None:
    """It had no way to etcd, and does not know yet that its lease has ended: what it had sent to
    the heir was in place of what that had read, and a message was acknowledged that was nowhere."""
    is_at_c(node)
    node.etcd.write(KEYS.own("s"), claimed("a", "", ALICE), OTHER)
    node.owners.audit.tick(1.0, True)
    node.turn()
    assert "s" in node.memory.broker.sessions
    node.owners.audit.tick(1.0)
    node.turn()
    assert "s" not in node.memory.broker.sessions


def test_17_who_is_to_look_has_nothing_where_it_is_for_a_later_claim_by_the_time_etcd_answers(
    node: Node,
) -> None:
    """There was nothing for that either, but what was awaited still: without end, by all nodes."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    node.etcd.revision += 5
    said = node.owners.claim("s", "alice", False)
    assert isinstance(said, Deferred)
    node.turn()
    revision = node.etcd.revision
    node.moves.arrivals.suppose("s", "b", 11, revision - 1)  # as for who had claimed it of us
    for what, of in ((LOOK, revision - 1), (WHOLE, revision)):
        node.moves.told(node.nodes["b"], packed([what, b"s", of.to_bytes(8, "big")]))
    node.mesh.applied = revision
    node.turn()
    node.sends("a", revision - 1)  # which is asked, too
    node.moves.seen()
    assert not node.moves.arrivals.of and said.called


def test_17_what_has_come_goes_on_where_what_was_claimed_after_that_comes_to_nothing(
    node: Node,
) -> None:
    """It stayed where it was, with all that was published for it since."""
    node.etcd.revision = 21
    arrivals = node.moves.arrivals
    for since in (19, 20):
        arrivals.suppose("s", "b", since, since + 1)
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.mesh.applied = revision
    sends_all(node, "b", 20)
    assert [each.whole for each in arrivals.line("s")] == [False, True]
    node.sends("b", 21, what=LOOK)
    assert not arrivals.of
    assert node.moves.departures.is_for("s", "a", revision)
