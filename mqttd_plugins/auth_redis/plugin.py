"""Authenticates clients against a Redis server, with txredisapi.

    command      HMGET mqtt_user:${username} password_hash salt is_superuser
    acl_command  HGETALL mqtt_acl:${username}       topic -> publish, subscribe or all

Promise: a command is taken apart when the plugin is loaded; what a client calls itself is within
one argument, and no other. Where two placeholders stand in one key, a name with a character that
stands between them is a user that there is not: it could be read in two ways. Only commands that
read one key are taken. No thread waits; a server that does not answer is given up after `timeout`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Any, Final

import txredisapi
from msgspec import Meta, field
from twisted.internet.defer import Deferred
from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import Found, Judge, Module, within
from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.plugins.backends.rules import is_superuser
from mqttd.plugins.backends.settings import (
    BackendSettings,
    Port,
    is_local,
    read_secret,
    require_encryption,
)
from mqttd.plugins.backends.templates import Template
from mqttd.types import AuthError, AuthVerdict

__all__ = ["AuthRedis", "Command", "Settings"]

#: Commands that read one key, and the least number of their arguments.
_READS: Final = {"HMGET": 2, "HGETALL": 1, "GET": 1}
#: Seconds between two attempts to connect, at most.
_LONGEST_PAUSE: Final = 2.0
_FIELDS: Final = frozenset({"password_hash", "password", "salt", "is_superuser"})


class Settings(BackendSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_redis.conf`` may say."""

    #: Host name or address of the server.
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Port = 6379
    #: The number of the data base.
    database: Annotated[int, Meta(ge=0)] = 0
    #: Who the broker is there (Redis 6); empty is the default user.
    user: str = ""
    #: The password of `user`, or the file that holds it.
    password: str = ""
    password_file: str = ""
    #: Encrypt: by default wherever the server is not on this machine.
    tls: bool | None = None
    #: The certificates that vouch for the server; empty are those of the system.
    ca_file: str = ""
    #: Connections that are kept open.
    connections: Annotated[int, Meta(ge=1, le=64)] = 2
    #: HMGET KEY FIELD... or HGETALL KEY, fields password_hash, salt, is_superuser; GET KEY: a hash.
    command: Annotated[str, Meta(min_length=1)] = (
        "HMGET mqtt_user:${username} password_hash salt is_superuser"
    )
    #: HGETALL KEY: topics and publish, subscribe or all. Empty: no rules.
    acl_command: str = ""
    #: How passwords are kept.
    password_hash: PasswordHash = field(default_factory=PasswordHash)


class Command:
    """A command with placeholders in its key. Raises ValueError for one that is not taken."""

    def __init__(self, text: str, what: str, names: tuple[str, ...]) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"{what} = {text!r}: {error}") from None
        self.name = words[0].upper() if words else ""
        if self.name not in names or len(words) <= _READS[self.name]:
            raise ValueError(f"{what} = {text!r}: expected {' or '.join(names)} with its arguments")
        if self.name != "HMGET" and len(words) > 2:
            raise ValueError(f"{what} = {text!r}: expected one key")
        self.key = Template(words[1], what)
        self.fields = words[2:]
        if unknown := set(self.fields) - _FIELDS:
            raise ValueError(
                f"{what}: field {min(unknown)!r}, expected {', '.join(sorted(_FIELDS))}"
            )
        self.names = self.key.names

    def send(self, redis: Any, values: dict[str, str]) -> Deferred[Any] | None:
        """Its answer; None if these values cannot name a key, or could name that of others."""
        if not self.names <= values.keys() or self.key.is_ambiguous(values):
            return None
        key = self.key.fill(values)
        arguments: tuple[Any, ...] = (key, self.fields) if self.name == "HMGET" else (key,)
        answer: Deferred[Any] = getattr(redis, self.name.lower())(*arguments)
        return answer

    def found(self, answer: Any) -> Found | None:
        """What the answer to an authentication says of the user."""
        if self.name == "GET":
            row = {"password_hash": answer}
        elif self.name == "HMGET":
            row = dict(zip(self.fields, answer or (), strict=False))
        else:
            row = dict(answer or {})
        if all(value is None for value in row.values()):
            return None
        hashed = row.get("password_hash", row.get("password"))
        superuser = is_superuser(row.get("is_superuser"))
        return Found(_text(hashed), _text(row.get("salt")) or "", superuser)


@implementer(IPlugin)
class AuthRedis:
    """The running part. `connect` is how tests stand in for txredisapi."""

    def __init__(self, connect: Callable[..., Any] | None = None) -> None:
        self._connect = connect or txredisapi.lazyConnectionPool
        self._redis: Any = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check the commands, register the module, start to connect."""
        self._handle = handle
        self._config = config
        self._judge = Judge(config.password_hash, config.unknown)
        self._command = Command(config.command, "command", ("HMGET", "HGETALL", "GET"))
        self._acl_command: Command | None = None
        if config.acl_command:
            self._acl_command = Command(config.acl_command, "acl_command", ("HGETALL",))
        tls = not is_local(config.host) if config.tls is None else config.tls
        require_encryption(f"host = {config.host!r}", config.host, tls, config.plaintext)
        self._parameters = _parameters(config, tls)
        self._redis = self._opened()
        text = f"auth_redis: {config.host}:{config.port}/{config.database}, {config.command}"
        handle.register_mod("auth", handle.name, Module(text, self._command.names, self._ask))

    def unload(self) -> Any:
        """Close the connections."""
        return self._redis.disconnect() if self._redis is not None else None

    def _ask(self, values: dict[str, str], password: bytes) -> AuthVerdict | Deferred[AuthVerdict]:
        return Deferred.fromCoroutine(self._verdict(values, password))

    async def _verdict(self, values: dict[str, str], password: bytes) -> AuthVerdict:
        found, rules = None, None
        answer = await self._answer(self._command, values)
        if answer is not None:
            found = self._command.found(answer)
        if found is not None and self._acl_command is not None:
            rights = await self._answer(self._acl_command, values)
            if not isinstance(rights or {}, dict):
                return AuthError("acl_command: the key holds no hash")
            rules = [
                {"permission": "allow", "topic": topic, "action": _text(action)}
                for topic, action in (rights or {}).items()
            ]
        # A hash takes its time, and the reactor thread has none.
        verdict: AuthVerdict = await self._handle.in_thread(
            self._judge.judge, found, password, lambda: rules
        )
        return verdict

    async def _answer(self, command: Command, values: dict[str, str]) -> Any:
        self._reconnect()
        answer = command.send(self._redis, values)
        if answer is None:
            return None
        where = f"{self._config.host}:{self._config.port}"
        within(answer, self._config.timeout, self._handle.clock, where)
        try:
            return await answer
        except txredisapi.ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                return None  # a name can be chosen so that the key is one of something else
            raise

    def _reconnect(self) -> None:
        """txredisapi gives up for good when a password is refused; the next one may be right."""
        factory = getattr(self._redis, "_factory", None)
        if factory is not None and factory.stopped:
            self._redis.disconnect().addErrback(lambda failure: None)
            self._redis = self._opened()

    def _opened(self) -> Any:
        redis = self._connect(**self._parameters)
        factory = getattr(redis, "_factory", None)
        if factory is not None:
            factory.maxDelay = _LONGEST_PAUSE
        return redis


def _parameters(config: Settings, tls: bool) -> dict[str, Any]:
    encryption: Any = False
    if tls:
        trust = None
        if config.ca_file:
            with open(config.ca_file, "rb") as file:
                trust = trustRootFromCertificates([Certificate.loadPEM(file.read())])
        encryption = optionsForClientTLS(config.host, trust)
    return {
        "host": config.host,
        "port": config.port,
        "dbid": config.database or None,
        "poolsize": config.connections,
        "password": read_secret("password", config.password, config.password_file) or None,
        "username": config.user or None,
        "ssl_context_factory": encryption,
        "connectTimeout": config.timeout,
        "replyTimeout": config.timeout,
        "convertNumbers": False,
    }


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)
