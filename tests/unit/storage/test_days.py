"""Three days of simulated time with a store, and sessions that come and go: nothing grows.

Here some hours of it; MQTTD_LONG=1 does all 72. The real thing: `python -m benchmarks.soak`.
"""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Will,
)
from tests.support.account import audit
from tests.support.memory import MemoryClient
from tests.unit.storage.test_apart import Asked, lay_apart, serve
from tests.unit.storage.test_journal import Kept, make

HOURS = 72 if os.environ.get("MQTTD_LONG") == "1" else 6
MINUTE = 60_000
#: Sessions that stay, and minutes that they are there or away.
STAYING = 12


class Days:
    """Clients of one broker, minute by minute."""

    def __init__(self, kept: Kept, asked: Asked, seed: int) -> None:
        self.kept = kept
        self.asked = asked
        self.dice = random.Random(seed)
        self.there: dict[str, MemoryClient] = {}
        self.sent: dict[str, list[int]] = {f"c{number}": [] for number in range(STAYING)}
        self.came: dict[str, list[int]] = {name: [] for name in self.sent}
        self.number = self.strangers = 0
        self.publisher = kept.client("publisher", kept=False)
        for name in self.sent:
            self.come(name)

    def come(self, name: str) -> None:
        """A session goes on, or begins."""
        properties = {prop.SESSION_EXPIRY_INTERVAL: 100 * 3600}
        client = self.kept.node.connect(name, 5, False, properties=properties)
        assert client.connack is not None
        if not client.connack.session_present:
            client.send(Subscribe(1, [Subscription(f"s/{name}", 2)]))
        self.there[name] = client

    def minute(self) -> None:
        """What happens in one."""
        dice = self.dice
        for _ in range(dice.randint(5, 20)):
            name = f"c{dice.randrange(STAYING)}"
            self.number += 1
            self.sent[name].append(self.number)
            qos = dice.choice((1, 2))
            payload = b"%08d" % self.number + bytes(dice.choice((20, 200)))
            packet_id = self.number % 60_000 + 1
            self.publisher.send(Publish(f"s/{name}", payload, qos, False, False, packet_id, None))
        for name in self.sent:
            if dice.random() < 0.1:
                if name in self.there:
                    self.there.pop(name).drop()
                else:
                    self.come(name)
        self.stranger()
        self.settle()
        self.kept.node.advance(MINUTE)
        self.settle()

    def stranger(self) -> None:
        """A client id that was never there: it ends an hour later, its retained message too."""
        self.strangers += 1
        name = f"stranger {self.strangers}"
        guest = self.kept.node.connect(
            name, 5, False, will=Will(f"w/{name}", b"gone", 1, False),
            properties={prop.SESSION_EXPIRY_INTERVAL: 3600},
        )  # fmt: skip
        guest.send(Subscribe(1, [Subscription("s/c0", 1), Subscription(f"s/{name}", 1)]))
        expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 3600}
        guest.send(Publish(f"r/{name}", b"here", 1, True, False, 1, expiry))
        guest.drop()

    def settle(self) -> None:
        """Everything is written, read and acknowledged."""
        while True:
            serve(self.kept, self.asked)
            taken = [self.take(name, client) for name, client in self.there.items()]
            if not (any(taken) | self.take("", self.publisher)) and not self.kept.waiting:
                return

    def take(self, name: str, client: MemoryClient) -> bool:
        """Acknowledge what has come to one."""
        packets: list[Packet] = client.take()
        for packet in packets:
            if isinstance(packet, Publish):
                self.came[name].append(int(packet.payload[:8]))
                answer = Puback if packet.qos == 1 else Pubrec
                client.send(answer(packet.packet_id, 0, None))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id, 0, None))
            elif isinstance(packet, Pubrec):
                client.send(Pubrel(packet.packet_id, 0, None))
        return bool(packets)

    def sizes(self) -> dict[str, int]:
        """What could grow."""
        kept = self.kept
        broker, ledger = kept.node.broker, kept.ledger
        pages = kept.base.execute("PRAGMA page_count").fetchone()[0]
        return {
            "pages": pages, "blocks": len(ledger.blocks), "homes": len(ledger.homes),
            "bytes": ledger.bytes, "sessions": len(broker.sessions),
            "retained": len(broker.retainer), "objects": len(gc.get_objects()),
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_in_three_days(tmp_path: Path) -> None:
    kept = make(tmp_path)
    asked = lay_apart(kept, in_memory=2000)
    days = Days(kept, asked, 5)
    samples: list[dict[str, int]] = []
    for minute in range(HOURS * 60):
        days.minute()
        if minute % 30 == 29:
            gc.collect()
            samples.append(days.sizes())
    for name in days.sent:
        if name not in days.there:
            days.come(name)
    days.settle()
    assert days.came == days.sent
    broker = kept.node.broker
    audit(broker, [s.channel for s in broker.sessions.values() if s.channel is not None])
    # The first two hours fill it: strangers stay for one. Then the last third is as the second.
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]
    for what in samples[0]:
        most = max(sample[what] for sample in before)
        assert max(sample[what] for sample in after) <= most * 1.25 + 16, (what, samples)
    kept.base.close()
