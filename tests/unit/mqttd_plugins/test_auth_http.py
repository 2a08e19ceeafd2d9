"""auth_http: a name is encoded for where it stands, and an answer says yes or it is none."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from mqttd.testing import PluginConformance
from mqttd.types import AUTH_IGNORE, AuthError, AuthIgnore, AuthOk
from mqttd_plugins.auth_http.plugin import AuthHttp, Settings, verdict
from tests.support.authenticating import Asked, configured

URL = "http://127.0.0.1:9/mqtt"


class Service:
    """Stands in for the service."""

    def __init__(self, status: int = 200, body: bytes = b'{"result": "allow"}') -> None:
        self.answer: Any = (status, body)
        self.requests: list[tuple[str, str, dict[str, str], bytes | None]] = []

    def send(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> Deferred[tuple[int, bytes]]:
        self.requests.append((method, url, headers, body))
        return Deferred() if self.answer is None else succeed(self.answer)


def asked(service: Service, **config: Any) -> Asked:
    return Asked(AuthHttp(service.send), Settings(**{"url": URL, **config}))


class TestConformance(PluginConformance):
    cycles = 5

    def make(self) -> Any:
        return configured(AuthHttp(Service().send), Settings(url=URL))


def test_it_posts_json() -> None:
    service = Service()
    assert asked(service, headers={"Authorization": "Bearer x"})('al"ice') == AuthOk()
    ((method, url, headers, body),) = service.requests
    assert (method, url, headers["Authorization"]) == ("POST", URL, "Bearer x")
    assert json.loads(body or b"") == {
        "username": 'al"ice', "clientid": "c", "peerhost": "192.0.2.1", "password": "secret",
    }  # fmt: skip


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=50))
def test_a_name_stays_where_it_was_put(name: str) -> None:
    service = Service()
    config = {"url": "http://127.0.0.1:9/u/${username}/auth?a=%c3%a4&c=${clientid}"}
    body = {"name": "${username}"}
    asked(service, method="get", body=body, **config)(name, client_id=name)
    asked(service, encoding="form", body=body, **config)(name, client_id=name)
    if name in (".", ".."):
        assert service.requests == []
        return
    (_, url, _, none), (_, _, _, form) = service.requests
    parts = urlsplit(url)
    assert none is None and parts.netloc == "127.0.0.1:9"
    assert parts.path.count("/") == 3 and not parts.fragment
    expected = [("a", "ä"), ("c", name), ("name", name)]
    assert parse_qsl(parts.query, keep_blank_values=True) == expected
    assert parse_qsl((form or b"").decode(), keep_blank_values=True) == [("name", name)]


def test_an_answer_may_bring_rights_expiry_and_attributes() -> None:
    said = {
        "result": "allow", "is_superuser": True, "expire_at": 1767225600,
        "client_attrs": {"site": "north"},
        "acl": [{"permission": "deny", "action": "subscribe", "topic": "a/#"}],
    }  # fmt: skip
    assert verdict(200, json.dumps(said).encode()) == AuthOk(
        True, '{deny, all, subscribe, ["a/#"]}.', 1767225600, {"site": "north"}
    )


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (204, b"", AuthOk),
        (200, b'{"result": "allow"}', AuthOk),
        (200, b'{"result": "deny", "is_superuser": true}', AuthError),
        (200, b'{"result": "ignore"}', AuthIgnore),
        (200, b'{"result": "allow", "acl": [{"topic": "x"}]}', AuthError),
        (400, b"", AuthError),
        (401, b'{"result": "allow"}', AuthError),
        (403, b"", AuthError),
        (404, b"", AuthError),
        (414, b"", AuthError),
    ],
)
def test_what_the_service_answers(status: int, body: bytes, kind: type) -> None:
    assert isinstance(verdict(status, body), kind)
    assert verdict(404, b"", "ignore") is AUTH_IGNORE


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"result": "allow"}'),
        (302, b'{"result": "allow"}'),
        (408, b""),
        (429, b""),
        (200, b""),
        (200, b"allow"),
        (200, b"[]"),
        (200, b'"allow"'),
        (200, b'{"result": "Allow"}'),
        (200, b'{"result": true}'),
        (200, b'{"result": ["allow"]}'),
        (200, b"[" * 100_000),
        (200, b"\xff"),
        (200, b'{"result": "allow", "is_superuser": 1}'),
        (200, b'{"result": "allow", "expire_at": "soon"}'),
        (200, b'{"result": "allow", "expire_at": true}'),
        (200, b'{"result": "allow", "expires": 1}'),
        (200, b'{"result": "allow", "acl": {}}'),
        (200, b'{"result": "allow", "client_attrs": {"a": 1}}'),
    ],
)
def test_an_answer_that_is_none_is_a_failure(status: int, body: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        verdict(status, body)


def test_a_service_that_is_silent_is_given_up() -> None:
    service = Service()
    service.answer = None
    asking = asked(service, timeout=2.0)
    failures: list[Any] = []
    asking.ask("alice", b"x").addErrback(failures.append)
    asking.clock.advance(2.1)
    assert "http://127.0.0.1:9: no answer within 2 s" in str(failures[0].value)


def test_clients_without_user_name_or_password_are_asked_about_too() -> None:
    service = Service()
    asked(service)(None, None)
    assert json.loads(service.requests[0][3] or b"")["username"] == ""
    asking = asked(service, url=URL + "/${username}")
    assert asking(None) is AUTH_IGNORE
    assert isinstance(asking(".."), AuthError)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"url": "http://auth.example/"}, "unencrypted"),
        ({"url": "ftp://auth.example/"}, "expected http"),
        ({"url": "https://user:hush@auth.example/"}, "without a user"),
        ({"url": "https://${clientid}.example/"}, "path and query alone"),
        ({"url": URL + "/${user}"}, "found"),
        ({"body": {"x": "${secret}"}}, r"body\.x"),
        ({"headers": {"X": "a\r\nb"}}, "line break"),
    ],
)
def test_a_mistake_is_named_when_loaded(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        asked(Service(), **config)
    assert "hush" not in str(caught.value)
