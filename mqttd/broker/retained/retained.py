"""A retained message as it is kept: the bytes that were received, and who published them.

    PUBLISH, RETAIN set --> Retained --> Retainer     one object per topic
                                |
             subscriber of the same QoS and version: these bytes; else cut anew (`Inbound`)

The publisher's name and address stay with it, because its right to the topic may be looked at again
when a new subscriber gets the message (CVE-2018-12546).

MQTT 5.0, 3.3.1.3 (RETAIN), 3.3.2.3.3 (what is left of the Message Expiry Interval).
"""

from __future__ import annotations

from mqttd.broker.retained.retainer import RetainedCursor, RetainedLevel, Retainer
from mqttd.broker.routing.abroad import Abroad
from mqttd.codec.frame import ONE_BYTE, cut
from mqttd.codec.reasons import QUOTA_EXCEEDED, SUCCESS
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.publish.inbound import Inbound, inbound_of
from mqttd.session.replay import Replay
from mqttd.session.routes.route import identifier_block
from mqttd.session.state import Keeper, State

__all__ = ["Retained", "RetainedMessages", "RetainedReplay", "retained_of"]

#: Messages taken from the store at once.
_PAGE = 64
#: Messages looked at in one call, where none of them is for this subscriber.
_LOOKS = 256
#: Bytes of its publisher's names beside their text, and of its place in the expiry heap.
_RETAINED = 160


class Share:
    """The retained messages that one user has set."""

    __slots__ = ("bytes", "count", "user")

    def __init__(self, user: str) -> None:
        self.user: str = user
        self.bytes: int = 0
        self.count: int = 0


class Retained(Delivery):
    """The last message of a topic; `wire` has RETAIN set and the QoS it was published with."""

    __slots__ = ("charged", "checked", "listener", "number", "peerhost", "share", "username")

    def __init__(
        self, wire: bytes, qos: int, v5: bool, packet_id: int, id_at: int, source: str
    ) -> None:
        super().__init__(wire, qos, v5, packet_id, id_at, source)
        self.username: str | None = None
        #: The publisher's address and listener, if its right to the topic may be looked at again,
        #: and the broker's epoch when it was.
        self.peerhost: str = ""
        self.listener: str = ""
        self.checked: int = 0
        #: By which the journal knows it; 0: it is not kept.
        self.number: int = 0
        #: What its user is charged for it, its topic included.
        self.charged: int = 0
        self.share: Share | None = None

    def get_message(self, message_id: int) -> Message:
        """As `Delivery.get_message`; not remembered here, where it would lie as long as this."""
        if not self.id:
            self.id = message_id
        return self.copy().get_message(self.id)

    def weigh(self) -> int:
        """As `Delivery.weigh`, with who published it."""
        weight = self.weight
        if not weight:
            weight = super().weigh() + _RETAINED + len(self.source) + len(self.peerhost)
            if self.username is not None:
                weight += len(self.username)
            self.weight = weight
        return weight

    @staticmethod
    def of_inbound(inbound: Inbound) -> Retained:
        """Keep a PUBLISH with RETAIN as it came: what `retained_of` its cut would be."""
        data = inbound.data
        pos = inbound.pos
        first = data[pos]
        if first & 8 or not first & 1:
            wire = ONE_BYTE[first & 0xF7 | 1] + data[pos + 1 : inbound.end]
        else:
            wire = cut(data, pos, inbound.end)
        qos = inbound.qos
        made = Retained(
            wire,
            qos,
            inbound.v5,
            inbound.packet_id(),
            inbound.topic_end - pos if qos else 0,
            inbound.source,
        )
        if inbound.expires_at:
            made.expires_at = inbound.expires_at
            if inbound.v5 and inbound.expiry_at:
                made.expiry_at = inbound.expiry_at - pos
        made.id = inbound.identity()
        made.username = inbound.username
        return made

    def shaped(self, qos: int, v5: bool, identifiers: list[int] | None, now: int) -> Delivery:
        """The PUBLISH for one subscriber."""
        shape: Delivery = self
        if qos != self.qos or v5 != self.v5 or (v5 and identifiers is not None):
            block = identifier_block(identifiers) if v5 else b""
            shape = inbound_of(self).cut(qos, v5, True, block)
            shape.id = self.id
        if shape.expires_at and v5:
            shape = shape.fresh(v5, now)
        return shape


def retained_of(delivery: Delivery, username: str | None) -> Retained:
    """Keep a delivery that has RETAIN set."""
    made = Retained(
        delivery.wire,
        delivery.qos,
        delivery.v5,
        delivery.packet_id,
        delivery.id_at,
        delivery.source,
    )
    made.id = delivery.id
    made.expires_at = delivery.expires_at
    made.expiry_at = delivery.expiry_at
    made.username = username
    return made


class RetainedMessages(Retainer):
    """The retained messages of a broker, whose journal is told of those that go.

    Each is charged to the user who has set it, with what its topic took then; whoever sets it anew
    takes that over. Clients without a user name are one user, the broker itself is none.
    `max_per_user` and `max_bytes_per_user` bound what one user has, 0: not at all; of the bytes it
    is half of what all may have at most, however small a memory budget makes that.
    """

    __slots__ = ("abroad", "max_bytes_per_user", "max_per_user", "server", "users")

    def __init__(
        self, server: Keeper, max_messages: int = 0, max_bytes: int = 0, max_payload: int = 0
    ) -> None:
        super().__init__(max_messages, max_bytes, max_payload)
        self.server = server
        self.max_per_user: int = 0
        self.max_bytes_per_user: int = 0
        #: By user name, "" for those who have none.
        self.users: dict[str, Share] = {}
        #: Who tells other processes of what is deleted.
        self.abroad: Abroad | None = None

    def room(self, level: RetainedLevel | None, topic: str, message: object, weight: int) -> int:
        """See `Retainer.room`; QUOTA_EXCEEDED also where its user has too much."""
        code = super().room(level, topic, message, weight)
        most = self._most_of_one()
        if code != SUCCESS or not (self.max_per_user or most >= 0):
            return code
        if not isinstance(message, Retained) or not message.source:
            return code
        user = message.username or ""
        before = None if level is None else level.message
        count = 1
        grown = weight
        fresh = False
        share: Share | None = None
        if level is not None and isinstance(before, Retained) and before.share is not None:
            share = before.share
            grown -= level.size
            if share.user == user:
                count = 0
            else:
                grown += before.charged
                share = self.users.get(user)
        else:
            fresh = True
            share = self.users.get(user)
        if share is not None:
            if count:
                count += share.count
            elif grown <= 0:
                return SUCCESS  # above the limit, too
            grown += share.bytes
        if self.max_per_user and count > self.max_per_user:
            return QUOTA_EXCEEDED
        if most < 0:
            return SUCCESS
        over = self.costs_more(topic, most - grown) if fresh else grown > most
        return QUOTA_EXCEEDED if over else SUCCESS

    def _most_of_one(self) -> int:
        """The bytes that one user may have, -1: no limit; see `Account.most_kept`, too."""
        most_kept = self.server.account.most_kept
        most = self.max_bytes_per_user
        if not most:
            return most_kept
        most_of_all = self.most()
        if most_of_all:
            most = min(most, most_of_all // 2)
        return most if most_kept < 0 else min(most, most_kept)

    def placed(self, level: RetainedLevel, message: object, weight: int, cost: int) -> None:
        """See `Retainer.placed`; its user is charged."""
        before = level.message
        if isinstance(message, Retained) and message.source:
            user = message.username or ""
            share: Share | None = None
            if isinstance(before, Retained) and before.share is not None:
                cost = before.charged - level.size
                if before.share.user == user:
                    share = before.share  # most often: its own earlier one
                    share.bytes -= before.charged
                    before.share = None
            if share is None:
                share = self.users.get(user)
                if share is None:
                    share = Share(user)
                    self.users[user] = share
                share.count += 1
            message.charged = weight + cost
            message.share = share
            share.bytes += message.charged
        self.gone(before)

    def delete(self, topic: str, qos: int = -1) -> bool:
        """See `Retainer.delete`."""
        if self.abroad is not None:
            self.abroad.deleted(topic, qos)
        return super().delete(topic, qos)

    def gone(self, message: object | None) -> None:
        """See `Retainer.gone`."""
        if not isinstance(message, Retained):
            return
        share = message.share
        if share is not None:
            share.bytes -= message.charged
            share.count -= 1
            message.share = None
            if not share.count:
                del self.users[share.user]
        if message.number:
            journal = self.server.journal
            journal.forget(message.number)
            journal.touched = True
            message.number = 0


class RetainedReplay(Replay):
    """Retained messages of one new subscription, taken a page at a time.

    `own`: the client whose messages it does not get (No Local, MQTT-3.8.3-3); "" for nobody.
    What was kept after it has begun came as a message of its own.
    """

    __slots__ = ("_at", "_begun", "_cursor", "_identifiers", "_own", "_page", "_version")

    def __init__(
        self,
        topic_filter: str,
        cursor: RetainedCursor,
        qos: int,
        identifiers: list[int] | None,
        own: str,
    ) -> None:
        super().__init__(topic_filter, qos)
        self._cursor = cursor
        self._begun: bool = False
        self._identifiers = identifiers
        self._own = own
        self._page: list[object] = []
        self._at: int = 0
        #: Of the store, when the page was taken.
        self._version: int = 0

    def begin(self) -> None:
        """See `Replay.begin`."""
        if not self._begun:
            self._begun = True
            self._cursor.upto = self._cursor.retainer.stores

    def peek(self, session: State) -> int:
        """See `Replay.peek`."""
        kept = self._find(session)
        return -1 if kept is None else min(kept.qos, self.qos)

    def next(self, session: State) -> Delivery | None:
        """The next retained message as a delivery with RETAIN set (MQTT-3.3.1-8)."""
        kept = self._find(session)
        if kept is None:
            return None
        self._at += 1
        return self._shaped(session, kept)

    def _find(self, session: State) -> Retained | None:
        """Go on to the next that the subscriber gets; None: there is none, or none so far."""
        self.begin()
        now = session.server.now
        self.looked = 0
        for _ in range(_LOOKS):
            if self._at >= len(self._page):
                self._page = self._cursor.next(_PAGE, now)
                self.looked += self._cursor.visited
                self._version = self._cursor.retainer.version
                self._at = 0
                if not self._page:
                    return None
            kept = self._page[self._at]
            assert isinstance(kept, Retained)
            if self._is_due(kept, now) and self._gets(session, kept):
                return kept
            self._at += 1
        return None  # goes on in a later turn

    def _is_due(self, kept: Retained, now: int) -> bool:
        """Whether it is still retained and did not go ahead; what has replaced it is delivered."""
        retainer = self._cursor.retainer
        gone = self.gone
        same = self._version == retainer.version
        if same and not gone:
            return True
        topic = kept.topic()
        if gone and gone.get(topic, 0) >= self.since:
            return False
        return same or retainer.get(topic, now) is kept

    def _gets(self, session: State, kept: Retained) -> bool:
        """Whether the subscriber gets it."""
        server = session.server
        if kept.expires_at and kept.expires_at <= server.now:
            return False
        if self._own and kept.source == self._own:
            return False
        return not kept.peerhost or server.may_still_publish(kept)

    def _shaped(self, session: State, kept: Retained) -> Delivery:
        """What the subscriber gets."""
        qos = kept.qos if kept.qos < self.qos else self.qos
        return kept.shaped(qos, session.v5, self._identifiers, session.server.now)

    def reaches(self, topic: str) -> bool:
        """See `Replay.reaches`."""
        level = self._cursor.retainer.topics.get(topic)
        return level is not None and level.stored <= self._cursor.upto

    def ahead(self, session: State, topic: str) -> Delivery | None:
        """See `Replay.ahead`."""
        cursor = self._cursor
        level = cursor.retainer.topics.get(topic)
        if level is None:
            return None
        kept = level.message
        page = self._page
        for at in range(self._at, len(page)):
            if page[at] is kept:
                break
        else:
            if not cursor.awaits(topic, level):
                return None
        return self.copy(session, topic)

    def copy(self, session: State, topic: str) -> Delivery | None:
        """See `Replay.copy`."""
        kept = self._cursor.retainer.get(topic)
        if not isinstance(kept, Retained) or not self._gets(session, kept):
            return None
        return self._shaped(session, kept)

    def done(self) -> bool:
        """Nothing is left on the page or in the store."""
        return self._cursor.done and self._at >= len(self._page)

    def close(self) -> None:
        """Let the store's level go."""
        self._page = []
        self._at = 0
        self._cursor.close()
