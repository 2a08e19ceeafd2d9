"""The options of a write, and the columns its rows may have, checked on the driver.

A mistake is a `ValueError` that names the option or column, before anything is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

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

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.hints import like
from mqttd.pipeline.client import Address, Client, parse_address

__all__ = ["WRITE_OPTIONS", "SinkOptions", "id_in", "read_sink_options"]

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
    "onRefused": "fail (default): a message that the broker refuses ends the write; skip: it is"
    " left out and told, where the broker stages",
    "queryName": "name of the query at the broker; by default the id in its checkpoint",
    "timeout": "seconds the broker has for an answer (default 30)",
}

_KNOWN: Final = {name.lower(): name for name in WRITE_OPTIONS}
#: What Spark itself adds to the options of a sink.
_SPARKS: Final = frozenset({"checkpointlocation", "path"})

#: Options that the sink of Kafka and the source here have, and what is meant by them.
_MEANT: Final = {
    "kafka.bootstrap.servers": "broker",
    "url": "broker",
    "host": "broker",
    "user": "username",
    "token": "username and password",
    "kafka.acks": "delivery",
}
#: Columns of Kafka's sink: what there is in their place.
_COLUMNS_MEANT: Final = {
    "value": "the value of Kafka's sink is payload here",
    "key": "a message has no key, and its topic may have it: concat('alerts/', key) as topic",
    "partition": "topics have no partitions",
}

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)


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
    #: Where a stream keeps how far it is, as Spark was told; None: not by an option.
    checkpoint: str | None = None
    #: Whether messages that the broker refuses are left out.
    skip: bool = False

    def client(self) -> Client:
        """A connection, here."""
        addresses = self.addresses
        if self.password_file is not None:
            try:
                with open(self.password_file, encoding="utf-8") as file:
                    password = file.readline().rstrip("\r\n")
            except OSError as error:
                raise ValueError(
                    f"mqttd: option passwordFile = {self.password_file!r}: {error.strerror}; it is"
                    " read on the driver and on each executor"
                ) from None
            addresses = tuple(replace(one, password=password) for one in addresses)
        return Client(addresses, timeout=self.timeout)


def read_sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check options and columns of a write; raises ValueError for the first that is wrong."""
    options: dict[str, str] = {}
    sparks: dict[str, str] = {}
    for name, value in given.items():
        known = _KNOWN.get(name.lower())
        if known is None:
            if name.lower() in _SPARKS:
                sparks[name.lower()] = value
                continue
            meant = _MEANT.get(name.lower())
            hint = f"; here that is {meant}" if meant else ""
            hint = hint or like(name.lower(), _KNOWN, _KNOWN.__getitem__)
            hint = hint or f"; known: {', '.join(WRITE_OPTIONS)}"
            raise ValueError(f"mqttd: unknown option {name!r} of a write{hint}")
        options[known] = value
    if "broker" not in options:
        raise ValueError("mqttd: set the option broker (host:port of the broker to publish to)")
    try:
        places = [parse_address(one.strip()) for one in options["broker"].split(",")]
    except ValueError as error:
        raise ValueError(f"mqttd: option broker = {error}") from None
    if options.get("caFile") and not any(tls for _, _, tls in places):
        raise ValueError(
            f"mqttd: option caFile = {options['caFile']!r}: expected mqtts://host:port in the"
            f" option broker beside it: {options['broker']} is not asked for a certificate"
        )
    if "password" in options and "passwordFile" in options:
        raise ValueError("mqttd: options password and passwordFile exclude each other")
    delivery = options.get("delivery", "auto")
    _one_of("delivery", delivery, ("auto", "staged", "direct"))
    on_refused = options.get("onRefused", "fail")
    _one_of("onRefused", on_refused, ("fail", "skip"))
    if on_refused == "skip" and delivery == "direct":
        raise ValueError("mqttd: option onRefused = 'skip': expected delivery = staged or auto")
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
        sparks.get("checkpointlocation"), on_refused == "skip",
    )  # fmt: skip


def id_in(checkpoint: str) -> str:
    """The id of the query that keeps its progress there; empty if it cannot be read from here.

    Spark writes it before the first batch, and takes it from there at each start.
    """
    scheme, colon, rest = checkpoint.partition(":")
    try:
        if colon and scheme.isalnum() and scheme != "file":
            from pyarrow import fs

            # Hadoop's name of it.
            uri = f"s3:{rest}" if scheme in ("s3a", "s3n") else checkpoint
            files, path = fs.FileSystem.from_uri(uri)
            with files.open_input_stream(f"{path.rstrip('/')}/metadata") as stream:
                data = stream.read()
        else:
            path = checkpoint if scheme != "file" else f"/{rest.lstrip('/')}"
            with open(os.path.join(path, "metadata"), "rb") as file:
                data = file.read()
        return str(json.loads(data)["id"])
    except (OSError, ValueError, LookupError, TypeError, ImportError, NotImplementedError):
        return ""


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
            meant = _COLUMNS_MEANT.get(one.name)
            raise ValueError(
                f"mqttd: the rows have a column {one.name!r}; a message has {', '.join(columns)}:"
                f" select() those{f'; {meant}' if meant else ''}"
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
