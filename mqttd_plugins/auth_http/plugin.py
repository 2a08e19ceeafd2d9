"""Asks an HTTP service who may connect, and what they may do, with treq.

    POST https://auth.example/mqtt    {"username": "alice", "clientid": "c1", "password": "..."}
      200  {"result": "allow", "is_superuser": false, "expire_at": 1767225600,
            "acl": [{"permission": "allow", "action": "publish", "topic": "dev/${clientid}/#"}]}
      200  {"result": "deny"}   4xx           refused
      200  {"result": "ignore"}               the next module is asked
      204                                     allowed, without more to say
      404                                     a user that there is not
      anything else, 408, 429                 the service has failed

Promise: what a client calls itself is encoded for where it stands: in JSON, in a form, in one
segment of the path, in the query. Answers are given up after `timeout`, and ones longer than
`max_body` bytes broken off; certificates are verified, redirects not followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from msgspec import Meta, field
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import Certificate, trustRootFromCertificates
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    BrowserLikePolicyForHTTPS,
    HTTPConnectionPool,
    ResponseDone,
)
from twisted.web.http import PotentialDataLoss
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import Module, within
from mqttd.plugins.backends.rules import acl_text
from mqttd.plugins.backends.settings import BackendSettings, require_encryption
from mqttd.plugins.backends.templates import Template
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, AuthVerdict, PluginError

__all__ = ["AnswerError", "AuthHttp", "Settings", "verdict"]

_PASSWORD: Final = {"${password}": "password"}
_REFUSED: Final = AuthError("the service refuses the client")
_NOT_FOUND: Final = AuthError("the service does not know the client")
_KEYS: Final = frozenset(("result", "is_superuser", "acl", "expire_at", "client_attrs"))

#: Sends a request: method, URL, headers, body; gives a Deferred of status and body.
Send = Callable[[str, str, dict[str, str], bytes | None], Deferred[tuple[int, bytes]]]


class AnswerError(PluginError, ValueError):
    """The service has answered with what is no answer; the text is the operator's."""


class Settings(BackendSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_http.conf`` may say."""

    #: Where to, http or https; placeholders in its path and query.
    url: Annotated[str, Meta(min_length=1)]
    method: Literal["post", "get"] = "post"
    #: More headers, ``Authorization = "Bearer ..."``; no placeholders.
    headers: dict[str, str] = field(default_factory=dict)
    #: What is sent: the body of POST, the query of GET.
    body: dict[str, str] = field(
        default_factory=lambda: {
            "username": "${username}",
            "clientid": "${clientid}",
            "peerhost": "${peerhost}",
            "password": "${password}",
        }
    )
    #: What the body of POST is.
    encoding: Literal["json", "form"] = "json"
    #: Longest answer that is read, in bytes.
    max_body: Annotated[int, Meta(ge=1024, le=16 << 20)] = 65536
    #: The certificates that vouch for the service; empty are those of the system.
    ca_file: str = ""


@implementer(IPlugin)
class AuthHttp:
    """The running part. `send` is how tests stand in for the service."""

    def __init__(self, send: Send | None = None) -> None:
        self._send = send
        self._close: Callable[[], Deferred[None]] | None = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check what a schema cannot, register the module."""
        self._handle = handle
        self._config = config
        parts = urlsplit(config.url)
        shown = f"url = '{parts.scheme}://{parts.netloc.rpartition('@')[2]}'"
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{shown}: expected http://host/ or https://host/, without a user")
        where = f"{parts.scheme}://{parts.netloc}"
        if Template(where, "url", _PASSWORD, short=False).names:
            raise ValueError(f"{shown}: expected placeholders in path and query alone")
        require_encryption(shown, parts.hostname, parts.scheme == "https", config.plaintext)
        for name, value in config.headers.items():
            if not name or not name.isascii() or any(char in name + value for char in "\r\n\0"):
                raise ValueError(f"headers: {name!r} is no header, or has a line break")
        path, _, query = config.url[len(where) :].partition("?")
        self._where = where
        self._path = Template(path or "/", "url", _PASSWORD, short=False)
        self._query = Template(query, "url", _PASSWORD, short=False)
        self._body = {
            key: Template(text, f"body.{key}", _PASSWORD) for key, text in config.body.items()
        }
        if self._send is None:
            self._send, self._close = _sender(handle.clock, config)
        # A body may ask for what not every client has: it is empty then. A path may not.
        needs = (self._path.names | self._query.names) - {"password"}
        text = f"auth_http: {config.method.upper()} {where}{path}"
        handle.register_mod("auth", handle.name, _WithoutPassword(text, needs, self._ask))

    def unload(self) -> Deferred[None] | None:
        """Close the connections."""
        return self._close() if self._close is not None else None

    def _ask(self, values: dict[str, str], password: bytes) -> AuthVerdict | Deferred[AuthVerdict]:
        assert self._send is not None
        try:
            values = {**values, "password": password.decode()}
        except UnicodeDecodeError:
            return AuthError("the password is not UTF-8")
        if any(values[name] in ("", ".", "..") for name in self._path.names):
            return _NOT_FOUND  # it would be another path
        config = self._config
        url = self._where + self._path.fill(values, _quote)
        query = self._query.fill(values, _quote)
        headers = {"Accept": "application/json", **config.headers}
        fields = {
            key: template.fill({**dict.fromkeys(template.names, ""), **values})
            for key, template in self._body.items()
        }
        body: bytes | None = None
        if config.method == "get":
            query = "&".join(part for part in (query, urlencode(fields)) if part)
        elif config.encoding == "form":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(fields).encode()
        else:
            headers["Content-Type"] = "application/json"
            body = json.dumps(fields).encode()
        answer = self._send(
            config.method.upper(), f"{url}?{query}" if query else url, headers, body
        )
        within(answer, config.timeout, self._handle.clock, self._where)
        return answer.addCallback(
            lambda answered: verdict(answered[0], answered[1], config.unknown)
        )


class _WithoutPassword(Module):
    """The service judges clients without a password too: it gets an empty one."""

    def check(self, client: Any, password: bytes | None) -> Any:
        """See `IAuthenticator.check`."""
        return super().check(client, b"" if password is None else password)


def verdict(status: int, body: bytes, unknown: str = "deny") -> AuthVerdict:
    """What the service's answer says; AnswerError for one that says nothing."""
    if status == 204:
        return AuthOk()
    if status == 404:
        return AUTH_IGNORE if unknown == "ignore" else _NOT_FOUND
    if 400 <= status < 500 and status not in (408, 429):
        # What a strange name may bring about is no failure of the service.
        return AuthError(f"the service refuses the client: status {status}")
    if status != 200:
        raise AnswerError(f"the service answered with status {status}")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise AnswerError("the service's answer is not JSON") from None
    if not isinstance(said, Mapping) or said.get("result") not in ("allow", "deny", "ignore"):
        raise AnswerError('the service\'s answer has no "result": "allow", "deny" or "ignore"')
    if unknown_keys := set(said) - _KEYS:
        # It could be a limit that is not kept.
        raise AnswerError(f"the service's answer: unknown key {min(unknown_keys)!r}")
    if said["result"] != "allow":
        return _REFUSED if said["result"] == "deny" else AUTH_IGNORE
    return _allowed(said)


def _allowed(said: Mapping[str, Any]) -> AuthVerdict:
    superuser, expires_at = said.get("is_superuser", False), said.get("expire_at")
    attributes, rules = said.get("client_attrs"), said.get("acl")
    if not isinstance(superuser, bool):
        raise AnswerError("the service's answer: is_superuser: expected true or false")
    if expires_at is not None and (
        isinstance(expires_at, bool) or not isinstance(expires_at, int | float)
    ):
        raise AnswerError("the service's answer: expire_at: expected seconds since 1970")
    if attributes is not None and not (
        isinstance(attributes, Mapping) and all(isinstance(v, str) for v in attributes.values())
    ):
        raise AnswerError("the service's answer: client_attrs: expected texts by name")
    if rules is not None and not isinstance(rules, list):
        raise AnswerError("the service's answer: acl: expected a list of rules")
    try:
        acl = acl_text(rules) if rules else None
    except ValueError as error:
        return AuthError(f"the rules of this client: {error}")
    return AuthOk(superuser, acl, expires_at, attributes)


def _quote(value: str) -> str:
    return quote(value, safe="")


class _Body(Protocol):
    """Collects a body up to a limit."""

    def __init__(self, most: int, done: Deferred[bytes]) -> None:
        self._left = most
        self._done = done
        self._parts: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        """One more part, or one too many."""
        self._left -= len(data)
        if self._left >= 0:
            self._parts.append(data)
        elif not self._done.called:
            self._done.errback(AnswerError("the service's answer is longer than max_body"))
            self.stop()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The end, or what came instead."""
        if self._done.called:
            return
        if reason.check(ResponseDone):
            self._done.callback(b"".join(self._parts))
        elif reason.check(PotentialDataLoss):
            self._done.errback(AnswerError("the service's answer has no Content-Length"))
        else:
            self._done.errback(reason)

    def stop(self) -> None:
        """Break the connection off."""
        if self.transport is not None:
            self.transport.loseConnection()


def _sender(reactor: Any, config: Settings) -> tuple[Send, Callable[[], Deferred[None]]]:
    """Sends with treq on kept connections; certificates verified, redirects not followed."""
    from treq.client import HTTPClient

    trust = None
    if config.ca_file:
        with open(config.ca_file, "rb") as file:
            trust = trustRootFromCertificates([Certificate.loadPEM(file.read())])
    pool = HTTPConnectionPool(reactor)
    pool.maxPersistentPerHost = 16
    pool.retryAutomatically = config.method == "get"
    agent = Agent(
        reactor,
        BrowserLikePolicyForHTTPS(trust) if trust else BrowserLikePolicyForHTTPS(),
        connectTimeout=config.timeout,
        pool=pool,
    )
    client: Any = HTTPClient(agent)

    def send(
        method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> Deferred[tuple[int, bytes]]:
        answer = client.request(
            method, url, headers=headers, data=body, allow_redirects=False, unbuffered=True
        )

        def read(response: Any) -> Deferred[tuple[int, bytes]]:
            def cancelled(done: Deferred[bytes]) -> None:
                collecting.stop()

            done: Deferred[bytes] = Deferred(cancelled)
            collecting = _Body(config.max_body, done)
            response.deliverBody(collecting)
            return done.addCallback(lambda text: (int(response.code), text))

        asked: Deferred[tuple[int, bytes]] = answer.addCallback(read)
        return asked

    return send, pool.closeCachedConnections
