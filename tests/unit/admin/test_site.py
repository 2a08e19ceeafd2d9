"""What a peer of an HTTP door may ask of it: how much, how many, and in whose turn."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from mqttd.admin.doors.site import STRANGER, TIMEOUT, Crowd, site_of
from mqttd.admin.doors.turns import TURN

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WAITS = b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo(Resource):
    """Counts its requests, and keeps those of /waits."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = 0
        self.waits: list[Any] = []
        #: Seconds that each request takes.
        self.takes = 0.0
        self.clock: Any = None

    def render_GET(self, request: Any) -> Any:
        self.asked += 1
        self.clock.rightNow += self.takes
        if request.path == b"/waits":
            self.waits.append(request)
            return NOT_DONE_YET
        return bytes(10_000)

    def render_POST(self, request: Any) -> bytes:
        return b"%d %d" % (len(request.content.read()), len(request.args))


class Producer:
    """Writes nothing."""

    def stopProducing(self) -> None:
        """It is gone."""


class Reactor(Clock):
    """A clock whose turns are those of a reactor: what is put off in one is for the next."""

    def turn(self) -> None:
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class Door:
    """A site with a clock of its own, and what connects to it."""

    def __init__(self, max_body: int = 100, crowd: Crowd | None = None, known: Any = None) -> None:
        self.clock = Reactor()
        self.echo = Echo()
        self.echo.clock = self.clock
        self.site = site_of(self.echo, max_body, crowd, known, self.clock)

    def connect(self, host: str = "127.0.0.1") -> tuple[Any, StringTransport]:
        protocol: Any = self.site.buildProtocol(IPv4Address("TCP", host, 1))
        transport = StringTransport()
        protocol.makeConnection(transport)
        return protocol, transport


def exchange(*parts: bytes) -> tuple[bytes, bool]:
    """What a server for bodies of 100 bytes answers; whether it ends the connection."""
    protocol, transport = Door().connect()
    for part in parts:
        protocol.dataReceived(part)
    return transport.value(), transport.disconnecting


def test_a_body_within_the_limit_is_served() -> None:
    answer, _ = exchange(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"x" * 100)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n100 0")


@pytest.mark.parametrize(
    "parts",
    [
        [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n"],
        [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n", b"x" * 101],
        [
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"40\r\n" + b"x" * 64 + b"\r\n",
            b"40\r\n" + b"x" * 64 + b"\r\n",
            b"0\r\n\r\n",
        ],
    ],
)
def test_a_larger_body_ends_the_connection(parts: list[bytes]) -> None:
    answer, ended = exchange(*parts)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert ended


def test_a_body_in_chunks_of_a_byte_is_read_no_further() -> None:
    """64 KiB of them took 20 ms of one turn, and as much of the next."""
    door = Door(1 << 20)
    protocol, transport = door.connect()
    protocol.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    protocol.dataReceived(b"1\r\nx\r\n" * 400 + b"7d0\r\n" + b"x" * 2000 + b"\r\n")
    assert not transport.disconnecting
    protocol.dataReceived(b"1\r\nx\r\n" * 10_000)
    assert transport.value().startswith(b"HTTP/1.1 400 ") and transport.disconnecting
    assert not door.echo.asked


@pytest.mark.parametrize(("shown", "status"), [(b"", b"413"), (b"X-Token: y\r\n", b"200")])
def test_who_shows_nothing_sends_less(shown: bytes, status: bytes) -> None:
    door = Door(1 << 20, known=lambda request: request.getHeader(b"x-token") is not None)
    protocol, transport = door.connect()
    size = STRANGER + 1
    protocol.dataReceived(
        b"POST / HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (shown, size)
    )
    protocol.dataReceived(bytes(size))
    assert transport.value().startswith(b"HTTP/1.1 " + status)


def test_a_form_is_not_taken_apart() -> None:
    """A megabyte of `a=&` would be 100 MiB, before anybody was asked for a token."""
    answer, _ = exchange(
        b"POST /?x=1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 100\r\n\r\n" + b"ab=&" * 25
    )
    assert answer.endswith(b"\r\n100 1")


def test_a_connection_has_one_request_a_turn() -> None:
    """Thousands of requests fit into one read."""
    door = Door()
    protocol, transport = door.connect()
    protocol.dataReceived(GET * 500)
    assert door.echo.asked == 1
    assert transport.producerState == "paused"
    for turn in range(2, 500):
        door.clock.turn()
        assert door.echo.asked == turn
    door.clock.turn()
    assert transport.value().count(b"HTTP/1.1 200 ") == 500
    assert transport.producerState == "producing"
    protocol.dataReceived(GET)
    assert door.echo.asked == 501


def test_who_does_not_read_is_asked_nothing_for() -> None:
    door = Door()
    protocol, transport = door.connect()
    protocol.dataReceived(GET * 3)
    protocol.pauseProducing()  # as the transport does, whose buffer is full
    door.clock.turn()
    assert door.echo.asked == 1
    protocol.resumeProducing()
    door.clock.turn()
    door.clock.turn()
    assert transport.value().count(b"HTTP/1.1 200 ") == 3


def test_who_does_not_read_is_not_read_from_either() -> None:
    """A request that comes in a packet of its own is no other than one right behind the first."""
    door = Door()
    protocol, transport = door.connect()
    protocol.dataReceived(WAITS)
    protocol.pauseProducing()
    door.echo.waits.pop().finish()
    assert transport.producerState == "paused"
    protocol.dataReceived(GET)  # was on its way
    door.clock.turn()
    assert door.echo.asked == 1
    protocol.resumeProducing()
    door.clock.turn()
    door.clock.turn()
    assert door.echo.asked == 2 and transport.producerState == "producing"


def test_the_requests_of_all_connections_share_a_turn() -> None:
    """Four hundred connections, half a millisecond each: nobody else had a turn for so long."""
    door = Door()
    door.echo.takes = TURN / 4
    connected = [door.connect() for _ in range(10)]
    for channel, _ in connected:
        channel.dataReceived(GET * 2)
    asked = []
    for _ in range(20):
        asked.append(door.echo.asked)
        door.clock.turn()
    assert asked[:7] == [1, 5, 9, 13, 17, 20, 20]
    assert all(found.value().count(b" 200 OK") == 2 for _, found in connected)
    assert all(found.producerState == "producing" for _, found in connected)


def test_who_goes_while_it_waits_for_a_turn_is_forgotten() -> None:
    door = Door()
    door.echo.takes = TURN
    first, goes, last = (door.connect() for _ in range(3))
    for channel, _ in (first, goes, last):
        channel.dataReceived(GET)
    goes[0].connectionLost(Failure(ConnectionDone()))
    door.clock.turn()
    assert door.echo.asked == 2 and last[1].value().count(b" 200 OK") == 1


def test_a_request_that_is_over_holds_no_connection() -> None:
    """Whoever keeps it, a plugin's page in a circle: what was unsent would be kept with it."""
    door = Door()
    answered, _ = door.connect()
    answered.dataReceived(WAITS)
    left, _ = door.connect()
    left.dataReceived(WAITS)
    kept = door.echo.waits
    kept[1].registerProducer(Producer(), True)
    kept[0].finish()
    left.connectionLost(Failure(ConnectionDone()))
    assert [request.transport for request in kept] == [None, None]
    assert kept[1].producer is None


def test_requests_behind_one_that_waits_come_after_it() -> None:
    door = Door()
    protocol, transport = door.connect()
    protocol.dataReceived(WAITS + GET + GET)
    door.clock.turn()
    assert door.echo.asked == 1
    door.echo.waits.pop().finish()
    door.clock.turn()
    door.clock.turn()
    assert door.echo.asked == 3
    protocol.dataReceived(GET)
    protocol.connectionLost(Failure(ConnectionDone()))
    door.clock.turn()
    assert [call for call in door.clock.getDelayedCalls() if call.active()] == []


def test_a_request_has_its_time_however_slowly_it_comes() -> None:
    door = Door()
    protocol, transport = door.connect()
    protocol.dataReceived(GET)
    for at in range(TIMEOUT):
        assert not transport.disconnecting
        protocol.dataReceived(GET[at % 10 : at % 10 + 1])
        door.clock.advance(1)
    assert transport.disconnecting
    waiting, there = door.connect()
    waiting.dataReceived(WAITS)
    door.clock.advance(10 * TIMEOUT)
    assert not there.disconnecting


def test_over_a_network_so_many_are_connected_at_most() -> None:
    """Ten thousand that send a body and never end it would each be kept for a minute."""
    door = Door(crowd=Crowd(most=5, each=3))
    first = [door.connect("192.0.2.1") for _ in range(4)]
    other = [door.connect("192.0.2.2") for _ in range(3)]
    assert [gone.disconnected for _, gone in first] == [False, False, False, True]
    assert [gone.disconnected for _, gone in other] == [False, False, True]
    for protocol, _ in (*first, *other):
        protocol.connectionLost(Failure(ConnectionDone()))
    protocol, transport = door.connect("192.0.2.1")
    protocol.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxx")
    assert transport.value().endswith(b"\r\n2 0") and not transport.disconnected
    assert door.site.crowd.refused == 2


def test_what_nobody_reads_is_bounded_and_who_has_read_nothing_for_longest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqttd.admin.doors.site.UNREAD", 25_000)
    door = Door(crowd=Crowd())
    crowd = door.site.crowd
    slow = [door.connect(f"192.0.2.{n}") for n in range(4)]
    reads, _ = door.connect("192.0.2.9")
    reads.dataReceived(GET)
    assert crowd.held == 0  # all of it is with the peer
    for protocol, transport in slow[:2]:
        transport.producer.pauseProducing()
        protocol.writeSequence([b"x" * 10_000, b"y"])
    assert crowd.held == 20_002
    slow[0][1].producer.resumeProducing()
    assert crowd.held == 10_001
    for protocol, transport in slow[2:]:
        transport.producer.pauseProducing()
        protocol.write(b"x" * 10_000)
    assert [transport.disconnected for _, transport in slow] == [False, True, False, False]
    assert (crowd.held, crowd.ended) == (20_000, 1)
    for protocol in (reads, *(protocol for protocol, _ in slow)):
        protocol.connectionLost(Failure(ConnectionDone()))
    assert crowd.held == 0


def test_who_asks_nothing_makes_room() -> None:
    """Half a request is nothing; who waits for an answer stays."""
    door = Door(crowd=Crowd(most=4, each=3))
    waits, silent, half = (door.connect("192.0.2.1") for _ in range(3))
    waits[0].dataReceived(WAITS)
    door.clock.advance(0.5)
    half[0].dataReceived(GET[:9])
    silent[0].dataReceived(GET)
    door.clock.advance(1)
    another = door.connect("192.0.2.1")
    assert half[1].disconnected and not another[1].disconnected
    other = door.connect("192.0.2.2")
    assert not other[1].disconnected and not silent[1].disconnected
    last = door.connect("192.0.2.3")
    assert silent[1].disconnected and not last[1].disconnected
    assert not waits[1].disconnected
    assert door.connect("192.0.2.4")[1].disconnected  # those who are there have just come
    half[0].connectionLost(Failure(ConnectionDone()))
    assert (door.site.crowd.refused, door.site.crowd.ended) == (1, 2)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 17_000), b"414 URI Too Long"),
        (b"GET /?%s" % (b"a" * 17_000), b"414 URI Too Long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: %s" % (b"a" * 17_000), b"431 Request Header"),
        (
            b"GET / HTTP/1.1\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 440,
            b"431 Request",
        ),
    ],
)
@pytest.mark.parametrize("before", [b"", GET])
def test_a_head_that_is_too_long_is_told_so(head: bytes, status: bytes, before: bytes) -> None:
    door = Door()
    channel, transport = door.connect()
    channel.dataReceived(before)
    door.clock.turn()
    transport.clear()
    channel.dataReceived(head)
    door.clock.turn()
    answer = transport.value()
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"application/problem+json" in answer and transport.disconnecting
    assert door.echo.asked == (1 if before else 0)


def test_a_head_of_many_requests_is_one_of_each() -> None:
    door = Door()
    channel, transport = door.connect()
    for _ in range(20):
        channel.dataReceived(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 1500))
        door.clock.turn()
    assert door.echo.asked == 20 and not transport.disconnecting
