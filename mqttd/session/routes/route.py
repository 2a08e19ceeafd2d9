"""Where the messages of one topic go, what they need on the way, and who may send them.

A `Route` is the flattened result of one trie walk: the receivers whose filters match a topic name,
with their subscription options, and the *gear* that follows from them:

    0          the bytes go as they came, to sessions alone
    SPREAD     shapes differ: identifiers, No Local, Retain As Published, shared groups
    NAMED      identifiers alone set them apart; beside SPREAD
    NOTED      somebody keeps the bytes: a journal, a log, another node
    HOOKED     message.publish is asked about this topic
    TOLD       hooks hear of its deliveries, so those remember the message they are of
    RECORDED   somebody keeps its deliveries: those know which message they are of, without one
    UNHEARD    hooks hear of a message that reaches nobody, which may be
    MISSED     somebody keeps that one has reached nobody, which may be: it is known by its run
    HELD       acknowledgements wait until somebody has kept a promise
    STUCK      what would have to be kept, here or elsewhere, cannot be: it is refused
    FOLLOWED   its messages are followed from hand to hand, for `why`
    WIDE       it leads to more receivers than one step is for: a message goes out in slices

A gear is a property of a topic, not of the node: one group or one hook with a topic filter costs
its own messages. The Route also remembers the last class of clients that may publish here; those
that no rule tells apart share that answer. Routes live in `Topics` and are rebuilt in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.codec.serializer import varint
from mqttd.session.routes.receiver import Awaiting, Receiver

if TYPE_CHECKING:
    from mypy_extensions import i16, i32

__all__ = [
    "FOLLOWED",
    "HEARD",
    "HELD",
    "HOOKED",
    "IDENTIFIED",
    "KEPT",
    "LIGHT0",
    "LIGHT1",
    "MOUNTED",
    "MISSED",
    "NAMED",
    "NOTED",
    "NO_LOCAL",
    "OPTIONS",
    "OWED",
    "OWN",
    "OWN_SHIFT",
    "QOS_MASK",
    "RECORDED",
    "RETAIN_AS_PUBLISHED",
    "SMALL",
    "SPREAD",
    "STEP",
    "STUCK",
    "TOLD",
    "UNHEARD",
    "WIDE",
    "Beyond",
    "Route",
    "Target",
    "merge_options",
    "options_of",
]

#: Subscription options packed into one number: QoS in the low bits.
QOS_MASK: Final = 3
NO_LOCAL: Final = 4
RETAIN_AS_PUBLISHED: Final = 8
#: Those that a client has asked for: what is stored of a subscription.
OPTIONS: Final = QOS_MASK | NO_LOCAL | RETAIN_AS_PUBLISHED
#: Overlapping subscriptions with and without No Local: the client's own messages have options of
#: their own, `OWN_SHIFT` bits up.
OWN: Final = 16
#: Of a subscription where it is kept: retained messages that it was to get are still to be sent.
OWED: Final = 32
OWN_SHIFT: Final = 8
#: A member of a shared group has given its subscription an identifier.
IDENTIFIED: Final = 32
#: Bytes that go on as they came are less than a unit of work for each receiver: 1/32 at QoS 0, 1/8
#: above. A thousand receivers then have 80 messages a turn, and 80 messages a write.
LIGHT0: Final = 5
LIGHT1: Final = 3
#: The first wildcard of the filter, where its client's mountpoint ends, matches no word that begins
#: with `$`. The options of a route do not have it.
MOUNTED: Final = 64

SPREAD: Final = 1
NOTED: Final = 2
HOOKED: Final = 4
TOLD: Final = 8
HELD: Final = 16
UNHEARD: Final = 32
STUCK: Final = 64
WIDE: Final = 128
FOLLOWED: Final = 256
RECORDED: Final = 512
MISSED: Final = 1024
NAMED: Final = 2048
#: It is kept by those who do not ask its route for its topic.
KEPT: Final = HELD | MISSED | NOTED | RECORDED
#: Somebody hears of its deliveries, one way or the other.
HEARD: Final = TOLD | RECORDED

#: Receivers of a step, a shared group counting for two: with what is written to them, 10 to 40
#: milliseconds.
STEP: Final = 8192
#: Smaller messages go to as many receivers as there are in a step, each in a shape of its own;
#: others are put into so many bytes of shapes, and so many bytes of output.
SMALL: Final = 2048
_SHAPES: Final = 16 << 20
_OUTPUT: Final = 8 << 20
#: Bytes of output that packets which are handed on together may make.
_TOGETHER: Final = 32 << 20
#: Bytes that the identifiers for a receiver take, and each of them: number, place, property.
_NAMED: Final = 180
_NUMBER: Final = 48

#: Shared by the routes that lead nowhere.
_NOBODY: Final[list[Receiver]] = []
_NOTHING: Final[list[int]] = []


def options_of(qos: int, no_local: bool, retain_as_published: bool) -> int:
    """Pack the subscription options that matter for delivery."""
    return qos | (NO_LOCAL if no_local else 0) | (RETAIN_AS_PUBLISHED if retain_as_published else 0)


def merge_options(known: int, options: int) -> int:
    """The options of two overlapping subscriptions of one client: it gets one copy.

    Highest QoS, Retain As Published if any says so; its own messages count only the
    subscriptions without No Local (MQTT-3.3.4-2, 3.8.3-3), and carry only their identifiers.
    """
    merged = _highest(known & 11, options & 11)
    if known & NO_LOCAL and options & NO_LOCAL:
        return merged | NO_LOCAL
    own = -1
    if not known & NO_LOCAL:
        own = known >> OWN_SHIFT if known & OWN else known & 11
    if not options & NO_LOCAL:
        own = options & 11 if own < 0 else _highest(own, options & 11)
    if own == merged and not (known | options) & (NO_LOCAL | OWN):
        return merged
    return merged | OWN | own << OWN_SHIFT


def _highest(a: int, b: int) -> int:
    qos = a & QOS_MASK if a & QOS_MASK > b & QOS_MASK else b & QOS_MASK
    return qos | ((a | b) & RETAIN_AS_PUBLISHED)


class Target(Awaiting):
    """Something that chooses one receiver per message: a shared subscription group."""

    __slots__ = ()

    def choose(self, source: str, topic: str) -> Receiver | None:
        """The member that gets this message of publisher `source`, None when there is none."""
        raise NotImplementedError

    def options(self, member: Receiver) -> int:
        """The subscription options of a member, with `IDENTIFIED` where it has an identifier."""
        raise NotImplementedError

    def identifiers(self, member: Receiver) -> list[int] | None:
        """The Subscription Identifier of a member's subscription, None without one."""
        raise NotImplementedError


class Route:
    """The receivers of one topic name on this node, and the other nodes that want it.

    `key` is the topic as on the wire, with its two bytes of length; `name` without them, once
    somebody has kept messages of it (`Topics.name_of`).
    """

    __slots__ = (
        "blocks",
        "classes",
        "epoch",
        "gear",
        "groups",
        "heft",
        "identifiers",
        "key",
        "kinds",
        "level",
        "lone",
        "mark1",
        "mark2",
        "mark3",
        "mark4",
        "mark5",
        "mark6",
        "name",
        "options",
        "own_blocks",
        "owns",
        "place",
        "right",
        "seen",
        "seq",
        "sessions",
        "topic",
        "weight",
    )

    def __init__(self, topic: str, key: bytes = b"") -> None:
        # What each message reads comes first: together in one line of the processor's cache.
        #: The change of subscriptions this is good for; -1: build it.
        self.seq: int = -1
        #: The class of clients that may publish here, as of `epoch`; -2: not known of any.
        self.right: int = -2
        self.epoch: int = -1
        self.gear: int = 0
        self.sessions: list[Receiver] = _NOBODY
        #: Packed options, in the order of `sessions`.
        self.options: list[int] = _NOTHING
        #: Used since the clock hand came by.
        self.seen: bool = True
        #: The marks of its topic (`mqttd.session.routes.changes`), -1 until they are needed.
        self.mark1: i16 = -1
        self.mark2: i16 = -1
        self.mark3: i16 = -1
        self.mark4: i16 = -1
        self.mark5: i16 = -1
        self.mark6: i16 = -1
        #: Where the ring of `Topics` holds it, and the bytes it is counted with.
        self.place: i32 = -1
        self.weight: i32 = 0
        self.topic = topic
        self.key = key
        self.name: bytes = b""
        #: More classes and whether they may, where there are some.
        self.classes: dict[int, bool] | None = None
        #: Subscription identifiers by session, None when nobody uses them; then also `kinds`, by
        #: session a number, and by that number the properties that say so.
        self.identifiers: dict[Receiver, list[int]] | None = None
        self.kinds: list[int] | None = None
        #: Identifiers that a session's own messages carry, where No Local makes them fewer.
        self.owns: dict[Receiver, list[int]] | None = None
        self.own_blocks: dict[Receiver, bytes] | None = None
        self.blocks: list[bytes] | None = None
        #: Bytes that identifiers take, those shared with other routes among them.
        self.heft: int = 0
        self.groups: list[Target] | None = None
        #: The shared group that is the only one to get these messages.
        self.lone: Target | None = None
        #: Where the broker keeps the topic's last message, once it was asked to.
        self.level: object | None = None

    def rename(self, topic: str, key: bytes) -> None:
        """Be the route of another topic, to be built."""
        self.topic = topic
        self.key = key
        self.name = b""
        self.right = -2
        self.epoch = -1
        self.classes = None
        self.mark1 = -1
        self.mark2 = -1
        self.mark3 = -1
        self.mark4 = -1
        self.mark5 = -1
        self.mark6 = -1
        self.level = None
        self.clear()

    def is_kept(self) -> bool:
        """Whether a receiver has a journal, or a member of a group may have."""
        for receiver in self.sessions:
            if receiver.owner:
                return True
        return self.groups is not None

    def clear(self) -> None:
        """Forget the receivers: they are about to be collected anew."""
        self.gear = 0
        self.sessions = _NOBODY
        self.options = _NOTHING
        self.identifiers = None
        self.owns = None
        self.own_blocks = None
        self.kinds = None
        self.blocks = None
        self.heft = 0
        self.groups = None
        self.lone = None

    def is_wide(self, size: int) -> bool:
        """Whether a message of so many bytes is more than one step is for."""
        if self.gear & WIDE:
            return True
        if size <= SMALL:
            return False
        if len(self.sessions) * size > _OUTPUT:
            return True
        shapes = 0 if self.blocks is None else len(self.blocks)
        if self.groups is not None:
            shapes += len(self.groups)
        return shapes * size > _SHAPES

    def share(self, other: Route) -> None:
        """As another route, which is settled; lists are made anew when they change."""
        self.gear = other.gear
        self.sessions = other.sessions
        self.options = other.options
        if other.gear & SPREAD:
            self.identifiers = other.identifiers
            self.kinds = other.kinds
            self.owns = other.owns
            self.own_blocks = other.own_blocks
            self.blocks = other.blocks
            self.heft = other.heft
            self.groups = other.groups
            self.lone = other.lone

    def room(self) -> int:
        """How many bytes of packets may be handed on together."""
        if not self.sessions:
            return _TOGETHER
        room = _TOGETHER // len(self.sessions)
        if self.blocks is not None:
            room = min(room, _SHAPES // len(self.blocks))
        return room

    def cut(self, pos: int, stop: int, size: int) -> int:
        """Where a run of packets of `size` bytes, from `pos` to `stop`, is handed on up to."""
        room = self.room()
        return stop if stop - pos <= room else pos + max(room // size, 1) * size

    def snapshot(self) -> Route:
        """The receivers as they are now; lists are made anew when they change."""
        made = Route(self.topic, self.key)
        made.share(self)
        return made

    def empty(self) -> bool:
        """Nobody wants this topic."""
        return not self.sessions and self.groups is None

    def settle(self) -> None:
        """The receivers are collected: see what sets their shapes apart."""
        groups = self.groups
        if groups is not None and len(groups) == 1 and not self.sessions:
            self.lone = groups[0]
        identifiers = self.identifiers
        if identifiers is not None:
            blocks = [b""]
            numbers = {b"": 0}
            kinds: list[int] = []
            bare = True
            for session in self.sessions:
                bare = bare and session.bare
                named = identifiers.get(session)
                block = identifier_block(named)
                number = numbers.get(block, -1)
                if number < 0:
                    number = len(blocks)
                    blocks.append(block)
                    numbers[block] = number
                kinds.append(number)
            self.kinds = kinds
            self.blocks = blocks
            owns = self.owns
            if owns is not None:
                self.own_blocks = {each: identifier_block(owns[each]) for each in owns}
                self.heft = _heft(owns)
            self.heft += _heft(identifiers)
            if bare and groups is None and not self._chooses():
                self.gear |= NAMED
        if self._differs():
            self.gear |= SPREAD
        if len(self.sessions) + (0 if groups is None else 2 * len(groups)) > STEP:
            self.gear |= WIDE

    def hear(self) -> None:
        """Its gear is whole: somebody hears of what reaches nobody where that may be."""
        if self.gear & (UNHEARD | MISSED) and self.sessions:
            if self.gear & NAMED or not self._differs():
                self.gear &= ~(UNHEARD | MISSED)

    def _differs(self) -> bool:
        """Whether its receivers get different shapes of a message, or some may get none."""
        if self.groups is not None or self.identifiers is not None:
            return True
        for options in self.options:
            if options & ~QOS_MASK:
                return True
        return False

    def _chooses(self) -> bool:
        """Whether a receiver gets some messages and not others, by who publishes them."""
        for options in self.options:
            if options & (NO_LOCAL | OWN):
                return True
        return False


class Beyond(Route):
    """What stands for a route of a topic name that is well-formed and beyond the limits.

    No cache holds it, and nobody may publish there: `General` refuses the message by itself.
    """

    __slots__ = ("why",)

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(topic)
        #: The limit, for the log.
        self.why = why


def _heft(identifiers: dict[Receiver, list[int]]) -> int:
    """Bytes of the identifiers for some receivers, and of the properties that say so."""
    heft: int = 0
    for numbers in identifiers.values():
        heft += _NAMED + _NUMBER * len(numbers)
    return heft


def identifier_block(identifiers: list[int] | None) -> bytes:
    """Subscription identifiers as properties on the wire."""
    if identifiers is None:
        return b""
    return b"".join([b"\x0b" + varint(number) for number in identifiers])
