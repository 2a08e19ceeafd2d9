"""At a limit, too, all workers and all nodes of a cluster have one set of retained messages.

Clients at all of them fill it at the same time, so that each comes to the limit by what it knows
then; what was acknowledged is everywhere afterwards, and nothing else is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_workers import id_at
from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient
from tests.support.etcd import start_etcd
from tests.support.nodes import start_node, start_nodes

pytestmark = pytest.mark.timeout(120)

#: Nothing of the broker's own is retained.
SILENT = {"interval": "0s"}
#: Messages that each of three publishers has; `ROOM` may be kept, and what is accepted meanwhile.
EACH = 90
ROOM = 60
LIMITS = [{"max_messages": ROOM}, {"max_per_user": ROOM}, {"max_bytes": "30KiB"}]
_ids = itertools.count()


def client_at(port: int, client_id: str = "") -> RawClient:
    return RawClient(port, mq.V5).connect(client_id or f"retained-{next(_ids)}")


def filled(publishers: list[RawClient]) -> set[str]:
    """All publish at once; the topics whose messages were accepted."""
    for number, publisher in enumerate(publishers):
        packets = [
            mq.publish(f"r/{number}/{n}", bytes(100), 1, n + 1, version=mq.V5, retain=True)
            for n in range(EACH)
        ]
        publisher.send(*packets)
    accepted = set()
    for number, publisher in enumerate(publishers):
        answers = [publisher.wait_for(mq.PUBACK) for _ in range(EACH)]
        accepted |= {f"r/{number}/{a.packet_id - 1}" for a in answers if a.reason < 0x80}
    assert 0 < len(accepted) < EACH * len(publishers), "the limit was not reached"
    return accepted


def found(client: RawClient, count: int) -> set[str]:
    """The topics that so many retained messages have, as a new subscriber gets them."""
    client.subscribe("r/#", qos=0)
    topics = {packet.topic for packet in client.collect(count)}
    client.unsubscribe("r/#")
    return topics


def checked(publishers: list[RawClient], readers: list[RawClient]) -> set[str]:
    accepted = filled(publishers)
    for reader in readers:
        assert found(reader, len(accepted)) == accepted
    # It counts everywhere: nobody takes another one, and what is there can be replaced.
    for number, publisher in enumerate(publishers):
        refused = publisher.publish(f"new/{number}", bytes(100), qos=1, retain=True)
        replaced = publisher.publish(min(accepted), bytes(100), qos=1, retain=True)
        assert refused is not None and refused.reason == 0x97
        assert replaced is not None and replaced.reason < 0x80
    return accepted


@pytest.fixture
def clients() -> Iterator[list[RawClient]]:
    made: list[RawClient] = []
    yield made
    for client in made:
        client.close()


@pytest.mark.parametrize("limits", LIMITS, ids=[next(iter(each)) for each in LIMITS])
def test_workers_have_one_set(
    limits: dict[str, Any], clients: list[RawClient], tmp_path: Path
) -> None:
    broker = start_broker(tmp_path, node={"workers": 3}, sys=SILENT, retained=limits)
    try:
        clients += [client_at(broker.port, id_at(worker)) for _ in "pr" for worker in (1, 2, 3)]
        checked(clients[:3], clients[3:])
    finally:
        broker.stop()


def test_nodes_have_one_set_and_who_joins_has_it(clients: list[RawClient], tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    nodes = {}
    tables = {"sys": SILENT, "retained": {"max_messages": ROOM}}
    try:
        nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}, "c": {}}, **tables)
        for name, other in itertools.permutations(nodes, 2):
            assert nodes[name].says(f"node {other} is linked")
        clients += [client_at(node.port) for _ in "pr" for node in nodes.values()]
        accepted = checked(clients[:3], clients[3:])
        nodes["late"] = start_node(tmp_path, etcd, "late", **tables)
        clients.append(client_at(nodes["late"].port))
        assert found(clients[-1], len(accepted)) == accepted
    finally:
        for node in nodes.values():
            node.stop()
        etcd.stop()
