"""A paced source of deliveries for one session: retained messages of a new subscription.

    session --next--> Replay      a delivery; or None: at the end (`done`), or later

A session takes the next delivery when its window and its output have room. A source that cannot
answer yet (a store that reads from disk) gives None and is not `done`; whoever it belongs to has
the session drained again when it can. The mqueue has the same shape (`peek`, `pop`, `done`).
"""

from __future__ import annotations

from mqttd.session.message import Delivery
from mqttd.session.state import State

__all__ = ["Replay"]


class Replay:
    """One source."""

    __slots__ = ("looked", "topic_filter")

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        #: Places that the last `next` looked at.
        self.looked: int = 0

    def next(self, session: State) -> Delivery | None:
        """The next delivery; None at the end, or when the search goes on in a later turn."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the end was reached."""
        raise NotImplementedError

    def close(self) -> None:
        """Given up before the end."""
        raise NotImplementedError
