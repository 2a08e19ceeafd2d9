"""What everything that is kept for a client weighs, in bytes, and who holds how much of it.

    subscriptions, queue, will, QoS 2 ids, replays --> session --> user --+
    in flight, unfinished packets, topic aliases, connections ------------+--> node
    retained messages, topic cache, unsent output (they count themselves) +

Everything is weighed as though nobody else had it: a message that waits in a hundred queues counts
in each, a level of a filter in each filter. So a sum says at most what is held; what a process
really takes is compared with it where that matters (`mqttd.broker.memory.memory`).

Promise: a weight is that of the objects in CPython within a factor of 1.5 for what is not shared,
and does not change while a thing is held: what was charged is what is given back. Charging is an
addition; a message that goes out at once costs one, and one when it is acknowledged.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.properties import Properties
from mqttd.codec.topic import is_shared

__all__ = [
    "ALIAS",
    "AWAITING",
    "CONNECTION",
    "INFLIGHT",
    "KINDS",
    "QUEUED",
    "REPLAY",
    "ROW",
    "SESSION",
    "Account",
    "Purse",
    "filter_room",
    "filter_weight",
    "properties_weight",
    "text_weight",
]

#: A session without anything, and its place among the others.
SESSION: Final = 800
#: A connection without anything: its channel, its edge, what the engine keeps of it.
CONNECTION: Final = 1200
#: An entry of a queue beside its bytes: their object, a place in the list.
QUEUED: Final = 64
#: A record of a journal beside its bytes.
RECORD: Final = 16
#: A row of a journal beside its bytes: a session, a subscription, a will.
ROW: Final = 64
#: An entry in flight beside its bytes: their object, packet id, place in the window.
INFLIGHT: Final = 120
#: An incoming QoS 2 packet id.
AWAITING: Final = 80
#: A topic alias beside its topic.
ALIAS: Final = 170
#: Retained messages that a subscription is still to get: a place among them.
REPLAY: Final = 600

#: A subscription beside its filter: its places with the session and the router.
_SUBSCRIPTION: Final = 150
#: The group of a shared subscription, without the turns that it remembers.
_GROUP: Final = 900
#: A level of a filter with wildcards.
_LEVEL: Final = 96
#: A string of ASCII beside its characters, and what the allocator adds.
_TEXT: Final = 56
#: A dictionary with a few entries.
_DICT: Final = 240
#: What a filter weighs beside its characters, and each of them, if it is a level, at most.
_ROOM: Final = _SUBSCRIPTION + 100 + _GROUP + _LEVEL + _TEXT
_ROOM_EACH: Final = _LEVEL + _TEXT + 2
#: A pair of user property: a tuple of two strings, its place in the list.
_PAIR: Final = 64

#: The kinds of what is kept, as `mqttd-ctl memory` shows them.
KINDS: Final[tuple[str, ...]] = (
    "sessions",
    "subscriptions",
    "queued",
    "inflight",
    "awaiting_rel",
    "wills",
    "replays",
    "connections",
    "unfinished",
    "aliases",
    "retained",
    "topics",
    "output",
    "other",
)


class Purse:
    """What the sessions of one user hold together.

    What is in flight is counted while `Account.per_user` asks for it; `kept` is what of it all is
    in a journal, as far as somebody counts that.
    """

    __slots__ = ("bytes", "flying", "kept", "name", "sessions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes: int = 0
        self.flying: int = 0
        self.kept: int = 0
        self.sessions: int = 0


class Account:
    """What a node holds, by kind; and the users that hold it.

    `retained`, `topics`, `output` and `other` are copied here by who counts them.
    """

    def __init__(self, per_session: int = 0, per_user: int = 0) -> None:
        self.per_session = per_session
        self.per_user = per_user
        self.sessions: int = 0
        self.subscriptions: int = 0
        self.queued: int = 0
        self.inflight: int = 0
        self.awaiting_rel: int = 0
        self.wills: int = 0
        self.replays: int = 0
        self.connections: int = 0
        self.unfinished: int = 0
        self.aliases: int = 0
        self.retained: int = 0
        self.topics: int = 0
        self.output: int = 0
        self.other: int = 0
        #: Of connections and unfinished packets: what those hold who have not been let in.
        self.unauthenticated: int = 0
        #: What sessions, subscriptions and wills take in a journal.
        self.rows: int = 0
        self.purses: dict[str, Purse] = {}
        #: Those of clients without a user name; of them only what is kept is counted.
        self.nobody: Purse = Purse("")
        #: What of one user's may be in a journal, -1: no limit.
        self.most_kept: int = -1
        #: The node's budget is used up: no QoS 0 message is kept for later, ...
        self.tight: bool = False
        #: ... and no session, subscription or retained message is taken in.
        self.full: bool = False
        #: Somebody was refused for that.
        self.refused: bool = False

    def rations(self) -> bool:
        """Whether there is a limit for users, in memory or in a journal."""
        return self.per_user > 0 or self.most_kept >= 0

    def used(self) -> int:
        """What is held in all."""
        return (
            self.sessions
            + self.subscriptions
            + self.queued
            + self.inflight
            + self.awaiting_rel
            + self.wills
            + self.replays
            + self.connections
            + self.unfinished
            + self.aliases
            + self.retained
            + self.topics
            + self.output
            + self.other
        )

    def by_kind(self) -> dict[str, int]:
        """What is held, by kind."""
        return {
            "sessions": self.sessions,
            "subscriptions": self.subscriptions,
            "queued": self.queued,
            "inflight": self.inflight,
            "awaiting_rel": self.awaiting_rel,
            "wills": self.wills,
            "replays": self.replays,
            "connections": self.connections,
            "unfinished": self.unfinished,
            "aliases": self.aliases,
            "retained": self.retained,
            "topics": self.topics,
            "output": self.output,
            "other": self.other,
        }

    def may_begin(self, username: str | None, size: int) -> bool:
        """Whether one more session of this user, of so many bytes, may be in a journal."""
        if self.most_kept < 0:
            return True
        purse = self.nobody if username is None else self.purses.get(username)
        return (0 if purse is None else purse.kept) + size <= self.most_kept

    def purse(self, username: str | None) -> Purse | None:
        """Where the sessions of a user are counted; nobody's are not."""
        if username is None:
            return None
        purse = self.purses.get(username)
        if purse is None:
            purse = Purse(username)
            self.purses[username] = purse
        return purse

    def close(self, purse: Purse) -> None:
        """Forget a user of whom nothing is held."""
        if not purse.sessions and not purse.bytes and self.purses.get(purse.name) is purse:
            del self.purses[purse.name]


def text_weight(text: str) -> int:
    """A string."""
    return _TEXT + len(text)


def filter_room(full_filter: str) -> int:
    """What `filter_weight` never exceeds: where there is so much room it need not be asked."""
    return _ROOM + _ROOM_EACH * len(full_filter)


def filter_weight(full_filter: str, identifier: bool) -> int:
    """A subscription to this filter, in the tables of its session and of the router."""
    weight = _SUBSCRIPTION + len(full_filter)
    if identifier:
        weight += 100
    if is_shared(full_filter):
        weight += _GROUP
    if "+" not in full_filter and "#" not in full_filter:
        return weight
    levels = full_filter.count("/") + 1
    weight += _LEVEL * levels
    # A word of one character is a string that is there anyway.
    words = len(full_filter) - levels
    return weight + words + _TEXT * levels if words > levels else weight


def properties_weight(properties: Properties | None) -> int:
    """Properties as they are decoded."""
    if not properties:
        return 0
    weight = _DICT
    for value in properties.values():
        if isinstance(value, (str, bytes)):
            weight += _TEXT + len(value)
        elif isinstance(value, list):
            weight += _TEXT
            for one in value:
                weight += _PAIR
                if isinstance(one, tuple):
                    for text in one:
                        weight += _TEXT + len(text)
    return weight
