"""QoS 2 in the moment in which its publisher's node is killed: elsewhere not twice, nor missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.cut import Line
from tests.support.etcd import Etcd
from tests.support.nats import start_nats
from tests.support.nodes import STAYS, let_in, start_node, start_nodes
from tests.support.servers import free_port

pytestmark = pytest.mark.timeout(180)

#: A store that writes nothing while there is this file.
SLOW = """
import os, time
from mqttd.storage import writer
write = writer.write
def slow(base, group):
    while os.path.exists({path!r}):
        time.sleep(0.01)
    return write(base, group)
writer.write = slow
"""


def reader_at(node: Broker) -> RawClient:
    """Who wants all of `t/+`."""
    reader = RawClient(node.port, mq.V5, deadline=30.0)
    reader.connect("reader", clean=False, props=STAYS)
    reader.subscribe("t/+", qos=2)
    return reader


def test_what_its_node_had_not_written_has_gone_nowhere(etcd: Etcd, tmp_path: Path) -> None:
    """Killed while its store is slow: the publisher sends it again, and it comes once. QoS 0 and 1
    of others do not wait for it."""
    slowly = tmp_path / "slowly"
    store = {"kind": "sqlite"}
    nodes = start_nodes(tmp_path, etcd, {"b": {}}, store=store)
    try:
        program = SLOW.format(path=str(slowly))
        nodes["a"] = start_node(tmp_path, etcd, "a", store=store, program=program)
        reader = reader_at(nodes["b"])
        other = RawClient(nodes["a"].port, mq.V5, deadline=20.0).connect("other")
        sender = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        sender.connect("sender", clean=False, props=STAYS)
        other.publish("t/0", b"before", qos=1)
        slowly.touch()
        once = mq.publish("t/2", b"once", 2, 9, version=mq.V5)
        sender.send(once)
        sender.ping()
        other.publish("t/0", b"nought", qos=0)
        other.send(mq.publish("t/1", b"one", 1, 8, version=mq.V5))
        assert reader.payloads(3) == [b"before", b"nought", b"one"]
        nodes["a"].stop(hard=True)
        slowly.unlink()
        nodes["a"] = start_node(tmp_path, etcd, "a", store=store)
        again = let_in(nodes["a"], "sender")
        again.send(once)
        again.wait_for(mq.PUBREC, packet_id=9)
        again.send(mq.pubrel(9, mq.V5))
        again.wait_for(mq.PUBCOMP, packet_id=9)
        again.publish("t/2", b"end", qos=2)
        assert reader.payloads(2) == [b"once", b"end"]
    finally:
        slowly.unlink(missing_ok=True)
        for node in nodes.values():
            node.stop()


@pytest.mark.parametrize("replicated", [False, True])
def test_what_its_node_had_written_is_handed_over(
    etcd: Etcd, tmp_path: Path, replicated: bool
) -> None:
    """Killed while the link is cut: by its next life, or by who has its sessions then."""
    port = free_port()
    line = Line(port)
    there = {"bind": f"127.0.0.1:{port}", "advertise": f"127.0.0.1:{line.port}"}
    more: dict[str, Any] = {}
    nats = None
    if replicated:
        nats = start_nats(tmp_path / "nats", 1)
        more = {
            "session": {"replicate": "jetstream"},
            "jetstream": {"servers": nats.addresses, "replicas": 1},
        }
    store = {"kind": "sqlite"}
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": there}, store=store, **more)
    try:
        assert nodes["a"].says("node b is linked")
        if replicated:
            assert all(each.says("the store is copied to") for each in nodes.values())
        reader = reader_at(nodes["b"])
        sender = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        sender.connect("sender", clean=False, props=STAYS)
        sender.publish("t/2", b"before", qos=2)
        line.whole = False
        line.cut()
        assert nodes["a"].says("the link to node b is gone")
        sender.send(mq.publish("t/2", b"once", 2, 9, version=mq.V5))
        sender.wait_for(mq.PUBREC, packet_id=9)
        nodes["a"].stop(hard=True)
        line.whole = True
        if not replicated:
            nodes["a"] = start_node(tmp_path, etcd, "a", store=store, **more)
        again = let_in(nodes["b" if replicated else "a"], "sender")
        again.send(mq.pubrel(9, mq.V5))
        again.wait_for(mq.PUBCOMP, packet_id=9)
        again.publish("t/2", b"end", qos=2)
        assert sorted(reader.payloads(3)) == [b"before", b"end", b"once"]
        if replicated:
            nodes["a"] = start_node(tmp_path, etcd, "a", store=store, **more)
            assert nodes["a"].says("node b is linked")
            let_in(nodes["a"], "sender").publish("t/2", b"last", qos=2)
            assert reader.payloads(1) == [b"last"]
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
        line.close()
        if nats is not None:
            nats.stop()
