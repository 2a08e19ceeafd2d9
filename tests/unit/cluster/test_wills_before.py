"""Wills with delay of a node that is gone, and back: published once, by the others or by itself."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Json
from mqttd.cluster.wills.heirs import Heirs
from mqttd.codec.packets import Subscribe, Subscription
from mqttd.session.ground.message import Message
from mqttd.session.session import Session
from tests.support.memory import MemoryBroker, MemoryClient
from tests.support.shared_etcd import KEYS, Asked, Store

DELAY = 3


class Etcd(Asked):
    """One that answers at once, ranges, too."""

    async def ask(self, path: str, body: Json, patience: float = 2.0) -> Json:
        if path.endswith("txn"):
            return await super().ask(path, body, patience)
        start, end = b64decode(body["key"]), b64decode(body["range_end"])
        keys = [key for key in self.store.kept if start <= b64decode(key) < end]
        if path.endswith("deleterange"):
            for key in keys:
                del self.store.kept[key]
            return {"header": {"revision": self.store.revision}}
        names = ("value", "create_revision", "mod_revision", "lease")
        found = [{"key": k, **dict(zip(names, self.store.kept[k], strict=True))} for k in keys]
        return {"kvs": found, "header": {"revision": self.store.revision}}


class Net:
    """An etcd, a clock, and which nodes are there, in which epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store, self.clock = Store(), Clock()
        self.there: dict[str, int] = {}
        self.nodes: list[Node] = []

    def put(self, key: bytes, value: bytes) -> int:
        """What somebody else writes; the revision."""
        change = {"key": text(key), "value": text(value), "lease": "0"}
        self.store.transact({"success": [{"request_put": change}]})
        return self.store.revision

    def gone(self, name: str) -> None:
        """A node is, and the others hear of it."""
        epoch = self.there.pop(name)
        self.store.kept.pop(text(KEYS.node(name)))
        self.nodes = [node for node in self.nodes if node.name != name]
        for node in self.nodes:
            node.heirs.left(name, epoch)

    def run(self, seconds: float) -> None:
        """Time goes by."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            for node in self.nodes:
                node.memory.advance(100)


class Node:
    """One of them; `kept`: clients that are away so many seconds, whose wills its store has."""

    def __init__(self, net: Net, name: str, kept: dict[str, int] | None = None) -> None:
        self.net, self.name = net, name
        self.clients: dict[str, MemoryClient] = {}
        self.memory = MemoryBroker()
        self.broker = self.memory.broker
        there = net.there
        self.heirs = Heirs(
            Etcd(net.clock, net.store, lambda: ("", 0)), KEYS, name, net.clock,
            lambda node, epoch: there.get(node) == epoch, lambda: 0, there.__contains__,
        )  # fmt: skip
        self.heirs.before.note = str(net.path / name)
        self.heirs.serve(self.broker)
        for client_id, away in (kept or {}).items():
            session = Session(self.broker, client_id, None)
            session.restored(0, 600, self.broker.now - away * 1000, True)
            session.restore_will(will_of(client_id), DELAY)
            self.broker.registry.put_back(session)
            self.broker.registry.resume_waiting(session)
        net.there[name] = epoch = net.put(KEYS.node(name), b"")
        self.heirs.begin(epoch, 0)
        net.nodes.append(self)
        self.wait(self.heirs.settle())
        self.wait(self.heirs.sweep())

    def open(self) -> Node:
        """Let clients in."""
        self.hears = self.memory.connect("hears")
        self.hears.send(Subscribe(1, [Subscription("#", 1)]))
        self.hears.take()
        self.heirs.release()
        return self

    def wait(self, what: Any) -> None:
        """Until it is done."""
        done: list[Any] = []
        Deferred.fromCoroutine(what).addBoth(done.append)
        for _ in range(200):
            if done:
                break
            self.net.clock.advance(0.1)
        assert done == [None]

    def heard(self) -> list[str]:
        """What wills have come here."""
        self.broker.perform()
        return sorted(each.topic for each in self.hears.published())

    def client(self, client_id: str) -> None:
        """One that is there, with a will."""
        self.clients[client_id] = self.memory.connect(client_id, clean=False)
        session = self.broker.sessions[client_id]
        session.set_expiry(600)
        session.set_will(will_of(client_id), DELAY)
        self.net.put(KEYS.own(client_id), self.name.encode())
        self.net.run(0.1)
        assert self.net.store.kept.get(self.key(client_id))

    def key(self, client_id: str) -> str:
        """Where etcd has its will."""
        return text(KEYS.will(self.name, self.net.there[self.name], client_id))

    def stop(self, alone: bool) -> None:
        """As by SIGTERM."""
        for client in self.clients.values():
            client.drop()
        ended = self.heirs.end(alone)
        for _ in range(5):
            self.net.clock.advance(0.1)
        assert ended.called
        self.net.gone(self.name)


def text(key: bytes) -> str:
    return b64encode(key).decode()


def will_of(client_id: str) -> Message:
    return Message(0, client_id, b"gone", 1, False, None, client_id, None, 0)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    yield Net(tmp_path)


def wills(net: Net) -> int:
    """How many etcd has."""
    return sum(b64decode(key).startswith(KEYS.wills) for key in net.store.kept)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_others_have_published_is_no_will_when_its_node_is_back(
    net: Net, stopped: bool
) -> None:
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.client("c")
    b.stop(False) if stopped else net.gone("b")
    net.run(DELAY - 0.5)
    assert not a.heard()
    net.run(1.0)
    assert a.heard() == ["c"]
    b = Node(net, "b", {"c": 4 if stopped else 0})
    assert b.broker.sessions["c"].will is None  # so none goes along with it
    b.open()
    net.run(10)
    assert not b.heard() and not a.heard() and not wills(net)


@pytest.mark.parametrize("away", [0, 2, 9])
@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_back_before_that_has_its_wills_itself(net: Net, stopped: bool, away: int) -> None:
    """In their time; nobody else publishes them, however late others hear that it is there."""
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.client("c")
    b.stop(False) if stopped else net.gone("b")
    net.run(1.0)
    b = Node(net, "b", {"c": away})
    there, a.heirs.is_member = a.heirs.is_member, lambda name: False
    net.run(1.0)
    b.open()
    if away < DELAY:
        net.run(DELAY - away - 1.5)
        assert not b.heard()
    net.run(6)
    a.heirs.is_member = there
    assert b.heard() == ["c"] and not a.heard() and not wills(net)


def test_a_node_that_was_alone_publishes_what_its_store_has(net: Net) -> None:
    b = Node(net, "b").open()
    b.client("c")
    b.stop(True)
    assert not wills(net)
    Node(net, "a").open()
    b = Node(net, "b", {"c": 9}).open()
    net.run(1)
    assert b.heard() == ["c"]


def test_what_is_kept_with_its_session_is_nobody_else_s(net: Net) -> None:
    """`session.wills_at_stop = "keep"`."""
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.broker.settings.wills_at_stop = "keep"
    b.client("c")
    b.stop(False)
    net.run(10)
    b = Node(net, "b", {"c": 9}).open()
    net.run(1)
    assert b.heard() == ["c"] and not a.heard()


def test_what_etcd_does_not_have_of_a_node_that_is_stopped_its_store_has(net: Net) -> None:
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.client("c")
    b.heirs.written.most = 0
    b.memory.connect("large", clean=False)
    b.broker.sessions["large"].set_will(will_of("large"), DELAY)
    b.broker.sessions["large"].set_expiry(600)
    b.stop(False)
    net.run(10)
    assert a.heard() == ["c"]
    b = Node(net, "b", {"c": 10, "large": 10}).open()
    net.run(1)
    assert b.heard() == ["large"]


def test_a_node_that_has_kept_nothing_publishes_what_etcd_has(net: Net) -> None:
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.client("c")
    net.gone("b")
    net.run(1)
    b = Node(net, "b").open()
    net.run(DELAY + 1)
    assert b.heard() == ["c"] and not a.heard() and not wills(net)


def test_a_node_that_was_gone_for_its_lease_alone(net: Net) -> None:
    """What others have published of clients that are away; of those that are there it stays."""
    a, b = Node(net, "a").open(), Node(net, "b").open()
    b.client("there")
    b.client("away")
    b.clients["away"].drop()
    net.gone("b")
    net.run(DELAY + 0.5)
    assert a.heard() == ["away", "there"]
    net.there["b"] = epoch = net.put(KEYS.node("b"), b"")
    net.nodes.append(b)
    b.heirs.begin(epoch, 0)
    net.clock.advance(0)
    net.run(10)
    assert not b.heard() and b.broker.sessions["there"].will is not None
    assert wills(net) == 1
