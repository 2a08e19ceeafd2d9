"""What a client sees in a step, in a form in which brokers that keep the standard are equal.

replies     CONNACK, acknowledgements, SUBACK, UNSUBACK: in order, each kind for itself (4.6)
messages    by topic and QoS, and in order (4.6); copies of one message in any order
releases    PUBREL, by the payload: packet ids of a broker are its own
faults      what no broker may do (`Client`)
end         how the connection ended, with the reason code
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any

from tests.support import packets as mq
from tests.support.packets import Packet

__all__ = ["Seen", "SeenMessage", "differing"]

#: Seconds; a Message Expiry Interval above is one that ends after a sequence, here somewhat less.
LONG = 500


@dataclass(frozen=True)
class SeenMessage:
    """A PUBLISH, but for topic, QoS and packet id."""

    payload: str
    retain: bool
    dup: bool
    #: User Properties in their order, Subscription Identifiers and all others sorted.
    user: tuple[Any, ...]
    identifiers: tuple[int, ...]
    props: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, packet: Packet) -> SeenMessage:
        """What there is to compare of a PUBLISH."""
        props = []
        for identifier, value in packet.props:
            if identifier == mq.MESSAGE_EXPIRY:
                value = "long" if value > LONG else "short"
            if identifier not in (mq.USER_PROPERTY, mq.SUBSCRIPTION_ID, mq.TOPIC_ALIAS):
                props.append((NAMES[identifier], value))
        return cls(
            shortened(packet.payload),
            packet.retain,
            packet.dup,
            tuple(packet.all(mq.USER_PROPERTY)),
            tuple(sorted(packet.all(mq.SUBSCRIPTION_ID))),
            tuple(sorted(props)),
        )

    def __repr__(self) -> str:
        flags = f"{' retained' * self.retain}{' dup' * self.dup}"
        more = [f"{name}={value!r}" for name, value in self.props]
        more += [f"{name!r}:{value!r}" for name, value in self.user]
        more += [f"#{identifier}" for identifier in self.identifiers]
        return f"<{self.payload!r}{flags}{''.join(' ' + one for one in more)}>"


NAMES = {
    value: name.lower()
    for name, value in vars(mq).items()
    if name.isupper() and isinstance(value, int) and value in mq.PROPERTIES
}


@dataclass
class Seen:
    """What a client has seen."""

    replies: dict[str, list[str]] = field(default_factory=dict)
    messages: dict[str, list[SeenMessage]] = field(default_factory=dict)
    releases: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    end: str = ""

    def packets(self) -> int:
        """How many packets that is."""
        replies = sum(len(there) for there in self.replies.values())
        messages = sum(len(there) for there in self.messages.values())
        return replies + messages + len(self.releases)

    def reply(self, packet: Packet, *more: Any) -> None:
        """A packet that answers one of the client's."""
        told = " ".join([f"{packet.packet_id or ''}", *(str(one) for one in more)]).strip()
        self.replies.setdefault(packet.name, []).append(told)

    def comparable(self) -> Seen:
        """With what comes in any order sorted."""
        messages = {
            lane: [
                message
                for _, copies in groupby(there, lambda message: message.payload)
                for message in sorted(copies, key=repr)
            ]
            for lane, there in sorted(self.messages.items())
        }
        replies = dict(sorted(self.replies.items()))
        return Seen(replies, messages, sorted(self.releases), self.faults, self.end)

    def __repr__(self) -> str:
        told = [f"{f.name} {value!r}" for f in fields(self) if (value := getattr(self, f.name))]
        return ", ".join(told) or "nothing"


def shortened(payload: bytes) -> str:
    """Enough to know a payload by."""
    text = payload.decode("latin-1")
    return text if len(text) < 12 else f"{text[:8]}... ({len(text)})"


def differing(one: Seen, other: Seen) -> str:
    """In what they differ, in a word or two that stay when a sequence gets shorter."""
    if one.faults or other.faults:
        return "fault: " + " ".join((one.faults + other.faults)[0].split()[:3])
    if one.end != other.end:
        return f"end: {one.end or 'none'} / {other.end or 'none'}"
    for name in ("replies", "messages", "releases"):
        mine, its = getattr(one, name), getattr(other, name)
        if mine != its:
            fewer = one.packets() - other.packets()
            return f"{name}{' missing' if fewer < 0 else ' too many' if fewer > 0 else ''}"
    return ""
