"""A broker of few words, in this process: the standard as code, and what mqttd has chosen in it.

    client --sendall--> Connection --packet--> Model, Session --write--> Connection --recv--> client

To a client a `Connection` is a socket. Everything happens at once and in the order of the calls;
time passes when `Model.sleep` says so. What the standard leaves to a broker is as in mqttd:

- overlapping subscriptions have one copy, of the highest QoS, with all their identifiers (3.3.4),
  and shared ones another each (4.8.2)
- a packet that a broker may answer or refuse by closing is refused by closing (4.13)
- a retained message that is replaced while it waits for the window does not come, the new one does
- a session of 3.1.1 without Clean Session ends when its client was away for two hours
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from typing import Any, Final

from fuzz.lockstep.reading import (
    BAD_AUTHENTICATION_METHOD,
    MALFORMED,
    PROTOCOL_ERROR,
    Asked,
    Message,
    Refused,
    Will,
    read_acknowledgement,
    read_connect,
    read_disconnect,
    read_publish,
    read_subscribe,
    read_unsubscribe,
    unshared,
)
from fuzz.lockstep.session import MAX_INFLIGHT, Session, Subscription
from tests.support import packets as mq
from tests.support.packets import Cursor, WireError

__all__ = ["Connection", "Model", "matches"]

NO_LIMIT: Final = 1 << 30
#: mqttd's `session.expiry_interval`, of a session of 3.1.1 whose client is away, and
#: `session.max_expiry_interval`, 30 days.
EXPIRY_OF_311: Final = 7200
MAX_EXPIRY: Final = 30 * 86400

#: Seconds that a broker may take to be there again: no sessions that end meanwhile.
START: Final = 120

UNSUPPORTED_VERSION: Final = 0x84
TAKEN_OVER: Final = 0x8E
NO_SUBSCRIPTION: Final = 0x11
PACKET_ID_NOT_FOUND: Final = 0x92


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a topic filter matches a topic name (4.7)."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    levels, names = topic_filter.split("/"), topic.split("/")
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at >= len(names) or level not in ("+", names[at]):
            return False
    return len(levels) == len(names)


class Connection:
    """One connection to the model, which looks like a socket."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.open = True
        self.version = mq.V311
        self.session: Session | None = None
        self.will: Will | None = None
        self.aliases: dict[int, str] = {}
        #: Session Expiry Interval of CONNECT (3.14.2.2.2).
        self.asked_expiry = 0
        self.max_packet = NO_LIMIT
        self.window = MAX_INFLIGHT
        self._in = bytearray()
        self._out = bytearray()

    # -- as a socket ---------------------------------------------------------------------------

    def settimeout(self, seconds: float) -> None:
        """Nothing is waited for."""

    def sendall(self, data: bytes) -> None:
        """The client writes."""
        self._in += data
        while self.open and (packet := self._cut()):
            try:
                self.model.packet(self, *packet)
            except WireError:
                self.model.refuse(self, MALFORMED)
            except Refused as refused:
                self.model.refuse(self, refused.reason)

    def recv(self, size: int) -> bytes:
        """What the broker wrote; b"" at the end, TimeoutError where there is nothing yet."""
        if self.open and not self._out:
            raise TimeoutError
        data, self._out = bytes(self._out), bytearray()
        return data

    def readable(self) -> bool:
        """Whether `recv` has something to say."""
        return bool(self._out) or not self.open

    def shutdown(self, how: int) -> None:
        """The client goes without DISCONNECT."""
        self.close()

    def close(self) -> None:
        """The same."""
        if self.open:
            self.model.end(self, with_will=True)

    # -- as the broker -------------------------------------------------------------------------

    def _cut(self) -> tuple[int, bytes] | None:
        """First byte and body of the next packet (2.1.4)."""
        length = 0
        for at, byte in enumerate(self._in[1:5]):
            length |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                start = at + 2
                if len(self._in) < start + length:
                    return None
                first, body = self._in[0], bytes(self._in[start : start + length])
                del self._in[: start + length]
                return first, body
        if len(self._in) >= 5:
            self.model.refuse(self, MALFORMED)
        return None

    def write(self, data: bytes) -> bool:
        """Send a packet; False where it is longer than the client takes (MQTT-3.1.2-24)."""
        fits = self.open and len(data) <= self.max_packet
        if fits:
            self._out += data
        return fits


class Model:
    """The broker."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, Message] = {}
        self.now = 0.0
        #: Of a session that has ended.
        self._unsure = False
        self._assigned = itertools.count()

    @property
    def unsure(self) -> bool:
        """Whether the standard allows more than what the model does now (`Session.unsure`)."""
        return self._unsure or any(session.unsure for session in self.sessions.values())

    def sleep(self, seconds: float) -> None:
        """Time passes: wills become due, sessions end, each at its time."""
        end = self.now + seconds
        while True:
            due: list[tuple[float, bool, str]] = []
            for session in self.sessions.values():
                if session.connection is None:
                    if session.will_at is not None:
                        due.append((session.will_at, False, session.client_id))
                    due.append((session.gone_at + session.expiry, True, session.client_id))
            if not due or min(due)[0] > end:
                break
            self.now, ends, client_id = min(due)
            self.publish_will(self.sessions[client_id])  # MQTT-3.1.3-9
            if ends:
                self.sessions.pop(client_id, None)
        self.now = end

    def restart(self) -> None:
        """The broker is killed and started: what was acknowledged is there, connections are not."""
        for session in list(self.sessions.values()):
            # A replay begins again, with what is retained by now: some may come once more. At QoS 0
            # it comes at most once, and not any more.
            for text, line in list(session.replays.items()):
                session.unsure |= len(line) > 1
                if not line[-1].qos:
                    del session.replays[text]
                    continue
                now = {topic for topic in self.retained if matches(text, topic)}
                session.unsure |= line[-1].begun or now != set(line[-1].messages)
            session.unsure |= 0 < session.expiry < START
            if session.connection is not None:
                session.connection.will = None
                self.end(session.connection, with_will=False)

    # -- ends ----------------------------------------------------------------------------------

    def refuse(self, connection: Connection, reason: int) -> None:
        """A wrong packet ends the connection, in 5.0 with its reason (4.13).

        A CONNECT that is wrong gets no answer, but where its version is the fault (MQTT-3.1.2-2),
        and where it can be read and is refused.
        """
        if connection.version == mq.V5 and connection.session:
            connection.write(mq.fixed(0xE0, bytes([reason])))
        elif reason == UNSUPPORTED_VERSION:
            connection.write(mq.fixed(0x20, b"\0\1"))
        elif reason == BAD_AUTHENTICATION_METHOD:
            connection.write(mq.fixed(0x20, bytes([0, reason, 0])))
        self.end(connection, with_will=True)

    def end(self, connection: Connection, with_will: bool) -> None:
        """A connection is over; the will follows, now or after its delay (3.1.2.5)."""
        connection.open = False
        session, connection.session = connection.session, None
        if session is None:
            return
        session.connection, session.gone_at = None, self.now
        if with_will and connection.will:
            delay = min(connection.will.delay, session.expiry)
            session.will, session.will_at = connection.will, self.now + delay
            if not delay:
                self.publish_will(session)
        if session.expiry == 0:
            self._unsure |= session.unsure
            self.sessions.pop(session.client_id, None)

    def publish_will(self, session: Session) -> None:
        """The will of a client that is away, once."""
        will, session.will, session.will_at = session.will, None, None
        if will:
            self.publish(will.message)

    # -- messages ------------------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        """To all who have subscribed to it, and to the retained messages (3.3)."""
        expiry = dict(message.props).get(mq.MESSAGE_EXPIRY)
        message = replace(message, until=None if expiry is None else self.now + expiry)
        if message.retain:
            self.retained.pop(message.topic, None)  # MQTT-3.3.1-6
            for session in self.sessions.values():
                session.replaced(message.topic)
            if message.payload:
                self.retained[message.topic] = message
        for session in list(self.sessions.values()):
            self.deliver(session, message)

    def deliver(self, session: Session, message: Message) -> None:
        """One copy for all of a session's subscriptions that match, one for each shared one."""
        mine: list[Subscription] = []
        shared: list[Subscription] = []
        for text, subscription in session.subscriptions.items():
            if not matches(unshared(text), message.topic):
                continue
            if text.startswith("$share/"):
                shared.append(subscription)
            elif not (subscription.no_local and message.source == session.client_id):
                mine.append(subscription)
        for together in [mine] * bool(mine) + [[one] for one in shared]:
            session.deliver(self.copy(message, together))

    def copy(self, message: Message, subscriptions: list[Subscription]) -> Message:
        """The message as these subscriptions have it (3.3.1.3, 3.3.2.3.8, 3.8.4)."""
        return replace(
            message,
            qos=min(message.qos, max(one.qos for one in subscriptions)),
            retain=message.retain and any(one.retain_as_published for one in subscriptions),
            identifiers=sorted(one.identifier for one in subscriptions if one.identifier),
        )

    # -- packets -------------------------------------------------------------------------------

    def packet(self, connection: Connection, first: int, body: bytes) -> None:
        """A packet came; raises Refused or WireError."""
        kind, flags = first >> 4, first & 15
        cursor = Cursor(body, mq.name_of(kind))
        if connection.session is None:
            if kind != mq.CONNECT:
                raise Refused(PROTOCOL_ERROR)  # MQTT-3.1.0-1
            self.connect(connection, cursor, flags)
            return
        session = connection.session
        if kind == mq.PUBLISH:
            self.published(connection, session, cursor, flags)
            return
        if kind not in EXPECTED_FLAGS:
            raise Refused(PROTOCOL_ERROR)
        cursor.check(flags == EXPECTED_FLAGS[kind], "flags")  # 2.1.3
        if kind in (mq.PUBACK, mq.PUBREC, mq.PUBREL, mq.PUBCOMP):
            self.acknowledged(connection, session, cursor, kind)
        elif kind == mq.SUBSCRIBE:
            self.subscribe(connection, session, cursor)
        elif kind == mq.UNSUBSCRIBE:
            self.unsubscribe(connection, session, cursor)
        elif kind == mq.DISCONNECT:
            self.disconnect(connection, session, cursor)
        else:
            cursor.check(not cursor.left, "bytes left over")
            connection.write(mq.fixed(0xD0))

    def connect(self, connection: Connection, cursor: Cursor, flags: int) -> None:
        """CONNECT (3.1)."""
        cursor.check(not flags and cursor.utf8() == "MQTT", "flags or protocol name")
        version = cursor.number(1)
        if version not in (mq.V311, mq.V5):
            raise Refused(UNSUPPORTED_VERSION)
        connection.version = version
        asked = read_connect(cursor, version)
        if not asked.client_id and version == mq.V311 and not asked.clean:
            connection.write(mq.fixed(0x20, b"\0\2"))  # MQTT-3.1.3-8
            self.end(connection, with_will=False)
            return
        assigned = "" if asked.client_id else f"assigned{next(self._assigned)}"
        client_id = asked.client_id or assigned
        before = self.take_over(client_id, asked.clean)
        session = before or Session(client_id, lambda: self.now)
        self.sessions[client_id] = session
        self.open(connection, session, asked)
        present = b"\1" if before else b"\0"
        props: list[tuple[int, Any]] = [(mq.ASSIGNED_CLIENT_ID, assigned)] if assigned else []
        if asked.props.get(mq.SESSION_EXPIRY, 0) > MAX_EXPIRY:
            props.append((mq.SESSION_EXPIRY, MAX_EXPIRY))  # 3.2.2.3.2
        block = mq.properties(props) if version == mq.V5 else b""
        connection.write(mq.fixed(0x20, present, b"\0", block))
        session.resume(connection)

    def take_over(self, client_id: str, clean: bool) -> Session | None:
        """The session that there is, without its connection (MQTT-3.1.4-3, 3.1.2.4)."""
        session = self.sessions.get(client_id)
        if session and session.connection:
            old = session.connection
            if old.version == mq.V5:
                old.write(mq.fixed(0xE0, bytes([TAKEN_OVER])))
            if clean:
                session.expiry = 0  # it ends here, and its will waits for nothing
            self.end(old, with_will=True)
            session = self.sessions.get(client_id)
        if session and clean:
            self.publish_will(session)
            del self.sessions[client_id]
            return None
        return session

    def open(self, connection: Connection, session: Session, asked: Asked) -> None:
        """What a CONNECT asks for is so from now on."""
        connection.session, connection.will = session, asked.will
        session.will = session.will_at = None
        if asked.version == mq.V5:
            session.expiry = min(asked.props.get(mq.SESSION_EXPIRY, 0), MAX_EXPIRY)
        else:
            session.expiry = 0 if asked.clean else EXPIRY_OF_311
        connection.asked_expiry = session.expiry
        connection.max_packet = asked.props.get(mq.MAXIMUM_PACKET_SIZE, NO_LIMIT)
        connection.window = min(asked.props.get(mq.RECEIVE_MAXIMUM, MAX_INFLIGHT), MAX_INFLIGHT)

    def published(
        self, connection: Connection, session: Session, cursor: Cursor, flags: int
    ) -> None:
        """PUBLISH (3.3), at QoS 2 by method A of 4.3.3: it is passed on when it comes."""
        message, packet_id = read_publish(cursor, flags, connection.version, connection.aliases)
        message.source = session.client_id
        again = message.qos == 2 and packet_id in session.received
        if message.qos == 2:
            session.received.add(packet_id)
        if not again:
            self.publish(message)
        if message.qos == 1:
            connection.write(mq.puback(packet_id, connection.version))
        elif message.qos == 2:
            connection.write(mq.pubrec(packet_id, connection.version))

    def acknowledged(
        self, connection: Connection, session: Session, cursor: Cursor, kind: int
    ) -> None:
        """PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7); one that fits no message is let pass, one
        that another kind of message has is a Protocol Error."""
        version = connection.version
        packet_id, reason = read_acknowledgement(cursor, kind, version)
        if kind == mq.PUBREL:
            known = packet_id in session.received
            session.received.discard(packet_id)
            connection.write(mq.pubcomp(packet_id, version, 0 if known else PACKET_ID_NOT_FOUND))
            return
        outgoing = session.outgoing(packet_id)
        if outgoing is None:
            if kind == mq.PUBREC and reason < 0x80:
                connection.write(mq.pubrel(packet_id, version, PACKET_ID_NOT_FOUND))
            return
        qos = 1 if kind == mq.PUBACK else 2
        if outgoing.message.qos != qos or kind == mq.PUBCOMP and not outgoing.received:
            raise Refused(PROTOCOL_ERROR)
        if kind != mq.PUBREC or reason >= 0x80:
            session.done(packet_id)  # 2.2.1
        else:
            outgoing.received = True
            connection.write(mq.pubrel(packet_id, version))

    def subscribe(self, connection: Connection, session: Session, cursor: Cursor) -> None:
        """SUBSCRIBE (3.8): SUBACK, and behind it what is retained (3.3.1.3)."""
        packet_id, pairs, identifier = read_subscribe(cursor, connection.version)
        replays = []
        for text, options in pairs:
            subscription = Subscription(options, identifier)
            new = text not in session.subscriptions
            session.subscriptions[text] = subscription
            handling = subscription.retain_handling
            if not text.startswith("$share/") and (handling == 0 or handling == 1 and new):
                replays.append((text, subscription))
        block = mq.properties() if connection.version == mq.V5 else b""
        codes = bytes(options & 3 for _, options in pairs)
        connection.write(mq.fixed(0x90, struct.pack(">H", packet_id), block, codes))
        for text, subscription in replays:
            found = [m for topic, m in sorted(self.retained.items()) if matches(text, topic)]
            session.replay(text, subscription, found)
        session.send()

    def unsubscribe(self, connection: Connection, session: Session, cursor: Cursor) -> None:
        """UNSUBSCRIBE (3.10)."""
        packet_id, filters = read_unsubscribe(cursor, connection.version)
        codes = []
        for text in filters:
            codes.append(0 if session.subscriptions.pop(text, None) else NO_SUBSCRIPTION)
            session.replays.pop(text, None)
        tail = mq.properties() + bytes(codes) if connection.version == mq.V5 else b""
        connection.write(mq.fixed(0xB0, struct.pack(">H", packet_id), tail))

    def disconnect(self, connection: Connection, session: Session, cursor: Cursor) -> None:
        """DISCONNECT (3.14): no will, unless its reason code is another than 0."""
        reason, props = read_disconnect(cursor, connection.version)
        if props.get(mq.SESSION_EXPIRY) and not connection.asked_expiry:
            raise Refused(PROTOCOL_ERROR)  # 3.14.2.2.2
        session.expiry = min(props.get(mq.SESSION_EXPIRY, session.expiry), MAX_EXPIRY)
        self.end(connection, with_will=reason != 0)


#: Fixed header flags of what a client may send beside CONNECT and PUBLISH (2.1.3).
EXPECTED_FLAGS: Final = {
    mq.PUBACK: 0,
    mq.PUBREC: 0,
    mq.PUBREL: 2,
    mq.PUBCOMP: 0,
    mq.SUBSCRIBE: 2,
    mq.UNSUBSCRIBE: 2,
    mq.PINGREQ: 0,
    mq.DISCONNECT: 0,
}
