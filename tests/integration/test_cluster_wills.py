"""The wills of clients whose node is killed: published once, by one of those that are left."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, asked, let_in, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


def wills_of(etcd: Etcd, node: str) -> set[str]:
    """The clients of whose wills etcd knows."""
    prefix = f"/mqttd/mqttd/v1/will/{node}/".encode()
    body = {"key": b64encode(prefix).decode(), "range_end": b64encode(prefix[:-1] + b"0").decode()}
    found = etcd.ask("/v3/kv/range", body).get("kvs", ())
    return {b64decode(each["key"]).decode().rpartition("/")[2] for each in found}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_wills_of_a_killed_node_are_published_once(etcd: Etcd, tmp_path: Path, store: str) -> None:
    """Without delay, after it, and not at all where the client is elsewhere in time."""
    names: dict[str, dict[str, Any]] = {name: {"keep_sessions": "0s"} for name in "abc"}
    nodes = start_nodes(tmp_path, etcd, names, store={"kind": store})
    stays = [(mq.SESSION_EXPIRY, 600)]
    try:
        watchers = [RawClient(nodes[name].port, mq.V5, deadline=20.0).connect() for name in "ab"]
        for watcher in watchers:
            watcher.subscribe("w/#", qos=1)
        lost = nodes.pop("c")
        there = [RawClient(lost.port, mq.V5) for _ in range(22)]
        for n in range(20):
            there[n].connect(f"w{n}", will=mq.Will(f"w/{n}", b"gone", qos=1))
        late = mq.Will("w/late", b"late", qos=1, props=[(mq.WILL_DELAY, 2)])
        there[20].connect("late", will=late, props=stays)
        back = mq.Will("w/back", b"no", qos=1, props=[(mq.WILL_DELAY, 6)])
        there[21].connect("back", will=back, clean=False, props=stays)
        goes = RawClient(lost.port, mq.V5).connect("goes", will=mq.Will("w/goes", b"no"))
        # Known to all before it says goodbye: a kill between the two would be another test.
        until(lambda: "goes" in wills_of(etcd, "c"), "its will")
        goes.disconnect()
        until(lambda: wills_of(etcd, "c") == {*(f"w{n}" for n in range(20)), "late", "back"}, "it")
        lost.stop(hard=True)
        returned = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        returned.connect("back", clean=False, props=stays)
        wanted = sorted([f"w/{n}" for n in range(20)] + ["w/late"])
        for watcher in watchers:
            assert sorted(watcher.message().topic for _ in wanted) == wanted
        # It comes back, and what it has kept is nobody's will any more.
        kept = {"kind": store}
        nodes["c"] = start_node(tmp_path, etcd, "c", store=kept, cluster={"keep_sessions": "0s"})
        publisher = RawClient(nodes["c"].port, mq.V5).connect()
        publisher.publish("w/end", b"", qos=1)
        for watcher in watchers:
            assert watcher.message().topic == "w/end"
    finally:
        for node in nodes.values():
            node.stop()


def test_a_node_that_was_alone_publishes_its_own_once(etcd: Etcd, tmp_path: Path) -> None:
    """Its store has them, and etcd too."""
    stays = [(mq.SESSION_EXPIRY, 600)]
    node = start_node(tmp_path, etcd, "a", store={"kind": "sqlite"})
    try:
        watcher = RawClient(node.port, mq.V5).connect("watcher", clean=False, props=stays)
        watcher.subscribe("w/#", qos=1)
        client = RawClient(node.port, mq.V5).connect("c", will=mq.Will("w/c", b"gone", qos=1))
        until(lambda: wills_of(etcd, "a") == {"c"}, "its will in etcd")
        node.stop(hard=True)
        client.close()
        node = start_node(tmp_path, etcd, "a", store={"kind": "sqlite"})
        until(lambda: not wills_of(etcd, "a"), "its will taken")
        watcher = RawClient(node.port, mq.V5).connect("watcher", clean=False, props=stays)
        assert watcher.resumed
        watcher.message(topic="w/c")
        watcher.publish("w/end", b"", qos=1)
        watcher.message(topic="w/end")
    finally:
        node.stop()


def revision_of(etcd: Etcd, node: str, client: str) -> int:
    """When the will of a client was last written; 0: it is not there."""
    start = f"/mqttd/mqttd/v1/will/{node}/".encode()
    body = {"key": b64encode(start).decode(), "range_end": b64encode(start[:-1] + b"0").decode()}
    for each in etcd.ask("/v3/kv/range", body).get("kvs", ()):
        if b64decode(each["key"]).endswith(f"/{client}".encode()):
            return int(each["mod_revision"])
    return 0


def test_what_is_there_is_not_written_again(etcd: Etcd, tmp_path: Path) -> None:
    node = start_node(tmp_path, etcd, "a")
    try:
        wills = {f"w{n}": mq.Will(f"w/{n}", bytes(60_000)) for n in range(10)}
        there = [RawClient(node.port, mq.V5).connect(name, will=wills[name]) for name in wills]
        until(lambda: wills_of(etcd, "a") == set(wills), "all of them")
        assert asked(node, "metrics")["gauges"]["cluster_wills_left_out"] == 0
        # The same client once more, in place of the one before; then another, to be sure.
        before = revision_of(etcd, "a", "w0")
        there += [
            RawClient(node.port, mq.V5).connect("w0", will=wills["w0"]),
            RawClient(node.port, mq.V5).connect("end", will=mq.Will("w/end", b"end")),
        ]
        until(lambda: "end" in wills_of(etcd, "a"), "the last")
        assert revision_of(etcd, "a", "w0") == before
        for client in there:
            client.close()
    finally:
        node.stop()


@pytest.mark.parametrize("hard", [True, False])
def test_a_delayed_will_comes_once_though_its_node_is_back(
    etcd: Etcd, tmp_path: Path, hard: bool
) -> None:
    """In its time, by who is left, of a node that was killed as of one that was stopped."""
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store={"kind": "sqlite"})
    try:
        watcher = RawClient(nodes["a"].port, mq.V5, deadline=20.0).connect()
        watcher.subscribe("w/#", qos=1)
        node = nodes.pop("b")
        there = []
        for name, expiry in (("late", 600), ("moves", 600), ("short", 1)):
            will = mq.Will(f"w/{name}", b"gone", qos=1, props=[(mq.WILL_DELAY, 2)])
            client = RawClient(node.port, mq.V5)
            client.connect(name, will=will, clean=False, props=[(mq.SESSION_EXPIRY, expiry)])
            there.append(client)
        until(lambda: wills_of(etcd, "b") == {"late", "moves", "short"}, "all of them")
        node.stop(hard=hard)
        wanted = ["w/late", "w/moves", "w/short"]
        assert sorted(watcher.message().topic for _ in wanted) == wanted
        node = nodes["b"] = start_node(tmp_path, etcd, "b", store={"kind": "sqlite"})
        assert let_in(nodes["a"], "moves").resumed
        # As late after the restart as those would be if they came once more.
        will = mq.Will("w/end", b"gone", qos=1, props=[(mq.WILL_DELAY, 2)])
        RawClient(node.port, mq.V5).connect("end", will=will, props=STAYS).close()
        assert watcher.message().topic == "w/end"
    finally:
        for node in nodes.values():
            node.stop()
