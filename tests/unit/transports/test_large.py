"""Large payloads through the engine's sockets: in place in, unjoined out, whatever is cut short."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from mqttd.session.channel.channel import Channel
from mqttd.session.channel.limits import Limits
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.unfinished import READ
from mqttd.transports.engine import Engine
from tests.support import packets as mq
from tests.support.memory import MemoryBroker

MEGABYTE = 1 << 20


class Site:
    """An engine and blocking clients of it, turned by hand."""

    def __init__(self) -> None:
        self.node = MemoryBroker()
        self.node.settings.max_packet_size = 257 * MEGABYTE
        self.node.settings.high_watermark = 64 * MEGABYTE
        self.engine = Engine(self.node.broker)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.address = listening.getsockname()
        self.engine.listen("tcp:door", listening, 0)
        self.clients: list[socket.socket] = []

    def connect(self, client_id: str, room: int = 0) -> socket.socket:
        client = socket.socket()
        if room:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        client.connect(self.address)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(mq.connect(client_id))
        while not readable(client):
            self.engine.doRead()
        assert client.recv(4)[:1] == b"\x20"
        client.setblocking(False)
        self.clients.append(client)
        return client

    def subscribe(self, client: socket.socket, topic: str) -> None:
        client.send(mq.subscribe([(topic, 1)]))
        while not readable(client):
            self.engine.doRead()
        assert client.recv(5)[:1] == b"\x90"

    def move(self, sender: socket.socket, data: bytes, reader: socket.socket, size: int) -> bytes:
        """Send as the broker reads, read as it writes, until so many bytes have come."""
        rnd = random.Random(size)
        got = bytearray()
        at = 0
        for _ in range(200_000):
            if at < len(data):
                try:
                    at += sender.send(data[at : at + rnd.choice([1, 70_000, MEGABYTE])])
                except BlockingIOError:
                    pass
            self.engine.doRead()
            try:
                got += reader.recv(rnd.choice([1_000, 300_000]))
            except BlockingIOError:
                pass
            if len(got) >= size:
                return bytes(got)
        raise AssertionError(f"{len(got)} of {size} bytes came")


def readable(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    for client in made.clients:
        client.close()
    made.engine.doRead()
    made.engine.close_all()


@pytest.mark.parametrize("room", [0, 8_192], ids=["fast reader", "slow reader"])
@pytest.mark.parametrize("size", [20_000, 65_000, 200_000, MEGABYTE, 3 * MEGABYTE])
def test_a_payload_arrives_as_it_was_sent(site: Site, size: int, room: int) -> None:
    reader = site.connect("reader", room)
    site.subscribe(reader, "t")
    sender = site.connect("sender")
    payloads = [random.Random(n).randbytes(size + n) for n in range(3)]
    wire = b"".join([mq.publish("t", b"small"), *(mq.publish("t", p) for p in payloads)])
    wire += mq.publish("t", b"the end")
    assert site.move(sender, wire, reader, len(wire)) == wire
    broker = site.node.broker
    assert broker.backlog == 0
    assert all(channel.unfinished() == 0 for channel in site.engine.channels.all())
    assert all(channel.out_bytes == 0 for channel in site.engine.channels.all())
    assert broker.metrics.bytes_sent >= len(wire)


def test_a_limited_rate_keeps_what_is_written_and_what_waits_apart(site: Site) -> None:
    broker = site.node.broker
    limits = Limits(broker.now, send_rate=100 * MEGABYTE)
    broker.listeners["tcp:door"] = Listener("tcp:door", limits=limits)
    reader = site.connect("reader", 8_192)
    site.subscribe(reader, "t")
    sender = site.connect("sender")
    wire = b"".join([mq.publish("t", bytes([n]) * 150_000) for n in range(6)])
    assert site.move(sender, wire, reader, len(wire)) == wire
    assert broker.backlog == 0


def test_who_announces_much_costs_what_it_sends(site: Site) -> None:
    sender = site.connect("sender")
    announced = mq.publish("t", bytes(10))[:1] + b"\xff\xff\xff\x7f"
    site.engine.doRead()
    (channel,) = site.engine.channels.all()
    at = 0
    for data in (announced, bytes(1_000), bytes(100_000), bytes(500_000)):
        at += len(data)
        while data:
            try:
                data = data[sender.send(data) :]
            except BlockingIOError:
                pass
            site.engine.doRead()
        for _ in range(100_000):
            site.engine.doRead()
            if channel.rest is not None and channel.rest.arrived == at:
                break
        assert channel.rest is not None and channel.rest.arrived == at
        assert channel.unfinished() <= 4 * at
    sender.close()
    for _ in range(3):
        site.engine.doRead()
    assert not site.engine.channels.count
    assert channel.unfinished() == 0


def test_who_sends_large_packets_all_the_time_has_them_read_at_once(site: Site) -> None:
    reader, sender = site.connect("reader"), site.connect("sender")
    site.subscribe(reader, "t")
    channel = site.node.broker.sessions["sender"].channel
    assert isinstance(channel, Channel)
    rnd = random.Random(5)
    at_once = []
    for size in [*[300_000] * 12, 10, 70_000, *[300_000] * 3, 500_000, 300_000]:
        wire = mq.publish("t", rnd.randbytes(size))
        sent = sender.send(wire)  # as much as the kernel takes is there when it is asked for
        site.engine.doRead()
        assert site.move(sender, wire[sent:], reader, len(wire)) == wire
        at_once.append(channel.at_once)
    assert max(at_once[:8]) == 0
    assert max(at_once[8:]) > 300_000
    assert at_once[12] == 0
    assert channel.unfinished() == 0


def pour(site: Site, sender: socket.socket, wire: bytes, reader: socket.socket) -> bytes:
    """As much as the kernel takes is there before the broker reads."""
    sent = sender.send(wire)
    return site.move(sender, wire[sent:], reader, len(wire))


@pytest.mark.parametrize(("size", "several"), [(200, False), (20_000, True), (60_000, True)])
def test_a_turn_reads_several_times_from_who_sends_few_large_packets(
    site: Site, monkeypatch: pytest.MonkeyPatch, size: int, several: bool
) -> None:
    sender = site.connect("sender")
    reads: list[int] = []

    def read(fd: int, most: int, really: Callable[[int, int], bytes] = os.read) -> bytes:
        data = really(fd, most)
        reads.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MEGABYTE)
    wire = mq.publish("t", bytes(size))
    wire *= 3 * MEGABYTE // len(wire)
    turns: list[int] = []
    while wire:
        wire = wire[sender.send(wire) :]
        reads.clear()
        site.engine.doRead()
        turns.append(len(reads))
        assert sum(reads) <= 3 * READ
    assert (max(turns) > 1) == several


def test_whatever_sizes_follow_one_another_the_bytes_arrive_as_they_were_sent(site: Site) -> None:
    reader, sender = site.connect("reader"), site.connect("sender")
    site.subscribe(reader, "t")
    rnd = random.Random(7)
    wires: list[bytes] = []
    for _ in range(40):
        size = rnd.choice([2, 8_000, 16_380, 20_000, 40_000, 70_000, 150_000])
        for _ in range(rnd.choice([1, 1, 3, 6])):
            wires.append(mq.publish("t", rnd.randbytes(size)))
    wire = b"".join(wires)
    assert pour(site, sender, wire, reader) == wire
    assert all(channel.unfinished() == 0 for channel in site.engine.channels.all())


def test_a_turn_reads_so_much_and_no_more(site: Site) -> None:
    """A hundred packets that have piled up in the kernel; everybody's turn comes all the same."""
    honest = site.connect("honest")
    clients = [site.connect(f"c{number}") for number in range(100)]
    for client in clients:
        client.send(mq.publish("t", bytes(2 * MEGABYTE), 1, 1)[:-1])
    honest.send(mq.pingreq())
    account = site.node.broker.account
    largest = turns = 0
    while not readable(honest):
        before = account.unfinished
        site.engine.doRead()
        largest = max(largest, account.unfinished - before)
        turns += 1
    held = -1
    while site.engine.left or held != account.unfinished:
        held = account.unfinished
        site.engine.doRead()
        largest = max(largest, account.unfinished - held)
    assert turns < 20
    assert held > 16 * MEGABYTE
    assert largest < 6 * MEGABYTE
    channels = [channel for channel in site.engine.channels.all() if channel.rest is not None]
    assert len(channels) == 100
