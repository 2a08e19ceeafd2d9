"""A client of some NATS servers: one connection, to the next server where one does not answer.

    connect --> ready --> requests
       ^          '--gone--> what was asked has failed: `NatsError`
       '-- 0.1 s ... 2 s later, at the next of `servers` and of those that they have named

Promise: an answer or a failure in time; what has failed may have been done all the same. Nothing
waits for a connection: without one what is asked fails at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from mqttd.nats.protocol import Came, NatsProtocol

__all__ = ["NOT_YET", "TIMEOUT", "Nats", "NatsError"]

#: Why there is no connection, before one was tried.
NOT_YET: Final = "not connected yet"

#: Seconds for an answer, for a connection, and between two looks whether the other end is there.
TIMEOUT: Final = 2.0
_CONNECT: Final = 3.0
_PING: Final = 2.0
_FIRST: Final = 0.1
_LONGEST: Final = 2.0
#: Servers that others have named, at most.
_NAMED: Final = 30


class NatsError(Exception):
    """A server has not answered, or has refused; the text says which."""


class _Dialler(Factory):
    """Makes one connection."""

    noisy = False

    def __init__(self, made: NatsProtocol, failed: Callable[[str], object]) -> None:
        self.made = made
        self.failed = failed

    def buildProtocol(self, addr: object) -> NatsProtocol:
        """See `IProtocolFactory`."""
        return self.made

    def startedConnecting(self, connector: object) -> None:
        """See `ClientFactory`."""

    def clientConnectionLost(self, connector: object, reason: Failure) -> None:
        """See `ClientFactory`: the protocol says so."""

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """Nobody answers."""
        self.failed(reason.getErrorMessage())


class Nats:
    """A client; `servers` are `host:port`, `said` more of CONNECT (user, pass, auth_token).

    `secure(host)` gives what makes TLS of a connection to that host; None: plain TCP.
    """

    def __init__(
        self,
        reactor: Any,
        servers: Sequence[str],
        said: dict[str, Any],
        secure: Callable[[str], Any] | None = None,
    ) -> None:
        self.reactor = reactor
        self.servers = list(servers)
        self.said = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "lang": "python-mqttd", "version": "1", "protocol": 1, **said,
        }  # fmt: skip
        self.secure = secure
        #: Called with why there is no connection any more.
        self.lost: Callable[[str], object] = lambda text: None
        #: Why there is no connection; empty while there is one.
        self.error = NOT_YET
        self.stopped = False
        self._edge: NatsProtocol | None = None
        self._dialled: NatsProtocol | None = None
        self._inbox = f"_INBOX.{random.getrandbits(96):024x}"
        self._asked: dict[bytes, tuple[Deferred[Came], Any]] = {}
        self._number = 0
        self._at = 0
        self._pause = _FIRST
        self._calls: set[Any] = set()

    @property
    def most(self) -> int:
        """Bytes of a message, at most."""
        return 1 << 20 if self._edge is None else self._edge.most

    def start(self) -> None:
        """Connect, and do so again whenever it is over."""
        self._dial()

    def stop(self) -> None:
        """End it; what was asked has failed."""
        self.stopped = True
        for call in self._calls:
            if call.active():
                call.cancel()
        for edge in (self._edge, self._dialled):
            if edge is not None and edge.transport is not None:
                edge.transport.loseConnection()
        self._fail("the client was stopped")

    def request(self, subject: str, data: bytes, timeout: float = TIMEOUT) -> Deferred[Came]:
        """What is answered. Fails with NatsError."""
        answered: Deferred[Came] = Deferred()
        if self._edge is None:
            answered.errback(NatsError(self.error))
            return answered
        self._number += 1
        reply = f"{self._inbox}.{self._number}".encode()
        late = self.reactor.callLater(timeout, self._late, reply)
        self._asked[reply] = answered, late
        self._edge.write(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(data), data))
        return answered

    def _late(self, reply: bytes) -> None:
        answered, _ = self._asked.pop(reply)
        answered.errback(NatsError("no answer in time"))

    def _told(self, number: int, came: Came) -> None:
        found = self._asked.pop(came.subject, None)
        if found is None:
            return  # too late
        answered, late = found
        late.cancel()
        if came.status >= 300:
            answered.errback(NatsError(f"status {came.status}: nobody serves it now"))
        else:
            answered.callback(came)

    # -- the connection ------------------------------------------------------------------------

    def _dial(self) -> None:
        if self.stopped:
            return
        host, _, port = self.servers[self._at % len(self.servers)].rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        made = self.secure
        secure = None if made is None else lambda: made(host)
        self._dialled = edge = NatsProtocol(
            self.said, secure, self._ready, self._told, self._named, self._gone
        )
        dialler = _Dialler(edge, self._failed)
        self.reactor.connectTCP(host, int(port), dialler, timeout=_CONNECT)
        self._later(_CONNECT + 1.0, self._too_late, edge)

    def _later(self, seconds: float, what: Callable[..., object], *about: object) -> None:
        def now() -> None:
            self._calls.discard(call)
            what(*about)

        call = self.reactor.callLater(seconds, now)
        self._calls.add(call)

    def _too_late(self, edge: NatsProtocol) -> None:
        if self._dialled is edge and edge.transport is not None:
            edge.error = "no greeting in time"
            edge.transport.abortConnection()  # type: ignore[attr-defined]

    def _failed(self, text: str) -> None:
        self._dialled = None
        self.error = f"{self.servers[self._at % len(self.servers)]}: {text}"
        self._at += 1
        if not self.stopped:
            self.lost(self.error)
            self._later(self._pause * random.uniform(0.8, 1.2), self._dial)
            self._pause = min(self._pause * 2, _LONGEST)

    def _ready(self, edge: NatsProtocol) -> None:
        self._dialled = None
        self._edge = edge
        self._pause = _FIRST
        self.error = ""
        edge.write(b"SUB %b.* 1\r\n" % self._inbox.encode())
        self._later(_PING, self._look, edge)

    def _look(self, edge: NatsProtocol) -> None:
        if self._edge is edge:
            self._later(_PING, self._look, edge)
            edge.ping()

    def _named(self, servers: list[str]) -> None:
        for each in servers:
            if each not in self.servers and len(self.servers) < _NAMED:
                self.servers.append(each)

    def _gone(self, edge: NatsProtocol, text: str) -> None:
        if self._edge is edge:
            self._edge = None
        elif self._dialled is not edge:
            return
        self._failed(text)
        self._fail(self.error)

    def _fail(self, text: str) -> None:
        asked, self._asked = self._asked, {}
        for answered, late in asked.values():
            late.cancel()
            answered.errback(NatsError(text))
