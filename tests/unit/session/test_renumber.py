"""A packet id is taken at a receiver: its message goes out under another, shared where free."""

from __future__ import annotations

import random

import pytest

from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from tests.support.memory import MemoryBroker


@pytest.mark.parametrize("seed", range(30))
def test_ids_are_free_and_messages_whole_wherever_they_go(seed: int) -> None:
    rnd = random.Random(seed)
    node = MemoryBroker()
    node.settings.max_inflight = 60_000
    names = [f"r{number}" for number in range(4)]
    readers = {name: node.connect(name) for name in names}
    for name in names:
        topics = rnd.sample(["a", "b", "c"], rnd.randrange(1, 4))
        readers[name].send(Subscribe(1, [Subscription(topic, 1) for topic in topics]))
        readers[name].take()
    writers = [node.connect(f"w{number}") for number in range(3)]
    seen: dict[str, dict[int, bytes]] = {name: {} for name in names}
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    sessions = {name: node.broker.sessions[name] for name in names}
    wanted = {name: sessions[name].subscriptions or {} for name in names}
    for step in range(60):
        chunk = b""
        for number in range(rnd.randrange(1, 5)):
            topic = rnd.choice("abc")
            payload = b"%d %d" % (step, number)
            packet_id = step * 5 % 40 + number + 1
            chunk += serialize(Publish(topic, payload, 1, packet_id=packet_id), 4)
            for name in names:
                if topic in wanted[name]:
                    sent[name].append(payload)
        rnd.choice(writers).feed(chunk)
        node.broker.perform()
        for name in names:
            for packet in readers[name].published():
                assert packet.packet_id not in seen[name]
                seen[name][packet.packet_id] = packet.payload
                assert sent[name].pop(0) == packet.payload
            session = sessions[name]
            assert set(session.inflight or {}) == set(seen[name])
            if rnd.random() < 0.3:
                for packet_id in rnd.sample(list(seen[name]), len(seen[name]) // 2):
                    assert session.acknowledge(packet_id)
                    del seen[name][packet_id]
    for name in names:
        # Whoever comes back gets what it has not acknowledged, under the same ids.
        kept = {delivery.packet_id: delivery.wire for delivery in sessions[name].pending()}
        assert set(kept) == set(seen[name])
        assert all(kept[packet_id].endswith(seen[name][packet_id]) for packet_id in kept)
