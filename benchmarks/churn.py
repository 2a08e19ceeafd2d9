"""Changes wildcard filters all the time: python -m benchmarks.churn --port N [--rate 200]

    SUBSCRIBE bench/t/000017/+/c1      SUBSCRIBE bench/+/000003/c2/#      UNSUBSCRIBE the oldest ...

The filters lie among the topics that mqttload publishes with ``--scenario wildcard --prefix
bench/t`` and match none of them, so that deliveries stay what mqttload expects. Runs until SIGTERM,
then says in JSON how many changes there were in how many seconds, and how many were refused.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from benchmarks.client import Client
from mqttd.codec.packets import Subscribe, Subscription, Unsubscribe

__all__ = ["KEPT", "filter_of", "main"]

#: Filters that stand at a time.
KEPT: Final = 100
SUBACK: Final = 0x90


def filter_of(number: int) -> str:
    """The filter of the n-th SUBSCRIBE: below one publisher's topics, or across all of them."""
    publisher = f"{number * 7 % 50:06}"
    if number % 4 == 3:
        return f"bench/+/{publisher}/c{number}/#"
    return f"bench/t/{publisher}/+/c{number}"


class Churn:
    """One client that changes `rate` filters a second."""

    def __init__(self, port: int, rate: float) -> None:
        self.client = Client(port, "churn")
        self.client.socket.setblocking(False)
        self.every = 1 / rate
        self.standing: deque[str] = deque()
        self.changes = self.answered = self.refused = self.number = 0
        self.ended = False

    def run(self) -> dict[str, float]:
        """Until `ended`."""
        began = due = time.monotonic()
        while not self.ended:
            self.change()
            self._read()
            due += self.every
            time.sleep(max(0.0, due - time.monotonic()))
        return {
            "changes": self.changes,
            "answered": self.answered,
            "refused": self.refused,
            "seconds": time.monotonic() - began,
        }

    def change(self) -> None:
        """One filter more, or the oldest less."""
        self.changes += 1
        packet_id = self.changes % 65535 + 1
        client = self.client
        client.socket.setblocking(True)
        if len(self.standing) >= KEPT:
            client.send(Unsubscribe(packet_id, [self.standing.popleft()]))
        else:
            self.number += 1
            self.standing.append(filter_of(self.number))
            client.send(Subscribe(packet_id, [Subscription(self.standing[-1], 0)]))
        client.socket.setblocking(False)

    def _read(self) -> None:
        while self.client.receive():
            pass
        for kind, body in self.client.whole():
            self.answered += 1
            self.refused += kind == SUBACK and body[-1] >= 0x80


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.churn")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=200, help="changes a second (%(default)g)")
    given = parser.parse_args(arguments)
    churn = Churn(given.port, given.rate)

    def end(number: int, frame: object) -> None:
        churn.ended = True

    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    print(json.dumps(churn.run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
