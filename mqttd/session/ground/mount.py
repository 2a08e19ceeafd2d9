"""A mountpoint: the part of the topic tree that the clients of one listener live in.

    client        "lamp/on"      "#"         "$share/g/+/on"            "lamp/on"
                      |           |                |                        ^
                      v  enter    v  enter_filter  v                        |  leave
    broker    "dev/7/lamp/on"  "dev/7/#"  "$share/g/dev/7/+/on"    "dev/7/lamp/on"

`dev/%c/` is such a mountpoint; `%c` is the client id and `%u` the user name. The whole broker, its
rules, hooks and stores see the full names. Only the connection takes the prefix off again, so a
message is still made once per shape, whoever gets it.

Promise: a client reaches nothing outside. A value never widens its place: one with `/`, `+`, `#` or
NUL in it, or none, is refused with its CONNECT, and a level takes one value at most. Nor does one
give the prefix another meaning: `$share` or `$delayed` as its first level. What does not begin with
the prefix is not handed to the client. Listeners without a mountpoint pay nothing.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec.frame import body_at, topic_end_at
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import TopicNameInvalid
from mqttd.codec.serializer import serialize, varint
from mqttd.codec.topic import split_shared

__all__ = ["Mount", "mountpoint"]

_LONGEST: Final = 65535
#: What a placeholder stands for.
_WHAT: Final = {"c": "client id", "u": "user name"}


class Mount:
    """The prefix of one connection, which ends with a slash."""

    __slots__ = ("prefix", "raw")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.raw: bytes = prefix.encode()

    def enter(self, topic: str) -> str:
        """The full name of a client's topic name. Raises TopicNameInvalid if it gets too long."""
        full = self.prefix + topic
        if len(full.encode()) > _LONGEST:
            raise TopicNameInvalid(
                f"a topic name of more than {_LONGEST} bytes with its mountpoint"
            )
        return full

    def enter_filter(self, topic_filter: str) -> str:
        """The full filter; in a shared one the prefix goes behind the group's name."""
        _, own = split_shared(topic_filter)
        return topic_filter[: len(topic_filter) - len(own)] + self.prefix + own

    def enter_properties(self, properties: Properties | None) -> bool:
        """Give a Response Topic its full name; says whether there was one."""
        if properties is None:
            return False
        topic = properties.get(prop.RESPONSE_TOPIC)
        if not isinstance(topic, str):
            return False
        properties[prop.RESPONSE_TOPIC] = self.enter(topic)
        return True

    def leave(self, wire: bytes, v5: bool) -> bytes:
        """An outgoing PUBLISH without the prefix; empty for a topic that lies outside."""
        at = body_at(wire)
        raw = self.raw
        if not wire.startswith(raw, at + 2):
            return b""
        size = (wire[at] << 8 | wire[at + 1]) - len(raw)
        if size <= 0:
            return b""  # the prefix runs on into what is behind the name, or nothing is left
        rest = wire[at + 2 + len(raw) :]
        if v5 and self._responds(wire, at):
            packet = parse_packet(wire[0], wire[at:], 5)
            assert isinstance(packet, Publish)
            self._leave_properties(packet.properties)
            packet.topic = packet.topic[len(self.prefix) :]
            return serialize(packet, 5)
        length = 2 + len(rest)
        return wire[:1] + varint(length) + size.to_bytes(2, "big") + rest

    def _responds(self, wire: bytes, at: int) -> bool:
        """Whether the properties of a 5.0 PUBLISH can hold a Response Topic under the prefix."""
        at = topic_end_at(wire, at)
        if wire[0] & 6:
            at += 2
        return wire[at] != 0 and self.raw in wire[at:]

    def _leave_properties(self, properties: Properties | None) -> None:
        if properties is None:
            return
        topic = properties.get(prop.RESPONSE_TOPIC)
        if isinstance(topic, str) and topic.startswith(self.prefix):
            properties[prop.RESPONSE_TOPIC] = topic[len(self.prefix) :]


def mountpoint(template: str, client_id: str, username: str | None) -> str:
    """The prefix that `template` gives this client. Raises ValueError for an unusable value.

    >>> mountpoint("dev/%c/", "7", None)
    'dev/7/'
    """
    prefix = ""
    at = 0
    while True:
        found = template.find("%", at)
        if found < 0:
            return prefix + template[at:]
        named = template[found + 1 : found + 2]
        prefix += template[at:found]
        value = _value(named, client_id, username)
        if not prefix and value.startswith("$"):
            raise ValueError(f"the mountpoint takes no {_WHAT[named]} that begins with '$'")
        prefix += value
        at = found + 2


def _value(named: str, client_id: str, username: str | None) -> str:
    what = _WHAT[named]
    value = client_id if named == "c" else username
    if not value:
        raise ValueError(f"the mountpoint needs a {what}")
    for character in "/+#\0":
        if character in value:
            raise ValueError(f"the mountpoint takes no {what} with {character!r} in it")
    return value
