"""Between two groups there may be a pause, in which those who are answered together go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Puback
from mqttd.storage import releasing
from mqttd.storage.durability import OS, Durability
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import Kept, publish


class Pausing(Kept):
    """A store whose pauses end when the test says so."""

    now = 1_000_000_000

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path, Durability(OS, {}))
        self.pauses: list[float] = []
        monkeypatch.setattr(releasing, "monotonic_ns", lambda: self.now)
        self.subscriber("away", "t/#", 1, kept=True).drop()
        self.settle()
        self.journal.pause = self.pauses.append

    def over(self) -> None:
        """As the store does it."""
        self.now += int(self.pauses.pop() * 1e9) + 1
        self.pauses.clear()
        self.journal.begin()
        self.node.broker.perform()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pausing]:
    made = Pausing(tmp_path / "store.db", monkeypatch)
    yield made
    made.base.close()


def acked(client: MemoryClient) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def test_one_that_comes_alone_is_written_at_once(kept: Pausing) -> None:
    client = kept.client("a", kept=False)
    for number in range(1, 5):
        publish(client, "t/1", 1, number)
        assert len(kept.waiting) == 1 and not kept.pauses
        kept.write()
        assert acked(client) == [number]


def test_those_who_are_answered_together_are_in_the_next_group_together(kept: Pausing) -> None:
    clients = [kept.client(f"c{at}", kept=False) for at in range(12)]
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.write()  # the first one's
    kept.write()  # and those that came meanwhile
    assert [acked(client) for client in clients] == [[1]] * 12
    publish(clients[0], "t/1", 1, 2)
    assert kept.waiting == [] and kept.pauses
    for client in clients[1:]:
        publish(client, "t/1", 1, 2)
    kept.over()
    assert len(kept.waiting) == 1 and not kept.pauses
    kept.write()
    assert [acked(client) for client in clients] == [[2]] * 12
    kept.now += 1_000_000
    publish(clients[0], "t/1", 1, 3)
    assert len(kept.waiting) == 1  # they have had their time


def test_one_client_with_a_window_waits_for_nobody_but_itself(kept: Pausing) -> None:
    client = kept.client("a", kept=False)
    for first in range(1, 60, 20):
        for number in range(first, first + 20):
            publish(client, "t/1", 1, number)
        kept.write()
        kept.write()
        assert not kept.pauses and not kept.waiting
    assert acked(client) == list(range(1, 61))


def test_a_pause_of_which_nobody_has_need_writes_nothing(kept: Pausing) -> None:
    clients = [kept.client(f"c{at}", kept=False) for at in range(12)]
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.write()
    kept.write()
    publish(clients[0], "free", 1, 2)  # nobody keeps it
    assert acked(clients[0]) == [1, 2]
    for _ in range(3):
        kept.journal.begin()
        kept.node.broker.perform()
        assert kept.waiting == []


@pytest.mark.parametrize("seed", range(10))
def test_pauses_change_nothing_but_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found = []
    for name in ("with", "without"):
        drawn = random.Random(seed)
        kept = Pausing(tmp_path / f"{name}.db", monkeypatch)
        if name == "without":
            kept.journal.pause = None
        clients = [kept.client(f"c{at}", kept=False) for at in range(6)]
        sent = [0] * 6
        had: list[list[int]] = [[] for _ in clients]
        for _ in range(150):
            what = drawn.random()
            who = drawn.randrange(6)
            if what < 0.7:
                for _ in range(drawn.randrange(1, 5)):
                    sent[who] += 1
                    publish(clients[who], drawn.choice(["t/1", "free"]), 1, sent[who])
            elif what < 0.85:
                kept.write()
            elif kept.pauses:
                kept.over()
            for at, client in enumerate(clients):
                had[at] += acked(client)
            # Nothing is acknowledged that is not in the file: the writer has no group of it.
            assert all(had[at] == list(range(1, len(had[at]) + 1)) for at in range(6))
        while kept.waiting or kept.pauses:
            kept.write()
            if kept.pauses:
                kept.over()
        for at, client in enumerate(clients):
            had[at] += acked(client)
        assert had == [list(range(1, count + 1)) for count in sent]
        records = read(kept.base, Ledger()).records
        found.append({owner: len(some) for owner, some in records.items()})
        kept.base.close()
    assert found[0] == found[1]
