"""One member of etcd hangs: nodes ask another, and take what is new from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import Nodes, asked, let_in, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)
#: What a node writes when it is told again of what is new.
_WATCHED = "etcd is watched again"


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


def leaves(node: Broker, member: str, watched: int) -> None:
    """Wait until a node asks another member, and is told by another of what is new."""
    until(lambda: asked(node, "cluster", "status")["etcd"] != member, "another is asked")
    assert node.says(_WATCHED, watched + 1)


@pytest.mark.parametrize("number", range(3))
def test_nodes_leave_a_member_that_hangs_though_nobody_asks_for_anything(
    nodes: Nodes, etcd: Etcd, number: int
) -> None:
    pid, member = etcd.members[number].process.pid, etcd.endpoints[number]
    there = [
        (node, node.output.count(_WATCHED)) for node in nodes.values()
        if asked(node, "cluster", "status")["etcd"] == member
    ]  # fmt: skip
    os.kill(pid, signal.SIGSTOP)
    clients: list[RawClient] = []
    try:
        for node, watched in there:
            leaves(node, member, watched)
        for each, node in nodes.items():
            clients.append(let_in(node, f"{each}-{number}"))  # others elect a leader, perhaps
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
    assert not there or any("hangs: others answer" in node.output for node, _ in there)
