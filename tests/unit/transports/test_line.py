"""Who comes faster than accept_rate stands in a line of its address."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqttd.codec.packets import Connect, Will
from mqttd.codec.properties import USER_PROPERTY
from mqttd.codec.serializer import serialize
from mqttd.testing import MemoryBroker
from mqttd.transports.accepting import LET_IN
from mqttd.transports.admission import Admission
from mqttd.transports.engine import Engine
from mqttd.transports.layers import Stack
from mqttd.transports.ports import Port
from mqttd.transports.proxy import ProxyHeader, ProxyLayer
from mqttd.types import PeerIdentity

CROWD, OTHER, THIRD = "127.0.0.66", "127.0.0.7", "127.0.0.8"
RATE = 5


class Porch:
    """A port of the engine that lets ten in at once, and five a second."""

    def __init__(self, make: Callable[[Any], Stack] | None = None) -> None:
        self.node = MemoryBroker()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.engine = Engine(
            self.node.broker, later=lambda wait, what: self.timers.append((wait, what))
        )
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.listening.setblocking(False)
        self.engine.listen("tcp:porch", self.listening, 0, make)
        self.port: Port = self.engine.by_name["tcp:porch"]
        self.port.gate = Admission([(True, None)], RATE, self.node.broker.now)
        self.socks: list[socket.socket] = []

    def come(self, source: str, count: int = 1) -> None:
        """So many connect, and stand in line or are let in."""
        address = self.listening.getsockname()
        came = [socket.create_connection(address, 10, (source, 0)) for _ in range(count)]
        self.socks += came
        self.port.gate.bucket.at = self.now  # no time passes meanwhile
        # Who connected is in the queue of the kernel.
        self.engine.accept(self.port)

    @property
    def now(self) -> int:
        return self.node.broker.now

    def later(self, milliseconds: int) -> None:
        self.node.broker.now += milliseconds
        self.engine.serve_line(self.port)

    def inside(self) -> dict[str, int]:
        return {name: house.connections for name, house in self.port.lobby.houses.items()}

    def gone(self) -> int:
        """How many of those who came the broker has closed."""
        poll = select.poll()
        for sock in self.socks:
            poll.register(sock, select.POLLIN)
        return len(poll.poll(0))

    def close(self) -> None:
        self.engine.close_all()
        for sock in self.socks:
            sock.close()


@pytest.fixture
def porch() -> Iterator[Porch]:
    made = Porch()
    yield made
    made.close()


def test_houses_have_their_turn_however_many_of_one_wait(porch: Porch) -> None:
    porch.come(CROWD, 30)
    porch.come(OTHER)
    porch.come(THIRD)
    assert porch.inside() == {CROWD: 10}
    assert len(porch.port.line) == 22
    porch.later(600)
    assert porch.inside() == {CROWD: 11, OTHER: 1, THIRD: 1}
    porch.later(2000)
    porch.later(2000)
    assert not len(porch.port.line) and porch.inside()[CROWD] == 30
    assert porch.gone() == 0


def test_who_comes_no_faster_than_allowed_does_not_wait(porch: Porch) -> None:
    porch.come(CROWD, 10)
    assert porch.inside() == {CROWD: 10} and not len(porch.port.line)
    metrics = porch.node.broker.metrics
    assert metrics.accepts_paused_rate == 0 and not porch.timers
    porch.come(CROWD)
    assert metrics.accepts_paused_rate == 1 and porch.port.why == "rate"
    (wait, look), *more = porch.timers
    assert not more and 0.1 < wait < 0.3  # the rate says when
    porch.port.gate.bucket.level = 1.0
    look()
    assert porch.inside() == {CROWD: 11} and len(porch.timers) == 1
    porch.engine.tick(porch.now)
    assert porch.port.why == ""


def test_beyond_the_most_the_last_of_the_longest_line_goes(porch: Porch) -> None:
    porch.port.waiting_most = 4
    porch.come(CROWD, 16)
    assert (len(porch.port.line), porch.gone()) == (4, 2)
    porch.come(OTHER)
    assert (len(porch.port.line), porch.gone()) == (4, 3)
    assert porch.port.line.of(OTHER) == 1
    metrics = porch.node.broker.metrics
    assert metrics.refused_in_line == metrics.connections_refused == 3
    porch.later(400)
    assert porch.inside() == {CROWD: 11, OTHER: 1}


def test_who_waits_counts_as_a_connection_and_waits_for_room(porch: Porch) -> None:
    porch.port.max_connections = 12
    porch.come(CROWD, 16)
    assert (len(porch.port.line), porch.gone()) == (2, 4)
    porch.port.max_connections = 10
    porch.later(4000)
    assert porch.inside() == {CROWD: 10} and len(porch.port.line) == 2
    porch.port.max_connections = 11
    porch.engine.tick(porch.now)
    assert porch.inside() == {CROWD: 11} and len(porch.port.line) == 1


def test_a_house_that_has_enough_connections_is_refused_in_line_too(porch: Porch) -> None:
    porch.come(CROWD, 14)
    porch.port.lobby.each = 12
    porch.later(400)
    porch.later(400)
    assert porch.inside() == {CROWD: 12} and porch.gone() == 2
    assert porch.node.broker.metrics.refused_crowded == 2


def test_a_listener_that_stops_closes_who_waits(porch: Porch) -> None:
    porch.come(CROWD, 14)
    porch.engine.unlisten("tcp:porch")
    assert porch.gone() == 4


def test_headers_of_proxies_are_no_handshakes_and_all_are_read_in_their_turn() -> None:
    """Eight a turn, of whom half had said for whom they come: that is for TLS."""

    def known(header: ProxyHeader) -> PeerIdentity:
        return PeerIdentity(header.host, header.port)

    porch = Porch(lambda address: Stack([ProxyLayer(known)]))
    try:
        porch.port.gate = None
        porch.port.proxied = True
        address = porch.listening.getsockname()
        for _ in range(40):
            porch.socks.append(socket.create_connection(address, 10, (CROWD, 0)))
        porch.engine.accept(porch.port)
        for number, sock in enumerate(porch.socks):
            sock.sendall(b"PROXY TCP4 192.0.2.%d 127.0.0.1 40000 1883\r\n" % (number + 1))
        porch.engine.doRead()
        assert len(porch.port.lobby.houses) == 40 and porch.inside()["192.0.2.40"] == 1
    finally:
        porch.close()


@pytest.mark.parametrize("gated", [True, False])
def test_who_comes_together_is_let_in_some_a_turn(porch: Porch, gated: bool) -> None:
    """All 256 that were accepted were: with what each asked that was a tenth of a second."""
    porch.port.gate = Admission([(True, None)], 10_000, porch.now) if gated else None
    address = porch.listening.getsockname()
    for _ in range(150):
        porch.socks.append(socket.create_connection(address, 10, (CROWD, 0)))
    metrics = porch.node.broker.metrics
    seen = []
    for _ in range(3):
        if porch.timers:
            (wait, look), *_ = porch.timers
            porch.timers.clear()
            assert wait == 0.0  # the rate keeps nobody
            look()
        else:
            porch.engine.accept(porch.port)
        seen.append(metrics.connections_accepted)
    assert seen == [LET_IN, 2 * LET_IN, 150]
    assert not len(porch.port.line) and not porch.timers
    assert metrics.accepts_paused_rate == 0 and porch.gone() == 0


@pytest.mark.parametrize("gated", [True, False])
def test_what_those_bring_who_come_together_is_weighed(porch: Porch, gated: bool) -> None:
    """64 of as many addresses, a will of 5,700 user properties each, took a tenth of a second."""
    porch.port.gate = Admission([(True, None)], 10_000, porch.now) if gated else None
    porch.port.deferred = True
    will = Will("t", b"", properties={USER_PROPERTY: [("a", "b")] * 5_714})
    packet = serialize(Connect("", version=5, will=will), 5)
    address = porch.listening.getsockname()
    for number in range(40):
        porch.socks.append(socket.create_connection(address, 10, (f"127.0.1.{number + 1}", 0)))
        porch.socks[-1].sendall(packet)
    metrics = porch.node.broker.metrics
    turns = 0
    while metrics.connections_accepted < 40 and turns < 40:
        before = metrics.connections_accepted
        porch.engine.accept(porch.port)
        assert 0 < metrics.connections_accepted - before < 12
        turns += 1
    assert metrics.connections_accepted == 40


def test_who_has_come_lately_is_known_without_the_kernel(
    porch: Porch,
) -> None:
    engine = porch.engine
    porch.come(CROWD)
    (first,) = engine.channels.all()
    came = porch.socks[0].getsockname()
    fd = first.fd
    assert engine.peer(first) == engine.peer(first) == came
    assert engine.lately == {fd: came}
    engine.tick(porch.now)
    assert not engine.lately and engine.peer(first) == came  # of the kernel
    porch.come(OTHER)
    second = next(each for each in engine.channels.all() if each is not first)
    assert engine.peer(second) == porch.socks[1].getsockname()
    porch.come(THIRD)
    assert len(engine.fresh) == len(engine.lately) == 1
    for channel in engine.channels.all():
        channel.end("over")
    porch.node.broker.perform()
    assert not engine.lately and not engine.fresh  # others will have these descriptors
