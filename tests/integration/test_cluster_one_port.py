"""Nodes of one machine that share the clients' port: `reuse_port`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import start_broker, write_settings
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import Nodes, asked, start_nodes
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

#: Clients: that all of them come to one of two nodes happens once in 2 ** 31 times.
MANY = 32


@pytest.fixture
def nodes(etcd: Etcd, tmp_path: Path) -> Iterator[Nodes]:
    started = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, listener=shared(free_port()))
    for name, other in (("a", "b"), ("b", "a")):
        assert started[name].says(f"node {other} is linked")
    yield started
    for node in started.values():
        node.stop()


def shared(port: int) -> dict[str, Any]:
    return {"tcp": {"default": {"bind": f"127.0.0.1:{port}", "reuse_port": True}}}


def connections(nodes: Nodes) -> dict[str, int]:
    """How many clients each node has."""
    return {
        name: asked(node, "listeners", "list")["listeners"][0]["connections"]
        for name, node in nodes.items()
    }


def test_clients_come_to_both_and_to_the_other_when_one_is_killed(nodes: Nodes) -> None:
    port = nodes["a"].port
    assert nodes["b"].port == port
    assert asked(nodes["a"], "listeners", "list")["listeners"][0]["reuse_port"] is True
    clients = [RawClient(port).connect(f"c{n}") for n in range(MANY)]
    until(lambda: sum(connections(nodes).values()) == MANY, "all clients are counted", 10)
    assert min(connections(nodes).values()) > 0
    for client in clients:
        client.subscribe("t", qos=1)
    for n, publisher in enumerate(clients):
        publisher.publish("t", b"%d" % n, qos=1)
    for client in clients:
        assert sorted(client.payloads(MANY)) == sorted(b"%d" % n for n in range(MANY))
        client.close()
    nodes["a"].stop(hard=True)
    again = [RawClient(port).connect(f"d{n}") for n in range(MANY)]
    only = {"b": nodes["b"]}
    until(lambda: connections(only)["b"] == MANY, "all of them are at the other", 10)
    for client in again:
        client.close()


def test_who_is_not_ready_is_given_nobody(nodes: Nodes, tmp_path: Path) -> None:
    """It has the port, and waits for an etcd that does not answer."""
    late = start_broker(
        tmp_path / "late",
        node={"name": "late"},
        cluster={
            "kind": "etcd",
            "endpoints": [f"http://127.0.0.1:{free_port()}"],
            "bind": "127.0.0.1:0",
        },
        listener=shared(nodes["a"].port),
        wait=False,
    )
    try:
        assert late.says("etcd")
        for n in range(MANY):
            RawClient(nodes["a"].port).connect(f"c{n}").close()
    finally:
        late.stop(hard=True)


def test_a_port_of_one_who_does_not_share_it_is_taken(tmp_path: Path, etcd: Etcd) -> None:
    alone = start_broker(tmp_path / "alone")
    try:
        with pytest.raises(RuntimeError, match="in use.*reuse_port = true and the same user"):
            start_nodes(tmp_path, etcd, {"a": {}}, listener=shared(alone.port))
    finally:
        alone.stop()


@pytest.mark.parametrize(
    ("kind", "listener", "said"),
    [
        ("none", {"bind": "127.0.0.1:1883"}, "are nodes of one cluster"),
        ("etcd", {"bind": "127.0.0.1:0"}, "is another one for each node"),
    ],
)
def test_what_cannot_be_shared_is_said(
    tmp_path: Path, kind: str, listener: dict[str, Any], said: str
) -> None:
    config = write_settings(
        tmp_path,
        {
            "cluster": {"kind": kind, "endpoints": ["http://127.0.0.1:9"], "bind": "127.0.0.1:0"},
            "listener": {"tcp": {"default": {**listener, "reuse_port": True}}},
        },
    )
    command = [sys.executable, "-m", "mqttd", "--config", str(config), "--check-config"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "listener.tcp.default.reuse_port = true: expected false" in found.stderr
    assert said in found.stderr
