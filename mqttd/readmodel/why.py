"""What became of messages, read from the ring of files that `mqttd.monitor.trail` writes.

    why.jsonl.7 ... why.jsonl.1  why.jsonl     one step a line, the oldest first
         '--> matching ids, the newest first --> the steps of each: its life

Promise: a search reads the files once or twice, line by line, and belongs into a thread; a line
that is torn or is none is passed over. Source: W3C Trace Context (traceparent).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from mqttd.codec.topic import match
from mqttd.session.ground.metrics import DROP_REASONS

__all__ = [
    "FILES",
    "REASONS",
    "Life",
    "Lives",
    "Matched",
    "Receiver",
    "Step",
    "Why",
    "life_of",
]

#: Files of the ring, the one that is written included.
FILES: Final = 8
#: A rule with its place: of a file, a role, a client's own.
_RULE: Final = re.compile(r":\d+ \{deny\b")
#: Why a message, or one delivery of it, was lost.
REASONS: Final[dict[str, str]] = {
    **DROP_REASONS,
    "no_subscriber": "nobody has subscribed to its topic",
    "member_gone": "the member of a shared group that had it is gone, and there is no other",
    "not_kept": "the store took nothing, and it had to be kept",
    "worker_away": "QoS 0 for a worker or a node that there was no link to",
    "node_gone": "the node that it was kept for is gone, and does not come back as it was",
}
_ID: Final = re.compile(rb'^\{"at":[\d.]+,"id":"([0-9a-f]{32})"')
#: Seconds that a search waits for what has just been written.
_SETTLED: Final = 1.0


class Matched(Struct):
    """A filter that matched: the first receivers it has, the shared group of whom one is chosen."""

    topic_filter: str
    group: str | None
    receivers: int
    clients: list[str]


class Step(Struct, kw_only=True, omit_defaults=True):
    """One thing that happened to a message; `at` in seconds since 1970.

    what: published, asked (hooks), routed, crossed (it has come to another worker), queued, sent,
    acked, refused (by its receiver), held (by a plugin), retained (and nobody had subscribed),
    lost; `more` is no message: so many were lost for a reason that are not kept one by one.
    """

    at: float
    id: str = ""
    what: str
    topic: str = ""
    #: Of the publisher.
    client_id: str = ""
    username: str | None = None
    receiver: str = ""
    reason: str = ""
    detail: str = ""
    qos: int = 0
    retain: bool = False
    #: Of the payload.
    bytes: int = 0
    count: int = 1
    #: The rule that let it be published.
    rule: str = ""
    #: Hooks by their owners, and what each has said.
    hooks: list[tuple[str, str]] = []
    filters: list[Matched] = []
    traceparent: str = ""


class Receiver(Struct, kw_only=True):
    """What became of a message for one receiver."""

    client_id: str
    #: queued, sent, acked, refused or lost, the last of them.
    state: str
    reason: str
    detail: str


class Life(Struct, kw_only=True):
    """One message with all that is kept of it."""

    id: str
    topic: str
    client_id: str
    username: str | None
    qos: int
    bytes: int
    at: float
    #: Why it was lost, for all or for some; empty if it was not.
    lost: list[str]
    #: The same in sentences.
    answer: list[str]
    receivers: list[Receiver]
    steps: list[Step]


class Lives(Struct):
    """Messages, the newest first; with `cursor` those before them are asked for."""

    messages: list[Life]
    #: Reason -> how many more were lost in this time that are not kept one by one.
    unrecorded: dict[str, int]
    cursor: str | None


class Why:
    """Reads the files at `path`; `waiting()` says how many bytes are still to be written there."""

    def __init__(self, path: str, waiting: Callable[[], int] = int) -> None:
        self.path = path
        self.waiting = waiting
        self._decoder = msgspec.json.Decoder(Step)

    def life(self, message_id: str) -> Life | None:
        """One message by its id, 32 hexadecimal digits; None if nothing is kept of it."""
        wanted = message_id.lower().encode()
        found = self._steps({wanted}).get(wanted)
        return life_of(found) if found else None

    def find(
        self,
        client_id: str | None = None,
        topic_filter: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        lost: bool = False,
        limit: int = 50,
        before: str | None = None,
    ) -> Lives:
        """Messages from or to this client, on these topics, since then (s since 1970), lost so.

        lost: only those that were; before: the id behind which a page begins.
        """
        first = since or 0.0
        ids: dict[bytes, float] = {}
        unrecorded: dict[str, int] = {}
        for line in self._lines():
            step = self._decode(line)
            if step is None or step.at < first:
                continue
            if step.what == "more":
                if reason in (None, step.reason):
                    unrecorded[step.reason] = unrecorded.get(step.reason, 0) + step.count
                continue
            if client_id is not None and client_id not in (step.client_id, step.receiver):
                continue
            if topic_filter is not None and not _matches(step.topic, topic_filter):
                continue
            if (reason is not None and step.reason != reason) or (lost and step.what != "lost"):
                continue
            if before is not None and step.id >= before:
                continue
            ids[step.id.encode()] = step.at
        newest = sorted(ids, reverse=True)
        page = newest[:limit]
        steps = self._steps(set(page)) if page else {}
        lives = [life_of(steps[one]) for one in page if one in steps]
        cursor = page[-1].decode() if len(newest) > limit else None
        return Lives(lives, unrecorded, cursor)

    def _steps(self, wanted: set[bytes]) -> dict[bytes, list[Step]]:
        """The steps of these messages, the oldest first."""
        found: dict[bytes, list[Step]] = {}
        for line in self._lines():
            named = _ID.match(line)
            if named is not None and named[1] in wanted:
                step = self._decode(line)
                if step is not None:
                    found.setdefault(named[1], []).append(step)
        return found

    def _decode(self, line: bytes) -> Step | None:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _lines(self) -> Iterator[bytes]:
        """All lines, the oldest first; what was told before the question is in the files then."""
        until = time.monotonic() + _SETTLED
        while self.waiting() and time.monotonic() < until:
            time.sleep(0.005)
        for number in range(FILES, -1, -1):
            try:
                with open(f"{self.path}.{number}" if number else self.path, "rb") as file:
                    yield from file
            except OSError:
                continue


def trace_of(properties: Any, name: str = "traceparent") -> str:
    """The W3C trace context that a message carries in its user properties, "" for none."""
    for key, value in properties or ():
        if key == name:
            return str(value)[:512]
    return ""


def _matches(topic: str, topic_filter: str) -> bool:
    return bool(topic) and (topic == topic_filter or match(topic, topic_filter))


def life_of(steps: list[Step]) -> Life:
    """One message, of what is kept of it, the oldest first."""
    first = steps[0]
    head = next((step for step in steps if step.topic), first)
    receivers: dict[str, Receiver] = {}
    lost: dict[str, None] = {}
    answer: dict[str, None] = {}
    for step in steps:
        if step.receiver:
            receivers[step.receiver] = Receiver(
                client_id=step.receiver, state=step.what, reason=step.reason, detail=step.detail
            )
        if step.what == "lost":
            lost[step.reason] = None
            answer[_sentence(step)] = None
    return Life(
        id=first.id,
        topic=head.topic,
        client_id=head.client_id,
        username=head.username,
        qos=head.qos,
        bytes=head.bytes,
        at=first.at,
        lost=list(lost),
        answer=list(answer),
        receivers=list(receivers.values()),
        steps=steps,
    )


def _sentence(step: Step) -> str:
    text = REASONS.get(step.reason, step.reason)
    if step.reason == "denied" and _RULE.search(step.detail):
        text = "a rule denies it to the publisher"
    if step.detail:
        text = f"{text}: {step.detail}"
    return f"{step.receiver}: {text}" if step.receiver else text
