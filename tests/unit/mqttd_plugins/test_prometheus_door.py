"""prometheus: what a stranger may have at its address without a password."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from mqttd_plugins.prometheus.door import MOST, SECONDS, DoorSite, Kept

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Made:
    """A text of its own each time."""

    def __init__(self) -> None:
        self.times = 0

    def choose(self, request: Any) -> tuple[str, str]:
        return "text", "text/plain"

    def text(self, encode: str) -> bytes:
        self.times += 1
        return b"%s %d" % (encode.encode(), self.times)


class Door:
    """The site of such texts, without a socket."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.made = Made()
        self.site: Any = DoorSite(Kept(self.made, self.clock), self.clock)

    def dial(self, host: str = "192.0.2.7") -> StringTransport:
        address = IPv4Address("TCP", host, 4000)
        protocol = self.site.buildProtocol(address)
        transport: Any = StringTransport(peerAddress=address)
        transport.abortConnection = transport.loseConnection
        transport.say = protocol.dataReceived
        protocol.makeConnection(transport)
        return transport  # type: ignore[no-any-return]


def ask(door: Door, said: bytes) -> bytes:
    transport: Any = door.dial()
    transport.say(said)
    assert transport.disconnecting
    answer: bytes = transport.value()
    return answer


def test_a_connection_has_one_answer_whatever_it_asks_for() -> None:
    answer = ask(Door(), GET * 1000)
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower() and answer.endswith(b"text 1")


def test_the_text_is_made_once_a_second() -> None:
    door = Door()
    assert [ask(door, GET)[-6:] for _ in range(50)] == [b"text 1"] * 50
    door.clock.advance(1.0)
    assert [ask(door, GET)[-6:] for _ in range(2)] == [b"text 2"] * 2
    assert door.made.times == 2


def test_a_body_is_not_kept() -> None:
    for head, body in (
        (b"Content-Length: 1000000000", bytes(300_000)),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
    ):
        door = Door()
        answer = ask(door, b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
        assert door.made.times == 0


def test_who_has_most_connections_makes_room() -> None:
    door = Door()
    one = door.dial("192.0.2.1")
    crowd = [door.dial("192.0.2.2") for _ in range(MOST - 1)]
    more = door.dial("192.0.2.3")
    assert [each.disconnecting for each in (one, crowd[0], crowd[1], more)] == [
        False, True, False, False,
    ]  # fmt: skip


def test_a_connection_ends_in_time_however_slowly_it_speaks() -> None:
    door = Door()
    slow: Any = door.dial()
    for _ in range(int(SECONDS) - 1):
        door.clock.advance(1.0)
        slow.say(b"G")
        assert not slow.disconnecting
    door.clock.advance(1.0)
    assert slow.disconnecting
