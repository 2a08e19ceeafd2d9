"""Connections that another worker serves take turns on the link, with each other and all else."""

from __future__ import annotations

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.mesh.frames import DOWN, DOWN_END, UP, UP_END, number_of, split
from mqttd.mesh.link import Link, Stream
from mqttd.mesh.mesh import Other
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.output import GATHER, LARGE
from mqttd.workers.relay import PIECE, Inland, Outlet, Relays
from tests.support.memory import MemoryBroker, MemoryClient

READ = 64 << 10


class Wire:
    """A transport that keeps what the link writes."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        """So much goes."""
        self.data += data

    def ups(self) -> list[tuple[int, int, int]]:
        """Kind, connection and size of what went of clients."""
        found = []
        at = 0
        while at < len(self.data):
            body, end = split(self.data, at)
            if self.data[at] in (UP, UP_END):
                found.append((self.data[at], number_of(self.data[body:]), end - body - 8))
            at = end
        self.data = b""
        return found


def relayed(count: int) -> tuple[MemoryBroker, Link, Wire, list[MemoryClient]]:
    """So many clients whose worker is another."""
    node = MemoryBroker()
    wire = Wire()
    link = Link(node.broker, Stream(wire), 2)
    link.wraps = True
    link.bound(0)
    relays: Other = Relays(node.broker, lambda number, kind, body: None)
    assert isinstance(relays, Relays)
    clients = []
    for number in range(count):
        client = node.connect(f"c{number}", 5)
        client.channel.intake = Outlet(relays, client.channel, link, number)
        clients.append(client)
    return node, link, wire, clients


def test_many_put_no_more_on_a_link_than_it_has_room_for() -> None:
    node, link, wire, clients = relayed(20)
    data = serialize(Publish("a", b"x" * (READ - 20)), 5)
    for client in clients:
        client.channel.feed(data)
    assert link.out_bytes <= link.flight.room + PIECE + 20
    assert all(client.channel.paused for client in clients[1:])
    # Who else sends waits behind no more than that.
    node.broker.perform()
    had = dict.fromkeys(range(20), 0)
    for _ in range(2000):
        written = link.flight.written
        for _, number, size in wire.ups():
            had[number] += size
        if min(had.values()) == len(data):
            break
        # Each gets as much as the others, but for who was first.
        assert max(list(had.values())[1:]) - min(had.values()) <= 2 * PIECE
        link.taken(written)
        node.broker.perform()
        assert link.flight.written - written <= link.flight.room + PIECE + 20
        link.flight.room = 16 << 10
    assert set(had.values()) == {len(data)}
    assert not any(client.channel.paused for client in clients)


def test_what_a_client_has_sent_goes_before_its_end() -> None:
    node, link, wire, clients = relayed(2)
    for client in clients:
        client.channel.feed(b"x" * READ)
    clients[1].channel.end("reset")
    node.broker.perform()
    seen = wire.ups()
    for _ in range(100):
        link.taken(link.flight.written)
        node.broker.perform()
        seen += wire.ups()
    mine = [(kind, size) for kind, number, size in seen if number == 1]
    assert mine[-1] == (UP_END, len("reset"))
    assert sum(size for kind, size in mine if kind == UP) == READ


def test_what_relayed_clients_are_sent_leaves_room_for_publishers() -> None:
    """Those with much output filled the link whenever there was room, 256 KiB each."""
    node = MemoryBroker()
    wire = Wire()
    link = Link(node.broker, Stream(wire), 2)
    link.wraps = True
    link.bound(0)
    relays = Relays(node.broker, lambda number, kind, body: None)
    size = 100_000
    channels = []
    for number in range(20):
        inland = Inland(relays, link, number, "", 0)
        inland.channel = Channel(node.broker, inland, -1, "")
        channels.append(inland.channel)
        # One large message, and many small ones.
        parts = [b"%05d" % n for n in range(size // 5)] if number % 2 else [bytes(size)]
        for part in parts:
            inland.channel.send(part)
    had = dict.fromkeys(range(20), b"")
    link.flight.room = 64 << 10
    most = GATHER + 20
    for _ in range(2000):
        node.broker.perform()
        node.run_soon()
        link.flight.room = 64 << 10
        at = 0
        written = link.flight.written
        # Half of the room, which may have grown twofold.
        assert written - link.flight.handled <= (64 << 10) + most
        most = PIECE + LARGE + 20  # but for the one that came first
        while at < len(wire.data):
            body, end = split(wire.data, at)
            if wire.data[at] == DOWN:
                had[number_of(wire.data[body:])] += wire.data[body + 8 : end]
            at = end
        wire.data = b""
        sizes = [len(each) for each in had.values()]
        if min(sizes) == size:
            break
        assert max(sizes[1:]) - min(sizes) <= 2 * (PIECE + LARGE)
        link.taken(written)
    assert had[0] == bytes(size)
    assert had[1] == b"".join(b"%05d" % n for n in range(size // 5))
    assert all(len(each) == size for each in had.values())
    assert not any(channel.out_bytes or channel.blocked for channel in channels)


def test_the_last_words_to_a_client_wait_for_room_and_go_before_its_end() -> None:
    """The link was full, or what was on it was handled late: the client was not told why."""
    node = MemoryBroker()
    wire = Wire()
    link = Link(node.broker, Stream(wire), 2)
    link.wraps = True
    link.bound(0)
    relays = Relays(node.broker, lambda number, kind, body: None)
    channels = []
    for number in range(3):
        inland = Inland(relays, link, number, "", 0)
        relays.inlands[(2, number)] = inland
        inland.channel = Channel(node.broker, inland, -1, "")
        channels.append(inland.channel)
    for channel in channels[:2]:
        channel.send(bytes(READ))
    node.broker.perform()
    for channel in channels:
        channel.send(b"last")
        channel.end("kicked")
    node.broker.perform()
    seen: dict[int, list[bytes]] = {number: [] for number in range(3)}
    for _ in range(100):
        at = 0
        while at < len(wire.data):
            body, end = split(wire.data, at)
            if wire.data[at] in (DOWN, DOWN_END):
                kind = b"end" if wire.data[at] == DOWN_END else b""
                seen[number_of(wire.data[body:])].append(kind or wire.data[body + 8 : end])
            at = end
        wire.data = b""
        link.taken(link.flight.written)
        node.broker.perform()
        node.run_soon()
    for number, parts in seen.items():
        assert parts[-1] == b"end" and parts.count(b"end") == 1
        assert b"".join(parts[:-1]) == (bytes(READ) if number < 2 else b"") + b"last"
    assert not relays.inlands
