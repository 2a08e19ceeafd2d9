"""Where what comes from another process lands, and the runs of QoS 1 that it comes in.

RUN1 [4] PUBLISH a/b 1, a/b 2, a/b 3     as a client has sent them
  taken   --> one route for all, each to the sessions under an id that is free there
  not, when its worker dies --> one PUBLISH of 5.0 for each (`unrolled`)
"""

from __future__ import annotations

from collections import deque

from mqttd.codec.properties import decode_varint
from mqttd.codec.scan import EXPIRY_SHIFT, scan_publish
from mqttd.codec.spans import SPAN
from mqttd.mesh.frames import RUN1, split
from mqttd.mesh.link import Link
from mqttd.mesh.peer import Peer
from mqttd.session.publish.inbound import lift
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import HEARD, SMALL, SPREAD, WIDE, Route

__all__ = [
    "Control",
    "Local",
    "ends_of",
    "even_ends",
    "is_lasting",
    "packets",
    "scanned",
    "unrolled",
]


class Control:
    """Takes the frames that are no PUBLISH."""

    def control(self, link: Link, kind: int, body: bytes) -> None:
        """One frame, as `mqttd.mesh.frames` says."""
        raise NotImplementedError

    def taken(self, carried: int, touched: bool) -> None:
        """The messages up to this number are with the sessions; a store keeps some (`touched`)."""


class Local:
    """A route as it is for messages that come from another worker."""

    def __init__(self, route: Route) -> None:
        self.sessions = route.sessions
        self.options = route.options
        self.kinds = route.kinds
        self.owns = route.owns
        self.gear = route.gear
        made = Route(route.topic, route.key)
        made.gear = route.gear & HEARD
        sessions: list[Receiver] = []
        options: list[int] = []
        for i in range(len(route.sessions)):
            receiver = route.sessions[i]
            if not isinstance(receiver, Peer):
                sessions.append(receiver)
                options.append(route.options[i])
        made.sessions = sessions
        made.options = options
        made.identifiers = route.identifiers
        made.owns = route.owns
        made.settle()
        self.route = made
        #: The bytes go to all as they are, if they are of the QoS and the version.
        self.plain: bool = not made.gear & (SPREAD | HEARD | WIDE)

    def is_plain(self, size: int) -> bool:
        """Whether a packet of so many bytes goes on so, all of it at once."""
        return self.plain and not (size > SMALL and self.route.is_wide(size))

    def is_of(self, route: Route) -> bool:
        """Whether it is what the route leads to now."""
        return (
            self.sessions is route.sessions
            and self.options is route.options
            and self.kinds is route.kinds
            and self.owns is route.owns
            and self.gear == route.gear
        )


def scanned(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where a property block ends that is unusual; its expiry is 0, or far behind."""
    size, at = decode_varint(data, at, end)
    if at + size > end:
        raise ValueError("a property block is cut off")
    return at + size, 0


def is_lasting(data: bytes, at: int, end: int) -> bool:
    """Whether the properties at `at` are without an expiry."""
    found = scan_publish(data, at, end)
    return found >= 0 and not found >> EXPIRY_SHIFT


def even_ends(data: bytes, pos: int, stop: int) -> list[int]:
    """Where each packet of the run that begins here ends. Raises ValueError."""
    body, end = split(data, pos)
    size = end - pos
    if not body or end > stop or (stop - pos) % size:
        raise ValueError("a run of packets of different sizes")
    return list(range(end, stop + 1, size))


def ends_of(data: bytes, pos: int, stop: int) -> list[int]:
    """The same of a span."""
    found: list[int] = []
    while pos < stop:
        body, pos = split(data, pos)
        if not body or pos > stop:
            raise ValueError("a span that is cut off")
        found.append(pos)
    return found


def packets(frame: bytes) -> list[bytes]:
    """What a run (`RUN1`) stands for: each message as it goes by itself."""
    pos, stop = split(frame, 0)
    v5 = frame[pos] & ~SPAN == 5
    pos += 1
    made: list[bytes] = []
    while pos < stop:
        p, end = split(frame, pos)
        if v5:
            made.append(frame[pos:end])
        else:
            topic_end = p + 2 + (frame[p] << 8 | frame[p + 1])
            made.append(lift(frame, pos, p, topic_end, end))
        pos = end
    return made


def unrolled(kept: deque[tuple[int, bytes]]) -> deque[tuple[int, bytes]]:
    """What is kept, without runs: each stands there for every packet of it that is not taken."""
    made: deque[tuple[int, bytes]] = deque()
    left = list(kept)
    at = 0
    while at < len(left):
        number, data = left[at]
        if data[0] != RUN1:
            made.append((number, data))
            at += 1
            continue
        end = at
        while end < len(left) and left[end][1] is data:
            end += 1
        whole = packets(data)
        # Those that are taken were the first.
        for each in range(at, end):
            made.append((left[each][0], whole[len(whole) - (end - each)]))
        at = end
    return made
