"""Clients that subscribe to thousands of filters, and what the store has of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.codec.packets import Packet, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from mqttd.codec.reasons import NO_SUBSCRIPTION_EXISTED, QUOTA_EXCEEDED
from tests.unit.storage.test_journal import Kept, make
from tests.unit.storage.test_wide import step

CLIENTS = 6
FILTERS = 3000
#: Of a group, and a slice that was begun before it had so many.
MOST = 1000 + 200


def written(kept: Kept, most: int) -> None:
    """What waits for the disk is written; none of it changes more than that."""
    while kept.waiting:
        assert len(kept.waiting[0].rows) <= most
        kept.write()


@pytest.mark.parametrize("failing", [False, True], ids=["written", "while the disk takes nothing"])
def test_13_filters_of_thousands_go_to_the_store_in_groups(tmp_path: Path, failing: bool) -> None:
    kept = make(tmp_path)
    clients = [kept.client(f"client-{n}", kept=True) for n in range(CLIENTS)]
    kept.journal.fail(failing)
    told: list[list[Packet]] = [[] for _ in clients]
    for n, client in enumerate(clients):
        client.send(Subscribe(1, [Subscription(f"{n}/{k}", 0) for k in range(FILTERS)]))
        client.send(Unsubscribe(2, [f"{n}/{k}" for k in range(1, FILTERS)]))
    granted, gone = (QUOTA_EXCEEDED, NO_SUBSCRIPTION_EXISTED) if failing else (0, 0)
    # The first slice of a packet is had at once.
    most = 1 << 30 if failing else MOST + 200 * CLIENTS
    turns = 0
    while step(kept.node) or kept.waiting:
        turns += 1
        if turns % 20 == 0:  # the disk is slow
            written(kept, most)
        for n, client in enumerate(clients):
            told[n] += client.take()
    written(kept, most)
    for n, client in enumerate(clients):
        told[n] += client.take()
        suback, unsuback = told[n]
        assert isinstance(suback, Suback) and suback.reason_codes == [granted] * FILTERS
        assert isinstance(unsuback, Unsuback) and unsuback.reason_codes == [gone] * (FILTERS - 1)
    (left,) = kept.base.execute("SELECT count(*) FROM subscription").fetchone()
    assert left == (0 if failing else CLIENTS)
    kept.base.close()


def test_13_who_goes_meanwhile_keeps_nobody_waiting(tmp_path: Path) -> None:
    kept = make(tmp_path)
    clients = [kept.client(f"client-{n}", kept=True) for n in range(CLIENTS)]
    for n, client in enumerate(clients):
        client.send(Subscribe(1, [Subscription(f"{n}/{k}", 0) for k in range(FILTERS)]))
    for client in clients[:-1]:
        client.drop()
    while step(kept.node):
        kept.settle()
    kept.settle()
    (suback,) = clients[-1].take()
    assert isinstance(suback, Suback) and len(suback.reason_codes) == FILTERS
    kept.base.close()
