"""What messages and filters cost where rights have to be asked for: the broker's CPU for each.

    python -m benchmarks.decisions WHAT --port N --pid N [--count N]

    fresh-q0, fresh-q1      topics that never come again, below dev/%c, to a subscriber of all
    denied-q0, denied-q1    topics that the client may not publish to; denied5-...: MQTT 5.0
    again                   the same filters, subscribed to again and again, 100 in a packet
    renewed                 filters that are subscribed to and unsubscribed from, 100 in a packet

`fresh` and `denied` want a broker with the rule of `benchmarks.setting.OWN`. Shown in JSON:
microseconds of a message, or of a filter (of both packets for `renewed`). What is not denied is
counted at its subscriber, what is denied by a PINGRESP behind it and, at QoS 1, its PUBACKs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.client import Client, cpu_of
from mqttd.codec.packets import Pingreq, Publish, Subscribe, Subscription, Unsubscribe
from mqttd.codec.serializer import serialize

__all__ = ["WHAT", "measure"]

BATCH: Final = 200
FILTERS: Final = 100
#: Share of the messages, or filters, that comes before: caches fill, and what is learnt is learnt.
WARM: Final = 0.5
PATIENCE: Final = 20.0
PUBACK, PINGRESP = 0x40, 0xD0


def fresh(port: int, qos: int) -> Callable[[int], None]:
    """Publish so many messages, each to a topic of its own, and wait for them."""
    reader = Client(port, "reader", PATIENCE)
    reader.send(Subscribe(1, [Subscription("#", qos)]))
    reader.next()
    sender = Client(port, "c1", PATIENCE)
    number = 0

    def go(count: int) -> None:
        nonlocal number
        for start in range(0, count, BATCH):
            some = range(number + start, number + start + BATCH)
            sender.socket.sendall(
                b"".join(
                    serialize(
                        Publish(f"dev/c1/{n:08}/v", b"x" * 16, qos, packet_id=n % 65535 + 1), 4
                    )
                    for n in some
                )
            )
            if qos:
                _await(sender, PUBACK, BATCH)
            _taken(reader, BATCH, qos)
        number += count

    return go


def _taken(reader: Client, count: int, qos: int) -> None:
    """Wait for so many messages, and acknowledge them."""
    answers = []
    while count:
        first, body = reader.next()
        if first >> 4 == 3:
            count -= 1
            if qos:
                at = 2 + (body[0] << 8 | body[1])
                answers.append(b"\x40\2" + body[at : at + 2])
    if answers:
        reader.socket.sendall(b"".join(answers))


def _await(client: Client, first: int, count: int) -> None:
    """Wait for so many packets of a kind."""
    while count:
        count -= client.next()[0] == first


def denied(port: int, qos: int, version: int) -> Callable[[int], None]:
    """Publish so many messages that are refused, and wait until they were."""
    sender = Client(port, "c1", PATIENCE, version)
    batch = b"".join(
        serialize(Publish(f"dev/c2/{n % 10}/v", b"x" * 16, qos, packet_id=n + 1), version)
        for n in range(BATCH)
    ) + serialize(Pingreq(), version)

    def go(count: int) -> None:
        for _ in range(0, count, BATCH):
            sender.socket.sendall(batch)
            while sender.next()[0] != PINGRESP:
                pass  # PUBACKs, where a broker acknowledges what it refuses

    return go


def filters(port: int, renewed: bool) -> Callable[[int], None]:
    """Subscribe to so many filters, and wait for the answers."""
    client = Client(port, "c1", PATIENCE)
    names = [f"site/{n}/+/state" for n in range(FILTERS)]
    packets = [Subscribe(1, [Subscription(name, 0) for name in names]), Unsubscribe(2, names)]
    wire = b"".join(serialize(packet, 4) for packet in packets[: 1 + renewed])

    def go(count: int) -> None:
        for _ in range(0, count, FILTERS):
            client.socket.sendall(wire)
            for _ in range(1 + renewed):
                client.next()

    return go


#: What is measured -> how it is made ready, and how many of it.
WHAT: Final[dict[str, tuple[Callable[[int], Callable[[int], None]], int]]] = {
    "fresh-q0": (lambda port: fresh(port, 0), 200_000),
    "fresh-q1": (lambda port: fresh(port, 1), 100_000),
    "denied-q0": (lambda port: denied(port, 0, 4), 300_000),
    "denied-q1": (lambda port: denied(port, 1, 4), 200_000),
    "denied5-q0": (lambda port: denied(port, 0, 5), 300_000),
    "denied5-q1": (lambda port: denied(port, 1, 5), 200_000),
    "again": (lambda port: filters(port, False), 200_000),
    "renewed": (lambda port: filters(port, True), 100_000),
}


def measure(what: str, port: int, pid: int, count: int = 0) -> dict[str, float]:
    """The figures, in microseconds; raises RuntimeError, OSError."""
    begin, usual = WHAT[what]
    count = max((count or usual) // BATCH, 1) * BATCH
    go = begin(port)
    go(int(count * WARM) // BATCH * BATCH)
    before, began = cpu_of(pid), time.monotonic()
    go(count)
    wall = time.monotonic() - began
    return {"cpu": (cpu_of(pid) - before) / count * 1e6, "wall": wall / count * 1e6}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 with the reason where it cannot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="the broker")
    parser.add_argument("--count", type=int, default=0, help="messages or filters")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(measure(given.what, given.port, given.pid, given.count)))
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
