"""A neighbour is told retained messages, some in each turn: all there are, or what changed lately.

    its start: all, of one that serves       Giving   -- a change that is under way to that one may
    each link: what changed lately, of all   Telling  -- come there too late to be given: this tells
                                                         it, and what went under with a link before

Promise: no more is put to a link than its limit and a message, nobody is held back for it, and
nothing is done while it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.turns import Job
from mqttd.broker.retained.retained import Retained
from mqttd.mesh.changes import Changes
from mqttd.mesh.frames import END, frame
from mqttd.mesh.link import Link
from mqttd.mesh.neighbour import Neighbour
from mqttd.mesh.retained import OF_ALL, Who, delete_frame, retain_frame

__all__ = ["Giving", "Telling"]

#: Retained messages that are told in a turn.
_SLICE: Final = 500


class _Each(Job):
    """Something is said of each of these topics, of some in each turn."""

    def __init__(
        self, broker: Broker, changes: Changes, neighbour: Neighbour, topics: list[str]
    ) -> None:
        self.broker = broker
        self.changes = changes
        self.neighbour = neighbour
        self.link = neighbour.link
        self.topics = topics
        self.who = Who()
        self.at: int = 0

    def slice(self) -> bool:
        """See `Job.slice`."""
        link = self.link
        neighbour = self.neighbour
        for _ in range(_SLICE):
            if link is None or neighbour.link is not link:
                return False
            if self.at == len(self.topics):
                self.end(link)
                return False
            if link.is_full():
                link.when_drained(self.go_on)
                return False
            data = self.said(self.topics[self.at])
            self.at += 1
            if data:
                neighbour.ferry.posted += 1
                link.send(data)  # nobody is held back for it
        return True

    def go_on(self) -> None:
        """The link has drained."""
        self.broker.turns.add(self)

    def kept(self, topic: str) -> Retained | None:
        """The last message of a topic."""
        kept = self.broker.retainer.get(topic, self.broker.now)
        return kept if isinstance(kept, Retained) else None

    def said(self, topic: str) -> bytes:
        """What is said of this one; may be nothing."""
        raise NotImplementedError

    def end(self, link: Link) -> None:
        """All is said."""
        raise NotImplementedError


class Giving(_Each):
    """All retained messages, for who takes them over."""

    def __init__(self, broker: Broker, changes: Changes, neighbour: Neighbour) -> None:
        super().__init__(broker, changes, neighbour, list(broker.retainer.topics))

    def said(self, topic: str) -> bytes:
        """See `_Each.said`."""
        kept = self.kept(topic)
        if kept is None or topic.startswith("$SYS/"):
            return b""
        return retain_frame(
            self.changes.of(topic), OF_ALL, kept, self.neighbour.since(kept.expires_at), self.who
        )

    def end(self, link: Link) -> None:
        """See `_Each.end`."""
        link.send(frame(END, b"\x01"))


class Telling(_Each):
    """What has changed lately, then `told` is called."""

    def __init__(
        self,
        broker: Broker,
        changes: Changes,
        neighbour: Neighbour,
        told: Callable[[Neighbour, Link], object],
    ) -> None:
        self.stamps = changes.all()
        self.told = told
        super().__init__(broker, changes, neighbour, list(self.stamps))

    def said(self, topic: str) -> bytes:
        """See `_Each.said`."""
        stamp = self.changes.of(topic) or self.stamps[topic]
        kept = self.kept(topic)
        if kept is None:
            return delete_frame(stamp, 0, topic)
        return retain_frame(stamp, 0, kept, self.neighbour.since(kept.expires_at), self.who)

    def end(self, link: Link) -> None:
        """See `_Each.end`."""
        neighbour = self.neighbour
        neighbour.due = neighbour.ferry.posted
        self.told(neighbour, link)
