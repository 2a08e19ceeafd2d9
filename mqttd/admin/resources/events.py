"""What happens as it happens: server-sent events.

    event: clients     connected, disconnected, connect refused
    event: alarms      raised, cleared
    event: denials     what access rules have refused
    event: faults      peers that break the rules, connections that were refused, overload
    event: counters    every counter and gauge, once a second
    event: lost        so many events were not told to this reader

A viewer may see them all. The stream ends with the log-in, the token or the role that it was asked
for with.
Each has an id; with ``Last-Event-ID`` a reader goes on where its connection broke.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from mqttd.admin.doors.streams import Streams
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, get
from mqttd.readmodel.feed import KINDS

__all__ = ["Events", "wanted_of"]


class Kinds(Struct, forbid_unknown_fields=True):
    """Which events."""

    kinds: Annotated[
        str, Meta(description=f"of {', '.join(KINDS)}, with commas between them; all without it")
    ] = ""


class Events:
    """The event stream."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._streams: Streams | None = None

    @get(
        "/events", query=Kinds, answer=str, media="text/event-stream", errors=(503,),
        headers=("Last-Event-ID",),
    )  # fmt: skip
    def events(self, ask: Ask) -> Any:
        """Events as they happen, until the connection ends, or the log-in, token or role does."""
        kinds, after = wanted_of(ask)
        return self._of_feed().open(ask, kinds, after)

    def _of_feed(self) -> Streams:
        feed = self.parts.need(self.parts.feed, "events are not told")
        if self._streams is None or self._streams.feed is not feed:
            self._streams = Streams(feed, feed.reactor)
        return self._streams


def wanted_of(ask: Ask) -> tuple[frozenset[str], int | None]:
    """Which events are asked for, and behind which number; raises ApiError."""
    kinds = frozenset(ask.query.kinds.split(",")) if ask.query.kinds else frozenset(KINDS)
    if unknown := sorted(kinds - KINDS.keys()):
        known = ", ".join(KINDS)
        raise ApiError(
            400, "bad_request", f"kinds: there is no {unknown[0][:80]!r}; there are: {known}"
        )
    last = ask.header("last-event-id") or ""
    after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None
    return kinds, after
