"""Who is in a crowd: clients that remember, on both sides, and what each of them was told."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

from mqttd.codec.reasons import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED
from tests.support import packets as mq

__all__ = ["DEADLINE", "Fleeting", "Member", "Reborn"]

WINDOW = 12
#: Seconds for anything to happen at all.
DEADLINE = 60.0
#: A worker is started again, or the machine is busy; the broker comes to its end, or is drained.
LATER = (0x88, 0x89, 0x8B, 0x9C, 3)  # 3: MQTT 3.1.1 knows no more


class Member:
    """A client with a session on both sides."""

    def __init__(self, name: str, has_will: bool = False, disk_fails: bool = False) -> None:
        self.name = name
        self.version = mq.V5
        self.clean = False
        #: Seconds that its session outlives a connection.
        self.expiry = 100_000
        #: User name and password, where one has to show them.
        self.login: dict[str, Any] = {}
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
        props = [(mq.SESSION_EXPIRY, self.expiry)] if self.expiry else []
        fields = {"clean": self.clean, "props": props, "will": will, **self.login}
        self.send(mq.connect(self.name, self.version, **fields))

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
        return mq.read(rest[0], rest[at + 1 : end], self.version)

    def _take(self, packet: mq.Packet) -> int:
        kind, packet_id = packet.type, packet.packet_id
        if kind == mq.CONNACK and packet.reason:
            if packet.reason not in LATER:
                self.faults.append(f"{self.name}: refused with {packet.reason:#x}")
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


class Fleeting(Member):
    """One whose session ends with its connection: all that is left of it is its will."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, has_will=True)
        self.version = version
        self.clean = True
        self.expiry = 0


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
            if any(code >= 0x80 for code in packet.reasons):
                self._subscribe()  # the disk takes nothing: refused, until it does
                return 0
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
                self._subscribe()
        else:
            super()._take(packet)
        return 0

    def _subscribe(self) -> None:
        filters = [(f"l/{self.life}", 1), (f"u/{self.life}", 1)]
        self.send(mq.subscribe(filters, 1, version=mq.V5))

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
