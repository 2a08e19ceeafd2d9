"""The general way of a PUBLISH, and how it is acknowledged.

    PUBLISH --> parsed --> right --> QoS 2 id noted --> Message --> hooks, retained store, receivers
                             |                                                        |
                             `-- denied: 0x87, or the connection ends      PUBACK, PUBREC: when the
                                                                            promises are kept

`publish` is the slow twin of `mqttd.session.publish.forward`, taken where settings change each
message and where properties are unusual; it is the way to read first. An acknowledgement says what
became of the message (4.3, 3.4.2.1) and goes in the order of the messages (4.6).
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import ProtocolViolation, ReceiveMaximumExceeded
from mqttd.session.ground.aliases import Aliases
from mqttd.session.ground.connection import OPEN, Edge
from mqttd.session.ground.guid import Guid
from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run
from mqttd.session.ground.settings import Settings
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.promise import Asker, Promises
from mqttd.session.publish.inbound import Inbound
from mqttd.session.publish.publisher import Judge, Publisher
from mqttd.session.routes.route import HELD, NOTED, STUCK, Beyond, Route
from mqttd.session.routes.topics import Topics

__all__ = ["DENIED", "PUBACK", "PUBREC", "General", "Later", "Router", "answer_to"]

_PUBLISH: Final = 3
#: Units of work of a message that goes the general way, beside its receivers; of one refused.
_GENERAL: Final = 5
DENIED: Final = 5
#: Bytes to parse that are a unit of work, as a power of two: User Properties may have five each.
_PARSED: Final = 4
#: So few are none.
_FEW: Final = 4096
#: A unit of work is so many bytes of a topic that an alias stands for, as a power of two.
_NAMED: Final = 10
PUBACK: Final = 0x40
PUBREC: Final = 0x50


class Later:
    """A message on its way to many receivers, which is not done yet; see `Router.later`."""

    #: The client id of its publisher.
    source: str

    def then(self, channel: General, first: int, packet_id: int, gear: int, topic: str) -> None:
        """When it is done: have `channel` acknowledge it, and go on with what came behind it."""
        raise NotImplementedError


class Router(Judge):
    """What a publisher asks of the broker: the general way, hooks, stores, promises."""

    def __init__(self, settings: Settings, now: int, topics: Topics) -> None:
        super().__init__(settings, now, topics)
        #: What names messages.
        self.guid = Guid(0, 0)
        #: Packets may go as bytes at all: no switch is set that changes each message.
        self.fast: bool = settings.fast_path
        #: Type of the packet that is being handled, for the log of a fault.
        self.packet_type: int = 0
        #: What the publisher of the message that `ask_publish` stopped last is told.
        self.refusal: int = 0
        #: What was published last goes on in later turns.
        self.later: Later | None = None
        #: When so many packets have come a message is followed (`sample`); 0: none is.
        self.sample_at: int = 0

    def instant(self) -> int:
        """Microseconds since 1970; what is read in one turn of the loop has come at one time."""
        raise NotImplementedError

    def fan_out(self, inbound: Inbound, route: Route) -> int:
        """Deliver to all of a wide route: some now, the others in later turns; see `later`.

        Returns how many receivers there are.
        """
        raise NotImplementedError

    def publish(self, message: Message) -> int:
        """Route one message by the general path; returns the number of receivers.

        Runs hooks, stores it if it is retained, serves shared groups and other nodes. Below 0:
        minus the reason code of a refusal.
        """
        raise NotImplementedError

    def queues(self, channel: General, route: Route, size: int) -> bool:
        """Whether a QoS 2 message for many waits for others of its kind, with what is behind it."""
        return False

    def step_later(self, edge: Edge) -> None:
        """Have an edge go on (`Edge.step`) in later turns, in line with others."""
        raise NotImplementedError

    def end_work_later(self, channel: General) -> None:
        """A connection has had its turn: call its `end_work` in the next one, behind the others."""
        raise NotImplementedError

    def crowded(self) -> None:
        """Those who have not been let in hold more than they may: the oldest goes."""

    def ask_publish(self, message: Message) -> Message | None:
        """What the hooks of message.publish make of a message; None stops it, see `refusal`.

        `refusal` is then what `publish` would return.
        """
        raise NotImplementedError

    def route_message(self, message: Message) -> int:
        """`publish` without asking the hooks."""
        raise NotImplementedError

    def retain(self, channel: General, inbound: Inbound, route: Route) -> int:
        """Keep a retained message, or delete one; 0, or the reason code of a refusal."""
        raise NotImplementedError

    def note(
        self,
        channel: General,
        topic: bytes,
        data: bytes,
        pos: int,
        at: int,
        body: int,
        end: int,
        size: int,
        count: int,
    ) -> Run:
        """Somebody keeps the messages of this topic (`NOTED`): a packet, or a run of `count`.

        pos, at, body, end: places in the first packet, see `Inbound`; size: of each packet. Returns
        what they are called.
        """
        raise NotImplementedError

    def note_message(self, message: Message) -> None:
        """The same for a message that is whole already."""
        raise NotImplementedError

    def unheard(self, message: Message, reason: str) -> None:
        """A message reached nobody (`TOLD`): tell the hooks; `reason` as for `message.dropped`."""

    def unheard_run(self, channel: General, run: Run) -> None:
        """The same of messages of a client that are known by their run alone (`MISSED`)."""

    def missed(self, message: Message, reason: str, client_id: str) -> None:
        """A message is lost (for everybody, or for this receiver) that nothing was made of yet."""

    def sample(self, channel: General) -> None:
        """So many packets have come: the next message of this client is followed."""

    def cannot_keep(self, route: Route, first: int, kept: bool) -> bool:
        """Whether a message of QoS 1 or 2 would have to be kept where nothing can be (`STUCK`).

        first: its first byte; kept: its publisher's session is.
        """
        return False

    def owes(self, channel: General) -> bool:
        """Whether an answer to it waits for other processes: then `Connection.leave` follows."""
        return False

    def keepers(self, topic: str) -> tuple[object, ...]:
        """Who keeps something before a message on this topic is acknowledged (`HELD`).

        What `asker` is given, equal for the same keepers; empty: nobody.
        """
        return ()

    def with_journal(
        self, keepers: tuple[object, ...] | None, topic: str, listener: str
    ) -> tuple[object, ...] | None:
        """Those keepers, and the journal if an acknowledgement there waits for it."""
        return keepers

    def asker(self, client_id: str) -> Asker:
        """Who asks the keepers of a client's messages."""
        raise NotImplementedError

    def denied(self, channel: General, packet: Publish, limit: str) -> None:
        """A client may not publish this: tell the hooks; log the `limit` where it is beyond one."""
        raise NotImplementedError


class General(Publisher):
    """A connection whose client's messages go the general way."""

    __slots__ = ("promises", "router")

    def __init__(self, router: Router, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(router, edge, fd, listener)
        self.router = router
        #: Acknowledgements that wait for promises, None while there are none.
        self.promises: Promises | None = None

    def cool(self) -> None:
        """The client is quiet: keep only what cannot be found out again."""
        super().cool()
        if self.promises is not None and not len(self.promises):
            self.promises = None

    def parses(self, size: int) -> None:
        """So many bytes are parsed in one step: that is work as other work is."""
        if size > _FEW:
            self.router.topics.work += size >> _PARSED

    def publish(self, first: int, body: bytes, route: Route | None = None) -> None:
        """One PUBLISH by the general path: parse, check, make a `Message`, route, acknowledge.

        `route`: this client may publish there, that was looked at already.
        """
        packet = parse_packet(first, body, self.version)
        assert isinstance(packet, Publish)
        self.parses(len(body) - len(packet.payload))
        router = self.router
        router.packet_type = _PUBLISH
        router.journal.touched = False
        session = self.session
        assert session is not None
        properties = packet.properties
        expires_at = 0
        raw = packet.topic.encode()
        if properties is not None:
            if prop.SUBSCRIPTION_IDENTIFIER in properties:
                raise ProtocolViolation("Subscription Identifier in a client's PUBLISH")
            alias = properties.pop(prop.TOPIC_ALIAS, None)
            if isinstance(alias, int):
                raw = self.resolve(alias, len(raw).to_bytes(2, "big") + raw)[2:]
            expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
            if isinstance(expiry, int):
                expires_at = router.now + milliseconds(expiry)
                if expires_at == 0:
                    expires_at = 1
            _check_response_topic(properties)
            if not properties:
                properties = None
        if not raw:
            raise ProtocolViolation("empty topic name without a topic alias")
        if self.mount is not None:
            self.check_topic(raw)
            raw = self.mount.enter(raw.decode()).encode()
            self.mount.enter_properties(properties)
        self._count(packet.qos)
        self._check_offered(packet)
        if route is None:
            route = self.current(raw)
            if not self.may(route, first):
                packet.topic = route.topic  # for a topic alias, a mountpoint
                self._deny(packet, route)
                return
        qos = packet.qos
        if route.gear & STUCK and qos and self.stuck(route, first, packet.packet_id):
            return
        gear = route.gear
        topic = route.topic
        again = qos == 2 and not self.record(packet.packet_id)
        if again and not self.is_noted_again(gear, packet.packet_id):
            self.settle(self.answer(PUBREC, packet.packet_id, 0), gear, topic)
            return
        message = Message(
            router.next_message_id(),
            topic,
            packet.payload,
            qos,
            packet.retain,
            properties,
            session.client_id,
            session.username,
            expires_at,
        )
        if again:
            router.note_message(message)
            self.settle(self.answer(PUBREC, packet.packet_id, 0), gear, topic)
            return
        receivers = router.publish(message)
        router.topics.work += _GENERAL + (receivers if receivers > 0 else 0)
        self.published(first, packet.packet_id, receivers, gear, topic)

    def current(self, raw: bytes) -> Route:
        """The route of a topic name as it is now; validates it."""
        key = len(raw).to_bytes(2, "big") + raw
        topics = self.router.topics
        route = topics.table.get(key)
        if route is None:
            route = self.find(key)
        elif route.seq != topics.changes.seq:
            topics.catch_up(route)
        route.seen = True
        return route

    def resolve(self, alias: int, raw: bytes) -> bytes:
        """Set or look up an incoming topic alias; topics are as on the wire, with their length."""
        aliases = self.aliases
        if aliases is None:
            aliases = Aliases(0, self.router.account)
            self.aliases = aliases
        topic = aliases.resolve(alias, raw, self.router.settings.max_topic_alias)
        # Eight bytes stand for up to 64 KiB, which are copied, looked up and stored.
        topics = self.router.topics
        topics.work += len(topic) >> _NAMED
        topics.named += len(topic) - len(raw)
        return topic

    def _count(self, qos: int) -> None:
        metrics = self.router.metrics
        if qos == 0:
            metrics.messages_received_qos0 += 1
        elif qos == 1:
            metrics.messages_received_qos1 += 1
        else:
            metrics.messages_received_qos2 += 1

    def _check_offered(self, packet: Publish) -> None:
        settings = self.router.settings
        if packet.qos > settings.max_qos:
            raise ProtocolViolation(f"QoS {packet.qos} is not offered", reasons.QOS_NOT_SUPPORTED)
        if packet.retain and not settings.retain_available:
            raise ProtocolViolation(
                "retained messages are not offered", reasons.RETAIN_NOT_SUPPORTED
            )

    def _deny(self, packet: Publish, route: Route) -> None:
        router = self.router
        router.topics.work += DENIED
        router.metrics.dropped_denied += 1
        code = reasons.NOT_AUTHORIZED
        if isinstance(route, Beyond):
            code = reasons.TOPIC_NAME_INVALID
            router.denied(self, packet, route.why)
        else:
            router.metrics.publishes_denied += 1
            router.denied(self, packet, "")
            if router.settings.deny_disconnect:
                self.part(reasons.NOT_AUTHORIZED, "publish denied")
                return
        if packet.qos:
            if packet.qos == 2 and not self.v5:
                self.record(packet.packet_id)
            first = PUBACK if packet.qos == 1 else PUBREC
            self.settle_refusal(self.answer(first, packet.packet_id, code), packet.topic)

    def published(self, first: int, packet_id: int, receivers: int, gear: int, topic: str) -> None:
        """Acknowledge a PUBLISH that had so many receivers, or minus a reason code."""
        later = self.router.later
        if later is not None:
            self.router.later = None
            if self.session is not None and later.source == self.session.client_id:
                later.then(self, first, packet_id, gear, topic)
                return
        code = 0
        if receivers == 0:
            self.router.metrics.messages_no_subscriber += 1
            code = reasons.NO_MATCHING_SUBSCRIBERS
        elif receivers < 0:
            code = -receivers  # refused by a hook or a full store
        if code >= 0x80 and first & 4 and self.session is not None:
            self.session.complete(packet_id)
        if self.state != OPEN or not packet_id or (code >= 0x80 and self.leaving):
            return  # the client may have been disconnected for it
        self.settle(self.answer(answer_to(first), packet_id, code), gear, topic)

    def stuck(self, route: Route, first: int, packet_id: int) -> bool:
        """Refuse a QoS 1 or 2 message that would have to be kept, while nothing can be (`STUCK`).

        Not what is known already: that waits for its first acknowledgement. Says whether it did.
        """
        session = self.session
        assert session is not None
        awaiting = session.awaiting_rel
        if awaiting is not None and packet_id in awaiting:
            return False
        if not self.router.cannot_keep(route, first, session.owner != 0):
            return False
        self.router.metrics.dropped_not_kept += 1
        if self.router.tap_lost:
            qos = first >> 1 & 3
            made = Message(0, route.topic, b"", qos, False, None, session.client_id)
            self.router.missed(made, "not_kept", "")
        if self.v5:
            self.reply(self.answer(answer_to(first), packet_id, reasons.QUOTA_EXCEEDED))
        else:
            self.part(reasons.QUOTA_EXCEEDED, "what has to be kept cannot be written")
        return True

    def deny_bytes(self, route: Route, first: int, body: bytes) -> None:
        """What may not be published is parsed, for whoever hears of it, and refused."""
        packet = parse_packet(first, body, self.version)
        assert isinstance(packet, Publish)
        self.router.packet_type = _PUBLISH
        self._count(packet.qos)
        self._check_offered(packet)
        self._deny(packet, route)

    def record(self, packet_id: int) -> bool:
        """Note an incoming QoS 2 id; False if it is known already."""
        session = self.session
        assert session is not None
        settings = self.router.settings
        limit = settings.receive_maximum if self.v5 else settings.max_awaiting_rel
        known = session.await_release(packet_id, limit)
        journal = self.router.journal
        journal.fleeting = 0 if session.owner else packet_id
        if known == 0 and session.owner:
            journal.touched = True  # what came first may not be kept yet
        if known < 0:
            raise ReceiveMaximumExceeded(f"more than {limit} QoS 2 messages await PUBREL")
        return known > 0

    def is_noted_again(self, gear: int, packet_id: int) -> bool:
        """Whether a QoS 2 id that is known is one whose message may not have been noted.

        Where acknowledgements wait for who notes messages, a broker that was killed may have kept
        the id, and routed the message, before it was noted.
        """
        session = self.session
        assert session is not None
        return gear & HELD != 0 and gear & NOTED != 0 and session.taken_before(packet_id)

    # -- acknowledgements ----------------------------------------------------------------------

    def answer(self, first: int, packet_id: int, code: int) -> bytes:
        """An acknowledgement, with its reason code where the version and the code want one."""
        if self.v5 and code:
            return (first << 32 | 3 << 24 | packet_id << 8 | code).to_bytes(5, "big")
        return (first << 24 | 2 << 16 | packet_id).to_bytes(4, "big")

    def reply(self, data: bytes) -> None:
        """Acknowledge a message, behind those whose acknowledgements are held."""
        promises = self.promises
        if promises is None or not len(promises):
            self.send(data)
        else:
            promises.follow(data)
            self._within(promises)

    def settle(self, data: bytes, gear: int, topic: str) -> None:
        """Acknowledge a message when what that promises is true."""
        router = self.router
        keepers = router.keepers(topic) if gear & HELD else None
        if router.journal.touched:
            keepers = router.with_journal(keepers, topic, self.listener)
        if not keepers:
            self.reply(data)
            return
        promises = self.promised()
        promises.hold(data, keepers)
        self._within(promises)

    def settle_refusal(self, data: bytes, topic: str) -> None:
        """Acknowledge a message that was refused: nobody keeps it, it goes behind those before."""
        promises = self.promises
        if promises is not None and not self.router.journal.touched and promises.join(data):
            self._within(promises)
        else:
            self.settle(data, 0, topic)

    def promised(self) -> Promises:
        """The acknowledgements of this client that wait."""
        promises = self.promises
        if promises is None:
            session = self.session
            assert session is not None
            asker = self.router.asker(session.client_id)
            promises = Promises(self, asker, self.router.settings.receive_maximum)
            self.promises = promises
            self.warm_up()
        return promises

    def _within(self, promises: Promises) -> None:
        """A client keeps to Receive Maximum while its acknowledgements wait (MQTT-3.3.4-9).

        Where none waits, a message is acknowledged as it comes, and QoS 2 is counted by `record`.
        """
        most = self.router.settings.receive_maximum
        if self.v5 and len(promises) > most:
            raise ReceiveMaximumExceeded(f"more than {most} messages without acknowledgement")


def answer_to(first: int) -> int:
    """The first byte of the packet that acknowledges a PUBLISH, by the PUBLISH's first byte."""
    return PUBACK if first & 2 else PUBREC


def _check_response_topic(properties: Properties) -> None:
    topic = properties.get(prop.RESPONSE_TOPIC)
    if isinstance(topic, str) and ("+" in topic or "#" in topic):
        raise ProtocolViolation("wildcard in a response topic")
