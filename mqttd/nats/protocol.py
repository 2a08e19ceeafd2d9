"""One connection to a NATS server: its lines, as a Twisted protocol.

    INFO {...}                   --> CONNECT {...}, PING   after TLS where it is wanted
    PONG                         --> ready
    MSG subject sid [reply] n    --> `told` with what came
    HMSG subject sid [reply] h n --> the same, with headers
    later INFO                   --> other servers to go to, nothing else

Promise: what cannot be read ends the connection. https://docs.nats.io/reference/nats-protocol
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

__all__ = ["Came", "NatsProtocol", "quoted"]

#: Bytes of a line, at most: an INFO of many servers is long.
_LINE: Final = 1 << 20
_END: Final = b"\r\n"


class _Unfit(Exception):
    """A server that is none for us; the text says why."""


class Came(NamedTuple):
    """A message: its subject, where an answer goes, its status (503: nobody is there)."""

    subject: bytes
    reply: bytes
    status: int
    data: bytes


def quoted(name: str) -> str:
    """A name as one token of a subject, and as part of a stream's name: what is special as `%XX`,
    with a letter in place of the percent sign, which a stream's name may not have."""
    made = []
    for byte in name.encode():
        char = chr(byte)
        plain = char.isascii() and (char.isalnum() or char == "-") and char != "Z"
        made.append(char if plain else f"Z{byte:02x}")
    return "".join(made)


class NatsProtocol(Protocol):
    """Says `said` in CONNECT; `secure` makes TLS of the connection, None: plain unless asked.

    `ready` is called once, `told` with each message and the number of its subscription, `others`
    with addresses of more servers, `gone` with why it is over.
    """

    def __init__(
        self,
        said: dict[str, Any],
        secure: Callable[[], Any] | None,
        ready: Callable[[NatsProtocol], object],
        told: Callable[[int, Came], object],
        others: Callable[[list[str]], object],
        gone: Callable[[NatsProtocol, str], object],
    ) -> None:
        self.said = said
        self.secure = secure
        self.ready = ready
        self.told = told
        self.others = others
        self.gone = gone
        #: Bytes of a message, at most, as the server says.
        self.most = 1 << 20
        #: PINGs that were not answered.
        self.unanswered = 0
        self.error = ""
        self._data = b""
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 0
        self._greeted = False
        self._opened = False

    def connectionMade(self) -> None:
        """INFO comes first."""
        transport: Any = self.transport
        transport.setTcpNoDelay(True)

    def dataReceived(self, data: bytes) -> None:
        """Lines, and the bytes behind some of them."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        self._data = b"".join(self._pieces)
        try:
            self._take()
        except _Unfit as error:
            self.error = str(error)
            self._data = b""
            self.transport.abortConnection()  # type: ignore[union-attr]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.error = f"it makes no sense: {error!r}"
            self._data = b""
            self.transport.abortConnection()  # type: ignore[union-attr]
        self._pieces = [self._data] if self._data else []
        self._held = len(self._data)

    def _take(self) -> None:
        data, at = self._data, 0
        self._needed = 0
        while True:
            end = data.find(_END, at)
            if end < 0:
                if len(data) - at > _LINE:
                    raise ValueError("a line does not end")
                break
            words = data[at:end].split(b" ", 1)
            verb = words[0].upper()
            if verb in (b"MSG", b"HMSG"):
                after = self._message(verb == b"HMSG", data, words[1].split(), end + 2)
                if after > len(data):
                    self._needed = after - at
                    break
                at = after
                continue
            at = end + 2
            self._line(verb, words[1] if len(words) > 1 else b"")
        self._data = data[at:]

    def _message(self, headed: bool, data: bytes, words: list[bytes], start: int) -> int:
        """One message, if all of it is there; the index behind it."""
        end = start + int(words[-1])
        if len(data) < end + 2:
            return end + 2
        head = int(words[-2]) if headed else 0
        rest = words[2 : -2 if headed else -1]
        status = 0
        if head:
            first = data[start : start + head].split(_END, 1)[0].split()
            if len(first) > 1:
                status = int(first[1])
        came = Came(words[0], rest[0] if rest else b"", status, data[start + head : end])
        self.told(int(words[1]), came)
        return end + 2

    def _line(self, verb: bytes, rest: bytes) -> None:
        if verb == b"PING":
            self.write(b"PONG\r\n")
        elif verb == b"PONG":
            self.unanswered = 0
            if not self._opened:
                self._opened = True
                self.ready(self)
        elif verb == b"INFO":
            self._info(json.loads(rest))
        elif verb == b"-ERR":
            self.error = rest.decode(errors="replace").strip("' ")[:200]

    def _info(self, info: dict[str, Any]) -> None:
        self.others([str(each) for each in info.get("connect_urls") or ()])
        if self._greeted:
            return  # the servers have changed
        self._greeted = True
        self.most = int(info.get("max_payload", self.most))
        if not info.get("headers"):
            raise _Unfit("it is older than 2.2")
        if self.secure is not None:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise _Unfit("it does not speak TLS, and is to (jetstream.tls)")
            self.transport.startTLS(self.secure())  # type: ignore[union-attr]
        elif info.get("tls_required"):
            raise _Unfit("it wants TLS (jetstream.tls)")
        self.write(b"CONNECT " + json.dumps(self.said).encode() + b"\r\nPING\r\n")

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.write(data)  # type: ignore[union-attr]

    def ping(self) -> None:
        """See whether the other end is there: one that does not answer twice is not."""
        if self.unanswered >= 2:
            self.error = "it does not answer"
            self.transport.abortConnection()  # type: ignore[union-attr]
            return
        self.unanswered += 1
        self.write(b"PING\r\n")

    def connectionLost(self, reason: Failure | None = None) -> None:
        """It is over."""
        text = reason.getErrorMessage() if reason is not None else ""
        self.gone(self, self.error or text)
