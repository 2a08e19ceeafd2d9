"""Who waits to be let in, and has gone meanwhile."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from mqttd.broker.sessions.gone import has_gone
from mqttd.session.channel.channel import CLOSED, WAITING

#: What it sends behind CONNECT.
PINGREQ = b"\xc0\x00"


class Waiting:
    """What of a channel and its edge is looked at."""

    def __init__(self, fd: int) -> None:
        self.state = WAITING
        self.fd = fd
        self.rest: object = None
        self.edge = self
        self.held = 0

    def behind(self, channel: object) -> int:
        return self.held


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted = server.accept()[0]
    with client, accepted:
        accepted.setblocking(False)
        yield client, Waiting(accepted.fileno())


def test_who_keeps_its_connection_open_is_there(pair: tuple[socket.socket, Any]) -> None:
    client, channel = pair
    assert not has_gone(channel)
    client.send(PINGREQ)
    assert not has_gone(channel)
    channel.state = CLOSED
    assert has_gone(channel)


def test_who_has_closed_is_gone_unless_something_of_it_is_to_be_read(
    pair: tuple[socket.socket, Any],
) -> None:
    client, channel = pair
    client.close()
    channel.rest = PINGREQ
    assert not has_gone(channel)
    channel.rest, channel.held = None, 2
    assert not has_gone(channel)
    channel.held = 0
    assert has_gone(channel)


def test_what_it_has_sent_stays_in_its_socket(pair: tuple[socket.socket, Any]) -> None:
    client, channel = pair
    client.send(PINGREQ)
    client.close()
    assert not has_gone(channel)
    with socket.socket(fileno=os.dup(channel.fd)) as peer:
        assert peer.recv(10) == PINGREQ
    assert has_gone(channel)


def test_who_resets_is_gone(pair: tuple[socket.socket, Any]) -> None:
    client, channel = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert has_gone(channel)


def test_of_who_has_no_descriptor_only_the_state_is_known() -> None:
    channel: Any = Waiting(-1)
    assert not has_gone(channel)
