"""Records that are noted, forgotten, moved and read again: the file says what a model says."""

from __future__ import annotations

import gc
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd import compiled
from mqttd.storage.blocks import Block, Home
from mqttd.storage.database import OPEN_SESSION, connect
from mqttd.storage.ledger import MESSAGE3, RECEIVED, Ledger
from mqttd.storage.recovery import Contents, read
from mqttd.storage.writer import write

OWNERS = 5


class Store:
    """A ledger over a file, every group written at once; `model`: what lives."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.base = connect(self.path)
        self.ledger = Ledger()
        self.model: dict[int, tuple[int, int, int, bytes]] = {}
        #: Bytes that were read at once, at most.
        self.most = 0
        for owner in range(1, OWNERS + 1):
            self.ledger.row(OPEN_SESSION, (owner, f"client {owner}", None, 100))
        self.write()

    def note(self, owner: int, data: bytes, kind: int = MESSAGE3, packet_id: int = 0) -> int:
        number = self.ledger.note(owner, kind, packet_id, data)
        self.model[number] = (owner, kind, packet_id, data)
        return number

    def forget(self, number: int) -> None:
        self.ledger.forget(number)
        del self.model[number]

    def send(self, number: int, packet_id: int) -> None:
        self.ledger.send(number, packet_id)
        owner, kind, _, data = self.model[number]
        self.model[number] = (owner, kind, packet_id, data)

    def write(self) -> None:
        self.ledger.sweep()
        group = self.ledger.close()
        if group is not None:
            write(self.base, group)
            self.most = max(self.most, sum(len(data) for _, _, data in group.found))
            if group.reads:
                self.ledger.rewrite(group.found)

    def reopen(self) -> Contents:
        self.base.close()
        self.base = connect(self.path)
        self.ledger = Ledger()
        return read(self.base, self.ledger)

    def read(self, contents: Contents) -> dict[int, tuple[int, int, int, bytes]]:
        found = {}
        for owner, mine in contents.records.items():
            assert [record.number for record in mine] == sorted(record.number for record in mine)
            for record in mine:
                data = self.base.execute(
                    "SELECT substr(data, ?, ?) FROM block WHERE id = ?",
                    (record.at + 1, record.length, record.block),
                ).fetchone()[0]
                found[record.number] = (owner, record.kind, record.packet_id, data or b"")
        return found

    def blocks(self) -> int:
        return int(self.base.execute("SELECT count(*) FROM block").fetchone()[0])

    def check(self) -> None:
        """What is in memory agrees with itself, and with the file."""
        ledger = self.ledger
        assert [*ledger.homes.starts] == sorted(home.start for home in ledger.homes.all)
        living = 0
        for home in ledger.homes.all:
            assert ledger.blocks[home.block.id] is home.block
            assert home in home.block.homes
            living += home.live
        assert living == len(self.model) == sum(block.live for block in ledger.blocks.values())
        for number in self.model:
            home = ledger.find(number)
            assert home is not None and not home.is_dead(number - home.start)
        # Who says something is newer than what it is about: no two blocks keep each other.
        needed: Counter[int] = Counter()
        for block in ledger.blocks.values():
            for at, by in enumerate(block.noted_by or ()):
                assert by.id > block.id
                if by.id in ledger.blocks:
                    needed[by.id] += block.noted[at]
        assert {
            block.id: block.needed for block in ledger.blocks.values() if block.needed
        } == needed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db")
    yield made
    made.base.close()


def test_what_was_noted_is_there_byte_for_byte(store: Store) -> None:
    for owner in range(1, OWNERS + 1):
        store.note(owner, b"%d" % owner)
    store.note(1, b"", RECEIVED, 65535)
    store.note(2, bytes(70_000), MESSAGE3, 7)
    store.write()
    assert store.read(store.reopen()) == store.model


def test_bytes_for_several_owners_are_kept_once(store: Store) -> None:
    wire = bytes(1000)
    for owner in range(1, OWNERS + 1):
        store.note(owner, wire)
    assert store.ledger.group.size == 1000
    store.write()
    assert store.read(store.reopen()) == store.model


def test_a_block_is_full_with_its_words_too(store: Store) -> None:
    """What many get has few bytes; to move half a million records held the loop for 80 ms."""
    wire = bytes(100)
    numbers = [store.note(at % OWNERS + 1, wire) for at in range(50_000)]
    store.write()
    for number in numbers[::2]:
        store.forget(number)
    store.write()
    store.check()
    assert store.blocks() == 6
    assert max(block.count for block in store.ledger.blocks.values()) <= 16_384 + 2
    assert store.read(store.reopen()) == store.model


def test_a_block_of_which_nothing_is_left_when_it_is_full_is_no_block(store: Store) -> None:
    """It is full with what is said of its last record, and goes: nothing is to be said then."""
    store.write()
    blocks = store.blocks()
    store.send(number := store.note(1, b"x"), 1)
    store.forget(number)
    for _ in range(9000):
        store.forget(store.note(1, b"x"))
    store.check()
    store.note(1, b"lives")
    store.write()
    store.check()
    assert store.blocks() == blocks + 1
    assert store.read(store.reopen()) == store.model


def test_a_group_of_many_records_has_them_in_their_order(store: Store) -> None:
    """So are those that say something of others; their words weigh 16 bytes a record."""
    numbers = [store.note(at % OWNERS + 1, b"%d" % at) for at in range(10_000)]
    group = store.ledger.group
    assert group.weight() == group.size + 10_000 * 16
    store.write()
    assert store.read(store.reopen()) == store.model
    store.check()
    for number in numbers[::2]:
        store.send(number, number % 65535 + 1)
    for number in numbers[1::2]:
        store.forget(number)
    store.write()
    assert store.read(store.reopen()) == store.model
    store.check()


def test_what_is_over_within_a_group_is_not_written(store: Store) -> None:
    store.forget(store.note(1, b"gone"))
    store.write()
    assert store.blocks() == 0


def test_a_block_of_which_nothing_lives_goes(store: Store) -> None:
    numbers = [store.note(1, b"%d" % number) for number in range(10)]
    store.write()
    for number in numbers:
        store.forget(number)
        store.write()
    assert store.blocks() == 0
    assert store.read(store.reopen()) == {}


def test_what_was_forgotten_stays_forgotten_after_two_restarts(store: Store) -> None:
    """The record that says so is kept while the block that it is about is there."""
    first = store.note(1, b"first")
    store.note(1, b"second")
    store.write()
    store.forget(first)
    store.note(2, b"third")
    store.write()
    for _ in range(3):
        assert store.read(store.reopen()) == store.model
        store.note(3, b"more")
        store.write()


def test_records_of_an_owner_that_is_gone_are_not_there(store: Store) -> None:
    store.note(1, b"mine")
    store.note(99, b"nobody's")
    store.write()
    del store.model[max(store.model)]
    contents = store.reopen()
    assert store.read(contents) == store.model
    assert contents.highest_owner == 99


def test_a_damaged_row_is_left_out_and_none_behind_it(store: Store) -> None:
    lost = store.note(1, b"lost")
    store.write()
    store.note(1, b"kept")
    store.write()
    store.base.execute(
        "UPDATE block SET words = x'00112233' WHERE id = (SELECT min(id) FROM block)"
    )
    del store.model[lost]
    contents = store.reopen()
    assert contents.damaged == 1
    assert store.read(contents) == store.model


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_leave_what_the_model_says(store: Store, seed: int) -> None:
    """Groups of any size, slow and fast owners, restarts, compaction all the time."""
    dice = random.Random(seed)
    old = dice.choice((0, 3, 20))
    store.ledger.old = old
    restarts = dice.choice((0.0, 0.02))
    shared = bytes(50)
    for turn in range(400):
        for _ in range(dice.choice((1, 3, 20))):
            roll = dice.random()
            if roll < 0.5:
                owner = dice.randint(1, OWNERS)
                data = shared if roll < 0.2 else dice.randbytes(dice.choice((0, 5, 300)))
                store.note(owner, data, dice.choice((MESSAGE3, RECEIVED)), dice.choice((0, 9)))
            elif store.model:
                numbers = list(store.model)
                # Owner 1 is slow.
                number = numbers[min(int(dice.expovariate(0.1)), len(numbers) - 1)]
                if store.model[number][0] == 1 and dice.random() < 0.95:
                    continue
                if roll < 0.6:
                    if store.model[number][2] == 0:
                        store.send(number, dice.randint(1, 65535))
                else:
                    store.forget(number)
        store.write()
        if turn % 20 == 0:
            store.check()
        if dice.random() < restarts:
            assert store.read(store.reopen()) == store.model
            store.check()
            store.ledger.old = old
    assert store.read(store.reopen()) == store.model
    store.check()
    for number in list(store.model):
        store.forget(number)
    store.ledger.old = 0
    for _ in range(400):
        store.write()
    assert store.read(store.reopen()) == {}
    assert store.blocks() <= 1


def test_one_slow_owner_does_not_hold_the_file(store: Store) -> None:
    """Of a hundred messages one stays: what is kept is near to what lives."""
    numbers: list[int] = []
    for group in range(2000):
        for place in range(20):
            number = store.note(1 if place == 0 and group % 5 == 0 else 2, bytes(100))
            if store.model[number][0] == 2:
                numbers.append(number)
        if group >= 5:
            for number in numbers[:20]:
                store.forget(number)
            del numbers[:20]
        store.write()
    living = sum(len(record[3]) for record in store.model.values())
    assert store.ledger.moved > 0
    assert store.ledger.bytes < 2 * living + 400_000
    assert store.read(store.reopen()) == store.model


def test_what_is_moved_at_once_is_bounded_however_large_a_group_was(store: Store) -> None:
    """A queue of 40 MiB told in one group, a part of it acknowledged again and again."""
    dice = random.Random(4)
    numbers = [store.note(dice.randint(1, OWNERS), dice.randbytes(50_000)) for _ in range(800)]
    store.forget(numbers.pop(3))
    for number in numbers[100:150]:
        store.forget(number)  # a block of the group at hand, and more
        numbers.remove(number)
    store.check()
    store.write()
    assert store.blocks() > 15
    store.check()
    store.ledger.old = 2
    for turn in range(60):
        for _ in range(8):
            store.forget(numbers.pop(dice.randrange(len(numbers))))
        store.send(dice.choice(numbers), turn + 1)
        numbers += [store.note(1, b"more%d" % turn) for _ in range(3)]
        store.write()
    assert store.ledger.moved > 100
    assert store.most < 9 << 20, store.most
    store.check()
    assert store.read(store.reopen()) == store.model
    store.check()


@pytest.mark.parametrize(("size", "least"), [(2, 6_000), (60, 30_000)], ids=["calm", "busy"])
def test_what_is_said_does_not_follow_who_is_away(store: Store, size: int, least: int) -> None:
    """Sessions that acknowledge later than in the same group, and one in twenty that does not."""
    dice = random.Random(size)
    due: deque[tuple[int, int]] = deque()
    turn = 0
    before = 0
    for sent in range(2 * least):
        number = store.note(dice.randint(1, OWNERS - 1), b"x" * 100)
        if dice.random() < 0.95:
            due.append((turn + 40, number))
        if sent % size == 0:
            turn += 1
            while due and due[0][0] <= turn:
                gone = due.popleft()[1]
                store.send(gone, 5)
                store.forget(gone)
            store.write()
        if sent == least:
            before = store.ledger.bytes - 132 * len(store.model)
    after = store.ledger.bytes - 132 * len(store.model)
    assert after < before * 1.3 + 200_000, (before, after)
    store.write()
    assert store.read(store.reopen()) == store.model
    store.check()


def test_sessions_that_come_and_go_leave_nothing_behind(store: Store) -> None:
    """There a minute and away a minute, one of them longer; what waited goes in flight, is gone."""
    dice = random.Random(9)
    there = dict.fromkeys(range(1, OWNERS + 1), True)
    waiting: dict[int, list[int]] = {owner: [] for owner in there}
    flying: list[int] = []
    most = 0
    for turn in range(4000):
        for number in flying:
            store.forget(number)
        flying = []
        for _ in range(5):
            owner = dice.randint(1, OWNERS)
            number = store.note(owner, bytes(100), packet_id=7 if there[owner] else 0)
            (flying if there[owner] else waiting[owner]).append(number)
        for owner in there:
            if there[owner]:
                slice_, waiting[owner] = waiting[owner][:50], waiting[owner][50:]
                for number in slice_:
                    store.send(number, 7)
                flying += slice_
            if dice.random() < (0.002 if owner == 1 else 0.01):
                there[owner] = not there[owner]
        store.write()
        if turn == 1000:
            most = store.ledger.bytes
            store.check()
    store.check()
    lives = sum(116 for _ in store.model)
    assert store.ledger.bytes < 3 * lives + 200_000, (most, store.ledger.bytes, lives)
    assert store.read(store.reopen()) == store.model
    store.check()


@pytest.mark.parametrize("moved", [False, True])
def test_a_packet_id_is_the_one_that_was_said_last(store: Store, moved: bool) -> None:
    """Said before a record was moved, it went with it; said behind, it counts."""
    number = store.note(1, b"queued")
    others = [store.note(2, bytes(10)) for _ in range(5)]
    store.write()
    said = [store.note(3, bytes(10))]  # keeps the block that says the first
    store.send(number, 5)
    store.write()
    store.ledger.old = 0
    if moved:
        for other in others:
            store.forget(other)
        for _ in range(4):
            store.write()
        assert store.ledger.moved
    assert store.read(store.reopen()) == store.model
    store.send(number, 6)
    store.write()
    assert store.read(store.reopen()) == store.model
    store.forget(said[0])
    store.forget(number)
    store.write()
    assert store.read(store.reopen()) == store.model == ({} if moved else store.model)


def test_the_file_is_for_its_owner_alone(store: Store) -> None:
    assert Path(store.path).stat().st_mode & 0o777 == 0o600
    assert Path(store.path + "-wal").stat().st_mode & 0o777 == 0o600


def test_another_process_is_refused(store: Store) -> None:
    other = sqlite3.connect(store.path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM block")
    other.close()


def test_the_collector_need_not_look_for_blocks_that_have_gone(store: Store) -> None:
    """It does not even know of them where they are compiled: what is a circle is broken."""

    def there() -> int:
        return sum(isinstance(one, (Block, Home)) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = there()
        for _ in range(10):
            numbers = [store.note(1, b"%d" % number) for number in range(5)]
            store.write()
            for number in numbers:
                store.forget(number)
            store.write()
        assert len(store.ledger.blocks) == 1  # the one at hand
        assert there() == before
        assert gc.is_tracked(store.ledger.group.block) is not compiled()
    finally:
        gc.enable()
