"""Very many live connections over several workers: python -m benchmarks.crowded

    [--clients 100000] [--workers 8] [--rate 1000] [--seconds 60] [--keep-alive 60]

Processes of clients, each with a source address of its own (127.0.0.x has 28,000 ports), connect
with one subscription each and keep alive. Publishers in this process send numbered QoS 1 messages
to clients by lot, wherever they are; who gets one looks at the clock and acknowledges it. Told are
the memory of the broker's processes and of the machine for each connection, their CPU while nothing
but keep alive runs and with the messages, how long these took, and what was lost or came twice.

Exit status 0 if every message that was acknowledged came once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import select
import socket
import struct
import tempfile
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.workers import cpu_of
from mqttd import compiled
from mqttd.codec.packets import Connect, Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from tests.support.broker import Broker, start_broker

__all__ = ["main"]

#: Clients of a process, and those of it that are on their way in.
_EACH: Final = 14_000
_COMING: Final = 200
_PUBLISHERS: Final = 32
#: Number of a message, and when it was sent, in nanoseconds.
_STAMP: Final = struct.Struct(">qq")
_PINGREQ: Final = b"\xc0\x00"


def topic_of(number: int) -> str:
    """What client `number` subscribes to."""
    return f"crowd/{number}/down"


class Crowd:
    """The clients of one process, `count` of them from `first` on."""

    def __init__(self, port: int, first: int, count: int, address: str, keep_alive: int) -> None:
        self.port = port
        self.first = first
        self.count = count
        self.address = address
        self.keep_alive = keep_alive
        self.epoll = select.epoll()
        self.socks: dict[int, socket.socket] = {}
        self.rest: dict[int, bytes] = {}
        self.begun = self.inside = self.lost = 0
        self.order: list[int] = []
        self.pinged = 0.0
        self.next = 0
        self.numbers = array("q")
        self.took = array("q")

    def run(self, pipe: Connection) -> None:
        """Connect, say so, go on until told to end, then tell what came."""
        told = False
        while not pipe.poll():
            while self.begun < self.count and self.begun - self.inside < _COMING:
                self._dial()
            for fd, _ in self.epoll.poll(0.02):
                self._read(fd)
            self._ping()
            if not told and self.inside == self.count:
                told = True
                pipe.send("in")
        pipe.send((self.lost, self.numbers.tobytes(), self.took.tobytes()))

    def _dial(self) -> None:
        number = self.first + self.begun
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        sock.bind((self.address, 0))
        sock.connect(("127.0.0.1", self.port))
        sock.setblocking(False)
        sock.send(serialize(Connect(f"crowd{number}", keep_alive=self.keep_alive), 4))
        self.socks[sock.fileno()] = sock
        self.epoll.register(sock.fileno(), select.EPOLLIN)
        self.begun += 1

    def _read(self, fd: int) -> None:
        sock = self.socks[fd]
        data = self.rest.pop(fd, b"") + sock.recv(65536)
        if not data:
            self.lost += 1
            self.epoll.unregister(fd)
            sock.close()
            del self.socks[fd]
            return
        at = 0
        while len(data) - at >= 2 and len(data) >= at + 2 + data[at + 1]:
            end = at + 2 + data[at + 1]
            kind = data[at] >> 4
            if kind == 3:
                self._message(sock, data[at:end])
            elif kind == 2:
                number = self.first + len(self.order)
                self.order.append(fd)
                sock.send(serialize(Subscribe(1, [Subscription(topic_of(number), 1)]), 4))
            elif kind == 9:
                self.inside += 1
            at = end
        if at < len(data):
            self.rest[fd] = data[at:]

    def _message(self, sock: socket.socket, packet: bytes) -> None:
        now = time.monotonic_ns()
        number, sent = _STAMP.unpack(packet[-16:])
        self.numbers.append(number)
        self.took.append(now - sent)
        at = 4 + (packet[2] << 8 | packet[3])
        sock.send(b"\x40\x02" + packet[at : at + 2])

    def _ping(self) -> None:
        """Everybody in turn, each before three quarters of its keep alive are over."""
        now = time.monotonic()
        if not self.order or now - self.pinged < 0.1:
            return
        elapsed = min(now - self.pinged, 1.0) if self.pinged else 0.1
        self.pinged = now
        for _ in range(int(len(self.order) * elapsed / (0.75 * self.keep_alive)) + 1):
            self.next = (self.next + 1) % len(self.order)
            sock = self.socks.get(self.order[self.next])
            if sock is not None:
                sock.send(_PINGREQ)


class Publishers:
    """Clients that publish to those of the crowd by lot."""

    def __init__(self, port: int, clients: int) -> None:
        self.clients = clients
        self.dice = random.Random(1)
        self.sent = 0
        self.acknowledged = 0
        self.socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(_PUBLISHERS)]
        for number, sock in enumerate(self.socks):
            sock.sendall(serialize(Connect(f"publisher{number}", keep_alive=0), 4))
            sock.recv(64)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self, rate: int, seconds: float) -> None:
        """So many messages a second, evenly; then wait for what is not acknowledged."""
        began = time.monotonic()
        end = began + seconds
        while (now := time.monotonic()) < end + 30:
            due = int((min(now, end) - began) * rate)
            while self.sent < due:
                self._publish()
            readable, _, _ = select.select(self.socks, [], [], 0.005)
            for sock in readable:
                self.acknowledged += len(sock.recv(65536)) // 4
            if now >= end and self.acknowledged == self.sent:
                break

    def _publish(self) -> None:
        payload = _STAMP.pack(self.sent, time.monotonic_ns())
        topic = topic_of(self.dice.randrange(self.clients))
        packet = Publish(topic, payload, 1, packet_id=self.sent % 65535 + 1)
        self.socks[self.sent % _PUBLISHERS].sendall(serialize(packet, 4))
        self.sent += 1


def weight_of(broker: Broker) -> int:
    """Bytes of the broker's processes, what they share counted once."""
    assert broker.process is not None
    root = broker.process.pid
    pids = [root, *map(int, Path(f"/proc/{root}/task/{root}/children").read_text().split())]
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def kernel_bytes() -> int:
    """What the kernel's slabs take, and the sockets' buffers."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    pages = next(line.split() for line in Path("/proc/net/sockstat").read_text().splitlines()
                 if line.startswith("TCP:"))  # fmt: skip
    return int(fields["Slab"].split()[0]) * 1024 + int(pages[-1]) * resource.getpagesize()


def _crowd(pipe: Connection, *given: Any) -> None:
    Crowd(*given).run(pipe)


def run(options: argparse.Namespace, folder: Path) -> int:
    """One run; its exit status."""
    broker = start_broker(
        folder,
        node={"workers": options.workers},
        log={"level": "warn"},
        listener={"tcp": {"default": {
            "max_connections": 1_000_000, "max_connections_per_address": 0,
            "max_strangers_per_address": 0, "accept_rate": 0, "backlog": 4096,
        }}},
    )  # fmt: skip
    crowds = []
    try:
        weight, kernel = weight_of(broker), kernel_bytes()
        began, cpu = time.monotonic(), cpu_of(broker)
        for at in range(0, options.clients, _EACH):
            ours, theirs = multiprocessing.Pipe()
            count = min(_EACH, options.clients - at)
            address = f"127.0.0.{2 + at // _EACH}"
            given = (theirs, broker.port, at, count, address, options.keep_alive)
            process = multiprocessing.Process(target=_crowd, args=given, daemon=True)
            process.start()
            crowds.append((process, ours))
        for _, pipe in crowds:
            pipe.recv()
        took, used = time.monotonic() - began, cpu_of(broker) - cpu
        clients = options.clients
        print(f"{clients:,} clients with a subscription each, {options.workers} workers, "
              f"{'compiled' if compiled() else 'pure Python'}")  # fmt: skip
        print(f"connected in {took:.1f} s, {used / clients * 1e6:.0f} us of CPU each")
        cpu, began = cpu_of(broker), time.monotonic()
        time.sleep(options.seconds / 2)
        idle = (cpu_of(broker) - cpu) / (time.monotonic() - began)
        each = (weight_of(broker) - weight) / clients
        slab = (kernel_bytes() - kernel) / clients
        print(f"memory: {each:,.0f} B each in the broker, {slab:,.0f} B in the kernel (both ends)")
        print(f"keep alive of {options.keep_alive} s: {100 * idle:.1f} % of a core")
        publishers = Publishers(broker.port, clients)
        cpu, began = cpu_of(broker), time.monotonic()
        publishers.run(options.rate, options.seconds)
        busy = (cpu_of(broker) - cpu) / (time.monotonic() - began)
        time.sleep(1)
        print(f"and {options.rate} messages/s: {100 * busy:.1f} % of a core")
        print(f"memory then: {(weight_of(broker) - weight) / clients:,.0f} B each in the broker")
        return report(publishers, crowds)
    finally:
        for process, _ in crowds:
            process.terminate()
        broker.stop()


def report(publishers: Publishers, crowds: Sequence[tuple[Any, Connection]]) -> int:
    """Put together what came; the exit status."""
    numbers, took = array("q"), array("q")
    ended = 0
    for _, pipe in crowds:
        pipe.send("end")
        lost, one, other = pipe.recv()
        ended += lost
        numbers.frombytes(one)
        took.frombytes(other)
    times = sorted(took)
    missing = publishers.sent - len(set(numbers))
    twice = len(numbers) - len(set(numbers))
    parts = [f"{name} {times[int(share * (len(times) - 1))] / 1e6:.2f} ms" for name, share in
             (("median", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0))]  # fmt: skip
    print(f"{publishers.sent:,} messages, {publishers.acknowledged:,} acknowledged, "
          f"{missing} missing, {twice} twice, {ended} connections lost")  # fmt: skip
    print("on their way: " + ", ".join(parts))
    return 1 if missing or twice or ended or publishers.acknowledged != publishers.sent else 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.crowded", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep-alive", type=int, default=60)
    with tempfile.TemporaryDirectory() as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
