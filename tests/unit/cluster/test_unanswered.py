"""Claims whose answers do not come: what was claimed by them is asked for, and never nobody's."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from mqttd.cluster.etcd.client import EtcdError, Hangs, Json, put
from mqttd.cluster.etcd.keys import claimed
from mqttd.cluster.sessions.transit import DONE, LANE_MARKED, MARKED, TAIL, WANT, WHOLE
from mqttd.mesh.frames import packed
from tests.unit.cluster.test_users import ALICE, KEYS, LEASE, OTHER, Node

#: What is said to whom of the session in which revision, and with how many fields.
Said = list[tuple[str, bytes, int, int]]


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


def after_change(node: Node, happens: Callable[[], object]) -> None:
    """This happens once the next change is written, before it is answered; or in its place."""
    original = node.etcd.ask

    async def ask(path: str, body: Json, patience: float = 0) -> Json:
        before = node.etcd.revision
        answer = await original(path, body)
        if node.etcd.revision > before:
            node.etcd.ask = original  # type: ignore[method-assign]
            happens()
        return answer

    node.etcd.ask = ask  # type: ignore[method-assign]


def unanswered(node: Node, error: type[EtcdError]) -> None:
    """The answer to the next change does not come."""

    def happens() -> None:
        raise error("no answer")

    after_change(node, happens)


def claimed_in_vain(node: Node, origin: str = "b") -> int:
    """The revision of a claim that has been written, and of which nothing is known here."""
    unanswered(node, EtcdError)
    assert isinstance(node.claim("alice"), EtcdError)
    assert node.etcd.read() == ("c", origin, ALICE)
    node.etcd.revision += 5  # what others write
    return node.etcd.revision - 5


def taken_unheard(node: Node, by: str) -> int:
    """A node has claimed it of this one, which has not heard of it: in which revision."""
    revision = node.etcd.write(KEYS.own("s"), claimed(by, "c", ALICE), OTHER)
    node.etcd._step(put(KEYS.taken("c", "s"), by.encode(), OTHER), revision)
    return revision


def held_up(node: Node) -> Json:
    """A claim that is on its way to etcd when nobody waits for it any more."""
    original = node.etcd.ask
    late: list[Json] = []

    async def ask(path: str, body: Json, patience: float = 0) -> Json:
        if put(KEYS.taken("b", "s"), b"c", LEASE) in _changes(body):
            late.append(body)
            raise EtcdError("no answer")
        return await original(path, body)

    node.etcd.ask = ask  # type: ignore[method-assign]
    assert isinstance(node.claim("alice"), EtcdError)
    node.etcd.ask = original  # type: ignore[method-assign]
    return late[0]


def _changes(body: Json) -> list[Json]:
    return [step for each in body["success"] for step in each["request_txn"]["success"]]


def taken_by_a(node: Node) -> int:
    """`a` has claimed it of this node: in which revision."""
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.owners.taken("s", "a", revision)
    node.turn()
    return revision


def comes_whole(node: Node, revision: int) -> None:
    """All of it is sent by `b`, and all have given their marks."""
    node.sends("b", revision, node.record_of("alice"))
    for name in "ab":
        node.sends(name, revision, what=MARKED)
        node.sends(name, revision, what=LANE_MARKED)
    node.sends("b", revision, what=TAIL)


def test_who_claims_it_of_us_is_given_what_we_ask_for(node: Node, said: Said) -> None:
    """And is not told that there is nothing; it took that for a session that is new."""
    claimed_in_vain(node)
    revision = taken_by_a(node)
    assert said == [("b", WANT, revision - 1, 0)]
    comes_whole(node, revision - 1)
    assert ("a", WHOLE, revision, 1) in said


def test_so_it_is_where_it_was_asked_for_twice(node: Node, said: Said) -> None:
    """By one member of etcd, which hangs, and by another, when `a` was faster than that."""

    def happens() -> None:
        node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
        raise Hangs("no answer")

    after_change(node, happens)
    node.owners.pull("s", "b")
    node.turn()
    revision = node.etcd.revision
    node.owners.taken("s", "a", revision)
    assert said == [("b", WANT, revision - 1, 0)]


def test_what_was_offered_and_claimed_is_here(node: Node) -> None:
    """By a claim that was asked for twice: the second time it was ours, and so nobody's."""
    unanswered(node, Hangs)
    node.owners.pull("s", "b")
    node.turn()
    assert node.etcd.read() == ("c", "b", ALICE)
    assert node.owners.owned["s"] == node.etcd.revision
    comes_whole(node, node.etcd.revision)
    assert "s" in node.memory.broker.sessions


@pytest.mark.parametrize("again", [True, False])
def test_what_is_sent_for_it_is_kept_where_it_is(node: Node, said: Said, again: bool) -> None:
    """It is asked for by a later claim, which its node has not heard of yet."""
    revision = claimed_in_vain(node)
    if again:
        assert node.claim("alice") is None
        assert node.owners.owned["s"] == node.etcd.revision > revision
    else:
        later = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
        node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
        node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    node.sends("b", revision, node.record_of("alice"))
    assert ("b", DONE, revision, 0) not in said
    if not again:
        node.owners.taken("s", "a", later)
        node.sends("b", revision, node.record_of("alice"))
        assert said == [("b", WANT, later - 1, 0)]


def test_what_two_have_claimed_since_is_not_forgotten(node: Node, said: Said) -> None:
    """Of us and of the next one, before we have heard of it: what etcd says is not of us."""
    revision = claimed_in_vain(node)
    taken = taken_unheard(node, "b")
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    assert node.claim("alice") is None
    assert node.etcd.read() == ("c", "a", ALICE)
    node.sends("b", revision, node.record_of("alice"))
    assert ("b", DONE, revision, 0) not in said
    node.owners.taken("s", "b", taken)
    node.turn()
    assert said == [("b", WANT, taken - 1, 0)]
    comes_whole(node, taken - 1)
    assert ("b", WHOLE, taken, 1) in said


@pytest.mark.parametrize("heard", [True, False])
def test_of_several_that_were_claimed_the_first_is_asked(
    node: Node, said: Said, heard: bool
) -> None:
    """In vain of two nodes, and each time another has claimed it of us."""
    first = claimed_in_vain(node)
    taken = taken_unheard(node, "a")
    if not heard:
        del node.etcd.kept[b64encode(KEYS.taken("c", "s")).decode()]  # with the lease of that
    claimed_in_vain(node, "a")
    second = claimed_in_vain(node, "a")
    revision = taken_unheard(node, "a")
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    node.sends("b", first, node.record_of("alice"))
    assert ("b", DONE, first, 0) not in said
    if heard:
        node.owners.taken("s", "a", taken)
        node.turn()
        assert said.pop() == ("b", WANT, taken - 1, 0)
        node.sends("a", second, node.record_of("alice"))
        assert ("a", DONE, second, 0) not in said
    node.owners.taken("s", "a", revision)
    node.turn()
    assert said[-1] == (("a" if heard else "b"), WANT, revision - 1, 0)


def test_a_claim_may_be_written_when_nobody_waits_for_it_any_more(node: Node, said: Said) -> None:
    """What was read meanwhile did not say so."""
    late = held_up(node)
    assert isinstance(node.claim("mallory"), PermissionError)
    asyncio.run(node.etcd.ask("", late))
    assert node.etcd.read() == ("c", "b", ALICE)
    revision = taken_by_a(node)
    assert said == [("b", WANT, revision - 1, 0)]


def test_it_cannot_be_when_others_have_claimed_it_by_now(node: Node, said: Said) -> None:
    late = held_up(node)
    node.etcd.write(KEYS.own("s"), claimed("a", "b", ALICE), OTHER)
    assert isinstance(node.claim("mallory"), PermissionError)
    assert not node.owners.tried
    asyncio.run(node.etcd.ask("", late))
    assert node.etcd.read() == ("a", "b", ALICE)


def test_who_asks_before_we_hear_of_its_claim_is_given_what_we_ask_for(
    node: Node, said: Said
) -> None:
    """And have claimed it of it since."""
    claimed_in_vain(node)
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    assert node.claim("alice") is None
    node.owners.wanted("s", "a", revision)
    assert said == [("b", WANT, revision - 1, 0)]
    comes_whole(node, revision - 1)
    assert ("a", WHOLE, revision, 1) in said


def test_what_was_claimed_before_and_never_came_is_not_waited_for(node: Node, said: Said) -> None:
    """Two nodes waited for each other: what this one had claimed before had come another way."""
    assert node.claim("alice") is None
    for at, of in ("bc", "ab", "ba"):
        revision = node.etcd.write(KEYS.own("s"), claimed(at, of, ALICE), OTHER)
        if of == "c":
            node.owners.taken("s", at, revision)
    node.turn(5)
    said.clear()
    claimed_in_vain(node)
    revision = taken_by_a(node)
    assert said == [("b", WANT, revision - 1, 0)]
    comes_whole(node, revision - 1)
    assert ("a", WHOLE, revision, 1) in said


@pytest.mark.parametrize("by", ["a", "b"])
def test_what_is_sent_anew_for_a_later_claim_is_taken_for_that(
    node: Node, said: Said, by: str
) -> None:
    """Two claims in vain; the first was answered by its node while the second was asked for."""
    first = claimed_in_vain(node)
    original = node.etcd.ask

    async def ask(path: str, body: Json, patience: float = 0) -> Json:
        before = node.etcd.revision
        answer = await original(path, body)
        if node.etcd.revision > before:
            state = packed([WHOLE, b"s", first.to_bytes(8, "big"), node.record_of("alice")])
            node.moves.told(node.nodes["b"], state)
            raise EtcdError("no answer")
        return answer

    node.etcd.ask = ask  # type: ignore[method-assign]
    assert isinstance(node.claim("alice"), EtcdError)
    node.etcd.ask = original  # type: ignore[method-assign]
    second = node.etcd.revision
    assert second > first
    revision = node.etcd.write(KEYS.own("s"), claimed(by, "c", ALICE), OTHER)
    node.owners.taken("s", by, revision)
    node.turn()
    comes_whole(node, second)
    assert (by, WHOLE, revision, 1) in said


def test_who_claims_it_back_waits_for_it(node: Node, said: Said) -> None:
    """What was on its way to `a` was taken for this claim's, and its client had a new session."""
    claimed_in_vain(node)
    revision = taken_by_a(node)
    assert node.claim("alice", 5) is not None
    assert node.etcd.read() == ("c", "a", ALICE)
    assert node.claim("alice") is None
    comes_whole(node, revision - 1)
    assert ("a", WHOLE, revision, 1) in said
    assert "s" not in node.memory.broker.sessions


def test_of_a_node_that_is_not_awaited_nothing_comes(node: Node, said: Said) -> None:
    claimed_in_vain(node)
    node.moves.arrivals.home_of = lambda name: -1
    node.mesh.leave(node.mesh.nodes["b"])
    revision = taken_by_a(node)
    node.sends("a", revision - 1)
    assert ("a", WHOLE, revision, 0) in said
    assert not node.moves.arrivals.of


@pytest.mark.parametrize("who", ["c", "b"])
def test_17_an_answer_to_who_one_of_both_was_before_is_none(node: Node, who: str) -> None:
    """Our lease has ended, or that of who has it, and is another one: the session was sent to, or
    by, who is not there any more, and may be back where it was."""

    def happens() -> None:
        if who == "c":
            node.owners.lease = OTHER
        else:
            node.moves.arrivals.brief_of = lambda name: 99

    after_change(node, happens)
    assert isinstance(node.claim("alice"), EtcdError)
    assert "s" not in node.owners.owned and not node.moves.arrivals.of
    node.claim("alice")
    assert node.owners.owned["s"] == node.etcd.revision and node.moves.arrivals.of


def test_17_what_comes_before_the_answer_waits_for_its_node_as_well(node: Node) -> None:
    revision = claimed_in_vain(node)
    node.sends("b", revision, node.record_of("alice"))
    node.sends("a", revision, what=MARKED)
    node.sends("a", revision, what=LANE_MARKED)
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    node.turn(1)
    assert "s" not in node.memory.broker.sessions
    assert node.moves.arrivals.of["s"].again


@pytest.mark.parametrize("comes_before", [True, False])
def test_17_nothing_that_is_said_before_the_answer_is_not_the_last_word(
    node: Node, said: Said, comes_before: bool
) -> None:
    """`b` was killed before it had what `a` was sending it, which the answer says."""
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)

    def happens() -> None:
        node.sends("b", node.etcd.revision)
        if comes_before:
            node.sends("a", node.etcd.revision, node.record_of("alice"))

    after_change(node, happens)
    assert node.claim("alice") is None
    revision = node.owners.owned["s"]
    if not comes_before:
        assert said[-1] == ("a", WANT, revision, 0)
        node.sends("a", revision, node.record_of("alice"))
    assert node.moves.arrivals.of["s"].state is not None
    assert ("a", DONE, revision, 0) not in said


def test_what_has_come_to_nothing_before_another_claim_is_not_kept(node: Node) -> None:
    node.moves.arrivals.suppose("s", "a", 1, 2)
    assert node.claim("alice") is None
    node.sends("a", 2)
    node.sends("b", 2)
    assert [each.revision for each in node.moves.arrivals.line("s")] == [node.owners.owned["s"]]


def test_17_who_had_it_before_is_asked_though_no_answer_has_said_that_it_is_ours(
    node: Node, said: Said
) -> None:
    """`b`, which had claimed it of `a`, is back with nothing, and says so: what was on its way to
    `b` was as good as gone, and who came here had a new session."""
    node.etcd.write(KEYS.own("s"), claimed("b", "a", ALICE), OTHER)
    revision = claimed_in_vain(node)
    node.sends("b", revision)
    assert said == [("a", WANT, revision, 0)]
    node.sends("a", revision, node.record_of("alice"))
    assert node.moves.arrivals.of["s"].state is not None
    assert node.etcd.read() == ("c", "b", ALICE)
