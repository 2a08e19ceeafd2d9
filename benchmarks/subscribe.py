"""What one wildcard SUBSCRIBE costs while many topics are in use.

    python -m benchmarks.subscribe --port N --pid N [--topics 190000] [--times 5]

    publish to every topic twice -> SUBSCRIBE site/+/x0/# -> publish to every topic -> SUBSCRIBE ...

Shown in JSON: microseconds of the broker's CPU for one SUBSCRIBE (median and worst), its time until
SUBACK, and what a publish costs the first time, the second time, and the first time after such a
SUBSCRIBE, to which a broker may have put the work off. Every message is counted at its subscriber.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.client import Client, cpu_of
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize

__all__ = ["measure", "topic_of"]

BATCH: Final = 64
#: Seconds without a message after which the rest counts as lost.
PATIENCE: Final = 20.0
#: Seconds in which a broker does what it has put off to after its SUBACK.
AFTER: Final = 0.05


def topic_of(number: int) -> str:
    """All topics are of one length, and so are their packets."""
    return f"site/{number % 997:03}/dev{number:06}/v"


class Receiver:
    """Subscribes to all of them and counts, in a thread, what comes."""

    def __init__(self, port: int, size: int) -> None:
        self.client = Client(port, "receiver", PATIENCE)
        self.client.send(Subscribe(1, [Subscription("site/#", 0)]))
        self.client.next()
        self.size = size
        self.bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        buffer = bytearray(1 << 20)
        self.client.socket.settimeout(None)
        while count := self.client.socket.recv_into(buffer):
            self.bytes += count

    def wait(self, messages: int) -> None:
        """Until so many have come in all; raises RuntimeError if they do not."""
        before, since = -1, time.monotonic()
        while self.bytes < messages * self.size:
            if self.bytes != before:
                before, since = self.bytes, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise RuntimeError(f"{messages - self.bytes // self.size} messages were lost")
            time.sleep(0.002)


def measure(port: int, pid: int, topics: int, times: int) -> dict[str, float]:
    """The figures, in microseconds; raises RuntimeError, OSError."""
    packets = [serialize(Publish(topic_of(n), b"x" * 16), 4) for n in range(topics)]
    receiver, sender = Receiver(port, len(packets[0])), Client(port, "sender")
    sent = 0

    def fill() -> float:
        nonlocal sent
        before = cpu_of(pid)
        for start in range(0, topics, BATCH):
            sender.socket.sendall(b"".join(packets[start : start + BATCH]))
        sent += topics
        receiver.wait(sent)
        return (cpu_of(pid) - before) / topics * 1e6

    first, second = fill(), fill()
    client = Client(port, "subscriber")
    cpu, wall, after = [], [], []
    for number in range(times):
        before, began = cpu_of(pid), time.monotonic()
        client.send(Subscribe(number + 1, [Subscription(f"site/+/x{number}/#", 0)]))
        client.next()
        wall.append((time.monotonic() - began) * 1e6)
        time.sleep(AFTER)
        cpu.append((cpu_of(pid) - before) * 1e6)
        after.append(fill())
    return {
        "cpu": statistics.median(cpu),
        "worst": max(cpu),
        "wall": statistics.median(wall),
        "publish_first": first,
        "publish_again": second,
        "publish_after": statistics.median(after),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 with the reason where it cannot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subscribe")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="the broker")
    parser.add_argument("--topics", type=int, default=190_000, help="in use (%(default)d)")
    parser.add_argument("--times", type=int, default=5, help="SUBSCRIBEs (%(default)d)")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(measure(given.port, given.pid, given.topics, given.times)))
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
