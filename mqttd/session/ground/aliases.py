"""Topic aliases of one connection, both directions (MQTT 5.0, 3.3.2.3.4).

Incoming aliases are the client's: set with a topic, then used instead of it. Outgoing ones are
ours, for a client that allows some: a topic gets the next free number with its first PUBLISH and
goes as that number alone from then on. Both are forgotten with the connection.

Promise: at most as many entries as each side allowed, and together no more than one session may
hold; an alias is only taken for a packet that is going to be sent, so the two sides never disagree.
"""

from __future__ import annotations

from mqttd.codec.frame import ONE_BYTE, body_at, topic_end_at
from mqttd.codec.properties import TOPIC_ALIAS, decode_varint
from mqttd.codec.reasons import ProtocolViolation, QuotaExceeded, TopicAliasInvalid
from mqttd.codec.serializer import varint
from mqttd.session.ground.account import ALIAS, Account

__all__ = ["Aliases"]


class Aliases:
    """The aliases of one connection; `outgoing_maximum` is the client's Topic Alias Maximum.

    account: what they weigh is charged to it.
    """

    __slots__ = ("account", "bytes", "incoming", "outgoing", "outgoing_maximum")

    def __init__(self, outgoing_maximum: int, account: Account | None = None) -> None:
        self.account = Account() if account is None else account
        #: Topics as on the wire, with their two bytes of length.
        self.incoming: dict[int, bytes] = {}
        self.outgoing: dict[bytes, int] = {}
        self.outgoing_maximum = outgoing_maximum
        #: What the aliases of both directions weigh.
        self.bytes: int = 0

    def resolve(self, alias: int, topic: bytes, maximum: int) -> bytes:
        """Set (with a topic) or look up (with an empty one) an incoming alias; gives the topic.

        Topics are as on the wire, with their two bytes of length.

        Raises TopicAliasInvalid out of 1 to `maximum`, ProtocolViolation for one never set,
        QuotaExceeded where they take more than a session may hold.
        """
        if alias == 0 or alias > maximum:
            raise TopicAliasInvalid(f"topic alias {alias}, allowed are 1 to {maximum}")
        if len(topic) > 2:
            before = self.incoming.get(alias)
            if before == topic:
                return before
            if not self._charge(len(topic) - 2 + (ALIAS if before is None else 2 - len(before))):
                raise QuotaExceeded("topic aliases take more than a session may hold")
            self.incoming[alias] = topic
            return topic
        known = self.incoming.get(alias)
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return known

    def shorten(self, wire: bytes, largest: int) -> bytes:
        """An outgoing 5.0 PUBLISH with an alias where there is one or a free one.

        Unchanged where setting one would make it larger than `largest` bytes.
        """
        at = body_at(wire)
        topic_end = topic_end_at(wire, at)
        topic = wire[at + 2 : topic_end]
        known = self.outgoing.get(topic)
        if known is not None:
            return _with_alias(wire, topic_end, b"\x00\x00", known)
        number = len(self.outgoing) + 1
        if number > self.outgoing_maximum:
            return wire
        changed = _with_alias(wire, topic_end, wire[at:topic_end], number)
        if len(changed) > largest or not self._charge(ALIAS + len(topic)):
            return wire
        self.outgoing[topic] = number
        return changed

    def _charge(self, size: int) -> bool:
        """So many bytes more are to be held; False if they may not."""
        account = self.account
        if account.per_session and size > 0 and self.bytes + size > account.per_session:
            return False
        self.bytes += size
        account.aliases += size
        return True

    def close(self) -> None:
        """The connection is gone."""
        self.account.aliases -= self.bytes
        self.bytes = 0


def _with_alias(wire: bytes, topic_end: int, head: bytes, alias: int) -> bytes:
    """`wire` with another topic field and a Topic Alias as its first property."""
    block = topic_end + 2 if wire[0] & 6 else topic_end
    length, end = decode_varint(wire, block, len(wire))
    tail = varint(length + 3) + ONE_BYTE[TOPIC_ALIAS] + alias.to_bytes(2, "big") + wire[end:]
    middle = wire[topic_end:block]
    return wire[:1] + varint(len(head) + len(middle) + len(tail)) + head + middle + tail
