"""A client id that is online at one node is not another user's at the others."""

from __future__ import annotations

import itertools
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.ctl import told
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import LASTS, Nodes, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)
#: Whoever shows a name is that user.
AUTH = {"chain": ["anonymous"], "anonymous": "any"}
STAYS = [(mq.SESSION_EXPIRY, 600)]
REFUSED = {mq.V311: 5, mq.V5: 0x87}
_serial = itertools.count()

Connect = Callable[..., RawClient]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def nodes(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    names: dict[str, dict[str, object]] = {name: {**LASTS} for name in "abc"}
    folder, store = tmp_path_factory.mktemp("users"), {"kind": "sqlite"}
    of = {"auth": AUTH, "store": store, "session": {"owner": "user"}}
    started = start_nodes(folder, etcd, names, **of)
    for name, other in ("ab", "bc", "ca"):
        assert started[name].says(f"node {other} is linked")
    yield started
    for node in started.values():
        node.stop()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(
        node: str, client_id: str, user: str | None, version: int = mq.V5, stays: bool = False,
        will: mq.Will | None = None, reason: int = 0,
    ) -> RawClient:  # fmt: skip
        client = RawClient(nodes[node].port, version, deadline=20.0)
        clients.append(client)
        props = STAYS if stays and version == mq.V5 else []
        fields = {} if user is None else {"username": user}
        return client.connect(
            client_id, clean=not stays, props=props, will=will, reason=reason, **fields
        )

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def name() -> str:
    return f"u{next(_serial)}"


def value_of(etcd: Etcd, client_id: str) -> list[str]:
    """The node that has a client id, from whom it was claimed, and whose it is."""
    key = b64encode(f"/mqttd/mqttd/v1/own/{client_id}".encode()).decode()
    found = etcd.ask("/v3/kv/range", {"key": key}).get("kvs", [])
    return b64decode(found[0]["value"]).decode().split("\0") if found else []


@pytest.mark.parametrize("theirs", ["alice", None], ids=["user", "anonymous"])
@pytest.mark.parametrize("stays", [False, True], ids=["ends", "stays"])
@pytest.mark.parametrize("version", [mq.V311, mq.V5])
def test_a_client_that_is_online_notices_nothing_of_another_user(
    connect: Connect, name: str, version: int, stays: bool, theirs: str | None
) -> None:
    """Refused with 0x87 at each node, as on one; no 0x8E, no will, and what is published comes."""
    watcher = connect("b", f"{name}-watcher", "alice")
    watcher.subscribe(f"{name}/will", qos=1)
    will = mq.Will(f"{name}/will", b"gone", qos=1)
    alice = connect("c", name, theirs, version, stays, will)
    alice.subscribe(f"{name}/t", qos=1)
    for node, as_version, as_stays in itertools.product("abc", REFUSED, (False, True)):
        connect(node, name, "mallory", as_version, as_stays, reason=REFUSED[as_version])
    alice.expect_nothing()
    watcher.publish(f"{name}/t", b"1", qos=1)
    assert alice.message().payload == b"1"
    watcher.publish(f"{name}/will", b"none before this", qos=1)
    assert watcher.message().payload == b"none before this"
    again = connect("a", name, theirs, version, stays)  # whose it is may go where he likes
    assert again.resumed is stays


def test_a_session_whose_client_is_away_stays_its_user_s(
    nodes: Nodes, connect: Connect, name: str
) -> None:
    connect("c", name, "alice", stays=True).subscribe(name, qos=1)
    alice = connect("a", name, "alice", stays=True)
    alice.disconnect()
    for node in "bca":
        connect(node, name, "mallory", stays=True, reason=0x87)
    connect("b", f"{name}-other", "bob").publish(name, b"1", qos=1)
    alice = connect("b", name, "alice", stays=True)
    assert alice.resumed
    assert alice.message().payload == b"1"


def test_what_has_ended_is_for_who_comes_first(connect: Connect, etcd: Etcd, name: str) -> None:
    connect("c", name, "alice").disconnect()
    until(lambda: not value_of(etcd, name), "its end")
    connect("a", name, "mallory").ping()
    assert value_of(etcd, name)[0] == "a"
    assert "mallory" not in "".join(value_of(etcd, name))
    connect("c", name, "alice", reason=0x87)


def test_of_users_that_come_at_once_one_has_it(nodes: Nodes, name: str) -> None:
    """And keeps it: the others are refused, not let in one after the other."""
    users = {node: f"of-{node}" for node in "abc"}

    def come(at: tuple[str, str]) -> RawClient:
        node, client_id = at
        client = RawClient(nodes[node].port, mq.V5, deadline=30.0)
        client.send(mq.connect(client_id, mq.V5, username=users[node]))
        client.connack = client.expect(mq.CONNACK)
        return client

    ids = [f"{name}-{n}" for n in range(20)]
    with ThreadPoolExecutor(12) as pool:
        came = list(pool.map(come, [(node, each) for each in ids for node in "abc"]))
    for at in range(0, len(came), 3):
        codes = sorted(each.connack.reason for each in came[at : at + 3] if each.connack)
        assert codes == [0, 0x87, 0x87]
    for each in came:
        if each.connack is not None and not each.connack.reason:
            each.expect_nothing()
        each.close()


def test_where_the_client_id_decides_it_is_whoever_shows_it(
    nodes: Nodes, connect: Connect, etcd: Etcd, name: str
) -> None:
    """By a reload, at all nodes; and no more after another."""
    alice = connect("c", name, "alice", stays=True)
    until(lambda: len(value_of(etcd, name)) == 3, "whose it is")
    _reload(nodes, "client_id")
    until(lambda: value_of(etcd, name) == ["c"], "that this does not count")
    mallory = connect("a", name, "mallory", stays=True)
    assert not mallory.resumed
    alice.expect(mq.DISCONNECT, reason=0x8E)
    assert len(value_of(etcd, name)) < 3
    _reload(nodes, "user")
    until(lambda: len(value_of(etcd, name)) == 3, "whose it is")
    connect("b", name, "alice", stays=True, reason=0x87)
    mallory.expect_nothing()


def _reload(nodes: Nodes, owner: str) -> None:
    for node in nodes.values():
        assert node.directory is not None
        file = node.directory / "etc/mqttd.conf"
        text, count = re.subn(r'(?m)^owner = ".*"$', f'owner = "{owner}"', file.read_text())
        assert count == 1
        file.write_text(text)
        told(node, "reload", "--yes")


def test_a_session_that_waits_for_its_node_is_its_user_s(
    etcd: Etcd, tmp_path: Path, name: str
) -> None:
    """Its user is asked to come again, another one is refused; so after the node is back."""
    of = {"auth": AUTH, "store": {"kind": "sqlite"}}
    nodes = start_nodes(tmp_path, etcd, {"x": {}, "y": {}}, **of)
    try:
        assert nodes["x"].says("node y is linked")
        alice = RawClient(nodes["y"].port, mq.V5)
        alice.connect(name, clean=False, props=STAYS, username="alice")
        alice.subscribe(name, qos=1)
        nodes["y"].stop(hard=True)
        alice.close()
        assert nodes["x"].says("node y is gone")
        for user, reason in (("mallory", 0x87), ("alice", 0x88)):
            client = RawClient(nodes["x"].port, mq.V5, deadline=20.0)
            client.connect(name, clean=False, props=STAYS, username=user, reason=reason)
            client.close()
        nodes["y"] = start_node(tmp_path, etcd, "y", **of)
        for user, reason in (("mallory", 0x87), ("alice", 0)):
            client = RawClient(nodes["x"].port, mq.V5, deadline=20.0)
            client.connect(name, clean=False, props=STAYS, username=user, reason=reason)
        assert client.resumed
        client.close()
    finally:
        for node in nodes.values():
            node.stop()
