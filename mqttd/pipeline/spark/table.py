"""A table of Spark's catalog over the event log: CREATE TABLE t USING mqttd OPTIONS (path '...').

    CREATE TABLE  --> schema(), with the options --> they go into the first column's metadata
    SELECT, table --> reader(schema), without    --> they are read there, beside those of WITH (...)

Spark 4.3 tells a Python data source a table's options when it is created, and never again; what it
keeps is the schema, as it was given. Where the catalog keeps a schema everybody may look, so a
token is not taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqttd.pipeline.log.schema import COLUMNS
from mqttd.pipeline.spark.options import KEYS, Options, local, meant, schema_of

__all__ = ["given", "kept"]

#: The name in a column's metadata.
_MARK: Final = "mqttd"
#: What the catalog says beside the options when a table is created.
_CATALOG: Final = frozenset(("comment", "external", "is_managed_location", "location", "owner",
                             "provider"))  # fmt: skip

_TYPES: Final[dict[str, DataType]] = {
    "BIGINT": LongType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "BINARY": BinaryType(),
    "TINYINT": ByteType(),
    "BOOLEAN": BooleanType(),
    "INT": IntegerType(),
    COLUMNS["headers"][0]: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", StringType())])
    ),
    COLUMNS["user_properties"][0]: MapType(StringType(), StringType()),
}


def _created(options: Mapping[str, str]) -> bool:
    return "owner" in options and "provider" in options


def given(options: Mapping[str, str], schema: StructType | None) -> dict[str, str]:
    """The options of a read, with those of its table if it has one; names in lower case.

    Raises ValueError for a table that was created with columns, or with a token, and for a column
    of another type than the log's.
    """
    own = {name.lower(): value for name, value in options.items()}
    if _created(own):
        return _of_creation(own)
    if schema is None or not schema.fields:
        return own
    _check_types(schema)
    found = schema.fields[0].metadata.get(_MARK)
    if found is not None:
        said = {meant(name) for name in own}
        of_table = json.loads(found).items()
        return {name: value for name, value in of_table if meant(name) not in said} | own
    if not any(name in own for name in ("path", "url", "cluster")):
        raise ValueError(
            "mqttd: a table is created without columns, so that it gets those of the log:"
            " CREATE TABLE t USING mqttd OPTIONS (path '...')"
        )
    return own


def _check_types(schema: StructType) -> None:
    """Spark would tell of it where a task has read the first rows; of names see `tasks`."""
    for one in schema.fields:
        kind = _TYPES[COLUMNS[one.name][0]] if one.name in COLUMNS else one.dataType
        if one.dataType.simpleString() != kind.simpleString():
            raise ValueError(
                f"mqttd: the schema has {one.name} as {one.dataType.simpleString()}, and the log as"
                f" {kind.simpleString()}. Give columns by the option columns, not by schema(), and"
                f" cast them: selectExpr('cast({one.name} as {one.dataType.simpleString()})')"
            )


def _of_creation(own: dict[str, str]) -> dict[str, str]:
    """The options of a CREATE TABLE; Spark has made a URI of the path."""
    if "token" in own:
        raise ValueError(
            "mqttd: a catalog is no place for a token; create the table without it, and give it"
            " with a query: SELECT * FROM t WITH (token = '...'), spark.read.option('token', ...)"
        )
    found = {
        name: value
        for name, value in own.items()
        if name not in _CATALOG and not name.startswith("option.")
    }
    if "path" in found:
        found["path"] = unquote(local(found["path"]))
    return found


def kept(options: Options, mapping: Mapping[str, str]) -> Any:
    """The schema of a read: in Spark's words, or for a table that is created with its options."""
    own = {name.lower(): value for name, value in mapping.items()}
    if not _created(own):
        return schema_of(options)
    fields = [StructField(name, _TYPES[COLUMNS[name][0]], name not in KEYS)
              for name in options.columns]  # fmt: skip
    fields[0].metadata = {_MARK: json.dumps(_of_creation(own))}
    return StructType(fields)
