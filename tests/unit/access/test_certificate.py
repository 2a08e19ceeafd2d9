"""Client certificates: whose name counts."""

from __future__ import annotations

from typing import Any

import pytest

from mqttd.access.auth.certificate import CertificateName
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, ClientInfo


def client(**more: Any) -> ClientInfo:
    given = {
        "cert_common_name": "pump-7",
        "cert_subject": "CN=pump-7,O=plant",
        "cert_sans": ("IP:10.0.0.7", "DNS:pump-7.plant", "URI:urn:pump:7", "email:p@plant"),
        **more,
    }
    return ClientInfo("c1", "says-admin", "10.0.0.7", 1, "ssl:default", 5, **given)


def module(**opts: object) -> CertificateName:
    made = CertificateName()
    made.init(opts)
    return made


@pytest.mark.parametrize(
    "what,name",
    [
        ("cn", "pump-7"),
        ("dn", "CN=pump-7,O=plant"),
        ("dns", "pump-7.plant"),
        ("uri", "urn:pump:7"),
        ("email", "p@plant"),
    ],
)
def test_the_name_in_the_certificate_replaces_what_the_client_says(what: str, name: str) -> None:
    assert module(username=what).check(client(), None) == AuthOk(username=name)


def test_a_client_without_a_certificate_is_left_to_others() -> None:
    bare = client(cert_common_name=None, cert_subject=None, cert_sans=())
    assert module().check(bare, b"pw") is AUTH_IGNORE


@pytest.mark.parametrize("name", [None, "", "a\0b", "a\nb"])
def test_a_certificate_without_a_usable_name_refuses(name: str | None) -> None:
    assert isinstance(module().check(client(cert_common_name=name), None), AuthError)
    assert isinstance(module(username="dns").check(client(cert_sans=()), None), AuthError)


def test_the_client_identifier_may_have_to_be_the_name() -> None:
    strict = module(same_client_id=True)
    assert isinstance(strict.check(client(), None), AuthError)
    assert isinstance(strict.check(client(cert_common_name="c1"), None), AuthOk)


def test_a_wrong_option_stops_the_start() -> None:
    with pytest.raises(ValueError, match="'sn': expected one of cn, dn"):
        module(username="sn")
