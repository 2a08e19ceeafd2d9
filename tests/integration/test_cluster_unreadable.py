"""Keys in etcd that a node cannot read: each is passed by and said, and all else goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, Nodes, asked, let_in, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)
BASE = b"/mqttd/mqttd/v1/"
#: What no reader expects.
ODD = [b"", b"{}", b"null", b"[]", b"\xff\xfe", b"[" * 20_000, b"\x02\xff\xff\xff\xff\x7f"]
#: Of these names all are bad with some of these values; with a name that is none all of them.
KEYS = [
    b"all/node/zz", b"all/node/", b"all/node/b/more", b"all/node/\xff", b"all/home/zz",
    b"all/copy/zz", b"all/heir/zz", b"all/ask/zz", b"all/taken/a/mon", b"all/out/zz/more",
    b"all/ban/client_id/mon", b"all/ban/client_id/\xff", b"all/ban/peerhost/no address",
    b"all/role/role/mon", b"all/role/nothing/mon", b"all/route/b/zz/1", b"all/future/b",
    b"all/", b"own/never-here", b"own/\xff",
]  # fmt: skip
_serial = itertools.count()


@pytest.fixture
def nodes(etcd: Etcd, tmp_path: Path) -> Iterator[Nodes]:
    started = start_nodes(tmp_path, etcd, {"a": {}, "b": {}})
    assert started["a"].says("node b is linked") and started["b"].says("node a is linked")
    yield started
    for name, node in started.items():
        node.stop()
        print(f"--- {name}\n{node.output[-4000:]}")


def alarm(node: Broker) -> str:
    """The text of the alarm; empty: it is not active."""
    active = asked(node, "alarms")["alarms"]
    return next((str(each["text"]) for each in active if each["name"] == "cluster_unreadable"), "")


def metric(node: Broker, name: str) -> Any:
    return asked(node, "metrics")["gauges"][name]


def cross(here: Broker, there: Broker) -> None:
    """What is published there after a SUBACK here comes."""
    topic = f"crossing/{next(_serial)}"
    subscriber = RawClient(here.port, mq.V5).connect()
    publisher = RawClient(there.port, mq.V5).connect()
    assert subscriber.subscribe(topic, qos=1) == [1], topic
    publisher.publish(topic, b"there", qos=1)
    assert subscriber.payloads(1) == [b"there"]
    subscriber.disconnect()
    publisher.disconnect()


def test_what_cannot_be_read_is_passed_by_and_said(
    etcd: Etcd, nodes: Nodes, tmp_path: Path
) -> None:
    """As it comes by the watch, and by a node that begins with it there."""
    a, b = nodes["a"], nodes["b"]
    for value in ODD:
        for key in KEYS:
            etcd.put(BASE + key, value)
        cross(a, b)
        cross(b, a)
    for node in (a, b):
        text = until(lambda node=node: alarm(node), "the alarm")
        assert "/mqttd/mqttd/v1/all/" in text and "expected" in text
        assert node.says("cannot be read, and is passed by: expected")
        assert metric(node, "cluster_unreadable") > 50
        assert metric(node, "cluster_unreadable_keys") > 10
        assert "is not watched" not in node.output and "Traceback" not in node.output
    nodes["c"] = c = start_node(tmp_path, etcd, "c")
    cross(c, a)
    cross(b, c)
    assert {each["node"] for each in asked(c, "cluster", "nodes")["nodes"]} == {"a", "b", "c"}
    until(lambda: alarm(c), "the alarm of one that begins with it there")
    nodes.pop("b").stop()
    assert a.says("node b is gone") and c.says("node b is gone")
    for key in KEYS:
        etcd.remove(BASE + key)
    for node in (a, c):
        until(lambda node=node: not alarm(node), "its end", 90)
        assert metric(node, "cluster_unreadable_keys") == 0
        assert "Traceback" not in node.output
    cross(a, c)


def test_a_key_of_a_node_itself_that_is_written_over_is_written_anew(
    etcd: Etcd, nodes: Nodes
) -> None:
    a, b = nodes["a"], nodes["b"]
    etcd.put(BASE + b"all/node/a", b"{}")
    assert b.says("node a is gone") and b.says("node a is linked", 2)
    cross(a, b)
    cross(b, a)
    until(lambda: not alarm(b), "its end")


def test_a_client_id_of_whom_nobody_can_read_who_has_it_is_nobodys(
    etcd: Etcd, nodes: Nodes
) -> None:
    for number, value in enumerate([b"", b"\xff", b"{}", b"a/b", b"\0a"]):
        etcd.put(BASE + b"own/client-%d" % number, value)
        client = RawClient(nodes["a"].port, mq.V5).connect(
            f"client-{number}", clean=False, props=STAYS
        )
        client.subscribe("t", qos=1)
        client.disconnect()
        moved = let_in(nodes["b"], f"client-{number}")
        assert moved.resumed
        moved.disconnect()


def test_wills_that_cannot_be_read_do_not_keep_a_node_from_starting(
    etcd: Etcd, tmp_path: Path
) -> None:
    for number, name in enumerate([b"zz/1/x", b"zz/zz/x", b"zz", b"\xff/1/x"]):
        etcd.put(BASE + b"will/" + name, ODD[number])
    node = start_node(tmp_path, etcd, "a")
    try:
        text = until(lambda: alarm(node), "the alarm")
        assert "/will/zz: expected" in text and metric(node, "cluster_unreadable_keys") == 4
    finally:
        node.stop()
        print(node.output[-4000:])
