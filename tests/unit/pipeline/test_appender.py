"""From events to blocks: batches, bounds, gaps, and what waits until something is written."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.base import DelayedCall

from mqttd.pipeline.log import appender
from mqttd.pipeline.log.appender import Appender
from mqttd.pipeline.log.background import Background, Parts
from mqttd.pipeline.log.merge import Held
from mqttd.pipeline.log.reader import LogReader
from mqttd.pipeline.log.recovery import GIVEN, read_mark
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import QUICK, zstd
from tests.support.waiting import until
from tests.unit.pipeline.logs import NODE, all_events, offsets, row

DEADLINE = 30.0


class Slow(Writer):
    """A writer whose disk stops taking blocks when a test says so."""

    full = False

    def __init__(self, *args: Any) -> None:
        self.hold = threading.Event()
        self.hold.set()
        super().__init__(*args)

    def write(self, blocks: Any) -> None:
        assert self.hold.wait(DEADLINE)
        if self.full and blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(blocks)


class Bench:
    """An appender and the reactor it believes in."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.writer = Slow(str(path), NODE)
        self.timers: list[Callable[[], None]] = []
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.changes = 0
        self.log = Appender(
            self.writer,
            self.later,
            self.calls.put,
            changed=self.changed,
            retry_every=0.02,
            **options,
        )
        self.count = 0

    def later(self, seconds: float, f: Callable[[], None]) -> Any:
        self.timers.append(f)
        return DelayedCall(0, f, (), {}, lambda call: None, lambda call: None)

    def changed(self) -> None:
        self.changes += 1

    def append(self, count: int, **more: Any) -> None:
        for _ in range(count):
            self.log.append(row(self.count, **more))
            self.count += 1

    def until(self, true: Callable[[], Any]) -> None:
        """Run what the thread asks for, until something is so."""
        while not true():
            self.calls.get(timeout=DEADLINE)()

    def written(self, offset: int) -> None:
        done: list[int] = []
        self.log.when_written(offset, lambda: done.append(1))
        self.until(lambda: done)

    def stop(self) -> None:
        self.log.stop()
        assert self.log.join(DEADLINE)

    def events(self) -> list[Any]:
        return all_events(LogReader(str(self.path)))


def readings() -> bytes:
    """Text that becomes less."""
    return b"".join(b'{"device": "d%s"}' % os.urandom(4).hex().encode() for _ in range(150))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(tmp_path, **options))
        return made[-1]

    yield bench
    for one in made:
        one.writer.full = False
        if not one.log.join(0):
            one.stop()


def test_a_full_block_goes_at_once_a_started_one_after_its_time(make: Callable[..., Bench]) -> None:
    bench = make(block_events=10)
    bench.append(25)
    bench.written(20)
    assert len(bench.timers) == 1 and bench.log.next == 25
    assert offsets(bench.events()) == list(range(20))
    bench.timers.pop()()
    bench.written(25)
    assert offsets(bench.events()) == list(range(25))


def test_nothing_that_went_in_is_missing_after_a_stop(make: Callable[..., Bench]) -> None:
    bench = make(block_events=7)
    bench.append(1000)
    bench.stop()
    assert [event.payload for event in bench.events()] == [b"%d" % i for i in range(1000)]
    assert bench.log.written_events == bench.log.appended == 1000


def test_what_waits_for_an_event_is_called_when_it_is_written_and_not_before(
    make: Callable[..., Bench],
) -> None:
    bench = make(block_events=10)
    told: list[int] = []
    bench.writer.full = True
    bench.append(10)
    bench.log.when_written(5, lambda: told.append(5))
    bench.log.when_written(10, lambda: told.append(10))
    bench.until(lambda: bench.log.failing)
    assert told == []
    bench.writer.full = False
    bench.until(lambda: told == [5, 10])
    bench.log.when_written(10, lambda: told.append(11))
    assert told == [5, 10, 11]


def test_when_the_disk_is_full_events_are_dropped_and_a_gap_says_so(
    make: Callable[..., Bench],
) -> None:
    bench = make(block_events=10, queue_bytes=2000)
    bench.writer.full = True
    bench.append(200)
    bench.until(lambda: bench.log.failing == "No space left on device")
    bench.append(200)
    assert bench.log.dropped > 300 and bench.log.queued_bytes < 3000
    bench.writer.full = False
    bench.until(lambda: not bench.log.failing and not bench.log._lost)
    bench.append(10)
    bench.stop()
    found = bench.events()
    gaps = [event for event in found if event.event == "log.gap"]
    assert sum(gap.lost for gap in gaps) == bench.log.dropped
    # Every offset is an event or stands in a gap, and no event is where it does not belong.
    at = 0
    for event in found:
        assert event.seq == at
        at += max(event.lost, 1)
        if not event.lost:
            assert event.payload == b"%d" % event.seq
    assert at == 410


def test_block_means_that_publishers_are_told_before_anything_is_lost(
    make: Callable[..., Bench],
) -> None:
    bench = make(block_events=10, queue_bytes=4000, overflow="block")
    bench.writer.full = True
    while not bench.log.congested:
        bench.append(10)
    assert bench.changes and not bench.log.dropped
    bench.append(10)  # what was read from sockets already
    assert not bench.log.dropped
    bench.writer.full = False
    bench.until(lambda: not bench.log.congested)
    bench.stop()
    assert offsets(bench.events()) == list(range(bench.count))


def test_even_block_has_a_bound(make: Callable[..., Bench]) -> None:
    bench = make(block_events=10, queue_bytes=4000, overflow="block")
    bench.writer.full = True
    bench.append(1000)
    assert bench.log.queued_bytes < 2 * 4000 + 1000
    assert bench.log.dropped
    bench.writer.full = False


def test_a_stop_with_a_full_disk_ends_and_the_log_stays_sound(make: Callable[..., Bench]) -> None:
    bench = make(block_events=10)
    bench.append(20)
    bench.written(20)
    bench.writer.full = True
    bench.append(15)
    bench.stop()
    assert offsets(bench.events()) == list(range(20))
    assert bench.log.unwritten == 15
    again = Writer(str(bench.path), NODE)
    assert (again.next, again.damage) == (35, "")
    again.close()
    for _ in range(2):  # it is noted once
        gap = bench.events()[-1]
        assert (gap.seq, gap.lost) == (20, 15)
        assert gap.reason == "15 events lost: not written before the broker stopped"
        Writer(str(bench.path), NODE).close()


def test_dropped_events_whose_gap_a_stop_cannot_write_are_not_forgotten(
    make: Callable[..., Bench],
) -> None:
    bench = make(block_events=10, queue_bytes=2000)
    bench.append(20)
    bench.written(20)
    bench.writer.full = True
    bench.append(395)
    bench.until(lambda: bench.log.failing)
    assert bench.log.dropped > 300
    bench.stop()
    assert bench.log.unwritten == 395
    Writer(str(bench.path), NODE).close()
    found = bench.events()
    assert sum(event.lost for event in found) == 395 and len(found) == 21


def test_what_a_disk_is_too_slow_for_at_a_stop_is_noted_too(make: Callable[..., Bench]) -> None:
    bench = make(block_events=10)
    bench.append(20)
    bench.written(20)
    bench.writer.hold.clear()
    bench.append(15)
    bench.log.stop()
    assert not bench.log.join(0.01)
    assert bench.log.unwritten == 15
    with open(bench.path / NODE / "lock", "rb") as file:
        assert read_mark(file.fileno(), GIVEN) == 35
    bench.writer.hold.set()
    assert bench.log.join(DEADLINE)
    Writer(str(bench.path), NODE).close()  # it was written after all
    assert offsets(bench.events()) == list(range(35))


def test_gaps_reach_the_log_when_no_event_follows(make: Callable[..., Bench]) -> None:
    bench = make(block_events=10, queue_bytes=1000)
    bench.writer.full = True
    bench.append(100)
    bench.until(lambda: bench.log.failing)
    bench.writer.full = False
    bench.until(lambda: not bench.log._lost)
    bench.written(100)
    found = bench.events()
    assert found[-1].event == "log.gap" and found[-1].seq + found[-1].lost == 100


def test_encoded_blocks_know_their_place(make: Callable[..., Bench]) -> None:
    bench = make(block_events=3)
    bench.append(7)
    bench.stop()
    reader = LogReader(str(bench.path))
    blocks = reader.blocks(NODE, *reader.bounds()[NODE])
    assert [(one.base, one.rows) for one in blocks] == [(0, 3), (3, 3), (6, 1)]
    assert isinstance(Encoded(0, 1, b"").rows, int)


@pytest.mark.parametrize("fill", [b"text", b""])
def test_14_payloads_that_fill_a_block_are_written_quickly_and_read_as_they_came(
    make: Callable[..., Bench], fill: bytes
) -> None:
    """What compresses, and what does not; the small block at the end is compressed well."""
    given: list[int] = []

    class Quick:
        def compress(self, data: bytes) -> bytes:
            given.append(len(data))
            return zstd(QUICK).compress(data)

        def decompress(self, data: bytes, size: int) -> bytes:
            raise NotImplementedError

    bench = make(codec=zstd(), quick=Quick())
    payloads = [(fill * 1000 or os.urandom(4000)) + b"%d" % i for i in range(1000)]
    for payload in payloads:
        bench.append(1, payload=payload)
    bench.stop()
    assert [event.payload for event in bench.events()] == payloads
    whole = sum(map(len, payloads))
    quickly = sum(given)
    assert (3 << 20) < quickly < whole if fill else 0 < quickly < (64 << 10)
    assert bench.log.written_bytes == (bench.path / NODE / f"{0:020d}.events").stat().st_size


def test_14_payloads_that_come_quickly_are_left_and_the_segment_says_so(
    make: Callable[..., Bench],
) -> None:
    bench = make(codec=zstd(), quick=zstd(QUICK), loose=True)
    payloads = [readings() for _ in range(400)]
    for payload in payloads:
        bench.append(1, payload=payload)
    held: list[Held] = []
    bench.writer.closed = lambda name, one: held.append(one)
    bench.log.flush()
    bench.written(400)
    bench.writer.segment_bytes = 1
    bench.append(1)
    bench.stop()
    assert [event.payload for event in bench.events()][:400] == payloads
    ((blocks, events, size, loose),) = held
    assert (blocks, events) == (1, 400) and size == loose > sum(map(len, payloads))


@pytest.mark.parametrize("close", [0.0, 60.0])
def test_14_blocks_that_follow_closely_are_left_and_the_segment_says_so(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, close: float
) -> None:
    monkeypatch.setattr(appender, "CLOSE", close)
    bench = make(codec=zstd(), quick=zstd(QUICK), loose=True)
    held: list[Held] = []
    bench.writer.closed = lambda name, one: held.append(one)
    for block in range(1, 5):
        for _ in range(20):
            bench.append(1, payload=readings()[:200])
        bench.log.flush()
        bench.written(20 * block)
    bench.writer.segment_bytes = 1
    bench.append(1)
    bench.stop()
    assert len(bench.events()) == 81
    ((blocks, _, size, loose),) = held
    assert blocks == 4 and (loose > size // 2 if close else not loose)


@pytest.mark.parametrize("busy", [0, 1 << 40])
def test_14_what_is_done_beside_is_told_whether_much_is_written(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    told: queue.Queue[bool] = queue.Queue()

    class Beside:
        busy = False

        def step(self, quiet: bool) -> None:
            told.put(quiet)

        def stop(self) -> None:
            """Nothing runs."""

    monkeypatch.setattr(appender, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(appender, "BUSY", busy)
    make(background=Beside()).append(1)
    assert told.get(timeout=60) is (busy > 0)


@pytest.mark.parametrize("again", [False, True])
def test_14_payloads_that_were_left_are_compressed_when_nothing_follows_them(
    tmp_path: Path, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Whether the broker goes on, or was stopped at once and starts again."""
    monkeypatch.setattr(appender, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(appender, "LONG", 0.2)
    bench = make(codec=zstd(), quick=zstd(QUICK), loose=True)
    for _ in range(400):
        bench.append(1, payload=readings())
    bench.log.flush()
    bench.written(400)
    size = bench.log.written_bytes
    if again:
        bench.stop()
        bench = make(codec=zstd())
    parts = Parts(Background(bench.writer.folder, "zstd", lambda why: None))
    bench.writer.closed = parts.own.closed
    bench.log.background = parts
    until(lambda: parts.merged)
    bench.stop()
    assert len(bench.events()) == 400
    assert (bench.path / NODE / f"{0:020d}.events").stat().st_size < 0.7 * size
