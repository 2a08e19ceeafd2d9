"""Lines of a NATS server, however they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.testing import StringTransport

from mqttd.nats.protocol import Came, NatsProtocol, quoted

INFO = b'INFO {"headers":true,"max_payload":2048,"connect_urls":["a:1"]}\r\n'


class Transport(StringTransport):
    """Knows what a connection is asked for."""

    def setTcpNoDelay(self, on: bool) -> None:
        """As one of TCP."""


class Spy:
    """A protocol, and what it has said."""

    def __init__(self) -> None:
        self.ready = 0
        self.came: list[tuple[int, Came]] = []
        self.others: list[str] = []
        self.gone: list[str] = []
        self.transport: Any = Transport()  # type: ignore[no-untyped-call]
        self.protocol: Any = NatsProtocol(
            {"name": "test"}, None, self._ready, lambda sid, came: self.came.append((sid, came)),
            self.others.extend, lambda protocol, text: self.gone.append(text),
        )  # fmt: skip
        self.protocol.makeConnection(self.transport)

    def _ready(self, protocol: NatsProtocol) -> None:
        self.ready += 1


def test_a_greeting_then_messages_in_pieces_of_any_size() -> None:
    said = (
        INFO + b"PONG\r\nMSG in.1 1 5\r\nhello\r\nMSG in.2 7 back 0\r\n\r\n"
        b"HMSG in.3 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nHMSG in.4 1 12 15\r\nNATS/1.0\r\n\r\nabc\r\n"
        b"PING\r\n+OK\r\n"
    )
    wanted = [
        (1, Came(b"in.1", b"", 0, b"hello")),
        (7, Came(b"in.2", b"back", 0, b"")),
        (1, Came(b"in.3", b"", 503, b"")),
        (1, Came(b"in.4", b"", 0, b"abc")),
    ]
    for size in range(1, len(said) + 1):
        spy = Spy()
        for at in range(0, len(said), size):
            spy.protocol.dataReceived(said[at : at + size])
        assert (spy.ready, spy.came, spy.protocol.most) == (1, wanted, 2048), size
        assert spy.transport.value().endswith(b"PONG\r\n")


def test_a_later_info_names_servers_and_changes_nothing_else() -> None:
    spy = Spy()
    spy.protocol.dataReceived(INFO + b"PONG\r\n")
    said = spy.transport.value()
    spy.protocol.dataReceived(b'INFO {"connect_urls":["b:2"],"max_payload":1}\r\n')
    assert (spy.transport.value(), spy.protocol.most, spy.ready) == (said, 2048, 1)
    assert spy.others == ["a:1", "b:2"]


@pytest.mark.parametrize(
    "said", [b"INFO {\r\n", b"INFO []\r\n", INFO + b"MSG a\r\n", INFO + b"MSG a b c\r\n"]
)
def test_what_makes_no_sense_ends_the_connection(said: bytes) -> None:
    spy = Spy()
    spy.protocol.dataReceived(said)
    assert spy.transport.disconnecting or spy.transport.disconnected
    assert "no sense" in spy.protocol.error


def test_a_server_that_wants_tls_is_not_told_who_we_are_without_it() -> None:
    spy = Spy()
    spy.protocol.dataReceived(b'INFO {"headers":true,"tls_required":true}\r\n')
    assert spy.transport.value() == b""
    assert "TLS" in spy.protocol.error


def test_one_that_speaks_no_tls_is_told_nothing_where_it_is_to() -> None:
    spy = Spy()
    spy.protocol.secure = object
    spy.protocol.dataReceived(INFO)
    assert spy.transport.value() == b""
    assert "does not speak TLS" in spy.protocol.error


def test_one_that_does_not_answer_twice_is_gone() -> None:
    spy = Spy()
    spy.protocol.dataReceived(INFO + b"PONG\r\n")
    for _ in range(2):
        spy.protocol.ping()
    spy.protocol.dataReceived(b"PONG\r\n")
    for _ in range(3):
        spy.protocol.ping()
    assert spy.protocol.error == "it does not answer"


def test_names_are_tokens_of_their_own() -> None:
    names = ["node-1", "node.1", "node 1", "node>1", "nodeZ2e1", "Z", "é"]
    assert quoted("node-1") == "node-1"
    assert len({quoted(name) for name in names}) == len(names)
    assert all(each.replace("-", "").isalnum() for each in map(quoted, names))
    assert json.dumps(quoted("é")).isascii()
