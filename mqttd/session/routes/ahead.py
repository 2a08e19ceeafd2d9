"""The routes of a chunk's messages, looked up together before each is handled.

    chunk    | PUBLISH a | PUBACK | PUBLISH b | PUBLISH c | ...
    places     ^ a's topic          ^ b's        ^ c's
    routes     Route, None (not in the table), Route, ...

With more topics in use than the processor's cache holds, a look-up in the table waits for memory
three or four times, and a message is mostly that. Keys hashed first and then asked for one after
another, with nothing in between, have the processor wait for several of them at once: 0.56 us
instead of 0.69 for a message with 100,000 topics (docs/design/hot-path.md).

Promise: only looks; a route that is found is good or knows that it is not (`Topics`), so whatever
happens before its message comes, it may be used. A run of one topic is not looked up ahead.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import header
from mqttd.codec.native import mypyc_attr
from mqttd.session.routes.route import Route
from mqttd.session.routes.stems import Stems

__all__ = ["Ahead", "look_ahead"]

#: PUBLISH of QoS 0 and 1 and nothing else.
_PLAIN0: Final = 0x30
_PLAIN1: Final = 0x32

#: Messages that are looked at ahead, at most: their routes have to stay in the cache.
_MOST: Final = 256


@mypyc_attr(acyclic=True, free_list_len=1)
class Ahead:
    """The routes of the messages in `data`, by where their topics begin."""

    __slots__ = ("at", "data", "places", "routes")

    def __init__(self, data: bytes, places: list[int], routes: list[Route | None]) -> None:
        self.data = data
        self.places = places
        self.routes = routes
        self.at: int = 0

    def take(self, place: int) -> Route | None:
        """The route of the message whose topic begins at `place`; places come in order."""
        places = self.places
        at = self.at
        count = len(places)
        while at < count and places[at] < place:
            at += 1
        self.at = at
        return self.routes[at] if at < count and places[at] == place else None


def look_ahead(data: bytes, table: dict[bytes, Route], stems: Stems | None = None) -> Ahead | None:
    """Look up the topics of the PUBLISHes in `data`; None where there is nothing to gain.

    Nothing of `data` is believed: what is not a whole packet ends it. stems: where first words may
    decide; then nothing is looked up. With QoS 2 or RETAIN a topic's own route is needed.
    """
    keys: list[bytes] = []
    routes: list[Route | None] = []
    places: list[int] = []
    n = len(data)
    pos = 0
    while n - pos > 4 and len(keys) < _MOST:
        first = data[pos]
        length: int = data[pos + 1]
        body: int = pos + 2
        if length & 0x80:
            if length & data[pos + 2] & data[pos + 3] & 0x80:
                break  # a large packet
            length, body = header(data, pos, n)
        if first & 0xF0 == 0x30:
            if length < 2 or body + length > n:
                break
            end = body + 2 + (data[body] << 8 | data[body + 1])
            if len(keys) == 1 and data[places[0] : places[0] + end - body] == data[body:end]:
                return None
            if stems is None:
                keys.append(data[body:end])
            else:
                led: Route | None = None
                if (first == _PLAIN0 or first == _PLAIN1) and end <= body + length:
                    led = stems.along(data, body + 2, end)
                routes.append(led)
                keys.append(b"" if led is not None else data[body:end])
            places.append(body)
        pos = body + length
    if len(keys) < 2:
        return None
    for key in keys:
        hash(key)
    if stems is None:
        for key in keys:
            routes.append(table.get(key))
    else:
        at = 0
        for key in keys:
            if key:
                routes[at] = table.get(key)
            at += 1
    for route in routes:
        if route is not None:
            route.seen = True
    return Ahead(data, places, routes)
