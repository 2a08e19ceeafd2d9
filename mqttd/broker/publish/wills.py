"""The will of a client: checked at CONNECT, kept with its session, published when it is due.

    CONNECT --fault--> refused     keep --> session.will --connection ends, delay over--> publish

The right to publish it is asked for at CONNECT and again when it is published: rules may have
changed in between. A will that a store has kept is asked about by where its client came from
(`Testament`), unless its right came with the authentication, as for retained messages. What is due
at a start is held, and goes out in turns (`mqttd.broker.sessions.partings`): a broker that was
killed with thousands of clients leaves a will of each. Who comes back meanwhile has its will
published first.

MQTT 5.0: 3.1.2.5 (will), 3.1.3.2.2 (will delay), 3.1.3.2.4 (its expiry, from its publication).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.actions import PUBLISHING, RETAINING
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.rights.rights import brings_rights
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Connect, Will
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["Testament", "Wills", "connect_fault", "will_fault"]

#: Bytes of a delivery that are a unit of work, as a power of two.
_UNIT: Final = 13


class Testament(Message):
    """A will, with what its right is asked by when the session does not know its client any more.

    Its expiry is in seconds, from its publication.
    """

    __slots__ = ("free", "listener", "mountpoint", "peerhost", "restored")

    def __init__(
        self,
        id: int,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
        client_id: str,
        username: str | None,
        expires_at: int,
    ) -> None:
        super().__init__(
            id, topic, payload, qos, retain, properties, client_id, username, expires_at
        )
        #: The right came with the authentication: it is not looked at again.
        self.free: bool = False
        self.peerhost: str = ""
        self.listener: str = ""
        self.mountpoint: str = ""
        #: A store has kept it.
        self.restored: bool = False


class Wills:
    """Keeps and publishes the wills of a broker's clients."""

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        #: While other processes are not met: sessions whose wills they are to hear of, too. They
        #: may be over before that.
        self.held: dict[Session, Message] | None = None
        #: By client id those that were held and have not gone out yet; and whether others have
        #: published them.
        self.late: dict[str, tuple[Session, Message, bool]] = {}
        #: Has `first` called for these clients, as turns have time for it.
        self.line_up: Callable[[list[str]], None] = self._at_once
        #: What they were in this turn: deliveries, what is retained, and 8 KiB of one.
        self.work: int = 0
        self._at: int = 0

    def spent(self) -> int:
        """The work that wills have been in this turn."""
        if self._at != self.broker.now:
            self._at = self.broker.now
            self.work = 0
        return self.work

    def hold(self) -> None:
        """Hold what is due from now on; the store has it meanwhile."""
        self.held = {}

    def release(self, published: bool = False) -> None:
        """The wills that were held are due, unless others have published them; none is held."""
        held, self.held = self.held, None
        if not held:
            return
        for session, will in held.items():
            self.first(session.client_id)
            self.late[session.client_id] = (session, will, published)
        self.line_up(list(self.late))

    def _at_once(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            self.first(client_id)

    def first(self, client_id: str) -> None:
        """Publish the will that was held of this client, if it has not gone out."""
        late = self.late.pop(client_id, None)
        if late is None:
            return
        session, will, published = late
        self.spent()
        self.work += 1
        if session.will is will:
            session.take_will()
        else:
            self._forget(session)
        if not published:
            self._publish(session, will)
        if self.broker.sessions.get(client_id) is not session and not session.ended:
            session.forget()  # it was there for this will alone

    def _forget(self, session: Session) -> None:
        """The session of a will that was held is over: the store is to have it no more."""
        other = self.broker.sessions.get(session.client_id)
        if other is None or other.will is None:
            self.broker.journal.will(session.client_id, session.username, None, 0)

    def allowed(self, client: ClientInfo, will: Will) -> bool:
        """May the client publish this will, as things are at CONNECT?"""
        action = (RETAINING if will.retain else PUBLISHING)[will.qos]
        return self.broker.authorize(client, action, will.topic)

    def keep(self, session: Session, will: Will | None, client: ClientInfo) -> None:
        """Keep the will of a new connection with its session, or none."""
        self.first(client.client_id)
        if will is None:
            session.set_will(None, 0)
            return
        properties = dict(will.properties) if will.properties is not None else None
        expiry = 0
        delay = 0
        if properties is not None:
            value = properties.pop(prop.WILL_DELAY_INTERVAL, 0)
            delay = value if isinstance(value, int) else 0
            value = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, 0)
            expiry = value if isinstance(value, int) else 0
        # Its expiry counts from its publication: kept as seconds until then.
        message = Testament(
            0,
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            properties or None,
            client.client_id,
            client.username,
            expiry,
        )
        message.free = brings_rights(client)
        message.peerhost = client.peerhost
        message.listener = client.listener
        message.mountpoint = client.mountpoint
        session.set_will(message, delay)

    def publish(self, session: Session) -> None:
        """Publish a session's will, if it has one and its client still may."""
        if self.held is not None:
            if session.will is not None:
                self.held[session] = session.will
            return
        if self.late:
            self.first(session.client_id)
        will = session.take_will()
        if will is not None:
            self._publish(session, will)

    def _publish(self, session: Session, will: Message) -> None:
        broker = self.broker
        client = self._client(session, will)
        action = (RETAINING if will.retain else PUBLISHING)[will.qos]
        if client is not None and not broker.authorize(client, action, will.topic):
            broker.metrics.publishes_denied += 1
            broker.metrics.dropped_denied += 1
            broker.missed(will, "denied", "")
            return
        broker.metrics.wills_published += 1
        expires_at = broker.now + milliseconds(will.expires_at) if will.expires_at else 0
        message = Message(
            broker.next_message_id(),
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.properties,
            will.client_id,
            will.username,
            expires_at,
        )
        broker.journal.bind(True)  # a restart would publish it again, and nobody else
        broker.last_words = True
        try:
            receivers = broker.publish(message)
        finally:
            broker.last_words = False
            broker.journal.bind(False)
        self.spent()
        size = 1 + (len(will.payload) >> _UNIT)
        self.work += size if will.retain else 1
        if receivers > 0:
            self.work += receivers * size

    def _client(self, session: Session, will: Message) -> ClientInfo | None:
        """Who is asked about; None if its right is not looked at again."""
        if isinstance(will, Testament) and will.restored:
            if will.free:
                return None
            return ClientInfo(
                session.client_id,
                session.username,
                will.peerhost,
                0,
                will.listener,
                5,
                False,
                mountpoint=will.mountpoint,
            )
        return None if session.client is None else self.broker.client_of(session)


def will_fault(will: Will, settings: Settings) -> MqttError | None:
    """What is wrong with the will of a CONNECT, if anything."""
    if will.qos > settings.max_qos:
        return reasons.ProtocolViolation(
            f"will QoS {will.qos} is not offered", reasons.QOS_NOT_SUPPORTED
        )
    if will.retain and not settings.retain_available:
        return reasons.ProtocolViolation(
            "retained will is not offered", reasons.RETAIN_NOT_SUPPORTED
        )
    try:
        validate_topic_name(will.topic, settings.max_topic_levels)
    except MqttError as error:
        return error
    return None


def connect_fault(connect: Connect, settings: Settings) -> MqttError | None:
    """What is wrong with the client id or the will of a CONNECT, if anything."""
    if not connect.client_id:
        if connect.version < 5 and not connect.clean_start:
            return reasons.ClientIdentifierNotValid("empty client id with clean session 0")
        if connect.version == 3:
            return reasons.ClientIdentifierNotValid("empty client id in MQTT 3.1")
    elif len(connect.client_id.encode()) > settings.max_client_id_length:
        return reasons.ClientIdentifierNotValid(
            f"client id longer than {settings.max_client_id_length} bytes"
        )
    return None if connect.will is None else will_fault(connect.will, settings)
