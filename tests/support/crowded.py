"""Thousands of small clients in one thread: each has a session, a filter of its own and an end.

    crew = Crew(port, 10_000)      connect, subscribe to own/NUMBER, stay
    crew.publish(port)             publishers that write QoS 1 as fast as they are answered
    crew.turn()                    take what has come, answer it

Packets are cut here and read by `tests.support.packets` where they are not PUBLISH and PUBACK.
"""

from __future__ import annotations

import random
import select
import socket
from collections.abc import Callable

from tests.support import packets as mq
from tests.support.waiting import until

__all__ = ["Crew", "Line"]

#: Connections that are begun before the first of them is answered.
_AT_ONCE = 200


class Line:
    """One connection that is cut into packets."""

    def __init__(self, crew: Crew, port: int, hello: bytes) -> None:
        self.crew = crew
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        crew.lines[self.sock.fileno()] = self
        crew.poll.register(self.sock, select.EPOLLIN)
        self.send(hello)

    def send(self, data: bytes) -> None:
        """Bytes out; a connection that is gone takes none."""
        try:
            self.sock.sendall(data)
        except OSError:
            self.crew.gone(self)

    def read(self) -> None:
        """Take the packets that have come."""
        try:
            data = self.sock.recv(262144)
        except OSError:
            data = b""
        if not data:
            self.crew.gone(self)
            return
        data = self.rest + data
        at, end = 0, len(data)
        answers: list[bytes] = []
        while end - at >= 2:
            length, p, shift = data[at + 1] & 0x7F, at + 2, 7
            while data[p - 1] >= 0x80 and p < end:
                length |= (data[p] & 0x7F) << shift
                shift, p = shift + 7, p + 1
            if data[p - 1] >= 0x80 or end - p < length:
                break
            answers.append(self.take(data[at], data[p : p + length]))
            at = p + length
        self.rest = data[at:]
        if answer := b"".join(answers):
            self.send(answer)

    def take(self, first: int, body: bytes) -> bytes:
        """One packet; returns the answer to it."""
        raise NotImplementedError


class Member(Line):
    """A client with a session that stays, and what it has got: numbers, as text."""

    def __init__(self, crew: Crew, port: int, number: int, clean: bool, exchange: bool) -> None:
        self.number = number
        self.exchange = exchange
        self.present = False
        props = [(mq.SESSION_EXPIRY, 100_000)]
        super().__init__(crew, port, mq.connect(f"m{number}", mq.V5, clean=clean, props=props))

    def take(self, first: int, body: bytes) -> bytes:
        """See `Line`."""
        kind = first >> 4
        crew = self.crew
        if kind == mq.PUBLISH:
            size = body[0] << 8 | body[1]
            at = 2 + size
            packet_id = body[at : at + 2]
            crew.got[self.number].append(body[at + 3 :])
            return b"\x40\x02" + packet_id
        packet = mq.read(first, body, mq.V5)
        if kind == mq.CONNACK:
            assert packet.reason == 0, packet
            self.present = packet.session_present
            crew.there += self.exchange
            if self.exchange:
                return b""
            return mq.subscribe([(f"own/{self.number}", 1)], version=mq.V5)
        if kind == mq.SUBACK:
            crew.there += 1
        elif kind == mq.DISCONNECT:
            crew.ended[self.number] = packet.reason
            if crew.on_end is not None:
                crew.on_end(self, packet)
        return b""


class Publisher(Line):
    """Keeps `window` messages under way, each to a client drawn by chance."""

    def __init__(self, crew: Crew, port: int, name: str, window: int) -> None:
        self.name = name
        self.window = window
        self.sent = 0
        self.waiting: dict[int, tuple[int, bytes]] = {}
        super().__init__(crew, port, mq.connect(name, mq.V5))

    def take(self, first: int, body: bytes) -> bytes:
        """See `Line`."""
        if first >> 4 == mq.PUBACK:
            to, payload = self.waiting.pop(body[0] << 8 | body[1])
            if len(body) < 3 or body[2] < 0x80:
                self.crew.acknowledged[to].append(payload)
        elif first >> 4 != mq.CONNACK:
            return b""
        out = []
        while len(self.waiting) < self.window and self.crew.publishing:
            self.sent += 1
            packet_id = self.sent % 60_000 + 1
            to = self.crew.dice.randrange(self.crew.count)
            payload = b"%s:%d" % (self.name.encode(), self.sent)
            self.waiting[packet_id] = (to, payload)
            out.append(mq.publish(f"own/{to}", payload, 1, packet_id, version=mq.V5))
        return b"".join(out)


class Crew:
    """The clients; `on_end(member, packet)` is called with each DISCONNECT."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.count = count
        self.dice = random.Random(seed)
        self.poll = select.epoll()
        self.lines: dict[int, Line] = {}
        self.there = 0
        self.publishing = False
        #: By number: what came, and what its publishers were promised.
        self.got: list[list[bytes]] = [[] for _ in range(count)]
        self.acknowledged: list[list[bytes]] = [[] for _ in range(count)]
        #: Number -> the reason code of its DISCONNECT.
        self.ended: dict[int, int] = {}
        self.on_end: Callable[[Member, mq.Packet], object] | None = None

    def connect(self, port: int, clean: bool = True) -> list[Member]:
        """All of them come; with `clean` they subscribe."""
        self.there = 0
        made = []
        for number in range(self.count):
            assert len(self.lines) >= number, "the broker has closed some"
            made.append(self.join(port, number, clean))
            self.until(lambda: len(made) - self.there < _AT_ONCE, "CONNACK")
        self.until(lambda: self.there == self.count, "all clients to be there")
        return made

    def join(self, port: int, number: int, clean: bool = True) -> Member:
        """One comes."""
        return Member(self, port, number, clean, exchange=not clean)

    def publish(self, port: int, count: int = 10, window: int = 20) -> list[Publisher]:
        """Publishers begin."""
        self.publishing = True
        return [Publisher(self, port, f"p{number}", window) for number in range(count)]

    def turn(self) -> None:
        """Take what has come."""
        for fd, _ in self.poll.poll(0.05):
            if fd in self.lines:
                self.lines[fd].read()

    def until(self, true: Callable[[], bool], what: str, deadline: float = 240.0) -> None:
        """Take what comes until something is true."""

        def turned() -> bool:
            self.turn()
            return true()

        if not true():
            until(turned, what, deadline)

    def gone(self, line: Line) -> None:
        """A connection is over."""
        fd = line.sock.fileno()
        if fd >= 0 and self.lines.pop(fd, None) is not None:
            self.poll.unregister(line.sock)
            line.sock.close()

    def close(self) -> None:
        """Away with all of them."""
        for line in list(self.lines.values()):
            self.gone(line)
        self.poll.close()
