"""Clients that reconnect to another node in the middle of an exchange, and what goes with them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import packets as mq
from tests.support.client import DEADLINE, RawClient
from tests.support.etcd import start_etcd
from tests.support.nodes import LASTS, Nodes, asked, start_nodes
from tests.support.waiting import until

LONG = os.environ.get("MQTTD_LONG") == "1"
#: Packet ids of QoS 2 that a client has received and that were not released, with their payloads.
KNOWN: dict[int, tuple[str, bytes]] = {}
#: Messages that are on their way at most.
AHEAD = 500
pytestmark = pytest.mark.timeout(300)
_serial = itertools.count()
_STAYS = [(mq.SESSION_EXPIRY, 600)]

Connect = Callable[..., RawClient]


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("moves")
    etcd = start_etcd(folder / "etcd")
    store = {"kind": request.param}
    # What a large session owes for its moves is hardly paid, however long they take here.
    settings = {"moves_rate": "64KiB", **LASTS}
    started = start_nodes(
        folder, etcd, dict.fromkeys("ab", settings), store=store, session={"max_inflight": 20}
    )
    assert started["a"].says("node b is linked")
    yield started
    for node in started.values():
        node.stop()
    etcd.stop()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(
        name: str, client_id: str, version: int = mq.V5, resumed: bool | None = None
    ) -> RawClient:
        props = _STAYS if version == mq.V5 else []

        def let_in() -> RawClient | None:
            """None: its session did not come within the five seconds of a claim."""
            client = RawClient(nodes[name].port, version)
            clients.append(client)
            client.send(mq.connect(client_id, version, clean=False, props=props))
            client.connack = client.expect(mq.CONNACK)
            if client.connack.reason == (0x88 if version == mq.V5 else 3):
                return None
            assert client.connack.reason == 0
            return client

        client: RawClient = until(let_in, f"that {client_id} is let in at {name}")
        client.deadline = DEADLINE
        assert resumed is None or client.resumed is resumed
        return client

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def name() -> str:
    return f"m{next(_serial)}"


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
def test_a_publisher_goes_on_elsewhere_in_each_phase_of_qos_2(
    connect: Connect, name: str, version: int
) -> None:
    """PUBREC lost, PUBREL lost, PUBCOMP lost: each message comes once, under an id that moves."""
    watcher = connect("a", f"{name}-watcher")
    watcher.subscribe(name, qos=2)
    client = connect("a", name, version, resumed=False)
    places = itertools.cycle(["b", "a"])
    for n, phase in enumerate(["received", "released", "completed"] * 2, 1):
        client.send(mq.publish(name, b"%d" % n, 2, n, version=version))
        client.wait_for(mq.PUBREC, packet_id=n)
        if phase == "completed":
            client.send(mq.pubrel(n, version))
            client.wait_for(mq.PUBCOMP, packet_id=n, reason=0)
        client = connect(next(places), name, version, resumed=True)
        if phase == "received":
            client.send(mq.publish(name, b"%d" % n, 2, n, dup=True, version=version))
            client.wait_for(mq.PUBREC, packet_id=n, reason=0)
        client.send(mq.pubrel(n, version))
        known = 0 if phase != "completed" or version != mq.V5 else 0x92
        client.wait_for(mq.PUBCOMP, packet_id=n, reason=known)
        assert watcher.payloads(1) == [b"%d" % n]
    client.publish(name, b"end", qos=2)
    assert watcher.payloads(1) == [b"end"]


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
def test_a_subscriber_goes_on_elsewhere_in_each_phase_of_qos_2(
    connect: Connect, name: str, version: int
) -> None:
    """PUBLISH without PUBREC goes again with DUP and its id, PUBREC without PUBCOMP as PUBREL."""
    publisher = connect("b", f"{name}-publisher")
    client = connect("a", name, version, resumed=False)
    client.subscribe(name, qos=2)
    for n, place in zip(range(6), itertools.cycle(["b", "a"]), strict=False):
        publisher.publish(name, b"%d" % n, qos=2)
        first = client.expect(mq.PUBLISH, payload=b"%d" % n, dup=False)
        client = connect(place, name, version, resumed=True)
        again = client.expect(mq.PUBLISH, payload=b"%d" % n, dup=True)
        assert again.packet_id == first.packet_id
        client.send(mq.pubrec(first.packet_id, version))
        client.expect(mq.PUBREL, packet_id=first.packet_id)
        client = connect("a" if place == "b" else "b", name, version, resumed=True)
        client.expect(mq.PUBREL, packet_id=first.packet_id, reason=0)
        client.expect_nothing()
        client.send(mq.pubcomp(first.packet_id, version))
        client.ping()
        client = connect(place, name, version, resumed=True)
        client.expect_nothing()


def test_window_and_queue_keep_their_order_and_ids(connect: Connect, name: str) -> None:
    """More than a window: those in flight with their ids, then what waits, in order."""
    publisher = connect("b", f"{name}-publisher")
    client = connect("a", name, resumed=False)
    client.subscribe(name, qos=2)
    count = 80
    for n in range(count):
        publisher.publish(name, b"%d" % n, qos=1 + n % 2)
    sent = [client.expect(mq.PUBLISH) for _ in range(20)]
    client.expect_nothing()  # the window is full
    client = connect("b", name, resumed=True)
    again = [client.expect(mq.PUBLISH, dup=True) for _ in sent]
    assert [(each.packet_id, each.payload) for each in again] == [
        (each.packet_id, each.payload) for each in sent
    ]
    client = connect("a", name, resumed=True)
    assert [each.payload for each in client.collect(count)] == [b"%d" % n for n in range(count)]
    client.expect_nothing()


def test_what_waits_for_a_shared_group_is_another_members_where_its_session_ends(
    nodes: Nodes, connect: Connect, name: str
) -> None:
    """Its client starts afresh at a node where it was not: what waited went to nobody. 4.8.2."""
    member = connect("a", name, resumed=False)
    member.subscribe((f"$share/g/{name}", 1), (f"{name}/own", 1))
    member.close()
    sender = connect("a", f"{name}-sender")
    for n in range(AHEAD):
        sender.publish(name, b"%d" % n, qos=1)
        sender.publish(f"{name}/own", b"own", qos=1)
    other = connect("b", f"{name}-other")
    other.subscribe(f"$share/g/{name}", qos=1)
    afresh = RawClient(nodes["b"].port, mq.V5).connect(name, clean=True)
    assert not afresh.resumed
    assert other.payloads(AHEAD) == [b"%d" % n for n in range(AHEAD)]
    other.expect_nothing()
    afresh.close()


def test_ids_that_came_with_a_session_are_not_given_again(
    nodes: Nodes, connect: Connect, name: str
) -> None:
    """New messages of the node where it is take others."""
    publisher = connect("b", f"{name}-publisher")
    client = connect("a", name, resumed=False)
    client.subscribe(name, qos=1)
    for n in range(3):
        publisher.publish(name, b"%d" % n, qos=1)
    first = [client.expect(mq.PUBLISH) for _ in range(3)]
    client = connect("b", name, resumed=True)
    for n in range(3, 6):
        publisher.publish(name, b"%d" % n, qos=1)
    found = [client.expect(mq.PUBLISH) for _ in range(6)]
    assert [each.payload for each in found] == [b"%d" % n for n in range(6)]
    assert len({each.packet_id for each in found}) == 6
    assert [each.packet_id for each in found[:3]] == [each.packet_id for each in first]
    client.send(*(mq.puback(each.packet_id, mq.V5) for each in found))
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_while_a_session_moves_comes_once_and_in_order(
    nodes: Nodes, connect: Connect, name: str, qos: int
) -> None:
    """Publishers on both nodes go on while their subscriber goes to and fro."""
    moves = 200 if LONG else 20
    client = connect("a", name, resumed=False)
    client.subscribe(f"{name}/+", f"{name}/b/#", qos=qos)
    stop = threading.Event()
    sent = {"a": 0, "b": 0}
    KNOWN.clear()
    seen: dict[str, list[int]] = {"a": [], "b": []}

    def publish(place: str) -> None:
        publisher = RawClient(nodes[place].port, mq.V5).connect(f"{name}-{place}")
        while not stop.is_set():
            # A queue holds so many: whoever reads slower than this would lose some.
            if sum(sent.values()) - sum(map(len, seen.values())) > AHEAD:
                time.sleep(0.001)
                continue
            publisher.publish(f"{name}/{place}", b"%d" % sent[place], qos=qos)
            sent[place] += 1
        publisher.close()

    threads = [threading.Thread(target=publish, args=(place,), daemon=True) for place in sent]
    for thread in threads:
        thread.start()
    try:
        for _, place in zip(range(moves), itertools.cycle("ba"), strict=False):
            _read(client, seen, _count(seen) + 20)
            client = connect(place, name, resumed=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    _read(client, seen, sum(sent.values()))
    while KNOWN:
        _take(client, seen)
    client.expect_nothing()
    for place, count in sent.items():
        # At QoS 1 what was sent and not acknowledged comes again; nothing is missed.
        found = list(dict.fromkeys(seen[place])) if qos == 1 else seen[place]
        assert found == list(range(count))


def _count(seen: dict[str, list[int]]) -> int:
    return sum(len(set(each)) for each in seen.values())


def _read(client: RawClient, seen: dict[str, list[int]], count: int) -> None:
    while _count(seen) < count:
        _take(client, seen)


def _take(client: RawClient, seen: dict[str, list[int]]) -> None:
    """Take a message, once for QoS 2: a client knows the ids that were not released."""
    packet = client.receive()
    assert packet is not None
    if packet.type == mq.PUBREL:
        KNOWN.pop(packet.packet_id, None)
        client.send(mq.pubcomp(packet.packet_id, mq.V5))
        return
    assert packet.type == mq.PUBLISH, packet
    if packet.qos == 1:
        client.send(mq.puback(packet.packet_id, mq.V5))
    else:
        client.send(mq.pubrec(packet.packet_id, mq.V5))
        if packet.packet_id in KNOWN:
            assert KNOWN[packet.packet_id] == (packet.topic, packet.payload)
            return
        KNOWN[packet.packet_id] = (packet.topic, packet.payload)
    seen[packet.topic.rpartition("/")[2]].append(int(packet.payload))


def test_a_large_session_that_goes_to_and_fro_waits_and_stays(
    nodes: Nodes, connect: Connect, name: str
) -> None:
    """Each time takes both nodes as long as thousands of messages of others do."""
    client = connect("a", name, resumed=False)
    for part in range(5):
        filters = [(f"{name}/{n}/a-filter-that-is-somewhat-longer/+", 1) for n in range(1000)]
        client.subscribe(*((f"{each}/{part}", qos) for each, qos in filters))
    places = itertools.cycle(["b", "a"])
    moves = 0
    while True:
        client.close()
        at = next(places)
        client = RawClient(nodes[at].port, mq.V5)
        client.send(mq.connect(name, mq.V5, clean=False, props=_STAYS))
        if client.wait_for(mq.CONNACK, 30).reason == 0:
            moves += 1
            assert moves <= 30
        elif asked(nodes[at], "metrics")["gauges"]["cluster_sessions_paced"]:
            break
    client.close()
    assert nodes[at].says(f'client_id={name} reason="Server unavailable" detail="the client id')
    assert nodes[at].says("its session is large and has moved too often")
    connect(next(places), name, resumed=True)
