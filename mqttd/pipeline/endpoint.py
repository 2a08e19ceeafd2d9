"""The pull endpoint: the event log over HTTP, for readers that share no file system with us.

    GET  bounds                             {"log": ID, "nodes": {NODE: [earliest, latest]}}
    GET  state                              the same with sizes; groups, and what each has not read
    GET  headers?node=&start=&end=          40 bytes for each block (`pull.HEADER`)
    GET  blocks?node=&start=&end=           the blocks that hold [start, end), as they are on disk
    POST progress  {group, reader, log, nodes, stopped}    how far a consumer group has read

Who may ask is decided before a request comes here (`mqttd.admin.doors.tcp`). Reading a file
happens in threads, at most `BUSY` at a time; then 503 asks to come again.

    answer --a piece, when the one before is read--> the peer (`mqttd.pipeline.pouring`)

Promise: an answer has at most `MOST_BLOCKS` headers or about `MOST_BYTES` of blocks; a range that
retention has deleted is answered with 410 and its name, never with fewer events. Who reads is never
ended; what is there for all has `MOST_HELD` bytes, and who has read nothing for a while makes room.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.web.http import RESPONSES
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from mqttd.pipeline.log.blocks import Corrupt
from mqttd.pipeline.log.files import NAME, segments_in
from mqttd.pipeline.log.groups import commit_group, groups, reads, unread
from mqttd.pipeline.log.pull import HEADER
from mqttd.pipeline.log.reader import DataLoss, LogReader, Run, runs_of
from mqttd.pipeline.pouring import Pouring

__all__ = ["BUSY", "MOST_BLOCKS", "LogResource"]

MOST_BLOCKS: Final = 4096
MOST_BYTES: Final = 16 << 20
BUSY: Final = 8
#: Bytes of answers that are being read.
MOST_HELD: Final = 128 << 20

_METHODS: Final = {
    "bounds": "GET", "state": "GET", "headers": "GET", "blocks": "GET", "progress": "POST",
}  # fmt: skip
_TAKES: Final = dict.fromkeys(("headers", "blocks"), ("node", "start", "end"))
#: Bytes of a body, and nodes in it, that progress may have.
MOST_BODY: Final = 64 << 10


class _Refused(Exception):
    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class LogResource(Resource):
    """The resource; `path` is the log's directory, ``in_thread(f)`` gives a Deferred of ``f()``."""

    isLeaf = True

    def __init__(self, path: str, in_thread: Callable[[Callable[[], bytes]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.in_thread = in_thread
        self.busy = 0
        #: Answers that are being read.
        self.pouring = Pouring(MOST_HELD)
        #: Requests that were answered, and the bytes of the log in them.
        self.requests = 0
        self.bytes = 0
        self._reader: LogReader | None = None
        self._lock = threading.Lock()

    def render(self, request: Any) -> Any:
        """Answer one request."""
        name = b"/".join(request.postpath).decode("ascii", "replace")
        method = request.method.decode("ascii", "replace")
        wanted = _METHODS.get(name)
        request.setHeader(b"cache-control", b"no-store")
        try:
            if wanted is None:
                raise _Refused(404, "not_found", f"no {name!r} here")
            if method != wanted:
                raise _Refused(405, "method_not_allowed", f"{name} takes {wanted}")
            room = MOST_BYTES * (self.busy + 1) if name == "blocks" else 0
            if self.busy >= BUSY or not self.pouring.has_room(room):
                raise _Refused(503, "busy", "too many requests at a time; try again")
            work = self._work(name, request)
        except _Refused as error:
            return self._refuse(request, error)
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        self.busy += 1
        done = self.in_thread(work)
        done.addBoth(self._answer, request, gone, name in ("headers", "blocks"))
        return NOT_DONE_YET

    def _work(self, name: str, request: Any) -> Callable[[], bytes]:
        takes = _TAKES.get(name, ())
        for given in request.args:
            text = given.decode("utf-8", "replace")
            if text not in takes:
                raise _Refused(400, "bad_request", f"{name} takes no {text[:40]!r}")
        if name == "bounds":
            return self._bounds
        if name == "state":
            return self._state
        if name == "progress":
            return self._progress(request)
        node = _argument(request, "node")
        start, end = _number(request, "start"), _number(request, "end")
        if not start < end:
            raise _Refused(400, "bad_request", "start: expected less than end")
        if name == "headers":
            return lambda: self._headers(node, start, end)
        return lambda: self._blocks(node, start, end)

    def _answer(self, result: Any, request: Any, gone: list[object], binary: bool) -> None:
        self.busy -= 1
        if gone:
            return
        if isinstance(result, bytes):
            kind = b"application/octet-stream" if binary else b"application/json"
            request.setHeader(b"content-type", kind)
            request.setHeader(b"content-length", b"%d" % len(result))
            self.requests += 1
            if binary:
                self.bytes += len(result)
            self.pouring.pour(request, result)
        else:
            error = result.value
            if isinstance(error, DataLoss):
                error = _Refused(410, "gone", str(error))
            elif isinstance(error, FileNotFoundError):
                error = _Refused(404, "not_found", "there is no event log yet")
            elif not isinstance(error, _Refused):
                error = _Refused(500, "failed", f"{type(error).__name__}: {error}")
            request.write(self._refuse(request, error))
            request.finish()

    def _refuse(self, request: Any, error: _Refused) -> bytes:
        request.setResponseCode(error.status)
        request.setHeader(b"content-type", b"application/problem+json")
        title = RESPONSES.get(error.status, b"").decode()
        told = {"type": "about:blank", "title": title, "status": error.status, "code": error.code}
        return json.dumps({**told, "detail": str(error)}).encode() + b"\n"

    # -- in a thread

    def _open(self) -> LogReader:
        """The reader, with `self._lock` held."""
        if self._reader is None:
            self._reader = LogReader(self.path)
        return self._reader

    def _bounds(self) -> bytes:
        with self._lock:
            return self._bounds_now()

    def _bounds_now(self) -> bytes:
        """With `self._lock` held."""
        try:
            found = self._open().bounds()
        except DataLoss:  # made anew: say what is there now
            self._reader = None
            found = self._open().bounds()
        return json.dumps({"log": self._open().log_id, "nodes": found}).encode()

    def _state(self) -> bytes:
        with self._lock:
            told = json.loads(self._bounds_now())
        bounds: dict[str, list[int]] = told["nodes"]
        nodes = {
            node: {"earliest": earliest, "latest": latest, **_sizes(self.path, node)}
            for node, (earliest, latest) in bounds.items()
        }
        found = []
        for name, group in groups(self.path).items():
            own = group.get("log") == told["log"]
            with self._lock:
                blocks = partial(self._open().blocks, whole=False)
                behind = own and reads(group)
                lag = unread(blocks, bounds, group["nodes"]) if behind else None
            found.append(
                {
                    "group": name,
                    "nodes": group["nodes"],
                    "time": group.get("time"),
                    "stopped": bool(group.get("stopped")),
                    "readers": group["readers"],
                    "this_log": own,
                    "lag": lag,
                }
            )
        return json.dumps({"log": told["log"], "nodes": nodes, "groups": found}).encode()

    def _planned(self, node: str, start: int, end: int) -> list[Any]:
        """The blocks from `start` on; those that are there, which may be fewer than up to `end`."""
        with self._lock:
            reader = self._open()
            bounds = reader.bounds().get(node)
            if bounds is None:
                raise _Refused(404, "not_found", f"no node {node!r} in this log")
            if start < bounds.earliest:
                raise DataLoss(
                    f"events {start} to {min(end, bounds.earliest) - 1} of node {node} were"
                    " deleted by retention"
                )
            return reader.blocks(node, start, min(end, bounds.latest), whole=False)

    def _headers(self, node: str, start: int, end: int) -> bytes:
        return b"".join(
            HEADER.pack(
                one.base,
                one.rows,
                one.size,
                one.mask,
                one.first_time,
                one.last_time,
                one.flags,
            )
            for one in self._planned(node, start, end)[:MOST_BLOCKS]
        )

    def _blocks(self, node: str, start: int, end: int) -> bytes:
        blocks = self._planned(node, start, end)
        if not blocks or blocks[0].base > start or blocks[-1].end < end:
            raise DataLoss(f"events {start} to {end - 1} of node {node} are not in the log")
        if len(blocks) > 1 and sum(one.size for one in blocks) > MOST_BYTES:
            raise _Refused(
                413, "too_large", f"more than {MOST_BYTES} bytes: ask for less at a time"
            )
        runs: list[Run] = runs_of(blocks)
        reader = self._open()
        try:
            return b"".join(reader.read_run(run) for run in runs)
        except Corrupt as error:
            raise _Refused(500, "corrupt", str(error)) from None

    def _progress(self, request: Any) -> Callable[[], bytes]:
        data = request.content.read(MOST_BODY + 1)
        try:
            body: Any = json.loads(data) if len(data) <= MOST_BODY else None
            group, log, nodes = body["group"], body["log"], body["nodes"]
            reader_id, stopped = body.get("reader", ""), body.get("stopped", False) is True
            good = (
                isinstance(group, str)
                and isinstance(reader_id, str)
                and all(
                    NAME.match(node) and type(offset) is int and offset >= 0
                    for node, offset in nodes.items()
                )
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            good = False
        if not good:
            raise _Refused(400, "bad_request", "expected {group, log, nodes: {node: offset}}")
        who = getattr(getattr(request, "mqttd_caller", None), "name", "")

        def commit() -> bytes:
            with self._lock:
                reader = self._open()
                if reader.log_id != log:
                    raise _Refused(409, "another_log", f"this is log {reader.log_id}")
                bounds = reader.bounds()
                for node, offset in nodes.items():  # nobody has read what is not there
                    if node in bounds and offset > bounds[node].latest:
                        nodes[node] = bounds[node].latest
                try:
                    commit_group(self.path, group, log, nodes, stopped, reader_id, who)
                except ValueError as error:
                    raise _Refused(400, "bad_request", str(error)) from None
                return b"{}\n"

        return commit


def _sizes(path: str, node: str) -> dict[str, int]:
    """How many segments a node has, and their bytes; they may go meanwhile."""
    folder = os.path.join(path, node)
    sizes = []
    for name in segments_in(folder):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(os.path.getsize(os.path.join(folder, name)))
    return {"segments": len(sizes), "bytes": sum(sizes)}


def _argument(request: Any, name: str) -> str:
    values = request.args.get(name.encode(), [])
    if len(values) != 1:
        raise _Refused(400, "bad_request", f"{name}: expected once")
    return str(values[0], "utf-8", "replace")


def _number(request: Any, name: str) -> int:
    text = _argument(request, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _Refused(400, "bad_request", f"{name} = {text[:40]!r}: expected an offset")
    return int(text)
