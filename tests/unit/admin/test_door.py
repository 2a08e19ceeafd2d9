"""What keeps a door of the HTTP interface from being made is told by its own key."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from twisted.internet.testing import MemoryReactor
from twisted.web.resource import Resource

from mqttd.admin.doors.door import AddressError, DoorError, DoorService, certificate_options
from mqttd.config.load import load
from mqttd.config.schema import AdminPage, AdminTcp
from mqttd.options import StartError, check_files

DOORS = [("admin.tcp", AdminTcp), ("admin.page", AdminPage)]


@pytest.mark.parametrize(("key", "made"), DOORS)
def test_a_certificate_that_cannot_be_used_is_told_with_the_doors_own_key(
    key: str, made: type[AdminPage] | type[AdminTcp], tmp_path: Path
) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.write_text("no PEM")
    for certificate, private_key, told in (
        (missing, there, rf"^{key}\.certificate = '{missing}': No such file"),
        (there, missing, rf"^{key}\.private_key = '{missing}': No such file"),
        (there, there, rf"^{key}\.certificate = '{there}' with {key}\.private_key = .*\(PEM\)$"),
    ):
        settings = made(certificate=str(certificate), private_key=str(private_key))
        with pytest.raises(DoorError, match=told):
            certificate_options(key, settings)


@pytest.mark.parametrize(("key", "made"), DOORS)
def test_an_address_in_use_is_told_with_the_doors_own_key(
    key: str, made: type[AdminPage] | type[AdminTcp]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressError, match=rf"^{key}\.bind = '{bind}': Address already in use"):
            DoorService(key, made(bind=bind), Resource(), MemoryReactor(), 1000)


def test_a_pages_certificate_is_read_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    conf = tmp_path / "mqttd.conf"
    conf.write_text(
        '[acl]\nfile = "acl.conf"\n'
        '[admin.page]\nenabled = true\ncertificate = "no.pem"\nprivate_key = "no.pem"\n'
    )
    with pytest.raises(StartError, match=r"^admin\.page\.certificate = '.*no\.pem': No such file"):
        check_files(load(str(conf), {}))
