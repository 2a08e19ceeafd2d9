"""What is sent to a node that has claimed it anew since, or has it no more, is lost nowhere."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import DONE, LANE_MARKED, LOOK, MARK, MARKED, TAIL, WANT, WHOLE
from mqttd.codec.packets import Connack
from mqttd.mesh.frames import number_of
from tests.unit.cluster.test_unanswered import Said, claimed_in_vain, taken_unheard
from tests.unit.cluster.test_users import ALICE, HOME, KEYS, OTHER, Node

OWN = b64encode(KEYS.own("s")).decode()


@pytest.fixture
def node() -> Node:
    """`c`; the session is at `b`."""
    made = Node()
    made.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    return made


@pytest.fixture
def said(node: Node) -> Said:
    heard: Said = []
    say = node.moves.transit.say

    def hear(to: Any, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
        heard.append((to.name, what, revision, len(fields)))
        say(to, what, client_id, revision, *fields)

    node.moves.transit.say = hear  # type: ignore[method-assign]
    return heard


def sends_all(node: Node, name: str, revision: int) -> None:
    """What this one has of the session, and the marks of all."""
    node.sends(name, revision, node.record_of("alice"))
    for each in "ab":
        node.sends(each, revision, what=MARKED)
        node.sends(each, revision, what=LANE_MARKED)
    node.sends(name, revision, what=TAIL)


def claims_all(node: Node) -> int:
    done = Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
    node.turn()
    assert isinstance(done.result, int)
    return done.result


def is_at_c(node: Node) -> int:
    """The session is here; in which revision."""
    del node.etcd.kept[OWN]
    node.comes("alice", False).drop()
    assert "s" in node.memory.broker.sessions
    return node.owners.owned["s"]


def leaves(node: Node, origin: str = "c") -> int:
    """It goes to `b`, which has claimed it of one of us: in which revision."""
    is_at_c(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("b", origin, ALICE), OTHER)
    node.owners.is_elsewhere("s", "b", revision, origin)
    assert node.moves.departures.of["s"].revision == revision
    return revision


def test_17_what_is_sent_for_a_claim_that_was_made_anew_since_is_sent_again(
    node: Node, said: Said
) -> None:
    """By `a`, of whom `b` had claimed it unheard, and which had read in etcd that we have it: that
    counts when `b` says that nothing comes there."""
    first = claimed_in_vain(node)
    second = claimed_in_vain(node)
    node.sends("a", first, node.record_of("alice"))
    assert said == [("a", LOOK, first, 0)]
    node.sends("a", second, node.record_of("alice"))
    node.sends("b", second, what=LOOK)
    node.sends("b", second)
    sends_all(node, "a", second)
    assert "s" in node.memory.broker.sessions
    assert ("a", DONE, second, 0) in said


@pytest.mark.parametrize("owner", ["", "b"])
def test_17_what_is_sent_for_a_claim_that_is_gone_is_not_dropped(
    node: Node, said: Said, owner: str
) -> None:
    """With the lease of that; or another has claimed it since, and not of us."""
    revision = claimed_in_vain(node)
    del node.etcd.kept[OWN]
    if owner:
        node.etcd.write(KEYS.own("s"), claimed(owner, "", ALICE), OTHER)
    node.sends("a", revision, node.record_of("alice"))
    assert said == [("a", LOOK, revision, 0)]


def test_what_is_here_already_is_not_wanted(node: Node, said: Said) -> None:
    revision = is_at_c(node)
    node.sends("a", revision + 1, node.record_of("alice"))
    assert said == [("a", DONE, revision + 1, 0)]


def test_what_is_not_for_who_was_sent_it_goes_to_who_has_claimed_it(node: Node, said: Said) -> None:
    before = leaves(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.sends("a", before, what=LOOK)
    node.sends("b", before - 1, what=LOOK)
    assert node.moves.departures.of["s"].to == "b"
    node.sends("b", before, what=LOOK)
    assert said[-1] == ("a", WHOLE, revision, 1)
    node.sends("a", revision, what=DONE)
    assert not node.moves.departures.of


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_not_for_who_was_sent_it_and_nobody_s_is_here_again(
    node: Node, answers: bool
) -> None:
    before = leaves(node)
    del node.etcd.kept[OWN]
    node.etcd.away = not answers
    node.sends("b", before, what=LOOK)
    node.etcd.away = False
    node.turn(2)
    assert node.etcd.read() == ("c", "", ALICE) and node.etcd.lease() == HOME
    assert "s" in node.memory.broker.sessions and not node.moves.departures.of


@pytest.mark.parametrize("known", [True, False])
def test_17_what_was_taken_unheard_goes_to_who_has_taken_it(
    node: Node, said: Said, known: bool
) -> None:
    """Others ask that one for it. Where etcd does not say who, since the lease of that has ended,
    it goes to who has it by now."""
    is_at_c(node)
    taken = taken_unheard(node, "b")
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    if not known:
        del node.etcd.kept[b64encode(KEYS.taken("c", "s")).decode()]
    assert claims_all(node) == 1
    assert said == [("b", WHOLE, taken, 1) if known else ("a", WHOLE, revision, 1)]
    assert "s" not in node.owners.owned


def test_17_what_goes_from_here_is_not_new_for_who_claims_it_here(node: Node, said: Said) -> None:
    """Nobody else has anything of it; `b` had claimed it of `a`, and that of us, unheard."""
    leaves(node, "a")
    client = node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.sends("b", revision)
    assert said[-1] == ("a", WANT, revision, 0)
    node.sends("a", revision)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present
    assert not node.moves.departures.of


def test_who_asks_for_what_is_here_by_a_later_claim_is_to_look(node: Node, said: Said) -> None:
    """It took our word that nothing is here for a session that is new."""
    revision = is_at_c(node)
    node.owners.wanted("s", "b", revision - 1)
    node.owners.taken("s", "a", revision - 1)
    assert said == [("b", LOOK, revision - 1, 0), ("a", LOOK, revision - 1, 0)]


@pytest.mark.parametrize("is_ours", [True, False])
def test_who_is_to_look_waits_no_more_for_what_another_has_claimed_since(
    node: Node, is_ours: bool
) -> None:
    claim = node.owners.claim("s", "alice", True)
    failed: list[Any] = []
    claim.addErrback(failed.append)  # type: ignore[union-attr]
    node.turn()
    revision = node.owners.owned["s"]
    if not is_ours:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    node.sends("b", revision, what=LOOK)
    assert bool(node.moves.arrivals.of) is is_ours
    assert bool(failed) is not is_ours


def test_who_wants_marks_for_what_goes_elsewhere_by_now_is_to_look(node: Node, said: Said) -> None:
    before = leaves(node)
    marks = [(0).to_bytes(8, "big"), b"c", b"b"]
    node.sends("b", before, *marks, what=MARK)
    assert ("b", LOOK, before, 0) not in said
    node.owners.taken("s", "a", node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER))
    node.sends("b", before, *marks, what=MARK)
    assert ("b", LOOK, before, 0) in said
    node.owners.wanted("s", "b", before)
    assert said.count(("b", LOOK, before, 0)) == 3


def test_what_we_have_back_without_an_answer_is_here_for_who_comes(node: Node) -> None:
    """Etcd says that it is ours, and not of whom: it was about to leave."""
    before = leaves(node)
    assert node.moves.departures.of["s"].revision == before
    node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), HOME)
    client = node.comes("alice", False)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.session_present
    assert not node.moves.departures.of


def test_who_claims_of_us_what_we_have_back_without_an_answer_is_given_what_came_to_the_other(
    node: Node, said: Said
) -> None:
    """The node that it was to go to was gone for its lease, and had all of it."""
    before = leaves(node)
    node.etcd.deaf = True
    node.members.discard("b")
    node.moves.left("b")
    node.turn()
    node.etcd.deaf = False
    assert node.etcd.read() == ("c", "", ALICE)
    node.members.add("b")
    node.sends("b", before, what=DONE)
    revision = taken_unheard(node, "a")
    node.owners.taken("s", "a", revision)
    assert said[-1] == ("b", WANT, revision - 1, 0)


def test_what_is_back_at_its_taker_is_not_brought_back(node: Node) -> None:
    """That was a member anew before etcd was asked, though we have not heard of it."""
    before = leaves(node)
    node.etcd.write(KEYS.node("b"), b"", OTHER)
    node.members.discard("b")
    node.moves.left("b")
    node.turn()
    assert node.etcd.read() == ("b", "c", ALICE)
    assert node.moves.departures.of["s"].revision == before


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_nobody_waits_for_is_kept_where_etcd_says_so_still(
    node: Node, said: Said, is_ours: bool
) -> None:
    """Its claim was not answered, and it was ours when it began to come."""
    revision = claimed_in_vain(node)
    node.sends("b", revision, node.record_of("alice"))
    if not is_ours:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    for each in "ab":
        node.sends(each, revision, what=MARKED)
        node.sends(each, revision, what=LANE_MARKED)
    node.sends("b", revision, what=TAIL)
    assert ("s" in node.memory.broker.sessions) is is_ours
    assert (("b", LOOK, revision, 0) in said) is not is_ours
    assert not node.moves.arrivals.of


def test_who_was_gone_when_it_was_done_is_told_when_it_is_back(node: Node, said: Said) -> None:
    """Its lease had ended, and it keeps the session, and catches for it, until then."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    node.sends("b", revision, node.record_of("alice"))
    node.sends("b", revision, what=TAIL)
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.sends("a", revision, what=MARKED)
    node.sends("a", revision, what=LANE_MARKED)
    node.turn(1)
    assert "s" in node.memory.broker.sessions
    node.nodes["b"] = node.mesh.join("b", 2)
    node.moves.joined(node.nodes["b"])
    assert said[-1] == ("b", DONE, revision, 0)


def test_what_its_taker_may_have_more_of_is_given_to_nobody_while_that_is_awaited(
    node: Node,
) -> None:
    """It was killed right after it had all of it; another has claimed it of a third since."""
    leaves(node)
    node.moves.departures.of["s"].whole = True
    node.members.discard("b")
    node.etcd.write(KEYS.own("s"), claimed("a", "d", ALICE), OTHER)
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn(3)
    assert node.moves.departures.of["s"].to == "b"
    node.moves.arrivals.home_of = lambda name: -1
    node.turn(3)
    assert node.moves.departures.of["s"].to == "a"


def test_what_was_here_and_is_another_s_is_not_dropped_here(node: Node, said: Said) -> None:
    """Claimed without an answer, nobody had anything of it, and it was to leave: `a` has it now."""
    leaves(node)
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    revision = claimed_in_vain(node)
    node.moves.arrivals.suppose("s", "b", revision - 1, revision)
    last = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.sends("b", revision)
    assert said[-1] == ("b", WHOLE, revision, 1)
    node.sends("b", revision, what=LOOK)
    assert said[-1] == ("a", WHOLE, last, 1)


@pytest.mark.parametrize("has_it", [True, False])
def test_17_what_left_here_is_older_than_what_a_third_has_that_we_have_claimed_unheard(
    node: Node, said: Said, has_it: bool
) -> None:
    """`a` has claimed it of `b`, and we of `a`, when `b` says that it was not for it."""
    before = leaves(node)
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    revision = claimed_in_vain(node, "a")
    node.sends("b", before, what=LOOK)
    assert said[-1] == ("a", WANT, revision, 0)
    assert "s" not in node.memory.broker.sessions
    if has_it:
        sends_all(node, "a", revision)
    else:
        node.sends("a", revision)
    node.turn()
    assert node.owners.owned["s"] == revision and "s" in node.memory.broker.sessions
    assert not node.moves.departures.of


def test_17_what_left_here_and_was_claimed_anew_goes_on_by_way_of_that(
    node: Node, said: Said
) -> None:
    """`a` has claimed it of us then, which etcd has said to who had it back, and the watch not yet:
    it went to `a` at once, and who waited for it here had a new session."""
    before = leaves(node)
    client = node.comes("alice", False)
    ours = node.owners.owned["s"]
    assert node.etcd.read() == ("c", "b", ALICE)
    last = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.sends("b", before, what=LOOK)
    node.sends("b", ours)
    assert said[-1] == ("a", WHOLE, last, 1)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.reason_code
    assert "s" not in node.memory.broker.sessions


def test_17_so_it_does_where_that_is_not_awaited_any_more(node: Node) -> None:
    """It stayed here, on its way to who had refused it, with all that was published for it."""
    before = leaves(node)
    node.comes("alice", False)
    ours = node.owners.owned["s"]
    last = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.sends("b", before, what=LOOK)
    node.sends("b", ours, what=LOOK)
    assert not node.moves.arrivals.of and node.moves.departures.of
    node.turn(2)
    assert node.moves.departures.is_for("s", "a", last)


def test_17_who_waits_for_what_goes_elsewhere_or_is_here_again_is_to_look(
    node: Node, said: Said
) -> None:
    """It has had the beginning of it, and would wait for the rest."""
    first = leaves(node)
    second = node.etcd.write(KEYS.own("s"), claimed("b", "c", ALICE), OTHER)
    node.owners.wanted("s", "b", second)
    assert said[-2:] == [("b", LOOK, first, 0), ("b", WHOLE, second, 1)]
    node.owners.wanted("s", "b", second)
    assert said[-1] == ("b", WHOLE, second, 1) and said.count(("b", LOOK, second, 0)) == 0
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.comes("alice", False)
    sends_all(node, "a", node.owners.owned["s"])
    node.turn()
    assert "s" in node.memory.broker.sessions and ("b", LOOK, second, 0) in said


def test_17_who_waits_for_what_is_not_awaited_here_any_more_is_to_look(
    node: Node, said: Said
) -> None:
    node.comes("alice", False)
    first = node.owners.owned["s"]
    second = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.owners.taken("s", "a", second)
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    node.sends("b", first, what=LOOK)
    node.turn()
    assert not node.moves.arrivals.of and said[-1] == ("a", LOOK, second, 1)


def test_17_what_goes_from_here_stays_where_what_was_to_come_before_it_is_nothing(
    node: Node, said: Said
) -> None:
    """We had claimed it of `b` unheard, and `b` of us, which had been killed meanwhile."""
    before = is_at_c(node) + 1
    node.etcd.revision += 5
    revision = taken_unheard(node, "b") - 1
    node.owners.is_elsewhere("s", "b", revision, "c")
    node.moves.arrivals.suppose("s", "b", before - 1, before)
    assert node.moves.arrivals.passed("s", "b", revision)
    node.sends("b", before)
    node.sends("a", before)
    assert not node.moves.arrivals.of
    assert node.moves.departures.of["s"].revision == revision
    assert ("b", WHOLE, revision, 0) not in said


def test_17_who_does_not_know_yet_that_the_node_it_comes_from_is_there_gives_its_mark_then(
    node: Node,
) -> None:
    """Else that waits for it for as long as there is patience for marks."""
    node.comes("alice", False)
    revision = node.owners.owned["s"]
    asked: list[int] = []
    say = node.moves.transit.say

    def hear(to: Any, what: bytes, client_id: str, number: int, *fields: bytes) -> None:
        if what == MARK:
            asked.append(number_of(fields[0][:8]))
        say(to, what, client_id, number, *fields)

    node.moves.transit.say = hear  # type: ignore[method-assign]
    node.nodes["b"].epoch = 99
    node.sends("b", revision, node.record_of("alice"))
    assert asked == [99, 99]


def test_17_what_its_taker_may_have_more_of_is_not_given_away_where_that_was_gone_again(
    node: Node,
) -> None:
    """It was back, and killed once more before it could say what it has."""
    leaves(node)
    node.moves.departures.of["s"].whole = True
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn(5)
    node.moves.arrivals.brief_of = lambda name: 99
    node.moves.left("b")
    node.turn(8)
    assert node.moves.departures.of["s"].to == "b"
    for _ in range(5):
        node.turn(4)
    assert node.moves.departures.of["s"].to == "a"


def test_17_what_goes_from_here_is_for_who_has_claimed_it_since_where_nothing_comes(
    node: Node, said: Said
) -> None:
    """It was dropped for the nothing that has come here for the same node."""
    before = leaves(node)
    node.owners.owned["s"] = before + 1
    node.moves.arrivals.expect("s", "a", before - 1)
    assert node.moves.arrivals.passed("s", "b", before + 2)
    node.sends("a", before - 1)
    assert said[-1] == ("b", WHOLE, before + 2, 1)
    assert node.moves.departures.of["s"].revision == before + 2


def test_17_what_is_sent_again_and_has_gone_on_is_not_taken_for_what_is_claimed_now(
    node: Node, said: Said
) -> None:
    """By `a`, to which we were gone; its rest was awaited for good, and it was an older one."""
    revision = leaves(node)
    node.owners._asking.add("s")
    node.sends("a", revision - 1, node.record_of("alice"))
    assert ("a", DONE, revision - 1, 0) in said
    assert not node.moves.arrivals.of and node.moves.departures.of["s"].revision == revision


@pytest.mark.parametrize("had", [True, False])
def test_17_who_asks_for_what_goes_to_him_has_had_it_or_is_given_it(
    node: Node, said: Said, had: bool
) -> None:
    """Each asked the other for what it may have claimed of it without an answer; `b`, which had
    been killed, gave back what it had before, and what went to it from here was dropped."""
    before = leaves(node)
    node.moves.departures.of["s"].doubt = had
    if had:
        node.moves.arrivals.expect("s", "b", before + 3)
    else:
        node.owners.tried.claims("s", "b", before)
    node.sends("b", before + 2, what=WANT)
    assert ("b", WANT, before + 1, 0) not in said
    if had:
        assert said[-1] == ("b", WHOLE, before + 2, 0)
        assert node.moves.departures.of["s"].revision == before
    else:
        assert said[-1] == ("b", WHOLE, before + 2, 1)


def test_17_of_another_of_whom_we_may_have_claimed_it_it_is_asked_all_the_same(
    node: Node, said: Said
) -> None:
    before = leaves(node)
    node.owners.tried.claims("s", "a", before)
    node.owners.tried.claims("s", "b", before)
    node.sends("b", before + 2, what=WANT)
    assert said[-1] == ("a", WANT, before + 1, 0)


@pytest.mark.parametrize("had", [True, False])
def test_17_who_has_claimed_it_of_who_may_have_had_it_may_have_it(node: Node, had: bool) -> None:
    """`b` has nothing of it any more, and has given it to `a`: what is here is older than what that
    has, and was back when `a` was killed."""
    before = leaves(node)
    node.moves.departures.of["s"].doubt = had
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.sends("b", before, what=LOOK)
    leaving = node.moves.departures.of["s"]
    assert (leaving.to, leaving.doubt) == ("a", had)


def test_17_what_was_sent_whole_while_etcd_was_asked_is_not_brought_back(
    node: Node, said: Said
) -> None:
    """Its taker was gone for its lease alone. We have claimed it of that, which no answer has said:
    it was here, with what it had when it left, and went on where that had gone to."""
    before = leaves(node)
    node.etcd.away = True
    node.members.discard("b")
    node.moves.left("b")
    node.members.add("b")
    node.moves.joined(node.nodes["b"])
    for each in "ab":
        node.sends(each, before, what=MARKED)
        node.sends(each, before, what=LANE_MARKED)
    node.moves.departures.marked("s", before, 0)
    assert node.moves.departures.of["s"].whole
    node.etcd.away = False
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "b", ALICE), OTHER)
    for _ in range(3):
        node.turn(4)
    assert said[-1] == ("b", WANT, revision, 0)
    assert "s" not in node.memory.broker.sessions
    sends_all(node, "b", revision)
    node.turn()
    assert "s" in node.memory.broker.sessions and not node.moves.departures.of


def test_17_who_refuses_what_it_was_sent_when_it_was_before_says_so_as_it_is(
    node: Node, said: Said
) -> None:
    """A member anew: what was said to who it was before is heard by nobody."""
    revision = is_at_c(node)
    node.etcd.away = True
    node.sends("b", revision + 1, node.record_of("alice"))
    node.mesh.leave(node.nodes["b"])
    node.nodes["b"] = again = node.mesh.join("b", 2)
    node.etcd.away = False
    node.turn(5)
    assert said == [("b", DONE, revision + 1, 0)] and again.ferry.kept


def test_17_of_two_who_have_claimed_it_after_us_the_first_is_to_look(
    node: Node, said: Said
) -> None:
    node.comes("alice", False)
    first = node.owners.owned["s"] + 1
    for by, revision in (("a", first), ("b", first + 1), ("a", first)):
        assert node.moves.arrivals.passed("s", by, revision)
    assert said == [("a", LOOK, first, 0), ("a", LOOK, first, 0)]
    assert node.moves.arrivals.of["s"].next == ("b", first + 1)


def test_17_who_had_it_before_who_has_nothing_is_waited_for(node: Node, said: Said) -> None:
    """Its lease has ended, and it is awaited."""
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    assert node.claim("alice") is None
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")
    node.sends("b", node.owners.owned["s"])
    assert node.moves.arrivals.of["s"].origin == "a"
    node.moves.joined(node.mesh.join("a", 2))
    assert said[-1] == ("a", WANT, node.owners.owned["s"], 0)


def test_17_what_has_come_without_an_answer_is_asked_of_nobody_any_more(
    node: Node, said: Said
) -> None:
    revision = claimed_in_vain(node)
    sends_all(node, "b", revision)
    assert "s" in node.memory.broker.sessions and not len(node.owners.tried)


def test_17_what_is_still_awaited_goes_to_who_would_have_had_what_comes_to_nothing(
    node: Node, said: Said
) -> None:
    """`b` was killed with it; `a` and we have claimed it of each other unheard."""
    node.comes("alice", False)
    first = node.owners.owned["s"]
    assert node.moves.arrivals.passed("s", "a", first + 1)
    node.moves.arrivals.suppose("s", "a", first + 1, first + 2)
    assert node.moves.arrivals.passed("s", "a", first + 3)
    node.sends("a", first + 2)
    assert ("a", WHOLE, first + 3, 0) not in said
    (comes,) = node.moves.arrivals.line("s")
    assert (comes.origin, comes.revision, comes.next) == ("b", first, ("a", first + 3))
