"""The protocol machine of one connection: bytes in, effects out (EMQ's channel).

          CONNECT            accepted                DISCONNECT, fault, loss
    NEW ----------> WAITING ----------> OPEN ------------------------------> CLOSED
     |                 | refused: CONNACK, close                               ^
     +-----------------+-------------------------------------------------------+

`feed` is the broker's hot path: one loop over all complete packets of a chunk, PUBLISH first.
Output is appended to `out` and the channel put on the server's `dirty` list; closing goes on
`closing`; the server performs both at the end of the turn. No Twisted, no socket, no clock here.

Techniques, each measured in docs/design/hot-path.md:

* a PUBLISH is forwarded as the bytes received; a run of packets with the same fixed header, topic
  and properties is forwarded as one slice;
* topic validation, access control and routing cost one look-up in `grants`;
* a packet id is unique per receiver only, so the publisher's is kept where it is free.

`publish` is the slow twin: it builds a `Message` for one packet and goes the general way. Both give
the same bytes (tests/unit/session/test_differential.py). A packet that is not complete is kept
(`mqttd.session.unfinished`), bounded by the maximum packet size; before CONNECT by
`max_connect_size`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.frame import cut, header, size_at
from mqttd.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from mqttd.codec.parser import check_direction, parse_packet
from mqttd.codec.properties import Properties, decode_properties, encode_properties
from mqttd.codec.reasons import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
    ReceiveMaximumExceeded,
    TopicNameInvalid,
)
from mqttd.codec.serializer import serialize, varint
from mqttd.codec.sniff import looks_like
from mqttd.codec.topic import validate_topic_name
from mqttd.session.aliases import Aliases
from mqttd.session.limits import Intake
from mqttd.session.message import RELEASED, Delivery, Message
from mqttd.session.mount import Mount
from mqttd.session.route import QOS_MASK, Grant
from mqttd.session.server import Edge, Server
from mqttd.session.unfinished import Unfinished
from mqttd.session.wheel import Timer

if TYPE_CHECKING:
    from mqttd.session.session import Session

__all__ = ["CLOSED", "NEW", "OPEN", "STATES", "WAITING", "Channel"]

NEW: Final = 0
WAITING: Final = 1
OPEN: Final = 2
CLOSED: Final = 3

#: State -> name and the states that may follow (drawn in docs/design/session.md).
STATES: Final[dict[int, tuple[str, tuple[int, ...]]]] = {
    NEW: ("new", (WAITING, CLOSED)),
    WAITING: ("waiting", (OPEN, CLOSED)),
    OPEN: ("open", (CLOSED,)),
    CLOSED: ("closed", ()),
}

_PUBLISH: Final = 3
_PUBACK: Final = 4
_PUBREC: Final = 5
_PUBREL: Final = 6
_PUBCOMP: Final = 7
#: CONNACK of 3.1 and 3.1.1: accepted, without and with a session present.
_CONNACK_NEW: Final = b"\x20\x02\x00\x00"
_CONNACK_PRESENT: Final = b"\x20\x02\x01\x00"


class Channel(Timer):
    """One connection. The transport calls `feed` and `lost`; see `Edge` for the other way.

    Arguments: the server, the edge that carries the bytes, and the transport's descriptor (`fd`,
    -1 when it has none of its own), the listener's name.
    """

    __slots__ = (
        "aliases",
        "assigned",
        "auth",
        "backlogged",
        "blocked",
        "challenged",
        "close_reason",
        "connect",
        "dirty",
        "edge",
        "fd",
        "grants",
        "intake",
        "io",
        "keepalive",
        "largest",
        "last",
        "limit",
        "listener",
        "mount",
        "need",
        "server",
        "out",
        "out_at",
        "out_bytes",
        "paced",
        "paused",
        "quiet",
        "rest",
        "session",
        "special",
        "state",
        "thirsty",
        "v5",
        "version",
    )

    def __init__(self, server: Server, edge: Edge, fd: int, listener: str) -> None:
        self.due_at = 0
        self.slotted = 0
        self.server = server
        self.edge = edge
        self.fd = fd
        self.listener = listener
        #: What the edge keeps per connection (a frame reader, a transport); None for plain TCP.
        self.io: object | None = None
        self.state: int = NEW
        self.version: int = 0
        self.v5: bool = False
        self.session: Session | None = None
        #: The CONNECT, while authentication is under way.
        self.connect: Connect | None = None
        #: How the client got in, the server's own business.
        self.auth: object | None = None
        #: The client was sent AUTH, and its answer is read before the CONNECT is decided on.
        self.challenged: bool = False
        #: The broker chose the client id.
        self.assigned: bool = False
        self.out: list[bytes] | None = None
        self.out_bytes: int = 0
        #: Bytes of the first piece of `out` that are written (`mqttd.session.output`).
        self.out_at: int = 0
        self.limit: int = server.settings.high_watermark
        self.dirty: bool = False
        #: The peer takes no more for now: the edge waits for it.
        self.blocked: bool = False
        #: Reading is stopped.
        self.paused: bool = False
        #: Something waits for the output to empty: call `drained`.
        self.thirsty: bool = False
        #: Deliveries go one by one: the client allows topic aliases (`shorten`), its names are
        #: mounted, or queued QoS 0 messages go first.
        self.special: bool = False
        #: Request Problem Information was 0: no Reason String, no User Property in answers.
        self.quiet: bool = False
        #: Bytes of this output that the server's backlog counts.
        self.backlogged: int = 0
        #: The packet that is not complete; what came while authentication is under way.
        self.rest: Unfinished | None = None
        #: Below 0 while the first byte is waited for.
        self.need: int = 0
        self.last: int = server.now
        self.keepalive: int = 0
        self.grants: dict[bytes, Grant] | None = None
        self.aliases: Aliases | None = None
        #: The prefix of every topic name and filter of this client.
        self.mount: Mount | None = None
        self.close_reason: str = ""
        #: The largest packet taken once the connection is open.
        self.largest: int = 0
        #: What is read passes through here where its rate is limited (`mqttd.session.limits`).
        self.intake: Intake | None = None
        #: The rate of its output is limited.
        self.paced: bool = False
        server.wheel.schedule(self, server.now + server.connect_timeout(listener))

    # -- output --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Append bytes to the output; they are written at the end of the turn."""
        out = self.out
        if out is None:
            self.out = [data]
        else:
            out.append(data)
        self.out_bytes += len(data)
        if not self.dirty:
            self.dirty = True
            self.server.dirty.append(self)

    def over(self, size: int) -> bool:
        """Would `size` more bytes pass the high watermark, even after writing what can be?"""
        if not self.blocked and self.out is not None:
            self.edge.flush(self)
        return self.out_bytes + size > self.limit and self.out_bytes > 0

    def account(self) -> None:
        """After a write: tell the server what still waits, and whether there is room again."""
        server = self.server
        if self.out_bytes != self.backlogged:
            server.backlog += self.out_bytes - self.backlogged
            self.backlogged = self.out_bytes
        if self.thirsty and self.out_bytes <= server.settings.low_watermark:
            self.thirsty = False
            server.thirsty.append(self)

    def drained(self) -> None:
        """The edge wrote everything: what waited for room goes on."""
        self.thirsty = False
        session = self.session
        if session is not None and self.state == OPEN:
            self.resume()
            session.drain()

    # -- input ---------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take a chunk of received bytes; handles every complete packet in it."""
        server = self.server
        server.metrics.bytes_received += len(data)
        if self.state == WAITING:
            self._hold(data)
            return
        if self.state == CLOSED:
            return
        rest = self.rest
        if rest is not None:
            # Before CONNECT exactly what was sent: bounded by `max_connect_size`.
            data = rest.add(data, self.state == NEW)
            if not data:
                return
            self.rest = None
        self._take(data)

    def came(self, count: int) -> None:
        """So many bytes were read to where the `rest` has room."""
        rest = self.rest
        assert rest is not None
        self.server.metrics.bytes_received += count
        data = rest.came(count)
        if data:
            self.rest = None
            self._take(data)

    def unfinished(self) -> int:
        """Bytes held of what was received and could not be handled yet."""
        held = 0 if self.rest is None else self.rest.size
        return held if self.intake is None else held + len(self.intake.held)

    def _take(self, data: bytes) -> None:
        """Handle a chunk that begins with a packet, and see whether to read on."""
        server = self.server
        if self.intake is None:
            self.packets(data)
        else:
            self.intake.take(data)
        if self.out_bytes > self.limit and (self.blocked or self.paced):
            # Its acknowledgements cannot be written: do not read more from it.
            self.pause()
            self.thirsty = True
        elif (
            (server.congested or server.backlog > server.settings.backlog)
            and self.state == OPEN
            and not self.paused
        ):
            self.pause()
            server.stalled.append(self)

    def pause(self) -> None:
        """Stop reading from the peer."""
        if not self.paused and self.state != CLOSED:
            self.paused = True
            self.edge.pause(self)

    def resume(self) -> None:
        """Read from the peer again."""
        if self.intake is not None and self.intake.waiting:
            return  # goes on by itself
        if self.paused and self.state != CLOSED:
            self.paused = False
            self.edge.resume(self)

    def _hold(self, data: bytes) -> None:
        """Keep what comes while authentication is under way, and stop reading."""
        if not data:
            return
        rest = self.rest
        self.rest = Unfinished(data if rest is None else rest.whole() + data, 0)
        if self.challenged:
            self._answered()
        else:
            self.pause()

    def _answered(self) -> None:
        """Serve the AUTH packets of an authentication under way (MQTT-3.1.2-30)."""
        server = self.server
        try:
            while self.challenged and self.rest is not None:
                data = self.rest.whole()
                if data and data[0] & 0xF0 not in (0xE0, 0xF0):
                    # Judged by its type alone: CONNACK has no codes for what else is wrong with it.
                    raise ProtocolViolation("a packet other than AUTH before CONNACK")
                length, start = header(data, 0, len(data))
                end = start + length
                if max(end, len(data)) > server.settings.max_connect_size:
                    raise PacketTooLarge("more than one CONNECT may have, before CONNACK")
                if not end or end > len(data):
                    return
                self.rest = Unfinished(data[end:], 0) if end < len(data) else None
                packet = parse_packet(data[0], data[start:end], self.version)
                if isinstance(packet, Disconnect):
                    self.end("client disconnected")
                else:
                    assert isinstance(packet, Auth)
                    self.last = server.now
                    self.challenged = False
                    server.auth(self, packet)
        except MqttError as error:
            server.metrics.malformed_packets += 1
            server.fault(self, error, 15)
            self.refuse(error.reason_code, error.detail)
            return
        if self.state == OPEN:
            self.resume_input()
        elif self.state == WAITING and not self.challenged:
            self.pause()

    def packets(self, data: bytes) -> None:
        """Handle every complete packet of a chunk, whatever the limits; the rest is kept."""
        self.server.packet_type = 0
        try:
            self._loop(data)
        except MqttError as error:
            self.fail(error, self.server.packet_type)

    def _loop(self, data: bytes) -> None:
        """The loop over the packets of a chunk (long on purpose: one frame, local variables)."""
        server = self.server
        metrics = server.metrics
        settings = server.settings
        n: int = len(data)
        pos: int = 0
        count: int = 0
        b0: int = 0
        v5: bool = self.v5
        opened: bool = self.state == OPEN
        largest: int = self.largest if opened else settings.max_connect_size
        fast: bool = server.fast and not server.holding
        hooked: bool = server.tap_publish
        by_flags: bool = server.grant_by_flags
        while n - pos >= 2:
            b0 = data[pos]
            length: int = data[pos + 1]
            p: int = pos + 2
            if length >= 0x80:
                length &= 0x7F
                shift: int = 7
                complete: bool = False
                while p < n:
                    b: int = data[p]
                    p += 1
                    length |= (b & 0x7F) << shift
                    if b < 0x80:
                        if b == 0 and v5:
                            raise MalformedPacket("remaining length with bytes to spare")
                        complete = True
                        break
                    shift += 7
                    if shift > 21:
                        raise MalformedPacket("remaining length of more than four bytes")
                if not complete:
                    if not opened and b0 != 0x10:
                        raise _not_connect(data)
                    break
            if p - pos + length > largest:
                raise PacketTooLarge(
                    f"packet of {p - pos + length} bytes, at most {largest} are taken"
                )
            if not opened and b0 != 0x10:
                raise _not_connect(data)
            end: int = p + length
            if end > n:
                break
            count += 1
            kind: int = b0 & 0xF0
            if kind == 0x30 and opened:
                qos: int = (b0 >> 1) & 3
                if length < 2:
                    raise MalformedPacket("PUBLISH without a topic")
                topic_end: int = p + 2 + (data[p] << 8 | data[p + 1])
                body: int = topic_end + 2 if qos else topic_end
                if body > end or qos == 3 or b0 & 0x0E == 8:
                    self._raise_publish(b0, data[p:end])
                if qos:
                    key = data[p:topic_end]
                    if v5:
                        if body >= end:
                            raise MalformedPacket("PUBLISH without properties")
                        block: int = data[body]
                        if block >= 0x80 or body + 1 + block > end:
                            self.publish(b0, data[p:end], None)
                            pos = end
                            if self.state != OPEN:
                                break
                            continue
                        key = key + data[body : body + 1 + block]
                        body += 1 + block
                elif v5:
                    if body >= end:
                        raise MalformedPacket("PUBLISH without properties")
                    block = data[body]
                    if block >= 0x80 or body + 1 + block > end:
                        self.publish(b0, data[p:end], None)
                        pos = end
                        if self.state != OPEN:
                            break
                        continue
                    body += 1 + block
                    key = data[p:body]
                else:
                    key = data[p:topic_end]
                if by_flags:
                    key = data[pos : pos + 1] + key
                grants = self.grants
                grant: Grant | None = None
                if grants is not None:
                    grant = grants.get(key)
                if grant is None or grant.epoch != server.epoch or not grant.route.valid:
                    grant = self._grant(key, data, p, topic_end, body, qos, b0 & 1 == 1)
                if not (fast and grant.fast) or b0 & 1:
                    self.publish(b0, data[p:end], grant)
                    pos = end
                    if self.state != OPEN:
                        break
                    continue
                route = grant.route
                sessions = route.sessions
                if qos == 0:
                    # A run: the same header, topic and properties mean the same length and route.
                    size: int = end - pos
                    run: int = 1
                    if hooked:
                        if not self._passes(grant, data[body:end], 0, 0):
                            metrics.messages_received_qos0 += 1
                            pos = end
                            if self.state != OPEN:
                                break
                            continue
                    elif end + size <= n and settings.coalesce_runs:
                        prefix = data[pos:body]
                        while end + size <= n and data.startswith(prefix, end):
                            end += size
                            run += 1
                        count += run - 1
                    metrics.messages_received_qos0 += run
                    same: bytes | None = None
                    other: bytes | None = None
                    sent: int = 0
                    for session in sessions:
                        channel = session.channel
                        if channel is None or channel.special or size > session.max_packet:
                            self._qos0_apart(session, grant, data, pos, end, size, body - pos)
                            continue
                        if channel.v5 == v5 and not grant.rewrite:
                            if same is None:
                                same = cut(data, pos, end)
                            wire = same
                        else:
                            if channel.v5 == v5:
                                if same is None:
                                    same = self._recast(grant, data, pos, end, size, body - pos, v5)
                                wire = same
                            else:
                                if other is None:
                                    other = self._recast(
                                        grant, data, pos, end, size, body - pos, channel.v5
                                    )
                                wire = other
                            if len(wire) > session.max_packet:
                                self._qos0_apart(session, grant, data, pos, end, size, body - pos)
                                continue
                        out_bytes = channel.out_bytes + len(wire)
                        if out_bytes > channel.limit and channel.over(len(wire)):
                            metrics.dropped_slow_consumer += run
                            continue
                        out = channel.out
                        if out is None:
                            channel.out = [wire]
                        else:
                            out.append(wire)
                        channel.out_bytes += len(wire)
                        if not channel.dirty:
                            channel.dirty = True
                            server.dirty.append(channel)
                        sent += run
                    metrics.messages_sent += sent
                    pos = end
                    continue
                # QoS 1 and 2
                packet_id: int = data[topic_end] << 8 | data[topic_end + 1]
                if packet_id == 0:
                    raise MalformedPacket("PUBLISH with packet id 0")
                if qos == 2:
                    metrics.messages_received_qos2 += 1
                    if not self._record_qos2(packet_id):
                        self._answer(0x50, packet_id, 0)
                        pos = end
                        continue
                else:
                    metrics.messages_received_qos1 += 1
                if hooked and not self._passes(grant, data[body:end], qos, packet_id):
                    pos = end
                    if self.state != OPEN:
                        break
                    continue
                first: Delivery | None = None
                if sessions:
                    options = route.options
                    session_self = self.session
                    source = session_self.client_id if session_self is not None else ""
                    if v5 or grant.rewrite or b0 & 8 or len(sessions) > 1:
                        self._spread(grant, data, pos, p, topic_end, body, end, source)
                    else:
                        session = sessions[0]
                        granted: int = options[0] & QOS_MASK
                        if granted >= qos and not session.v5:
                            first = Delivery(
                                cut(data, pos, end), qos, False, packet_id, topic_end - pos, source
                            )
                            session.deliver(first, packet_id)
                        else:
                            self._spread(grant, data, pos, p, topic_end, body, end, source)
                    if qos == 1:
                        self.send(b"\x40\x02" + data[topic_end : topic_end + 2])
                    else:
                        self.send(b"\x50\x02" + data[topic_end : topic_end + 2])
                else:
                    metrics.messages_no_subscriber += 1
                    self._answer(
                        0x40 if qos == 1 else 0x50, packet_id, reasons.NO_MATCHING_SUBSCRIBERS
                    )
                pos = end
                continue
            if kind == 0x40 and length == 2 and b0 == 0x40:
                self._puback(data[p] << 8 | data[p + 1], 0)
            elif kind == 0x60 and length == 2 and b0 == 0x62:
                self._pubrel(data[p] << 8 | data[p + 1])
            elif kind == 0x50 and length == 2 and b0 == 0x50:
                self._pubrec(data[p] << 8 | data[p + 1], 0)
            elif kind == 0x70 and length == 2 and b0 == 0x70:
                self._pubcomp(data[p] << 8 | data[p + 1])
            elif b0 == 0xC0 and length == 0:
                self.send(b"\xd0\x00")
            else:
                self._packet(b0, data[p:end])
                pos = end
                if self.state != OPEN:
                    if self.state == WAITING and pos < n:
                        self._hold(data[pos:])
                        pos = n
                    break
                # CONNECT was accepted at once: go on with the session's own limits.
                opened = True
                v5 = self.v5
                if self.intake is not None and pos < n:
                    self.intake.take(data[pos:])
                    pos = n
                    break
                largest = self.largest
                fast = server.fast and not server.holding
                hooked = server.tap_publish
                by_flags = server.grant_by_flags
                continue
            pos = end
            if self.state != OPEN:
                break
        if count:
            # Only complete packets keep a client alive (MQTT-3.1.2-22).
            metrics.packets_received += count
            self.last = server.now
        if pos < n and self.state != CLOSED:
            self._keep(data, pos, n)

    def _keep(self, data: bytes, pos: int, n: int) -> None:
        """Keep an incomplete packet, and how many bytes it needs in all."""
        if self.state == WAITING:
            return
        if not self.state == OPEN and data[pos] != 0x10:
            raise ProtocolViolation("the first packet is not CONNECT")
        size = size_at(data, pos, n)
        self.rest = Unfinished(data[pos:], size if size > 0 else n - pos + 1)

    # -- PUBLISH -------------------------------------------------------------------------------

    def _raise_publish(self, b0: int, body: bytes) -> None:
        """A PUBLISH with a bad header: the parser names the fault."""
        self.server.packet_type = _PUBLISH
        parse_packet(b0, body, self.version)
        raise MalformedPacket("malformed PUBLISH")

    def _grant(
        self, key: bytes, data: bytes, p: int, topic_end: int, body: int, qos: int, retain: bool
    ) -> Grant:
        """Validate topic and properties once, ask for right and route, and cache the answer."""
        server = self.server
        settings = server.settings
        server.packet_type = _PUBLISH
        server.metrics.grants_built += 1
        raw = data[p + 2 : topic_end]
        properties: Properties | None = None
        rewrite = False
        if self.v5:
            at = topic_end + 2 if qos else topic_end
            if data[at] != 0:
                properties, _ = decode_properties(data, at, body, _PUBLISH)
                if prop.SUBSCRIPTION_IDENTIFIER in properties:
                    raise ProtocolViolation("Subscription Identifier in a client's PUBLISH")
                alias = properties.get(prop.TOPIC_ALIAS)
                if isinstance(alias, int):
                    raw = self._alias(alias, raw)
                    del properties[prop.TOPIC_ALIAS]
                    rewrite = True
                self._check_response_topic(properties)
            if not raw:
                raise ProtocolViolation("empty topic name without a topic alias")
        topic = self._topic(raw)
        mount = self.mount
        if mount is not None:
            topic = mount.enter(topic)
            raw = mount.raw + raw
            mount.enter_properties(properties)
            rewrite = True
        grant = server.grant(self, topic, qos, retain)
        grant.head = len(raw).to_bytes(2, "big") + raw
        grant.rewrite = rewrite
        expires = False
        if properties:
            grant.properties = properties
            expires = prop.MESSAGE_EXPIRY_INTERVAL in properties
            if rewrite:
                grant.block = encode_properties(properties)
            else:
                grant.block = data[topic_end + 2 if qos else topic_end : body]
        grant.fast = grant.allowed and grant.route.plain and not expires
        # A refusal is not kept: each is counted and told with its rule.
        if settings.cache_grants and grant.allowed:
            # A topic alias that is set anew throws all grants away, see `_alias`.
            grants = self.grants
            if grants is None:
                grants = {}
                self.grants = grants
            elif len(grants) >= settings.max_grants:
                grants.clear()
            grants[key] = grant
        return grant

    def _topic(self, raw: bytes) -> str:
        """Decode and check a topic name (MQTT-1.5.4-1, 3.3.2-2, 4.7.3)."""
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            raise MalformedPacket("topic name is not UTF-8") from None
        settings = self.server.settings
        validate_topic_name(topic, settings.max_topic_levels)
        if len(raw) > settings.max_topic_length:
            raise TopicNameInvalid(
                f"topic of {len(raw)} bytes, at most {settings.max_topic_length} are taken"
            )
        return topic

    def _alias(self, alias: int, raw: bytes) -> bytes:
        """Resolve or set an incoming topic alias; returns the topic it stands for."""
        aliases = self.aliases
        if aliases is None:
            aliases = Aliases(0)
            self.aliases = aliases
        if aliases.changes(alias, raw):
            self.grants = None  # they were found through the old meaning
        return aliases.resolve(alias, raw, self.server.settings.max_topic_alias)

    def _check_response_topic(self, properties: Properties) -> None:
        topic = properties.get(prop.RESPONSE_TOPIC)
        if isinstance(topic, str) and ("+" in topic or "#" in topic):
            raise ProtocolViolation("wildcard in a response topic")

    def _record_qos2(self, packet_id: int) -> bool:
        """Note an incoming QoS 2 id; False if it is known already (4.3.3)."""
        session = self.session
        assert session is not None
        awaiting = session.awaiting_rel
        if awaiting is None:
            awaiting = {}
            session.awaiting_rel = awaiting
        elif packet_id in awaiting:
            return False
        settings = self.server.settings
        limit = settings.receive_maximum if self.v5 else settings.max_awaiting_rel
        if len(awaiting) >= limit:
            raise ReceiveMaximumExceeded(f"more than {limit} QoS 2 messages await PUBREL")
        awaiting[packet_id] = self.server.now
        return True

    def _answer(self, first: int, packet_id: int, code: int) -> None:
        """An acknowledgement, with its reason code where the version and the code want one."""
        if self.v5 and code:
            self.send(bytes((first, 3, packet_id >> 8, packet_id & 255, code)))
        else:
            self.send(bytes((first, 2, packet_id >> 8, packet_id & 255)))

    def _recast(
        self, grant: Grant, data: bytes, pos: int, end: int, size: int, body: int, v5: bool
    ) -> bytes:
        """QoS 0 packets of a run rebuilt for version `v5` (`body`: offset of the payload)."""
        payload = size - body
        head = grant.head + grant.block if v5 else grant.head
        start = b"\x30" + varint(len(head) + payload) + head
        parts: list[bytes] = []
        while pos < end:
            parts.append(start + data[pos + body : pos + size])
            pos += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _qos0_apart(
        self, session: Session, grant: Grant, data: bytes, pos: int, end: int, size: int, body: int
    ) -> None:
        """QoS 0 packets of a run for one receiver that needs single deliveries."""
        while pos < end:
            wire = self._recast(grant, data, pos, pos + size, size, body, session.v5)
            source = self.session
            delivery = Delivery(
                wire, 0, session.v5, 0, 0, source.client_id if source is not None else ""
            )
            session.deliver_qos0(delivery)
            pos += size

    def _spread(
        self,
        grant: Grant,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        body: int,
        end: int,
        source: str,
    ) -> None:
        """Deliver one QoS 1 or 2 PUBLISH to the sessions of its route, one shape each at most."""
        server = self.server
        sessions = grant.route.sessions
        options = grant.route.options
        qos = (data[pos] >> 1) & 3
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        shapes: list[Delivery | None] = [None, None, None, None, None, None]
        for i in range(len(sessions)):
            session = sessions[i]
            granted = options[i] & QOS_MASK
            if granted > qos:
                granted = qos
            at = granted + 3 if session.v5 else granted
            shape = shapes[at]
            if shape is None:
                if granted == qos and session.v5 == self.v5 and not grant.rewrite:
                    wire = cut(data, pos, end)
                    if data[pos] & 8:
                        wire = bytes((data[pos] & 0xF6,)) + wire[1:]
                    shape = Delivery(wire, granted, session.v5, packet_id, topic_end - pos, source)
                else:
                    shape = self._shape(
                        grant, data, topic_end, body, end, granted, session.v5, source
                    )
                if len(sessions) > 1 and server.tap_acked:
                    # Shapes of one message share its id.
                    for made in shapes:
                        if made is not None:
                            shape.message = made.message
                            break
                    if shape.message is None:
                        shape.get_message(server.next_message_id())
                shapes[at] = shape
            if granted:
                session.deliver(shape, packet_id)
            else:
                session.deliver_qos0(shape)

    def _shape(
        self,
        grant: Grant,
        data: bytes,
        topic_end: int,
        body: int,
        end: int,
        qos: int,
        v5: bool,
        source: str,
    ) -> Delivery:
        """The same message for another QoS or version."""
        head = grant.head
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        tail = grant.block if v5 else b""
        if qos:
            tail = data[topic_end : topic_end + 2] + tail
        length = varint(len(head) + len(tail) + end - body)
        payload = data[body:end]
        wire = bytes((0x30 | qos << 1,)) + length + head + tail + payload
        made = Delivery(wire, qos, v5, packet_id, 1 + len(length) + len(head), source)
        if grant.properties is not None and not v5:
            # The bytes lost them; the session may come back with MQTT 5.0.
            session = self.session
            username = session.username if session is not None else None
            made.message = Message(
                self.server.next_message_id(),
                grant.topic,
                payload,
                qos,
                False,
                grant.properties,
                source,
                username,
            )
        return made

    def publish(self, b0: int, body: bytes, grant: Grant | None) -> None:
        """One PUBLISH by the general path: parse, check, make a `Message`, route, acknowledge."""
        packet = parse_packet(b0, body, self.version)
        assert isinstance(packet, Publish)
        server = self.server
        server.packet_type = _PUBLISH
        session = self.session
        assert session is not None
        metrics = server.metrics
        qos = packet.qos
        properties = packet.properties
        expires_at = 0
        raw = packet.topic.encode()
        if properties is not None:
            if prop.SUBSCRIPTION_IDENTIFIER in properties:
                raise ProtocolViolation("Subscription Identifier in a client's PUBLISH")
            alias = properties.pop(prop.TOPIC_ALIAS, None)
            if isinstance(alias, int):
                raw = self._alias(alias, raw)
            expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
            if isinstance(expiry, int):
                expires_at = server.now + expiry * 1000
                if expires_at == 0:
                    expires_at = 1
            self._check_response_topic(properties)
            if not properties:
                properties = None
        if not raw:
            raise ProtocolViolation("empty topic name without a topic alias")
        topic = self._topic(raw)
        if self.mount is not None:
            topic = self.mount.enter(topic)
            self.mount.enter_properties(properties)
        if qos == 0:
            metrics.messages_received_qos0 += 1
        elif qos == 1:
            metrics.messages_received_qos1 += 1
        else:
            metrics.messages_received_qos2 += 1
        self._check_offered(packet)
        if grant is None:
            grant = server.grant(self, topic, qos, packet.retain)
        if not grant.allowed:
            packet.topic = topic  # for a topic alias, a mountpoint
            self._deny(packet)
            return
        if qos == 2 and not self._record_qos2(packet.packet_id):
            self._acknowledge(0x50, packet.packet_id, 0, topic)
            return
        message = Message(
            server.next_message_id(),
            topic,
            packet.payload,
            qos,
            packet.retain,
            properties,
            session.client_id,
            session.username,
            expires_at,
        )
        self._published(qos, packet.packet_id, server.publish(message), topic)

    def _passes(self, grant: Grant, payload: bytes, qos: int, packet_id: int) -> bool:
        """Ask the hooks of message.publish: may the packet go the fast path, as it came?

        If not, what they made of it is routed and the publisher answered.
        """
        server = self.server
        session = self.session
        assert session is not None
        message = Message(
            server.next_message_id(),
            grant.topic,
            payload,
            qos,
            False,
            grant.properties,
            session.client_id,
            session.username,
        )
        changed = server.ask_publish(message)
        if changed is message and grant.route.valid and self.state == OPEN:
            return True
        receivers = server.refusal if changed is None else server.route_message(changed)
        self._published(qos, packet_id, receivers, grant.topic)
        return False

    def _published(self, qos: int, packet_id: int, receivers: int, topic: str) -> None:
        """Acknowledge a PUBLISH that had so many receivers, or minus a reason code."""
        session = self.session
        code = 0
        if receivers == 0:
            self.server.metrics.messages_no_subscriber += 1
            code = reasons.NO_MATCHING_SUBSCRIBERS
        elif receivers < 0:
            code = -receivers  # refused by a hook or a full store
        if self.state != OPEN:
            return  # and the client was disconnected for it
        if qos == 1:
            self._acknowledge(0x40, packet_id, code, topic)
        elif qos == 2:
            if code >= 0x80 and session is not None and session.awaiting_rel is not None:
                session.awaiting_rel.pop(packet_id, None)
            self._acknowledge(0x50, packet_id, code, topic)

    def _acknowledge(self, first: int, packet_id: int, code: int, topic: str) -> None:
        """Answer a PUBLISH now, or have the server do so when what it promises is true."""
        if self.server.holding:
            self.server.hold(self, first, packet_id, code, topic)
        else:
            self._answer(first, packet_id, code)

    def release(self, first: int, packet_id: int, code: int) -> None:
        """Send an acknowledgement that was held, if the connection is still there."""
        if self.state == OPEN:
            self._answer(first, packet_id, code)

    def _check_offered(self, packet: Publish) -> None:
        settings = self.server.settings
        if packet.qos > settings.max_qos:
            raise ProtocolViolation(f"QoS {packet.qos} is not offered", reasons.QOS_NOT_SUPPORTED)
        if packet.retain and not settings.retain_available:
            raise ProtocolViolation(
                "retained messages are not offered", reasons.RETAIN_NOT_SUPPORTED
            )

    def _deny(self, packet: Publish) -> None:
        server = self.server
        server.metrics.publishes_denied += 1
        server.metrics.dropped_denied += 1
        server.denied(self, packet)
        if server.settings.deny_disconnect:
            self.close(reasons.NOT_AUTHORIZED, "publish denied")
            return
        if packet.qos == 1:
            self._acknowledge(0x40, packet.packet_id, reasons.NOT_AUTHORIZED, packet.topic)
        elif packet.qos == 2:
            if not self.v5:
                self._record_qos2(packet.packet_id)
            self._acknowledge(0x50, packet.packet_id, reasons.NOT_AUTHORIZED, packet.topic)

    # -- acknowledgements ----------------------------------------------------------------------

    def _puback(self, packet_id: int, code: int) -> None:
        session = self.session
        assert session is not None
        inflight = session.inflight
        if packet_id == 0:
            raise MalformedPacket("PUBACK with packet id 0")
        if inflight is None:
            return
        delivery = inflight.pop(packet_id, None)
        if delivery is None:
            return
        if delivery.qos != 1:
            inflight[packet_id] = delivery
            raise ProtocolViolation("PUBACK for a QoS 2 message")
        self.server.metrics.messages_acked += 1
        if self.server.tap_acked:
            if code >= 0x80:
                self.server.nacked(session, delivery, code)
            else:
                self.server.acked(session, delivery, packet_id)
        if session.waiting:
            session.drain()

    def _pubrec(self, packet_id: int, code: int) -> None:
        session = self.session
        assert session is not None
        inflight = session.inflight
        if packet_id == 0:
            raise MalformedPacket("PUBREC with packet id 0")
        delivery = inflight.get(packet_id) if inflight is not None else None
        if delivery is None or inflight is None:
            if code < 0x80:
                self._answer(0x62, packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND)
            return
        if delivery.qos == 1:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        if code >= 0x80:
            if self.server.tap_acked and delivery is not RELEASED:
                self.server.nacked(session, delivery, code)
            session.acknowledge(packet_id)
            return
        if delivery is not RELEASED:
            inflight[packet_id] = RELEASED
            if self.server.tap_acked:
                self.server.acked(session, delivery, packet_id)
        self._answer(0x62, packet_id, 0)

    def _pubrel(self, packet_id: int) -> None:
        session = self.session
        assert session is not None
        awaiting = session.awaiting_rel
        if packet_id == 0:
            raise MalformedPacket("PUBREL with packet id 0")
        if awaiting is not None and packet_id in awaiting:
            del awaiting[packet_id]
            self._answer(0x70, packet_id, 0)
        else:
            self._answer(0x70, packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND)

    def _pubcomp(self, packet_id: int) -> None:
        session = self.session
        assert session is not None
        inflight = session.inflight
        if packet_id == 0:
            raise MalformedPacket("PUBCOMP with packet id 0")
        if inflight is None:
            return
        delivery = inflight.get(packet_id)
        if delivery is None:
            return
        if delivery is not RELEASED:
            raise ProtocolViolation("PUBCOMP before PUBREL")
        session.acknowledge(packet_id)
        if self.server.tap_completed:
            self.server.completed(session, packet_id)

    # -- everything else -----------------------------------------------------------------------

    def _packet(self, b0: int, body: bytes) -> None:
        """Any packet that the loop does not serve itself."""
        kind = b0 >> 4
        self.server.packet_type = kind
        if self.state == NEW:
            connect = parse_packet(b0, body, 4)
            assert isinstance(connect, Connect)
            self._connect(connect)
            return
        if kind == 1:
            raise ProtocolViolation("a second CONNECT")
        if kind in (2, 9, 11, 13) or kind == 0:
            raise ProtocolViolation(f"packet type {kind} from a client")
        packet = parse_packet(b0, body, self.version)
        check_direction(packet, True)
        if isinstance(packet, Subscribe):
            self.server.subscribe(self, packet)
        elif isinstance(packet, Unsubscribe):
            self.server.unsubscribe(self, packet)
        elif isinstance(packet, Disconnect):
            self._disconnect(packet)
        elif isinstance(packet, Puback):
            self._puback(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrec):
            self._pubrec(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrel):
            self._pubrel(packet.packet_id)
        elif isinstance(packet, Pubcomp):
            self._pubcomp(packet.packet_id)
        elif isinstance(packet, Auth):
            self.server.auth(self, packet)
        else:
            raise ProtocolViolation(f"packet type {kind} out of place")

    def _connect(self, connect: Connect) -> None:
        self.version = connect.version
        self.v5 = connect.version == 5
        if self.v5:
            properties = connect.properties
            if properties is not None and properties.get(prop.REQUEST_PROBLEM_INFORMATION) == 0:
                self.quiet = True
        self.state = WAITING
        self.connect = connect
        self.server.open(self, connect)

    def accept(
        self, session: Session, session_present: bool, properties: Properties | None
    ) -> None:
        """The server accepts the CONNECT: CONNACK, what is pending, then what was held back."""
        connect = self.connect
        assert connect is not None
        settings = self.server.settings
        self.connect = None
        self.state = OPEN
        self.session = session
        if not self.largest:
            self.largest = settings.max_packet_size
        keep_alive = connect.keep_alive
        if settings.server_keepalive_seconds:
            keep_alive = settings.server_keepalive_seconds
        self.keepalive = int(keep_alive * 1000 * settings.keepalive_multiplier)
        self.last = self.server.now
        if self.keepalive:
            self.server.wheel.schedule(self, self.last + self.keepalive)
        else:
            self.server.wheel.cancel(self)
        receive_maximum = 0
        max_packet = 0
        if connect.properties is not None:
            receive_maximum = _int(connect.properties, prop.RECEIVE_MAXIMUM)
            max_packet = _int(connect.properties, prop.MAXIMUM_PACKET_SIZE)
            alias_maximum = _int(connect.properties, prop.TOPIC_ALIAS_MAXIMUM)
            if alias_maximum:
                self.aliases = Aliases(alias_maximum)
        self.special = self.apart()
        if self.v5:
            self.send(serialize(Connack(session_present, 0, properties), 5))
        else:
            self.send(_CONNACK_PRESENT if session_present else _CONNACK_NEW)
        session.attach(self, receive_maximum, max_packet)
        session.resend()

    def resume_input(self) -> None:
        """After a late `accept`: handle what came meanwhile and read again."""
        self.resume()
        if self.challenged:
            self._answered()
            return
        rest = self.rest
        if rest is not None and self.state == OPEN:
            self.rest = None
            if self.intake is None:
                self.packets(rest.whole())
            else:
                self.intake.take(rest.whole())

    def refuse(self, code: int, detail: str, properties: Properties | None = None) -> None:
        """The server refuses the CONNECT: CONNACK with the reason, then close."""
        if self.state != WAITING:
            return
        self.connect = None
        self.server.metrics.connects_refused += 1
        if self.v5:
            self.send(serialize(Connack(False, code, properties), 5))
        else:
            self.send(bytes((0x20, 2, 0, reasons.to_connack_v3(code))))
        self.end(detail)

    def _disconnect(self, packet: Disconnect) -> None:
        session = self.session
        assert session is not None
        if packet.properties is not None:
            expiry = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
            if isinstance(expiry, int):
                if session.expiry_interval == 0 and expiry != 0:
                    raise ProtocolViolation("session expiry raised from 0 at DISCONNECT")
                maximum = self.server.settings.max_expiry_interval_seconds
                session.expiry_interval = expiry if expiry < maximum else maximum
        if packet.reason_code == reasons.SUCCESS:
            session.will = None
        self.end("client disconnected")

    def apart(self) -> bool:
        """Whether this client's bytes differ: it allows topic aliases, or its names are mounted."""
        if self.mount is not None:
            return True
        return self.aliases is not None and self.aliases.outgoing_maximum > 0

    def shorten(self, wire: bytes, largest: int) -> bytes:
        """A PUBLISH for a client that allows topic aliases, with one where that is possible."""
        aliases = self.aliases
        return wire if aliases is None else aliases.shorten(wire, largest)

    def send_info(self, info: object) -> None:
        """Tell the client something: hook client.handle_info turns it into messages for it."""
        session = self.session
        if session is not None and self.state == OPEN:
            self.server.handle_info(session, info)

    # -- end -----------------------------------------------------------------------------------

    def due(self, now: int) -> None:
        """Time-out of the first byte or of CONNECT, or keep alive."""
        if self.state in (NEW, WAITING):
            at = self.last + self.server.connect_timeout(self.listener)
            if self.state == NEW and now < at:
                if self.rest is not None:
                    self.server.wheel.schedule(self, at)
                    return
                if self.need < 0:
                    self.server.metrics.first_byte_timeouts += 1
                    self._too_late("not a byte in time")
                    return
            self.server.metrics.connect_timeouts += 1
            self._too_late("no CONNECT in time")
        elif self.state == OPEN and self.keepalive:
            if self.paused and not self.blocked:
                self.last = now  # it is we who do not read
            if now - self.last >= self.keepalive:
                self.server.metrics.keepalive_timeouts += 1
                self.close(reasons.KEEP_ALIVE_TIMEOUT, "keep alive timeout")
            else:
                self.server.wheel.schedule(self, self.last + self.keepalive)

    def _too_late(self, reason: str) -> None:
        self.server.refused(self, reason)
        self.close(reasons.KEEP_ALIVE_TIMEOUT, reason)

    def fail(self, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: log, answer as its version allows, close."""
        self.server.metrics.malformed_packets += 1
        self.server.fault(self, error, packet_type)
        if self.state == NEW and isinstance(error, reasons.UnsupportedVersion):
            self.send(b"\x20\x02\x00\x01")
        self.close(error.reason_code, error.detail)

    def close(self, code: int, detail: str) -> None:
        """End the connection from our side, with DISCONNECT where 5.0 has one."""
        if self.state == CLOSED:
            return
        if self.state == OPEN and self.v5:
            self.send(serialize(Disconnect(code, None), 5))
        self.end(detail)

    def end(self, detail: str) -> None:
        """The connection is over: nothing more is read, what is due is written, then closed."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.close_reason = detail
        self.rest = None
        self.server.closing.append(self)
        if not self.dirty:
            # `perform` looks at closing after flushing what is dirty.
            self.dirty = True
            self.server.dirty.append(self)

    def lost(self) -> None:
        """The connection is gone (called by the edge, once); the session goes its own way."""
        if self.state != CLOSED:
            self.state = CLOSED
            if not self.close_reason:
                self.close_reason = "connection lost"
        self.server.wheel.cancel(self)
        if self.intake is not None:
            self.intake.close()
            self.intake = None
        if self.server.slow:
            self.server.slow.pop(self, None)
        self.server.closed(self)
        self.session = None
        self.connect = None
        self.auth = None
        self.out = None
        self.out_bytes = 0
        self.out_at = 0
        self.rest = None
        self.grants = None
        self.aliases = None
        self.mount = None
        self.io = None

    def info(self) -> dict[str, object]:
        """What the control API shows of a connection."""
        host, port = self.edge.peer(self)
        return {
            "peer": f"{host}:{port}",
            "listener": self.listener,
            "protocol": {3: "3.1", 4: "3.1.1", 5: "5.0"}.get(self.version, ""),
            "state": STATES[self.state][0],
            "out_bytes": self.out_bytes,
            "blocked": self.blocked,
            "keepalive_seconds": self.keepalive / 1000,
        }


def _not_connect(data: bytes) -> ProtocolViolation:
    seen = looks_like(data)
    text = "the first packet is not CONNECT"
    return ProtocolViolation(f"{text} but {seen}" if seen else text)


def _int(properties: Properties, name: int) -> int:
    value = properties.get(name)
    return value if isinstance(value, int) else 0
