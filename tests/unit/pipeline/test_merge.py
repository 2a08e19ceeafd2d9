"""Small blocks become large ones: the same events, whoever reads them meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.log import background
from mqttd.pipeline.log.background import Background, Parts
from mqttd.pipeline.log.blocks import encode_gap, is_loose
from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.merge import Held, main, merge, worth
from mqttd.pipeline.log.packed import pack, parts, taken_of
from mqttd.pipeline.log.reader import LogReader, events, runs_of, salvage
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd
from tests.support.waiting import until
from tests.unit.pipeline.logs import NODE, all_events, fill, row

SMALL = 7


def small(path: Path, blocks: int = 60) -> Writer:
    """A log of small blocks of all kinds with a gap, in a segment that is finished."""
    writer = Writer(str(path), NODE)
    for i in range(blocks):
        base = writer.next
        rows = [row(at, "client.connected" if at % 9 == 0 else "message.publish")
                for at in range(base, base + SMALL)]  # fmt: skip
        if i == 20:
            writer.write([Encoded(base, 5, encode_gap(base, 5, rows[0][1], "queue full"))])
        elif i % 3:
            data = pack(taken_of(rows), base, 1, zstd() if i % 3 == 1 else None)
            writer.write([Encoded(base, SMALL, data)])
        else:
            fill(writer, 1, SMALL)
    writer._roll()
    fill(writer, 1)
    return writer


def test_14_blocks_of_few_but_large_events_are_left_as_they_are(tmp_path: Path) -> None:
    """None would become larger: a segment was written again, and nothing in it had changed."""
    writer = Writer(str(tmp_path), NODE)
    for base in range(0, 64 * SMALL, SMALL):
        rows = [row(at, payload=os.urandom(40_000)) for at in range(base, base + SMALL)]
        writer.write([Encoded(base, SMALL, pack(taken_of(rows), base))])
    writer._roll()
    name = tmp_path / NODE / segments_in(str(tmp_path / NODE))[0]
    assert not worth(str(name))
    writer.close()


def test_merged_blocks_hold_the_same_events(tmp_path: Path) -> None:
    small(tmp_path).close()
    log = LogReader(str(tmp_path))
    before = all_events(log)
    name = tmp_path / NODE / segments_in(str(tmp_path / NODE))[0]
    size = name.stat().st_size
    assert worth(str(name))
    assert main([str(name), f"{name}.merged", "zstd"]) == 0
    assert name.stat().st_mtime_ns == os.stat(f"{name}.merged").st_mtime_ns
    planned = log.blocks(NODE, 0, before[-1].seq + 1)
    os.replace(f"{name}.merged", name)
    assert not worth(str(name)) and main([str(name), f"{name}.merged", "zstd"]) == 3
    assert name.stat().st_size < size / 3
    # One that knows of nothing, one that has looked before, and one that had planned already.
    assert all_events(LogReader(str(tmp_path))) == before
    assert list(events(log, NODE, 10, 200)) == before_of(before, 10, 200)
    fresh = LogReader(str(tmp_path))
    fresh.bounds()
    merged = fresh.blocks(NODE, 0, before[-1].seq + 1)
    assert len(merged) < len(planned) / 10 and [one.gap for one in merged].count(True) == 1
    found: list[Any] = []
    for run in runs_of(planned, 500):
        from mqttd.pipeline.log.decode import decode_block

        for piece in salvage(log, run):
            assert isinstance(piece, memoryview)
            found += decode_block(piece, NODE)
    assert found == before


def test_what_compresses_to_nothing_does_not_become_blocks_that_fill_memory(
    tmp_path: Path,
) -> None:
    """By their bytes as written all of them were one, of whatever size; that is read whole."""
    writer = Writer(str(tmp_path), NODE, boot="1")
    for base in range(0, 40 * 3, 3):
        rows = [row(at, payload=bytes(1_000_000)) for at in range(base, base + 3)]
        writer.write([Encoded(base, 3, pack(taken_of(rows), base, 1, zstd()))])
    name = finish(writer)
    before = all_events(LogReader(str(tmp_path)))
    assert os.path.getsize(name) < 100_000
    assert main([name, f"{name}.merged", "zstd"]) == 0
    os.replace(f"{name}.merged", name)
    log = LogReader(str(tmp_path))
    blocks = log.blocks(NODE, 0, 120)
    assert [one.rows for one in blocks] == [15] * 8
    assert all_events(log) == before
    assert main([name, f"{name}.merged", "zstd"]) == 3  # once
    writer.close()


def test_a_segment_that_would_become_no_other_is_not_written_again(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE, boot="1")
    for base in range(0, 32 * 9, 9):
        rows = [row(at, payload=bytes(1_000_000)) for at in range(base, base + 9)]
        writer.write([Encoded(base, 9, pack(taken_of(rows), base, 1, zstd()))])
    name = finish(writer)
    assert worth(name) and main([name, f"{name}.merged", "zstd"]) == 3
    assert not os.path.exists(f"{name}.merged")
    writer.close()


def before_of(found: list[Any], start: int, end: int) -> list[Any]:
    return [event for event in found if start <= event.seq < end]


def test_a_harmed_segment_and_one_of_large_blocks_are_left_alone(tmp_path: Path) -> None:
    small(tmp_path).close()
    name = tmp_path / NODE / segments_in(str(tmp_path / NODE))[0]
    data = bytearray(name.read_bytes())
    data[len(data) // 2] ^= 1
    name.write_bytes(data)
    assert main([str(name), f"{name}.merged", "none"]) == 3
    assert not merge(str(name), f"{name}.merged", None)
    assert name.read_bytes() == data
    large = Writer(str(tmp_path / "large"), NODE)
    fill(large, 40, 2000)
    large.close()
    assert not worth(str(tmp_path / "large" / NODE / segments_in(large.folder)[0]))


@pytest.mark.slow
def test_a_child_merges_and_the_writer_puts_it_in_place(tmp_path: Path) -> None:
    writer = small(tmp_path)
    before = all_events(LogReader(str(tmp_path)))
    stale = Path(writer.folder) / "00000000000000000000.events.merged"
    stale.write_bytes(b"of a crash")
    told: list[str] = []
    work = Background(writer.folder, "zstd", told.append)
    assert not stale.exists()
    work.step()
    assert work.busy and work._child is not None
    work._child.wait(60)
    work.step()
    assert (work.merged, told) == (1, []) and not work.busy
    work.step()
    assert not work.busy  # each segment once
    assert all_events(LogReader(str(tmp_path))) == before
    # One that retention has deleted meanwhile does not come back.
    work = Background(writer.folder, "zstd", told.append)
    name = Path(writer.folder) / segments_in(writer.folder)[0]
    work._at = str(name)
    Path(f"{name}.merged").write_bytes(name.read_bytes())
    name.unlink()
    work._finish(0)
    assert not name.exists() and not Path(f"{name}.merged").exists()
    writer.close()


def test_a_segment_of_large_blocks_costs_no_child(tmp_path: Path) -> None:
    """The writer knows it; what it says is what a look at the file would."""
    for at, (blocks, rows, wanted) in enumerate(
        [(40, SMALL, True), (31, SMALL, False), (40, 2000, False)]
    ):
        writer = Writer(str(tmp_path / str(at)), NODE, 1 << 30, 1e12, boot="1")
        work = Background(writer.folder, "none", lambda why: None)
        said: list[tuple[str, Held]] = []

        def closed(name: str, held: Held, work: Background = work, said: list[Any] = said) -> None:
            said.append((name, held))
            work.closed(name, held)

        writer.closed = closed
        fill(writer, blocks // 2, rows)
        writer.write([Encoded(writer.next, 9000, encode_gap(writer.next, 9000, 1, "x"), gap=True)])
        # What a writer finds that goes on in a segment counts as well.
        writer.close()
        writer = Writer(str(tmp_path / str(at)), NODE, 1 << 30, 1e12, boot="1")
        writer.closed = closed
        fill(writer, blocks - blocks // 2, rows)
        writer.segment_bytes = 1
        writer.clean_up()
        first = segments_in(writer.folder)[0]
        ((name, held),) = said
        assert name == first and held[:2] == (blocks, blocks * rows)
        assert worth(os.path.join(writer.folder, first)) is wanted
        work.step()
        assert work.busy is wanted
        work.stop()
        writer.close()


def loose(path: Path, sizes: tuple[int, ...] = (1100, 1100)) -> Writer:
    """A log whose first segment has blocks of so many payloads of 1,000 bytes."""
    writer = Writer(str(path), NODE, 1 << 30, 1e12, boot="1")
    for size in sizes:
        base = writer.next
        rows = [
            row(at, payload=os.urandom(250).hex().encode() + bytes(500))
            for at in range(base, base + size)
        ]
        data = b"".join(parts(taken_of(rows), base, 1, zstd(), zstd(), True))
        writer.write([Encoded(base, size, data, loose=is_loose(data))])
    return writer


def finish(writer: Writer) -> str:
    """The newest segment is closed; its path."""
    name = segments_in(writer.folder)[-1]
    writer.segment_bytes = 1
    writer.clean_up()
    return os.path.join(writer.folder, name)


@pytest.mark.parametrize("how", ["zstd", "none"])
def test_14_payloads_that_were_left_are_compressed_when_their_segment_is_finished(
    tmp_path: Path, how: str
) -> None:
    writer = loose(tmp_path)
    name = finish(writer)
    before = all_events(LogReader(str(tmp_path)))
    assert len(before) == 2200 and os.path.getsize(name) > 2_200_000
    assert main([name, f"{name}.merged", how]) == 0
    assert (os.path.getsize(f"{name}.merged") < 1_200_000) is (how == "zstd")
    os.replace(f"{name}.merged", name)
    assert all_events(LogReader(str(tmp_path))) == before
    assert not worth(name)  # once
    writer.close()


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [((1100,), True), ((250,), False), ((1100, *[250] * 12), True)],
)
def test_14_the_writer_knows_of_payloads_that_were_left(
    tmp_path: Path, sizes: tuple[int, ...], wanted: bool
) -> None:
    """Also one that goes on in a segment; what it says is what a look at the file would."""
    loose(tmp_path, sizes).close()
    writer = Writer(str(tmp_path), NODE, 1 << 30, 1e12, boot="1")
    said: list[Held] = []
    writer.closed = lambda name, held: said.append(held)
    name = finish(writer)
    (held,) = said
    assert held.worth is wanted is worth(name)
    assert held.loose > 1_000_000 if wanted else held.loose == 0
    writer.close()


@pytest.mark.parametrize("megabytes", [1, 5])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_14_the_newest_segment_is_closed_in_a_quiet_moment_where_payloads_were_left(
    tmp_path: Path, megabytes: int, again: bool, long: bool
) -> None:
    """Many at once, few when nothing follows them; also of a log that was closed before that."""
    writer = loose(tmp_path, (1100,) * megabytes)
    if again:
        writer.close()
        writer = Writer(str(tmp_path), NODE, 1 << 30, 1e12, boot="1")
    writer.rest(long)
    assert len(segments_in(writer.folder)) == (2 if long or megabytes > 4 else 1)
    writer.rest(long)  # nothing was left in the next one
    assert len(segments_in(writer.folder)) <= 2
    writer.close()


def test_14_a_segment_stays_open_in_a_quiet_moment_where_nothing_was_left(tmp_path: Path) -> None:
    writer = loose(tmp_path, (250, 250, 250))
    writer.rest(True)
    assert len(segments_in(writer.folder)) == 1
    writer.close()


def done(work: Background | Parts) -> None:
    """Until no child is needed any more."""

    def ended() -> bool:
        work.step()
        return not work.busy

    until(ended)


@pytest.mark.parametrize("archive", [False, True])
def test_14_what_was_left_of_a_worker_that_is_there_no_longer_is_done_by_the_first_one(
    tmp_path: Path, archive: bool
) -> None:
    """Its newest segment is merged, and not archived: the worker may come back."""
    gone = loose(tmp_path)
    finish(gone)
    gone.segment_bytes = 1 << 30
    for one in (1100, 1100):
        rows = [row(gone.next + i, payload=os.urandom(500).hex().encode()) for i in range(one)]
        data = b"".join(parts(taken_of(rows), gone.next, 1, zstd(), zstd(), True))
        gone.write([Encoded(gone.next, one, data, loose=True)])
    writer = Writer(str(tmp_path), "n2", boot="1")
    url = (tmp_path / "far").as_uri() if archive else ""
    told: list[str] = []
    work = Parts(
        Background(writer.folder, "zstd", told.append, url, writer.log),
        [Background(gone.folder, "zstd", told.append, url, writer.log, written=False)],
    )
    before = all_events(LogReader(str(tmp_path)))
    assert len(before) == 4400
    done(work)  # it is there
    assert (work.merged, work.archived) == (0, 0)
    gone.close()
    done(work)
    assert (work.merged, work.archived, work.waiting, told) == (2, int(archive), 0, [])
    assert all_events(LogReader(str(tmp_path))) == before
    assert not any(worth(os.path.join(gone.folder, one)) for one in segments_in(gone.folder))
    work.stop()
    back = Writer(str(tmp_path), NODE, boot="1")  # it comes back, and goes on
    assert (back.next, back.damage) == (4400, "")
    back.close()
    writer.close()


def test_14_few_payloads_that_were_left_are_not_worth_a_segment() -> None:
    held = Held().more(10, 3_000_000, False)
    assert not held.more(1, 900_000, True).worth and held.more(1, 1_000_000, True).worth
    assert not Held().worth and not held.worth


@pytest.mark.parametrize("archive", [False, True])
def test_14_a_segment_is_merged_in_a_quiet_moment_and_at_once_before_it_is_archived(
    tmp_path: Path, archive: bool
) -> None:
    writer = loose(tmp_path)
    work = Background(
        writer.folder,
        "zstd",
        lambda why: None,
        (tmp_path / "far").as_uri() if archive else "",
    )
    writer.closed = work.closed
    finish(writer)
    assert work.waiting == 1
    work.step(quiet=False)
    assert work.busy is archive and work.waiting == 1
    if not archive:
        work.step(quiet=True)
        assert work.busy
    work.stop()
    writer.close()


@pytest.mark.parametrize("status", [1, -9])
def test_a_child_that_fails_is_told(tmp_path: Path, status: int) -> None:
    told: list[str] = []
    work = Background(str(tmp_path), "zstd", told.append)
    segment = tmp_path / "a.rows"
    segment.write_bytes(b"")
    work._at = str(segment)
    work._finish(status)
    assert told == [f"a.rows could not be merged: status {status}"]
    segment.unlink()  # retention was quicker: nothing is wrong
    work._finish(status)
    assert len(told) == 1


def test_what_could_not_be_merged_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that was full; and then it is told that it is well again."""
    writer = loose(tmp_path)
    name = finish(writer)
    told: list[str] = []
    work = Background(writer.folder, "zstd", told.append)
    monkeypatch.setattr(background, "MERGE_AGAIN", 0.0)
    os.symlink("/dev/full", f"{name}.merged")
    done(work)
    why, well = told
    assert "could not be merged" in why and "No space left on device" in why and well == ""
    assert work.merged == 1 and not worth(name)
    writer.close()
