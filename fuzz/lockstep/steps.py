"""What a sequence is made of: packets that clients write, and what else happens to them.

A `Sequence` is played by a handful of clients, known by their numbers, each step by one of them (or
by nobody: time passes, the broker is killed). Names are those of one playing: `~` in a topic, and
the number that stands for a client identifier, get a prefix which no other playing has.

The `repr` of a step leaves out what has its default, and can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from tests.support import packets as mq

__all__ = [
    "Acknowledge",
    "Answer",
    "Automatic",
    "Close",
    "Connect",
    "Disconnect",
    "Kill",
    "Mutation",
    "Packet",
    "Pause",
    "Props",
    "Publish",
    "Raw",
    "Sequence",
    "Step",
    "Subscribe",
    "Unsubscribe",
    "WillMessage",
    "Write",
    "simpler",
]

Props = tuple[tuple[int, Any], ...]


class _Told:
    """A `repr` of what is not as it is by default."""

    def __repr__(self) -> str:
        told = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                shown = _shown(value) if field.name == "props" else repr(value)
                told.append(f"{field.name}={shown}")
        return f"{type(self).__name__}({', '.join(told)})"


def _shown(props: Props) -> str:
    pairs = [f"(mq.{_NAMES[identifier]}, {value!r})" for identifier, value in props]
    return f"({''.join(pair + ', ' for pair in pairs).rstrip(' ')})"


_NAMES = {
    value: name
    for name, value in vars(mq).items()
    if name.isupper() and isinstance(value, int) and value in mq.PROPERTIES
    # The properties stand behind the packet types, whose numbers they share.
}


# -- packets -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class WillMessage(_Told):
    """The will within a CONNECT."""

    topic: str
    payload: str = ""
    qos: int = 0
    retain: bool = False
    props: Props = ()


@dataclass(frozen=True, repr=False)
class Connect(_Told):
    """CONNECT, on a new connection; without a number the client identifier is empty."""

    version: int = mq.V5
    client_id: int | None = 0
    clean: bool = True
    props: Props = ()
    will: WillMessage | None = None
    #: What comes is acknowledged by steps (`Answer`), not at once.
    by_hand: bool = False


@dataclass(frozen=True, repr=False)
class Publish(_Told):
    """PUBLISH; at QoS 2 with its PUBREL when PUBREC is there, unless it is not to be released."""

    topic: str
    payload: str = ""
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False
    release: bool = True
    props: Props = ()


@dataclass(frozen=True, repr=False)
class Subscribe(_Told):
    """SUBSCRIBE of (filter, options byte) pairs; 3.1.1 has the QoS of the options alone."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]
    props: Props = ()


@dataclass(frozen=True, repr=False)
class Unsubscribe(_Told):
    """UNSUBSCRIBE."""

    packet_id: int
    filters: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Disconnect(_Told):
    """DISCONNECT; reason and properties are those of 5.0."""

    reason: int = 0
    props: Props = ()


@dataclass(frozen=True, repr=False)
class Acknowledge(_Told):
    """PUBACK, PUBREC, PUBREL or PUBCOMP of a packet id as it stands, whatever was sent."""

    type: int
    packet_id: int
    reason: int = 0


@dataclass(frozen=True, repr=False)
class Raw(_Told):
    """Bytes that are no packet, or a wrong one; always as many as the remaining length says."""

    hex: str


Packet = Connect | Publish | Subscribe | Unsubscribe | Disconnect | Acknowledge | Raw


# -- steps -------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Mutation(_Told):
    """A change behind the fixed header: one byte set, one bit turned, cut off, one appended; or a
    flag of the first byte. The remaining length is right."""

    kind: str
    at: int
    value: int

    def of(self, data: bytes) -> bytes:
        """A packet, changed."""
        start = next(i for i in range(1, 5) if data[i] < 0x80) + 1
        first, body = data[0], bytearray(data[start:])
        at = self.at % len(body) if body else 0
        if self.kind == "flag":
            first ^= 1 << self.value % 4
        elif self.kind == "tail":
            body.append(self.value)
        elif self.kind == "cut":
            del body[at:]
        elif body:
            body[at] = self.value if self.kind == "set" else body[at] ^ 1 << self.value % 8
        return mq.fixed(first, bytes(body))


@dataclass(frozen=True, repr=False)
class Write(_Told):
    """Packets in one write, or cut at these places (modulo the length), all others heard between.

    A first packet CONNECT opens a connection. A mutation is of the first packet.
    """

    client: int
    packets: tuple[Packet, ...]
    cuts: tuple[int, ...] = ()
    mutation: Mutation | None = None


@dataclass(frozen=True, repr=False)
class Close(_Told):
    """The connection ends without DISCONNECT."""

    client: int


@dataclass(frozen=True, repr=False)
class Answer(_Told):
    """One of the messages that wait for it is acknowledged: PUBACK, PUBREC or PUBCOMP, as is due,
    or (`type`) as is not; with a reason code in 5.0."""

    client: int
    which: int = 0
    type: int = 0
    reason: int = 0


@dataclass(frozen=True, repr=False)
class Automatic(_Told):
    """From now on the client acknowledges at once, or by `Answer`."""

    client: int
    on: bool = True


@dataclass(frozen=True, repr=False)
class Pause(_Told):
    """Time passes."""

    seconds: float


@dataclass(frozen=True, repr=False)
class Kill(_Told):
    """The broker is killed (SIGKILL) and started again, at most once in a sequence."""


Step = Write | Close | Answer | Automatic | Pause | Kill


@dataclass(frozen=True)
class Sequence:
    """Steps of so many clients, numbered from 0."""

    clients: int
    steps: tuple[Step, ...]

    def simpler(self, at: int) -> Iterator[Sequence]:
        """Sequences with less in the step at this place."""
        for step in simpler(self.steps[at]):
            yield Sequence(self.clients, (*self.steps[:at], step, *self.steps[at + 1 :]))


def without_some(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Without a half of them, a quarter, and so on down to one; never without all of many."""
    size = max(1, len(items) // 2)
    while size:
        for begin in range(0, len(items), size):
            yield items[:begin] + items[begin + size :]
        size //= 2


#: Fields that may be as by default without another meaning of the rest.
OPTIONAL = ("reason", "type", "dup", "retain", "by_hand")


def simpler(part: Any) -> Iterator[Any]:
    """A step, a packet or a will with less: a field as by default, some or one of many left out, or
    the same of a part of it."""
    for field in fields(part):
        value = getattr(part, field.name)
        if value == field.default:
            continue
        less: list[Any] = []
        if isinstance(value, tuple):
            if len(value) > 1 or field.default == ():
                less += list(without_some(value))
            for i, item in enumerate(value):
                if isinstance(item, _Told):
                    less += [(*value[:i], one, *value[i + 1 :]) for one in simpler(item)]
        elif isinstance(value, _Told):
            less += [None, *simpler(value)]
        elif field.default is not MISSING and field.name in OPTIONAL:
            less.append(field.default)
        for one in less:
            yield type(part)(
                **{f.name: getattr(part, f.name) for f in fields(part)} | {field.name: one}
            )
