"""Queues whose payloads are in the file alone: the same messages in the same order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqttd.broker.ground.losses import LOST
from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Pubcomp, Publish, Pubrec, Subscribe, Subscription
from mqttd.session.ground.account import QUEUED
from mqttd.session.journal import PORTION
from mqttd.storage.database import connect
from mqttd.storage.durability import OS, Durability
from mqttd.storage.fetching import read
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.reading import AHEAD, Pieces
from mqttd.storage.recovery import read as read_blocks
from mqttd.storage.restore import restore
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.storage.test_journal import Kept, make

Asked = list[tuple[object, Pieces]]


def lay_apart(kept: Kept, in_memory: int = 0) -> Asked:
    """Keep payloads in the file; returns what is asked for, to be read when a test says so."""
    asked: Asked = []
    settings = kept.node.broker.settings
    settings.mqueue_in_memory = in_memory
    kept.journal.read = lambda pieces: read(kept.base, pieces)
    kept.journal.ask = asked.extend
    return asked


def serve(kept: Kept, asked: Asked) -> None:
    """Write what waits and read what is asked for, until nothing is left of either."""
    while kept.waiting or asked:
        while kept.waiting:
            kept.write()
        if asked:
            fetch, pieces = asked.pop(0)
            kept.journal.was_read(fetch, pieces, read(kept.base, pieces))
            kept.node.broker.perform()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return make(tmp_path)


class Few:
    """A trail that has room for three."""

    def __init__(self, told: list[tuple[str, int]]) -> None:
        self.told = told

    def follows(self, topic: str, client_id: str) -> bool:
        return False

    def left(self, reason: str) -> int:
        return 3

    def room(self, reason: str) -> bool:
        return True

    def lost(self, message: object, reason: str, client_id: str, detail: str) -> None:
        self.told.append((client_id, 1))

    def many(self, reason: str, client_id: str, count: int, detail: str) -> None:
        self.told.append((client_id, count))


def away(kept: Kept, client_id: str = "away") -> None:
    kept.subscriber(client_id, "t/#", 2, kept=True).drop()
    kept.settle()


def send(kept: Kept, count: int, qos: int = 1, size: int = 100, topic: str = "t/x") -> None:
    publisher = kept.client("publisher", kept=False)
    for number in range(1, count + 1):
        payload = b"%06d" % number + bytes(size)
        publisher.send(Publish(topic, payload, qos, False, False, number if qos else 0, None))
    kept.settle()
    publisher.drop()


def drained(kept: Kept, asked: Asked, client_id: str = "away", version: int = 5) -> list[Publish]:
    """What the client gets when it is back and acknowledges."""
    properties = {prop.SESSION_EXPIRY_INTERVAL: 1000} if version == 5 else None
    client = kept.node.connect(client_id, version, False, properties=properties)
    found: list[Publish] = []
    while True:
        serve(kept, asked)
        packets = client.take()
        if not packets:
            return found
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet)
                if packet.qos == 1:
                    client.send(Puback(packet.packet_id, 0, None))
                elif packet.qos == 2:
                    client.send(Pubrec(packet.packet_id, 0, None))
                    client.send(Pubcomp(packet.packet_id, 0, None))


def weigh(kept: Kept) -> None:
    """What is charged is what is held."""
    broker = kept.node.broker
    sessions = broker.sessions.values()
    audit(broker, [session.channel for session in sessions if session.channel is not None])


def numbers(packets: list[Publish]) -> list[int]:
    return [int(packet.payload[:6]) for packet in packets]


def test_a_queue_holds_no_payload_and_gives_all_of_them_back(kept: Kept) -> None:
    asked = lay_apart(kept)
    away(kept)
    send(kept, 600, size=10_000)
    session = kept.node.broker.sessions["away"]
    assert session.mqueue is not None
    assert session.mqueue.held == 600 * QUEUED
    assert session.mqueue.size > 600 * 10_000
    weigh(kept)
    assert numbers(drained(kept, asked)) == list(range(1, 601))
    assert session.mqueue is None
    assert kept.living() == 0


def test_the_oldest_stay_in_memory_up_to_the_limit(kept: Kept) -> None:
    asked = lay_apart(kept, in_memory=50_000)
    away(kept)
    send(kept, 100, size=1000)
    mqueue = kept.node.broker.sessions["away"].mqueue
    assert mqueue is not None and mqueue.held < 50_000 + 100 * QUEUED
    assert isinstance(mqueue.items()[0], bytes) and isinstance(mqueue.items()[-1], int)
    assert numbers(drained(kept, asked)) == list(range(1, 101))


def test_what_is_not_written_yet_is_waited_for(kept: Kept) -> None:
    """A window that is full, an acknowledgement, and the next message still with the writer."""
    asked = lay_apart(kept)
    kept.node.broker.settings.max_inflight = 1
    there = kept.subscriber("there", "t/#", 1, kept=True)
    publisher = kept.client("publisher", kept=False)
    for number in (1, 2):
        publisher.send(Publish("t/x", b"%06d" % number, 1, False, False, number, None))
    (first,) = there.published()
    there.send(Puback(first.packet_id, 0, None))
    assert there.published() == []
    serve(kept, asked)
    (second,) = there.published()
    assert second.payload == b"000002"


def test_the_oldest_go_when_there_are_too_many(kept: Kept) -> None:
    asked = lay_apart(kept)
    kept.node.broker.settings.mqueue_max_length = 10
    away(kept)
    send(kept, 25)
    assert kept.node.broker.metrics.dropped_queue_full == 15
    assert numbers(drained(kept, asked)) == list(range(16, 26))
    assert kept.living() == 0


def test_what_is_dropped_while_it_is_read_does_not_come(kept: Kept) -> None:
    asked = lay_apart(kept)
    kept.node.broker.settings.max_inflight = 1
    kept.node.broker.settings.mqueue_max_length = 3
    there = kept.subscriber("there", "t/#", 1, kept=True)
    send(kept, 4)
    (first,) = there.published()
    there.send(Puback(first.packet_id, 0, None))
    kept.settle()
    assert len(asked) == 1
    send(kept, 2)
    serve(kept, asked)
    found: list[int] = []
    while packets := there.published():
        found += numbers(packets)
        there.send(Puback(packets[0].packet_id, 0, None))
        serve(kept, asked)
    assert found == [4, 1, 2]


def test_blocks_that_were_moved_meanwhile_are_found_again(kept: Kept) -> None:
    asked = lay_apart(kept)
    kept.ledger.old = 3
    away(kept, "away")
    away(kept, "other")
    away(kept, "third")
    send(kept, 300)
    kept.node.broker.settings.max_inflight = 1
    client = kept.node.connect("away", 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    kept.settle()
    assert len(asked) == 1
    # Its block is rewritten before it is read.
    fetch, pieces = asked.pop()
    assert numbers(drained(kept, asked, "other")) == list(range(1, 301))
    assert numbers(drained(kept, asked, "third")) == list(range(1, 301))
    assert kept.ledger.moved > 100
    asked.append((fetch, pieces))
    serve(kept, asked)
    found = client.published()
    while len(found) < 300:
        client.send(Puback(found[-1].packet_id, 0, None))
        serve(kept, asked)
        found += client.published()
    assert numbers(found) == list(range(1, 301))


def test_a_store_at_rest_writes_nothing(kept: Kept) -> None:
    """Blocks that only forget, of a block that a slow client holds, were moved for ever."""
    asked = lay_apart(kept)
    kept.ledger.old = 3
    away(kept, "slow")
    there = kept.subscriber("there", "t/#", 1, kept=True)
    send(kept, 50)
    for packet in there.published():
        there.send(Puback(packet.packet_id, 0, None))
        kept.settle()
    for _ in range(100):
        if not kept.waiting:
            break
        kept.write()
    assert not kept.waiting
    assert numbers(drained(kept, asked, "slow")) == list(range(1, 51))


def test_a_session_that_ends_drops_what_is_in_the_file(kept: Kept) -> None:
    lay_apart(kept)
    heard: list[bytes] = []
    kept.node.hooks.hook(
        "delivery.dropped", lambda client, reason, message: heard.append(message.payload[:6])
    )
    away(kept)
    send(kept, 5)
    kept.node.broker.end_session("away", 0x98)
    assert kept.node.broker.metrics.dropped_session_ended == 5
    assert heard == [b"%06d" % number for number in range(1, 6)]
    weigh(kept)
    kept.settle()
    assert kept.living() == 0


def test_many_sessions_that_end_let_go_of_what_they_had_in_turns(kept: Kept) -> None:
    """800 clean starts over 500 messages each were half a second of one turn."""
    lay_apart(kept)
    kept.node.settings.mqueue_max_length = 5 * LOST
    for name in ("first", "second"):
        away(kept, name)
    for _ in range(5):
        send(kept, LOST // 4)
    for name in ("first", "second"):
        kept.node.broker.end_session(name, 0x98)
    weigh(kept)
    kept.settle()
    assert kept.node.broker.losses.line
    assert owners(kept) == 0, "their rows are gone at once"
    assert not read_blocks(kept.base, Ledger()).records
    assert kept.base.execute("SELECT count(*) FROM block").fetchone() != (0,)
    groups = 0
    while kept.node.broker.losses.line:
        kept.node.run_soon()
        assert kept.waiting or not kept.node.broker.losses.line, "it goes on with the next group"
        kept.settle()
        groups += 1
    kept.settle()
    assert groups > 1
    assert kept.base.execute("SELECT count(*) FROM block").fetchone() == (0,)


def owners(kept: Kept) -> int:
    return int(kept.base.execute("SELECT count(*) FROM session").fetchone()[0])


def test_what_nobody_is_told_of_is_not_read_again(kept: Kept) -> None:
    """The loop read a whole queue, and waited for the disk, for a trail that had no room left."""
    lay_apart(kept)
    told: list[tuple[str, int]] = []
    kept.node.broker.trail = Few(told)
    reads: list[Pieces] = []
    kept.journal.read = lambda pieces: reads.append(pieces) or read(kept.base, pieces)
    for name, count in (("few", 3), ("many", 4)):
        away(kept, name)
        send(kept, count)
        kept.node.broker.end_session(name, 0x98)
    assert [len(pieces) for pieces in reads] == [3]
    assert told == [("few", 1)] * 3 + [("many", 4)]


def test_what_a_full_queue_drops_waits_for_no_disk_to_be_told_of(kept: Kept) -> None:
    """The loop stood still for most of a second, for each message that somebody sent too many."""
    lay_apart(kept)
    broker = kept.node.broker
    told: list[tuple[str, int]] = []
    broker.trail = Few(told)
    broker.tap_lost = True
    broker.settings.mqueue_max_length = 3
    kept.journal.read = lambda pieces: pytest.fail("it waits for the writer")
    away(kept)
    send(kept, 5)
    assert broker.metrics.dropped_queue_full == 2 and told == [], "the writer is at work"
    kept.journal.peep = lambda pieces: read(kept.base, pieces)
    kept.settle()
    send(kept, 1)
    assert broker.metrics.dropped_queue_full == 3 and told == [("away", 1)]
    assert broker.sessions["away"].dropped == 3
    weigh(kept)


def test_what_cannot_be_read_again_is_dropped_and_counted(kept: Kept) -> None:
    asked = lay_apart(kept)
    away(kept)
    send(kept, 3)
    kept.base.execute("UPDATE block SET data = x'' WHERE length(data) > 100")
    assert drained(kept, asked) == []
    assert kept.journal.unreadable == 3
    weigh(kept)


def test_a_payload_that_the_disk_has_changed_is_nobodys_and_the_others_are_as_sent(
    kept: Kept,
) -> None:
    """It was delivered as it came from the disk: under another topic, or as no packet at all."""
    asked = lay_apart(kept)
    away(kept)
    send(kept, 100)
    block, data = kept.base.execute(
        "SELECT id, data FROM block WHERE length(data) > 6000"
    ).fetchone()
    changed = bytearray(data)
    changed[len(data) // 3] ^= 1
    kept.base.execute("UPDATE block SET data = ? WHERE id = ?", (bytes(changed), block))
    found = drained(kept, asked)
    assert 0 < kept.journal.unreadable < 100 and len(found) == 100 - kept.journal.unreadable
    assert set(numbers(found)) < set(range(1, 101)) and numbers(found) == sorted(numbers(found))
    assert all(one.topic == "t/x" and one.payload[6:] == bytes(100) for one in found)
    weigh(kept)


def test_a_session_that_is_to_end_with_its_connection_gets_its_queue_first(kept: Kept) -> None:
    """It would be in the file no more; after a restart it is not there."""
    asked = lay_apart(kept)
    away(kept)
    send(kept, 300)
    client = kept.node.connect("away", 5, False)
    found: list[Publish] = []
    serve(kept, asked)
    while packets := client.published():
        found += packets
        for packet in packets:
            client.send(Puback(packet.packet_id, 0, None))
        serve(kept, asked)
    assert numbers(found) == list(range(1, 301))
    client.drop()
    kept.node.broker.perform()
    kept.settle()
    assert "away" not in kept.node.broker.sessions
    assert kept.base.execute("SELECT count(*) FROM session").fetchone()[0] == 0


def restarted(
    kept: Kept, path: Path, priorities: dict[str, int] | None = None
) -> tuple[Kept, Asked]:
    """The broker again, over the same file."""
    kept.settle()
    kept.base.close()
    again = Kept.__new__(Kept)
    again.base = connect(str(path))
    again.node = MemoryBroker()
    again.ledger = Ledger()
    again.waiting, again.fsyncs = [], []
    again.journal = StoreJournal(
        again.ledger, again.node.broker, again.waiting.append, lambda: 1000, 0, Durability(OS, {})
    )
    again.node.broker.journal = again.journal
    again.node.wait = again.write
    asked = lay_apart(again)
    again.node.broker.settings.mqueue_priorities = priorities
    restore(
        again.node.broker, again.journal, again.base, read_blocks(again.base, again.ledger, True)
    )
    return again, asked


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_restart_reads_no_payload_and_gives_all_back(
    tmp_path: Path, qos: int, version: int
) -> None:
    kept = make(tmp_path)
    away(kept)
    send(kept, 300, qos)
    kept, asked = restarted(kept, tmp_path / "store.db")
    mqueue = kept.node.broker.sessions["away"].mqueue
    assert mqueue is not None and mqueue.held == 300 * QUEUED
    found = drained(kept, asked, version=version)
    assert numbers(found) == list(range(1, 301))
    assert {packet.qos for packet in found} == {qos}
    kept.settle()
    assert kept.living() == 0


def prioritized(kept: Kept) -> Asked:
    """Priorities by topic, and payloads in the file alone."""
    kept.node.broker.settings.mqueue_priorities = {"t/high": 9, "t/middle": 5}
    return lay_apart(kept)


def mixed(kept: Kept) -> None:
    """Messages of three priorities, by turns."""
    publisher = kept.client("publisher", kept=False)
    for number in range(1, 301):
        topic = ("t/low", "t/high", "t/middle")[number % 3]
        publisher.send(Publish(topic, b"%06d" % number, 1, False, False, number, None))
    kept.settle()
    publisher.drop()


def by_rank() -> list[int]:
    return [number for rest in (1, 2, 0) for number in range(1, 301) if number % 3 == rest]


def test_those_with_priorities_wait_in_the_file_too(kept: Kept) -> None:
    asked = prioritized(kept)
    away(kept)
    mixed(kept)
    mqueue = kept.node.broker.sessions["away"].mqueue
    assert mqueue is not None and mqueue.held == 300 * QUEUED
    assert numbers(drained(kept, asked)) == by_rank()
    assert kept.living() == 0
    weigh(kept)


def test_what_is_urgent_goes_before_what_is_being_read(kept: Kept) -> None:
    asked = prioritized(kept)
    away(kept)
    send(kept, 300, topic="t/low")
    client = kept.node.connect("away", 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    assert asked and not client.take()
    publisher = kept.client("publisher", kept=False)
    publisher.send(Publish("t/high", b"000999", 1, False, False, 7, None))
    kept.settle()
    serve(kept, asked)
    assert numbers(client.published())[0] == 999


def test_priorities_are_those_of_the_topics_after_a_restart(tmp_path: Path) -> None:
    kept = make(tmp_path)
    away(kept)
    mixed(kept)
    kept, asked = restarted(kept, tmp_path / "store.db", {"t/high": 9, "t/middle": 5})
    mqueue = kept.node.broker.sessions["away"].mqueue
    assert mqueue is not None and mqueue.held == 300 * QUEUED
    assert numbers(drained(kept, asked)) == by_rank()
    kept.settle()
    assert kept.living() == 0


class Story:
    """What a few clients do, following from a seed: the same in memory and in the file."""

    def __init__(self, path: Path, seed: int, in_memory: int) -> None:
        self.dice = random.Random(seed)
        self.kept = make(path)
        self.asked = lay_apart(self.kept, in_memory)
        settings = self.kept.node.broker.settings
        settings.max_inflight = self.dice.choice((1, 3, 100))
        settings.mqueue_max_length = self.dice.choice((5, 1000))
        if seed % 3 == 0:
            settings.mqueue_priorities = {"t/9": 9}
        self.clients: dict[str, MemoryClient] = {}
        self.versions: dict[str, int] = {}
        self.told: list[object] = []
        self.publisher = self.kept.client("publisher", kept=False)
        self.next_id = 0

    def run(self, steps: int) -> list[object]:
        for _ in range(steps):
            roll = self.dice.random()
            name = self.dice.choice(("a", "b"))
            if roll < 0.6:
                self.publish()
            elif roll < 0.75:
                self.join(name)
            elif name in self.clients:
                self.clients.pop(name).drop()
            self.hear()
        for name in ("a", "b"):
            self.join(name)
            self.hear()
        metrics = self.kept.node.broker.metrics.snapshot()
        weigh(self.kept)
        self.kept.base.close()
        return [*self.told, {k: v for k, v in metrics.items() if k.startswith("dropped")}]

    def join(self, name: str) -> None:
        version = self.dice.choice((4, 5))
        if name in self.clients:
            return
        client = self.kept.node.connect(
            name, version, False,
            properties={prop.SESSION_EXPIRY_INTERVAL: 1000} if version == 5 else None,
        )  # fmt: skip
        client.send(Subscribe(1, [Subscription("t/#", 2)]))
        self.clients[name] = client

    def publish(self) -> None:
        for _ in range(self.dice.randint(1, 8)):
            qos = self.dice.randint(0, 2)
            self.next_id = self.next_id % 60_000 + 1
            properties = {prop.MESSAGE_EXPIRY_INTERVAL: 1000} if self.dice.random() < 0.3 else None
            payload = b"%06d" % self.next_id + bytes(self.dice.choice((0, 50, 3000)))
            topic = f"t/{self.dice.choice((1, 9))}"
            packet_id = self.next_id if qos else 0
            self.publisher.send(Publish(topic, payload, qos, False, False, packet_id, properties))

    def hear(self) -> None:
        while True:
            serve(self.kept, self.asked)
            self.publisher.take()
            heard = False
            for name, client in self.clients.items():
                for packet in client.take():
                    heard = True
                    if not isinstance(packet, Publish):
                        continue
                    self.told.append((name, packet.topic, packet.payload, packet.qos))
                    if packet.qos == 1:
                        client.send(Puback(packet.packet_id, 0, None))
                    elif packet.qos == 2:
                        client.send(Pubrec(packet.packet_id, 0, None))
                        client.send(Pubcomp(packet.packet_id, 0, None))
            if not heard:
                return


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_same_wherever_payloads_are(tmp_path: Path, seed: int) -> None:
    """The twin: all in memory, some of it, none of it."""
    told = []
    for number, in_memory in enumerate((1 << 30, 2000, 0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        told.append(Story(folder, seed, in_memory).run(60))
    assert told[1] == told[0]
    assert told[2] == told[0]


def test_where_many_are_back_each_asks_for_a_little_and_all_at_once(kept: Kept) -> None:
    """What was stored for all of them lies side by side: one look at a block serves them all."""
    asked = lay_apart(kept)
    names = [f"away-{number}" for number in range(100)]
    for name in names:
        away(kept, name)
    send(kept, 200, size=10)
    kept.journal.reading = AHEAD  # somebody reads much meanwhile
    clients = {name: kept.node.connect(name, 4, False) for name in names}
    assert not asked
    kept.journal.reading = 0
    kept.journal.serve()
    assert [len(pieces) for _, pieces in asked] == [81] * 26  # what a turn may ask for
    found: dict[str, list[int]] = {name: [] for name in names}
    while asked:
        serve(kept, asked)
        for name, client in clients.items():
            for packet in client.take():
                if isinstance(packet, Publish):
                    found[name].append(int(packet.payload[:6]))
                    client.send(Puback(packet.packet_id, 0, None))
    assert all(got == list(range(1, 201)) for got in found.values())
    assert kept.journal.portion == PORTION
