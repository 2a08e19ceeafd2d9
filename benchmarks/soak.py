"""Hours of a little traffic, sessions that come and go: what grows, slows down or is lost.

    python -m benchmarks.soak [--hours 2] [--rate 100] [--sample 30] [--out soak.jsonl]

    publishers   --rate messages/s in all, QoS 1 and 2 by turns, 120 bytes
    subscribers  sessions that stay for ever, there a minute and away a minute; one is away for
                 twenty, so that what it is to get keeps blocks that are dead otherwise
    strangers    one a second: a new client id with a will and a retained message; cut off, its
                 session ends half a minute later, or at once by DISCONNECT

Every `--sample` seconds a line of JSON: RSS and CPU of the broker, bytes of its file and its log of
pages, how long PUBACK and PUBCOMP took (p50, p99, largest), what came twice or never, in ms and
bytes. Each message is counted: one that is missing ends the run. The last line sums up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from mqttd import compiled
from tests.support import packets as mq
from tests.support.broker import start_broker

__all__ = ["main"]

#: Sessions, each with a topic of its own; and seconds that they are there, or away.
SESSIONS: Final = 20
STAY: Final = 60.0
#: The last of them is away for so long.
LONG: Final = 1200.0
PUBLISHERS: Final = 4
TICK: Final = 0.1
SIZE: Final = 120
STRANGER_EXPIRY: Final = 30


class Lost(Exception):
    """A message did not come, or not in its order."""


class Peer:
    """One client: what it has sent and not seen acknowledged, what it awaits next."""

    def __init__(self, soak: Soak, name: str) -> None:
        self.soak = soak
        self.name = name
        self.sock: socket.socket | None = None
        self.until = 0.0
        self.ready = False
        self.subscribed = False
        self._rest = b""
        self._sent: dict[int, float] = {}
        self._next_id = 0
        self._incoming: set[int] = set()
        #: (publisher, QoS) -> the number that came last.
        self.last: dict[tuple[str, int], int] = {}
        #: By topic and QoS, what was published last.
        self.numbers: dict[tuple[str, int], int] = {}

    def connect(self, expiry: int, will: mq.Will | None = None) -> None:
        """Connect and go on with the session."""
        self.sock = socket.create_connection(("127.0.0.1", self.soak.port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.soak.peers[self.sock.fileno()] = self
        self.soak.poll.register(self.sock.fileno(), select.POLLIN)
        props = [(mq.SESSION_EXPIRY, expiry)]
        self.sock.sendall(mq.connect(self.name, mq.V5, clean=False, props=props, will=will))

    def close(self) -> None:
        """Go without a word."""
        if self.sock is not None:
            self.soak.poll.unregister(self.sock.fileno())
            del self.soak.peers[self.sock.fileno()]
            self.sock.close()
        self.sock = None
        self.ready = False
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send bytes."""
        assert self.sock is not None
        self.sock.sendall(data)

    def publish(self, topic: str, qos: int, retain: bool = False) -> None:
        """Send the next message to a topic."""
        self._next_id = self._next_id % 65534 + 1
        number = self.numbers.get((topic, qos), 0) + 1
        self.numbers[topic, qos] = number
        payload = f"{self.name} {number} ".encode().ljust(SIZE, b".")
        self._sent[self._next_id] = time.monotonic()
        self.send(mq.publish(topic, payload, qos, self._next_id, version=mq.V5, retain=retain))

    def read(self) -> None:
        """Take what has come. Raises Lost."""
        assert self.sock is not None
        data = self.sock.recv(1 << 16)
        if not data:
            raise Lost(f"{self.name}: the broker has closed the connection")
        rest = self._rest + data
        at = 0
        while at + 2 <= len(rest):
            length = shift = 0
            head = at + 1
            while head < len(rest):
                length |= (rest[head] & 0x7F) << shift
                shift += 7
                head += 1
                if rest[head - 1] < 0x80:
                    break
            else:
                break
            if head + length > len(rest):
                break
            self._take(mq.read(rest[at], rest[head : head + length], mq.V5))
            at = head + length
        self._rest = rest[at:]

    def _take(self, packet: mq.Packet) -> None:
        kind, packet_id = packet.type, packet.packet_id
        if kind == mq.PUBLISH:
            if packet.qos == 2:
                if packet_id not in self._incoming:
                    self._incoming.add(packet_id)
                    self._note(packet)
                self.send(mq.pubrec(packet_id, mq.V5))
            else:
                self._note(packet)
                self.send(mq.puback(packet_id, mq.V5))
        elif kind == mq.PUBREL:
            self._incoming.discard(packet_id)
            self.send(mq.pubcomp(packet_id, mq.V5))
        elif kind == mq.PUBREC:
            self.send(mq.pubrel(packet_id, mq.V5))
        elif kind in (mq.PUBACK, mq.PUBCOMP):
            if packet.reason >= 0x80:
                raise Lost(f"{self.name}: {packet}")
            self.soak.waited.append(time.monotonic() - self._sent.pop(packet_id))
        elif kind == mq.CONNACK:
            if not self.subscribed:
                self.send(mq.subscribe([(f"s/{self.name}", 2)], 65535, version=mq.V5))
            self.ready = True
        elif kind == mq.SUBACK:
            self.subscribed = True

    def _note(self, packet: mq.Packet) -> None:
        publisher, text = packet.payload.split()[:2]
        key = publisher.decode(), packet.qos
        number = int(text)
        last = self.last.get(key, 0)
        if number == last + 1:
            self.last[key] = number
            self.soak.received += 1
        elif packet.qos == 1 and number <= last and packet.dup:
            self.soak.twice += 1
        else:
            raise Lost(f"{self.name}: {number} of {key} came after {last}")


class Soak:
    """The traffic, and what is seen of it."""

    def __init__(self, port: int, pid: int, folder: Path, seed: int) -> None:
        self.port = port
        self.pid = pid
        self.folder = folder
        self.dice = random.Random(seed)
        self.poll = select.poll()
        self.peers: dict[int, Peer] = {}
        self.waited: list[float] = []
        self.received = self.twice = self.strangers = 0
        self.publishers = [Peer(self, f"p{number}") for number in range(PUBLISHERS)]
        self.sessions = [Peer(self, f"c{number}") for number in range(SESSIONS)]
        self.guests: list[tuple[float, Peer]] = []
        self.began = time.monotonic()

    def turn(self, now: float, messages: int) -> None:
        """What is due every tick."""
        for number in range(messages):
            publisher = self.publishers[number % PUBLISHERS]
            topic = f"s/c{self.dice.randrange(SESSIONS)}"
            publisher.publish(topic, 1 + self.dice.randrange(2))
        for session in self.sessions:
            if now >= session.until:
                self._toggle(session, now)
        if now - self.began >= self.strangers:
            self.strangers += 1
            guest = Peer(self, f"g{self.strangers}")
            guest.connect(STRANGER_EXPIRY, mq.Will(f"w/{guest.name}", b"gone", 1))
            self.guests.append((now + 2, guest))
        while self.guests and self.guests[0][0] <= now:
            self._leave(self.guests.pop(0)[1])
        end = time.monotonic() + TICK
        while (left := end - time.monotonic()) > 0:
            for fd, _ in self.poll.poll(left * 1000):
                if (peer := self.peers.get(fd)) is not None:
                    peer.read()

    def _toggle(self, session: Peer, now: float) -> None:
        longs = session is self.sessions[-1]
        if session.sock is None:
            session.connect(1_000_000)
            session.until = now + STAY * self.dice.uniform(0.5, 1.5)
        else:
            session.close()
            session.until = now + (LONG if longs else STAY * self.dice.uniform(0.5, 1.5))

    def _leave(self, guest: Peer) -> None:
        if guest.ready and self.dice.random() < 0.5:
            guest.publish(f"r/{self.dice.randrange(100)}", 1, retain=True)
        elif guest.ready:
            guest.send(mq.disconnect(mq.V5, props=[(mq.SESSION_EXPIRY, 0)]))
        guest.close()

    def sample(self) -> dict[str, Any]:
        """How things are, and what acknowledgements have taken since the last time."""
        waited, self.waited = sorted(self.waited), []
        status = Path(f"/proc/{self.pid}/status").read_text()
        rss = int(status.split("VmRSS:")[1].split()[0]) * 1024
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        store = self.folder / "data" / "store.db"
        log = store.with_name("store.db-wal")

        def at(share: float) -> float:
            return round(waited[int(share * (len(waited) - 1))] * 1000, 2) if waited else 0.0

        return {
            "t": round(time.monotonic() - self.began), "rss": rss, "cpu_s": round(cpu, 2),
            "own_cpu_s": round(time.process_time(), 2), "file": store.stat().st_size,
            "log": log.stat().st_size if log.exists() else 0, "acks": len(waited),
            "ack_p50": at(0.5), "ack_p99": at(0.99), "ack_max": at(1.0),
            "received": self.received, "twice": self.twice, "strangers": self.strangers,
        }  # fmt: skip

    def drain(self) -> int:
        """Have everybody there, and all of it delivered; returns how many did not come in time."""
        for session in self.sessions:
            if session.sock is None:
                session.connect(1_000_000)
            session.until = float("inf")
        missing = 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            missing = sum(
                number - self.sessions[int(topic[3:])].last.get((publisher.name, qos), 0)
                for publisher in self.publishers
                for (topic, qos), number in publisher.numbers.items()
            )
            if not missing:
                break
            self.turn(time.monotonic(), 0)
        return missing


def main() -> int:
    """The command; its status is 1 if a message was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=100, help="messages a second")
    parser.add_argument("--sample", type=float, default=30.0, help="seconds between two lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    asked = parser.parse_args()
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name, asked.out.open("a", 1) as out:
        folder = Path(name)
        broker = start_broker(folder, mqueue={"max_length": 100_000})
        assert broker.process is not None

        def tell(**fields: Any) -> None:
            out.write(json.dumps(fields) + "\n")

        now = time.strftime("%FT%TZ", time.gmtime())
        tell(began=now, compiled=compiled(), pid=broker.process.pid, own_pid=os.getpid(),
             folder=name, rate=asked.rate, seed=asked.seed)  # fmt: skip
        soak = Soak(broker.port, broker.process.pid, folder, asked.seed)
        lost = ""
        try:
            for peer in (*soak.sessions, *soak.publishers):
                peer.connect(1_000_000)
            for session in soak.sessions:
                session.until = soak.began + STAY * soak.dice.uniform(0.1, 1.5)
            while not all(session.subscribed for session in soak.sessions):
                soak.turn(soak.began, 0)
            end = soak.began + asked.hours * 3600
            next_sample = soak.began + asked.sample
            due = 0.0
            while (now_ := time.monotonic()) < end:
                due = min(due + asked.rate * TICK, 10.0 * asked.rate * TICK)
                soak.turn(now_, int(due))
                due -= int(due)
                if now_ >= next_sample:
                    next_sample += asked.sample
                    samples.append(soak.sample())
                    tell(**samples[-1])
            missing = soak.drain()
            if missing:
                lost = f"{missing} messages did not come"
        except (Lost, OSError) as error:
            lost = repr(error)
        finally:
            broker.stop()
        tell(done=True, lost=lost, **summary(samples))
    print(json.dumps({"lost": lost, **summary(samples)}))
    return 1 if lost else 0


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The first and the last third side by side: medians, and the largest of all."""

    def middle(rows: list[dict[str, Any]], key: str) -> float:
        return float(sorted(row[key] for row in rows)[len(rows) // 2])

    third = len(samples) // 3
    if not third:
        return {}
    found = {}
    for key in ("rss", "file", "log", "ack_p50", "ack_p99"):
        found[key] = [middle(samples[:third], key), middle(samples[-third:], key)]
        found[f"{key}_most"] = max(row[key] for row in samples)
    return found


if __name__ == "__main__":
    sys.exit(main())
