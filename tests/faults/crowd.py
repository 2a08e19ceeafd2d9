"""A crowd of clients that remember, as the standard wants, and a ledger of what each was told.

    publishers   sessions of their own, QoS 1 and 2 by turns, a window of unacknowledged messages
    subscribers  one that stays, one that comes and goes (takes itself over), one that is away
    retained     one topic each publisher counts up in
    wills        of publishers and of who comes and goes, a number higher with each connection
    reborn       one that begins anew now and then, with a topic of its own for each life
    pair         a shared group of two, there or away as the dice say

They survive the broker: what was not acknowledged is sent again with DUP, packet ids of QoS 2 are
kept until PUBREL. `faults` compares the ledgers: everything acknowledged was received, QoS 2 once,
each publisher's messages in the order they were sent (of one QoS), retained values never go back,
the will of each connection that was acknowledged and is over has come once, nothing of a life
before comes back, what the shared group is to get one of the two has. The last word of a burst is
an acknowledgement of a message, or a CONNACK, SUBACK or UNSUBACK that came in the midst of others'.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Iterator

from mqttd.codec.reasons import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED
from tests.support import packets as mq
from tests.support.waiting import Patience

WINDOW = 12
#: Seconds for anything to happen at all.
DEADLINE = 60.0


class Member:
    """A client with a session on both sides."""

    def __init__(self, name: str, has_will: bool = False, disk_fails: bool = False) -> None:
        self.name = name
        self.clean = False
        #: Whether the broker may refuse with 0x97; what it has, by QoS, and when it did last.
        self.disk_fails = disk_fails
        self.refused: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
        self.refused_at = 0.0
        self.sock: socket.socket | None = None
        self.rest = b""
        self.known = False
        self.connected = False
        #: Sent, not completely acknowledged: id -> PUBLISH with DUP, or PUBREL; in order.
        self.unacknowledged: dict[int, bytes] = {}
        self.numbers: dict[int, tuple[int, int]] = {}
        self.next_id = 0
        self.counts = {1: 0, 2: 0}
        #: By QoS: what was acknowledged.
        self.acknowledged: dict[int, set[int]] = {1: set(), 2: set()}
        self.retained = 0
        self.retained_acknowledged = 0
        #: QoS 2 ids that wait for PUBREL.
        self.incoming: set[int] = set()
        #: What came: (publisher, QoS) -> numbers in order, duplicates at QoS 1 included.
        self.received: dict[tuple[str, int], list[int]] = {}
        self.faults: list[str] = []
        #: The number of the will of this connection (0: it has none), and the numbers of those
        #: whose connection was acknowledged.
        self.will = int(has_will)
        self.wills: set[int] = set()

    # -- connection ----------------------------------------------------------------------------

    def connect(self, port: int) -> None:
        self.close()
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        will = None
        if self.will:
            self.will += 1
            payload = f"{self.name}:will {self.will}".encode()
            will = mq.Will(f"w/{self.name}", payload, 2)
        props = [(mq.SESSION_EXPIRY, 100_000)]
        self.send(mq.connect(self.name, mq.V5, clean=self.clean, props=props, will=will))

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self.rest = b""
        self.connected = False

    def send(self, data: bytes) -> None:
        if self.sock is not None:
            try:
                self.sock.sendall(data)
            except OSError:
                self.close()

    def read(self) -> int:
        """Take what has come; returns how many acknowledgements there were, -1 at the end."""
        assert self.sock is not None
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.close()
            return -1
        self.rest += data
        count = 0
        while (packet := self._cut()) is not None:
            count += self._take(packet)
        return count

    def _cut(self) -> mq.Packet | None:
        rest = self.rest
        length = shift = 0
        for at in range(1, 5):
            if at >= len(rest):
                return None
            length |= (rest[at] & 0x7F) << shift
            shift += 7
            if rest[at] < 0x80:
                break
        end = at + 1 + length
        if len(rest) < end:
            return None
        self.rest = rest[end:]
        return mq.read(rest[0], rest[at + 1 : end], mq.V5)

    def _take(self, packet: mq.Packet) -> int:
        kind, packet_id = packet.type, packet.packet_id
        if kind == mq.CONNACK and packet.reason == 0x88:  # its worker is being started again
            self.close()
        elif kind == mq.CONNACK:
            if self.known and not packet.session_present:
                self.faults.append(f"{self.name}: its session is gone")
            self.connected = True
            self.wills.add(self.will)
            self.send(b"".join(self.unacknowledged.values()))
        elif kind == mq.PUBLISH:
            self._message(packet)
        elif kind == mq.PUBREL:
            self.incoming.discard(packet_id)
            self.send(mq.pubcomp(packet_id, mq.V5))
        elif kind == mq.SUBACK:
            self.known = True
        elif (
            kind in (mq.PUBACK, mq.PUBREC)
            and packet.reason == QUOTA_EXCEEDED
            and self.disk_fails
            and packet_id in self.unacknowledged
        ):
            qos, number = self.numbers.pop(packet_id)
            del self.unacknowledged[packet_id]
            self.refused[qos].add(number)
            self.refused_at = time.monotonic()
        elif kind == mq.PUBREC and packet_id in self.unacknowledged:
            qos, number = self.numbers[packet_id]
            self.acknowledged[qos].add(number)
            self.unacknowledged[packet_id] = mq.pubrel(packet_id, mq.V5)
            self.send(self.unacknowledged[packet_id])
            return 1
        elif kind in (mq.PUBACK, mq.PUBCOMP) and packet_id in self.unacknowledged:
            if packet.reason >= 0x80 and packet.reason != 0x92:
                self.faults.append(f"{self.name}: {packet}")
            qos, number = self.numbers.pop(packet_id)
            del self.unacknowledged[packet_id]
            if qos == 0:
                self.retained_acknowledged = max(self.retained_acknowledged, number)
            else:
                self.acknowledged[qos].add(number)
            return 1
        return 0

    def _message(self, packet: mq.Packet) -> None:
        if packet.qos == 2:
            if packet.packet_id not in self.incoming:
                self.incoming.add(packet.packet_id)
                self._note(packet)
            self.send(mq.pubrec(packet.packet_id, mq.V5))
        else:
            self._note(packet)
            self.send(mq.puback(packet.packet_id, mq.V5))

    def last(self, qos: int) -> int:
        """The last message it has sent and not seen refused, 0 if there is none."""
        number = self.counts[qos]
        while number in self.refused[qos]:
            number -= 1
        return number

    def _note(self, packet: mq.Packet) -> None:
        publisher, number = packet.payload.decode().split()
        self.received.setdefault((publisher, packet.qos), []).append(int(number))

    # -- publishing ----------------------------------------------------------------------------

    def publish(self, dice: random.Random) -> None:
        """One more message, if the window has room."""
        if not self.connected or len(self.unacknowledged) >= WINDOW:
            return
        if self.refused_at and time.monotonic() < self.refused_at + 0.05:
            return
        while True:
            self.next_id = self.next_id % 65535 + 1
            if self.next_id not in self.unacknowledged:
                break
        roll = dice.random()
        if roll < 0.1:
            self.retained += 1
            topic, payload, qos = f"r/{self.name}", b"%d" % self.retained, 1
            self.numbers[self.next_id] = (0, self.retained)
        else:
            qos = 1 if roll < 0.5 else 2
            self.counts[qos] += 1
            topic = f"c/{self.name}"
            payload = f"{self.name} {self.counts[qos]}".encode()
            self.numbers[self.next_id] = (qos, self.counts[qos])
        retain = topic.startswith("r/")
        fields = {"retain": retain, "version": mq.V5}
        self.unacknowledged[self.next_id] = mq.publish(
            topic, payload, qos, self.next_id, dup=True, **fields
        )
        self.send(mq.publish(topic, payload, qos, self.next_id, **fields))


class Reborn(Member):
    """One that begins anew now and then: nothing of a life before may come back.

    In each life it subscribes to `l/LIFE`, which stays, and to `u/LIFE`, which it leaves again:
    what it says there later must not come.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.life = 0
        self.number = 0
        self.subscribed = self.left = False
        #: Packet id -> what was said under it; what has to come in this life, and what has.
        self.said: dict[int, str] = {}
        self.owed: set[str] = set()
        self.got: set[str] = set()

    def choose(self, dice: random.Random) -> None:
        """Go on with this life or, where it is not certain that there is one, begin the next."""
        self.clean = not self.known or dice.random() < 0.3
        self.said.clear()
        if self.clean:
            self.life += 1
            self.known = self.subscribed = self.left = False
            self.owed.clear()

    def missing(self) -> set[str]:
        """What was acknowledged, and has not come."""
        return self.owed - self.got

    def _take(self, packet: mq.Packet) -> int:
        kind = packet.type
        if kind == mq.SUBACK:
            self.subscribed = True
            self.send(mq.unsubscribe([f"u/{self.life}"], 2, version=mq.V5))
        elif kind == mq.UNSUBACK:
            self.left = True
        elif kind == mq.PUBACK:
            said = self.said.pop(packet.packet_id, "")
            if said and packet.reason == NO_MATCHING_SUBSCRIBERS:
                self.faults.append(f"{self.name}: its subscription of life {self.life} is gone")
            elif said and packet.reason == 0:
                self.owed.add(said)
        elif kind == mq.CONNACK:
            super()._take(packet)
            if self.sock is None:
                return 0
            if self.clean and packet.session_present:
                self.faults.append(f"{self.name}: a clean start has found a session")
            self.known = True
            if not self.subscribed:
                filters = [(f"l/{self.life}", 1), (f"u/{self.life}", 1)]
                self.send(mq.subscribe(filters, 1, version=mq.V5))
        else:
            super()._take(packet)
        return 0

    def _message(self, packet: mq.Packet) -> None:
        if packet.topic != f"l/{self.life}":
            self.faults.append(f"{self.name}: {packet.topic} in life {self.life}")
        self.got.add(packet.payload.decode())
        self.send(mq.puback(packet.packet_id, mq.V5))

    def talk(self) -> None:
        """Say something in this life and those before, and where it has left."""
        if not self.connected or len(self.said) > WINDOW:
            return
        topics = [f"l/{life}" for life in range(max(1, self.life - 2), self.life)]
        for topic in [*topics, f"u/{self.life}"] if self.left else topics:
            self.send(mq.publish(topic, b"", 1, 50_000, version=mq.V5))
        self.number += 1
        packet_id = self.number % 40_000 + 1
        if self.subscribed:
            self.said[packet_id] = str(self.number)
        payload = b"%d" % self.number
        self.send(mq.publish(f"l/{self.life}", payload, 1, packet_id, version=mq.V5))


class Crowd:
    """Everybody, and the dice."""

    def __init__(self, seed: int, disk_fails: bool = False) -> None:
        self.dice = random.Random(seed)
        self.publishers = [Member(f"p{number}", True, disk_fails) for number in range(3)]
        self.stays, self.away = Member("stays"), Member("away")
        self.comes = Member("comes", has_will=True)
        self.reborn = Reborn("reborn")
        self.subscribers = [self.stays, self.comes, self.away]
        self.pair = [Member("one"), Member("other")]
        self.everybody = [*self.publishers, *self.subscribers, *self.pair, self.reborn]
        self.port = 0

    def begin(self, port: int) -> None:
        """A broker is there (again)."""
        self.port = port
        there = [*self.publishers, self.stays, self.comes, self.reborn]
        self.reborn.choose(self.dice)
        if not self.away.known:
            there.append(self.away)
        there.extend(one for one in self.pair if not one.known or self.dice.random() < 0.3)
        for member in there:
            member.connect(port)
        self.until(lambda: all(member.connected for member in there))
        for member in self.subscribers:
            if not member.known:
                member.send(mq.subscribe([("c/#", 2), ("w/#", 2)], 1, version=mq.V5))
        for member in self.pair:
            if not member.known:
                member.send(mq.subscribe([("$share/pair/c/#", 2)], 1, version=mq.V5))
        self.until(lambda: all(member.known for member in (*self.subscribers, *self.pair)))
        for member in self.publishers:
            member.known = True
        self.away.close()

    def burst(self, acknowledgements: int) -> None:
        """Publish until so many acknowledgements have come."""
        count = 0
        patience = Patience(DEADLINE)
        while count < acknowledgements:
            for publisher in self.publishers:
                if publisher.sock is None or self.dice.random() < 0.005:
                    publisher.connect(self.port)
                for _ in range(self.dice.randint(0, 4)):
                    publisher.publish(self.dice)
            if self.dice.random() < 0.01:
                self.comes.connect(self.port)  # takes itself over
            if self.dice.random() < 0.02 or self.reborn.sock is None:
                self.reborn.choose(self.dice)
                self.reborn.connect(self.port)
            if self.dice.random() < 0.2:
                self.reborn.talk()
            count += self.turn()
            assert patience.left(), "nothing happens"
        if self.dice.random() < 0.4:
            self._last_word()

    def _last_word(self) -> None:
        """Go on until somebody's CONNACK, SUBACK or UNSUBACK has come, and not a packet longer."""
        reborn = self.reborn
        who = self.dice.choice((reborn, reborn, self.comes, *self.publishers))
        if who is reborn:
            reborn.choose(self.dice)
        who.connect(self.port)
        word = self.dice.randrange(3) if who is reborn and not reborn.subscribed else 0
        words: tuple[Callable[[], bool], ...] = (
            lambda: who.connected,
            lambda: reborn.subscribed,
            lambda: reborn.left,
        )
        patience = Patience(DEADLINE)
        while not words[word]():
            for publisher in self.publishers:
                publisher.publish(self.dice)
            self.turn(words[word])
            assert patience.left(), "nothing happens"

    def settle(self) -> None:
        """Wait until everything that was published has its answer."""
        for member in self.publishers:
            if member.sock is None:
                member.connect(self.port)
        self.until(lambda: not any(member.unacknowledged for member in self.publishers))

    def finish(self) -> list[str]:
        """Everybody is there, and what is under way comes to its end; returns what is wrong."""
        there = [*self.subscribers, *self.pair]
        for member in there:
            member.connect(self.port)
        self.until(lambda: all(member.connected for member in there))
        self.settle()
        patience = Patience(DEADLINE)
        while not self._everything() and patience.left():
            self.turn()
        return self.faults()

    def _everything(self) -> bool:
        """Whether the last of all that is to come has come."""
        last = {}
        for member in self.publishers:
            for qos in (1, 2):
                last[member.name, qos] = member.last(qos)
        for member in (*self.publishers, self.comes):
            last[f"{member.name}:will", 2] = max(member.wills - {member.will}, default=0)
        if self.reborn.missing() or not all(
            not number or number in member.received.get(key, ())
            for member in self.subscribers
            for key, number in last.items()
        ):
            return False
        return not any(self._missing_to_pair())

    def _missing_to_pair(self) -> Iterator[str]:
        """What the shared group was to get, and neither of the two has, or QoS 2 more than once."""
        one, other = self.pair
        for publisher in self.publishers:
            for qos in (1, 2):
                key = publisher.name, qos
                came = [*one.received.get(key, ()), *other.received.get(key, ())]
                what = f"{publisher.name} to the shared group at QoS {qos}"
                if missing := publisher.acknowledged[qos] - set(came):
                    yield f"{what}: {len(missing)} lost, {sorted(missing)[:5]}"
                if qos == 2 and len(came) != len(set(came)):
                    yield f"{what}: twice, {sorted({n for n in came if came.count(n) > 1})[:5]}"

    def faults(self) -> list[str]:
        """What the ledgers say."""
        found = [fault for member in self.everybody for fault in member.faults]
        if lost := sorted(self.reborn.missing()):
            found.append(f"{self.reborn.name}: {len(lost)} lost, {lost[:5]}")
        found.extend(self._missing_to_pair())
        for subscriber in self.subscribers:
            for member in (*self.publishers, self.comes):
                what = f"{member.name}'s will to {subscriber.name}"
                came = subscriber.received.get((f"{member.name}:will", 2), [])
                missing = member.wills - {member.will} - set(came)
                if missing:
                    found.append(f"{what}: {len(missing)} lost, {sorted(missing)[:5]}")
                if came != sorted(set(came)):
                    found.append(f"{what}: twice or out of order, {came[-5:]}")
        for publisher in self.publishers:
            for subscriber in (*self.subscribers, *self.pair):
                # What is sent again at QoS 1 may come to the other of the pair, behind later ones.
                for qos in (2,) if subscriber in self.pair else (1, 2):
                    what = f"{publisher.name} to {subscriber.name} at QoS {qos}"
                    came = subscriber.received.get((publisher.name, qos), [])
                    missing = publisher.acknowledged[qos] - set(came)
                    if missing and subscriber not in self.pair:
                        found.append(f"{what}: {len(missing)} lost, {sorted(missing)[:5]}")
                    if qos == 2 and len(came) != len(set(came)):
                        twice = sorted({n for n in came if came.count(n) > 1})
                        found.append(f"{what}: {len(twice)} twice, {twice[:5]}")
                    first = list(dict.fromkeys(came))
                    if first != sorted(first):
                        at = next(i for i in range(1, len(first)) if first[i] < first[i - 1])
                        found.append(f"{what}: out of order, {first[max(0, at - 3) : at + 3]}")
        return found

    def retained_faults(self, values: dict[str, int]) -> list[str]:
        """Compare with what a new subscriber of r/# got."""
        found = []
        for publisher in self.publishers:
            value = values.get(f"r/{publisher.name}", 0)
            if not publisher.retained_acknowledged <= value <= publisher.retained:
                found.append(
                    f"r/{publisher.name} is {value}, acknowledged {publisher.retained_acknowledged}"
                )
        return found

    def turn(self, done: Callable[[], bool] = lambda: False) -> int:
        """Read what has come to anybody, until `done`; how many acknowledgements that were."""
        members = {member.sock: member for member in self.everybody if member.sock is not None}
        readable, _, _ = select.select(list(members), [], [], 0.01)
        count = 0
        for sock in readable:
            count += max(members[sock].read(), 0)
            if done():
                break
        return count

    def until(self, done: Callable[[], bool]) -> None:
        """Read until something is so."""
        patience = Patience(DEADLINE)
        while not done():
            self.turn()
            assert patience.left(), "nothing happens"

    def gone(self) -> None:
        """The broker is dead: take what it has said before, then nothing is connected."""
        for member in self.everybody:
            while member.sock is not None:
                if member.read() < 0:
                    break
            member.close()
