"""The Unix socket's path is claimed with care.

The claim needs the file system and, for "somebody listens", one socket that is bound and never
connected to by a broker.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import UNIXAddress
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.resource import Resource

from mqttd.admin.doors.server import AdminService, AdminSocketError, claim


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


@pytest.mark.parametrize("behind", [False, True])
def test_what_nobody_reads_is_bounded_though_one_answer_may_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """Four hundred that had asked for a message of 900 kB and read nothing kept 460 MB."""
    monkeypatch.setattr("mqttd.admin.doors.site.UNREAD", 25_000)
    resource: Any = Resource()
    service = AdminService(resource, str(tmp_path / "s"), Clock(), 50_000, behind)
    crowd = service.site.crowd

    def unread(size: int) -> Any:
        protocol = service.site.buildProtocol(UNIXAddress(None))
        transport: Any = StringTransport()
        protocol.makeConnection(transport)
        transport.producer.pauseProducing()
        protocol.write(bytes(size))
        return transport

    large = unread(50_000)
    assert not large.disconnected and crowd.held == 50_000
    small = [unread(10_000) for _ in range(3)]
    assert large.disconnected and crowd.held == 30_000
    assert not any(each.disconnected for each in small)
    small += [unread(10_000) for _ in range(20)]
    assert crowd.held == 70_000
    assert [each.disconnected for each in small] == [True] * 16 + [False] * 7
