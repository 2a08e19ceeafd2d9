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
from collections.abc import Callable
from typing import Any, Final

from twisted.web.resource import IResource
from zope.interface import implementer

from mqttd.admin.doors.door import DoorError, DoorService
from mqttd.admin.doors.health import OPEN_PATHS
from mqttd.admin.http.api_users import ApiUsers
from mqttd.admin.http.requests import ADMINISTRATOR, EVENTS, Caller, problem, set_caller
from mqttd.admin.http.slow import Slow
from mqttd.config.schema import AdminTcp

__all__ = ["AdminTcpService", "Tokens"]

#: Who shows a token of token_file.
_EVERY: Final = Caller("token_file", ADMINISTRATOR)

#: Characters a token must have at least.
LEAST: Final = 16
#: Refused requests that are logged in a minute.
LOGGED: Final = 10

_REFUSED: Final = problem(401, "unauthorized", "a bearer token is needed, one that is known here")


class Tokens:
    """The tokens in a file, one a line; lines that begin with # are comments.

    Raises DoorError if it cannot be read, or holds something that is no token. A file that
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
            except DoorError:
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
            raise DoorError(f"{where}: {reason}") from None
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise DoorError(f"{where}: no token in it")
        for token in tokens:
            if len(token) < LEAST or " " in token:
                raise DoorError(
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
        #: The door is; what goes on of its answers ends.
        self.closed = False
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
        token = _token_of(request)
        caller = self.caller(token)
        if caller is not None:
            set_caller(request, caller, self.caller, token)
        elif request.path not in OPEN_PATHS:
            self.refused(request)
            request.setResponseCode(401)
            request.setHeader(b"content-type", b"application/problem+json")
            request.setHeader(b"www-authenticate", b'Bearer realm="mqttd"')
            return self.slow.refuse(request, _REFUSED)
        return self.resource.render(request)

    def caller(self, token: bytes) -> Caller | None:
        """Whose token this is; None where it is not known, or not any more."""
        if self.closed:
            return None
        if self.every.holds(token):
            return _EVERY
        if self.pull.holds(token):
            return _puller(token)
        return self.users.by_token(token.decode("utf-8", "replace"))

    def known(self, request: Any) -> bool:
        """Whether a request shows a token that is known."""
        return self.caller(_token_of(request)) is not None


def _puller(token: bytes) -> Caller:
    """Who shows a token of pull_token_file: each is another, so that one takes no other's place."""
    return Caller(f"pull_token_file:{hashlib.sha256(token).hexdigest()[:8]}", EVENTS)


def _token_of(request: Any) -> bytes:
    """The token that a request shows, b"" for none."""
    scheme, _, token = (request.getHeader(b"authorization") or b"").partition(b" ")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""


class AdminTcpService(DoorService):
    """The door of ``[admin.tcp]``; see `DoorService`.

    :param users: whose tokens open it beside those of the files.
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
        self._minute = (0, 0)
        self._guarded = guarded = _Guarded(
            resource,
            Tokens("token_file", settings.token_file),
            Tokens("pull_token_file", settings.pull_token_file),
            self._refused,
            Slow(reactor),
            users if users is not None else ApiUsers(),
        )
        super().__init__("admin.tcp", settings, guarded, reactor, max_body, before, guarded.known)

    def stopService(self) -> Any:
        """Stop listening, and end the answers that would go on."""
        self._guarded.closed = True
        return super().stopService()

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
