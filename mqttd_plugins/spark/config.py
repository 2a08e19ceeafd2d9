"""The plugin's configuration, `etc/plugins/spark.conf`; docs/reference/spark-plugin.md lists it.

Sizes are bytes, durations seconds. Imports the standard library and msgspec only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["SparkConfig"]

Size = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Texts = tuple[Annotated[str, Meta(min_length=1)], ...]


class SparkConfig(Struct, frozen=True, kw_only=True):
    """What is exported, where to, and what happens when the disk cannot follow."""

    #: Directory of the log, relative to this file; empty is `events` in the data directory.
    path: str = ""
    #: Name of this node in the log; empty is `node.name`.
    node: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,99})?\Z")] = ""

    #: Events, names or globs.
    events: Texts = ("client.*", "session.*", "message.publish", "message.dropped")
    #: Topic filters: message events of other topics are left out.
    topics: Texts = ("#",)
    #: Globs of client ids: events of other clients are left out.
    clients: Texts = ("*",)
    #: Whether payloads are exported, and the largest one that is; of others only the size is.
    payload: bool = True
    payload_limit: Size = 1 << 20
    #: Share of messages whose delivered and acked events are exported, 0 to 1.
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    #: Columns that are left empty.
    redact: tuple[Literal["client_id", "username", "peer", "topic", "payload", "headers"], ...] = ()

    #: A block is written when it has so many events or is so old.
    block_events: Annotated[int, Meta(ge=1, le=65536)] = 16384
    flush_after: Annotated[float, Meta(gt=0, le=60)] = 0.02
    #: Bytes that may wait for the disk, and what happens then: events are dropped and a gap says
    #: so, or publishers are not read from until there is room.
    queue_bytes: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    overflow: Literal["drop", "block"] = "drop"
    #: How columns are compressed; auto: zstd where it is to be had.
    compression: Literal["auto", "zstd", "none"] = "auto"
    #: When a block counts as written: the system has it (survives a crash of the broker), or the
    #: disk has it (survives a power cut).
    sync: Literal["os", "fsync"] = "os"
    #: PUBACK and PUBREC wait until the event of their message is written; implies
    #: overflow = "block".
    acked_means_logged: bool = False

    #: A segment is closed when it has so many bytes or is so old.
    segment_bytes: Annotated[int, Meta(ge=1 << 12)] = 64 << 20
    segment_seconds: Annotated[float, Meta(gt=0)] = 3600.0
    #: Segments go when the log has more bytes or they are older; 0 is no limit.
    retention_bytes: Size = 10 << 30
    retention_seconds: Seconds = 0.0
    #: What consumer groups have not read stays until the log has so many bytes.
    held_bytes: Size = 0
    #: A group that was not heard of for so long keeps nothing any more.
    group_seconds: Seconds = 7 * 86400.0

    #: Where finished segments are copied to, a URL that pyarrow knows (s3://, hdfs://, file:///):
    #: then retention deletes here what is safe there, and nothing else.
    archive: Annotated[str, Meta(pattern=r"^([a-z][a-z0-9+]*://.+)?\Z")] = ""

    #: Spark's sink may stage rows and release them as batches that are published once; how many
    #: bytes may wait for their release, and how long.
    stage: bool = True
    stage_bytes: Annotated[int, Meta(ge=1 << 16)] = 512 << 20
    stage_seconds: Annotated[float, Meta(gt=0)] = 86400.0
