"""A model of the sessions of a broker, and honest clients that hold it to the standard.

    World -- Client (what a client must remember) -- MemoryClient -- Broker
      |
      +-- ModelSession (what the broker must remember): queue, inflight, awaiting_rel

`World` does one step at a time to both sides. After each it compares all that the broker wrote with
what the model expects, packet by packet; the clients then take it in when a step tells them to, or
lose it with their connection. What they hand to their application is judged apart from the model:

* QoS 2: never twice, and in the end each message that was not dropped, once
* QoS 1: in the end each message that was not dropped, at least once
* QoS 1 and 2: first deliveries in the order of acceptance, per topic and QoS
* a packet id in flight is not given to another message
* inflight and queue never hold more than they may
* what the account says is held is what is there

MQTT 5.0: 4.3 (QoS), 4.4 (redelivery), 4.6 (order), 4.9 (flow control), 3.1.2.4 and 3.1.4 (start).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import match
from mqttd.session.ground.settings import Settings
from tests.support import sizes
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

__all__ = ["CLIENTS", "FILTERS", "MAX_IDS", "TOPICS", "World"]

CLIENTS = 3
TOPICS = ["t/0", "t/1"]
FILTERS = ["t/0", "t/1", "t/+", "#"]
MAX_INFLIGHT = 3
MAX_QUEUE = 5
#: Messages that one client may have unfinished towards the broker.
MAX_IDS = 6
EXPIRY = 1000
#: Packet ids of clients, the first that is free: few, so that they recur.
IDS = [*sizes.PACKET_IDS, *range(3, 40)]
#: Remaining lengths of messages in turn; 0: what a number takes.
SIZES = [0, 126, 0, 127, 16_383, 0, 128, 0, 125, 16_384, 0]


@dataclass
class Item:
    """One message on its way to one session."""

    number: int
    topic: str
    payload: bytes
    qos: int
    #: "sent", "released", or "unsent" on this connection.
    stage: str = "sent"


@dataclass
class ModelSession:
    """What the broker must remember of one client."""

    lasting: bool
    subscriptions: dict[str, int] = field(default_factory=dict)
    queue: deque[Item] = field(default_factory=deque)
    inflight: dict[int, Item] = field(default_factory=dict)
    awaiting_rel: set[int] = field(default_factory=set)

    def granted(self, topic: str) -> int:
        """The QoS of the one copy that overlapping subscriptions get; -1 for none."""
        return max([q for f, q in self.subscriptions.items() if match(topic, f)], default=-1)

    def push(self, item: Item) -> Item | None:
        """Queue a message; returns the one that was dropped for it."""
        dropped: Item | None = None
        if len(self.queue) >= MAX_QUEUE:
            dropped = next((queued for queued in self.queue if queued.qos == 0), None)
            if dropped is None and item.qos == 0:
                return item
            if dropped is None:
                dropped = self.queue[0]
            self.queue.remove(dropped)
        self.queue.append(item)
        return dropped


class Client:
    """An honest client: keeps what the standard tells clients to keep, nothing more."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.client_id = f"client-{index}"
        self.link: MemoryClient | None = None
        self.window = MAX_INFLIGHT
        #: Unfinished messages of its own, in order: packet id -> PUBLISH, or PUBREL.
        self.outgoing: dict[int, Packet] = {}
        #: QoS 2 packet ids that it received and that were not released.
        self.received: set[int] = set()
        #: Answers on their way, per packet id: until they came, the id is not used again.
        self.waiting: Counter[int] = Counter()
        #: What the broker wrote and this client did not take in yet, and which acceptance it is.
        self.inbox: deque[tuple[Packet, int]] = deque()
        #: Acknowledgements that it owes.
        self.owed: list[Packet] = []
        #: What its application got: (payload, QoS) -> times; the last number per (topic, QoS).
        self.application: Counter[tuple[bytes, int]] = Counter()
        self.last: dict[tuple[str, int], int] = {}

    def forget_connection(self) -> None:
        self.link = None
        self.inbox.clear()
        self.owed.clear()
        self.waiting.clear()

    def free_id(self) -> int:
        """A packet id that nothing on this connection stands for; few, so that they recur."""
        for packet_id in IDS:
            if not self.waiting[packet_id] and packet_id not in self.outgoing:
                return packet_id
        raise AssertionError("a client has no packet id left")

    def forget_session(self) -> None:
        self.outgoing.clear()
        self.received.clear()


class World:
    """The broker, its clients, and the model between them."""

    def __init__(self) -> None:
        self.node = started()
        self.clients = [Client(i) for i in range(CLIENTS)]
        self.sessions: list[ModelSession | None] = [None] * CLIENTS
        #: Messages so far; each payload begins with the number.
        self.count = 0
        #: Times that the broker accepted something, for the order.
        self.accepted = 0
        #: (client, payload, QoS) -> copies that the broker owes; minus what may be lost.
        self.owed: Counter[tuple[int, bytes, int]] = Counter()
        #: What the model expects to see written to each client.
        self.expected: list[list[tuple[object, ...]]] = [[] for _ in range(CLIENTS)]
        self.figures: Counter[str] = Counter()

    # -- who can do what -------------------------------------------------------------------------

    def online(self) -> list[int]:
        """The clients with a connection."""
        return [c.index for c in self.clients if c.link is not None]

    def away(self) -> list[int]:
        """The clients without one."""
        return [c.index for c in self.clients if c.link is None]

    def publishers(self) -> list[int]:
        """The clients that may begin another QoS 1 or 2 message."""
        return [i for i in self.online() if len(self.clients[i].outgoing) < MAX_IDS]

    def unfinished(self) -> list[int]:
        """The clients with such messages under way."""
        return [i for i in self.online() if self.clients[i].outgoing]

    def readers(self) -> list[int]:
        """The clients to which something came."""
        return [i for i in self.online() if self.clients[i].inbox]

    def debtors(self) -> list[int]:
        """The clients that owe acknowledgements."""
        return [i for i in self.online() if self.clients[i].owed]

    # -- steps ---------------------------------------------------------------------------------

    def connect(
        self, i: int, version: int, clean: bool, lasting: bool, receive_maximum: int = 0
    ) -> None:
        """A CONNECT: the first, a resumption, or a takeover of an open connection."""
        client = self.clients[i]
        if version < 5:
            lasting = not clean
        held = self.sessions[i]
        if client.link is not None:
            self.figures["takeover"] += 1
            if held is not None and not held.lasting:
                self._end(i)
        if clean:
            self._end(i)
        held = self.sessions[i]
        present = held is not None
        old = client.link
        client.forget_connection()
        properties: dict[int, object] = {}
        if version == 5 and lasting:
            properties[prop.SESSION_EXPIRY_INTERVAL] = EXPIRY
        client.window = MAX_INFLIGHT
        if version == 5 and receive_maximum:
            properties[prop.RECEIVE_MAXIMUM] = receive_maximum
            client.window = min(receive_maximum, MAX_INFLIGHT)
        link = self.node.connect(
            client.client_id,
            version,
            clean=clean,
            properties=properties or None,  # type: ignore[arg-type]
        )
        client.link = link
        assert link.connack is not None
        assert link.connack.session_present is (present and version >= 4), "session present"
        if old is not None:
            assert old.closed and old.wire.closed, "the older connection stays open"
        if held is None:
            held = self.sessions[i] = ModelSession(lasting)
            client.forget_session()
            self.figures["new session"] += 1
        else:
            held.lasting = lasting
            self.figures["resume"] += 1
            self._resume(i, held)
        self.compare()
        # 4.4: the client sends again what it has unfinished, in the old order.
        for packet in list(client.outgoing.values()):
            if isinstance(packet, Publish):
                packet = again(packet)
            self._send(i, packet)

    def drop(self, i: int) -> None:
        """The connection breaks; what was on its way to the client is lost."""
        client = self.clients[i]
        if client.link is None:
            return
        client.link.drop()
        self._gone(i)
        self.figures["drop"] += 1

    def leave(self, i: int) -> None:
        """The client disconnects as it should."""
        client = self.clients[i]
        if client.link is None:
            return
        client.link.send(Disconnect())
        assert client.link.closed
        self._gone(i)
        self.figures["disconnect"] += 1

    def subscribe(self, i: int, topic_filter: str, qos: int) -> None:
        client, held = self.clients[i], self.sessions[i]
        if client.link is None or held is None:
            return
        held.subscriptions[topic_filter] = qos
        self.expected[i].append(("SUBACK", qos))
        client.link.send(Subscribe(1000, [Subscription(topic_filter, qos)]))
        self.compare()
        self.figures["subscribe"] += 1

    def unsubscribe(self, i: int, topic_filter: str) -> None:
        client, held = self.clients[i], self.sessions[i]
        if client.link is None or held is None:
            return
        held.subscriptions.pop(topic_filter, None)
        self.expected[i].append(("UNSUBACK",))
        client.link.send(Unsubscribe(1001, [topic_filter]))
        self.compare()
        self.figures["unsubscribe"] += 1

    def publish(self, i: int, topic: str, qos: int, cut: int = -1) -> None:
        """A new message; with `cut`, the connection breaks after so many of its bytes."""
        client = self.clients[i]
        if client.link is None or (qos and len(client.outgoing) >= MAX_IDS):
            return
        packet_id = client.free_id() if qos else 0
        self.count += 1
        payload = b"%d" % self.count
        size = SIZES[self.count % len(SIZES)]
        if size:
            payload = sizes.fill(
                lambda load: serialize(Publish(topic, load, qos, packet_id=1), 4), size, payload
            )
        packet = Publish(topic, payload, qos, packet_id=packet_id)
        if qos:
            client.outgoing[packet_id] = packet
        self.figures[f"publish QoS {qos}"] += 1
        if cut < 0:
            self._send(i, packet)
            return
        wire = serialize(packet, client.link.version)
        client.link.feed(wire[: min(cut, len(wire) - 1)])
        self.figures["publish cut"] += 1
        self.drop(i)

    def duplicate(self, i: int, n: int) -> None:
        """The client sends an unfinished message again, though the connection is well."""
        client = self.clients[i]
        if client.link is None or not client.outgoing:
            return
        packet = list(client.outgoing.values())[n % len(client.outgoing)]
        self._send(i, again(packet) if isinstance(packet, Publish) else packet)
        self.figures["duplicate"] += 1

    def receive(self, i: int, amount: int) -> None:
        """The client takes in the next packets that came."""
        client = self.clients[i]
        for _ in range(min(amount, len(client.inbox))):
            packet, number = client.inbox.popleft()
            self._take_in(i, packet, number)
        self.figures["receive"] += 1

    def acknowledge(self, i: int, n: int) -> None:
        """The client sends one of the acknowledgements that it owes, in any order."""
        client = self.clients[i]
        if client.link is None or not client.owed:
            return
        self._send(i, client.owed.pop(n % len(client.owed)))
        self.figures["acknowledge"] += 1

    def expire(self) -> None:
        """So much time passes that the sessions of all who are away end."""
        self.node.jump(8_000_000)
        for i, client in enumerate(self.clients):
            if client.link is None and self.sessions[i] is not None:
                self._end(i)
                self.figures["expiry"] += 1
        self.compare()

    def restart(self) -> None:
        """The broker ends without a word and another starts: sessions in memory are gone.

        Who comes back is told so (session present 0) and forgets its part (4.1).
        """
        self.node = started()
        for i, client in enumerate(self.clients):
            client.forget_connection()
            self._end(i)
        self.compare()
        self.figures["restart"] += 1

    def finish(self) -> None:
        """Everybody comes back and everything runs out: now nothing may be missing."""
        for i in range(CLIENTS):
            if self.clients[i].link is None and self.sessions[i] is not None:
                self.connect(i, 4, False, True)
        busy = True
        while busy:
            busy = False
            for i, client in enumerate(self.clients):
                while client.inbox or client.owed:
                    busy = True
                    self.receive(i, len(client.inbox))
                    self.acknowledge(i, 0)
        for i, client in enumerate(self.clients):
            held = self.sessions[i]
            assert held is None or not held.queue, "messages stay in the queue"
            assert held is None or not held.inflight, "messages stay in flight"
            assert client.link is None or not client.outgoing, "messages stay with the client"
        for (i, payload, qos), copies in self.owed.items():
            got = self.clients[i].application[payload, qos]
            assert got >= min(copies, 1), f"client {i} never got {payload!r} (QoS {qos})"

    # -- the model -----------------------------------------------------------------------------

    def _send(self, i: int, packet: Packet) -> None:
        """One packet of a client reaches the broker: the model first, then the broker."""
        held = self.sessions[i]
        client = self.clients[i]
        link = client.link
        assert held is not None and link is not None
        if isinstance(packet, Publish | Pubrel) and packet.packet_id:
            client.waiting[packet.packet_id] += 1
        if isinstance(packet, Publish):
            self._accept(i, held, packet)
        elif isinstance(packet, Pubrel):
            held.awaiting_rel.discard(packet.packet_id)
            self.expected[i].append(("PUBCOMP", packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            if packet.packet_id in held.inflight:
                del held.inflight[packet.packet_id]
                self._pump(i, held)
        elif isinstance(packet, Pubrec):
            item = held.inflight.get(packet.packet_id)
            if item is not None:
                item.stage = "released"
            self.expected[i].append(("PUBREL", packet.packet_id))
        link.send(packet)
        self.compare()

    def _accept(self, i: int, held: ModelSession, packet: Publish) -> None:
        if packet.qos == 2 and packet.packet_id in held.awaiting_rel:
            self.expected[i].append(("PUBREC", packet.packet_id))
            return
        if packet.qos == 2:
            held.awaiting_rel.add(packet.packet_id)
        self.accepted += 1
        for j, other in enumerate(self.sessions):
            granted = other.granted(packet.topic) if other is not None else -1
            if other is None or granted < 0:
                continue
            item = Item(self.accepted, packet.topic, packet.payload, min(packet.qos, granted))
            self._deliver(j, other, item)
        if packet.qos:
            self.expected[i].append(("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id))

    def _deliver(self, i: int, held: ModelSession, item: Item) -> None:
        client = self.clients[i]
        if item.qos:
            self.owed[i, item.payload, item.qos] += 1
        online = client.link is not None
        if item.qos == 0:
            if online and not any(queued.qos == 0 for queued in held.queue):
                self._expect(i, item, False)
                return
        elif online and not held.queue and len(held.inflight) < client.window:
            self._expect(i, item, False)
            return
        dropped = held.push(item)
        if dropped is not None:
            self._lost(i, dropped)
            self.figures["queue overflow"] += 1

    def _expect(self, i: int, item: Item, dup: bool) -> None:
        """The broker writes this PUBLISH; its packet id is learnt when it comes."""
        self.expected[i].append(("PUBLISH", item, dup))
        if item.qos and not dup:
            # A place in the window until then, under an id that no packet has.
            sessions = self.sessions[i]
            assert sessions is not None
            sessions.inflight[-item.number] = item

    def _pump(self, i: int, held: ModelSession) -> None:
        """What waits moves up as the window allows: first what an older connection was sent."""
        window = self.clients[i].window
        for packet_id, item in held.inflight.items():
            if item.stage != "unsent":
                continue
            if sum(other.stage != "unsent" for other in held.inflight.values()) >= window:
                return
            item.stage = "sent"
            self.expected[i].append(("AGAIN", packet_id, item))
        while held.queue:
            if held.queue[0].qos and len(held.inflight) >= window:
                self.figures["window full"] += 1
                return
            self._expect(i, held.queue.popleft(), False)

    def _resume(self, i: int, held: ModelSession) -> None:
        sent = 0
        window = self.clients[i].window
        for packet_id, item in held.inflight.items():
            if item.stage == "released":
                self.expected[i].append(("PUBREL", packet_id))
                sent += 1
            elif sent < window:
                item.stage = "sent"
                self.expected[i].append(("AGAIN", packet_id, item))
                sent += 1
                self.figures["redelivery"] += 1
            else:
                item.stage = "unsent"
        if not any(item.stage == "unsent" for item in held.inflight.values()):
            self._pump(i, held)

    def _gone(self, i: int) -> None:
        self.clients[i].forget_connection()
        held = self.sessions[i]
        if held is not None and not held.lasting:
            self._end(i)
        self.compare()

    def _end(self, i: int) -> None:
        """The session ends; what it held is lost, and the client forgets its part too."""
        held = self.sessions[i]
        if held is not None:
            for item in [*held.queue, *held.inflight.values()]:
                self._lost(i, item)
        self.sessions[i] = None
        self.clients[i].forget_session()

    def _lost(self, i: int, item: Item) -> None:
        if item.qos:
            self.owed[i, item.payload, item.qos] -= 1

    # -- what the broker wrote -----------------------------------------------------------------

    def compare(self) -> None:
        """Everything that was written since the last time is what the model expects, in order."""
        for i, client in enumerate(self.clients):
            expected = self.expected[i]
            written = client.link.take() if client.link is not None else []
            for packet in written:
                assert expected, f"client {i}: not expected: {packet!r}"
                number = self._match(i, expected.pop(0), packet)
                client.inbox.append((packet, number))
            assert not expected, f"client {i}: was not sent: {expected[0]!r}"
            assert client.link is None or not client.link.closed, "the broker closed"
            self._bounds(i)
        assert not self.node.broker.metrics.crashes
        audit(self.node.broker, [c.link.channel for c in self.clients if c.link is not None])

    def _match(self, i: int, expected: tuple[object, ...], packet: Packet) -> int:
        shown = f"client {i}: {packet!r}, expected {expected!r}"
        held = self.sessions[i]
        assert held is not None
        if isinstance(packet, Publish):
            item = expected[1] if expected[0] == "PUBLISH" else expected[-1]
            assert isinstance(item, Item), shown
            again = expected[0] == "AGAIN"
            assert packet.dup is again, shown
            assert (packet.topic, packet.payload, packet.qos, packet.retain) == (
                item.topic,
                item.payload,
                item.qos,
                False,
            ), shown
            if again:
                assert packet.packet_id == expected[1], shown
            elif item.qos:
                assert packet.packet_id not in held.inflight, f"id in flight reused: {shown}"
                # The place that was kept becomes the packet's, in the same order.
                held.inflight = {
                    packet.packet_id if kept is item else known: kept
                    for known, kept in held.inflight.items()
                }
            return item.number
        if isinstance(packet, Suback):
            assert expected == ("SUBACK", packet.reason_codes[0]), shown
        elif isinstance(packet, Unsuback):
            assert expected == ("UNSUBACK",), shown
        else:
            name = type(packet).__name__.upper()
            assert isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp), shown
            assert expected == (name, packet.packet_id), shown
            assert packet.reason_code < 0x80 or packet.reason_code == 0x92, shown
        return 0

    def _bounds(self, i: int) -> None:
        """The broker's session holds what the model's does, and no more than it may."""
        real = self.node.session(self.clients[i].client_id)
        held = self.sessions[i]
        assert (real is None) == (held is None), f"client {i}: session {real!r}"
        if real is None or held is None:
            return
        queued = len(real.mqueue) if real.mqueue is not None else 0
        assert queued == len(held.queue) <= MAX_QUEUE, (
            f"client {i}: {queued} in the queue, expected {held.queue}"
        )
        assert len(real.inflight or ()) == len(held.inflight) <= MAX_INFLIGHT
        assert set(real.awaiting_rel or ()) == held.awaiting_rel

    # -- the clients ---------------------------------------------------------------------------

    def _take_in(self, i: int, packet: Packet, number: int) -> None:
        client = self.clients[i]
        if isinstance(packet, Puback | Pubrec | Pubcomp):
            client.waiting[packet.packet_id] -= 1
        if isinstance(packet, Publish):
            if packet.qos == 1:
                client.owed.append(Puback(packet.packet_id))
            elif packet.qos == 2:
                client.owed.append(Pubrec(packet.packet_id))
                if packet.packet_id in client.received:
                    assert packet.dup, "a known QoS 2 message without DUP"
                    return
                client.received.add(packet.packet_id)
            self._to_application(i, packet, number)
        elif isinstance(packet, Puback):
            client.outgoing.pop(packet.packet_id, None)
        elif isinstance(packet, Pubrec):
            if packet.packet_id in client.outgoing:
                client.outgoing[packet.packet_id] = Pubrel(packet.packet_id)
                client.owed.append(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubrel):
            client.received.discard(packet.packet_id)
            client.owed.append(Pubcomp(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            client.outgoing.pop(packet.packet_id, None)
            client.owed = [owed for owed in client.owed if owed != Pubrel(packet.packet_id)]

    def _to_application(self, i: int, packet: Publish, number: int) -> None:
        client = self.clients[i]
        key = packet.payload, packet.qos
        client.application[key] += 1
        self.figures[f"delivered QoS {packet.qos}"] += 1
        if packet.qos == 2:
            assert client.application[key] == 1, f"client {i} got {packet.payload!r} twice"
        if client.application[key] == 1:
            # The first delivery of each message comes in order, per topic and QoS.
            order = packet.topic, packet.qos
            assert number > client.last.get(order, 0), f"client {i}: out of order {packet!r}"
            client.last[order] = number


def started() -> MemoryBroker:
    """A broker with little room, so that everything fills up."""
    configured = Settings()
    configured.max_inflight = MAX_INFLIGHT
    configured.mqueue_max_length = MAX_QUEUE
    configured.retry_interval = 0  # only reconnection repeats; the retry has its own tests
    return MemoryBroker(configured)


def again(packet: Publish) -> Publish:
    """The same PUBLISH with DUP."""
    return Publish(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        True,
        packet.packet_id,
        packet.properties,
    )
