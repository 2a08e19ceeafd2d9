"""The sink `mqttd`: rows of a batch or a stream become messages of a broker.

    stream, broker is mqttd    task: rows -> stage (PUBLISH packets, in chunks), answered when kept
                               driver: commit(batch) -> release (query, batch), answered when
                               published and logged; asked for again, it is dropped whole
    other brokers              task: rows -> QoS 1, answered when all are acknowledged

Promise: with staging a batch is published exactly once, however often Spark runs it; without it, at
least once. Standard library, pyspark and `mqttd.codec` only.
"""

from __future__ import annotations

import difflib
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.reasons import MqttError
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import validate_topic_name
from mqttd.pipeline.client import Address, Client, ClientError, parse_address

__all__ = ["WRITE_OPTIONS", "BatchWriter", "SinkError", "SinkOptions", "StreamWriter",
           "read_sink_options"]  # fmt: skip

WRITE_OPTIONS: Final = {
    "broker": "host:port, mqtt://host:port or mqtts://host:port of the broker to publish to;"
    " several addresses of it are separated by commas",
    "username": "user name there",
    "password": "its password; passwordFile keeps it out of the query's plan",
    "passwordFile": "file whose first line is the password, on driver and executors",
    "caFile": "file of certificates to trust with mqtts, in place of the system's",
    "topic": "topic of all rows, where there is no column topic",
    "qos": "QoS of rows without one: 0, 1 (default) or 2",
    "retain": "true: rows without a column retain are retained (default false)",
    "delivery": "auto (default): staged where the broker can, else direct; staged: exactly once, or"
    " an error; direct: at least once",
    "queryName": "name of the query at the broker; by default the id in its checkpoint",
    "timeout": "seconds the broker has for an answer (default 30)",
}

_KNOWN: Final = {name.lower(): name for name in WRITE_OPTIONS}
#: What Spark itself adds to the options of a sink.
_SPARKS: Final = frozenset({"checkpointlocation", "path"})

STAGE: Final = "$mqttd/stage/"
REPLY: Final = "$mqttd/reply/"
#: A chunk has at most so many rows and, unless one row is larger, bytes; so many are under way.
CHUNK_ROWS: Final = 256
CHUNK_BYTES: Final = 128 << 10
CHUNKS_OPEN: Final = 8
#: How often a request that is not answered is asked again.
ASKS: Final = 4

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
#: Names a column `properties` may have, with the property they stand for.
PROPERTIES: Final = {
    "payloadFormatIndicator": prop.PAYLOAD_FORMAT_INDICATOR,
    "messageExpiryInterval": prop.MESSAGE_EXPIRY_INTERVAL,
    "contentType": prop.CONTENT_TYPE,
    "responseTopic": prop.RESPONSE_TOPIC,
    "correlationData": prop.CORRELATION_DATA,
}


class SinkError(Exception):
    """The batch was not published; the text says why."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, checked."""

    addresses: tuple[Address, ...]
    topic: str | None
    qos: int
    retain: bool
    delivery: str
    query: str | None
    timeout: float
    password_file: str | None = None

    def client(self) -> Client:
        """A connection, here."""
        addresses = self.addresses
        if self.password_file is not None:
            with open(self.password_file, encoding="utf-8") as file:
                password = file.readline().rstrip("\r\n")
            addresses = tuple(replace(one, password=password) for one in addresses)
        return Client(addresses, timeout=self.timeout)


def read_sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check options and columns of a write; raises ValueError for the first that is wrong."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _KNOWN.get(name.lower())
        if known is None:
            if name.lower() in _SPARKS:
                continue
            close = difflib.get_close_matches(name.lower(), _KNOWN, 1)
            hint = (
                f"did you mean {_KNOWN[close[0]]}?"
                if close
                else f"known: {', '.join(WRITE_OPTIONS)}"
            )
            raise ValueError(f"mqttd: unknown option {name!r} of a write; {hint}")
        options[known] = value
    if "broker" not in options:
        raise ValueError("mqttd: set the option broker (host:port of the broker to publish to)")
    try:
        places = [parse_address(one.strip()) for one in options["broker"].split(",")]
    except ValueError as error:
        raise ValueError(f"mqttd: option broker = {error}") from None
    if "password" in options and "passwordFile" in options:
        raise ValueError("mqttd: options password and passwordFile exclude each other")
    delivery = options.get("delivery", "auto")
    _one_of("delivery", delivery, ("auto", "staged", "direct"))
    _one_of("qos", options.get("qos", "1"), ("0", "1", "2"))
    _one_of("retain", options.get("retain", "false").lower(), ("true", "false"))
    topic = options.get("topic")
    if topic is not None:
        try:
            validate_topic_name(topic)
        except MqttError as error:
            raise ValueError(f"mqttd: option topic = {topic!r}: {error.detail}") from None
    timeout = options.get("timeout", "30")
    if not (timeout.isascii() and timeout.isdigit() and 0 < int(timeout) <= 3600):
        raise ValueError(f"mqttd: option timeout = {timeout!r}: expected 1 to 3600 seconds")
    query = options.get("queryName")
    if query is not None and not (query.isascii() and query.replace("-", "_").isidentifier()
                                  and len(query) <= 64):  # fmt: skip
        raise ValueError(
            f"mqttd: option queryName = {query!r}: expected up to 64 letters, digits, _ and -"
        )
    _check_columns(schema, topic)
    return SinkOptions(
        tuple(
            Address(host, port, options.get("username"), options.get("password"), tls,
                    options.get("caFile"))
            for host, port, tls in places
        ),
        topic, int(options.get("qos", "1")), options.get("retain", "false").lower() == "true",
        delivery, query, float(timeout), options.get("passwordFile"),
    )  # fmt: skip


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"mqttd: option {name} = {value!r}: expected {', '.join(allowed)}")


def _check_columns(schema: StructType, topic: str | None) -> None:
    columns: dict[str, tuple[str, Any]] = {
        "topic": ("STRING", StringType),
        "payload": ("STRING or BINARY", (StringType, BinaryType)),
        "qos": ("a whole number", _INTEGERS),
        "retain": ("BOOLEAN", BooleanType),
        "properties": ("MAP<STRING, STRING>", MapType),
        "headers": ("ARRAY<STRUCT<key: STRING, value: STRING>>", ArrayType),
    }
    for one in schema.fields:
        if one.name not in columns:
            raise ValueError(
                f"mqttd: the rows have a column {one.name!r}; a message has {', '.join(columns)}:"
                " select() those"
            )
        text, types = columns[one.name]
        if not isinstance(one.dataType, types) or not _fits(one.name, one.dataType):
            raise ValueError(
                f"mqttd: column {one.name} is {one.dataType.simpleString()}, expected {text}"
            )
    names = schema.names
    if "payload" not in names:
        raise ValueError("mqttd: the rows need a column payload (STRING or BINARY)")
    if "topic" not in names and topic is None:
        raise ValueError("mqttd: the rows need a column topic, or the write the option topic")


def _fits(name: str, found: DataType) -> bool:
    if isinstance(found, MapType):
        return isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if isinstance(found, ArrayType):
        inner = found.elementType
        return (
            isinstance(inner, StructType)
            and inner.names == ["key", "value"]
            and all(isinstance(one.dataType, StringType) for one in inner.fields)
        )
    return True


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
            able = _Staged(client).hello()
            where = client.address
        if not able and self.options.delivery == "staged":
            raise SinkError(
                f"mqttd: option delivery = 'staged', and {where} cannot stage: that takes mqttd"
                " with the plugin spark (stage = true)"
            )
        if not able:
            print(
                f"mqttd: {where} cannot stage: messages are published at least once",
                file=sys.stderr,
            )
        return able

    # -- in a task

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish or stage the rows of a partition."""
        messages = (self._message(row) for row in iterator)
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
        staged = _Staged(client)
        query, stage = self._query(), uuid.uuid4().hex
        rows = chunks = size = 0
        packed: list[bytes] = []
        one: Publish | None = first
        while one is not None:
            one.packet_id = 1 if one.qos else 0
            data = serialize(one, 5)
            if packed and (len(packed) >= CHUNK_ROWS or size + len(data) > CHUNK_BYTES):
                staged.ask(f"put/{query}/{stage}/{chunks}", b"".join(packed), CHUNKS_OPEN)
                chunks, packed, size = chunks + 1, [], 0
            packed.append(data)
            size += len(data)
            rows += 1
            one = next(rest, None)
        staged.ask(f"put/{query}/{stage}/{chunks}", b"".join(packed))
        return Written(rows, query, stage, chunks + 1)

    def _query(self) -> str:
        """What the broker knows the query by: the same after each restart."""
        if self.query:
            return self.query
        context = TaskContext.get()
        found = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if not found:
            raise SinkError("mqttd: Spark does not say which query this is; set queryName")
        return str(found)

    def _message(self, row: Any) -> Publish:
        options = self.options
        given = dict(zip(self.names, row, strict=True))
        topic = given.get("topic")
        topic = options.topic if topic is None else topic
        payload = given.get("payload")
        if topic is None:
            raise SinkError("mqttd: a row has no topic, and the write no option topic")
        data = payload.encode() if isinstance(payload, str) else bytes(payload or b"")
        qos = given.get("qos")
        qos = options.qos if qos is None else int(qos)
        retain = given.get("retain")
        try:
            validate_topic_name(topic)
            if qos not in (0, 1, 2):
                raise MqttError(f"qos = {qos}: expected 0, 1 or 2")
        except MqttError as error:
            raise SinkError(f"mqttd: a row with topic {topic!r}: {error.detail}") from None
        return Publish(
            topic,
            data,
            qos,
            options.retain if retain is None else bool(retain),
            properties=_properties(given.get("properties"), given.get("headers")),
        )


def _properties(named: Any, pairs: Any) -> prop.Properties | None:
    """Properties of PUBLISH: the standard's by name, others as user properties."""
    found: prop.Properties = {}
    users: list[tuple[str, str]] = []
    for name, value in (named or {}).items():
        identifier = PROPERTIES.get(name)
        if value is None:
            continue
        if identifier is None:
            users.append((name, value))
        elif identifier in (prop.PAYLOAD_FORMAT_INDICATOR, prop.MESSAGE_EXPIRY_INTERVAL):
            found[identifier] = int(value)
        elif identifier == prop.CORRELATION_DATA:
            found[identifier] = value.encode()
        else:
            found[identifier] = value
    users += [(key, value or "") for key, value in pairs or ()]
    if users:
        found[prop.USER_PROPERTY] = users
    return found or None


class _Staged:
    """Requests to the plugin `spark` of a broker, over a connection; see `mqttd.pipeline.staging`.

    What is not answered in time is asked again: every request may come twice.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
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

    def ask(self, request: str, payload: bytes, most_open: int = 1) -> dict[str, Any]:
        """Ask, and wait until fewer than `most_open` requests are open; gives the last answer.

        Raises SinkError when one was refused or is not answered.
        """
        self._ask(request, payload)
        last: dict[str, Any] = {}
        asks = 1
        self._client.flush()
        while len(self._open) >= most_open:
            found = self._receive()
            if found is None:
                if asks >= ASKS:
                    raise SinkError(f"mqttd: {self._client.address} does not answer {request}")
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
                    f"mqttd: {self._client.address} refused {asked[0]}: {last.get('error')}"
                )
        return last

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
        client.publish(STAGE + request, payload, 1, False, properties)


def _query_of(messages: list[Any]) -> str:
    """The query's name: a task knows it, the process that commits does not."""
    return next(str(one.query) for one in messages if one is not None and one.query)


class StreamWriter(_Writer, DataSourceStreamWriter):
    """For writeStream: a micro-batch is released by its number, once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have written: release what they have staged."""
        self._release(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed: what the others have staged is of no use."""
        self._forget(messages)

    def _release(self, messages: list[Any], number: int) -> None:
        stages = {one.stage: one.chunks for one in messages if one is not None and one.stage}
        if not self.staged or not stages:
            return
        with self.options.client() as client:
            asked = f"release/{_query_of(messages)}/{number}"
            answer = _Staged(client).ask(asked, json.dumps(stages).encode())
        if answer.get("replayed"):
            print(f"mqttd: batch {number} was published before; dropped", file=sys.stderr)

    def _forget(self, messages: list[Any]) -> None:
        stages = {one.stage: one.chunks for one in messages if one is not None and one.stage}
        if not stages:
            return
        try:
            with self.options.client() as client:
                _Staged(client).ask(f"abort/{_query_of(messages)}", json.dumps(stages).encode())
        except (SinkError, ClientError) as error:
            # The broker forgets them by itself, later.
            print(f"mqttd: {error}", file=sys.stderr)


class BatchWriter(StreamWriter, DataSourceWriter):
    """For write: the whole of it is one batch, of a query of its own."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.query = f"{options.query or 'batch'}-{uuid.uuid4().hex}"[:64]

    def commit(  # type: ignore[override]
        self, messages: list[WriterCommitMessage | None]
    ) -> None:
        """All tasks have written."""
        self._release(messages, 0)

    def abort(  # type: ignore[override]
        self, messages: list[WriterCommitMessage | None]
    ) -> None:
        """A task has failed."""
        self._forget(messages)
