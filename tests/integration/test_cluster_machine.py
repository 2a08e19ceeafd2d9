"""Several nodes of a cluster that one `twistd mqttd` starts: `node.workers` with `cluster.kind`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.workers.place import worker_of
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, asked, let_in
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

#: Clients: that none of them comes to one of three nodes happens once in 400,000 times.
MANY = 32


def tables(etcd: Etcd, count: int, name: str = "a") -> dict[str, Any]:
    return {
        "node": {"name": name, "workers": count},
        "cluster": {
            "kind": "etcd",
            "endpoints": etcd.endpoints,
            "bind": "127.0.0.1:0",
            "lease": "2s",
        },
    }


@pytest.fixture
def machine(etcd: Etcd, tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(tmp_path, **tables(etcd, 3))
    yield started
    started.stop()


#: Of three nodes, client ids of the second.
SECOND = [name for n in range(64) if worker_of(name := f"c{n}", 3) == 2]


def moves(machine: Broker) -> int:
    """Sessions that have gone from one node of the machine to another."""
    told = [asked(machine, "metrics", "--node", name) for name in ("a", "a-2", "a-3")]
    return sum(each["gauges"]["cluster_sessions_went"] for each in told)


def at(machine: Broker, client_id: str, times: int = 1) -> str:
    """The node that a client has come to, for the last time of so many."""
    assert machine.says(f"connected: client_id={client_id} ", times)
    return re.findall(rf" connected: client_id={client_id} .*node=(\S+)", machine.output)[-1]


def nodes(machine: Broker) -> dict[str, dict[str, Any]]:
    return {each["node"]: each for each in asked(machine, "cluster", "nodes")["nodes"]}


def are_linked(machine: Broker) -> None:
    until(
        lambda: sum(each["linked"] for each in nodes(machine).values() if not each["here"]) == 2,
        "all are linked",
    )


def process_of(machine: Broker, name: str) -> int:
    """The process that the log has named last."""
    return int(re.findall(rf"node {name} ready: process (\d+)", machine.output)[-1])


def test_clients_of_one_port_are_at_all_of_them_and_one_that_is_killed_is_back(
    machine: Broker,
) -> None:
    assert machine.says("3 nodes")
    are_linked(machine)
    clients = [RawClient(machine.port, mq.V5) for _ in range(MANY)]
    for number, client in enumerate(clients):
        client.connect(f"c{number}", clean=False, props=STAYS)
        client.subscribe("t", qos=1)
    assert set(nodes(machine)) == {"a", "a-2", "a-3"}
    until(
        lambda: all(each["connections"] for each in nodes(machine).values()),
        "that all of them have clients, as they tell each other",
    )
    for number, client in enumerate(clients):
        client.publish("t", b"%d" % number, qos=1)
    for client in clients:
        assert sorted(client.payloads(MANY)) == sorted(b"%d" % n for n in range(MANY))
        client.close()
    os.kill(process_of(machine, "a-2"), signal.SIGKILL)
    assert machine.says("node a-2 ended by SIGKILL: it is started again")
    until(lambda: machine.output.count("node a-2 ready") == 2, "it serves again")
    are_linked(machine)
    for number in range(MANY):
        client = let_in(machine, f"c{number}")
        assert client.resumed
        client.close()


def test_who_comes_again_is_at_its_node_and_nothing_moves(machine: Broker) -> None:
    are_linked(machine)
    kept = SECOND[0]
    client = let_in(machine, kept)
    client.subscribe("t", qos=1)
    client.close()
    publisher = RawClient(machine.port, mq.V5).connect("publisher")
    before = moves(machine)
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
        client = RawClient(machine.port, mq.V5).connect(kept, clean=False, props=STAYS)
        assert client.resumed and client.payloads(1) == [b"%d" % number]
        assert at(machine, kept, number + 2) == "a-2"
        client.close()
    assert moves(machine) == before


def test_clients_of_a_node_that_is_killed_are_served_by_the_others_until_it_is_back(
    machine: Broker,
) -> None:
    are_linked(machine)
    for name in SECOND[:4]:
        client = let_in(machine, name)
        client.subscribe(name, qos=1)
        client.close()
        assert at(machine, name) == "a-2"
    os.kill(process_of(machine, "a-2"), signal.SIGKILL)
    assert machine.says("node a-2 ended by SIGKILL: it is started again")
    for name in SECOND[4:8]:
        client = RawClient(machine.port, mq.V5).connect(name, clean=False, props=STAYS)
        assert at(machine, name) in ("a", "a-3")
        client.close()
    until(lambda: machine.output.count("node a-2 ready") == 2, "it serves again")
    are_linked(machine)
    for name in SECOND[:8]:
        client = let_in(machine, name)
        assert client.resumed and at(machine, name, 2) == "a-2"
        client.close()


def test_a_machine_that_is_restarted_loses_nothing(etcd: Etcd, tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(8)]
    first = start_broker(tmp_path / "first", **tables(etcd, 2))
    second = start_broker(tmp_path / "second", **tables(etcd, 2, "b"))
    try:
        until(lambda: len(nodes(first)) == 4, "all nodes are there")
        for name in names:
            client = let_in(first, name)
            client.subscribe("t", qos=1)
            client.close()
        first.stop()
        publisher = RawClient(second.port, mq.V5).connect("publisher")
        for number in range(10):
            publisher.publish("t", b"%d" % number, qos=1)
        first = start_broker(tmp_path / "first", **tables(etcd, 2))
        for name in names:
            client = let_in(first, name)
            assert client.resumed and client.payloads(10) == [b"%d" % n for n in range(10)]
            client.close()
        # And to the other machine, whose nodes share them in their way.
        for name in names:
            client = let_in(second, name)
            assert client.resumed
            client.close()
            assert at(second, name) == ("b", "b-2")[worker_of(name, 2) - 1]
    finally:
        first.stop()
        second.stop()


def test_who_has_left_is_not_started_again(machine: Broker, tmp_path: Path) -> None:
    are_linked(machine)
    socket = tmp_path / "data/a-3/mqttd.sock"
    command = [sys.executable, "-m", "mqttd.admin.ctl.main", "--socket", str(socket), "cluster"]
    left = subprocess.run([*command, "leave"], capture_output=True, text=True, timeout=60)
    assert not left.returncode, left.stderr
    assert machine.says("node a-3 has left: it is not started again")
    until(lambda: "a-3" not in nodes(machine), "it is no node any more")
    RawClient(machine.port).connect("c").close()


def test_what_one_cannot_do_ends_all_and_says_why(etcd: Etcd, tmp_path: Path) -> None:
    first = start_broker(tmp_path / "first", **tables(etcd, 2))
    try:
        second = start_broker(tmp_path / "second", wait=False, **tables(etcd, 2))
        try:
            assert second.says("mqttd cannot start: node a")
            assert second.process.wait(30) == 1
        finally:
            second.stop(hard=True)
    finally:
        first.stop()


def test_a_smaller_number_names_what_is_left_behind(etcd: Etcd, tmp_path: Path) -> None:
    start_broker(tmp_path, **tables(etcd, 3)).stop()
    fewer = start_broker(tmp_path, **tables(etcd, 2))
    try:
        assert fewer.says("data/a-3/store.db is of a node that is not started")
    finally:
        fewer.stop()
