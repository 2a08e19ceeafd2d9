"""What a rule of acl.conf says, as values: who, what, which topics.

`mqttd.access.acl.conf` makes them of text, `mqttd.access.acl.rules` decides by them.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TypeAlias

from mqttd.access.acl.linear_re import LinearRe

__all__ = [
    "All",
    "And",
    "Client",
    "IpAddr",
    "Match",
    "Network",
    "Or",
    "Rule",
    "Topic",
    "User",
    "Who",
]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(slots=True, frozen=True)
class All:
    """Everybody."""


@dataclass(slots=True, frozen=True)
class User:
    """The client with this user name."""

    name: str


@dataclass(slots=True, frozen=True)
class Client:
    """The client with this client identifier."""

    client_id: str


@dataclass(slots=True, frozen=True)
class Match:
    """Clients whose user name (or, with `client`, client identifier) the expression matches."""

    regex: LinearRe
    client: bool = False


@dataclass(slots=True, frozen=True)
class IpAddr:
    """Clients whose address is in one of these networks."""

    networks: tuple[Network, ...]


@dataclass(slots=True, frozen=True)
class And:
    """Clients that all of these are true of."""

    parts: tuple[Who, ...]


@dataclass(slots=True, frozen=True)
class Or:
    """Clients that one of these is true of."""

    parts: tuple[Who, ...]


Who: TypeAlias = All | User | Client | Match | IpAddr | And | Or


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic filter of a rule, or with ``eq`` a text to be compared as it is.

    In ``text`` the placeholders read ``%u``, ``%c``, ``${cn}`` and ``${client_attrs.NAME}``,
    however they were written.
    """

    text: str
    eq: bool = False


@dataclass(slots=True, frozen=True)
class Rule:
    """One rule; ``topics`` None stands for all topics, ``qos`` and ``retain`` None for any."""

    allow: bool
    who: Who
    kinds: frozenset[str]
    topics: tuple[Topic, ...] | None
    source: str
    line: int
    text: str
    qos: frozenset[int] | None = None
    retain: bool | None = None

    def __str__(self) -> str:
        return f"{self.source}:{self.line} {self.text}"
