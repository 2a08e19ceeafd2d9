"""Retained messages: the last message of each topic, found by topic filter.

                root                 topics: "t/a/x" -> level, "t/b" -> level, ...
                  |
                  t                  a filter is walked down this tree; literal words are looked
                 / \\                 up, `+` and `#` go along the levels beside each other
                b - a
                    |
                    x

A subscription may match 100,000 of them, which no client takes at once: `match` gives a
`RetainedCursor`, a place in the tree from which `next` reads on whenever the client has room.
Topics may come and go meanwhile. The level a cursor rests on stays until the cursor moves on, and
new levels are put in front of their neighbours, behind every cursor: so none that stays is missed,
none comes twice, and a cursor ends however fast topics are added.

Promise: `store`, `get` and `delete` of a known topic are one look-up, of a new one a step per
level; so is a cursor over a filter without wildcards. What the tree takes is counted level by level
(`held`), so `max_bytes` means memory, whatever topics look like. A cursor holds a few words and
visits only levels that fit the filter's first words; a literal word that occurs at its depth in no
topic ends it at once. One call of `next` visits a bounded number of levels. Expiry is a heap: each
expired message is touched once.

MQTT 5.0, 3.3.1.3 (RETAIN), 3.3.2.3.3 (Message Expiry Interval), 4.7.2 (topics beginning with $).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from mqttd.broker.retained.tree import RetainedLevel, Word, after_dollar, comes_after, literal
from mqttd.codec.reasons import PACKET_TOO_LARGE, QUOTA_EXCEEDED, SUCCESS
from mqttd.codec.topic import match

__all__ = ["RetainedCursor", "RetainedLevel", "Retainer", "topic_weight"]

#: Levels that one `next` visits besides those of its messages.
STEPS: Final = 2000
#: Stale entries the expiry heap may always hold.
STALE: Final = 1024
#: Bytes of a topic beside its text, of a level, and of a word that occurs at its depth for the
#: first time beside its text (measured, CPython 3.11).
_TOPIC: Final = 160
_LEVEL: Final = 136
_BESIDE: Final = 100
_WORD: Final = 160
#: The most that one level takes, beside the text of its word.
_ALONE: Final = _LEVEL + _BESIDE + _WORD
_ALL: Final = 1 << 60


class Retainer:
    """The retained messages of a node; what a message is, only its owner knows.

    max_messages: how many are kept, beside those below `$SYS/`; max_bytes: what all take in memory
    with their topics; max_payload: the size of one. 0 means no limit.

    Times (`expires_at`, `now`) are integers of any one clock; an `expires_at` of 0 is never.
    Topics and filters are taken as valid.
    """

    __slots__ = (
        "bytes",
        "deadlines",
        "expiring",
        "figures",
        "held",
        "levels",
        "max_bytes",
        "max_messages",
        "max_payload",
        "root",
        "share",
        "stores",
        "topics",
        "version",
        "words",
    )

    def __init__(self, max_messages: int = 0, max_bytes: int = 0, max_payload: int = 0) -> None:
        self.max_messages: int = max_messages
        self.max_bytes: int = max_bytes
        self.max_payload: int = max_payload
        #: Part of a memory budget, that holds beside `max_bytes`; 0: none.
        self.share: int = 0
        #: What all messages weigh, and what their topics take.
        self.bytes: int = 0
        self.held: int = 0
        self.topics: dict[str, RetainedLevel] = {}
        #: Topics of those that are below `$SYS/`.
        self.figures: int = 0
        self.root: RetainedLevel = RetainedLevel("", None)
        #: By depth: the words that levels hold.
        self.words: list[dict[str, Word]] = []
        #: Heap of (expires_at, store number, level); stale when the level has another number.
        self.deadlines: list[tuple[int, int, RetainedLevel]] = []
        self.expiring: int = 0
        self.stores: int = 0
        #: Levels that there have been.
        self.levels: int = 0
        #: Moves with each message that comes or goes.
        self.version: int = 0

    def __len__(self) -> int:
        """Return how many messages are kept."""
        return len(self.topics)

    def store(
        self,
        topic: str,
        message: object,
        size: int,
        expires_at: int = 0,
        weight: int = 0,
        level: RetainedLevel | None = None,
        accepted: bool = False,
    ) -> int:
        """Keep `message` as the last of `topic`, in place of an earlier one.

        size: of its payload; weight: the bytes it takes, 0 for as many; level: where the topic's
        last message was found before, by one who has remembered it; accepted: it was, by another
        process or before a restart, so no limit is asked. Returns SUCCESS; PACKET_TOO_LARGE when
        it is over `max_payload`; QUOTA_EXCEEDED when it does not fit beside the others. A message
        refused leaves the earlier one as it was.
        """
        weight = weight or size
        if self.max_payload and size > self.max_payload and not accepted:
            return PACKET_TOO_LARGE
        if level is None or not level.stored:
            level = self.topics.get(topic)
        if not accepted:
            code = self.room(level, topic, message, weight)
            if code != SUCCESS:
                return code
        if level is None:
            before = self.held
            level = self._add(topic)
            self.topics[topic] = level
            self.held += topic_weight(topic)
            self.figures += topic.startswith("$SYS/")
            self.placed(level, message, weight, self.held - before)
        else:
            if level.expires_at:
                self.expiring -= 1
            self.placed(level, message, weight, topic_weight(topic))
        self.bytes += weight - level.size
        self.stores += 1
        self.version += 1
        level.message = message
        level.size = weight
        level.expires_at = expires_at
        level.stored = self.stores
        if expires_at:
            self.expiring += 1
            heappush(self.deadlines, (expires_at, self.stores, level))
        self._forget_stale()
        return SUCCESS

    def room(self, level: RetainedLevel | None, topic: str, message: object, weight: int) -> int:
        """SUCCESS if `message` may be kept in place of what `level` has; None: of nothing.

        What takes no more than is there may be kept above a limit, too.
        """
        most = self.most()
        if most:
            free = most - self.bytes - self.held
            if level is None:
                if self.costs_more(topic, free - weight):
                    return QUOTA_EXCEEDED
            elif 0 < weight - level.size > free:
                return QUOTA_EXCEEDED
        if level is None and 0 < self.max_messages <= len(self.topics) - self.figures:
            return QUOTA_EXCEEDED
        return SUCCESS

    def most(self) -> int:
        """The bytes that all may take: the smaller of `max_bytes` and `share`; 0: no limit."""
        most, share = self.max_bytes, self.share
        return share if share and (not most or share < most) else most

    def get(self, topic: str, now: int = 0) -> object | None:
        """Return the message of `topic`, None when there is none or it expired by `now`."""
        level = self.topics.get(topic)
        return None if level is None or level.is_expired(now) else level.message

    def delete(self, topic: str, qos: int = -1) -> bool:
        """Forget the message of `topic`; say whether there was one.

        qos: of the empty message that came for it and is dispatched next; -1: there is none.
        """
        level = self.topics.get(topic)
        if level is None:
            return False
        self._clear(level, topic)
        return True

    def match(self, topic_filter: str, now: int = 0, mounted: bool = False) -> RetainedCursor:
        """Return a cursor over the messages whose topics match `topic_filter`.

        Messages that expired by `now` are passed over. mounted: the filter has its first wildcard
        where a mountpoint ends, and as in the first level it does not match `$`.
        """
        return RetainedCursor(self, topic_filter, now, mounted)

    def expire(self, now: int, limit: int = 1000) -> int:
        """Forget some that expired by `now`, of about `limit` levels; return how many."""
        expired = 0
        while limit > 0 and self.is_due(now):
            _, stored, level = heappop(self.deadlines)
            limit -= 1
            if level.stored == stored:
                topic = level.topic()
                limit -= topic.count("/")
                self._clear(level, topic)
                expired += 1
        return expired

    def is_due(self, now: int) -> bool:
        """Whether `expire` has something to do at that time."""
        return bool(self.deadlines) and self.deadlines[0][0] <= now

    def costs_more(self, topic: str, most: int) -> bool:
        """Whether a new topic would take more than `most`.

        The tree is walked only where that decides: what it would take if every character were a
        level of its own that is missing, with its word, mostly fits.
        """
        return _TOPIC + (len(topic) + 1) * (_ALONE + 2) > most and self._cost(topic) > most

    def _cost(self, topic: str) -> int:
        """What a new topic would take: the levels that are missing, and words not seen so far."""
        cost = topic_weight(topic)
        level: RetainedLevel | None = self.root
        words = self.words
        depth = 0
        for word in topic.split("/"):
            below = None if level is None else level.below(word)
            if below is None:
                cost += _LEVEL
                if level is not None and level.first is not None:
                    cost += _BESIDE
                if depth >= len(words) or word not in words[depth]:
                    cost += _WORD + len(word)
            level = below
            depth += 1
        return cost

    def _add(self, topic: str) -> RetainedLevel:
        """Return the level of `topic`, made where it is missing."""
        level = self.root
        depth = 0
        for text in topic.split("/"):
            below = level.below(text)
            if below is None:
                if depth == len(self.words):
                    self.words.append({})
                words = self.words[depth]
                word = words.get(text)
                if word is None:
                    word = Word(text)
                    words[text] = word
                    self.held += _WORD + len(text)
                word.levels += 1
                self.held += _LEVEL if level.first is None else _LEVEL + _BESIDE
                below = level.add(word.text)
                self.levels += 1
                below.born = self.levels
            level = below
            depth += 1
        return level

    def _clear(self, level: RetainedLevel, topic: str) -> None:
        """Take the topic away, and the message out of its level."""
        del self.topics[topic]
        self.held -= topic_weight(topic)
        self.figures -= topic.startswith("$SYS/")
        self.version += 1
        self.bytes -= level.size
        if level.expires_at:
            self.expiring -= 1
        self.gone(level.message)
        level.message = None
        level.size = 0
        level.expires_at = 0
        level.stored = 0
        self.prune(level)
        self._forget_stale()

    def placed(self, level: RetainedLevel, message: object, weight: int, cost: int) -> None:
        """`message` takes the place of what `level` has; cost: what its topic takes by itself."""
        self.gone(level.message)

    def gone(self, message: object | None) -> None:
        """A message is kept no more: deleted, expired, replaced."""

    def prune(self, level: RetainedLevel) -> None:
        """Take out `level`, and those above it, while nothing needs them."""
        depth = -1
        while level.stored == 0 and level.first is None and level.cursors == 0:
            above = level.parent
            if above is None:
                return
            if depth < 0:
                depth = level.depth()
            above.drop(level)
            self.held -= _LEVEL if above.first is None else _LEVEL + _BESIDE
            depth -= 1
            words = self.words[depth]
            word = words[level.word]
            word.levels -= 1
            if not word.levels:
                del words[word.text]
                self.held -= _WORD + len(word.text)
                if not words and depth + 1 == len(self.words):
                    self.words.pop()
            level = above

    def _forget_stale(self) -> None:
        """Make the heap anew when most of its entries no longer stand."""
        if len(self.deadlines) <= 2 * self.expiring + STALE:
            return
        self.deadlines = [entry for entry in self.deadlines if entry[2].stored == entry[1]]
        heapify(self.deadlines)


def topic_weight(topic: str) -> int:
    """A topic in the table; one of a single word is there as that word."""
    return _TOPIC + len(topic) if "/" in topic else _TOPIC


class RetainedCursor:
    """A place among the retained messages that match one topic filter.

    done: nothing is left. Close a cursor that is given up before, or the level it rests on stays.
    upto: the number of the last store that counts; what was kept later is passed over.
    """

    __slots__ = (
        "depth",
        "done",
        "exact",
        "filter",
        "first",
        "level",
        "now",
        "plain",
        "rest",
        "retainer",
        "upto",
        "visited",
        "words",
    )

    def __init__(
        self, retainer: Retainer, topic_filter: str, now: int, mounted: bool = False
    ) -> None:
        self.retainer: Retainer = retainer
        self.now: int = now
        self.upto: int = _ALL
        self.filter: str = topic_filter
        words = topic_filter.split("/")
        #: Everything below the words matches: the filter ended in "#".
        self.rest: bool = words[-1] == "#"
        if self.rest:
            words.pop()
        self.words: list[str] = words
        #: The filter, when it has no wildcards: a topic to look up.
        self.exact: str | None = None
        #: The level the cursor rests on, whose message was passed already, and its depth.
        self.level: RetainedLevel | None = None
        self.depth: int = 0
        self.done: bool = False
        #: The depth above the level where no wildcard matches `$`.
        self.first: int = literal(words) if mounted else 0
        #: Levels that the last `next` has visited.
        self.visited: int = 0
        if not self.rest and "+" not in words:
            self.exact = topic_filter
            self.done = topic_filter not in retainer.topics
        elif self._may_match():
            self._rest_on(retainer.root)
        else:
            self.done = True

    def next(self, n: int, now: int = 0) -> list[object]:
        """Return up to `n` more messages; `now` moves on the time by which messages expire.

        Fewer than `n`, even none, does not mean the end: a call visits a bounded number of
        levels. The end is `done`.
        """
        if now > self.now:
            self.now = now
        messages: list[object] = []
        if self.done or n <= 0:
            return messages
        if self.exact is not None:
            self.done = True
            kept = self.retainer.topics.get(self.exact)
            if kept is not None and kept.stored <= self.upto and not kept.is_expired(self.now):
                messages.append(kept.message)
            return messages
        start = self.level
        assert start is not None
        level: RetainedLevel | None = start
        wanted = len(self.words)
        most = STEPS + 8 * n
        steps = most
        while level is not None and steps > 0 and len(messages) < n:
            steps -= 1
            level = self._step(level)
            if (
                level is not None
                and level.stored
                and level.stored <= self.upto
                and (self.depth == wanted or (self.rest and self.depth > wanted))
                and not level.is_expired(self.now)
            ):
                message = level.message
                messages.append(message)
        self.visited = most - steps
        if level is not start:
            self._leave(start)
            if level is None:
                self.done = True
            else:
                self._rest_on(level)
        return messages

    def awaits(self, topic: str, level: RetainedLevel) -> bool:
        """Whether it is still to come to the message of `topic`, which is at this level."""
        if self.done or level.stored > self.upto or not self._covers(topic):
            return False
        # A topic that is looked up has no place where that rests.
        return self.level is None or comes_after(level, self.level)

    def _covers(self, topic: str) -> bool:
        """Whether the filter matches."""
        if not match(topic, self.filter):
            return False
        # Below a mountpoint, too, the first wildcard matches no `$`.
        first = self.first
        words = topic.split("/", first + 1)
        return not first or len(words) <= first or not words[first].startswith("$")

    def close(self) -> None:
        """Give the cursor up; nothing happens to one that is done."""
        self.done = True
        level = self.level
        if level is not None:
            self._leave(level)

    def _step(self, level: RetainedLevel) -> RetainedLevel | None:
        """Return the level after `level` that fits the filter so far, None after the last."""
        below = self._descend(level)
        if below is not None:
            self.depth += 1
            return below
        while self.depth > 0:
            if self.depth > len(self.words) or self.words[self.depth - 1] == "+":
                beside = level.next
                if self.depth == self.first + 1:
                    beside = after_dollar(beside)
                if beside is not None:
                    return beside
            above = level.parent
            if above is None:
                return None
            level = above
            self.depth -= 1
        return None

    def _descend(self, level: RetainedLevel) -> RetainedLevel | None:
        """Return the first level below that fits, None when there is none."""
        if self.depth < len(self.words):
            word = self.words[self.depth]
            if word != "+":
                return level.below(word)
        elif not self.rest:
            return None
        return after_dollar(level.first) if self.depth == self.first else level.first

    def _may_match(self) -> bool:
        """Say whether each literal word of the filter occurs in some topic at its depth."""
        depths = self.retainer.words
        if len(self.words) > len(depths):
            return False
        for depth, word in enumerate(self.words):
            if word != "+" and word not in depths[depth]:
                return False
        return True

    def _rest_on(self, level: RetainedLevel) -> None:
        self.level = level
        level.cursors += 1

    def _leave(self, level: RetainedLevel) -> None:
        self.level = None
        level.cursors -= 1
        self.retainer.prune(level)
