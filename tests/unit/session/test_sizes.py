"""Messages of every size around the borders of lengths: whole, for whoever gets them, on each way.

    sender 3.1.1 or 5.0 --> remaining lengths 119..135, ... --> receivers of every kind
                                                                `-- read by the independent reader

What is expected is computed from what was sent alone: no path of the broker is the measure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from mqttd.session.ground.settings import Settings
from tests.support import packets as mq
from tests.support.memory import MemoryBroker, MemoryClient
from tests.support.sizes import BORDERS, IDENTIFIERS, PACKET_IDS, around, fill

TOPIC = "a/b"
LASTING = [(mq.SESSION_EXPIRY, 1000)]

#: Properties of messages: none, some of one length, a block around its own border.
BLOCKS: list[list[tuple[int, Any]]] = [
    [],
    [(mq.MESSAGE_EXPIRY, 1000)],
    [(mq.USER_PROPERTY, ("k", "v"))],
    *([(mq.CORRELATION_DATA, b"c" * (length - 3))] for length in (121, 124, 127)),
    [(mq.CORRELATION_DATA, b"c" * 119), (mq.MESSAGE_EXPIRY, 1000)],
]


@dataclass
class Kind:
    """A receiver: how it connects, and its subscription."""

    version: int = mq.V5
    options: int = 2
    topic_filter: str = "a/+"
    props: list[tuple[int, Any]] = field(default_factory=list)
    identifier: int = 0
    #: The largest packet it takes.
    largest: int = 0


KINDS = {
    "3.1.1": [Kind(mq.V311, qos) for qos in (0, 1, 2)],
    "5.0": [Kind(mq.V5, qos) for qos in (0, 1, 2)],
    "mixed": [Kind(version, qos) for version in (mq.V311, mq.V5) for qos in (0, 1, 2)],
    "identifiers": [Kind(mq.V5, n % 3, identifier=number) for n, number in enumerate(IDENTIFIERS)],
    "some identifiers": [
        Kind(mq.V5, 2 - n % 2, identifier=number)
        for n, number in enumerate([0, 300, 0, 20_000, 0, 2_097_152, 0, 7])
    ] + [Kind(mq.V311, 2)],
    "as published": [Kind(mq.V5, 2 | 8), Kind(mq.V5, 1 | 8, identifier=128), Kind(mq.V311, 1)],
    "aliases": [
        Kind(mq.V5, 2, props=[(mq.TOPIC_ALIAS_MAXIMUM, 5)]),
        Kind(mq.V5, 1, props=[(mq.TOPIC_ALIAS_MAXIMUM, 5)], identifier=128),
        Kind(mq.V5, 0, props=[(mq.TOPIC_ALIAS_MAXIMUM, 1)]),
        Kind(mq.V311, 1),
    ],
    "groups": [
        Kind(mq.V5, 1, "$share/g/a/+", identifier=16_384),
        Kind(mq.V311, 2, "$share/h/a/+"),
        Kind(mq.V5, 0, "$share/i/a/+"),
    ],
    "group": [Kind(mq.V5, 2, "$share/g/a/+")],
    "largest": [
        Kind(mq.V5, n % 2, largest=most, identifier=number) for n, (most, number) in
        enumerate([(128, 0), (129, 0), (131, 0), (132, 128), (16_386, 0), (16_387, 128)])
    ],
}  # fmt: skip


class Receiver:
    """One receiver, which reads strictly and keeps what it got."""

    def __init__(self, node: MemoryBroker, number: int, kind: Kind) -> None:
        self.node = node
        self.number = number
        self.kind = kind
        self.aliases: dict[int, str] = {}
        self.got: list[mq.Packet] = []
        self.client = self.come(kind.version)
        props = [(mq.SUBSCRIPTION_ID, kind.identifier)] if kind.identifier else []
        options = kind.options if kind.version == mq.V5 else kind.options & 3
        self.client.feed(
            mq.subscribe([(kind.topic_filter, options)], version=kind.version, props=props)
        )
        self.read()

    def come(self, version: int) -> MemoryClient:
        """Connect, clean only for the first time."""
        self.version = version
        self.aliases = {}
        props = list(self.kind.props)
        if self.kind.largest:
            props.append((mq.MAXIMUM_PACKET_SIZE, self.kind.largest))
        client = self.node.client(version)
        client.feed(mq.connect(f"r{self.number}", version, clean=False, props=[*LASTING, *props]))
        self.client = client
        return client

    def read(self) -> None:
        self.node.run_soon()
        data = self.client.read()
        at = 0
        while at < len(data):
            start = at + 1
            length = shift = 0
            while True:
                length |= (data[start] & 0x7F) << shift
                shift += 7
                start += 1
                if data[start - 1] < 0x80:
                    break
            packet = mq.read(data[at], data[start : start + length], self.version)
            at = start + length
            if packet.type == mq.PUBLISH:
                self.published(packet)

    def published(self, packet: mq.Packet) -> None:
        alias = packet.prop(mq.TOPIC_ALIAS)
        if alias is not None:
            if packet.topic:
                self.aliases[alias] = packet.topic
            packet.topic = self.aliases[alias]
            packet.props = [(i, value) for i, value in packet.props if i != mq.TOPIC_ALIAS]
        self.got.append(packet)

    def wants(self, sent: Sent, waited: int, retained: bool) -> tuple[Any, ...] | None:
        """What it is to get of a message; None: nothing, it is too large."""
        kind = self.kind
        qos = min(kind.options & 3, sent.qos)
        retain = retained or (sent.retain and kind.options & 8 != 0 and kind.version == mq.V5)
        own = [(i, v - waited if i == mq.MESSAGE_EXPIRY else v) for i, v in sent.props]
        props = sorted(map(repr, own)) if self.version == mq.V5 else []
        named = [kind.identifier] if kind.identifier and self.version == mq.V5 else []
        if kind.largest:
            block = [*sent.props, *((mq.SUBSCRIPTION_ID, number) for number in named)]
            whole = mq.publish(TOPIC, sent.payload, qos, 1, version=mq.V5, props=block)
            if len(whole) > kind.largest:
                return None
        return TOPIC, brief(sent.payload), qos, retain, named, props

    def check(self, sent: list[Sent], waited: int = 0, retained: bool = False) -> None:
        """It got all of that, in order, under ids that differ; it acknowledges them."""
        self.read()
        wanted = [self.wants(each, waited, retained) for each in sent]
        got = [
            (
                packet.topic,
                brief(packet.payload),
                packet.qos,
                packet.retain,
                packet.all(mq.SUBSCRIPTION_ID),
                sorted(repr(one) for one in packet.props if one[0] != mq.SUBSCRIPTION_ID),
            )
            for packet in self.got
        ]
        assert got == [each for each in wanted if each is not None], self.kind
        ids = [packet.packet_id for packet in self.got if packet.qos]
        assert len(ids) == len(set(ids)), self.kind
        self.acknowledge()

    def acknowledge(self) -> None:
        """All of it, to the end."""
        version = self.version
        for packet in self.got:
            if packet.qos == 1:
                self.client.feed(mq.puback(packet.packet_id, version))
            elif packet.qos == 2:
                self.client.feed(mq.pubrec(packet.packet_id, version))
                self.client.feed(mq.pubcomp(packet.packet_id, version))
        self.got.clear()
        self.client.read()
        assert not self.client.session.inflight and not self.client.closed


def brief(payload: bytes) -> tuple[bytes, int, int]:
    """What a failure shows of a payload: megabytes of dots say no more."""
    return payload[:12], len(payload), zlib.crc32(payload)


@dataclass
class Sent:
    """One message."""

    payload: bytes
    qos: int
    retain: bool
    props: list[tuple[int, Any]]


class Sender:
    """A client that publishes messages of given remaining lengths."""

    def __init__(self, node: MemoryBroker, name: str, version: int, alias: bool) -> None:
        self.client = node.client(version)
        self.client.feed(mq.connect(name, version))
        self.version = version
        self.alias = alias and version == mq.V5
        self.known = False
        self.node = node

    def wire(self, remaining: int, qos: int, packet_id: int, retain: bool, block: int) -> bytes:
        """One PUBLISH; `self.last` says what it is."""
        own = BLOCKS[block] if self.version == mq.V5 else []
        props = [*own, (mq.TOPIC_ALIAS, 1)] if self.alias else own
        topic = "" if self.alias and self.known else TOPIC
        self.known = True

        def made(payload: bytes) -> bytes:
            return mq.publish(
                topic, payload, qos, packet_id, version=self.version, retain=retain, props=props
            )

        payload = fill(made, remaining, b"<%d>" % remaining)
        self.last = Sent(payload, qos, retain, own)
        return made(payload)


class Scene:
    """A broker with receivers, and senders of one version: plain, with the same ids, by alias."""

    def __init__(self, kinds: list[Kind], version: int) -> None:
        configured = Settings()
        configured.max_inflight = 60_000
        configured.mqueue_max_length = 60_000
        configured.outbound_topic_alias = True
        configured.max_packet_size = 3 << 20
        self.node = MemoryBroker(configured)
        self.receivers = [Receiver(self.node, n, kind) for n, kind in enumerate(kinds)]
        self.senders = [
            Sender(self.node, name, version, name == "alias") for name in ("one", "two", "alias")
        ]

    def publish(
        self, lengths: Iterable[int], qos: int, retain: bool, block: int, at_once: bool
    ) -> list[Sent]:
        """Each sender sends a message of each length, at QoS 0 a run of two."""
        sent: list[Sent] = []
        for sender in self.senders:
            wires: list[bytes] = []
            ids: list[int] = []
            for n, remaining in enumerate(lengths):
                packet_id = PACKET_IDS[n] if n < len(PACKET_IDS) else 1000 + n
                ids.append(packet_id)
                for _ in range(1 if qos else 2):
                    wires.append(sender.wire(remaining, qos, packet_id, retain, block))
                    sent.append(sender.last)
            for wire in [b"".join(wires)] if at_once else wires:
                sender.client.feed(wire)
            if qos == 2:
                sender.client.feed(b"".join(mq.pubrel(n, sender.version) for n in ids))
            self.node.run_soon()
            assert not sender.client.closed
        return sent


@pytest.mark.parametrize("way", ["apart", "together", "retained"])
@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.slow
def test_every_size_arrives_whole(kinds: str, version: int, way: str) -> None:
    scene = Scene(KINDS[kinds], version)
    for block in range(len(BLOCKS) if version == mq.V5 else 1):
        for border, qos in product(BORDERS[:2], (0, 1, 2)):
            sent = scene.publish(around(border), qos, way == "retained", block, way == "together")
            for receiver in scene.receivers:
                receiver.check(sent)


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize("kinds", [kinds for kinds in KINDS if kinds != "largest"])
@pytest.mark.slow
def test_every_size_waits_whole_for_whatever_version_comes_back(kinds: str, version: int) -> None:
    scene = Scene(KINDS[kinds], version)
    for block in range(len(BLOCKS) if version == mq.V5 else 1):
        for border, qos, as_before in product(BORDERS[:2], (1, 2), (False, True)):
            for receiver in scene.receivers:
                receiver.client.drop()
            sent = scene.publish(around(border), qos, False, block, True)
            scene.node.advance(5000)
            for receiver in scene.receivers:
                other = mq.V311 if receiver.version == mq.V5 else mq.V5
                receiver.come(receiver.version if as_before else other)
            for receiver in scene.receivers:
                receiver.check(sent, 5)


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
def test_the_largest_of_three_bytes_arrives_whole(version: int) -> None:
    kinds = [Kind(mq.V5, 1, identifier=number) for number in (0, 300, 0)]
    scene = Scene([Kind(mq.V311, 1), *kinds], version)
    del scene.senders[2:]  # two: the second one's packet ids are in flight
    sent = scene.publish([BORDERS[2] - 4, BORDERS[2]], 1, False, 0, False)
    for receiver in scene.receivers:
        receiver.check(sent)


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.slow
def test_every_size_is_retained_whole(version: int) -> None:
    scene = Scene([], version)
    number = 0
    for block in range(len(BLOCKS) if version == mq.V5 else 1):
        for border, qos in product(BORDERS[:2], (0, 1, 2)):
            for remaining in around(border):
                sent = scene.publish([remaining], qos, True, block, False)[-1:]
                for kind in (Kind(mq.V311), Kind(identifier=IDENTIFIERS[number % 8]), Kind()):
                    number += 1
                    kind.options |= 8
                    receiver = Receiver(scene.node, number, kind)
                    receiver.check(sent, retained=True)
                    receiver.client.feed(mq.disconnect(mq.V5, 0, [(mq.SESSION_EXPIRY, 0)]))
