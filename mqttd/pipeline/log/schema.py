"""What an event is: its kinds and its columns, the same in the log, in Spark and in the docs.

    code of the log   "message.publish" in the column `event`   a bit of a block's event mask

Codes are part of the format: new ones are added at the end, none is ever given another meaning.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["CODES", "COLUMNS", "EVENTS", "GAP", "SCHEMA_VERSION", "Event"]

#: Grows when a column or the meaning of one changes.
SCHEMA_VERSION: Final = 2

#: Code -> name. At most 32: a block has a mask of the codes in it.
EVENTS: Final = (
    "client.connected",
    "client.disconnected",
    "client.authenticate",
    "client.authorize",
    "client.subscribe",
    "client.unsubscribe",
    "session.created",
    "session.resumed",
    "session.subscribed",
    "session.unsubscribed",
    "session.terminated",
    "message.publish",
    "message.delivered",
    "message.acked",
    "message.dropped",
    "log.gap",
    "delivery.dropped",
)

CODES: Final = {name: code for code, name in enumerate(EVENTS)}

#: The code of the record that says events are missing here.
GAP: Final = CODES["log.gap"]

#: Column -> (type in Spark's words, what it holds). A value there is none of is NULL.
COLUMNS: Final = {
    "seq": ("BIGINT", "offset of the event in its node's log: dense, from 0"),
    "node": ("STRING", "node or worker that wrote it"),
    "event": ("STRING", "what happened: the name of a hook point, or `log.gap`"),
    "timestamp": ("TIMESTAMP", "when, to the microsecond, UTC; of a publish: when it arrived"),
    "message_id": ("BINARY", "16 bytes, the same in publish, delivered, acked and dropped"),
    "client_id": ("STRING", "the client; of message events the publisher, or the receiver"),
    "username": ("STRING", "its user name"),
    "peer": ("STRING", "its address and port; NULL in message events"),
    "topic": ("STRING", "topic name, of subscription events the filter"),
    "qos": ("TINYINT", "QoS of the message or subscription"),
    "retain": ("BOOLEAN", "RETAIN of the message"),
    "reason": ("STRING", "why: of a disconnect, drop, denial, end of a session, gap"),
    "payload": ("BINARY", "the message; NULL where it was not exported"),
    "payload_size": ("INT", "bytes of the message's payload, exported or not"),
    "content_type": ("STRING", "Content Type of the message (MQTT 5.0)"),
    "response_topic": ("STRING", "its Response Topic"),
    "correlation_data": ("BINARY", "its Correlation Data"),
    "message_expiry": (
        "INT",
        "its Message Expiry Interval when it arrived, in seconds;"
        " 2,147,483,647 (68 years) stands for longer ones too",
    ),
    "headers": (
        "ARRAY<STRUCT<key: STRING, value: STRING>>",
        "its user properties in order (includeHeaders)",
    ),
    "user_properties": (
        "MAP<STRING, STRING>",
        "the same by name, of several the last (includeUserProperties)",
    ),
}


class Event(NamedTuple):
    """One event as a plain value, for readers without Arrow: `COLUMNS`, but properties as bytes.

    `timestamp` is in µs since 1970; `properties` is the MQTT 5.0 property block of a message
    (empty: none); `lost` is how many events a gap stands for.
    """

    seq: int
    node: str
    event: str
    timestamp: int
    message_id: bytes | None = None
    client_id: str | None = None
    username: str | None = None
    peer: str | None = None
    topic: str | None = None
    qos: int | None = None
    retain: bool | None = None
    reason: str | None = None
    payload: bytes | None = None
    payload_size: int | None = None
    properties: bytes = b""
    lost: int = 0
