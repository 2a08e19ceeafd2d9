"""Nodes that are far from each other: much is on its way, and what waits for work is bounded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.cut import Line
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, asked, start_node
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

#: Seconds that bytes take, each way.
FAR = 0.05
LARGE, MANY = 8192, 3000


def test_a_stream_goes_over_a_long_way_as_over_a_short_one(etcd: Etcd, tmp_path: Path) -> None:
    """24 MB, of which 64 KiB at a time, as over a short way, would be 37 seconds."""
    inner = free_port()
    line = Line(inner, FAR)
    places = {"bind": f"127.0.0.1:{inner}", "advertise": f"127.0.0.1:{line.port}"}
    b = start_node(tmp_path, etcd, "b", cluster=places)
    a = start_node(tmp_path, etcd, "a")
    try:
        reader = RawClient(b.port, mq.V5, deadline=30.0).connect("reader")
        reader.subscribe("t/#")
        sender = RawClient(a.port, mq.V5, deadline=30.0).connect("sender")
        begun = time.monotonic()
        sender.publish("t/first", b"", qos=1)
        assert time.monotonic() - begun >= 2 * FAR
        assert reader.payloads(1) == [b""]
        one = mq.publish("t/x", b"x" * LARGE, version=mq.V5)
        begun = time.monotonic()
        sending = threading.Thread(
            target=lambda: [sender.send(one * 10) for _ in range(MANY // 10)]
        )
        sending.start()
        reader.payloads(MANY)
        took = time.monotonic() - begun
        sending.join()
        assert took < 15.0
    finally:
        for node in (a, b):
            node.stop()
        line.close()


def test_a_link_on_which_nothing_comes_any_more_is_ended_and_said(
    etcd: Etcd, tmp_path: Path
) -> None:
    """As behind a firewall that has forgotten it: who published at one of both waited for as long
    as TCP tries, a quarter of an hour, and nothing was said."""
    inner = free_port()
    line = Line(inner)
    places = {"bind": f"127.0.0.1:{inner}", "advertise": f"127.0.0.1:{line.port}"}
    b = start_node(tmp_path, etcd, "b", cluster=places)
    a = start_node(tmp_path, etcd, "a")

    def alarms(text: str) -> list[bool]:
        return [text in str(asked(node, "alarms")["alarms"]) for node in (a, b)]

    try:
        assert a.says("node b is linked") and b.says("node a is linked")
        reader = RawClient(b.port, mq.V5, deadline=30.0).connect("reader")
        reader.subscribe("t/#", qos=1)
        sender = RawClient(a.port, mq.V5, deadline=30.0).connect("sender")
        for node, other in ((a, "b"), (b, "a")):  # what is told on a link counts once it was told
            until(lambda node=node, other=other: any(  # type: ignore[misc]
                each["node"] == other and each["sessions"] is not None
                for each in asked(node, "cluster", "nodes")["nodes"]), "figures")  # fmt: skip
        line.mute = True
        sender.publish("t/1", b"kept", qos=1)  # acknowledged once the link is known to be none
        until(lambda: any("nothing has come from it for 10 s" in each.output for each in (a, b)),
              "that the first of both to notice says so", 30)  # fmt: skip
        until(lambda: all(alarms("no link to")), "that both say so")
        line.mute = False
        line.cut()
        assert reader.payloads(1) == [b"kept"]
        until(lambda: not any(alarms("no link to")), "that it is over")
    finally:
        for node in (a, b):
            node.stop()
            print(node.output[-3000:])
        line.close()


def test_what_waits_for_a_link_is_said_at_the_end(etcd: Etcd, tmp_path: Path) -> None:
    """It is acknowledged, and in the memory of the node alone: what has QoS 2 comes later."""
    inner = free_port()
    line = Line(inner)
    places = {"bind": f"127.0.0.1:{inner}", "advertise": f"127.0.0.1:{line.port}"}
    store = {"kind": "sqlite"}
    b = start_node(tmp_path, etcd, "b", cluster=places, store=store)
    a = start_node(tmp_path, etcd, "a", store=store)
    try:
        assert a.says("node b is linked")
        reader = RawClient(b.port, mq.V5, deadline=30.0).connect("reader")
        reader.subscribe("t/#", qos=2)
        sender = RawClient(a.port, mq.V5).connect("sender", clean=False, props=STAYS)
        sender.publish("t/1", b"comes", qos=1)
        assert reader.payloads(1) == [b"comes"]
        line.whole = False
        line.cut()
        assert a.says("the link to node b is gone")
        for payload in (b"one", b"two"):
            sender.publish("t/1", payload, qos=1)
        sender.publish("t/2", b"later", qos=2)
        a.stop()
        assert a.says("2 messages that waited here for nodes without a link are lost")
        line.whole = True
        a = start_node(tmp_path, etcd, "a", store=store)
        assert reader.payloads(1) == [b"later"]
    finally:
        for node in (a, b):
            node.stop()
        line.close()
