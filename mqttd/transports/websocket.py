"""The HTTP side of a WebSocket port: Autobahn's upgrade, and the built-in page beside it.

    request --> Upgrade --> Autobahn's parser, the only one --+-- /mqtt     the WebSocket is open
                                                              +-- /         the page
                                                              `-- else      an HTTP error

Autobahn reads the request, checks the headers, computes the answer; then its object is dropped and
`mqttd.transports.frames` reads the frames. There is one parser per port: what is no WebSocket is
answered from what Autobahn has parsed, and no request is ever put together again for another one
(CVE-2026-44546). Bytes that two parsers could split differently (control characters, bare line
ends) are refused before any parser sees them.

Each HTTP answer ends its connection. A request's head may have `MAX_HEAD` bytes.
"""

from __future__ import annotations

import gzip
import html
import ipaddress
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import autobahn.twisted.websocket
import autobahn.websocket.protocol
from autobahn.exception import Disconnected
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.types import ConnectionDeny
from twisted.internet.address import IPv4Address

from mqttd.codec.sniff import looks_like
from mqttd.transports.layers import SERVED

__all__ = ["MAX_HEAD", "SUB_PROTOCOLS", "Upgrade", "WebSite", "may_connect"]

MAX_HEAD: Final = 16384
#: What a client may offer, in the order of our liking.
SUB_PROTOCOLS: Final = ("mqtt", "mqttv3.1")

_REASONS: Final = {
    200: "OK", 304: "Not Modified", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 426: "Upgrade Required", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 505: "HTTP Version Not Supported",
}  # fmt: skip
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Bytes a request's head may hold beside its line ends.
_CLEAN: Final = frozenset(range(0x20, 0x7F)) | {0x09}


class WebSite:
    """What a WebSocket port serves: one object for all connections of a listener.

    `path` is the WebSocket's; `origins` the pages that may open it (see `may_connect`); `page` says
    whether the built-in page is served at `/`.
    """

    def __init__(self, path: str, origins: tuple[str, ...], page: bool) -> None:
        self.path = path
        self.origins = origins
        self.files = _page(path) if page else {}
        make: Any = WebSocketServerFactory
        self.factory = make()
        self.factory.protocol = _Handshake
        self.factory.server = None
        self.factory.setProtocolOptions(
            openHandshakeTimeout=0,
            closeHandshakeTimeout=0,
            autoPingInterval=0,
            webStatus=True,
            allowNullOrigin=True,
        )

    def upgrade(self) -> Upgrade:
        """For a new connection."""
        return Upgrade(self)


class Upgrade:
    """One connection until its WebSocket is open: `received` bytes, `take` what is to be sent.

    `open` is set once the WebSocket is there, and `rest` gives the bytes behind the request;
    `ended` says why there is none.
    """

    def __init__(self, site: WebSite) -> None:
        self.site = site
        self.open = False
        self.ended = ""
        self._head = bytearray()
        self._said: list[bytes] = []
        self._rest = b""

    def received(self, data: bytes) -> None:
        """Bytes of the request."""
        head = self._head
        head += data
        end = head.find(b"\r\n\r\n")
        if end < 0:
            seen = looks_like(bytes(head[:32]))
            if seen and seen != "an HTTP request":
                self.ended = f"expected HTTP, got {seen}"
            elif len(head) > MAX_HEAD:
                self.answer(431)
                self.ended = f"HTTP request with a head of more than {MAX_HEAD} bytes"
            elif head and not _may_begin(head):
                self.ended = f"expected HTTP, got bytes that begin with {head[:4].hex(' ')}"
            return
        lines = bytes(head[:end]).split(b"\r\n")
        if end > MAX_HEAD or not all(_CLEAN.issuperset(line) for line in lines):
            self.answer(400)
            self.ended = "HTTP request with bytes that do not belong there"
            return
        self._shake(bytes(head))

    def take(self) -> bytes:
        """What is to be sent now."""
        said, self._said = b"".join(self._said), []
        return said

    def rest(self) -> bytes:
        """What the peer sent behind its request."""
        return self._rest

    def _shake(self, request: bytes) -> None:
        protocol = self.site.factory.buildProtocol(None)
        protocol.upgrade = self
        _put_words(False)
        try:
            protocol.makeConnection(_Wire(self))
            protocol.dataReceived(request)
        except (ValueError, TypeError, KeyError, Disconnected):
            # What Autobahn does not expect; nothing of it may reach the reactor.
            self._said.clear()
            self.open = False
            self.answer(400)
            self.ended = "HTTP request that cannot be read"
        finally:
            _put_words(True)
        self._head.clear()
        if not self.open and not self.ended:
            self.ended = SERVED

    # -- asked by the handshake ------------------------------------------------------------------

    def opened(self, rest: bytes) -> None:
        """The WebSocket is there."""
        self.open = True
        self._rest = rest

    def say(self, data: bytes) -> None:
        """Bytes for the peer."""
        self._said.append(data)

    def answer(
        self, code: int, body: bytes = b"", kind: str = "txt", headers: tuple[str, ...] = ()
    ) -> None:
        """An HTTP answer, after which the connection ends."""
        reason = _REASONS.get(code, "Error")
        body = body or f"{code} {reason}\n".encode()
        lines = [
            f"HTTP/1.1 {code} {reason}",
            f"Content-Type: {_TYPES[kind]}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "Cache-Control: no-cache",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            f"Content-Security-Policy: {_POLICY}",
            *headers,
        ]
        self._said.append(("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body)

    def serve(self, path: str, accepts: str) -> None:
        """Answer a request that is no WebSocket's."""
        file = self.site.files.get(path)
        if file is None:
            self.answer(426 if path == self.site.path else 404)
            return
        kind, body, packed = file
        if "gzip" in accepts:
            self.answer(200, packed, kind, ("Content-Encoding: gzip", "Vary: Accept-Encoding"))
        else:
            self.answer(200, body, kind, ("Vary: Accept-Encoding",))


#: What Autobahn puts words together with for its log, coloured, also where nobody reads them: two
#: thirds of a handshake (315 us, 102 without).
_WORDS: Final[list[tuple[Any, str, object]]] = [
    (module, name, getattr(module, name))
    for module in (autobahn.twisted.websocket, autobahn.websocket.protocol)
    for name in ("hltype", "hlval", "pformat")
    if hasattr(module, name)
]


def _unsaid(*args: object, **kwargs: object) -> str:
    return ""


def _put_words(on: bool) -> None:
    """Autobahn puts words together, or does not while we are in it; a program may use it, too."""
    for module, name, put in _WORDS:
        setattr(module, name, put if on else _unsaid)


class _Silent:
    """Autobahn's log: what is worth a line we say ourselves, with a rate limit."""

    def _nothing(self, *args: object, **kwargs: object) -> None:
        pass

    trace = debug = info = warn = error = critical = failure = _nothing


class _Handshake(WebSocketServerProtocol):
    """Autobahn's handshake, ended where its frames would begin."""

    log = _Silent()
    upgrade: Upgrade

    def onConnect(self, request: Any) -> str:
        """Check path, origin and sub-protocol; raises `ConnectionDeny`."""
        site = self.upgrade.site
        if request.path != site.path:
            raise _deny(404)
        host = request.headers.get("host", "")
        if not may_connect(request.origin, host, site.origins):
            self.upgrade.ended = f"WebSocket from a page that may not connect: {request.origin!r}"
            raise _deny(403)
        for protocol in SUB_PROTOCOLS:
            if protocol in request.protocols:
                return protocol
        self.upgrade.ended = "WebSocket without the sub-protocol mqtt"
        raise _deny(400)

    def onOpen(self) -> None:
        """Take what came behind the request, before Autobahn reads it as frames."""
        rest, self.data = self.data, b""
        self.upgrade.opened(rest)

    def sendServerStatus(self, redirectUrl: str | None = None, redirectAfter: int = 0) -> None:
        """A request without an upgrade: the page."""
        self.upgrade.serve(self.http_request_path, self.http_headers.get("accept-encoding", ""))

    def sendRedirect(self, url: str) -> None:
        """Autobahn's `?redirect=` is not offered."""
        self.upgrade.answer(404)

    def sendHttpErrorResponse(
        self, code: int, reason: str, responseHeaders: list[tuple[str, str]] | None = None
    ) -> None:
        """An error without the peer's own words in it."""
        if not self.upgrade.ended and code != 404:
            self.upgrade.ended = f"HTTP: {reason[:200]}"
        self.upgrade.answer(code, headers=tuple(f"{k}: {v}" for k, v in responseHeaders or ()))


def _deny(code: int) -> Exception:
    denied: Any = ConnectionDeny
    error: Exception = denied(code)
    return error


class _Wire:
    """The transport Autobahn writes to."""

    def __init__(self, upgrade: Upgrade) -> None:
        self.upgrade = upgrade

    def write(self, data: bytes) -> None:
        self.upgrade.say(data)

    def loseConnection(self) -> None:
        pass

    abortConnection = unregisterProducer = loseConnection

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "0.0.0.0", 0)

    getHost = getPeer


def may_connect(origin: str | None, host: str, origins: tuple[str, ...]) -> bool:
    """Whether a page of `origin` may open the WebSocket at `host` (the Host header).

    Clients that are no browsers send no origin. Without a list, only a page of this very port may,
    and only by an address or as localhost: a name could be anybody's that points here.

    >>> may_connect("http://127.0.0.1:8083", "127.0.0.1:8083", ())
    True
    >>> may_connect("https://evil.example", "127.0.0.1:8083", ())
    False
    """
    if not origin or "*" in origins:
        return True
    if origins:
        return origin.rstrip("/").lower() in {item.rstrip("/").lower() for item in origins}
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        name = here.hostname
        if page.scheme not in ("http", "https") or not name or page.hostname != name:
            return False
        default = 443 if page.scheme == "https" else 80
        if (page.port or default) != (here.port or default):
            return False
    except ValueError:
        return False
    return name == "localhost" or _is_address(name)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _may_begin(head: bytearray) -> bool:
    """Whether these first bytes can be those of an HTTP request: a method in capitals."""
    method = bytes(head).split(b" ", 1)[0]
    return len(method) < 32 and all(0x41 <= byte <= 0x5A for byte in method)


def _page(path: str) -> dict[str, tuple[str, bytes, bytes]]:
    """Path -> kind, bytes, gzipped bytes of the files in `mqttd/transports/page`.

    The page learns the WebSocket's `path`.
    """
    found = {}
    for file in resources.files("mqttd.transports").joinpath("page").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            body = file.read_bytes()
            if kind == "html":
                told = f'data-path="{html.escape(path)}"'
                body = body.replace(b'data-path="/mqtt"', told.encode())
            where = "/" if file.name == "index.html" else f"/{file.name}"
            found[where] = (kind, body, gzip.compress(body, 9, mtime=0))
    return found
