"""A log behind a broker's pull endpoint, for readers on other machines. Standard library only.

    PullReader --HTTP, bearer token--> GET  bounds, headers, blocks   (mqttd.pipeline.endpoint)
                                       POST progress

It has the methods of `mqttd.pipeline.log.reader.LogReader`, so that a reader need not know which of
the two it has. A request that fails for the network's sake is tried again, a few times.
"""

from __future__ import annotations

import http.client
import json
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from mqttd.pipeline.log.blocks import FLAG_GAP, Block
from mqttd.pipeline.log.reader import Bounds, DataLoss, EventLog, LogReader, Run, check_cover

__all__ = ["HEADER", "PATH", "PullError", "PullReader", "open_log"]

#: Where the endpoint is when a URL names only the host.
PATH: Final = "/api/v1/plugins/spark/log"

#: One block in the answer to ``headers``: base, rows, bytes, mask, first and last time, flags.
HEADER: Final = struct.Struct("<QIIIqqI")

TRIES: Final = 4
TIMEOUT: Final = 60.0


class PullError(Exception):
    """The endpoint refused or could not be reached; the text says which and why."""


def open_log(
    path: str | None = None, url: str | None = None, token: str = "", ca_file: str | None = None
) -> EventLog:
    """The log in a directory or behind a pull endpoint.

    Raises ValueError unless one of `path` and `url` is given, OSError or PullError if it is not
    there.
    """
    if bool(path) == bool(url):
        raise ValueError("a log is in a directory (path) or at a broker (url): give one of them")
    if path:
        return LogReader(path)
    assert url is not None
    return PullReader(url, token, ca_file)


class PullReader:
    """The log at `url` (``https://host:port``), with the broker's bearer token.

    ca_file: certificates to trust in place of the system's.
    Raises PullError if there is no log to be had, ValueError for an URL that is none.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        ca_file: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url = {url!r}: expected http://host:port or https://host:port")
        self.url = url
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") or PATH
        self._token = token
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=ca_file)
        self._connection: http.client.HTTPConnection | None = None
        self._sleep = sleep
        self.log_id = ""
        self.bounds()

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now."""
        answer = json.loads(self._get("bounds"))
        if self.log_id and answer["log"] != self.log_id:
            raise DataLoss(f"{self.url}: the log was made anew while it was read")
        self.log_id = answer["log"]
        return {node: Bounds(*pair) for node, pair in sorted(answer["nodes"].items())}

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

    def commit(self, group: str, nodes: dict[str, int]) -> None:
        """Register that `group` has read this far."""
        body = {"group": group, "log": self.log_id, "nodes": nodes}
        self._request("POST", f"{self._path}/progress", json.dumps(body).encode())

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, what: str, **query: Any) -> bytes:
        return self._request("GET", f"{self._path}/{what}?{urlencode(query)}", None)

    def _request(self, method: str, target: str, body: bytes | None) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        for again in range(TRIES):
            try:
                connection = self._connect()
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                data = response.read()
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise PullError(
                    f"{self.url}: its certificate is not trusted: {error.verify_message}"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if again + 1 == TRIES:
                    raise PullError(f"{self.url} cannot be reached: {error!r}") from None
            else:
                if response.status == 200:
                    return data
                if response.status != 503 or again + 1 == TRIES:
                    raise self._refused(response.status, data)
            self._sleep(0.2 * 2**again)
        raise AssertionError("unreachable")

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._tls is not None:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=TIMEOUT, context=self._tls
                )
            else:
                self._connection = http.client.HTTPConnection(
                    self._host, self._port, timeout=TIMEOUT
                )
        return self._connection

    def _refused(self, status: int, data: bytes) -> Exception:
        try:
            text = str(json.loads(data)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            text = f"HTTP status {status}"
        if status == 410:
            return DataLoss(text)
        if status == 401:
            text = "the token is missing or wrong (option token)"
        return PullError(f"{self.url}: {text}")
