"""A node whose sessions another takes over, and what others make of what it says meanwhile."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Answer, EtcdError, Kv
from mqttd.cluster.etcd.keys import Copy, Heir, Keys, claimed, heir_of
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.replication.adoption import Adoption
from mqttd.cluster.replication.legacy import Legacy
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.left import LEFT
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.cluster.sessions.silence import Silence
from mqttd.cluster.sessions.transit import WHOLE
from mqttd.mesh.frames import packed
from mqttd.mesh.link import Link, Nowhere
from mqttd.nats.client import NatsError
from mqttd.nats.jetstream import NoStream
from mqttd.storage.copies import Copy as DataBase
from mqttd.types import SessionState
from tests.support.memory import MemoryBroker
from tests.unit.cluster.test_users import Node as ServedNode


class Many:
    """What etcd has for one client id; a transaction is done where the revision is asked for."""

    def __init__(self) -> None:
        self.found: tuple[Kv, ...] = ()
        self.asked = 0

    def transaction(self, when: Any, then: Any, otherwise: Any = ()) -> Deferred[Answer]:
        self.asked += 1
        known = self.found[0].changed if self.found else 0
        wanted = int(when[-1].get("mod_revision", 0)) if when else -1
        return succeed(Answer(wanted == known, 100, () if wanted == known else self.found))


class Node:
    """The node `c`, in whose tables `a` and `b` are."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.clock = Clock()
        self.broker = self.memory.broker
        self.mesh = NodeMesh(self.broker, lambda _: None, lambda _: None, lambda *_: None)
        self.mesh.applied = 1 << 40  # etcd has said all
        settled: Any = lambda filters: succeed(None)  # noqa: E731
        self.moves = Moves(self.broker, self.mesh, self.clock, "c", settled, lambda: 0)
        self.keys = Keys("test")
        self.members = {"a", "b"}
        #: Whose sessions are being taken over.
        self.left: set[str] = set()
        etcd: Any = None
        self.owners = Owners(etcd, self.keys, "c", self.clock, lambda name: name in self.members)
        many: Any = Many()
        self.many: Many = many
        self.owners.many = many
        self.owners.moves = self.moves
        self.owners.lease = self.owners.home = 1
        self.owners.sessions = self.broker.sessions
        self.owners.keeps = self.broker.registry.keep
        self.owners.watch(self.broker.registry.hand_over)
        self.owners.silence.is_left = self.left.__contains__
        arrivals = self.moves.arrivals
        arrivals.is_left = self.left.__contains__
        arrivals.unclaimed = self.owners.unclaimed
        self.moves.gone = self.owners.gone
        self.moves.asked = self.owners.wanted
        self.moves.expects = self.owners.expects
        self.moves.whose = self.owners.whose
        self.moves.lease = lambda: self.owners.lease
        self.nodes = {name: self.mesh.join(name, 1) for name in "ab"}

    def stored(self, owner: str, changed: int, origin: str = "") -> None:
        """What etcd says of the client id."""
        self.many.found = (Kv(self.keys.own("s"), claimed(owner, origin), 1, changed),)

    def leaves(self, by: str, revision: int) -> SessionState:
        """Its session was here, and a node has claimed it."""
        self.memory.connect("s", 4, clean=False).drop()
        state = self.broker.registry.hand_over("s", revision)
        assert state is not None
        self.moves.hand("s", by, revision, state)
        return state

    def says(self, node: str, revision: int, *fields: bytes) -> None:
        """A node sends what it has of the session; nothing, if there are no fields."""
        body = packed([WHOLE, b"s", revision.to_bytes(8, "big"), *fields])
        self.moves.told(self.nodes[node], body)


@pytest.fixture
def node() -> Node:
    return Node()


def test_who_is_taken_over_answers_when_that_is_done() -> None:
    silence, told = Silence(), list[int]()
    lasts = True
    silence.lasts = lambda: lasts
    assert all(silence.keeps(lambda n=n: told.append(n)) for n in (1, 2))  # type: ignore[misc]
    silence.look()
    with pytest.raises(EtcdError, match="taking over"):
        silence.check()
    assert not told
    lasts = False
    silence.check()
    silence.look()
    silence.look()
    assert told == [1, 2]
    assert not silence.keeps(lambda: told.append(3))


def test_what_others_ask_for_waits_until_the_heir_has_said_what_there_is(node: Node) -> None:
    """Its session is older than the heir's; "there is none" would be an end of what is there."""
    lasts = True
    node.owners.silence.lasts = lambda: lasts
    node.memory.connect("s", 4, clean=False).drop()
    node.owners.wanted("s", "a", 7)
    assert node.memory.session("s") is not None
    assert not node.nodes["a"].ferry.kept
    assert not node.moves.departures.of
    lasts = False
    node.owners.silence.look()
    assert node.memory.session("s") is None
    assert node.moves.departures.of["s"].revision == 7


@pytest.mark.parametrize("owner", ["b", "c"])
def test_a_claim_of_what_is_being_taken_over_is_refused(node: Node, owner: str) -> None:
    """Though its node is back; and at that node nobody is let in."""
    node.stored(owner, 5)
    if owner == "b":
        node.left.add("b")
    else:
        node.owners.silence.lasts = lambda: True
    failures: list[Any] = []
    claim = node.owners.claim("s", None, True)
    assert isinstance(claim, Deferred)
    claim.addErrback(failures.append)
    assert [each.check(EtcdError) for each in failures] == [EtcdError]
    node.left.clear()
    node.owners.silence.lasts = lambda: False


@pytest.mark.parametrize("left", ["b", "c"])
def test_what_a_node_sends_while_it_is_taken_over_waits(node: Node, left: str) -> None:
    """And what is sent to one that is: the heir says first whose it is."""
    state = node.leaves("a", 3)
    node.moves.departures.recall("s")
    node.moves.arrivals.expect("s", "b", 5)
    node.left.add(left)
    node.says("b", 5, state.record)
    node.moves.seen()
    assert node.moves.arrivals.of["s"].state is None
    node.left.clear()
    node.moves.seen()
    assert node.moves.arrivals.of["s"].state is not None


def test_17_nor_is_what_comes_before_it_is_known_refused_for_what_is_here(node: Node) -> None:
    """A member anew, which has not read yet that it was taken over meanwhile: its heir sends what
    is newer than its own, and that was about to end."""
    node.memory.connect("s", 4, clean=False).drop()
    record = node.broker.registry.hand_over("s", 2)
    assert record is not None
    node.memory.connect("s", 4, clean=False).drop()
    node.stored("c", 5, "a")
    silent = True
    node.moves.is_silent = lambda: silent
    node.says("b", 5, record.record)
    assert not node.nodes["b"].ferry.kept
    node.broker.registry.hand_over("s", 1 << 62)
    silent = False
    node.moves.seen()
    assert node.moves.arrivals.of["s"].offer or node.moves.arrivals.of["s"].state


def test_17_until_that_is_known_silence_lasts() -> None:
    node = ServedNode()
    lasts = True
    node.owners.silence.lasts = lambda: lasts
    assert node.moves.is_silent()
    lasts = False
    assert not node.moves.is_silent()


@pytest.mark.parametrize(("claimed_by_a", "is_back"), [(7, True), (11, False)])
def test_a_session_is_not_brought_back_from_who_has_claimed_it_later(
    node: Node, claimed_by_a: int, is_back: bool
) -> None:
    """Claimed of `b` in revision 9, which says that it has nothing: what has left before is ours
    again, what has left since is another's."""
    node.leaves("a", claimed_by_a)
    comes = node.moves.arrivals.expect("s", "b", 9)
    comes.before, comes.lease = "c", node.owners.lease
    node.owners.owned["s"] = 9
    node.says("b", 9)
    assert (node.memory.session("s") is not None) == is_back
    assert ("s" in node.moves.departures.of) != is_back


def test_what_its_taker_may_have_had_is_left_to_the_heir_of_that(node: Node) -> None:
    """All of it was sent to `b`, which is killed, and `a` has claimed it of that one."""
    node.leaves("b", 5)
    leaves = node.moves.departures.of["s"]
    leaves.whole = True
    node.stored("a", 6, "b")
    node.members.discard("b")
    node.left.add("b")
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    for _ in range(3):
        node.clock.advance(1)
    assert node.moves.departures.of["s"] is leaves
    node.left.clear()  # that is done, and who has claimed it has asked for nothing
    node.clock.advance(1)
    node.clock.advance(1)
    assert node.moves.departures.of["s"].to == "a"


def test_what_its_taker_had_not_had_is_here_for_who_waits_for_it(node: Node) -> None:
    """Claimed of `b` in its last moment, by this node, which has it still."""
    node.leaves("b", 5)
    waits = node.moves.arrivals.expect("s", "b", 6)
    waits.lease = node.owners.lease
    given: list[SessionState | None] = []
    node.moves.arrivals.wanted("s", 6).addCallback(given.append)
    node.stored("c", 6, "b")
    node.members.discard("b")
    node.left.add("b")
    node.mesh.leave(node.nodes["b"])
    node.moves.left("b")
    assert waits.whole
    assert given and given[0] is not None
    assert "s" not in node.moves.departures.of


class Etcd:
    """What is there of a node that was taken over, came back and is gone again."""

    def __init__(self, found: tuple[Kv, ...]) -> None:
        self.found = found
        self.asked: list[tuple[list[Any], list[Any]]] = []

    async def transaction(self, when: Any, then: Any, otherwise: Any = ()) -> Answer:
        self.asked.append((when, then))
        return Answer(True, 100, self.found)


@pytest.mark.parametrize(("stage", "stream"), [("done", "later"), ("marks", "before")])
def test_a_node_that_dies_again_right_after_it_was_back_is_taken_over_again(
    node: Node, stage: str, stream: str
) -> None:
    """The key of its heir is there yet; where that had not done, its stream comes first."""
    heir = Heir("before", "s", "a", 1, stage)
    copy = Copy("later", "s")
    etcd: Any = Etcd(
        (Kv(node.keys.copy("b"), copy.dump(), 1, 7), Kv(node.keys.heir("b"), heir.dump(), 1, 8))
    )
    follower: Any = None
    view = View("c", node.keys, node.mesh, follower)
    view.heirs["b"], view.copies["b"] = heir, copy
    assert view.is_left("b")
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, etcd=etcd, reactor=node.clock, membership=member, view=view,
        mesh=node.mesh, broker=node.broker,
    )  # fmt: skip
    unused: Any = None
    adoption = Adoption(cluster, unused, unused, "b")
    begun: list[bool] = []
    Deferred.fromCoroutine(adoption.heirship.begin()).addCallback(begun.append)
    assert begun == [True]
    (when, then) = etcd.asked[-1]
    said = heir_of(b64decode(then[0]["request_put"]["value"]), 0, 0)
    assert (said.stream, said.by, said.stage) == (stream, "c", "read")
    assert any(each.get("mod_revision") == "8" for each in when)  # if nobody was faster


@pytest.mark.parametrize(
    ("origin", "wants"), [("b", True), ("d", True), ("a", False), ("c", False), ("", False)]
)
def test_17_what_was_claimed_of_a_third_that_is_gone_too_goes_there(
    node: Node, origin: str, wants: bool
) -> None:
    """`d` had claimed it of `b` unheard, and was killed: it was dropped, as if `a` had had it."""
    follower, unused = None, None
    view = View("c", node.keys, node.mesh, follower)  # type: ignore[arg-type]
    node.nodes["a"].link = Link(node.broker, Nowhere(), 0)
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, view=view,
        mesh=node.mesh, broker=node.broker,
    )  # fmt: skip
    adoption = Adoption(cluster, unused, unused, "b")  # type: ignore[arg-type]
    owned = {"s": Kv(node.keys.own("s"), claimed("a", origin), 1, 7)}
    assert adoption._wants("s", owned) == (("a", 7) if wants else None)


@pytest.mark.parametrize(
    ("origin", "is_here"), [("c", True), ("c", False), ("", True), ("a", True)]
)
def test_17_what_it_had_claimed_back_and_had_not_had_is_where_it_was(
    node: Node, tmp_path: Path, origin: str, is_here: bool
) -> None:
    """Its store had what it had given to us before, and what is later is on its way to it."""
    follower, unused = None, None
    path = str(tmp_path / "copy.db")
    copy = DataBase(path)
    for row in ((1, "s", None, 600), (2, "other", None, 600)):
        copy.base.execute(
            "INSERT INTO session (owner, client_id, username, expiry) VALUES (?, ?, ?, ?)", row
        )
    left = (5).to_bytes(8, "big") + b"a"
    copy.base.execute("INSERT INTO kept (plugin, key, value) VALUES (?, ?, ?)", (LEFT, "s", left))
    copy.close()
    view = View("c", node.keys, node.mesh, follower)  # type: ignore[arg-type]
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, view=view,
        mesh=node.mesh, broker=node.broker, moves=node.moves,
    )  # fmt: skip
    adoption = Adoption(cluster, unused, unused, "b")  # type: ignore[arg-type]
    if is_here:
        node.leaves("b", 7)
    legacy = Legacy(node.broker, path)
    owned = {
        "s": Kv(node.keys.own("s"), claimed("b", origin), 1, 7, 4),
        "other": Kv(node.keys.own("other"), claimed("b", "c"), 1, 7, 4),
    }
    adoption._sort(legacy, owned)
    left_out = is_here and origin == "c"
    assert sorted(legacy.client_ids()) == (["other"] if left_out else ["other", "s"])
    legacy.close()


def reads(node: Node, adoption: Adoption) -> SessionState:
    """The state of a session that this node has read as an heir, and what catches the rest."""
    node.memory.connect("s", 4, clean=False).drop()
    state = node.broker.registry.hand_over("s", 2)
    assert state is not None
    catcher = node.moves.transit.catch("s", state, True)
    assert catcher is not None
    adoption._catchers["s"] = catcher
    return state


def test_17_what_was_taken_from_us_before_is_not_what_we_are_the_heir_of(node: Node) -> None:
    """Heard once more, while etcd is asked that it is ours: it went to who had it then, and was
    lost."""
    unused: Any = None
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, mesh=node.mesh,
        broker=node.broker, moves=node.moves,
    )  # fmt: skip
    adoption = Adoption(cluster, unused, unused, "b")
    state = reads(node, adoption)
    adoption.heirship.changed = 7
    adoption._enter("s", state)
    assert adoption.pending == {"s"}
    node.owners._hand("s", "a", 5)
    assert "s" in node.broker.sessions
    adoption._let_go()
    assert "s" not in node.broker.sessions


def test_17_what_we_have_claimed_of_it_without_an_answer_is_here(node: Node) -> None:
    """Etcd's answer had come when that node was gone, and so was none: what its heir, this node,
    had read was dropped, and its client had a new session."""
    unused: Any = None
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, mesh=node.mesh,
        broker=node.broker, moves=node.moves, owners=node.owners,
    )  # fmt: skip
    adoption = Adoption(cluster, unused, unused, "b")
    state = reads(node, adoption)
    node.stored("c", 7, "b")
    legacy: Any = SimpleNamespace(state=lambda client_id: state)
    owned = {"s": node.many.found[0]}
    Deferred.fromCoroutine(adoption._send_on(legacy, owned))
    assert "s" in node.broker.sessions and node.owners.owned["s"] == 7
    assert not node.moves.arrivals.of


def test_17_what_etcd_has_written_unanswered_stays_here_though_our_lease_ends(node: Node) -> None:
    """It was dropped, and in etcd it was ours: nobody else took it from the stream any more."""
    unused: Any = None
    member = SimpleNamespace(epoch=9, home=1)

    class Etcd:
        async def transaction(self, when: Any, then: Any) -> Answer:
            member.epoch = 0
            raise EtcdError("no answer")

        async def range_of(self, key: bytes) -> Answer:
            found = (
                Kv(node.keys.own("s"), claimed("c", ""), 1, 8),
                Kv(node.keys.own("other"), claimed("b", ""), 1, 7),
            )
            return Answer(True, 9, found)

    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, mesh=node.mesh,
        broker=node.broker, moves=node.moves, owners=node.owners, etcd=Etcd(),
    )  # fmt: skip
    adoption = Adoption(cluster, unused, unused, "b")
    for name in ("s", "other"):
        node.memory.connect(name, 4, clean=False).drop()
    adoption.pending = {"s", "other"}
    failed: list[Any] = []
    owned = {
        name: Kv(node.keys.own(name), claimed("b", ""), 1, 7) for name in sorted(adoption.pending)
    }
    Deferred.fromCoroutine(adoption._own([*owned], owned)).addErrback(failed.append)
    node.clock.advance(1)
    assert failed and failed[0].check(EtcdError)
    adoption._let_go()
    assert list(node.broker.sessions) == ["s"] and node.owners.owned["s"] == 8


@pytest.mark.parametrize("lease", [5, 30])
def test_17_an_heir_waits_until_it_is_known_whether_who_says_nothing_is_gone_as_well(
    node: Node, lease: int
) -> None:
    """What that had for its sessions was lost where leases are longer than ten seconds."""
    unused: Any = None
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        name="c", keys=node.keys, reactor=node.clock, membership=member, mesh=node.mesh,
        broker=node.broker, settings=SimpleNamespace(lease=lease),
    )  # fmt: skip
    inheriting: Any = SimpleNamespace(look=lambda: None)
    adoption = Adoption(cluster, unused, inheriting, "b")
    for name in ("", "b"):
        numbers = (0,) if not name else (node.nodes[name].number, -node.nodes[name].number)
        for number in numbers:
            adoption._mark(name, number, [], [])
    met: list[None] = []
    Deferred.fromCoroutine(adoption._meet()).addCallback(met.append)
    node.clock.pump([0.05] * 20 * lease)
    assert not met
    node.mesh.leave(node.nodes["a"])
    node.clock.advance(0.05)
    assert met == [None]


class Servers:
    """NATS servers of which each answer about a stream is an error, the next one of these."""

    def __init__(self, *errors: NatsError) -> None:
        self.errors = list(errors)

    async def info(self, stream: str) -> None:
        raise self.errors.pop(0)


def test_a_stream_is_gone_when_that_is_said_again_and_again(node: Node, tmp_path: Path) -> None:
    """A server that was killed had just begun anew, and knew of no stream: a session was lost."""
    gone, away = NoStream("stream not found (10059)"), NatsError("no answer")
    servers: Any = Servers(*[gone] * 19, away, *[gone] * 20)
    unused: Any = None
    member = SimpleNamespace(epoch=9, home=1)
    cluster: Any = SimpleNamespace(
        reactor=node.clock, membership=member, mesh=node.mesh, broker=node.broker
    )
    adoption = Adoption(cluster, servers, unused, "b")
    said: list[bool] = []
    Deferred.fromCoroutine(adoption._fetched(str(tmp_path / "heir"))).addCallback(said.append)
    while not said:
        assert servers.errors, "it goes on asking"
        node.clock.advance(0.5)
    assert said == [False] and not servers.errors
    assert 15 < node.clock.seconds() < 25
