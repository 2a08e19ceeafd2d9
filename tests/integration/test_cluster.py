"""Three nodes as one broker: real clients, a real etcd, and nodes that are killed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.waiting import until

NAMES = ("a", "b", "c")
LONG = os.environ.get("MQTTD_LONG") == "1"
_serial = itertools.count()

Nodes = dict[str, Broker]
Connect = Callable[..., RawClient]


def start_node(folder: Path, etcd: Etcd, name: str, **more: Any) -> Broker:
    cluster = {
        "kind": "etcd",
        "endpoints": etcd.endpoints,
        "bind": "127.0.0.1:0",
        "lease": "2s",
        **more.pop("cluster", {}),
    }
    return start_broker(folder / name, node={"name": name}, cluster=cluster, **more)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def nodes(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("cluster")
    started: Nodes = {}
    for name in NAMES:
        started[name] = start_node(folder, etcd, name)
    for name, other in itertools.permutations(NAMES, 2):
        assert started[name].says(f"node {other} is linked")
    yield started
    for node in started.values():
        node.stop()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(name: str, client_id: str = "", version: int = mq.V5, **fields: Any) -> Any:
        client = RawClient(nodes[name].port, version)
        clients.append(client)
        return client.connect(client_id or f"c{next(_serial)}", **fields)

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_serial)}"


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_subscribers_on_all_nodes(
    connect: Connect, topic: str, qos: int, version: int
) -> None:
    filters = [topic + "/a", topic + "/+", topic + "/#"]
    subscribers = [connect(name, version=v) for name in NAMES for v in (mq.V311, mq.V5)]
    for subscriber, wanted in zip(subscribers, itertools.cycle(filters), strict=False):
        subscriber.subscribe(wanted, qos=2)
    publisher = connect("a", version=version)
    for n in range(20):
        publisher.publish(topic + "/a", b"%d" % n, qos=qos)
    for subscriber in subscribers:
        assert subscriber.payloads(20) == [b"%d" % n for n in range(20)]


def test_subscribe_then_publish_elsewhere_at_once_misses_nothing(
    connect: Connect, topic: str
) -> None:
    count = 5000 if LONG else 200
    publishers = [connect("a"), connect("c")]
    subscriber = connect("b")
    for n in range(count):
        subscriber.subscribe(f"{topic}/{n}")
        for publisher in publishers:
            publisher.publish(f"{topic}/{n}", b"%d" % n)
    found = subscriber.payloads(2 * count)
    assert sorted(found) == sorted([b"%d" % n for n in range(count)] * 2)


def test_unsubscribe_ends_it(connect: Connect, topic: str) -> None:
    publisher, subscriber = connect("a"), connect("b")
    subscriber.subscribe(topic)
    subscriber.unsubscribe(topic)
    subscriber.subscribe(topic + "/end")
    publisher.publish(topic, b"no")
    publisher.publish(topic + "/end", b"end")
    assert subscriber.payloads(1) == [b"end"]
