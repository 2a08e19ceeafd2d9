"""Wills and the store: each is published once, whenever the broker dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.broker.sessions.partings import ENOUGH
from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Publish, Will
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import Kept, make
from tests.unit.storage.test_wide import everywhere, on_disk, step


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path)
    yield made
    made.base.close()


def willed(kept: Kept, client_id: str, qos: int, expiry: int, delay: int = 0) -> MemoryClient:
    will = Will("w", client_id.encode(), qos, False, {prop.WILL_DELAY_INTERVAL: delay})
    properties = {prop.SESSION_EXPIRY_INTERVAL: expiry}
    client = kept.node.connect(client_id, 5, True, properties=properties, will=will)
    kept.settle()
    client.take()
    return client


def wills(kept: Kept) -> list[str]:
    """Whose wills the store has."""
    return [row[0] for row in kept.base.execute("SELECT client_id FROM will ORDER BY 1")]


def said(client: MemoryClient) -> list[bytes]:
    return [packet.payload for packet in client.take() if isinstance(packet, Publish)]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["its own", "others have"])
def test_wills_that_are_held_outlive_their_sessions(
    kept: Kept, tmp_path: Path, elsewhere: bool
) -> None:
    """Of who had no session, of one that expires meanwhile, and of one that goes on."""
    willed(kept, "brief", 1, 0)
    willed(kept, "stays", 1, 1000)
    willed(kept, "late", 1, 1000, 500)
    willed(kept, "expires", 1, 5, 500)
    kept.base.close()
    again = make(tmp_path)
    broker = again.node.broker
    broker.wills.hold()
    restore(broker, again.journal, again.base, read(again.base, again.ledger))
    again.node.advance(6000)
    again.settle()
    assert broker.metrics.wills_published == 0
    assert wills(again) == ["brief", "expires", "late", "stays"]
    broker.wills.release(published=elsewhere)
    broker.perform()
    again.settle()
    assert broker.metrics.wills_published == (0 if elsewhere else 3)
    assert wills(again) == ["late"]
    assert sorted(broker.sessions) == ["late", "stays"]
    again.node.advance(600_000)
    again.settle()
    assert broker.metrics.wills_published == (1 if elsewhere else 4)
    assert wills(again) == []
    again.base.close()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry", [0, 60])
def test_a_will_goes_out_when_its_end_is_written(kept: Kept, qos: int, expiry: int) -> None:
    """Else a broker that dies in between would publish it again."""
    watcher = kept.subscriber("watcher", "#", 2, kept=True)
    publisher = kept.client("publisher", kept=False)
    client = willed(kept, "c", qos, expiry)
    client.drop()
    publisher.send(Publish("t", b"behind it", qos, packet_id=1))
    assert (wills(kept), said(watcher)) == (["c"], [])
    kept.write()
    assert wills(kept) == []
    kept.settle()
    assert said(watcher) == [b"c", b"behind it"]
    assert not kept.journal.holding


def test_a_will_that_goes_out_at_qos_0_waits_for_nothing(kept: Kept) -> None:
    """What came behind it would not wait."""
    watchers = [kept.subscriber(f"watcher {qos}", "#", qos, kept=True) for qos in (0, 1)]
    willed(kept, "c", 0, 0).drop()
    assert [said(watcher) for watcher in watchers] == [[b"c"], [b"c"]]
    willed(kept, "c", 1, 0).drop()
    assert [said(watcher) for watcher in watchers] == [[b"c"], []]


def test_nobody_waits_for_a_disk_that_takes_nothing(kept: Kept) -> None:
    watcher = kept.subscriber("watcher", "#", 1, kept=True)
    client = willed(kept, "c", 1, 0)
    kept.journal.fail(True)
    client.drop()
    assert said(watcher) == [b"c"]


def test_a_will_for_thousands_is_kept_with_all_that_they_have_of_it(tmp_path: Path) -> None:
    kept = everywhere(tmp_path)
    watcher = kept.subscriber("watcher", "t", 1, kept=True)
    many = on_disk(kept)[0]
    properties = {prop.SESSION_EXPIRY_INTERVAL: 60}
    will = Will("t", b"gone", 1, False, {})
    client = kept.node.connect("c", 5, True, properties=properties, will=will)
    kept.settle()
    client.drop()
    while step(kept.node):
        assert (wills(kept) == ["c"]) is (on_disk(kept)[0] == many)
        assert not (wills(kept) and said(watcher))
        kept.settle()
    kept.settle()
    assert wills(kept) == []
    assert on_disk(kept)[0] > many
    assert said(watcher) == [b"gone"]
    kept.base.close()


def test_acknowledgements_go_between_two_wills_for_thousands(tmp_path: Path) -> None:
    """Each is one transaction, and all of them are not."""
    kept = everywhere(tmp_path)
    kept.subscriber("away", "kept", 1, kept=True).drop()
    publisher = kept.client("publisher", kept=False)
    will = Will("t", b"gone", 1, False, {})
    clients = [kept.node.connect(f"c{n}", 5, will=will) for n in range(8)]
    kept.settle()
    for client in clients:
        client.drop()
    publisher.send(Publish("kept", b"x", 1, packet_id=1))
    kept.settle()
    left = 0
    while step(kept.node):
        kept.settle()
        if any(isinstance(packet, Puback) for packet in publisher.take()):
            left = len(wills(kept))
    kept.settle()
    assert left >= 4
    assert wills(kept) == []
    kept.base.close()


#: Wills of a start that are more than a turn has time for; units of work of one, and its bytes.
DUE = 120
SIZE = 60_000
ONE = 1 + 2 * (1 + (SIZE >> 13)) + 8


def killed(kept: Kept, path: Path) -> Kept:
    """A broker that begins after another had so many clients, with and without sessions."""
    kept.subscriber("watcher", "#", 1, kept=True).drop()
    for number in range(DUE):
        will = Will(f"w/{number}", b"x" * SIZE, 1, False, None)
        properties = {prop.SESSION_EXPIRY_INTERVAL: number % 2 * 1000}
        kept.node.connect(f"c{number}", 5, True, properties=properties, will=will)
    kept.settle()
    kept.base.close()
    return make(path)


def pass_turns(again: Kept) -> int:
    """Until all are published; those of a turn are no more than it has time for."""
    metrics = again.node.broker.metrics
    turns = 0
    while again.node.broker.partings.line:
        before = metrics.wills_published
        again.node.broker.turns.turn()
        assert metrics.wills_published - before <= ENOUGH // 9 + 1
        again.settle()
        turns += 1
    return turns


@pytest.mark.parametrize("held", [False, True], ids=["at the start", "when others are met"])
def test_all_wills_of_a_start_go_out_in_as_many_turns_as_they_need(
    kept: Kept, tmp_path: Path, held: bool
) -> None:
    again = killed(kept, tmp_path)
    broker = again.node.broker
    if held:
        broker.wills.hold()
    restore(broker, again.journal, again.base, read(again.base, again.ledger))
    if held:
        assert broker.metrics.wills_published == 0
        broker.wills.release()
    assert 0 < broker.metrics.wills_published <= ENOUGH // 9 + 1
    broker.perform()
    again.settle()
    assert len(wills(again)) > DUE // 2
    used = broker.account.used()
    assert used > DUE // 2 * SIZE
    pass_turns(again)
    assert broker.metrics.wills_published == DUE
    assert wills(again) == []
    watcher = broker.sessions["watcher"]
    assert watcher.mqueue is not None
    assert watcher.mqueue.length == DUE
    again.node.advance(1_000_000)
    pass_turns(again)
    assert broker.metrics.wills_published == DUE
    again.base.close()


def test_who_is_back_before_its_will_has_it_published_first(kept: Kept, tmp_path: Path) -> None:
    again = killed(kept, tmp_path)
    broker = again.node.broker
    restore(broker, again.journal, again.base, read(again.base, again.ledger))
    broker.perform()
    again.settle()
    left = wills(again)
    brief, stays = (next(each for each in left if int(each[1:]) % 2 == n) for n in (0, 1))
    had = broker.metrics.wills_published
    properties = {prop.SESSION_EXPIRY_INTERVAL: 1000}
    for number, client_id in enumerate((brief, stays)):
        will = Will("new", client_id.encode(), 1, False, None)
        again.node.connect(client_id, 5, False, properties=properties, will=will)
        assert broker.metrics.wills_published == had + number + 1
    pass_turns(again)
    assert broker.metrics.wills_published == DUE
    again.settle()
    assert sorted(wills(again)) == sorted([brief, stays])
    again.base.close()


def test_a_will_is_not_published_before_its_time(kept: Kept, tmp_path: Path) -> None:
    """The store says in whole seconds since when its client is away: here since 1000.9."""
    kept.journal.seconds = lambda: 1000
    willed(kept, "c", 1, 1000, 5).drop()
    kept.node.broker.perform()
    kept.journal.release_all()
    kept.settle()
    kept.base.close()
    again = make(tmp_path)
    again.journal.seconds = lambda: 1005
    restore(again.node.broker, again.journal, again.base, read(again.base, again.ledger))
    again.settle()
    assert again.node.broker.metrics.wills_published == 0
    again.node.advance(1_500)
    again.settle()
    assert again.node.broker.metrics.wills_published == 1
    again.base.close()


@pytest.mark.parametrize("policy", ["publish", "keep"])
def test_wills_that_are_kept_at_a_stop_are_those_of_the_next_start(
    kept: Kept, tmp_path: Path, policy: str
) -> None:
    willed(kept, "stays", 1, 1000)
    willed(kept, "brief", 1, 0)
    broker = kept.node.broker
    broker.settings.wills_at_stop = policy
    broker.registry.stopping = True
    for client_id in ("stays", "brief"):
        broker.kick(client_id)
    kept.node.advance(500)
    kept.settle()
    assert broker.metrics.wills_published == (1 if policy == "keep" else 2)
    assert wills(kept) == (["stays"] if policy == "keep" else [])
    kept.base.close()
    again = make(tmp_path)
    restore(again.node.broker, again.journal, again.base, read(again.base, again.ledger))
    again.node.advance(500)
    assert again.node.broker.metrics.wills_published == (1 if policy == "keep" else 0)
    again.base.close()
