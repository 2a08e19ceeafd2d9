"""How many messages come to the topics of some filters, and which topics have most just now.

    gear NOTED of these topics --> TopicRates.note: counted for each filter that matches
                               --> Top.note: counted by topic, for the seconds of one question

Promise: other topics pay nothing; a message of a counted topic costs a look-up, whatever the number
of filters. At most `MOST` filters, and `TOPICS` topics that are told apart.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.topic import match
from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run
from mqttd.session.publish.notes import Notes

__all__ = ["MOST", "TOPICS", "Count", "Top", "TopicRates"]

MOST: Final = 512
TOPICS: Final = 10_000


class Count:
    """What has come to the topics of one filter, or to one topic."""

    def __init__(self, name: str, since: int) -> None:
        self.name = name
        #: When counting began, in the server's milliseconds.
        self.since = since
        self.messages: int = 0
        self.bytes: int = 0
        #: Of the last whole second, or longer where nobody looked at the clock.
        self.message_rate: float = 0.0
        self.byte_rate: float = 0.0
        self._messages: int = 0
        self._bytes: int = 0

    def measure(self, milliseconds: int) -> None:
        """So long has passed since the last time."""
        self.message_rate = (self.messages - self._messages) * 1000.0 / milliseconds
        self.byte_rate = (self.bytes - self._bytes) * 1000.0 / milliseconds
        self._messages = self.messages
        self._bytes = self.bytes


class TopicRates(Notes):
    """Counts by filter."""

    def __init__(self) -> None:
        self.counts: dict[str, Count] = {}
        self._known: dict[str, list[Count]] = {}
        self._measured_at: int = 0

    def add(self, topic_filter: str, now: int) -> bool:
        """Count what comes to these topics; False if there are too many filters."""
        if topic_filter not in self.counts:
            if len(self.counts) >= MOST:
                return False
            if not self.counts:
                self._measured_at = now
            self.counts[topic_filter] = Count(topic_filter, now)
            self._known = {}
        return True

    def remove(self, topic_filter: str) -> bool:
        """Count them no more; False if they were not."""
        if self.counts.pop(topic_filter, None) is None:
            return False
        self._known = {}
        return True

    def note(
        self,
        run: Run,
        client_id: str,
        username: str | None,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """See `Notes.note`."""
        for one in self._of(run.topic.decode()):
            one.messages += run.count
            one.bytes += run.size * run.count

    def note_message(self, message: Message, now: int) -> None:
        """See `Notes.note_message`."""
        for one in self._of(message.topic):
            one.messages += 1
            one.bytes += len(message.payload)

    def tick(self, now: int) -> None:
        """A few times a second: rates are those of a second."""
        passed = now - self._measured_at
        if passed >= 1000:
            self._measured_at = now
            for one in self.counts.values():
                one.measure(passed)

    def _of(self, topic: str) -> list[Count]:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPICS:
                self._known = {}
            known = [one for name, one in self.counts.items() if match(topic, name)]
            self._known[topic] = known
        return known


class Top(Notes):
    """Counts by topic, for a while; `others`: messages to topics beyond `TOPICS`."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.topics: dict[str, Count] = {}
        self.others: int = 0

    def note(
        self,
        run: Run,
        client_id: str,
        username: str | None,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """See `Notes.note`."""
        self._count(run.topic.decode(), run.count, run.size)

    def note_message(self, message: Message, now: int) -> None:
        """See `Notes.note_message`."""
        self._count(message.topic, 1, len(message.payload))

    def _count(self, topic: str, count: int, size: int) -> None:
        one = self.topics.get(topic)
        if one is None:
            if len(self.topics) >= TOPICS:
                self.others += count
                return
            one = Count(topic, self.since)
            self.topics[topic] = one
        one.messages += count
        one.bytes += size * count
