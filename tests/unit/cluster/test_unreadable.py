"""What stands in etcd and cannot be read: each key is passed by and said, and all else is taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from mqttd.access.roles.roles import Roles
from mqttd.broker.ground.roles import Member as RoleMember
from mqttd.broker.ground.roles import Role
from mqttd.broker.rights.bans import Ban
from mqttd.cluster.commons import Commons
from mqttd.cluster.etcd.client import Answer, Kv
from mqttd.cluster.etcd.keys import Copy, Heir, Keys, Member, Owner
from mqttd.cluster.etcd.membership import Membership
from mqttd.cluster.etcd.reading import Said, chunk_of
from mqttd.cluster.etcd.unreadable import ALARM, MOST, Unreadable, shown
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.routes.view import View
from mqttd.cluster.wills.heirs import Heirs
from mqttd.codec.packets import Puback, Publish
from mqttd.config.schema import Cluster as Settings
from mqttd.mesh.frames import ADD, BEGIN, END, REMOVE, frame, packed
from tests.support.memory import MemoryBroker

KEYS = Keys("c")
DEEP = b"[" * 20_000
#: What no reader expects, beside bytes that are drawn.
ODD = [
    b"", b"{}", b"null", b"[]", b'"x"', b"1e999", b"NaN", b"\xff\xfe", DEEP, b'{"a":' * 9000,
    b"\x02\xff\xff\xff\xff\x7f", b"\x02\x01\x00" * 30, b'{"id": null}', b'"\\ud800"',
    b'{"id": 5, "address": 7, "version": [], "speaks": "x", "ready": {}}',
    b'{"id": "i", "address": "nowhere", "version": "1", "speaks": [1, 2]}',
    b'{"id": "i", "address": "h:99999", "version": "1", "speaks": [1, 2]}',
    b'{"kind": "client_id", "value": "x", "reason": "", "until": 1e400, "since": 0}',
    b'{"kind": "client_id", "value": "x", "reason": "", "until": NaN, "since": 0}',
    b'{"kind": "client_id", "value": "x", "reason": "\\ud800", "until": null, "since": 0}',
    b'{"kind": "peerhost", "value": "999.1.1.1/77", "reason": "", "until": -1e400, "since": 0}',
    b'{"what": "drain"}', b'{"what": "drain", "rate": "x", "to": 7}', b'{"what": "dance"}',
    b'{"name": "x", "rules": "let everybody in"}', b'{"name": "x", "rules": 7}',
    b'{"stream": "a b", "subject": "\\r\\n"}',
]  # fmt: skip
KINDS = [
    "node",
    "route",
    "home",
    "taken",
    "ban",
    "role",
    "ask",
    "out",
    "copy",
    "heir",
    "future",
    "",
]
PARTS = [b"a", b"b", b"me", b"\xff", b"", b"client_id", b"peerhost", b"role", b"user", b"x",
         b"0000000000000005", b"0000000000", b"no node"]  # fmt: skip
NAMES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda kind, parts: b"/".join([kind.encode(), *parts]),
        st.sampled_from(KINDS),
        st.lists(st.sampled_from(PARTS) | st.binary(max_size=8), max_size=4),
    ),
)  # fmt: skip
WORDS = st.sampled_from([
    "id", "address", "version", "speaks", "ready", "kind", "value", "reason", "until", "since",
    "name", "rules", "roles", "what", "rate", "to", "stream", "subject", "by", "epoch", "stage",
])  # fmt: skip
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(WORDS, some, max_size=6),
    max_leaves=12,
)
FRAMES = st.builds(
    lambda some: b"".join(frame(kind, packed(filters)) for kind, filters in some),
    st.lists(st.tuples(
        st.sampled_from([ADD, REMOVE, BEGIN, END, 9]),
        st.lists(st.sampled_from([b"t", b"a/#/b", b"$share/g", b"#", b"\xff", b"", b"x+"]),
                 max_size=3),
    ), max_size=4),
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.binary(max_size=60),
    JSON.map(lambda said: json.dumps(said).encode()),
    FRAMES,
)
LEASES = st.sampled_from([0, 1])


class Nothing:
    """No etcd: what is written is not."""

    async def transaction(self, when: Any, then: Any, otherwise: Any = ()) -> Answer:
        return Answer(True, 1)


class Here:
    """The node `me`, as far as etcd tells it of others."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.broker = self.memory.broker
        self.keys = Keys("c")
        self.mesh = NodeMesh(self.broker, lambda _: None, lambda _: None, lambda *_: None)
        etcd: Any = Nothing()
        self.clock = Clock()
        member: Any = SimpleNamespace(
            etcd=etcd, keys=self.keys, name="me", reactor=self.clock, epoch=1, lease=1
        )
        self.commons = Commons(self.broker, member)
        self.roles = Roles()
        self.commons.share(self.roles)
        self.commons.begin()
        self.asked: list[Any] = []
        self.commons.asked = self.asked.append
        self.told: list[tuple[str, str]] = []
        self.view = View("me", self.keys, self.mesh, self)
        self.revision = 10

    # As `Follower`.

    def joined(self, member: Member, node: Node | None) -> None:
        self.told.append(("joined", member.name))

    def left(self, member: Member, node: Node | None, lost: int) -> None:
        self.told.append(("left", member.name))

    def given_up(self, name: str, lost: int) -> None:
        self.told.append(("given up", name))

    def taken(self, client_id: str, by: str, revision: int) -> None:
        self.told.append(("taken", client_id))

    def everything(self, found: list[Said]) -> None:
        self.commons.all(found)

    def other(self, said: Said) -> None:
        self.commons.one(said)

    # What a test does.

    def put(self, *found: tuple[bytes, bytes], lease: int = 1) -> None:
        """The watch tells of these."""
        self.revision += 1
        kvs = [Kv(key, value, 5, self.revision, lease) for key, value in found]
        self.view.apply(self.revision, [(kv, False) for kv in kvs])
        self.view.tick()

    def gone(self, *keys: bytes) -> None:
        self.revision += 1
        self.view.apply(self.revision, [(Kv(key, b"", 0, self.revision), True) for key in keys])
        self.view.tick()

    def all(self, *found: tuple[bytes, bytes], lease: int = 1) -> None:
        """All that there is."""
        kvs = [Kv(key, value, 5, self.revision, lease) for key, value in sorted(found)]
        for _ in self.view.reset(kvs, self.revision):
            pass
        self.view.tick()

    @property
    def alarm(self) -> str:
        active = self.broker.alarms.active()
        return next((each.text for each in active if each.name == ALARM), "")

    @property
    def filters(self) -> set[str]:
        return set(self.mesh.nodes["a"].peer.filters)


def member(name: str) -> tuple[bytes, bytes]:
    return KEYS.node(name), Member(name, "id", "host:1", "1.0", (1, 4), True).dump()


def chunk(name: str, number: int, *filters: str) -> tuple[bytes, bytes]:
    value = frame(ADD, packed([each.encode() for each in filters]))
    return KEYS.route(name, 5, number), value


def ban(value: str) -> tuple[bytes, bytes]:
    return KEYS.ban("client_id", value), Ban("client_id", value, since=1.0).dump()


def role(name: str, rules: str = "") -> tuple[bytes, bytes]:
    return KEYS.role("role", name), msgspec.json.encode(Role(name=name, rules=rules))


GOOD = [member("a"), chunk("a", 0, "t/#"), ban("bad"), role("r")]
#: Each with a value or a name that cannot be read.
BAD = [
    (KEYS.node("zz"), b"{}"), (KEYS.node("zz") + b"/more", GOOD[0][1]),
    (KEYS.all + b"node/\xff", b""), (KEYS.node("no node"), GOOD[0][1]),
    (KEYS.route("a", 5, 1), b"\x02\xff\xff\xff\xff\x7f"),
    (KEYS.route("a", 5, 2), frame(ADD, packed([b"a/#/b"]))), (KEYS.all + b"route/a/zz/1", b""),
    (KEYS.taken("me", "c"), b"\xff"), (KEYS.ban("client_id", "other"), ban("bad")[1]),
    (KEYS.ban("client_id", "deep"), DEEP), (KEYS.all + b"ban/client_id/\xff", b""),
    (KEYS.role("role", "n"), role("m")[1]), role("rules", "let everybody in"),
    (KEYS.role("nothing", "n"), b"{}"), (KEYS.ask("me"), b"{}"), (KEYS.copy("a"), b"[]"),
    (KEYS.heir("a"), DEEP), (KEYS.all + b"future/a", b"{}"), (KEYS.all, b""),
    (KEYS.out("zz") + b"/more", b"1"),
]  # fmt: skip


@pytest.mark.parametrize("at_once", [True, False])
def test_what_cannot_be_read_is_passed_by_and_all_else_is_taken(at_once: bool) -> None:
    """The same by the watch and by a look at all."""
    here = Here()
    with capturedLogs() as lines:
        if at_once:
            here.all(*GOOD, *BAD)
            here.all(*GOOD, *BAD)
        else:
            here.put(*BAD[:5], *GOOD, *BAD[5:])
            here.put(chunk("a", 9, "later"))
    assert set(here.view.members) == {"a"} and not here.view.heirs and not here.view.copies
    assert here.filters == ({"t/#"} if at_once else {"t/#", "later"})
    assert here.mesh.applied == here.revision
    assert [each.value for each in here.broker.bans.list()] == ["bad"]
    assert set(here.roles.roles) == {"r"} and not here.asked and not here.view.outs
    unreadable = here.keys.unreadable
    assert set(unreadable.keys) == {key for key, _ in BAD}
    assert unreadable.count == len(BAD)  # once, however often it is read
    assert "expected" in here.alarm and f"and {len(BAD) - 5} more" in here.alarm
    (line,) = [each for each in lines if each["log_level"] is LogLevel.error]
    assert line["key"].startswith("/mqttd/c/v1/all/") and "expected" in line["expected"]
    if at_once:
        here.all(*GOOD)
    else:
        here.gone(*(key for key, _ in BAD[1:]))
        assert here.alarm
        here.put((KEYS.node("zz"), GOOD[0][1]))  # it can be read now
    assert not here.alarm and not unreadable.keys


def test_a_member_that_cannot_be_read_any_more_is_none() -> None:
    here = Here()
    here.put(member("a"), chunk("a", 0, "t"))
    here.put((KEYS.node("a"), b"{}"))
    assert not here.view.members and ("left", "a") in here.told
    here.put(member("a"), chunk("a", 0, "t"))
    assert here.filters == {"t"} and not here.alarm


def test_a_ban_and_a_role_that_are_known_stay_while_they_cannot_be_read() -> None:
    """And are not written over by who knows them."""
    here = Here()
    here.all(*GOOD)
    spoilt = [(KEYS.ban("client_id", "bad"), DEEP), (KEYS.role("role", "r"), b"\xff")]
    here.put(*spoilt)
    here.all(*GOOD[:2], *spoilt)
    assert here.broker.bans.match("bad", None, "") is not None and "r" in here.roles.roles
    assert not here.commons._pending
    here.gone(*(key for key, _ in spoilt))
    assert here.broker.bans.match("bad", None, "") is None and not here.roles.roles


def test_one_role_that_cannot_be_does_not_keep_the_others_out() -> None:
    here = Here()
    user = RoleMember(username="u", roles=["r", "rules"])
    here.all(role("r"), role("rules", "let everybody in"),
             (KEYS.role("user", "u"), msgspec.json.encode(user)))  # fmt: skip
    assert here.roles.members["u"].roles == ["r"]


@given(st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=8), LEASES)
@example([(b"node/zz", DEEP), (b"ban/client_id/x", DEEP)], 0)
def test_no_bytes_stop_a_node(some: list[tuple[bytes, bytes]], lease: int) -> None:
    """Whatever they are, the route that comes behind them is in the table."""
    here = Here()
    wild = [(KEYS.all + name, value) for name, value in some]
    here.put(member("b"), (KEYS.route("b", 5, 0), b""))
    here.put(*wild, lease=lease)
    here.all(*{**dict(wild), **dict(GOOD)}.items(), lease=lease)
    assert "t/#" in here.filters
    here.put(*wild, lease=lease)
    here.put(member("a"), chunk("a", 7, "last"))
    assert "last" in here.filters
    client = here.memory.connect("publisher")
    for topic in ("a/x/b", "t/x", "last", "x"):  # a filter that none can be would end it
        client.send(Publish(topic, b"", 1, packet_id=1))
        (answer,) = client.take()
        assert isinstance(answer, Puback)
    here.gone(*(key for key, _ in wild))
    assert not here.alarm


@given(FRAMES | VALUES)
def test_a_chunk_is_read_or_is_a_value_error(value: bytes) -> None:
    try:
        read = chunk_of(value)
    except ValueError:
        return
    assert all(kind in (ADD, REMOVE, BEGIN, END) for kind, _ in read)


@given(VALUES | st.binary(max_size=20), st.binary(max_size=20))
def test_whoever_has_a_client_id_is_a_node_or_nobody(value: bytes, client_id: bytes) -> None:
    keys = Keys("c")
    kv = Kv(keys.own("") + client_id, value, 1, 1)
    owner = keys.owner(kv)
    assert owner == Owner("") or owner.node.isascii()
    assert not keys.unreadable.keys  # who claims it writes it anew
    assert len(keys.owned([kv])) <= 1
    assert isinstance(keys.heir_in(kv), Heir | None)
    assert isinstance(keys.copy_in(kv), Copy | None)


class Wills:
    """An etcd that has these keys."""

    def __init__(self, *found: Kv) -> None:
        self.found = found

    async def pages_of(self, start: bytes, end: bytes, limit: int) -> AsyncIterator[Answer]:
        yield Answer(True, 1, self.found)

    async def transaction(self, when: Any, then: Any, otherwise: Any = ()) -> Answer:
        return Answer(True, 1, self.found)


def heirs_of(etcd: Any) -> tuple[Heirs, Clock]:
    clock = Clock()
    heirs = Heirs(etcd, Keys("c"), "me", clock, lambda *_: False, lambda: 0, lambda name: False)
    heirs.serve(MemoryBroker().broker)
    return heirs, clock


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5))
@example([(b"zz", b""), (b"a/1/x", DEEP), (b"a/1/x", msgspec.msgpack.encode([None, -1, 0, b""]))])
def test_no_will_stops_a_start(some: list[tuple[bytes, bytes]]) -> None:
    wills = Wills(*(Kv(KEYS.wills + name, value, 1, 1) for name, value in some))
    heirs, _ = heirs_of(wills)
    swept: list[Any] = []
    Deferred.fromCoroutine(heirs.sweep()).addBoth(swept.append)
    assert swept == [None]
    assert {key[len(KEYS.wills) :] for key in heirs.keys.unreadable.keys} == {
        name for name, _ in some
    }


def test_a_will_that_cannot_be_read_is_forgotten_when_it_is_gone() -> None:
    etcd = Wills(Kv(KEYS.will("a", 1, "x"), b"?", 1, 1))
    heirs, clock = heirs_of(etcd)
    Deferred.fromCoroutine(heirs.sweep())
    clock.advance(60)
    assert heirs.keys.unreadable.keys
    etcd.found = ()
    clock.advance(60)
    assert not heirs.keys.unreadable.keys


class Register:
    """An etcd that has something under the name of the node that begins."""

    endpoints = ("http://127.0.0.1:1",)
    token = ""

    def __init__(self, lease: int) -> None:
        self.there: Kv | None = Kv(KEYS.node("me"), b"{}", 1, 3, lease)

    async def lease_grant(self, seconds: int) -> int:
        return 7

    async def transaction(self, when: Any, then: Any, otherwise: Any = ()) -> Answer:
        if self.there is None:
            return Answer(True, 9)
        if when[0].get("mod_revision") == "3":
            self.there = None
            return Answer(True, 8)
        return Answer(False, 8, (self.there,))


def test_a_key_of_this_node_that_no_node_has_written_is_written_over() -> None:
    settings = Settings(keep_sessions=0)
    etcd: Any = Register(0)
    keys = Keys("c")
    own = Member("me", "id", "host:1", "1.0", (1, 4))
    membership = Membership(etcd, keys, settings, "me", "id", Clock(), lambda: own)
    membership.keeper.begin = lambda *_: None  # type: ignore[method-assign]
    Deferred.fromCoroutine(membership.register(0.0))
    assert membership.epoch == 9 and keys.unreadable.count == 1


def test_a_line_names_any_key_and_only_so_many_are_remembered() -> None:
    assert shown(b"/a/\xff\n\xe2\x80\xae\xc3\xbc") == "/a/\\xff\\n\\u202e\u00fc"
    assert len(shown(b"x" * 1_000_000)) < 200
    now = [100.0]
    unreadable = Unreadable(lambda: now[0])
    alarms = MemoryBroker().broker.alarms
    with capturedLogs() as lines:
        for number in range(MOST + 5):
            unreadable.note(Kv(b"k%d" % number, b"", 1, 1), "expected nothing")
        now[0] += 60
        unreadable.note(Kv(b"long" * 2000, b"", 1, 1), "expected nothing")
    assert [each["more"] for each in lines] == [0, MOST + 4]
    assert len(unreadable.keys) == MOST
    assert unreadable.counters() == {
        "cluster_unreadable": MOST + 6, "cluster_unreadable_keys": MOST + 6
    }  # fmt: skip
    unreadable.tick(alarms)
    (alarm,) = alarms.active()
    assert f"and {MOST + 1} more" in alarm.text
    unreadable.again(b"")
    unreadable.tick(alarms)
    assert not alarms.active()
