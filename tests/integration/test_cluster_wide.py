"""A session that moves while messages to thousands of others are under way, in many turns."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.etcd import start_etcd
from tests.support.nodes import LASTS, STAYS, Nodes, let_in, start_nodes

#: Sessions that get each message before the one that moves: more than a step is for.
OTHERS = 9000
#: Messages of each publisher.
COUNT = 60
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("wide")
    etcd = start_etcd(folder / "etcd")
    started = start_nodes(folder, etcd, {"a": LASTS, "b": LASTS}, store={"kind": "sqlite"})
    assert started["a"].says("node b is linked")
    yield started
    for node in started.values():
        node.stop()
    etcd.stop()


def crowd(node_port: int, names: range) -> None:
    """Sessions that stay, and whose clients are away: QoS 0 is nothing to them."""
    for n in names:
        client = RawClient(node_port, mq.V5, deadline=60.0)
        client.connect(f"crowd-{n}", clean=False, props=STAYS)
        client.subscribe("wide", qos=0)
        client.close()


def published(node: str, nodes: Nodes, qos: int, done: list[str]) -> None:
    publisher = RawClient(nodes[node].port, mq.V5, deadline=60.0)
    publisher.connect(f"publisher-{node}-{qos}")
    for n in range(COUNT):
        publisher.publish("wide", f"{node}{qos} {n}".encode(), qos=qos)
    publisher.close()
    done.append(node)


class Roamer:
    """What one client has received, whatever the connection: QoS 2 by its packet ids."""

    def __init__(self) -> None:
        self.found: Counter[bytes] = Counter()
        self.known: dict[int, bytes] = {}

    def take(self, client: RawClient, seconds: float) -> int:
        """Answer what comes until nothing does for so long, or ten times that; how much it was."""
        until, count = time.monotonic() + 10 * seconds, 0
        while time.monotonic() < until:
            try:
                packet = client.receive(seconds)
            except TimeoutError:
                break
            assert packet is not None
            count += 1
            number = packet.packet_id
            if packet.type == mq.PUBREL:
                self.known.pop(number, None)
                client.send(mq.pubcomp(number, mq.V5))
            elif packet.qos == 2:
                if self.known.get(number) != packet.payload:
                    assert number not in self.known
                    self.found[packet.payload] += 1
                    self.known[number] = packet.payload
                client.send(mq.pubrec(number, mq.V5))
            else:
                self.found[packet.payload] += 1
                client.send(mq.puback(number, mq.V5))
        return count


def test_nothing_is_lost_or_doubled_by_a_move(nodes: Nodes) -> None:
    """Publishers at both nodes, QoS 1 and 2; the thousands are at one of them."""
    parts = [
        threading.Thread(target=crowd, args=(nodes["a"].port, range(at, OTHERS, 8)))
        for at in range(8)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    client = let_in(nodes["a"], "roamer")
    client.subscribe("wide", qos=2)
    done: list[str] = []
    publishers = [
        threading.Thread(target=published, args=(node, nodes, qos, done))
        for node in "ab"
        for qos in (1, 2)
    ]
    for each in publishers:
        each.start()
    roamer = Roamer()
    for name in itertools.cycle("ba"):
        client.close()
        client = let_in(nodes[name], "roamer")
        roamer.take(client, 0.3)
        if len(done) == len(publishers):
            break
    while roamer.take(client, 3.0):
        pass
    client.close()
    for each in publishers:
        each.join()
    sent = [f"{node}{qos} {n}".encode() for node in "ab" for qos in (1, 2) for n in range(COUNT)]
    missing = [each for each in sent if each not in roamer.found]
    twice = [each for each, count in roamer.found.items() if count > 1 and each[1:2] == b"2"]
    assert not missing and not twice
