"""What Spark's sink asks of the broker to stage: requests, and the rows in them.

    put/QUERY/STAGE/CHUNK      PUBLISH packets          hello
    release/QUERY/BATCH        {STAGE: chunks}          abort/QUERY   {STAGE: 1} or {}
                                                        close/QUERY

A request with the user property ``onRefused: skip`` leaves out messages that are refused and says
which; without it the first one is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.parser import Parser
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.pipeline.stage_store import StageError

__all__ = ["MOST_ROWS", "MOST_TOLD", "NAME", "SKIP", "Refusals", "Request", "number_of", "packed",
           "rows_of", "skips", "stages_of"]  # fmt: skip

#: Rows in one chunk: their topics are authorized in one turn.
MOST_ROWS: Final = 512
#: Refused messages that are named one by one.
MOST_TOLD: Final = 10
#: Of queries, stages and runs.
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
#: The user property of a request that leaves out what is refused.
SKIP: Final = ("onRefused", "skip")


@dataclass(slots=True)
class Refusals:
    """Messages of a request that were refused and left out."""

    count: int = 0
    #: What is said of the first of them.
    first: list[str] = field(default_factory=list)

    def add(self, why: str) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < MOST_TOLD:
            self.first.append(why)

    def __str__(self) -> str:
        told = ", ".join(self.first)
        more = ", ..." if self.count > MOST_TOLD else ""
        return f"{self.count} skipped: {told}{more}"


@dataclass(slots=True)
class Request:
    """What a client asks, which was authorized."""

    client_id: str
    username: str | None
    words: list[str]
    payload: bytes
    #: What was left out of it; None where the first refusal is an error.
    refused: Refusals | None = None


def skips(given: Properties) -> bool:
    """Whether a request is to leave out what is refused."""
    pairs: Any = given.get(prop.USER_PROPERTY, ())
    return SKIP in pairs


def rows_of(data: bytes) -> list[Publish]:
    """The PUBLISH packets of a chunk; raises StageError for anything else."""
    parser = Parser(5, role="client")
    packets: Iterable[Any] = parser.feed(data)
    rows = [packet for packet in packets if isinstance(packet, Publish) and packet.topic]
    if parser.buffered or len(rows) != len(list(packets)):
        raise StageError("a chunk is whole PUBLISH packets of MQTT 5.0, each with its topic")
    return rows


def packed(rows: Iterable[Publish]) -> bytes:
    """The chunk of these packets."""
    return b"".join(serialize(row, 5) for row in rows)


def stages_of(payload: bytes) -> dict[str, int]:
    """Stages and how many chunks each has; raises StageError."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        NAME.match(name) and type(count) is int and count > 0 for name, count in found.items()
    ):
        raise StageError("expected a JSON object of stages and their numbers of chunks")
    return found


def number_of(text: str) -> int | None:
    """A number in a request."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
