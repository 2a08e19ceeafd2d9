"""Serves the HTTP interface over TCP, to programs on other machines that show a token.

    Authorization: Bearer TOKEN --+-- of token_file        everything
                                  +-- of pull_token_file   the event log alone (`api.PULL_PATH`)
                                  +-- of an API user       what its role may
                                  '-- anything else        401 in a while, logged, nothing told
                                                           but `/health/...`

Promise: closed until there is a file of tokens; in the open, behind any address but loopback, only
with TLS. Tokens are compared in constant time and never logged. A changed file of tokens counts at
the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from OpenSSL import crypto
from twisted.application.service import Service
from twisted.internet.ssl import CertificateOptions, TLSVersion
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.resource import IResource
from zope.interface import implementer

from mqttd.admin.api_users import ApiUsers
from mqttd.admin.health import OPEN_PATHS
from mqttd.admin.requests import ADMINISTRATOR, EVENTS, Caller, problem, set_caller
from mqttd.admin.server import site_of
from mqttd.admin.slow import Slow
from mqttd.config.schema import AdminTcp
from mqttd.net.addresses import address_text
from mqttd.net.sockets import bound_tcp
from mqttd.net.tls import load_pair

__all__ = [
    "AdminTcpError",
    "AdminTcpService",
    "Tokens",
    "certificate_options",
    "check_settings",
    "open_socket",
]

#: Who shows a token of token_file, of pull_token_file.
_EVERY: Final = Caller("token_file", ADMINISTRATOR)
_PULL: Final = Caller("pull_token_file", EVENTS)

#: Characters a token must have at least.
LEAST: Final = 16
#: Refused requests that are logged in a minute.
LOGGED: Final = 10

_REFUSED: Final = problem(401, "unauthorized", "a bearer token is needed")


class AdminTcpError(Exception):
    """The TCP side cannot be opened; the text names the key and what is wrong."""


class Tokens:
    """The tokens in a file, one a line; lines that begin with # are comments.

    Raises AdminTcpError if it cannot be read, or holds something that is no token. A file that
    becomes unreadable later holds none.
    """

    def __init__(self, key: str, path: str) -> None:
        self.key = key
        self.path = path
        self._seen: object = None
        self._digests: list[bytes] = []
        if path:
            self._digests = self._read()
            self._seen = self._signature()

    def holds(self, token: bytes) -> bool:
        """Whether `token` is one of them; takes as long whichever it is."""
        if not self.path:
            return False
        now = self._signature()
        if now != self._seen:
            self._seen = now
            try:
                self._digests = self._read()
            except AdminTcpError:
                self._digests = []
        digest = hashlib.sha256(token).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found

    def _signature(self) -> object:
        try:
            about = os.stat(self.path)
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _read(self) -> list[bytes]:
        where = f"admin.tcp.{self.key} = {self.path!r}"
        try:
            with open(self.path, encoding="ascii") as file:
                lines = [line.strip() for line in file]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not ASCII"
            raise AdminTcpError(f"{where}: {reason}") from None
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise AdminTcpError(f"{where}: no token in it")
        for token in tokens:
            if len(token) < LEAST or " " in token:
                raise AdminTcpError(
                    f"{where}: expected tokens of at least {LEAST} characters without blanks, one"
                    " a line (openssl rand -hex 32)"
                )
        return [hashlib.sha256(token.encode()).digest() for token in tokens]


@implementer(IResource)
class _Guarded:
    """Another resource, for who shows a token."""

    isLeaf = True

    def __init__(
        self,
        resource: IResource,
        every: Tokens,
        pull: Tokens,
        refused: Callable[[Any], None],
        slow: Slow,
        users: ApiUsers,
    ) -> None:
        self.resource = resource
        self.users = users
        self.every = every
        self.pull = pull
        self.refused = refused
        self.slow = slow

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        """A leaf has none."""
        return self

    def putChild(self, path: bytes, child: Any) -> None:
        """A leaf takes none."""
        raise TypeError("a leaf")

    def render(self, request: Any) -> Any:
        """Check the token, then let the resource answer."""
        given = request.getHeader(b"authorization") or b""
        scheme, _, token = given.partition(b" ")
        token = token.strip() if scheme.lower() == b"bearer" else b""
        if self.every.holds(token):
            set_caller(request, _EVERY)
        elif self.pull.holds(token):
            set_caller(request, _PULL)
        elif (caller := self.users.by_token(token.decode("utf-8", "replace"))) is not None:
            set_caller(request, caller)
        elif request.path not in OPEN_PATHS:
            self.refused(request)
            request.setResponseCode(401)
            request.setHeader(b"content-type", b"application/problem+json")
            request.setHeader(b"www-authenticate", b'Bearer realm="mqttd"')
            return self.slow.refuse(request, _REFUSED)
        return self.resource.render(request)


class AdminTcpService(Service):
    """Listens on ``admin.tcp.bind`` while it runs; the address is taken at once.

    Arguments: the resource to serve, the settings, the reactor, bytes a request's body may have.
    Raises AdminTcpError. `port` is the port it got. `before` is one whose place it
    takes: at the same address it takes its socket too.
    """

    def __init__(
        self,
        resource: IResource,
        settings: AdminTcp,
        reactor: Any,
        max_body: int,
        before: AdminTcpService | None = None,
        users: ApiUsers | None = None,
    ) -> None:
        self.settings = settings
        self.reactor = reactor
        self.log = Logger(namespace="mqttd.admin")
        self._minute = (0, 0)
        guarded = _Guarded(
            resource,
            Tokens("token_file", settings.token_file),
            Tokens("pull_token_file", settings.pull_token_file),
            self._refused,
            Slow(reactor),
            users if users is not None else ApiUsers(),
        )
        self.factory: Any = site_of(guarded, max_body)
        self.site: Any = self.factory
        if settings.certificate:
            options = certificate_options(settings.certificate, settings.private_key)
            self.factory = TLSMemoryBIOFactory(options, False, self.factory)
        if before is not None and before.settings.bind == settings.bind:
            self._socket = before.another()
        else:
            self._socket = open_socket("admin.tcp.bind", settings.bind)
        self.port: int = self._socket.getsockname()[1]
        self._port: Any = None

    def startService(self) -> None:
        """Listen."""
        self._socket.listen(128)
        self._socket.setblocking(False)
        self._port = self.reactor.adoptStreamPort(
            self._socket.fileno(), self._socket.family, self.factory
        )
        self._socket.close()
        super().startService()  # type: ignore[no-untyped-call]

    @property
    def url(self) -> str:
        """Where it is: https://127.0.0.1:8081."""
        scheme = "https" if self.settings.certificate else "http"
        return f"{scheme}://{address_text(self.settings.address[0], self.port)}"

    def another(self) -> socket.socket:
        """Its socket once more, for who is to take its place."""
        found = self._socket if self._port is None else self._port.socket
        return cast(socket.socket, found.dup())

    def release(self) -> None:
        """Let go of the address, where it was not started."""
        self._socket.close()

    def stopService(self) -> Any:
        """Stop listening."""
        super().stopService()  # type: ignore[no-untyped-call]
        port, self._port = self._port, None
        return port.stopListening() if port is not None else None

    def _refused(self, request: Any) -> None:
        minute = int(self.reactor.seconds() // 60)
        then, count = self._minute
        count = count + 1 if then == minute else 1
        self._minute = (minute, count)
        if count <= LOGGED:
            self.log.warn(
                "API request without a good token: peer={peer} method={method} path={path}",
                peer=request.getClientAddress(),
                method=request.method,
                path=request.path[:200],
            )


def open_socket(key: str, bind: str) -> socket.socket:
    """A socket bound to ``host:port``, that does not listen yet; raises AdminTcpError."""
    host, _, port = bind.rpartition(":")
    try:
        return bound_tcp(host.removeprefix("[").removesuffix("]"), int(port))
    except OSError as error:
        raise AdminTcpError(f"{key} = {bind!r}: {error.strerror}") from None


def check_settings(settings: AdminTcp) -> None:
    """Read the files that the settings name. Raises AdminTcpError."""
    if settings.token_file or settings.pull_token_file:
        Tokens("token_file", settings.token_file)
        Tokens("pull_token_file", settings.pull_token_file)
        if settings.certificate:
            certificate_options(settings.certificate, settings.private_key)


def certificate_options(certificate: str, private_key: str) -> CertificateOptions:
    """TLS 1.2 and up with the certificate (and those behind it in the file) and its key.

    Raises AdminTcpError, which names the file.
    """
    try:
        key, chain = load_pair(certificate, private_key)
        return CertificateOptions(
            key,
            chain[0],
            extraCertChain=chain[1:],
            raiseMinimumTo=TLSVersion.TLSv1_2,
        )
    except OSError as error:
        raise AdminTcpError(f"admin.tcp: {error.filename}: {error.strerror}") from None
    except (crypto.Error, ValueError, IndexError):
        raise AdminTcpError(
            f"admin.tcp: {certificate} with {private_key}: no certificate with its key (PEM)"
        ) from None
