"""What of a broker travels as JSON lines: one object a line, a type each, the same on any machine.

    store      first: the version of the format, when and by what it was written
    session    with its subscriptions; what it has follows it
    message    of a session: queued, in flight, or a packet id of QoS 2
    retained   a retained message
    will       of a client that has one
    ban        who must stay out
    user       a name and its proof, of the files of users
    value      what a plugin keeps under a key
    end        last: how many lines there are before it

Bytes are base64, times numbers: `expires_at` in milliseconds since 1970, others in seconds. A field
that says what can be found out anyway may be missing. Version 1 had no bans, users, values and
end; it can be read.

Promise: a line is taken as a whole or refused with what was expected of which field.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "VERSION",
    "BanLine",
    "End",
    "Header",
    "Line",
    "MessageLine",
    "RetainedLine",
    "SessionLine",
    "UserLine",
    "ValueLine",
    "WillLine",
    "dump_line",
    "load_line",
]

VERSION: Final = 3

PacketId = Annotated[int, Meta(ge=0, le=0xFFFF)]
Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]
Interval = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Milliseconds = Annotated[int, Meta(ge=0, le=1 << 53)]
Level = Literal[4, 5]
Text = Annotated[str, Meta(max_length=65535)]


class Header(Struct, tag="store", kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    version: int
    written_at: Seconds = 0
    by: str = ""


class SessionLine(Struct, tag="session", kw_only=True, forbid_unknown_fields=True):
    """`subscriptions`: topic filter, options (QoS, 4 no local, 8 as published), identifier."""

    client_id: Annotated[str, Meta(min_length=1, max_length=65535)]
    username: Text | None = None
    mountpoint: Text = ""
    expiry: Interval
    away_since: Seconds = 0
    created_at: Seconds = 0
    subscriptions: list[
        tuple[
            Annotated[str, Meta(min_length=1, max_length=65535)],
            Annotated[int, Meta(ge=0, le=0xFF)],
            Annotated[int, Meta(ge=0, le=0xFFFFFFF)],
        ]
    ] = []


class MessageLine(
    Struct, tag="message", kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """`record`: all that is remembered beside the PUBLISH, where it is more than that."""

    client_id: str
    packet_id: PacketId
    state: Literal["queued", "inflight", "released", "received"]
    version: Level | None = None
    expires_at: Milliseconds = 0
    publisher: Text = ""
    packet: bytes = b""
    record: bytes | None = None


class RetainedLine(Struct, tag="retained", kw_only=True, forbid_unknown_fields=True):
    """`record`: as of a message."""

    topic: Annotated[str, Meta(min_length=1, max_length=65535)]
    version: Level
    expires_at: Milliseconds = 0
    publisher: Text = ""
    username: Text | None = None
    packet: bytes
    record: bytes


class WillLine(Struct, tag="will", kw_only=True, forbid_unknown_fields=True):
    """`packet`: the will as a PUBLISH of MQTT 5.0."""

    client_id: str
    username: Text | None = None
    delay: Interval
    expiry: Interval
    packet: bytes


class BanLine(Struct, tag="ban", kw_only=True, forbid_unknown_fields=True):
    """`until` and `since` in seconds since 1970; None: until it is lifted."""

    kind: Literal["client_id", "username", "peerhost", "client"]
    value: Annotated[str, Meta(min_length=1, max_length=65535)]
    reason: str = ""
    until: float | None = None
    since: float = 0.0


class UserLine(Struct, tag="user", kw_only=True, forbid_unknown_fields=True):
    """`of`: which file it is in, ``auth.OF.file``; `proof` as that file has it."""

    of: Literal["username", "scram", "clientid"]
    name: Annotated[str, Meta(min_length=1)]
    proof: str = ""


class ValueLine(Struct, tag="value", kw_only=True, forbid_unknown_fields=True):
    """What a plugin keeps by `handle.store`."""

    plugin: Annotated[str, Meta(min_length=1)]
    key: Annotated[str, Meta(min_length=1, max_length=1024)]
    value: bytes


class End(Struct, tag="end", kw_only=True, forbid_unknown_fields=True):
    """The last line; `lines`: how many are before it."""

    lines: int


Line = (
    Header
    | SessionLine
    | MessageLine
    | RetainedLine
    | WillLine
    | BanLine
    | UserLine
    | ValueLine
    | End
)

_decode = msgspec.json.Decoder(Line).decode
_encode = msgspec.json.Encoder().encode


def load_line(text: str) -> Line:
    """A line; raises ValueError, which says what was expected where."""
    found: Line = _decode(text)
    return found


def dump_line(line: Line) -> str:
    """A line as text, without its end."""
    return _encode(line).decode()
