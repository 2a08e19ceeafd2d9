"""One member of etcd hangs: nodes ask another, and take what is new from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import STAYS, Nodes, asked, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = start_etcd(tmp_path_factory.mktemp("etcd"), 3)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def nodes(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    started = start_nodes(tmp_path_factory.mktemp("nodes"), etcd, {name: {} for name in "ab"})
    assert started["a"].says("node b is linked")
    yield started
    for node in started.values():
        node.stop()


def leaves(node: Broker, member: str) -> None:
    """Wait until a node asks another member."""
    until(lambda: asked(node, "cluster", "status")["etcd"] != member, "another is asked")


@pytest.mark.parametrize("number", range(3))
def test_nodes_leave_a_member_that_hangs_though_nobody_asks_for_anything(
    nodes: Nodes, etcd: Etcd, number: int
) -> None:
    pid = etcd.members[number].process.pid
    os.kill(pid, signal.SIGSTOP)
    clients: list[RawClient] = []
    try:
        for node in nodes.values():
            leaves(node, etcd.endpoints[number])
        for each, node in nodes.items():
            client = RawClient(node.port, mq.V5, deadline=20.0)
            clients.append(client.connect(f"{each}-{number}", clean=False, props=STAYS))
        for client in clients:
            client.subscribe(f"t/{number}", qos=1)
        for client in clients:
            client.publish(f"t/{number}", b"there", qos=1)
        for client in clients:
            assert client.payloads(2) == [b"there"] * 2
    finally:
        os.kill(pid, signal.SIGCONT)
        for client in clients:
            client.close()
    assert nodes["a"].says("hangs: others answer") or nodes["b"].says("hangs: others answer")
