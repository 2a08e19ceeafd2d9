"""Whose a client id is: known before it is claimed, and what etcd says of it put right."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Etcd, EtcdError, Json, equals, put
from mqttd.cluster.etcd.keys import Keys, Owner, claimed, owner_of, user_of
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.cluster.sessions.transit import LANE_MARKED, MARKED, TAIL, WHOLE
from mqttd.codec.packets import Connack, Connect
from mqttd.mesh.frames import packed
from mqttd.types import Claim, Held, SessionState
from tests.support.memory import MemoryBroker, MemoryClient

KEYS = Keys("test")
ALICE, MALLORY = user_of("s", "alice"), user_of("s", "mallory")
#: The lease of this node, that under which its sessions wait for it, the home of `b`, the one that
#: `b` had before it began anew, and the lease of `b`.
LEASE, HOME, OTHER, BEFORE, BRIEF = 1, 2, 3, 4, 5


class MemoryEtcd(Etcd):
    """The keys and their revisions; `away`: it does not answer, `deaf`: only its answer is lost."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor, ["http://localhost"])
        self.revision = 10
        #: Value, revision in which it was created and changed, lease.
        self.kept: dict[str, tuple[str, int, int, int]] = {}
        self.away = self.deaf = False

    async def ask(self, path: str, body: Json, patience: float = 0) -> Json:
        if self.away:
            raise EtcdError("away")
        before = dict(self.kept)
        said = self._transact(body, self.revision + 1)
        self.revision += self.kept != before
        if self.deaf:
            raise EtcdError("no answer")
        return {**said, "header": {"revision": self.revision}}

    def _transact(self, body: Json, revision: int) -> Json:
        done = all(self._holds(each) for each in body.get("compare", ()))
        steps = body.get("success" if done else "failure", ())
        return {"succeeded": done, "responses": [self._step(each, revision) for each in steps]}

    def _holds(self, when: Json) -> bool:
        _, made, changed, _ = self.kept.get(when["key"], ("", 0, 0, 0))
        return int(when.get("mod_revision", changed)) == changed and (
            int(when.get("create_revision", made)) == made
        )

    def _step(self, step: Json, revision: int) -> Json:
        if "request_txn" in step:
            return {"response_txn": self._transact(step["request_txn"], revision)}
        if "request_put" in step:
            change = step["request_put"]
            made = self.kept.get(change["key"], ("", revision))[1]
            self.kept[change["key"]] = change["value"], made, revision, int(change["lease"])
            return {}
        if "request_delete_range" in step:
            self.kept.pop(step["request_delete_range"]["key"], None)
            return {}
        key = step["request_range"]["key"]
        found = self.kept.get(key)
        if found is None:
            return {"response_range": {}}
        names = ("value", "create_revision", "mod_revision", "lease")
        return {"response_range": {"kvs": [{"key": key, **dict(zip(names, found, strict=True))}]}}

    def lease(self, client_id: str = "s") -> int:
        return self.kept[b64encode(KEYS.own(client_id)).decode()][3]

    def write(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """As some other node does; the revision."""
        self.revision += 1
        self._step(put(key, value, lease), self.revision)
        return self.revision

    def read(self, client_id: str = "s") -> Owner | None:
        found = self.kept.get(b64encode(KEYS.own(client_id)).decode())
        return None if found is None else owner_of(b64decode(found[0]))


class Node:
    """The node `c`, in whose tables `a` and `b` are."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.etcd = MemoryEtcd(self.clock)
        self.members = {"a", "b"}
        self.owners = Owners(self.etcd, KEYS, "c", self.clock, lambda name: name in self.members)
        self.memory = MemoryBroker(ownership=self.owners)
        broker = self.memory.broker
        self.mesh = NodeMesh(broker, lambda _: None, lambda _: None, lambda *_: None)
        self.mesh.applied = 1 << 40  # etcd has said all
        settled: Any = lambda filters: succeed(None)  # noqa: E731
        self.moves = Moves(broker, self.mesh, self.clock, "c", settled, lambda: 0)
        self.moves.arrivals.home_of = lambda name: OTHER
        self.moves.arrivals.brief_of = lambda name: BRIEF
        self.owners.serve(broker, self.moves)
        self.owners.lease, self.owners.home = LEASE, HOME
        self.nodes = {name: self.mesh.join(name, 1) for name in "ab"}

    def turn(self, seconds: float = 0) -> None:
        """What was put off."""
        for _ in range(5):
            self.clock.advance(seconds / 5)
            self.memory.run_soon()

    def claim(
        self, user: str | None, seconds: float = 0, lasts: bool = False
    ) -> Claim | Exception | None:
        """What is said to who claims the client id; None: he waits. `lasts`: see `IRegistry`."""
        said: list[Claim | Exception] = []
        claim = self.owners.claim("s", user, lasts)
        if isinstance(claim, Claim):
            return claim
        claim.addCallbacks(said.append, lambda failure: said.append(failure.value))
        self.turn(seconds)
        return said[0] if said else None

    def comes(self, user: str, clean: bool = True) -> MemoryClient:
        """A client of this user's, which has sent its CONNECT."""
        client = self.memory.client(4)
        client.send(Connect("s", version=4, clean_start=clean, username=user))
        self.turn()
        return client

    def record_of(self, user: str) -> bytes:
        """A session of this user's."""
        other = MemoryBroker()
        other.connect("s", 4, clean=False, username=user).drop()
        state = other.broker.registry.hand_over("s", 99)
        assert state is not None
        return state.record

    def sends(self, node: str, revision: int, *fields: bytes, what: bytes = WHOLE) -> None:
        """A node sends what it has of the session; nothing, if there are no fields."""
        body = packed([what, b"s", revision.to_bytes(8, "big"), *fields])
        self.moves.told(self.nodes[node], body)
        self.turn()


@pytest.fixture
def node() -> Node:
    return Node()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(NAMES, NAMES | st.just(""), st.just("") | st.just(ALICE))
def test_who_has_it_comes_out_as_it_went_in(name: str, origin: str, user: str) -> None:
    assert owner_of(claimed(name, origin, user)) == Owner(name, origin, user)


def test_what_a_node_of_before_has_written_does_not_say_whose() -> None:
    assert owner_of(b"a") == ("a", "", "")
    assert owner_of(b"a\0b") == ("a", "b", "")
    assert claimed("a") == b"a" and claimed("a", "b") == b"a\0b"


@given(st.text(), st.text(), st.none() | st.text())
def test_a_user_is_another_one_under_each_client_id(one: str, other: str, name: str | None) -> None:
    assert (user_of(one, name) == user_of(other, name)) is (one == other)
    assert user_of(one, name) != user_of(one, (name or "") + "x")
    assert user_of(one, None) != user_of(one, "")
    assert len(user_of(one, name)) == 32


@pytest.mark.parametrize(
    ("one", "other", "is_other"), [("", "", False), ("x", "", False), ("", "x", False),
                                   ("x", "x", False), ("x", "y", True)],
)  # fmt: skip
def test_who_is_not_known_is_no_other(one: str, other: str, is_other: bool) -> None:
    assert Owner("a", "", one).is_other(other) is is_other


def test_what_another_user_has_at_another_node_is_refused_and_not_touched(node: Node) -> None:
    since = node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), LEASE)
    assert isinstance(node.claim("mallory"), PermissionError)
    assert isinstance(node.claim(None), PermissionError)
    assert node.etcd.revision == since
    assert not node.owners.owned and not node.owners.turns and not node.moves.arrivals.of


def test_its_user_has_it_with_its_session(node: Node) -> None:
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert node.claim("alice") is None
    assert node.etcd.read() == ("c", "b", ALICE)
    assert b64encode(KEYS.taken("b", "s")).decode() in node.etcd.kept


def test_of_two_users_that_come_at_once_one_has_it(node: Node) -> None:
    """Another node was faster by a moment, after this one had read that nobody has it."""
    claim = node.owners.claim("s", "mallory", True)
    assert isinstance(claim, Deferred)
    said: list[Any] = []
    claim.addErrback(lambda failure: said.append(failure.value))
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE))
    node.turn()
    assert isinstance(said[0], PermissionError)
    assert node.etcd.read() == ("b", "", ALICE)


@pytest.mark.parametrize(("user", "said"), [("mallory", PermissionError), ("alice", EtcdError)])
def test_a_session_that_waits_for_its_node_is_its_user_s(
    node: Node, user: str, said: type[Exception]
) -> None:
    node.members.discard("b")
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    home = KEYS.home("b")
    node.etcd.write(home, b"", OTHER)
    assert isinstance(node.claim(user), said)
    assert node.etcd.read() == ("b", "", ALICE)
    del node.etcd.kept[b64encode(home).decode()]  # it is given up
    assert node.claim(user) == Claim(node.etcd.revision, Held.NOWHERE)
    assert node.etcd.read() == ("c", "", user_of("s", user))


def test_a_session_that_is_on_its_way_here_is_its_user_s(node: Node) -> None:
    """Whoever waits for it, or has waited: another user does not wait beside him."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert isinstance(node.claim("alice", 5), EtcdError)
    assert isinstance(node.claim("mallory"), PermissionError)
    del node.owners.owned["s"]  # as where the answer to that claim was lost
    assert isinstance(node.claim("mallory"), PermissionError)
    assert node.claim("alice") is None
    node.sends("b", node.etcd.revision)
    assert node.owners.owned["s"] == node.etcd.revision


def test_what_a_node_of_before_has_goes_to_who_comes_and_then_it_is_known_whose(
    node: Node,
) -> None:
    """Its value does not say whose; the session does, and is kept for that user."""
    node.etcd.write(KEYS.own("s"), claimed("b"), OTHER)
    node.comes("mallory", False)
    assert node.etcd.read() == ("c", "b", "")
    since = node.owners.owned["s"]
    node.sends("b", since, node.record_of("alice"))
    for name in "ab":
        node.sends(name, since, what=MARKED)
        node.sends(name, since, what=LANE_MARKED)
    node.sends("b", since, what=TAIL)
    assert node.memory.broker.sessions["s"].username == "alice"
    assert node.etcd.read() == ("c", "", ALICE)
    assert node.owners.owned["s"] == node.etcd.revision
    assert not node.owners.amends.said


def test_a_new_session_is_said_whose_it_is_at_once(node: Node) -> None:
    client = node.comes("alice")
    assert node.etcd.read() == ("c", "", ALICE)
    assert not node.owners.amends.said
    client.drop()
    node.turn()
    assert node.etcd.read() is None


def test_what_is_here_without_a_session_is_claimed_as_another_user_s(node: Node) -> None:
    """Claimed, and not begun: its user was refused after that, say."""
    first = node.claim("alice")
    assert isinstance(first, Claim)
    assert node.claim("alice") == Claim(first.epoch, Held.HERE)
    second = node.claim("mallory")
    assert isinstance(second, Claim) and second.epoch > first.epoch
    assert node.etcd.read() == ("c", "", MALLORY)


def test_a_session_that_another_node_gives_away_stays_its_user_s(node: Node) -> None:
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    node.owners.pull("s", "b")
    node.turn()
    assert node.etcd.read() == ("c", "b", ALICE)


@pytest.mark.parametrize("origin", ["", "b"])
def test_a_claim_whose_answer_is_lost_keeps_nobody_out(node: Node, origin: str) -> None:
    """But where a session comes by it: that is here, then."""
    if origin:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
        original = node.etcd.ask

        async def ask(path: str, body: Json, patience: float = 0) -> Json:
            said = await original(path, body)
            node.etcd.deaf = True
            return said

        node.etcd.ask = ask  # type: ignore[method-assign]
    else:
        node.etcd.deaf = True
    assert isinstance(node.claim("alice"), EtcdError)
    if origin:
        node.etcd.ask = original  # type: ignore[method-assign]
    node.etcd.deaf = False
    assert node.etcd.read() == ("c", origin, ALICE)
    node.turn(10)
    assert node.etcd.read() == (("c", "b", ALICE) if origin else None)


def test_an_end_is_told_though_it_is_claimed_meanwhile_in_vain(node: Node) -> None:
    node.comes("alice").drop()
    node.turn()
    revision = node.etcd.write(KEYS.own("s"), claimed("c", "", ALICE), LEASE)
    node.owners.amends.ended("s", revision)
    node.owners.turns["s"] = DeferredLock()
    node.turn(10)
    assert node.etcd.read() == ("c", "", ALICE)
    del node.owners.turns["s"]
    node.turn(10)
    assert node.etcd.read() is None
    assert not node.owners.amends._ended


def test_an_end_that_etcd_was_not_told_is_told_later(node: Node) -> None:
    client = node.comes("alice")
    node.etcd.away = True
    client.drop()
    node.turn(3)
    node.etcd.away = False
    assert node.etcd.read() == ("c", "", ALICE)
    node.turn(10)
    assert node.etcd.read() is None


def test_an_end_of_a_node_that_is_no_member_is_told_later(node: Node) -> None:
    client = node.comes("alice")
    node.owners.lease = 0
    client.drop()
    node.turn(3)
    assert node.etcd.read() == ("c", "", ALICE)
    node.owners.lease = LEASE
    node.turn(10)
    assert node.etcd.read() is None


def test_what_has_begun_anew_is_not_ended(node: Node) -> None:
    client = node.comes("alice")
    node.etcd.away = True
    client.drop()
    node.turn()
    node.etcd.away = False
    node.comes("mallory")
    node.turn(10)
    assert node.etcd.read() == ("c", "", MALLORY)
    assert "s" in node.memory.broker.sessions


def test_all_that_is_here_says_whose_it_is(node: Node) -> None:
    """What a node of before has written of it is written anew; so when `session.owner` changes."""
    node.comes("alice", False)
    since = node.etcd.write(KEYS.own("s"), claimed("c"), HOME)
    for by_user, whose in ((True, ALICE), (False, ""), (True, ALICE)):
        node.memory.settings.owned_by_user = by_user
        Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
        assert node.etcd.read() == ("c", "", whose)
        assert node.owners.owned["s"] == node.etcd.revision > since
    since = node.etcd.revision
    Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
    assert node.etcd.revision == since


def test_where_the_client_id_decides_nobody_is_said_to_have_it(node: Node) -> None:
    node.memory.settings.owned_by_user = False  # in force at once, as it is for sessions here
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert node.claim("mallory") is None
    assert node.etcd.read() == ("c", "b", "")


def test_a_session_that_is_back_says_whose_it_is(node: Node) -> None:
    """Its taker is gone before it had it."""
    node.comes("alice", False)
    since = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.owners.taken("s", "a", since)
    assert "s" in node.moves.departures.of
    node.members.discard("a")
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")
    node.turn(2)
    assert node.etcd.read() == ("c", "", ALICE)
    assert node.memory.broker.sessions["s"].username == "alice"


def test_what_is_ours_and_cannot_be_read_is_given_back(node: Node) -> None:
    revision = node.etcd.write(KEYS.own("s"), claimed("c"), HOME)
    node.owners.owned["s"] = revision
    node.owners.keep_here("s", revision, SessionState(b"{", (), revision))
    node.turn()
    assert node.etcd.read() is None


def test_a_condition_is_what_etcd_makes_of_it() -> None:
    """The stand-in above."""
    etcd = MemoryEtcd(None)
    revision = etcd.write(b"k", b"v")
    assert etcd._holds(equals(b"k", revision)) and not etcd._holds(equals(b"k", revision - 1))


@pytest.mark.parametrize(
    ("lease", "stays"), [(OTHER, True), (BEFORE, True), (BRIEF, False), (LEASE, False)]
)
def test_what_outlasts_its_connection_does_so_at_the_node_that_claims_it(
    node: Node, lease: int, stays: bool
) -> None:
    """Also of a node that has just begun anew, and has not written it under its new home yet."""
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), lease)
    assert node.claim("alice") is None  # its session comes
    assert node.etcd.read() == ("c", "b", ALICE)
    assert node.etcd.lease() == (HOME if stays else LEASE)


@pytest.mark.parametrize("lease", [0, BRIEF])
def test_17_what_is_to_outlast_its_connection_does_so_before_its_client_is_let_in(
    node: Node, lease: int
) -> None:
    """It was written so after that, and lost where the lease ended in between."""
    if lease:
        node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), lease)
    before = node.etcd.revision
    node.claim("alice", lasts=True)
    assert node.etcd.lease() == HOME and node.etcd.revision == before + 1
    if not lease:
        node.comes("alice", False)
        assert node.etcd.revision == before + 1  # once


def test_17_so_does_what_begins_where_one_was_that_did_not(node: Node) -> None:
    node.comes("alice")
    assert node.etcd.lease() == LEASE
    node.etcd.away = True
    (refused,) = node.comes("alice", False).take()
    assert isinstance(refused, Connack) and refused.reason_code
    node.etcd.away = False
    (connack,) = node.comes("alice", False).take()
    assert isinstance(connack, Connack) and not connack.reason_code
    assert node.etcd.lease() == HOME and node.owners.owned["s"] == node.etcd.revision


def test_what_is_on_its_way_here_outlasts_this_node_when_that_is_a_member_anew(node: Node) -> None:
    node.etcd.write(KEYS.own("s"), claimed("b", "", ALICE), OTHER)
    assert node.claim("alice") is None and node.etcd.lease() == HOME
    done = Deferred.fromCoroutine(node.owners.amends.claim_all(["s"]))
    node.turn()
    assert done.result == 0
    assert node.etcd.read() == ("c", "b", ALICE) and node.etcd.lease() == HOME
