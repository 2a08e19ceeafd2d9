"""A node that stands still for longer than its lease (SIGSTOP), and goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, let_in, start_nodes

pytestmark = pytest.mark.timeout(120)


def test_what_was_sent_to_it_meanwhile_comes_to_who_has_moved_meanwhile(
    etcd: Etcd, tmp_path: Path
) -> None:
    """To a node where nobody had wanted it, of which it hears when it goes on."""
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}, "c": {}})
    process = nodes["c"].process
    assert process is not None
    try:
        publisher = RawClient(nodes["c"].port, mq.V5, deadline=30.0).connect("publisher")
        reader = RawClient(nodes["a"].port, mq.V5).connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=2)
        reader.close()
        publisher.publish("t", b"before", qos=1)
        process.send_signal(signal.SIGSTOP)
        for qos in (1, 2):
            publisher.send(mq.publish("t", b"meanwhile", qos, 100 + qos, version=mq.V5))
        assert nodes["a"].says("node c is gone") and nodes["b"].says("node c is gone")
        back = let_in(nodes["b"], "reader")
        assert back.resumed
        back.message(payload=b"before")
        process.send_signal(signal.SIGCONT)
        assert nodes["c"].says("this node has stood still")
        publisher.wait_for(mq.PUBACK, packet_id=101)
        publisher.wait_for(mq.PUBREC, packet_id=102)
        assert back.payloads(2) == [b"meanwhile", b"meanwhile"]
    finally:
        process.send_signal(signal.SIGCONT)
        for node in nodes.values():
            node.stop()
