"""What waited for a group goes out in slices, one a turn, in order, never before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Connack, Puback
from mqttd.storage.durability import OS, Durability
from mqttd.storage.writer import write
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import KEPT, Kept, connecting, kinds, publish


class Sliced(Kept):
    """A writer that has written a group when the test says so; `turn` is one of the loop."""

    def commit(self) -> None:
        """It is written, and nothing has gone out."""
        group = self.waiting.pop(0)
        write(self.base, group)
        self.journal.written(group)
        self.node.broker.perform()

    def turn(self) -> bool:
        """One slice; whether there is more."""
        more = self.journal.release()
        self.node.broker.perform()
        return more


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Sliced]:
    made = Sliced(tmp_path / "store.db", Durability(OS, {}))
    made.subscriber("away", "t/#", 1, kept=True).drop()
    made.settle()
    yield made
    made.base.close()


def publishers(kept: Kept, count: int) -> list[MemoryClient]:
    return [kept.client(f"publisher{at}", kept=False) for at in range(count)]


def numbers(client: MemoryClient) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def test_many_acknowledgements_go_out_in_slices(kept: Sliced) -> None:
    clients = publishers(kept, 100)
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.commit()  # the first one's
    while kept.turn():
        pass
    kept.commit()  # and the 99 that came meanwhile
    assert [numbers(client) for client in clients[1:]] == [[]] * 99
    had = []
    more = True
    while more:
        more = kept.turn()
        had.append(sum(len(numbers(client)) for client in clients[1:]))
    assert sum(had) == 99 and max(had) == 32 and len(had) == 4
    assert not kept.turn()


def test_a_client_is_served_between_two_slices_and_order_is_kept(kept: Sliced) -> None:
    clients = publishers(kept, 40)
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.commit()
    kept.turn()
    numbers(clients[0])
    kept.commit()
    assert kept.turn()
    last = clients[-1]
    assert numbers(last) == []
    publish(last, "free", 1, 2)  # waits for nothing but what is before it
    publish(last, "t/1", 1, 3)
    assert numbers(last) == []
    assert not kept.turn()
    assert numbers(last) == [1, 2]
    kept.commit()
    kept.turn()
    assert numbers(last) == [3]


def test_groups_that_are_written_meanwhile_do_not_gather(kept: Sliced) -> None:
    """Of several that go out each turn has more."""
    clients = publishers(kept, 201)
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.commit()
    kept.turn()
    for client in clients[:100]:
        publish(client, "t/1", 1, 2)
    kept.commit()
    assert kept.turn()
    kept.commit()
    turns = 1
    while kept.turn():
        turns += 1
    assert turns == 6  # three of 64: the 168 that are left, 24 of the next; then of 32
    assert [numbers(client) for client in clients] == [[1, 2]] * 100 + [[1]] * 101


def test_connacks_go_out_in_slices_too(kept: Sliced) -> None:
    clients = [connecting(kept, f"c{at}", False, properties=KEPT) for at in range(50)]
    kept.commit()
    kept.turn()
    kept.commit()
    kept.turn()
    there = [client for client in clients if kinds(client.take())[:1] == [Connack]]
    assert len(there) == 33 and there == clients[:33]
    assert not kept.turn()
    assert all(kinds(client.take())[:1] == [Connack] for client in clients[33:])


def test_the_end_waits_for_no_turn(kept: Sliced) -> None:
    """What is written is acknowledged before connections end."""
    clients = publishers(kept, 100)
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.commit()
    kept.turn()
    kept.commit()
    kept.journal.release_all()
    kept.node.broker.perform()
    assert [numbers(client) for client in clients] == [[1]] * 100


def test_who_waits_for_what_is_told_waits_for_all_slices(kept: Sliced) -> None:
    clients = publishers(kept, 70)
    told: list[bool] = []
    for client in clients:
        publish(client, "t/1", 1, 1)
    kept.journal.when_kept(lambda: told.append(True))
    kept.commit()
    kept.turn()
    kept.commit()
    assert kept.turn() and kept.turn() and told == []
    assert not kept.turn() and told == [True]
