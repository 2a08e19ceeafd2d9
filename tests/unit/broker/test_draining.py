"""A node with many sessions whose clients are away is drained."""

from __future__ import annotations

from mqttd.broker.drain import LOOKED_AT, Drain
from mqttd.session.session import Session
from tests.support.memory import MemoryBroker


def test_no_tick_looks_at_more_sessions_than_its_share() -> None:
    """With 100,000 of which one is there each tick held all others up until that had gone."""
    node = MemoryBroker()
    for number in range(2 * LOOKED_AT):
        session = Session(node.broker, f"c{number}", None)
        session.restored(0, 600, node.now, True)
        node.broker.registry.put_back(session)
    client = node.connect("last")
    drain = Drain(node.broker, lambda: None)
    drain.begin(1000.0)
    for tick in range(4):
        assert client.closed is (tick == 3)
        node.advance(250)
        drain.tick(node.now)
    assert drain.ended == 1
