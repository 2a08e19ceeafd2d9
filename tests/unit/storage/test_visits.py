"""Clients that come, go and come back: what the store is told of that, and how it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Suback, Subscribe, Subscription, Unsubscribe, Will
from mqttd.session.routes.route import OWED
from mqttd.storage.blocks import Group
from mqttd.storage.database import MOVE_CLOCK, OPEN_SESSION, SET_WILL, connect
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from mqttd.storage.writer import write
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import KEPT, Kept, connecting, kinds, make

BACK = "UPDATE session SET away_since ="


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path)
    yield made
    made.base.close()


def gone(kept: Kept, client: MemoryClient) -> None:
    """Its connection breaks."""
    client.drop()
    kept.node.broker.perform()


def closed(ledger: Ledger) -> Group:
    group = ledger.close()
    assert group is not None
    return group


def said_of(kept: Kept) -> list[str]:
    """The statements of the groups that wait, which are written."""
    said: list[str] = []
    kept.base.set_trace_callback(said.append)
    kept.settle()
    kept.base.set_trace_callback(None)
    return [
        each.split("(")[0].strip() for each in said if each not in ("BEGIN IMMEDIATE", "COMMIT")
    ]


def away(kept: Kept) -> list[int]:
    return [row[0] for row in kept.base.execute("SELECT away_since FROM session ORDER BY owner")]


def test_a_session_that_goes_on_as_it_was_is_there_again(kept: Kept) -> None:
    """Its row says so, and nothing else of it is written anew."""
    gone(kept, kept.subscriber("c", "t", 1, kept=True))
    kept.settle()
    assert away(kept) == [1000]
    client = connecting(kept, "c", False, properties=KEPT)
    assert client.take() == [], "CONNACK waits for it"
    (said,) = said_of(kept)
    assert said == f"{BACK} 0 WHERE owner IN"
    assert away(kept) == [0]


def test_another_expiry_is_written(kept: Kept) -> None:
    gone(kept, kept.client("c", kept=True))
    kept.settle()
    client = connecting(kept, "c", False, properties={**KEPT, next(iter(KEPT)): 77})
    kept.settle()
    assert client.take()
    assert kept.base.execute("SELECT expiry, away_since FROM session").fetchall() == [(77, 0)]


def test_the_same_subscription_is_not_written_again(kept: Kept) -> None:
    """And its SUBACK waits for nothing."""
    client = kept.subscriber("c", "t", 1, kept=True)
    for topic_filter in ("t", "$share/g/t"):
        for at in range(2):
            client.send(Subscribe(2, [Subscription(topic_filter, 1)]))
            new = topic_filter != "t" and not at
            assert kinds(client.take()) == ([] if new else [Suback])
            assert bool(kept.waiting) is new
            kept.settle()
            client.take()
    client.send(Subscribe(3, [Subscription("t", 2)]))
    assert kept.waiting and client.take() == []
    kept.settle()
    assert kinds(client.take()) == [Suback]
    found = kept.base.execute("SELECT filter, options FROM subscription ORDER BY filter")
    assert [(name, options & 3) for name, options in found] == [("$share/g/t", 1), ("t", 2)]


def test_the_answer_to_the_same_waits_behind_the_first(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    client.take()
    for packet_id in (1, 2):
        client.send(Subscribe(packet_id, [Subscription("t", 1)]))
    assert client.take() == []
    kept.settle()
    assert [packet.packet_id for packet in client.take()] == [1, 2]  # type: ignore[union-attr]


def test_nothing_that_was_not_there_is_waited_for(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    client.take()
    client.send(Unsubscribe(1, ["never"]))
    assert len(client.take()) == 1 and not kept.waiting


def test_who_goes_and_comes_back_in_one_group_is_one_row(kept: Kept) -> None:
    """With all others that do, and whatever was said of its will."""
    clients = {name: kept.client(name, kept=True) for name in "ab"}
    connecting(kept, "c", False, properties=KEPT)  # which is being written meanwhile
    will = Will("w", b"", 0, False)
    for name, client in clients.items():
        gone(kept, client)
        connecting(kept, name, False, properties=KEPT, will=will)
    kept.write()
    said = said_of(kept)
    assert [each for each in said if "session" in each] == [f"{BACK} 0 WHERE owner IN"]
    assert len([each for each in said if "will" in each]) == 2
    assert away(kept) == [0, 0, 0]


def test_what_is_said_last_of_a_session_holds(tmp_path: Path) -> None:
    """In a group, among statements that are written in their order."""
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    for owner in range(1, 8):
        ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 60))
        ledger.group.leave(owner, 5 + owner % 2)
    write(base, closed(ledger))
    assert [row[0] for row in base.execute("SELECT away_since FROM session")] == [6, 5] * 3 + [6]
    group = ledger.group
    group.leave(1, 0)
    group.leave(1, 9)
    group.leave(2, 9)
    group.leave(2, 0)
    group.leave(3, 9)
    group.end(3)
    for packet in (b"a", b"b"):
        group.will("c1", ("c1", None, 0, 0, packet), 1)
    group.will("c2", ("c2", None, 0, 0, b"c"), 1)
    group.will("c2", None, 0)
    before = group.rows_size
    written = closed(ledger)
    assert written.weight() >= before > 0 and not ledger.group.rows_size
    assert [row[0] for row in written.rows].count(SET_WILL) == 1
    write(base, written)
    found = dict(base.execute("SELECT owner, away_since FROM session").fetchall())
    assert found == {1: 9, 2: 0, 4: 5, 5: 6, 6: 5, 7: 6}
    assert base.execute("SELECT client_id, packet FROM will").fetchall() == [("c1", b"b")]
    base.close()


def test_a_clock_that_is_set_moves_who_has_gone_before(tmp_path: Path) -> None:
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    for owner in (1, 2):
        ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 60))
    ledger.group.leave(1, 100)
    ledger.row(MOVE_CLOCK, (7, 500, 501))
    ledger.group.leave(2, 100)
    write(base, closed(ledger))
    assert base.execute("SELECT away_since FROM session").fetchall() == [(107,), (100,)]
    base.close()


def test_keys_of_one_statement_are_as_many_as_a_power_of_two(tmp_path: Path) -> None:
    """So there are few statements to prepare; the last key is there more than once."""
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    count = 1300
    for owner in range(1, count + 1):
        ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 60))
    write(base, closed(ledger))
    for owner in range(1, count):
        ledger.group.leave(owner, 7)
    said: list[str] = []
    base.set_trace_callback(said.append)
    write(base, closed(ledger))
    base.set_trace_callback(None)
    assert [each.count(",") + 1 for each in said[1:-1]] == [512, 512, 512]
    assert base.execute("SELECT sum(away_since) FROM session").fetchone() == (7 * (count - 1),)
    base.close()


def test_what_is_owed_no_more_is_not_owed_after_the_next_restart(tmp_path: Path) -> None:
    """What was retained has gone meanwhile; the client subscribes to the same once more."""
    kept = make(tmp_path)
    kept.subscriber("c", "t", 1, kept=True).drop()
    kept.settle()
    kept.base.execute("UPDATE subscription SET options = options | ?", (OWED,))
    kept.base.close()
    again = make(tmp_path)
    restore(again.node.broker, again.journal, again.base, read(again.base, again.ledger))
    again.node.broker.perform()
    again.settle()
    (options,) = again.base.execute("SELECT options FROM subscription").fetchone()
    assert not options & OWED
    again.base.close()
