"""A paced source of deliveries for one session: retained messages of a new subscription.

    session --peek, next--> Replay      a delivery; or none: at the end (`done`), or later

A session takes the next delivery when its window and its output have room. A source that cannot
answer yet (a store that reads from disk) gives None and is not `done`; whoever it belongs to has
the session drained again when it can. The mqueue has the same shape (`peek`, `pop`, `done`).

It stays with a session whose client is away, and goes on when that is back (4.1). What is new of a
topic does not overtake what is retained of it (4.6): that goes `ahead` then.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.ground.message import Delivery
from mqttd.session.kinds import Kind
from mqttd.session.state import State

__all__ = ["Replay"]

_NOTHING: Final[dict[str, int]] = {}


class Replay:
    """One source."""

    __slots__ = (
        "behind",
        "charged",
        "gone",
        "kind",
        "looked",
        "noted",
        "place",
        "qos",
        "since",
        "topic_filter",
    )

    def __init__(self, topic_filter: str, qos: int) -> None:
        self.topic_filter = topic_filter
        self.qos: int = qos
        #: That of the next SUBSCRIBE to the same filter; it begins when this is at its end.
        self.behind: Replay | None = None
        #: The journal knows that it is not at its end.
        self.noted: bool = False
        #: Bytes that its session is charged.
        self.charged: int = 0
        #: Its number among those of its session that have begun, 0: it has not; and by topic the
        #: number up to which those have let that go ahead (`mqttd.session.replays`).
        self.since: int = 0
        self.gone: dict[str, int] = _NOTHING
        #: Of its filter, None where that has no wildcard; and the number of its line.
        self.kind: Kind | None = None
        self.place: int = 0
        #: Places that the last `peek` or `next` looked at.
        self.looked: int = 0

    def line(self) -> list[Replay]:
        """This one and those behind it."""
        found: list[Replay] = []
        at: Replay | None = self
        while at is not None:
            found.append(at)
            at = at.behind
        return found

    def begin(self) -> None:
        """SUBACK is sent: what the source has by now is replayed, what comes to it later is not."""
        raise NotImplementedError

    def reaches(self, topic: str) -> bool:
        """Whether there is anything of this topic that was there when it has begun."""
        raise NotImplementedError

    def ahead(self, session: State, topic: str) -> Delivery | None:
        """What it would still come to for this topic, which goes before its turn."""
        raise NotImplementedError

    def copy(self, session: State, topic: str) -> Delivery | None:
        """What there is of this topic, whether it would come to that or not."""
        raise NotImplementedError

    def peek(self, session: State) -> int:
        """The QoS of the next delivery, which stays; -1 where `next` would give None."""
        raise NotImplementedError

    def next(self, session: State) -> Delivery | None:
        """The next delivery; None at the end, or when the search goes on in a later turn."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the end was reached."""
        raise NotImplementedError

    def close(self) -> None:
        """Given up before the end."""
        raise NotImplementedError
