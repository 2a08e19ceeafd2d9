"""Clients that go from node to node, and the ledger of what they have sent and received.

    Sender    one message after the other at its QoS; acknowledged: others have it, or will
    Reader    a session that stays; each message of each sender, once at QoS 2, in order

Where a session is gone its client says so: what was on its way then is neither lost nor repeated by
anybody's promise (`unsure`, `gaps`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from tests.support import packets as mq

__all__ = ["Reader", "Roamer", "Sender"]

_STAYS = [(mq.SESSION_EXPIRY, 600)]
#: Seconds before it tries again, and for an answer.
_AGAIN = 0.1
_ANSWER = 6.0
#: Seconds in which a message was on its way to a node that was killed.
_ON_ITS_WAY = 1.0
#: Every so many messages one is so large: who is away for a second has a queue that moves in parts.
_LARGE_EVERY = 8
_LARGE = b" " * 40_000


class Roamer:
    """One client; `ports` are the nodes that are there by name."""

    def __init__(self, name: str, ports: dict[str, int], dice: random.Random) -> None:
        self.name = name
        self.ports = ports
        self.dice = dice
        self.at = ""
        self.connected = asyncio.Event()
        #: Else it stays away, once it is.
        self.may_come = asyncio.Event()
        self.may_come.set()
        self.sessions_lost = 0
        self.moves = 0
        self.refused = 0
        #: Seconds it took to be back, each time.
        self.away: list[float] = []
        self.left_at = 0.0
        self.closes: Callable[[], object] = lambda: None
        self._known = False
        self._rest = 0.0
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def run(self) -> None:
        """For ever."""
        self.left_at = time.monotonic()
        while True:
            await self.may_come.wait()
            try:
                await self._connect()
                await self._live()
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass
            finally:
                if self.connected.is_set():
                    self.connected.clear()
                    self.left_at = time.monotonic()
                self.closes()
            await asyncio.sleep(_AGAIN + self._rest)
            self.left_at += self._rest
            self._rest = 0.0

    def hop(self, rest: float = 0.0) -> None:
        """Go elsewhere, now and without a word, after so many seconds."""
        if self.connected.is_set():
            self._rest = rest
            self.writer.transport.abort()

    async def _connect(self) -> None:
        self.at = self.dice.choice(sorted(self.ports))
        self.reader, self.writer = await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", self.ports[self.at]), _ANSWER
        )
        self.closes = self.writer.transport.abort
        self.send(mq.connect(self.name, mq.V5, clean=False, props=_STAYS))
        answer = await asyncio.wait_for(self.receive(), _ANSWER)
        if answer.type != mq.CONNACK or answer.reason:
            self.refused += 1
            raise OSError("refused")
        await self.began(answer.session_present)
        self._known = True
        self.away.append(time.monotonic() - self.left_at)
        self.moves += 1
        self.connected.set()

    async def _live(self) -> None:
        while True:
            self.take(await self.receive())

    async def began(self, resumed: bool) -> None:
        """The connection is there."""
        if self._known and not resumed:
            self.sessions_lost += 1

    def take(self, packet: mq.Packet) -> None:
        """A packet."""

    def send(self, data: bytes) -> None:
        """Bytes to the broker."""
        self.writer.write(data)

    async def receive(self) -> mq.Packet:
        """The next packet."""
        return await mq.receive(self.reader)


class Sender(Roamer):
    """Publishes to `l/NAME` when it may (`goes`)."""

    def __init__(self, name: str, ports: dict[str, int], dice: random.Random, qos: int) -> None:
        super().__init__(name, ports, dice)
        self.qos = qos
        self.topic = f"l/{name}"
        self.next = 0
        #: Number -> when it was sent first, and when acknowledged.
        self.sent: dict[int, float] = {}
        self.acked: dict[int, float] = {}
        self.unsure: set[int] = set()
        #: Numbers that were under way to a node when that was killed.
        self.doubtful: set[int] = set()
        self.goes = False
        self.pause = 0.01
        #: The number that is under way, and whether PUBREC has come for it.
        self.current = -1
        self.received = False

    async def began(self, resumed: bool) -> None:
        """What was under way goes on, or is given up."""
        await super().began(resumed)
        if self.current >= 0 and not resumed:
            self.unsure.add(self.current)
            self.current = -1
        if self.current < 0:
            self._go_on()
        elif self.received:
            self.send(mq.pubrel(self._id(), mq.V5))
        else:
            self._send(True)

    def _id(self) -> int:
        return self.current % 60_000 + 1

    def _send(self, dup: bool) -> None:
        payload = b"%d" % self.current
        if self.current % _LARGE_EVERY == 0:
            payload += _LARGE
        data = mq.publish(self.topic, payload, self.qos, self._id(), dup=dup, version=mq.V5)
        self.send(data)

    def _go_on(self) -> None:
        if self.current >= 0 or not self.goes:
            return
        self.current, self.received = self.next, False
        self.next += 1
        self.sent[self.current] = time.monotonic()
        self._send(False)

    def bereft(self, node: str) -> None:
        """This node was killed."""
        if self.at == node and self.current >= 0:
            self.doubtful.add(self.current)

    def go(self) -> None:
        """Publish from now on."""
        self.goes = True
        if self.connected.is_set():
            self._go_on()

    def take(self, packet: mq.Packet) -> None:
        """Acknowledgements; what is refused is sent again."""
        if packet.type in (mq.PUBACK, mq.PUBREC) and packet.reason >= 0x80:
            if packet.packet_id == self._id():
                asyncio.get_running_loop().call_later(_AGAIN, self._refused, self.current)
        elif packet.type == mq.PUBREC and packet.packet_id == self._id():
            self.received = True
            self.acked.setdefault(self.current, time.monotonic())
            self.send(mq.pubrel(self._id(), mq.V5))
        elif packet.type in (mq.PUBACK, mq.PUBCOMP) and packet.packet_id == self._id():
            if packet.type == mq.PUBACK:
                self.acked.setdefault(self.current, time.monotonic())
            self.current = -1
            asyncio.get_running_loop().call_later(self.pause, self._next_if_there)

    def _refused(self, number: int) -> None:
        if self.connected.is_set() and self.current == number and not self.received:
            self._send(False)

    def _next_if_there(self) -> None:
        if self.connected.is_set():
            self._go_on()


class Reader(Roamer):
    """Has all of `l/+`."""

    def __init__(self, name: str, ports: dict[str, int], dice: random.Random) -> None:
        super().__init__(name, ports, dice)
        #: Topic -> numbers, as they came.
        self.seen: dict[str, list[int]] = {}
        self.known: dict[int, bytes] = {}
        #: From when to when a session was lost and the next had not subscribed.
        self.gaps: list[tuple[float, float]] = []
        self.heard = 0.0

    async def began(self, resumed: bool) -> None:
        """Subscribe, where the session is new."""
        await super().began(resumed)
        if resumed:
            return
        self.known.clear()
        # What comes before the SUBACK is the new session's.
        heard = self.heard
        self.send(mq.subscribe([("l/+", 2)], 1, version=mq.V5))
        while True:
            packet = await asyncio.wait_for(self.receive(), _ANSWER)
            if packet.type == mq.SUBACK:
                break
            self.take(packet)
        if packet.reasons != [2]:
            # Still without: say goodbye to this session, and begin anew.
            self.send(mq.disconnect(mq.V5, 0, [(mq.SESSION_EXPIRY, 0)]))
            raise OSError("not subscribed")
        self.gaps.append((heard - 2.0, time.monotonic()))

    def take(self, packet: mq.Packet) -> None:
        """A message, or the end of one."""
        self.heard = time.monotonic()
        if packet.type == mq.PUBREL:
            self.known.pop(packet.packet_id, None)
            self.send(mq.pubcomp(packet.packet_id, mq.V5))
        elif packet.type == mq.PUBLISH:
            if packet.qos == 2:
                self.send(mq.pubrec(packet.packet_id, mq.V5))
                if self.known.get(packet.packet_id) == packet.payload:
                    return
                self.known[packet.packet_id] = packet.payload
            else:
                self.send(mq.puback(packet.packet_id, mq.V5))
            self.seen.setdefault(packet.topic, []).append(int(packet.payload))

    def missing(self, sender: Sender) -> list[int]:
        """What it should have of a sender and has not."""
        seen = set(self.seen.get(sender.topic, ()))
        return [
            number
            for number, acked in sender.acked.items()
            if number not in seen and not self._may_miss(sender.sent.get(number, acked), acked)
        ]

    def doubts(self, sender: Sender) -> list[int]:
        """How often each QoS 2 message came that was under way to a node when that was killed."""
        seen = self.seen.get(sender.topic, [])
        return [
            seen.count(number)
            for number in sender.doubtful & sender.acked.keys()
            if sender.qos == 2 and not self._may_miss(sender.sent[number], sender.acked[number])
        ]

    def _may_miss(self, sent: float, acked: float) -> bool:
        return any(sent <= until and acked >= since for since, until in self.gaps)

    def faults(
        self, sender: Sender, killed: float = 0.0, back: float = 0.0, slow: float = 0.0
    ) -> list[str]:
        """What is wrong with what it has had of a sender, while a node was killed and away.

        slow: seconds for which the node may not have said by then that it had a message.
        """
        missing = self.missing(sender)
        found = []
        if missing:
            found.append(f"{self.name} misses {len(missing)} of {sender.name}: {missing[:20]}")
        seen = self.seen.get(sender.topic, [])
        first = list(dict.fromkeys(seen))
        since, until = killed - _ON_ITS_WAY, back + _ON_ITS_WAY
        if sender.qos == 2 and len(first) != len(seen):
            twice = sorted({each for each in seen if seen.count(each) > 1})
            found.append(f"{self.name} has {twice[:20]} of {sender.name} twice")
        late = [b for a, b in zip(first, first[1:], strict=False) if b < a]
        wrong = [each for each in late if not since - slow <= sender.sent.get(each, 0.0) <= until]
        if wrong:
            found.append(f"{self.name} has {wrong[:20]} of {sender.name} late")
        return found
