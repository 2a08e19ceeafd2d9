"""Sockets that are bound and do not listen yet: nobody else has their place."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from mqttd.config.schema import SocketListener, TcpListener
from mqttd.transports.sockets import ListenError, begin, bind_tcp

WHERE = "listener.tcp.default"


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with bind_tcp(WHERE, settings(0), 0, listen=False) as found:
        yield found


def settings(port: int) -> SocketListener:
    return TcpListener(bind=f"127.0.0.1:{port}")


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


@pytest.mark.parametrize("listen", [False, True])
def test_another_is_told_that_it_is_taken(bound: socket.socket, listen: bool) -> None:
    port = port_of(bound)
    with pytest.raises(ListenError, match=f"^{WHERE}: cannot listen on 127.0.0.1:{port}: .*in use"):
        bind_tcp(WHERE, settings(port), 0, listen=listen)


def test_who_comes_is_refused_until_it_begins(bound: socket.socket) -> None:
    place = "127.0.0.1", port_of(bound)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place, 10)
    begin(WHERE, settings(place[1]), bound)
    socket.create_connection(place, 10).close()


def test_connections_of_before_are_in_nobodys_way(bound: socket.socket) -> None:
    """The end that has closed first keeps the port for a minute."""
    port = port_of(bound)
    begin(WHERE, settings(port), bound)
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        bound.setblocking(True)
        bound.accept()[0].close()
        assert client.recv(1) == b""
    bound.close()
    with bind_tcp(WHERE, settings(port), 0, listen=False) as again:
        begin(WHERE, settings(port), again)
        socket.create_connection(("127.0.0.1", port), 10).close()


def test_a_place_that_is_taken_meanwhile_is_said(bound: socket.socket) -> None:
    port = port_of(bound)
    bound.close()
    shared = [bind_tcp(WHERE, settings(port), 0, listen=False, shared=True) for _ in range(2)]
    with shared[0], shared[1]:
        shared[1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
        begin(WHERE, settings(port), shared[0])
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}: .*in use; another program"):
            begin(WHERE, settings(port), shared[1])
