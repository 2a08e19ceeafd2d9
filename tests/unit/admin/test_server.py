"""The Unix socket's path is claimed with care.

The claim needs the file system and, for "somebody listens", one socket that is bound and never
connected to by a broker.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mqttd.admin.server import AdminSocketError, claim


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
