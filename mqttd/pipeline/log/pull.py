"""A log behind a broker's pull endpoint, for readers on other machines. Standard library only.

    PullReader --HTTP, bearer token--> GET  bounds, headers, blocks   (mqttd.pipeline.endpoint)
                                       POST progress

It has the methods of `mqttd.pipeline.log.reader.LogReader`, so that a reader need not know which of
the two it has.

A broker that is away is waited for: a request is tried again with growing pauses, at each address
that was given, for `patience` seconds; that is said once, and once that it is back. One that takes
connections and does not answer is away as well, since it was asked: no answer is waited for beyond
`outage`. `Elsewhere` may know that it has moved meanwhile. What will not get better by waiting (a
wrong token, a certificate that is not trusted) is told at once.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import re
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from mqttd.pipeline.log.blocks import FLAG_GAP, Block
from mqttd.pipeline.log.reader import Bounds, DataLoss, EventLog, LogReader, Run, check_cover
from mqttd.printable import said_by

__all__ = ["HEADER", "PATH", "SHARE", "Address", "Away", "Elsewhere", "PullError", "PullReader",
           "open_log", "parse_url", "trusting"]  # fmt: skip

#: Where the endpoint is when a URL names only the host.
PATH: Final = "/api/v1/plugins/spark/log"

#: One block in the answer to ``headers``: base, rows, bytes, mask, first and last time, flags.
HEADER: Final = struct.Struct("<QIIIqqI")

#: Seconds for an answer, and for a connection; the least where less is left of an outage.
TIMEOUT: Final = 30.0
CONNECT: Final = 10.0
LEAST: Final = 1.0
#: Seconds for an answer of one that is away, where others wait behind the question: a tenth of
#: how long it has been away, within these. And what of their time goes to such questions.
GLANCE: Final = 3.0, 10.0
SHARE: Final = 1 / 3
#: Seconds that a request is tried again by default, and the longest pause between two tries.
PATIENCE: Final = 1.5
PAUSE: Final = 10.0

#: Answers of a broker that starts or stops, or of a proxy before it.
_AWAY: Final = frozenset((502, 503, 504))
_NO_ENDPOINT: Final = "; there is no pull endpoint ([admin.tcp] of the broker says where it is)"


class PullError(Exception):
    """The endpoint refused or could not be reached; the text says which and why."""


class Away(PullError):
    """The broker cannot be reached now; it may be back later."""


class Elsewhere(NamedTuple):
    """A node of a cluster, and what finds its URL by now; None where that is not known."""

    node: str
    url: Callable[[], str | None]


class Address(NamedTuple):
    """Where a pull endpoint is."""

    url: str
    tls: bool
    host: str
    port: int | None
    path: str


def open_log(
    path: str | None = None,
    url: str | None = None,
    token: str = "",
    ca_file: str | None = None,
    patience: float = PATIENCE,
    known: bool = False,
    elsewhere: Elsewhere | None = None,
    outage: float = math.inf,
    away: float | None = None,
) -> EventLog:
    """The log in a directory or behind a pull endpoint; see `PullReader`.

    Raises ValueError unless one of `path` and `url` is given, OSError or PullError if it is not
    there.
    """
    if bool(path) == bool(url):
        raise ValueError("a log is in a directory (path) or at a broker (url): give one of them")
    if path:
        return LogReader(path)
    assert url is not None
    return PullReader(
        url, token, ca_file, patience=patience, known=known, elsewhere=elsewhere, outage=outage,
        away=away,
    )  # fmt: skip


def trusting(ca_file: str | None, option: str) -> ssl.SSLContext:
    """What checks a server's certificate by those in `ca_file`, or in the system's.

    Raises ValueError that names the file, and the `option` it is of.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # ssl's own too
        why = "no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise ValueError(
            f"mqttd: option {option} = {ca_file!r}: {why}; expected a file of certificates (PEM)"
        ) from None


class PullReader:
    """The log at `url` (``https://host:port``), with the broker's bearer token.

    url: one address of the broker, or several with commas between them.
    ca_file: certificates to trust in place of the system's.
    patience: seconds for which a broker that is away is waited for.
    known: somebody has read there before: then even an endpoint that is not there may come.
    elsewhere: who it is, if it may move; asked while it is waited for.
    outage: seconds for which it may be away at all; no answer is waited for longer.
    away: for how many seconds it has been away already, where others wait behind the question.
    Raises PullError if there is no log to be had, ValueError for an URL that is none.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        ca_file: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        patience: float = PATIENCE,
        known: bool = False,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        elsewhere: Elsewhere | None = None,
        outage: float = math.inf,
        away: float | None = None,
    ) -> None:
        self.patience = patience
        self.outage = outage
        self.elsewhere = elsewhere
        self._token = token
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._addresses: list[Address] = []
        self._is_at(url)
        self._connection: http.client.HTTPConnection | None = None
        self._sleep, self._clock, self._say = sleep, clock, say
        self._known = known
        #: Since when the broker is away, None while it is there; tries since then.
        self.away_since: float | None = None if away is None else clock() - away
        self._tries = 0
        #: When one that is away is asked again by who does not wait for it.
        self._ask_at = 0.0
        self._why = ""
        self._told = False
        self.log_id = ""
        self.bounds()
        self._known = True

    def tell(self, text: str) -> None:
        """Say once that the broker is away; that it is back is said then, too."""
        if not self._told:
            self._told = True
            self._say(text)

    @property
    def url(self) -> str:
        """The address that is asked next."""
        return self._addresses[0].url

    @property
    def _who(self) -> str:
        return f"node {self.elsewhere.node}: {self.url}" if self.elsewhere is not None else self.url

    @property
    def away_seconds(self) -> float:
        """For how long the broker has been away, 0 while it is there."""
        return 0.0 if self.away_since is None else self._clock() - self.away_since

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now."""
        data = self._get("bounds")
        try:
            answer = json.loads(data)
            log_id = str(answer["log"])
            found = {node: Bounds(*pair) for node, pair in sorted(answer["nodes"].items())}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PullError(f"{self.url}: an answer, but not of a broker{_NO_ENDPOINT}") from None
        if self.log_id and log_id != self.log_id:
            raise DataLoss(f"{self.url}: the log was made anew while it was read")
        self.log_id = log_id
        return found

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """The blocks with an event in [start, end); asked for some thousands at a time."""
        found: list[Block] = []
        at = start
        while at < end:
            data = self._get("headers", node=node, start=at, end=end)
            if not data:
                break
            for base, rows, size, mask, first, last, gap in HEADER.iter_unpack(data):
                position = found[-1].position + found[-1].size if found else 0
                block = Block(
                    node,
                    "",
                    position,
                    size,
                    base,
                    rows,
                    mask,
                    first,
                    last,
                    bool(gap & FLAG_GAP),
                    gap,
                )
                found.append(block)
            at = found[-1].end
        if whole:
            check_cover(found, node, start, end)
        return found

    def read_run(self, run: Run) -> bytes:
        """The bytes of the blocks that hold [run.base, run.end)."""
        return self._get("blocks", node=run.node, start=run.base, end=run.end)

    def commit(
        self, group: str, nodes: dict[str, int], stopped: bool = False, reader: str = ""
    ) -> None:
        """Register that `group` has read this far, and whether it goes on."""
        body = {
            "group": group, "reader": reader, "log": self.log_id, "nodes": nodes,
            "stopped": stopped,
        }  # fmt: skip
        self._request("POST", "progress", json.dumps(body).encode())

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, what: str, **query: Any) -> bytes:
        return self._request("GET", f"{what}?{urlencode(query)}", None)

    def _request(self, method: str, target: str, body: bytes | None) -> bytes:
        """The answer to a request; raises PullError, Away when the patience is at its end."""
        while True:
            began = self._clock()
            if self.away_since is not None and not self.patience and began < self._ask_at:
                raise Away(self._why)
            try:
                data = self._once(method, target, body)
            except Away as error:
                self._next_address()
                pause = self._pause(error, began)
                if pause is None:
                    if self.patience:
                        raise Away(f"{error}, for {self.away_seconds:.0f} s by now") from None
                    raise
                self._sleep(pause)
                if self._has_moved() and self.log_id and not target.startswith("bounds"):
                    self.bounds()  # another log may be there
                continue
            if self.away_since is not None:
                if self._told:
                    self._say(f"mqttd: {self._who} is back after {self.away_seconds:.0f} s")
                self.away_since, self._told, self._tries = None, False, 0
            return data

    def _pause(self, error: Away, began: float) -> float | None:
        """How long to wait after a try that has failed; None if that was enough."""
        if self.away_since is None:
            self.away_since, self._tries = began, 0
        self._tries += 1
        now = self._clock()
        hung = now - began >= LEAST
        if self._tries == 1 and not hung:
            return 0.0  # often just a connection that was closed meanwhile
        away = self.away_seconds
        if away >= self.patience:
            spent = min(now - began, GLANCE[1])
            pause = max(min(max(away, 0.2), PAUSE), spent / SHARE)
            self._why, self._ask_at = str(error), now + min(pause, max(self.outage - away, 0.0))
            return None
        self.tell(f"mqttd: {error}; waiting for up to {self.patience:.0f} s")
        pause = min(0.1 * 2.0 ** min(self._tries, 20), PAUSE) * random.uniform(0.7, 1.0)
        return max(min(pause, self.patience - away), 0.01)

    def _once(self, method: str, target: str, body: bytes | None) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connected = False
        try:
            connection = self._connect()
            connected = True
            connection.request(method, f"{self._addresses[0].path}/{target}", body, headers)
            response = connection.getresponse()
            data = response.read()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise PullError(
                f"{self.url}: its certificate is not trusted: {error.verify_message} (option"
                " caFile)"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            hint = _other_scheme(error, self._addresses[0].tls, connected)
            raise Away(f"{self._who} cannot be reached: {said_by(error)}{hint}") from None
        if response.status == 200:
            return data
        raise self._refused(response.status, data)

    def _timeout(self) -> float:
        """Seconds that an answer may take: each address has its share of what is left."""
        away, most = self.away_seconds, TIMEOUT
        if self.away_since is not None and not self.patience:
            most = min(max(away / 10, GLANCE[0]), GLANCE[1])
        left = (self.outage - away) / max(len(self._addresses) - self._tries, 1)
        return min(most, max(left, LEAST))

    def _connect(self) -> http.client.HTTPConnection:
        """The connection, made if there is none; what is asked next has its time from now on."""
        timeout = self._timeout()
        if self._connection is None:
            _, tls, host, port, _ = self._addresses[0]
            if tls:
                self._connection = http.client.HTTPSConnection(host, port, context=self._tls)
            else:
                self._connection = http.client.HTTPConnection(host, port)
        connection = self._connection
        connection.timeout = min(timeout, CONNECT)
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(timeout)
        return connection

    def _is_at(self, url: str) -> None:
        self._addresses = [parse_url(one.strip()) for one in url.split(",")]
        if self._tls is None and any(one.tls for one in self._addresses):
            self._tls = trusting(self._ca_file, "caFile")

    def _has_moved(self) -> bool:
        """Whether the broker is somewhere else by now: it is asked there."""
        found = self.elsewhere.url() if self.elsewhere is not None and self._tries > 1 else None
        if not found or found == self.url:
            return False
        self.close()
        self._is_at(found)
        return True

    def _next_address(self) -> None:
        if len(self._addresses) > 1:
            self.close()
            self._addresses.append(self._addresses.pop(0))

    def _refused(self, status: int, data: bytes) -> Exception:
        try:
            text = str(json.loads(data)["detail"])
        except (ValueError, KeyError, TypeError):
            text = f"HTTP status {status}"
            if status == 404 and self._addresses[0].path == PATH:
                text += _NO_ENDPOINT
        if status == 410:
            return DataLoss(text)
        if status == 401:
            text = "the token is missing or wrong (option token)"
        elif status == 404 and self._addresses[0].path != PATH:
            text += "; the url has a path: http://host:port or https://host:port alone is meant"
        text = f"{self.url}: {text}"
        # A broker that starts answers before its plugins are there.
        away = status in _AWAY or (status == 404 and self._known and "no node" not in text)
        return Away(text) if away else PullError(text)


def _other_scheme(error: Exception, tls: bool, connected: bool) -> str:
    """What to say of a door that is not there, or answers as one that is asked in a wrong way."""
    if tls and isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
        return " (no TLS is spoken there: http://?)"
    if tls and not connected and isinstance(error, TimeoutError) and "handshake" in str(error):
        return " (it does not answer TLS; is it spoken there, or is it http://?)"
    if not tls and isinstance(error, http.client.RemoteDisconnected):
        return " (is that the port of [admin.tcp], and is TLS spoken there: https://?)"
    if isinstance(error, ConnectionRefusedError):
        return " (is that the address of [admin.tcp]?)"
    return ""


def parse_url(url: str) -> Address:
    """An address of a pull endpoint; raises ValueError for what cannot be one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    # What is no path would be found out by the request alone, which is tried again and again.
    good = re.fullmatch(r"https?://[^\s/?#]+(/[!-~]*)?", url, re.IGNORECASE)
    if not host or not good or "?" in url or "#" in url:
        raise ValueError(f"url = {url!r}: expected http://host:port or https://host:port")
    path = parts.path.rstrip("/") or PATH
    return Address(url, parts.scheme == "https", host, port, path)
