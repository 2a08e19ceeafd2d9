"""A client of the cluster in memory of `tests.support.trio`, which goes from node to node.

Its session knows which life of it is the last: it publishes a message of QoS 2 each time it is let
in, whose packet id stays in the session. One that does `more` has messages of QoS 1 and 2 under
way, subscribes and unsubscribes, starts afresh now and then, and moves several times in a second;
what it has been acknowledged has to come, at QoS 2 once, in order.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mqttd.codec.packets import (
    Connack,
    Connect,
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
from tests.support.memory import MemoryClient

if TYPE_CHECKING:
    from tests.support.trio import Trio

__all__ = ["NAMES", "Wanderer"]

NAMES = "abc"
#: The user of the clients, and the seconds that they wait for their CONNACK.
USER, WAITS = "alice", 6.0
#: Packet ids of messages begin here; those below are lives.
_MESSAGES = 1000


class Ledger:
    """What a session was promised."""

    def __init__(self) -> None:
        #: Acknowledged messages and their QoS; what may have come there or not.
        self.sent: dict[int, int] = {}
        self.got: Counter[int] = Counter()
        self.order: list[int] = []
        #: QoS 2 that has come and is not released: packet id -> message.
        self.known: dict[int, int] = {}
        #: Filters, and those of which it is not known.
        self.filters: set[str] = set()
        self.unsure: set[str] = set()

    def missing(self) -> list[int]:
        """What has not come."""
        return [number for number in self.sent if not self.got[number]]

    def has(self, number: int, qos: int) -> str:
        """It has come; what is wrong with that."""
        self.got[number] += 1
        if self.got[number] > 1:
            return f"has {number} twice" if qos == 2 else ""
        last = self.order[-1] if self.order else 0
        self.order.append(number)
        return f"has {number} behind {last}" if number < last else ""


class Wanderer:
    """The client `name` of this world."""

    def __init__(self, trio: Trio, name: str, more: bool) -> None:
        self.trio = trio
        self.name = name
        self.more = more
        self.client: MemoryClient | None = None
        self.at = ""
        self.let_in = False
        self.since = 0.0
        self.waits = WAITS
        #: The life of the session that its client knows.
        self.life = 0
        self.ledger = Ledger()
        #: It has asked for a session that is new: with this connection, or with one before.
        self.clean = self.may_be_clean = False
        #: What it still has to say, and until when it is in a hurry.
        self.owes: list[Packet] = []
        self.hurries = 0.0
        self._next = 1
        #: Published, and not acknowledged: packet id -> number, QoS.
        self._asked: dict[int, tuple[int, int]] = {}

    def wrong(self, what: str) -> None:
        """So it is."""
        self.trio.wrong = self.trio.wrong or f"{self.name} {what}"

    def is_well(self) -> bool:
        """It is there, and has what it was promised."""
        return self.let_in and not self.ledger.missing()

    def lives(self, hops: float) -> None:
        """It goes on."""
        dice, now = self.trio.dice, self.trio.clock.seconds()
        client = self.client
        if client is None:
            if now >= self.since:
                self._comes(hops)
            return
        if self.more and hops and dice.random() < 0.01:
            self.hurries = now + dice.uniform(0.3, 2.0)
        if not self.let_in:
            packets = client.take()
            if packets and isinstance(packets[0], Connack):
                self._answered(client, packets[0], packets[1:])
                return
            if client.closed or now - self.since > self.waits:
                self.goes(0.1)
        elif client.closed:
            self.goes(0.1)
        elif dice.random() < (0.4 if now < self.hurries else hops):
            self.goes(0.1)
        elif self.more:
            self._talks(client, bool(hops))

    def _comes(self, hops: float) -> None:
        trio = self.trio
        there = [name for name in NAMES if trio.parts[name].is_open]
        if not there:
            return
        self.at = trio.dice.choice(there)
        self.client = client = trio.parts[self.at].memory.client(5)
        self.let_in, self.since = False, trio.clock.seconds()
        self.clean = self.more and hops > 0 and trio.dice.random() < 0.03
        self.may_be_clean = self.may_be_clean or self.clean
        self.waits = trio.dice.choice([0.3, 1.0, WAITS, WAITS]) if self.more and hops else WAITS
        properties: Any = {0x11: 100_000}
        connect = Connect(
            self.name, 5, clean_start=self.clean, username=USER, properties=properties
        )
        client.send(connect)

    def goes(self, rest: float) -> None:
        """It leaves."""
        if self.client is not None:
            self.client.drop()
        self.client = None
        self.let_in = False
        hurries = self.trio.clock.seconds() < self.hurries
        self.since = self.trio.clock.seconds() + (0.05 if hurries else rest)

    def _answered(self, client: MemoryClient, packet: Connack, rest: list[Packet]) -> None:
        if packet.reason_code:
            self.goes(0.1)
            return
        present = packet.session_present
        what = "present" if present else "NEW"
        self.trio.say(f"client {self.name} is let in at", self.at, what)
        self.let_in = True
        self.trio.moves += 1
        if self.clean and present:
            self.wrong(f"has a session where it starts afresh, at {self.at}")
            return
        if self.life and not present and not self.may_be_clean:
            self.wrong(f"has no session, at {self.at}")
            return
        if not present:
            self.life, self.ledger = 0, Ledger()
        may_be_clean, self.may_be_clean = self.may_be_clean, False
        session = client.channel.session
        if session is None:
            return  # it is closed already
        incoming = {each for each in session.awaiting_rel or () if each < _MESSAGES}
        if may_be_clean and not incoming:
            self.life, self.ledger = 0, Ledger()  # it was begun afresh, and its node killed
        known = {self.life} if self.life else set()
        if incoming != known:
            self.wrong(f"has the session of {incoming}, and not of {known}")
        before, self.life = self.life, self.life + 1
        client.send(Publish("x", b"", 2, packet_id=self.life))
        if before:
            client.send(Pubrel(before))
        self._begins(client, set(session.subscriptions or ()), rest)

    def _begins(self, client: MemoryClient, filters: set[str], rest: list[Packet]) -> None:
        ledger = self.ledger
        self.owes.clear()
        self._asked.clear()
        if not self.more:
            client.take()
            return
        if filters - ledger.unsure != ledger.filters - ledger.unsure:
            self.wrong(f"has the filters {filters}, and not {ledger.filters}")
        ledger.filters, ledger.unsure = filters, set()
        for packet in rest:
            self._hear(client, packet)  # what it had had, and not acknowledged
        if not filters:
            self._subscribes(client, f"{self.name}/m")
        self._hears(client)

    # -- more ----------------------------------------------------------------------------------

    def _talks(self, client: MemoryClient, faults: bool) -> None:
        dice = self.trio.dice
        if faults and f"{self.name}/m" in self.ledger.filters:
            for _ in range(dice.choice([0, 0, 0, 1, 1, 3])):
                self._publishes(client, dice.choice([1, 2]))
        if faults and dice.random() < 0.05:
            other = f"{self.name}/{dice.choice('uvw')}"
            self._subscribes(client, other, other not in self.ledger.filters)
        self._hears(client)
        slow = dice.choice([0.0, 0.5, 1.0]) if faults else 0.0
        while self.owes and dice.random() >= slow:
            client.send(self.owes.pop(0))
            self._hears(client)

    def _publishes(self, client: MemoryClient, qos: int) -> None:
        number, self._next = self._next, self._next + 1
        packet_id = _MESSAGES + number % 50_000
        self._asked[packet_id] = number, qos
        client.send(Publish(f"{self.name}/m", b"%d" % number, qos, packet_id=packet_id))

    def _subscribes(self, client: MemoryClient, topic_filter: str, wants: bool = True) -> None:
        self.ledger.unsure.add(topic_filter)
        if wants:
            client.send(Subscribe(1, [Subscription(topic_filter, 2)]))
        else:
            client.send(Unsubscribe(1, [topic_filter]))

    def _hears(self, client: MemoryClient) -> None:
        while packets := client.take():
            for packet in packets:
                self._hear(client, packet)

    def _hear(self, client: MemoryClient, packet: Packet) -> None:
        ledger = self.ledger
        if isinstance(packet, Publish):
            self._has(packet)
        elif isinstance(packet, Pubrel):
            ledger.known.pop(packet.packet_id, None)
            self.owes.append(Pubcomp(packet.packet_id))
        elif isinstance(packet, (Puback, Pubrec)):
            number, qos = self._asked.pop(packet.packet_id, (0, 0))
            if number:
                ledger.sent[number] = qos
                if qos == 2:
                    client.send(Pubrel(packet.packet_id))
        elif isinstance(packet, (Suback, Unsuback)):
            (topic_filter,) = ledger.unsure
            ledger.unsure.clear()
            if isinstance(packet, Suback):
                ledger.filters.add(topic_filter)
            else:
                ledger.filters.discard(topic_filter)

    def _has(self, packet: Publish) -> None:
        number, packet_id = int(packet.payload), packet.packet_id
        known = self.ledger.known
        if packet.qos == 1:
            self.owes.append(Puback(packet_id))
        else:
            self.owes.append(Pubrec(packet_id))
            if packet_id in known:
                if known[packet_id] != number:
                    self.wrong(f"has {number} by the packet id of {known[packet_id]}")
                return
            known[packet_id] = number
        if wrong := self.ledger.has(number, packet.qos):
            self.wrong(wrong)
