"""Honest clients beside an attack: how long what they want takes, and whether they are dropped.

    newcomers   connect, subscribe, QoS 1 there and back, leave; all of that is one time
    residents   connected from before; QoS 1 there and back, in turn

Each has a time when it is due and is measured from then, and a thread of its own: nobody waits
behind another one here.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

from benchmarks.hostile.wire import connect, packet, publish, subscribe, unsubscribe

__all__ = ["Honest", "HonestClient", "Times", "TurnedAway"]

#: Seconds after which an answer does not come any more.
PATIENCE: Final = 10.0
#: Newcomers that may be on their way in at the same time.
NEWCOMERS: Final = 8
CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK = 2, 3, 4, 9, 11
#: Reason codes of who may come again later: memory or connections are used up.
LATER: Final = frozenset({0x88, 0x89, 0x97, 0x9F})


class TurnedAway(Exception):
    """CONNECT was refused with this reason code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{code:#x}")
        self.code = code


class HonestClient:
    """An MQTT 5.0 client on a blocking socket, `wrap` puts TLS on it."""

    def __init__(
        self,
        port: int,
        name: str,
        wrap: Any = None,
        expiry: int = 0,
        user: bytes = b"",
        password: bytes = b"",
        patience: float = PATIENCE,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.topic = b"honest/" + name.encode()
        self._rest = b""
        self._came: list[tuple[int, bytes]] = []
        self._id = 0
        try:
            if wrap is not None:
                self.socket = wrap(self.socket)
            said = connect(name.encode(), expiry, user=user, password=password)
            self.socket.sendall(said)
            body = self.answer(CONNACK)
        except BaseException:
            self.socket.close()
            raise
        #: The broker had kept a session.
        self.resumed = bool(body[0] & 1)
        if body[1]:
            self.socket.close()
            raise TurnedAway(body[1])

    def subscribe(self, name: bytes = b"") -> int:
        """Subscribe to a topic, its own if none is named; the reason code."""
        self.socket.sendall(subscribe([name or self.topic], 1, self.next_id()))
        return self.answer(SUBACK)[-1]

    def unsubscribe(self, name: bytes) -> None:
        """Subscribe no longer."""
        self.socket.sendall(unsubscribe([name], self.next_id()))
        self.answer(UNSUBACK)

    def there_and_back(self, said: bytes) -> None:
        """A message of QoS 1 to its own topic, until it is acknowledged and has come."""
        self.socket.sendall(publish(self.topic, said, 1, packet_id=self.next_id()))
        self.answer(PUBACK)
        while not self.message().endswith(said):
            pass

    def send(self, topic: bytes, said: bytes, retain: bool = False) -> int:
        """A message of QoS 1; the reason code with which it was acknowledged."""
        self.socket.sendall(publish(topic, said, 1, retain, packet_id=self.next_id()))
        body = self.answer(PUBACK)
        return body[2] if len(body) > 2 else 0

    def message(self) -> bytes:
        """The payload of the next message of QoS 1, with what stands before it; acknowledged."""
        body = self.answer(PUBLISH)
        at = 2 + int.from_bytes(body[:2], "big")
        self.socket.sendall(packet(0x40, body[at : at + 2]))
        return body[at + 2 :]

    def leave(self) -> None:
        """DISCONNECT."""
        with contextlib.suppress(OSError):
            self.socket.sendall(b"\xe0\0")
        self.socket.close()

    def next_id(self) -> int:
        """Another packet id."""
        self._id = self._id % 0xFFFF + 1
        return self._id

    def answer(self, kind: int) -> bytes:
        """The next packet of this type, without its header; others wait for who asks for them."""
        for at, (found, body) in enumerate(self._came):
            if found == kind:
                del self._came[at]
                return body
        while True:
            first, body = self._packet()
            if first >> 4 == kind:
                return body
            if first >> 4 == 14:
                raise ConnectionError(f"DISCONNECT {body.hex()}")
            self._came.append((first >> 4, body))

    def _packet(self) -> tuple[int, bytes]:
        while True:
            data = self._rest
            length, at = 0, 1
            while at < len(data) and data[at] >= 0x80:
                length |= (data[at] & 0x7F) << 7 * (at - 1)
                at += 1
            if at < len(data):
                length |= data[at] << 7 * (at - 1)
                if len(data) > at + length:
                    self._rest = data[at + 1 + length :]
                    return data[0], data[at + 1 : at + 1 + length]
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the broker has closed the connection")
            self._rest += more


@dataclass
class Times:
    """How long it took, in seconds, and how often it did not come to that."""

    took: list[float] = field(default_factory=list)
    #: Refused with a code that says: later.
    refused: int = 0
    #: Neither let in nor told to come later, or dropped.
    failed: int = 0
    #: The first of these, in words.
    why: str = ""

    def fail(self, error: Exception) -> None:
        """One more."""
        if isinstance(error, TurnedAway) and error.code in LATER:
            self.refused += 1
        else:
            self.failed += 1
            self.why = self.why or f"{type(error).__name__}: {error}"

    def summary(self) -> dict[str, Any]:
        """Milliseconds: p50, p99, max; and counts."""
        took = sorted(self.took)
        at = quantiles(took, n=100, method="inclusive") if len(took) > 1 else took * 99
        return {
            "p50": round(at[49] * 1e3, 1) if at else None,
            "p99": round(at[98] * 1e3, 1) if at else None,
            "max": round(took[-1] * 1e3, 1) if took else None,
            "count": len(took),
            "refused": self.refused,
            "failed": self.failed,
            "why": self.why,
        }


class Honest:
    """The clients beside one attack. `asked` are further arguments of HonestClient."""

    def __init__(self, port: int, residents: int = 10, every: float = 0.05, **asked: Any) -> None:
        self.port = port
        self.every = every
        self.asked = asked
        self.new = Times()
        self.old = Times()
        self._over = threading.Event()
        self._residents = [HonestClient(port, f"resident-{n}", **asked) for n in range(residents)]
        for client in self._residents:
            client.subscribe()
        self._threads = [
            threading.Thread(target=self._beat, args=(one, times, at, count), daemon=True)
            for one, times, count in (
                (self._newcomer, self.new, NEWCOMERS),
                (self._resident, self.old, residents),
            )
            for at in range(count)
        ]

    def open(self) -> Honest:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End, and see that the residents are all there still."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
        for number in range(len(self._residents)):
            try:
                self._resident(number)
            except (OSError, TurnedAway) as error:
                self.old.fail(error)
        for client in self._residents:
            client.leave()

    def _beat(self, one: Any, times: Times, at: int, count: int) -> None:
        """``one(at)``, ``one(at + count)`` and so on: one of all each `every` seconds."""
        due = time.monotonic() + at * self.every
        number = at
        while not self._over.wait(max(due - time.monotonic(), 0.0)):
            try:
                one(number)
                times.took.append(time.monotonic() - due)
            except (OSError, TurnedAway) as error:
                times.fail(error)
            number += count
            due = max(due + count * self.every, time.monotonic() - PATIENCE)

    def _newcomer(self, number: int) -> None:
        client = HonestClient(self.port, f"newcomer-{number}", **self.asked)
        try:
            if (code := client.subscribe()) > 2:
                raise TurnedAway(code)
            client.there_and_back(b"n%d" % number)
        finally:
            client.leave()

    def _resident(self, number: int) -> None:
        at = number % len(self._residents)
        try:
            self._residents[at].there_and_back(b"r%d" % number)
        except OSError:
            # It was dropped, which counts; another takes its place.
            self._residents[at].socket.close()
            self._residents[at] = HonestClient(self.port, f"resident-{at}", **self.asked)
            self._residents[at].subscribe()
            raise
