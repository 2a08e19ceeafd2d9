"""The Unix socket's path is claimed with care, and large requests are refused.

The claim needs the file system and, for "somebody listens", one socket that is bound and never
connected to by a broker.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import Resource

from mqttd.admin.server import AdminService, AdminSocketError, Crowd, claim, site_of


class Echo(Resource):
    isLeaf = True

    def render_POST(self, request: object) -> bytes:
        return b"%d" % len(request.content.read())  # type: ignore[attr-defined]


def test_a_free_path_is_fine(tmp_path: Path) -> None:
    claim(str(tmp_path / "mqttd.sock"))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdminSocketError, match="there is no directory"):
        claim(str(tmp_path / "missing" / "mqttd.sock"))


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AdminSocketError, match="is no socket"):
        claim(str(path))
    assert path.read_text() == "data"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdminSocketError, match="is no socket"):
        claim(str(tmp_path / "link"))


def test_a_socket_somebody_listens_on_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(AdminSocketError, match="in use"):
            claim(str(path))
        assert path.exists()


def test_a_socket_left_behind_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    claim(str(path))
    assert not path.exists()


def exchange(tmp_path: Path, *parts: bytes) -> tuple[bytes, bool]:
    """What a server for bodies of 100 bytes answers; whether it ends the connection."""
    service = AdminService(Echo(), str(tmp_path / "s"), Clock(), 100)
    protocol = service.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
    transport = StringTransport()
    protocol.makeConnection(transport)
    for part in parts:
        protocol.dataReceived(part)
    return transport.value(), transport.disconnecting


def test_a_body_within_the_limit_is_served(tmp_path: Path) -> None:
    answer, _ = exchange(
        tmp_path, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"x" * 100
    )
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n100")


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
def test_a_larger_body_ends_the_connection(tmp_path: Path, parts: list[bytes]) -> None:
    answer, ended = exchange(tmp_path, *parts)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert ended


def test_over_a_network_so_many_are_connected_at_most() -> None:
    """Ten thousand that send a body and never end it would each be kept for a minute."""
    site = site_of(Echo(), 100, Crowd(most=5, each=3))

    def connect(host: str) -> tuple[Protocol, StringTransport]:
        protocol: Protocol = site.buildProtocol(IPv4Address("TCP", host, 1))
        transport = StringTransport()
        protocol.makeConnection(transport)
        return protocol, transport

    first = [connect("192.0.2.1") for _ in range(4)]
    other = [connect("192.0.2.2") for _ in range(3)]
    assert [gone.disconnected for _, gone in first] == [False, False, False, True]
    assert [gone.disconnected for _, gone in other] == [False, False, True]
    for protocol, _ in (*first, *other):
        protocol.connectionLost(Failure(ConnectionDone()))
    protocol, transport = connect("192.0.2.1")
    protocol.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxx")
    assert transport.value().endswith(b"\r\n2") and not transport.disconnected
    assert site.crowd.refused == 2
