"""auth_redis: what a client calls itself is part of one key, and of one key only."""

from __future__ import annotations

from typing import Any

import pytest
import txredisapi
from twisted.internet.defer import Deferred, fail, succeed

from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk
from mqttd_plugins.auth_redis.plugin import AuthRedis, Settings
from tests.support.authenticating import Asked, comes_and_goes, configured

PLAIN = PasswordHash(algorithm="plain")


class Server:
    """Stands in for txredisapi's pool."""

    def __init__(self, **keys: Any) -> None:
        self.keys = {name.replace("__", ":"): value for name, value in keys.items()}
        self.asked: list[tuple[str, str]] = []
        self.down: Exception | None = None
        self.silent = False
        self.parameters: dict[str, Any] = {}

    def connect(self, **parameters: Any) -> Server:
        self.parameters = parameters
        return self

    def _get(self, command: str, key: str, kind: type, nothing: Any) -> Deferred[Any]:
        self.asked.append((command, key))
        if self.silent:
            return Deferred()
        if self.down is not None:
            return fail(self.down)
        found = self.keys.get(key, nothing)
        if found is not None and not isinstance(found, kind):
            return fail(txredisapi.ResponseError("WRONGTYPE Operation against a key"))
        return succeed(found)

    def hmget(self, key: str, fields: list[str]) -> Deferred[Any]:
        got = self._get("HMGET", key, dict, {})
        return got.addCallback(lambda found: [found.get(field) for field in fields])

    def hgetall(self, key: str) -> Deferred[Any]:
        return self._get("HGETALL", key, dict, {})

    def get(self, key: str) -> Deferred[Any]:
        return self._get("GET", key, str, None)

    def disconnect(self) -> Deferred[Any]:
        return succeed(None)


def asked(server: Server, **config: Any) -> Asked:
    return Asked(AuthRedis(server.connect), Settings(password_hash=PLAIN, **config))


def test_it_comes_and_goes_without_a_trace() -> None:
    settings = Settings(password_hash=PLAIN)
    comes_and_goes(lambda: configured(AuthRedis(Server().connect), settings))


def test_a_user_with_the_password_gets_in_with_rules() -> None:
    server = Server(
        mqtt_user__alice={"password_hash": "secret", "is_superuser": "1"},
        mqtt_acl__alice={"a/#": "publish", 'b/"': "all"},
    )
    verdict = asked(server, acl_command="HGETALL mqtt_acl:${username}")("alice")
    assert verdict == AuthOk(
        True, '{allow, all, publish, ["a/#"]}.\n{allow, all, all, ["b/\\x{22}"]}.'
    )
    assert isinstance(asked(server)("alice", b"wrong"), AuthError)
    assert isinstance(asked(server)("bob"), AuthError)
    assert asked(server, unknown="ignore")("bob") is AUTH_IGNORE


@pytest.mark.parametrize("command", ["GET u:%u", "HGETALL h:%u", "hmget h:%u password"])
def test_each_command_that_reads_a_key_will_do(command: str) -> None:
    server = Server(u__alice="secret", h__alice={"password": "secret"})
    assert asked(server, command=command)("alice") == AuthOk()
    assert isinstance(asked(server, command=command)("alice", b"wrong"), AuthError)


@pytest.mark.parametrize(
    "name", ["alice password_hash", "alice\r\nGET x", "*", "alice' 'x", "${clientid}", "%c"]
)
def test_a_name_stays_within_its_key(name: str) -> None:
    server = Server(mqtt_user__alice={"password_hash": "secret"})
    assert isinstance(asked(server)(name), AuthError)
    assert server.asked == [("HMGET", f"mqtt_user:{name}")]


def test_a_key_of_two_names_cannot_be_read_in_two_ways() -> None:
    server = Server(k__a__b={"password": "secret"})
    asking = asked(server, command="HGETALL k:%u:%c")
    assert asking("a", client_id="b") == AuthOk()
    for username, client_id in (("a:b", ""), ("", "a:b"), ("a:", "b")):
        assert isinstance(asking(username, client_id=client_id), AuthError)
    assert server.asked == [("HGETALL", "k:a:b")]


def test_a_key_of_another_kind_is_no_user_and_no_failure() -> None:
    assert isinstance(asked(Server(mqtt_user__x="text"))("x"), AuthError)


def test_a_server_that_fails_or_is_silent_is_a_failure() -> None:
    server = Server()
    server.down = txredisapi.ConnectionError("Lost connection")
    with pytest.raises(txredisapi.ConnectionError):
        asked(server)("alice")
    server.down, server.silent = None, True
    asking = asked(server, timeout=2.0)
    waiting = asking.ask("alice", b"secret")
    failures: list[Any] = []
    waiting.addErrback(failures.append)
    asking.clock.advance(2.1)
    assert "127.0.0.1:6379: no answer within 2 s" in str(failures[0].value)


@pytest.mark.parametrize(
    "command",
    ["", "DEL u:%u", "KEYS *", "HMGET u:%u", "GET a b", "HMGET u:%u shadow", "GET '%u", "EVAL x"],
)
def test_other_commands_are_refused_when_loaded(command: str) -> None:
    with pytest.raises(ValueError, match="^command"):
        asked(Server(), command=command)


def test_a_server_elsewhere_is_encrypted_by_default() -> None:
    server = Server()
    asked(server, host="redis.example", user="mqttd", password="x")
    assert server.parameters["ssl_context_factory"]
    assert (server.parameters["username"], server.parameters["password"]) == ("mqttd", "x")
    with pytest.raises(ValueError, match="unencrypted"):
        asked(server, host="redis.example", tls=False)
