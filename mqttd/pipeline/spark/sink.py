"""The sink `mqttd`: rows of a batch or a stream become messages of a broker.

    stream, broker is mqttd    task: rows -> stage (PUBLISH packets, in chunks), answered when kept
                               driver: commit(batch) -> release (query, batch), answered when
                               published and logged; asked for again, it is dropped whole
    other brokers              task: rows -> QoS 1, answered when all are acknowledged

Promise: with staging a batch is published exactly once, however often Spark runs it; without it, at
least once. Standard library, pyspark and `mqttd.codec` only.
"""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.pipeline.client import Client, ClientError
from mqttd.pipeline.spark.plain import plain
from mqttd.pipeline.spark.sink_options import SinkOptions, id_in
from mqttd.pipeline.spark.sink_rows import SinkError, message_of

__all__ = ["BatchWriter", "SinkError", "StreamWriter"]

STAGE: Final = "$mqttd/stage/"
REPLY: Final = "$mqttd/reply/"
#: A chunk has at most so many rows and, unless one row is larger, bytes; so many are under way.
CHUNK_ROWS: Final = 256
CHUNK_BYTES: Final = 128 << 10
CHUNKS_OPEN: Final = 8
#: How often a request that is not answered is asked again.
ASKS: Final = 4
#: Seconds that a release has at least: it waits for receivers (`mqttd.pipeline.stage_pace`).
RELEASE: Final = 120.0


@dataclass
class Written(WriterCommitMessage):
    """What a task has written: rows, and where they are staged."""

    rows: int
    query: str = ""
    stage: str = ""
    chunks: int = 0


class _Writer:
    """What both writers have in common; travels to the executors."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.names = schema.names
        self.query = options.query or ""
        #: Whether rows are staged; asked of the broker when this was made, on the driver.
        self.staged = False
        if options.delivery != "direct":
            self.staged = self._can_stage()

    def _can_stage(self) -> bool:
        with self.options.client() as client:
            able = _Staged(client, self.options.skip).hello()
            where = client.address
        if not able and (self.options.delivery == "staged" or self.options.skip):
            wanted = "delivery = 'staged'" if not self.options.skip else "onRefused = 'skip'"
            raise SinkError(
                f"mqttd: option {wanted}, and {where} cannot stage: that takes mqttd with the"
                " plugin spark (stage = true)"
            )
        if not able:
            print(
                f"mqttd: {where} cannot stage: messages are published at least once",
                file=sys.stderr,
            )
        return able

    # -- in a task

    @plain
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish or stage the rows of a partition."""
        options = self.options
        messages = (
            message_of(
                dict(zip(self.names, row, strict=True)),
                options.topic,
                options.qos,
                options.retain,
            )
            for row in iterator
        )
        first = next(messages, None)
        if first is None:
            return Written(0)
        with self.options.client() as client:
            if self.staged:
                return self._stage(client, first, messages)
            return self._publish(client, first, messages)

    def _publish(self, client: Client, first: Publish, rest: Iterator[Publish]) -> Written:
        rows = 0
        one: Publish | None = first
        while one is not None:
            client.publish(one.topic, one.payload, one.qos, one.retain, one.properties)
            rows += 1
            one = next(rest, None)
        client.flush()
        return Written(rows)

    def _stage(self, client: Client, first: Publish, rest: Iterator[Publish]) -> Written:
        staged = _Staged(client, self.options.skip)
        query, stage = self._query(), f"{_run()}{uuid.uuid4().hex}"
        try:
            rows, chunks = self._put(staged, f"{query}/{stage}", first, rest)
        except (OSError, EOFError, ClientError):
            raise
        except Exception:
            # Spark tells the driver nothing of a task that has failed: who has staged it drops it.
            staged.tell(f"abort/{query}", json.dumps({stage: 1}).encode())
            raise
        return Written(rows, query, stage, chunks)

    @staticmethod
    def _put(
        staged: _Staged, where: str, first: Publish, rest: Iterator[Publish]
    ) -> tuple[int, int]:
        """Stage the rows of a task; how many rows and chunks."""
        rows = chunks = size = 0
        packed: list[bytes] = []
        one: Publish | None = first
        while one is not None:
            one.packet_id = 1 if one.qos else 0
            data = serialize(one, 5)
            if packed and (len(packed) >= CHUNK_ROWS or size + len(data) > CHUNK_BYTES):
                staged.ask(f"put/{where}/{chunks}", b"".join(packed), CHUNKS_OPEN)
                chunks, packed, size = chunks + 1, [], 0
            packed.append(data)
            size += len(data)
            rows += 1
            one = next(rest, None)
        staged.ask(f"put/{where}/{chunks}", b"".join(packed))
        return rows, chunks + 1

    def _query(self) -> str:
        """What the broker knows the query by: the same after each restart."""
        if self.query:
            return self.query
        context = TaskContext.get()
        found = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if not found:
            raise SinkError("mqttd: Spark does not say which query this is; set queryName")
        return str(found)


def _run() -> str:
    """Which run of a stream this is, for the names of its stages; empty for a batch."""
    context = TaskContext.get()
    if context is None or not context.getLocalProperty("sql.streaming.queryId"):
        return ""
    # Spark makes the jobs of a run one group.
    run = re.sub("[^0-9a-f]", "", context.getLocalProperty("spark.jobGroup.id") or "")[:16]
    return f"{run}_" if run else ""


def _about(request: str) -> str:
    """What is asked for, as who runs the query knows it."""
    kind, _, rest = request.partition("/")
    query, _, number = rest.partition("/")
    what = {"put": "rows", "release": f"batch {number}"}.get(kind, kind)
    return f"{what} of query {query}" if query else what


class _Staged:
    """Requests to the plugin `spark` of a broker, over a connection; see `mqttd.pipeline.staging`.

    What is not answered in time is asked again: every request may come twice.
    """

    def __init__(self, client: Client, skip: bool = False) -> None:
        self._client = client
        self._skip = skip
        self._reply = REPLY + client.client_id
        self._open: dict[bytes, tuple[str, bytes]] = {}
        self._count = 0
        self._subscribed = False

    def hello(self) -> bool:
        """Whether there is somebody to ask."""
        client = self._client
        client.connect()
        try:
            self._ask("hello", b"")
            client.flush()
            if client.unheard:
                return False
            # Somebody has subscribed to the question.
            found = self._receive()
        except ClientError as error:
            print(f"mqttd: {client.address} does not stage: {error}", file=sys.stderr)
            return False
        self._open.clear()
        return found is not None and bool(json.loads(found.payload).get("ok"))

    def ask(
        self, request: str, payload: bytes, most_open: int = 1, least: float = 0.0
    ) -> dict[str, Any]:
        """Ask, and wait until fewer than `most_open` requests are open; gives the last answer.

        least: seconds that it may take at least. Raises SinkError when one was refused or is not
        answered.
        """
        self._ask(request, payload)
        last: dict[str, Any] = {}
        asks = 1
        most = max(ASKS, math.ceil(2 * least / self._client.timeout))
        self._client.flush()
        while len(self._open) >= most_open:
            found = self._receive()
            if found is None:
                if asks >= most:
                    raise SinkError(
                        f"mqttd: {self._client.address} does not answer for {_about(request)}"
                    )
                asks += 1
                again, self._open = self._open, {}
                for topic, data in again.values():
                    self._ask(topic, data)
                self._client.flush()
                continue
            given = (found.properties or {}).get(prop.CORRELATION_DATA)
            asked = self._open.pop(given, None) if isinstance(given, bytes) else None
            if asked is None:
                continue
            last = json.loads(found.payload)
            if not last.get("ok"):
                raise SinkError(
                    f"mqttd: {self._client.address} refused {_about(asked[0])}: {last.get('error')}"
                )
            if "refused" in last:
                print(f"mqttd: {_about(asked[0])}: {last['refused']}", file=sys.stderr)
        return last

    def tell(self, request: str, payload: bytes) -> None:
        """Ask when all that is open was answered; what comes of it does not matter."""
        with suppress(OSError, EOFError, ClientError):
            self._settle()
            self._ask(request, payload)
            self._client.flush()
            self._settle()

    def _settle(self) -> None:
        while self._open:
            found = self._client.receive(self._client.timeout / 2)
            if found is None:
                return
            given = (found.properties or {}).get(prop.CORRELATION_DATA)
            if isinstance(given, bytes):
                self._open.pop(given, None)

    def _receive(self) -> Publish | None:
        try:
            return self._client.receive(self._client.timeout / 2)
        except (OSError, EOFError):
            self._client.reconnect()
            return None

    def _ask(self, request: str, payload: bytes) -> None:
        client = self._client
        if not self._subscribed:
            client.subscribe(self._reply)
            self._subscribed = True
        self._count += 1
        data = b"%d" % self._count
        self._open[data] = (request, payload)
        properties: prop.Properties = {
            prop.RESPONSE_TOPIC: self._reply,
            prop.CORRELATION_DATA: data,
        }
        if self._skip:
            properties[prop.USER_PROPERTY] = [("onRefused", "skip")]
        client.publish(STAGE + request, payload, 1, False, properties)


class StreamWriter(_Writer, DataSourceStreamWriter):
    """For writeStream: a micro-batch is released by its number, once."""

    @plain
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have written: release what they have staged."""
        self._release(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed, or the query was stopped: what the others have staged is of no use.

        Where none of them has come to its end the checkpoint says whose that is. One that is no
        option, or cannot be read here, does not: then it goes when the query starts again.
        """
        query = self._query_of(messages) or id_in(self.options.checkpoint or "")
        if query:
            self._forget(f"abort/{query}")

    def _query_of(self, messages: list[Any]) -> str:
        """The query's name: a task knows it, the process that commits perhaps not."""
        names = (str(one.query) for one in messages if one is not None and one.query)
        return self.query or next(names, "")

    def _release(self, messages: list[Any], number: int) -> None:
        stages = {one.stage: one.chunks for one in messages if one is not None and one.stage}
        if not self.staged or not stages:
            return
        with self.options.client() as client:
            asked = f"release/{self._query_of(messages)}/{number}"
            text = json.dumps(stages).encode()
            answer = _Staged(client, self.options.skip).ask(asked, text, least=RELEASE)
        if answer.get("replayed"):
            print(f"mqttd: batch {number} was published before; dropped", file=sys.stderr)

    def _forget(self, request: str) -> None:
        if not self.staged:
            return
        try:
            with self.options.client() as client:
                _Staged(client, self.options.skip).ask(request, b"{}")
        except (SinkError, ClientError) as error:
            # The broker forgets them by itself, later.
            print(f"mqttd: {error}", file=sys.stderr)


class BatchWriter(StreamWriter, DataSourceWriter):
    """For write: the whole of it is one batch, of a query of its own."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.query = f"{(options.query or 'batch')[:31]}-{uuid.uuid4().hex}"

    @plain
    def commit(  # type: ignore[override]
        self, messages: list[WriterCommitMessage | None]
    ) -> None:
        """All tasks have written."""
        self._release(messages, 0)

    def abort(  # type: ignore[override]
        self, messages: list[WriterCommitMessage | None]
    ) -> None:
        """A task has failed: tasks that run on find that the write is over."""
        self._forget(f"close/{self.query}")
