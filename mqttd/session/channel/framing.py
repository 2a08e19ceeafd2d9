"""From a stream of bytes to packets, each handed to whom it concerns.

    chunk  | PUBLISH | PUBLISH | PUBACK | PUBL        --> Forwarding, Acknowledging
                                           `-- kept until the rest has come (`unfinished`)

`feed` is called with what was read, in pieces of any size; the loop over the complete packets of a
chunk is the broker's hot path, PUBLISH first. It walks the fixed header by itself, for speed; a
test holds it to `mqttd.codec.frame`. What other packets mean is the business of the class above.

Who causes more work than a turn is for (many receivers, new topics, long lists of filters) is put
behind the others: what it sent waits, and it is not read from meanwhile.

Promise: a packet is handed on when it is complete, and no byte of it before, but that a packet that
is too large, or that cannot be the first, ends the connection before it is read. MQTT 5.0, 2.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.codec.frame import cut, size_at
from mqttd.codec.properties import decode_varint
from mqttd.codec.reasons import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
    QuotaExceeded,
)
from mqttd.codec.scan import more_filters
from mqttd.codec.sniff import looks_like
from mqttd.session.channel.acknowledging import Acknowledging
from mqttd.session.ground.account import CONNECTION
from mqttd.session.ground.connection import CLOSED, NEW, OPEN, WAITING, Edge
from mqttd.session.ground.unfinished import AT_ONCE, READ, Unfinished
from mqttd.session.ground.wheel import Timer
from mqttd.session.publish.general import Router
from mqttd.session.routes.ahead import look_ahead

if TYPE_CHECKING:
    from mypy_extensions import i16, i32

__all__ = ["ALLOWANCE", "FEW", "Framing", "Inlet"]

#: Units of work that one connection causes in a turn (a delivery is one): 5 to 10 milliseconds.
ALLOWANCE: Final = 10_000
#: Bytes of topics that a connection may have aliases stand for in a turn: some reads full of them.
_NAMED: Final = READ << 2
#: Bytes of a chunk that may hold several messages.
_LEAST: Final = 32

_PINGREQ: Final = b"\xc0\0"

#: A packet that is not larger than this is parsed whatever it is.
FEW: Final = 10_000
#: Bytes of a packet that is no PUBLISH, whatever is allowed for those; filters of one, if a session
#: may not have more. All are parsed in one step: 10,000 filters in 1 ms, a megabyte in up to 0.1 s.
_CONTROL: Final = 1 << 20
_FILTERS: Final = 10_000
#: Bytes of one that has no filters, and of the properties of one that has: more than a string of
#: 64 KiB; as 26,000 empty User Properties some 5 ms.
_PROPERTIES: Final = 128 << 10


class Inlet(Timer):
    """What is read passes through here where its rate is limited
    (`mqttd.session.channel.limits`)."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.due_at = 0
        self.slotted = 0
        #: Nothing may pass for now; it goes on by itself.
        self.waiting: bool = False

    def take(self, data: bytes) -> None:
        """Pass on what may pass, and keep the rest."""
        raise NotImplementedError

    def size(self) -> int:
        """Bytes that are kept."""
        raise NotImplementedError

    def ends(self, detail: str) -> bool:
        """Nothing more comes of the client: whether what is behind this sees to the end."""
        return False

    def close(self) -> None:
        """The connection is gone."""
        raise NotImplementedError


class Framing(Acknowledging):
    """A connection whose bytes are taken apart into packets."""

    __slots__ = (
        "asking",
        "at_once",
        "busy",
        "intake",
        "kept",
        "messages",
        "need",
        "put_off",
        "rest",
        "stranger",
        "waited",
    )

    def __init__(self, router: Router, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(router, edge, fd, listener)
        #: The packet that is not complete; what came while authentication is under way.
        self.rest: Unfinished | None = None
        self.intake: Inlet | None = None
        #: PUBLISH packets that came.
        self.messages: int = 0
        #: What is charged for unfinished packets, and of it for the CONNECT that is decided on.
        self.kept: int = 0
        # As in `Connection`: what is small stands together.
        self.asking: i32 = 0
        #: Bytes to read at once from a client that sends large packets one after another; 0: as
        #: from any other.
        self.at_once: i32 = 0
        #: Below 0 while the first byte is waited for.
        self.need: i16 = 0
        #: Something that it sent takes more than a turn: what is behind it waits.
        self.busy: bool = False
        #: What is under way is done, but it is withheld: it goes on when it is not.
        self.put_off: bool = False
        #: It was withheld until there was room: what it has sent meanwhile goes, a read of it,
        #: though others have filled that again.
        self.waited: bool = False
        #: Not let in yet.
        self.stranger: bool = False

    def feed(self, data: bytes) -> None:
        """Take a chunk of received bytes; handles every complete packet in it."""
        router = self.router
        router.metrics.bytes_received += len(data)
        self.bytes_received += len(data)
        if self.state == WAITING:
            self.hold(data)
            self.weigh()
            return
        if self.state == CLOSED:
            return
        rest = self.rest
        if rest is not None:
            # Before CONNECT exactly what was sent: bounded by `max_connect_size`.
            data = rest.add(data, self.state == NEW)
            if not data:
                self.weigh()
                return
            self.rest = None
        self._take(data)

    def came(self, count: int) -> None:
        """So many bytes were read to where the `rest` has room."""
        rest = self.rest
        assert rest is not None
        self.router.metrics.bytes_received += count
        self.bytes_received += count
        data = rest.came(count)
        if data:
            self.rest = None
            if count + READ >= len(data) <= AT_ONCE and len(data) <= rest.proved:
                self.at_once = len(data)  # all of it was there when it was asked for
            self._take(data)
        else:
            self.weigh()

    def unfinished(self) -> int:
        """Bytes held of what was received and could not be handled yet."""
        held = self.edge.behind(self)
        if self.rest is not None:
            held += self.rest.size
        return held if self.intake is None else held + self.intake.size()

    # -- account -------------------------------------------------------------------------------

    def arrive(self) -> None:
        """A connection is there, of somebody who has not been let in."""
        account = self.router.account
        account.connections += CONNECTION
        account.unauthenticated += CONNECTION
        self.stranger = True
        self.router.strangers[self] = None

    def let_in(self) -> None:
        """The client is who it says."""
        if self.stranger:
            self.stranger = False
            self.router.strangers.pop(self, None)
            self.router.account.unauthenticated -= CONNECTION + self.kept
        self.asking = 0
        self.weigh()

    def depart(self) -> None:
        """The connection is gone, with all that was held for it."""
        self.let_in()
        account = self.router.account
        account.connections -= CONNECTION
        account.unfinished -= self.kept
        self.kept = 0

    def held(self) -> int:
        """As `Connection.held`, with what is unfinished."""
        return super().held() + CONNECTION + self.kept

    def weigh(self) -> None:
        """Charge what is held of unfinished packets now, and of a stranger's handshake."""
        asking: int = self.asking
        held = self.unfinished() + asking
        if self.stranger:
            held += self.edge.holding(self)
        more = held - self.kept
        if not more:
            return
        self.kept = held
        router = self.router
        router.account.unfinished += more
        if self.stranger:
            router.account.unauthenticated += more
            most = router.settings.memory_unauthenticated
            if more > 0 and most and router.account.unauthenticated > most:
                router.crowded()

    def _take(self, data: bytes) -> None:
        """Handle a chunk that begins with a packet, and see whether to read on."""
        self.router.clogged = None  # whoever has filled it: this client has not
        router = self.router
        records = router.journal.records() if router.congested else 0
        if self.intake is None:
            self.packets(data)
        else:
            self.intake.take(data)
        if self.rest is not None or self.kept or self.intake is not None:
            self.weigh()
        if self.out_bytes > self.limit and (self.blocked or self.paced):
            # Its acknowledgements cannot be written: do not read more from it.
            self.pause()
            self.thirsty = True
        elif (
            (router.congested or router.awaited() > router.settings.backlog)
            and _brings(data)
            and self.state == OPEN
            and not self.paused
            and not self._passes(records)
        ):
            self.pause()
            router.stalled[self] = None
        if router.clogged is not None:
            router.clogged.hold_back(self)
            router.clogged = None

    def _passes(self, records: int) -> bool:
        """Whether this client is read from though not all behind the broker can follow.

        Where that is the store alone, of which there were so many `records`, who has brought it
        nothing has nothing to wait for: one user's messages would hold up everybody's.
        """
        router = self.router
        return (
            router.store_alone
            and router.journal.records() == records
            and router.awaited() <= router.settings.backlog
        )

    def resume(self) -> None:
        """Read from the peer again."""
        if self.busy or self.withheld or (self.intake is not None and self.intake.waiting):
            return  # goes on by itself
        super().resume()

    def works(self) -> bool:
        """See `Connection.works`."""
        return self.busy

    def let_go_on(self) -> None:
        """See `Connection.let_go_on`."""
        self.withheld = False
        self.waited = True
        if self.put_off:
            self.put_off = False
            self.router.end_work_later(self)
        else:
            self.resume()

    def begin_work(self) -> None:
        """What this client asked for takes more than a turn; `end_work` when it is done."""
        self.busy = True
        self.router.topics.work = ALLOWANCE + 1
        self.pause()

    def end_work(self) -> None:
        """Go on with what the client has sent meanwhile."""
        if self.leaving:
            return
        if self.withheld and self.state == OPEN:
            self.put_off = True
            return
        self.busy = False
        if self.state != OPEN:
            return
        self.resume()
        rest = self.rest
        if rest is not None:
            self.rest = None
            self._take(rest.whole())
        elif self.intake is not None:
            self._take(b"")  # what was behind it has gone back there

    def packets(self, data: bytes) -> None:
        """Handle every complete packet of a chunk, whatever the limits; the rest is kept."""
        if self.busy:
            rest = self.rest
            self.rest = Unfinished(data if rest is None else rest.whole() + data, 0)
            return
        self.router.packet_type = 0
        outermost = self.messages >= 0
        if outermost:
            self.messages -= self._published() + 1  # below 0: see `taken`
        try:
            self._loop(data)
        except MqttError as error:
            self.fail(error, self.router.packet_type)
        self.waited = False
        self.router.topics.ahead = None
        if outermost:
            self.messages += self._published() + 1

    def taken(self) -> int:
        """PUBLISH packets of this client so far, also while a chunk of it is handled."""
        if self.messages >= 0:
            return self.messages
        return self.messages + self._published() + 1

    def _published(self) -> int:
        """PUBLISH packets of everybody so far: counted where they are handled, for all at once."""
        metrics = self.router.metrics
        return (
            metrics.messages_received_qos0
            + metrics.messages_received_qos1
            + metrics.messages_received_qos2
        )

    def _loop(self, data: bytes) -> None:
        """The loop over the packets of a chunk."""
        router = self.router
        metrics = router.metrics
        topics = router.topics
        topics.work = 0
        named: int = topics.named + _NAMED
        n: int = len(data)
        pos: int = 0
        count: int = 0
        opened: bool = self.state == OPEN
        if opened and n > _LEAST and len(topics.table) >= router.settings.look_ahead:
            stems = None if router.has_workers else self.stems()
            topics.ahead = look_ahead(data, topics.table, stems)
        largest: int = self.largest if opened else router.settings.max_connect_size
        while n - pos >= 2:
            first: int = data[pos]
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
                        if b == 0 and self.v5:
                            raise MalformedPacket("remaining length with bytes to spare")
                        complete = True
                        break
                    shift += 7
                    if shift > 21:
                        raise MalformedPacket("remaining length of more than four bytes")
                if not complete:
                    if not opened and first != 0x10:
                        raise _not_connect(data)
                    break
            end: int = p + length
            if end - pos > largest:
                raise PacketTooLarge(f"packet of {end - pos} bytes, at most {largest} are taken")
            if not opened and first != 0x10:
                raise _not_connect(data)
            if end > n:
                break
            count += 1
            metrics.packets_received += 1  # here, since one behind it may end this with an error
            if first & 0xF0 == 0x30 and opened:
                pos = self.take_publish(data, pos, p, end)
            elif length == 2 and opened and 0x40 <= first < 0x80:
                packet_id: int = data[p] << 8 | data[p + 1]
                if first == 0x40:
                    self.take_puback(packet_id, 0)
                elif first == 0x62:
                    self.take_pubrel(packet_id)
                elif first == 0x50:
                    self.take_pubrec(packet_id, 0)
                elif first == 0x70:
                    self.take_pubcomp(packet_id)
                else:
                    self.take_packet(first, data[p:end])
                pos = end
            elif first == 0xC0 and length == 0 and opened:
                self.send(b"\xd0\x00")
                pos = end
            else:
                self.take_packet(first, data[p:end])
                pos = end
                if self.state == WAITING and pos < n:
                    self.hold(data[pos:])
                    pos = n
                elif self.state == OPEN and not opened:
                    # CONNECT was accepted at once: go on with the session's own limits.
                    opened = True
                    largest = self.largest
                    if self.intake is not None and pos < n:
                        self.intake.take(data[pos:])
                        pos = n
            clogged: bool = router.clogged is not None and not self.waited
            if (topics.work > ALLOWANCE or topics.named > named or clogged) and self.state == OPEN:
                if pos < n and not self.busy:
                    self.begin_work()
                    router.end_work_later(self)
                break
            if self.state != OPEN:
                break
        if count:
            # Only complete packets keep a client alive (MQTT-3.1.2-22).
            self.last = router.now
            if router.sample_at and metrics.packets_received >= router.sample_at:
                router.sample(self)
        if pos < n and self.state != CLOSED:
            self._keep(data, pos, n)

    def _keep(self, data: bytes, pos: int, n: int) -> None:
        """Keep an incomplete packet, and how many bytes it needs in all."""
        if self.state == WAITING:
            return
        if self.busy:
            self.rest = Unfinished(data[pos:], 0)
            return
        if not self.state == OPEN and data[pos] != 0x10:
            raise ProtocolViolation("the first packet is not CONNECT")
        size = size_at(data, pos, n)
        start = cut(data, pos, n)
        self.rest = Unfinished(start, size if size > 0 else n - pos + 1, self.bytes_received >> 3)

    def check_size(self, kind: int, body: bytes) -> None:
        """Such a packet is parsed at once: not for longer than others may wait."""
        filters = kind == 8 or kind == 10
        most = _CONTROL if filters else _PROPERTIES
        if len(body) > most:
            raise PacketTooLarge(f"{len(body)} bytes of a packet that may have {most}")
        if not filters:
            return
        if self.v5 and decode_varint(body, 2, len(body))[0] > _PROPERTIES:
            raise QuotaExceeded(f"more than {_PROPERTIES} bytes of properties")
        most = self.router.settings.max_subscriptions
        most = most if most > _FILTERS else _FILTERS
        if more_filters(body, self.v5, 1 if kind == 8 else 0, most):
            raise QuotaExceeded(f"more than {most} filters in a packet")

    def hold(self, data: bytes) -> None:
        """Keep what comes while authentication is under way."""
        raise NotImplementedError

    def make_room(self) -> None:
        """Those who have not been let in hold too much, and this is the oldest of them."""
        raise NotImplementedError

    def take_packet(self, first: int, body: bytes) -> None:
        """Any packet that the loop does not serve itself."""
        raise NotImplementedError

    def fail(self, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: log, answer as its version allows, close."""
        raise NotImplementedError


def _not_connect(data: bytes) -> ProtocolViolation:
    seen = looks_like(data)
    text = "the first packet is not CONNECT"
    return ProtocolViolation(f"{text} but {seen}" if seen else text)


def _brings(data: bytes) -> bool:
    """Whether there is more than PINGREQs, and perhaps the begin of something: who only asks
    whether we are there, however often until we looked, brings nobody anything."""
    count = len(data) >> 1
    return count > 1 and data.count(_PINGREQ) < count
