"""Where the messages of one topic go, and what one connection may send there.

A `Route` is the flattened result of one trie walk: the sessions whose filters match a topic name,
with their subscription options. A `Grant` adds one connection's right to publish to it and the
parts of the PUBLISH that repeat, so that validation, access control and routing of a message cost
one dict look-up together.

    channel.grants: bytes of topic (+ properties) -> Grant -> Route -> sessions

Both are caches: a Route turns invalid when a subscription that can match its topic changes, a Grant
when the node's `epoch` moves (access rules, bans, roles). Rebuilding is lazy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.codec.properties import Properties

if TYPE_CHECKING:
    from mqttd.session.session import Session

__all__ = [
    "NO_LOCAL",
    "OWN",
    "OWN_SHIFT",
    "QOS_MASK",
    "RETAIN_AS_PUBLISHED",
    "Grant",
    "Route",
    "Target",
    "merge_options",
    "options_of",
]

#: Subscription options packed into one number: QoS in the low bits.
QOS_MASK: Final = 3
NO_LOCAL: Final = 4
RETAIN_AS_PUBLISHED: Final = 8
#: Overlapping subscriptions with and without No Local: the client's own messages have options of
#: their own, `OWN_SHIFT` bits up.
OWN: Final = 16
OWN_SHIFT: Final = 8


def options_of(qos: int, no_local: bool, retain_as_published: bool) -> int:
    """Pack the subscription options that matter for delivery."""
    return qos | (NO_LOCAL if no_local else 0) | (RETAIN_AS_PUBLISHED if retain_as_published else 0)


def merge_options(known: int, options: int) -> int:
    """The options of two overlapping subscriptions of one client: it gets one copy.

    Highest QoS, Retain As Published if any says so; its own messages count only the
    subscriptions without No Local (MQTT-3.3.4-2, 3.8.3-3).
    """
    merged = _highest(known & 11, options & 11)
    if known & NO_LOCAL and options & NO_LOCAL:
        return merged | NO_LOCAL
    own = -1
    if not known & NO_LOCAL:
        own = known >> OWN_SHIFT if known & OWN else known & 11
    if not options & NO_LOCAL:
        own = options & 11 if own < 0 else _highest(own, options & 11)
    return merged if own == merged else merged | OWN | own << OWN_SHIFT


def _highest(a: int, b: int) -> int:
    qos = a & QOS_MASK if a & QOS_MASK > b & QOS_MASK else b & QOS_MASK
    return qos | ((a | b) & RETAIN_AS_PUBLISHED)


class Target:
    """Something that chooses one session per message: a shared subscription group."""

    __slots__ = ()

    def choose(self, source: str, topic: str) -> Session | None:
        """The member that gets this message of publisher `source`, None when there is none."""
        raise NotImplementedError

    def options(self, session: Session) -> int:
        """The subscription options of a member."""
        raise NotImplementedError

    def identifiers(self, session: Session) -> list[int] | None:
        """The Subscription Identifier of a member's subscription, None without one."""
        raise NotImplementedError


class Route:
    """The receivers of one topic name on this node, and the other nodes that want it."""

    __slots__ = ("groups", "identifiers", "nodes", "options", "plain", "sessions", "topic", "valid")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        #: False until built, and again after a subscription changed that can match.
        self.valid: bool = False
        #: Only QoS matters: no No Local, Retain As Published, identifiers, groups, other nodes.
        self.plain: bool = True
        self.sessions: list[Session] = []
        #: Packed options, in the order of `sessions`.
        self.options: list[int] = []
        #: Subscription identifiers by session, None when nobody uses them.
        self.identifiers: dict[Session, list[int]] | None = None
        self.groups: list[Target] | None = None
        self.nodes: list[str] | None = None

    def empty(self) -> bool:
        """Nobody on any node wants this topic."""
        return not self.sessions and self.groups is None and self.nodes is None


class Grant:
    """One connection's right to publish to one topic with one block of properties.

    `fast` says that the received bytes can be forwarded as they are to receivers of the same
    protocol version; `head` and `block` serve those of the other one.
    """

    __slots__ = (
        "allowed",
        "block",
        "epoch",
        "fast",
        "head",
        "properties",
        "rewrite",
        "route",
        "topic",
    )

    def __init__(self, route: Route, topic: str, allowed: bool, epoch: int) -> None:
        self.route = route
        self.topic = topic
        self.allowed = allowed
        self.epoch = epoch
        #: The message needs no `Message` object of its own to be forwarded.
        self.fast: bool = False
        #: The bytes must be rebuilt even for the same version (a topic alias was used).
        self.rewrite: bool = False
        #: Topic name with its two-byte length, as on the wire.
        self.head: bytes = b""
        #: Property block for 5.0 receivers, with its length.
        self.block: bytes = b"\x00"
        self.properties: Properties | None = None
