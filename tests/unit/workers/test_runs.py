"""Runs and spans from one worker to another: what comes is what comes packet by packet."""

from __future__ import annotations

from collections import deque

import pytest

from mqttd.codec.packets import Disconnect, Puback, Publish, Subscribe, Subscription
from mqttd.codec.parser import parse_packet
from mqttd.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    Properties,
)
from mqttd.codec.serializer import serialize
from mqttd.mesh.frames import OLDER, RUN1, frame, split
from mqttd.mesh.landing import packets, unrolled
from tests.support import sizes
from tests.support.memory import MemoryClient
from tests.unit.workers.test_ferry import Worker, joined, pump, subscriber


def wire(version: int, topic: str, payload: bytes, packet_id: int) -> bytes:
    return serialize(Publish(topic, payload, 1, packet_id=packet_id), version)


def run(version: int, count: int, topic: str = "a/b") -> bytes:
    return b"".join(wire(version, topic, b"%03d" % n, n) for n in range(1, count + 1))


def pair() -> tuple[Worker, Worker, list[MemoryClient]]:
    """Two workers, and at the second a subscriber of each version."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    clients = [subscriber(there, 4), subscriber(there, 5)]
    pump(here, there)
    for client in clients:
        client.take()
    return here, there, clients


def kinds(data: bytes) -> list[int]:
    """The first bytes of the frames in `data`."""
    found, at = [], 0
    while at < len(data):
        found.append(data[at])
        at = split(data, at)[1]
    return found


@pytest.mark.parametrize("version", [4, 5])
def test_a_run_is_one_frame_and_its_receivers_get_the_same_bytes(version: int) -> None:
    got: list[list[bytes]] = []
    answers: list[bytes] = []
    for together in (True, False):
        here, there, clients = pair()
        here.node.broker.has_workers = together
        publisher = here.node.connect("p", version)
        publisher.read()
        publisher.channel.feed(run(version, 40) + wire(version, "a/b", b"longer", 41))
        crossed = here.turn()
        assert kinds(crossed) == ([RUN1, 0x32] if together else [0x32] * 41)
        assert publisher.read() == b""
        there.arriving.take(crossed)
        said = there.turn()
        got.append([client.read() for client in clients])
        here.arriving.take(said)
        here.turn()
        answers.append(publisher.read())
        assert here.ferry.seq == there.ferry.have
        assert not here.ferry.kept
        assert here.ferry.kept_bytes == 0
        assert here.node.broker.metrics.messages_received_qos1 == 41
        assert here.node.broker.metrics.packets_received == 42
    assert got[0] == got[1]
    assert answers[0] == answers[1]
    assert answers[0] == b"".join(serialize(Puback(n), 4) for n in range(1, 42))


def test_a_run_ends_where_a_packet_has_more_than_ids_and_payloads_of_its_own() -> None:
    here, there, clients = pair()
    publisher = here.node.connect("p", 5)
    data = run(5, 2) + wire(5, "a/c", b"003", 3) + run(5, 2, "a/d")
    again = serialize(Publish("a/d", b"005", 1, dup=True, packet_id=5), 5)
    expiring = serialize(Publish("a/d", b"006", 1, packet_id=6, properties={2: 60}), 5)
    publisher.channel.feed(data + again + expiring + expiring)
    crossed = here.turn()
    assert kinds(crossed).count(RUN1) == 2
    there.arriving.take(crossed)
    there.turn()
    for client in clients:
        assert [packet.payload for packet in client.published()] == [
            b"001", b"002", b"003", b"001", b"002", b"005", b"006", b"006"
        ]  # fmt: skip


def test_packet_id_0_within_a_run_ends_the_connection_behind_what_was_right() -> None:
    here, there, clients = pair()
    publisher = here.node.connect("p", 5)
    publisher.take()
    publisher.channel.feed(run(5, 3) + run(5, 1).replace(b"a/b\0\1", b"a/b\0\0") + run(5, 3))
    pump(here, there)
    assert [packet.payload for packet in clients[1].published()] == [b"001", b"002", b"003"]
    assert [type(packet) for packet in publisher.take()] == [Puback] * 3 + [Disconnect]


def test_receive_maximum_holds_within_a_run() -> None:
    here, there, clients = pair()
    most = here.node.settings.receive_maximum = 10
    publisher = here.node.connect("p", 5)
    publisher.take()
    publisher.channel.feed(run(5, most))
    crossed = here.turn()
    assert publisher.take() == []
    publisher.channel.feed(run(5, 5))
    crossed += here.turn()
    told = publisher.take()
    assert [packet.reason_code for packet in told if isinstance(packet, Disconnect)] == [0x93]
    there.arriving.take(crossed)
    there.turn()
    assert len(clients[1].published()) == most + 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_of_a_run_that_was_taken_in_part_the_rest_goes_to_the_next_life(
    version: int, taken: int
) -> None:
    here, there, _ = pair()
    subscriber(there, 5, clean=False)
    pump(here, there)
    publisher = here.node.connect("p", version)
    publisher.read()
    before = here.ferry.seq
    publisher.channel.feed(run(version, 5))
    publisher.channel.feed(wire(version, "a/b", b"alone", 6))
    here.turn()
    assert publisher.read() == b""
    link = here.mesh.neighbours[2].link
    assert link is not None
    here.mesh.unlinked(link)
    reborn = Worker(2, there.drawers, 2)
    reborn.ferry.have = before + taken  # as its store has it
    client = subscriber(reborn, 5)
    joined(here, reborn)
    left = [b"%03d" % n for n in range(taken + 1, 6)] + [b"alone"]
    assert [packet.payload for packet in client.published()] == left
    assert not here.ferry.kept
    assert reborn.ferry.have == here.ferry.seq
    here.turn()
    assert publisher.read() == b"".join(serialize(Puback(n), 4) for n in range(1, 7))


def test_while_a_worker_is_away_each_packet_of_a_run_is_kept() -> None:
    here, there, _ = pair()
    subscriber(there, 5, clean=False)
    pump(here, there)
    publisher = here.node.connect("p", 4)
    publisher.read()
    publisher.channel.feed(run(4, 4))
    link = here.mesh.neighbours[2].link
    assert link is not None
    here.mesh.unlinked(link)
    publisher.channel.feed(run(4, 4))
    here.turn()
    assert [_payload(data) for _, data in here.ferry.kept] == [b"001", b"002", b"003", b"004"] * 2
    assert here.ferry.kept_bytes == sum(len(data) for _, data in here.ferry.kept)


def _payload(data: bytes) -> bytes:
    body, end = split(data, 0)
    packet = parse_packet(data[0], data[body:end], 5)
    assert isinstance(packet, Publish)
    return packet.payload


def test_a_slow_way_gives_what_the_fast_one_does() -> None:
    """A subscription at QoS 0 has each packet of the run made for itself."""
    here, there, clients = pair()
    low = there.node.connect("low", 5)
    low.send(Subscribe(1, [Subscription("a/b", 0)]))
    pump(here, there)
    low.take()
    for version in (4, 5):
        publisher = here.node.connect(f"p{version}", version)
        publisher.read()
        publisher.channel.feed(run(version, 3))
        pump(here, there)
        assert publisher.read() == b"".join(serialize(Puback(n), 4) for n in range(1, 4))
        for client, qos in ((clients[0], 1), (clients[1], 1), (low, 0)):
            got = client.published()
            assert [(p.payload, p.qos) for p in got] == [(b"%03d" % n, qos) for n in (1, 2, 3)]


def test_what_is_unrolled_is_what_was_not_taken() -> None:
    single = wire(5, "a/b", b"x", 9)
    both = {4: frame(RUN1, b"\4" + run(4, 3)), 5: frame(RUN1, b"\5" + run(5, 3))}
    singles = [wire(5, "a/b", b"%03d" % n, n) for n in (1, 2, 3)]
    for data in both.values():
        assert packets(data) == singles
        kept = deque([(2, data), (3, data), (4, single)])
        assert list(unrolled(kept)) == [(2, singles[1]), (3, singles[2]), (4, single)]
    kept = deque([(1, both[4]), (2, both[4]), (3, both[4]), (6, both[5])])
    assert [data for _, data in unrolled(kept)] == [*singles, singles[2]]


@pytest.mark.parametrize("kind", [5, 13])
def test_a_run_that_is_none_ends_the_link(kind: int) -> None:
    _, there, clients = pair()
    with pytest.raises(ValueError, match=r"different sizes|cut off"):
        there.arriving.take(frame(RUN1, bytes((kind,)) + run(5, 3) + b"\0"))
    there.turn()
    assert clients[1].published() == []


def spans(version: int) -> list[bytes]:
    """Packets of QoS 0 that differ in length, two of them alike; and one of another topic."""
    payloads = [b"1", b"two", b"", b"of more than one byte of length" * 9, b"abc", b"abd", b"e"]
    payloads += [b"." * (sizes.BORDERS[0] - 6 + by) for by in (0, 1, 2)]
    made = [serialize(Publish("a/b", payload), version) for payload in payloads]
    return [*made, serialize(Publish("a/c", b"other"), version), *made[:3]]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("limit", [0, 40])
@pytest.mark.parametrize("versions", [(4,), (5,), (4, 5)])
def test_what_differs_in_length_crosses_as_a_span_and_comes_as_packet_by_packet(
    versions: tuple[int, ...], limit: int, version: int
) -> None:
    got: list[list[list[bytes]]] = []
    frames: list[list[int]] = []
    counts: list[tuple[int, int]] = []
    for together in (True, False):
        here, there = Worker(1), Worker(2)
        joined(here, there)
        clients = [
            there.node.connect(f"s{each}", each, properties=_most(limit) if each == 5 else None)
            for each in versions
        ]
        for client in clients:
            client.send(Subscribe(1, [Subscription("a/#", 2)]))
        pump(here, there)
        for client in clients:
            client.take()
        publisher = here.node.connect("p", version)
        publisher.read()
        packets = spans(version)
        crossed = b""
        for data in [b"".join(packets)] if together else packets:
            publisher.channel.feed(data)
            crossed += here.turn()
        frames.append(kinds(crossed))
        for at in [crossed] if together else _frames(crossed):
            there.arriving.take(at)
        there.turn()
        got.append([[p.payload for p in client.published()] for client in clients])
        metrics = there.node.broker.metrics
        counts.append((metrics.messages_crossed, here.node.broker.metrics.messages_received_qos0))
    assert got[0] == got[1]
    assert counts[0] == counts[1] == (len(spans(version)),) * 2
    if version == 4:
        # The first tells the topic; what follows is together, as far as it is alike.
        assert frames[0].count(OLDER) == 5
        assert set(frames[0]) == {OLDER, 0x30}
    if not limit or versions == (4,):
        assert len(got[0][0]) == len(spans(version))


def _most(limit: int) -> Properties | None:
    return {MAXIMUM_PACKET_SIZE: limit} if limit else None


def _frames(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = split(data, at)[1]
        found.append(data[at:end])
        at = end
    return found


def older(*payloads: bytes) -> bytes:
    """Packets of 3.1.1 and QoS 0 as they cross."""
    packets = b"".join(serialize(Publish("a/b", payload), 4) for payload in payloads)
    return frame(OLDER, len(packets).to_bytes(4, "big")) + packets


@pytest.mark.parametrize("payloads", [(b"x",), (b"x", b"y"), (b"x", b"yz", b"w")])
def test_what_is_of_5_0_again_is_not_taken_for_older_however_alike(
    payloads: tuple[bytes, ...],
) -> None:
    _, there, clients = pair()
    newer = serialize(Publish("a/b", b""), 5)
    assert len(newer) == len(serialize(Publish("a/b", b"x"), 4))
    there.arriving.take(older(*payloads) + newer * 2 + older(b"q"))
    there.turn()
    for client in clients:
        assert [packet.payload for packet in client.published()] == [*payloads, b"", b"", b"q"]
    assert there.node.broker.metrics.crashes == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 300])
def test_what_comes_in_pieces_is_what_comes_at_once(size: int) -> None:
    _, there, clients = pair()
    payloads = [b"1", b"two", b"", b"long" * 60, b"abc", b"abd"]
    newer = b"".join(serialize(Publish("a/b", payload), 5) for payload in payloads)
    data = older(*payloads) + newer + older(b"one") + newer
    for at in range(0, len(data), size):
        there.arriving.take(data[at : at + size])
    there.turn()
    for client in clients:
        got = [packet.payload for packet in client.published()]
        assert got == [*payloads, *payloads, b"one", *payloads]


def test_a_fault_with_one_that_is_older_leaves_the_others_alone() -> None:
    _, there, clients = pair()
    wrong = older(b"x", b"yz").replace(b"a/byz", b"a/\xffyz")  # no name that can be read
    newer = serialize(Publish("a/b", b""), 5)
    there.arriving.take(wrong + newer + older(b"q"))
    there.turn()
    for client in clients:
        assert [packet.payload for packet in client.published()] == [b"x", b"", b"q"]
    assert there.node.broker.metrics.crashes == 1


def counted(version: int) -> list[bytes]:
    """Packets of QoS 1 that differ in length, and those of 5.0 in properties."""
    blocks: list[Properties | None] = [None, {CORRELATION_DATA: b"12"}, None, {CONTENT_TYPE: "x"}]
    made = [
        Publish("a/b", b"." * (n * 37 % 200), 1, packet_id=n, properties=blocks[n % 4])
        for n in range(1, 9)
    ]
    made.append(Publish("a/b", b"late", 1, packet_id=9, properties={MESSAGE_EXPIRY_INTERVAL: 9}))
    made += [Publish("a/b", b"x" * n, 1, packet_id=9 + n) for n in range(1, 4)]
    if version == 4:
        for each in made:
            each.properties = None
    return [serialize(each, version) for each in made]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("versions", [(4,), (5,), (4, 5)])
@pytest.mark.parametrize("lost", [False, True])
def test_what_differs_in_length_and_properties_crosses_at_qos_1_as_packet_by_packet(
    lost: bool, versions: tuple[int, ...], version: int
) -> None:
    """Also where the other worker dies before it has taken the span."""
    got: list[list[list[tuple[object, ...]]]] = []
    answers: list[bytes] = []
    for together in (True, False):
        here, there = Worker(1), Worker(2)
        joined(here, there)
        clients = [subscriber(there, each) for each in versions]
        pump(here, there)
        publisher = here.node.connect("p", version)
        publisher.read()
        packets = counted(version)
        crossed = b""
        for data in [b"".join(packets)] if together else packets:
            publisher.channel.feed(data)
            crossed += here.turn()
        if together:
            assert kinds(crossed) == [0x32, RUN1]
        if lost:
            link = here.mesh.neighbours[2].link
            assert link is not None
            here.mesh.unlinked(link)
            there = Worker(2, there.drawers, 2)
            clients = [subscriber(there, each) for each in versions]
            joined(here, there)
        else:
            there.arriving.take(crossed)
        pump(here, there)
        got.append(
            [
                [(p.payload, p.qos, p.dup, p.properties) for p in client.published()]
                for client in clients
            ]
        )
        answers.append(publisher.read())
        assert not here.ferry.kept
        assert there.node.broker.metrics.crashes == 0
    assert got[0] == got[1]
    assert [len(each) for each in got[0]] == [len(packets)] * len(versions)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 4 * len(packets)
