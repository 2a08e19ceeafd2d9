"""Authenticates clients against a MongoDB data base, with PyMongo.

    filter      {username = "${username}"} --> one document: password_hash, salt, is_superuser
    acl_filter  the same --> documents: permission, action, topics, qos, retain

Promise: what a client calls itself is a string at the place of its placeholder, never a document:
no operator comes of it. Placeholders within operators that run code or take a pattern are refused
when the plugin is loaded. Connections are PyMongo's own pool; they are given up after `timeout`,
and verify the server's certificate unless it is on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import pymongo
from msgspec import Meta, field
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import THREADS, Found, Judge, Threaded
from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.plugins.backends.rules import MOST_RULES, is_superuser
from mqttd.plugins.backends.settings import (
    BackendSettings,
    Port,
    is_local,
    read_secret,
    require_encryption,
)
from mqttd.plugins.backends.templates import Template
from mqttd.types import AuthError, AuthVerdict

__all__ = ["AuthMongo", "Filter", "Settings"]

#: Operators whose operand is code or a pattern.
_CODE: Final = frozenset(
    ("$where", "$function", "$accumulator", "$expr", "$jsonSchema", "$regex", "$text", "$search")
)
_RULE_KEYS: Final = ("permission", "action", "topic", "topics", "qos", "retain")


class Settings(BackendSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_mongo.conf`` may say."""

    #: Host name or address of the server, or several of a replica set: "a,b:27018".
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Port = 27017
    replica_set: str = ""
    database: str = "mqtt"
    #: Who the broker is there; empty: no authentication.
    user: str = ""
    #: The password of `user`, or the file that holds it.
    password: str = ""
    password_file: str = ""
    #: The data base that knows `user`.
    auth_source: str = "admin"
    #: Encrypt: by default wherever the server is not on this machine.
    tls: bool | None = None
    #: The certificates that vouch for the server; empty are those of the system.
    ca_file: str = ""
    collection: Annotated[str, Meta(min_length=1)] = "mqtt_user"
    filter: dict[str, Any] = field(default_factory=lambda: {"username": "${username}"})
    acl_collection: Annotated[str, Meta(min_length=1)] = "mqtt_acl"
    #: Which documents are rules of a client. Empty: none.
    acl_filter: dict[str, Any] = field(default_factory=dict)
    #: How passwords are kept.
    password_hash: PasswordHash = field(default_factory=PasswordHash)


class Filter:
    """A filter with placeholders in its texts. Raises ValueError for one elsewhere."""

    def __init__(self, source: Mapping[str, Any], what: str) -> None:
        names: set[str] = set()
        self._made = _compile(source, what, names, False)
        self.names = frozenset(names)

    def fill(self, values: Mapping[str, str]) -> Any:
        """The filter for one client."""
        return _fill(self._made, values)


@implementer(IPlugin)
class AuthMongo:
    """The running part. `connect` is how tests stand in for PyMongo."""

    def __init__(self, connect: Callable[..., Any] = pymongo.MongoClient) -> None:
        self._connect = connect
        self._client: Any = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check the filters, register the module; nothing is connected yet."""
        self._config = config
        self._judge = Judge(config.password_hash, config.unknown)
        self._filter = Filter(config.filter, "filter")
        if not self._filter.names:
            raise ValueError("filter: expected a placeholder like ${username}")
        self._acl_filter = Filter(config.acl_filter, "acl_filter") if config.acl_filter else None
        hosts = config.host.split(",")
        tls = not all(map(_is_local, hosts)) if config.tls is None else config.tls
        for host in hosts:
            require_encryption(f"host = {host!r}", _name(host), tls, config.plaintext)
        self._client = self._connect(**_parameters(config, hosts, tls))
        text = f"auth_mongo: {config.host}/{config.database}.{config.collection}"
        module = Threaded(handle, text, self._filter.names, self._ask, config.timeout)
        handle.register_mod("auth", handle.name, module)

    def unload(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _ask(self, values: dict[str, str], password: bytes) -> AuthVerdict:
        config = self._config
        with pymongo.timeout(config.timeout):
            users = list(
                self._client[config.database][config.collection]
                .find(self._filter.fill(values), {"_id": False})
                .limit(2)
            )
            if len(users) > 1:
                return AuthError("filter: more than one document for this client")
            found = None
            if users:
                user = users[0]
                hashed = user.get("password_hash", user.get("password"))
                found = Found(
                    hashed if isinstance(hashed, str) else None,
                    str(user.get("salt") or ""),
                    is_superuser(user.get("is_superuser")),
                )
            return self._judge.judge(found, password, lambda: self._rules(values))

    def _rules(self, values: dict[str, str]) -> list[Mapping[str, Any]] | None:
        config = self._config
        if self._acl_filter is None or not self._acl_filter.names <= values.keys():
            return None
        projection = {"_id": False, **dict.fromkeys(_RULE_KEYS, True)}
        documents = self._client[config.database][config.acl_collection].find(
            self._acl_filter.fill(values), projection
        )
        return list(documents.limit(MOST_RULES + 1))


def _parameters(config: Settings, hosts: list[str], tls: bool) -> dict[str, Any]:
    milliseconds = int(config.timeout * 1000)
    parameters: dict[str, Any] = {
        "host": hosts,
        "port": config.port,
        "connect": False,
        "tls": tls,
        "appname": "mqttd",
        "maxPoolSize": THREADS,
        "serverSelectionTimeoutMS": milliseconds,
        "connectTimeoutMS": milliseconds,
        "socketTimeoutMS": milliseconds,
        "retryReads": True,
    }
    if tls and config.ca_file:
        parameters["tlsCAFile"] = config.ca_file
    if config.replica_set:
        parameters["replicaSet"] = config.replica_set
    if config.user:
        parameters |= {
            "username": config.user,
            "password": read_secret("password", config.password, config.password_file),
            "authSource": config.auth_source,
        }
    return parameters


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_local(host: str) -> bool:
    return is_local(_name(host))


def _compile(source: Any, what: str, names: set[str], code: bool) -> Any:
    if isinstance(source, Mapping):
        made = {}
        for key, value in source.items():
            if Template(key, what).names:
                raise ValueError(f"{what}: found {key!r} as a key, expected it as a value")
            made[key] = _compile(value, f"{what}.{key}", names, code or key in _CODE)
        return made
    if isinstance(source, list):
        return [_compile(item, what, names, code) for item in source]
    if not isinstance(source, str):
        return source
    template = Template(source, what)
    if template.names and code:
        raise ValueError(f"{what}: a placeholder within code or a pattern")
    names |= template.names
    return template


def _fill(made: Any, values: Mapping[str, str]) -> Any:
    if isinstance(made, Template):
        return made.fill(values)
    if isinstance(made, dict):
        return {key: _fill(value, values) for key, value in made.items()}
    if isinstance(made, list):
        return [_fill(item, values) for item in made]
    return made
