"""The log on disk: dense offsets, torn tails, segments, and readers that never miss an event.

Counted against what was written, never against what a reader says of itself.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.log.blocks import Corrupt, encode_gap
from mqttd.pipeline.log.check import check
from mqttd.pipeline.log.files import (
    LOG_FILE,
    read_json,
    segment_inodes,
    segment_name,
    segments_in,
    write_json,
)
from mqttd.pipeline.log.groups import commit_group
from mqttd.pipeline.log.reader import (
    Bounds,
    DataLoss,
    LogReader,
    check_cover,
    events,
    find_time,
    holes,
    runs_of,
    salvage,
    split,
)
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.scan import Harm, walk
from mqttd.pipeline.log.segments import LOOK_AGAIN, SETTLED, Folder
from mqttd.pipeline.log.writer import RESERVE, Encoded, Writer
from tests.unit.pipeline.logs import NODE, START, all_events, block, fill, offsets, written


def segment(path: Path, number: int = -1) -> Path:
    return path / NODE / segments_in(str(path / NODE))[number]


def test_a_reader_gets_every_event_in_order(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    assert len(segments_in(str(tmp_path / NODE))) > 3
    found = all_events(LogReader(str(tmp_path)))
    assert offsets(found) == list(range(300))
    assert [event.payload for event in found] == [b"%d" % i for i in range(300)]


def test_offsets_go_on_after_a_restart(tmp_path: Path) -> None:
    for _ in range(3):
        written(tmp_path, 2)
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(60))


def test_two_writers_cannot_share_a_node(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    with pytest.raises(BlockingIOError, match="another process writes this event log"):
        Writer(str(tmp_path), NODE)
    other = Writer(str(tmp_path), "w2")
    fill(other, 1)
    fill(writer, 2)
    assert LogReader(str(tmp_path)).bounds() == {NODE: Bounds(0, 20), "w2": Bounds(0, 10)}
    writer.close()
    other.close()


@pytest.mark.parametrize("base", ["99999999999999999999", "00000000001000000000"])
@pytest.mark.parametrize("copied", [False, True])
def test_what_has_the_name_of_no_offset_is_set_aside(
    tmp_path: Path, base: str, copied: bool
) -> None:
    written(tmp_path)
    name = f"{base}.events"
    data = segment(tmp_path).read_bytes() if copied else b""
    (tmp_path / NODE / name).write_bytes(data)
    writer = Writer(str(tmp_path), NODE)
    assert writer.damage == f"{name} is no segment of it, and kept as {name}.damaged-1"
    assert (writer.set_aside, writer.next) == (1, 100)
    assert (tmp_path / NODE / f"{name}.damaged-1").read_bytes() == data
    fill(writer, 1)
    writer.close()
    found = all_events(LogReader(str(tmp_path)))
    assert offsets(found) == list(range(110)) and not any(event.lost for event in found)


def test_a_number_that_is_no_offset_is_no_segment_while_the_log_is_written(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1)
    (tmp_path / NODE / "99999999999999999999.events").touch()
    reader = LogReader(str(tmp_path))
    assert reader.bounds() == {NODE: Bounds(0, 10)}
    fill(writer, 1)
    writer.close()
    assert offsets(all_events(reader)) == list(range(20))


def test_what_was_written_beyond_what_is_noted_is_no_stranger(tmp_path: Path) -> None:
    written(tmp_path)
    noted = {name: (tmp_path / name).read_bytes() for name in ("log.json", f"{NODE}/state.json")}
    writer = Writer(str(tmp_path), NODE)
    base = 1 << 22
    writer._leap(base, "a test")
    writer._roll()
    fill(writer, 1)
    writer.close()
    for name, data in noted.items():
        (tmp_path / name).write_bytes(data)
    writer = Writer(str(tmp_path), NODE)
    assert writer.set_aside == 0 and writer.next >= base + 10
    writer.close()


@pytest.mark.parametrize("much", [False, True])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("first", [NODE, "w2"])
def test_an_older_copy_gives_no_offset_again(
    tmp_path: Path, running: bool, first: str, much: bool
) -> None:
    """Of each of its nodes, whichever begins first; copied from a log that was closed or open."""
    log, copy = tmp_path / "events", tmp_path / "copy"
    for node in (NODE, "w2"):
        writer = Writer(str(log), node)
        fill(writer, 1)
        if running:
            shutil.copytree(log, copy, dirs_exist_ok=True)
        writer.close()
    if not running:
        shutil.copytree(log, copy)
    last = {}
    for node in (NODE, "w2"):
        writer = Writer(str(log), node)
        if much:
            writer._leap(3 * RESERVE, "a test")
        fill(writer, 1)
        last[node] = writer.next
        writer.close()
    shutil.rmtree(log)
    copy.rename(log)
    for node in sorted(last, key=lambda each: each != first):
        writer = Writer(str(log), node)
        assert writer.damage == "an older copy of the log was put back"
        assert writer.next >= last[node]
        fill(writer, 1)
        writer.close()
    found = all_events(LogReader(str(log)))
    assert [event for event in found if event.lost]
    assert offsets(found) == sorted(set(offsets(found)))
    writer = Writer(str(log), NODE)
    assert not writer.damage
    writer.close()


@pytest.mark.parametrize("what", ["owner", "inode"])
def test_a_log_that_is_no_copy_leaps_nowhere(tmp_path: Path, what: str) -> None:
    """Though its owner is set anew, or files have other numbers after a mount."""
    written(tmp_path / "events", 1)
    beside = tmp_path / "events.reserved.json"
    if what == "owner":
        os.chown(tmp_path / "events" / NODE / "born", os.getuid(), os.getgid())
    else:
        found = read_json(str(beside))
        found["nodes"][NODE][1] += 1
        write_json(str(beside), found)
    written(tmp_path / "events", 1)
    assert offsets(all_events(LogReader(str(tmp_path / "events")))) == list(range(20))


def test_what_is_beside_another_log_means_nothing(tmp_path: Path) -> None:
    written(tmp_path / "events", 5)
    shutil.rmtree(tmp_path / "events")
    written(tmp_path / "events", 1)
    assert offsets(all_events(LogReader(str(tmp_path / "events")))) == list(range(10))
    shutil.rmtree(tmp_path / "events")
    (tmp_path / "events.reserved.json").write_text("[" * 100_000)
    written(tmp_path / "events", 1)
    assert offsets(all_events(LogReader(str(tmp_path / "events")))) == list(range(10))


# -- torn tails, and damage (fuzz/event_log.py does this and much more at random)


def killed(path: Path, blocks: int = 5, boot: str | None = "monday") -> list[int]:
    """The log of a writer that was killed; where its blocks end."""
    writer = Writer(str(path), NODE, boot=boot)
    ends = [0]
    for _ in range(blocks):
        fill(writer, 1)
        ends.append(writer._size)
    writer._let_go()  # a kill -9: no close
    return ends


def foreign(block: bytes) -> bytes:
    """It, in a format that is to come."""
    made = bytearray(block)
    made[4] = 4
    made[12:16] = bytes(4)
    made[12:16] = zlib.crc32(made).to_bytes(4, "little")
    return bytes(made)


@pytest.mark.parametrize("seed", range(40))
def test_a_torn_tail_is_cut_to_the_last_whole_block(tmp_path: Path, seed: int) -> None:
    """A block that was being written, zeros or garbage: nothing valid follows."""
    chance = random.Random(seed)
    end = killed(tmp_path)[-1]
    with segment(tmp_path).open("r+b") as file:
        file.seek(end)
        data = block(50).data
        cut = chance.randrange(1, len(data))
        file.write([data[:cut], chance.randbytes(cut), bytes(cut)][seed % 3])
    assert LogReader(str(tmp_path)).bounds()[NODE].latest == 50
    writer = Writer(str(tmp_path), NODE, boot="monday")
    assert (writer.next, writer.cut, writer.damage) == (50, cut, "")
    fill(writer, 3)
    writer.close()
    found = all_events(LogReader(str(tmp_path)))
    assert offsets(found) == list(range(80))
    assert [event.payload for event in found] == [b"%d" % i for i in range(80)]


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_flipped_bit_costs_its_block_and_a_gap_counts_it(tmp_path: Path, where: str) -> None:
    ends = killed(tmp_path)
    before = bytearray(segment(tmp_path).read_bytes())
    before[ends[2] + (20 if where == "header" else 100)] ^= 4
    segment(tmp_path).write_bytes(before)
    live = LogReader(str(tmp_path))
    assert live.bounds()[NODE] == (0, 50)  # whoever reads goes on behind it
    assert offsets(list(events(live, NODE, 0, 50, whole=False))) == [*range(21), *range(30, 50)]
    writer = Writer(str(tmp_path), NODE, boot="monday")
    assert writer.next == 10 + RESERVE and writer.set_aside == 1 and "damaged" in writer.damage
    (kept,) = (tmp_path / NODE).glob("*.damaged-*")
    assert kept.read_bytes() == before
    fill(writer, 2)
    writer.close()
    found = all_events(LogReader(str(tmp_path)))
    assert offsets(found) == [*range(21), *range(30, 51), *range(writer.next - 20, writer.next)]
    assert (found[20].event, found[20].lost) == ("log.gap", 10)
    assert found[20].reason == f"10 events lost: damaged; the file is kept as {kept.name}"
    assert found[41].reason.startswith(f"{RESERVE - 40} offsets skipped: ")  # none is lost there


def test_14_a_writer_that_is_killed_before_its_first_event_is_no_damage(tmp_path: Path) -> None:
    for _ in range(3):
        writer = Writer(str(tmp_path), NODE, boot="monday")
        assert (writer.next, writer.damage, writer.set_aside) == (0, "", 0)
        writer._let_go()
    writer = Writer(str(tmp_path), NODE, boot="monday")
    fill(writer, 2)
    writer.close()
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(20))


def test_14_a_copied_header_that_ends_in_a_payload_hides_no_block() -> None:
    """The end that it names looks like a block of another format, and is none."""
    first, last = block(0, 60).data, block(60, 3, payload=b"MQEB" * 9).data
    inside = last.index(b"MQEBMQEB")
    data = first + first[:64] + bytes(len(first) - inside - 64) + last
    found = list(walk(lambda at, size: data[at : at + size], 0, len(data), True))
    assert [one.base for one in found if not isinstance(one, Harm)] == [0, 60]


def test_what_is_cut_off_is_counted_and_its_offsets_are_not_given_again(tmp_path: Path) -> None:
    ends = killed(tmp_path)
    os.truncate(segment(tmp_path), ends[3] + 7)
    writer = Writer(str(tmp_path), NODE, boot="monday")
    assert writer.next == 10 + RESERVE
    writer.close()
    gap, skipped = all_events(LogReader(str(tmp_path)))[30:]
    assert (gap.seq, gap.lost, skipped.seq) == (30, 20, 50)


def test_the_end_that_was_noted_at_the_close_is_honoured(tmp_path: Path) -> None:
    written(tmp_path, 5)
    os.truncate(segment(tmp_path), len(block(0).data) + 30)
    writer = Writer(str(tmp_path), NODE, boot="another")
    assert writer.next == 10 + RESERVE
    writer.close()
    gap, skipped = all_events(LogReader(str(tmp_path)))[10:]
    assert (gap.seq, gap.lost, skipped.seq) == (10, 40, 50)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_who_reads_a_log_whose_end_is_gone_is_told(tmp_path: Path, left: int) -> None:
    written(tmp_path, 5)
    os.truncate(segment(tmp_path), left * len(block(0).data) + 30)
    log = LogReader(str(tmp_path))
    assert log.bounds()[NODE] == (0, 50)
    with pytest.raises(DataLoss, match=rf"events {10 * left} to 49 .*{50 - 10 * left} events"):
        all_events(log)
    *there, gap = events(log, NODE, 0, 50, whole=False)
    assert offsets(there) == list(range(10 * left))
    assert (gap.event, gap.seq, gap.lost) == ("log.gap", 10 * left, 50 - 10 * left)


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_who_reads_the_log_of_a_writer_that_was_killed_is_told_too(
    tmp_path: Path, harm: str
) -> None:
    """What it had written stands in its mark, though no block follows what is harmed."""
    ends = killed(tmp_path, boot=None)
    if harm == "flipped":
        data = bytearray(segment(tmp_path).read_bytes())
        data[ends[4] + 100] ^= 4
        segment(tmp_path).write_bytes(data)
    else:
        os.truncate(segment(tmp_path), ends[4] + (30 if harm == "cut" else 0))
    log = LogReader(str(tmp_path))
    assert log.bounds()[NODE] == (0, 50)
    with pytest.raises(DataLoss, match=r"events 40 to 49 .*10 events"):
        all_events(log)
    *there, gap = events(log, NODE, 0, 50, whole=False)
    assert offsets(there) == list(range(40))
    assert (gap.event, gap.seq, gap.lost) == ("log.gap", 40, 10)
    Writer(str(tmp_path), NODE).close()  # which puts a gap there
    assert offsets(all_events(LogReader(str(tmp_path))))[:41] == list(range(41))


def test_what_a_machine_that_stopped_has_lost_is_no_loss_to_a_reader(tmp_path: Path) -> None:
    ends = killed(tmp_path)  # at another start of the machine
    os.truncate(segment(tmp_path), ends[4])
    assert LogReader(str(tmp_path)).bounds()[NODE] == (0, 40)


@pytest.mark.parametrize("file", ["state.json", "lock"])
def test_without_its_notes_the_log_goes_on_behind_what_was_reserved(
    tmp_path: Path, file: str
) -> None:
    killed(tmp_path)
    (tmp_path / NODE / file).unlink()
    writer = Writer(str(tmp_path), NODE, boot="monday")
    assert writer.next == 10 + RESERVE and file in writer.damage
    writer.close()
    assert all_events(LogReader(str(tmp_path)))[50].lost == RESERVE - 40


def test_a_node_whose_folder_is_gone_gives_no_offset_twice(tmp_path: Path) -> None:
    log = Writer(str(tmp_path), NODE)
    fill(log, 3)
    log.close()
    shutil.rmtree(tmp_path / NODE)
    writer = Writer(str(tmp_path), NODE)
    assert writer.log == log.log and writer.next >= 30
    writer.close()


def test_a_log_json_that_is_gone_or_harmed_is_made_again(tmp_path: Path) -> None:
    log = Writer(str(tmp_path), NODE)
    log.close()
    for harm in (b"", b'{"format": 1, "log": "another", "reserved": {}, "crc": 1}'):
        (tmp_path / LOG_FILE).write_bytes(harm)
        assert LogReader(str(tmp_path)).log_id == log.log
        Writer(str(tmp_path), NODE).close()
        assert read_json(str(tmp_path / LOG_FILE))["log"] == log.log


def test_a_format_that_is_not_known_is_refused_by_name_and_untouched(tmp_path: Path) -> None:
    ends = killed(tmp_path)
    data = bytearray(segment(tmp_path).read_bytes())
    data[ends[1] + 4] = 4
    segment(tmp_path).write_bytes(data)
    with pytest.raises(ValueError, match=f"{segment(tmp_path).name}.*format 4, this program"):
        Writer(str(tmp_path), NODE)
    assert segment(tmp_path).read_bytes() == data
    with pytest.raises(DataLoss, match=r"events 10 to 19 .*\(10 events; .*format 4, this program"):
        all_events(LogReader(str(tmp_path)))
    found = read_json(str(tmp_path / LOG_FILE))
    (tmp_path / LOG_FILE).write_text(json.dumps({**found, "format": 2}))
    for use in (LogReader, lambda path: Writer(path, NODE)):
        with pytest.raises(ValueError, match=r"log\.json: the log has format 2, this program"):
            use(str(tmp_path))


@pytest.mark.parametrize("boot", ["monday", None], ids=["copied", "here"])
def test_blocks_of_a_format_that_is_not_known_are_no_torn_tail(
    tmp_path: Path, boot: str | None
) -> None:
    """A log that had been copied to where an older program reads ended before them, silently."""
    ends = killed(tmp_path, boot=boot)
    data = bytearray(segment(tmp_path).read_bytes())
    for base, end in ((ends[3], ends[4]), (ends[4], ends[5])):
        data[base:end] = foreign(data[base:end])
    segment(tmp_path).write_bytes(data)
    log = LogReader(str(tmp_path))
    for _ in range(2):
        assert log.bounds()[NODE].latest == 50
    with pytest.raises(DataLoss, match=r"events 30 to 49 .*\(20 events; .*format 4, this program"):
        all_events(log)
    segment(tmp_path).write_bytes(data[: ends[5] - 1])  # the last one was being written
    assert LogReader(str(tmp_path)).bounds()[NODE].latest == (40 if boot else 50)


def test_a_payload_that_looks_like_a_block_of_another_format_is_none(tmp_path: Path) -> None:
    """The broker did not start, where the block with it was damaged: a client had chosen that."""
    writer = Writer(str(tmp_path), NODE)
    looks = b"MQEB" + bytes([38, 0, 0, 0, 2, 0, 0, 0]) + bytes(54)
    writer.write([block(0, 1, payload=looks + b"MQEB")])
    fill(writer, 1)
    writer._let_go()
    assert looks in segment(tmp_path).read_bytes()
    data = bytearray(segment(tmp_path).read_bytes())
    data[0] ^= 1
    segment(tmp_path).write_bytes(data)
    Writer(str(tmp_path), NODE).close()
    lost, *others = all_events(LogReader(str(tmp_path)))
    assert lost.event == "log.gap" and offsets(others)[:10] == list(range(1, 11))


def test_a_reader_that_runs_finds_a_format_that_is_not_known_in_place_of_a_block(
    tmp_path: Path,
) -> None:
    ends = killed(tmp_path)
    log = LogReader(str(tmp_path))
    log.bounds()
    data = bytearray(segment(tmp_path).read_bytes())
    data[ends[-2] :] = foreign(data[ends[-2] :])
    segment(tmp_path).write_bytes(data + b"MQEB and more")
    log.bounds()
    with pytest.raises(DataLoss, match=r"events 40 to 49 "):
        list(events(log, NODE, 0, 50))


def test_what_has_the_name_of_a_segment_and_is_no_file_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, 1)
    (tmp_path / NODE / segment_name(10**15)).mkdir()
    os.mkfifo(tmp_path / NODE / segment_name(10**16))
    written(tmp_path, 1)
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(20))


def test_a_folder_that_may_not_be_read_is_no_empty_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 1)
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if str(path).endswith(NODE):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(PermissionError, match=NODE):
        LogReader(str(tmp_path)).bounds()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_no_damage_is_silent(seed: int) -> None:
    """The short form of `python -m fuzz.event_log --seeds 20000`."""
    from fuzz.event_log import one

    one(seed)


def test_verify_tells_the_truth(tmp_path: Path) -> None:
    ends = killed(tmp_path)

    def told() -> list[str]:
        return [one.text for one in check(str(tmp_path)) if one.bad]

    assert told() == []
    with segment(tmp_path).open("ab") as file:
        file.write(b"MQEB and more")
    assert told() == [] and "13 bytes behind the last block" in list(check(str(tmp_path)))[-1].text
    data = bytearray(segment(tmp_path).read_bytes())
    data[ends[1] + 100] ^= 1
    segment(tmp_path).write_bytes(data)
    assert any("events 10 to 19 are missing (10 events)" in text for text in told())
    os.truncate(segment(tmp_path), ends[1])
    assert told() == [f"{NODE}: events 10 to 49 are missing at the end (40 events)"]
    segment(tmp_path).unlink()
    assert told() and not list(check(str(tmp_path)))[-1].text.endswith("are whole")


def test_a_power_cut_never_gives_an_offset_twice(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE, boot="monday")
    fill(writer, 5)
    size = writer._size
    fill(writer, 3)
    writer._let_go()
    # What the system had not written is gone; somebody had read it already.
    os.truncate(segment(tmp_path), size)
    writer = Writer(str(tmp_path), NODE, boot="tuesday")
    fill(writer, 1)
    writer.close()
    found = all_events(LogReader(str(tmp_path)))
    gap = found[50]
    assert (gap.event, gap.seq, gap.reason) == (
        "log.gap",
        50,
        f"{gap.lost} events lost: the machine stopped",
    )
    assert found[51].seq == 50 + gap.lost >= 80
    assert 10 + RESERVE == found[51].seq  # what the first write had reserved
    assert offsets(found[51:]) == list(range(found[51].seq, found[51].seq + 10))


def test_a_crash_of_the_process_alone_leaves_no_gap(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE, boot="monday")
    fill(writer, 5)
    writer._let_go()
    writer = Writer(str(tmp_path), NODE, boot="monday")
    fill(writer, 5)
    writer.close()
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(100))


def test_a_clean_stop_leaves_no_gap_whatever_the_machine_does_then(tmp_path: Path) -> None:
    for boot in ("monday", "tuesday"):
        writer = Writer(str(tmp_path), NODE, boot=boot)
        fill(writer, 5)
        writer.close()
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(100))


# -- readers beside a writer


def test_a_segment_indexed_while_partial_is_looked_at_again(tmp_path: Path) -> None:
    """The silent loss of the prototype: partial, then two rolls before the next refresh."""
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000)
    fill(writer, 1)
    reader = LogReader(str(tmp_path))
    assert reader.bounds()[NODE] == (0, 10)
    while len(segments_in(str(tmp_path / NODE))) < 5:
        fill(writer, 1)
    end = writer.next
    assert reader.bounds()[NODE] == (0, end)
    assert offsets(all_events(reader)) == list(range(end))
    writer.close()


@pytest.mark.parametrize("seed", range(10))
def test_rolls_between_refreshes_hide_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer(str(tmp_path), NODE, segment_bytes=3000)
    readers = [LogReader(str(tmp_path)), LogReader(str(tmp_path))]
    read = [0, 0]
    for _ in range(20):
        fill(writer, chance.randrange(12), chance.randrange(1, 30))
        i = chance.randrange(2)
        end = readers[i].bounds()[NODE].latest
        assert end == writer.next
        found = list(events(readers[i], NODE, read[i], end))
        assert offsets(found) == list(range(read[i], end))
        read[i] = end
    writer.close()


def test_a_folder_that_has_not_changed_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream with nothing to read asks all the time: with 10,000 segments it took 70 ms each."""
    listed: list[str] = []

    def listing(folder: str) -> list[tuple[str, int]]:
        listed.append(folder)
        return segment_inodes(folder)

    monkeypatch.setattr("mqttd.pipeline.log.segments.segment_inodes", listing)
    now = [0]
    writer = Writer(str(tmp_path), NODE, segment_bytes=3000)
    folder = Folder(str(tmp_path), NODE, lambda: now[0])

    def changed(at: int) -> None:
        """The folder has changed then, and not since."""
        now[0] = at
        os.utime(tmp_path / NODE, ns=(at, at))

    def seen() -> int:
        """How often the folder was listed to know how far the log goes."""
        before = len(listed)
        assert folder.refresh()[-1].end == writer.next
        return len(listed) - before

    fill(writer, 20)
    changed(SETTLED)
    assert [seen() for _ in range(3)] == [1, 1, 1]  # what has just changed may so once more
    now[0] += SETTLED
    assert [seen() for _ in range(3)] == [1, 0, 0]
    segments = len(segments_in(str(tmp_path / NODE)))
    while len(segments_in(str(tmp_path / NODE))) == segments:
        fill(writer, 1)
        rolled = len(segments_in(str(tmp_path / NODE))) > segments
        assert seen() == rolled
    changed(4 * SETTLED)
    now[0] += SETTLED
    assert [seen() for _ in range(2)] == [1, 0]
    folder.changes()  # a run was not as it was planned
    assert [seen() for _ in range(2)] == [1, 0]
    now[0] += LOOK_AGAIN  # a file system that notes no changes
    assert [seen() for _ in range(2)] == [1, 0]
    now[0] -= 1 + LOOK_AGAIN  # the clock was set
    assert seen() == 1
    writer.close()


def test_what_was_read_in_vain_is_looked_for_where_it_is(tmp_path: Path) -> None:
    """A file system may not note when a folder changes: here its time is set back."""
    written(tmp_path, 30, segment_bytes=4000)
    folder = tmp_path / NODE
    os.utime(folder, ns=(0, 0))
    reader = LogReader(str(tmp_path))
    bounds = reader.bounds()[NODE]
    (run, *_) = runs_of(reader.blocks(NODE, *bounds))
    names = segments_in(str(folder))
    data = (folder / names[0]).read_bytes()
    os.unlink(folder / names[0])
    (folder / names[0]).write_bytes(data)  # merged: the same events, in another file
    os.unlink(folder / names[1])
    os.utime(folder, ns=(0, 0))
    assert reader.bounds()[NODE] == bounds
    assert len(list(salvage(reader, run))) == len(list(split(data, run)))
    with pytest.raises(DataLoss):
        reader.read_run(runs_of(reader.blocks(NODE, *bounds))[1])
    reader.bounds()
    assert list(holes(reader.blocks(NODE, *bounds, whole=False), *bounds))


def test_a_block_that_is_half_written_is_not_there_yet(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1)
    reader = LogReader(str(tmp_path))
    data = block(10).data
    for cut in (1, 63, 64, len(data) - 1):
        os.pwrite(writer._fd, data[:cut], writer._size)
        assert reader.bounds()[NODE] == (0, 10)
    os.pwrite(writer._fd, data[:-20] + bytes(20), writer._size)  # its size, not yet its bytes
    assert reader.bounds()[NODE] == (0, 10)
    os.pwrite(writer._fd, data, writer._size)
    assert reader.bounds()[NODE] == (0, 20)
    writer._let_go()


def test_a_hole_is_data_loss_never_a_short_answer(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    names = segments_in(str(tmp_path / NODE))
    os.unlink(tmp_path / NODE / names[1])
    reader = LogReader(str(tmp_path))
    bounds = reader.bounds()[NODE]
    first, second = int(names[1][:20]), int(names[2][:20])
    with pytest.raises(DataLoss, match=f"events {first} to {second - 1} of node mqttd"):
        reader.blocks(NODE, *bounds)
    with pytest.raises(DataLoss):
        check_cover(reader.blocks(NODE, *bounds, whole=False), NODE, *bounds)
    assert reader.blocks(NODE, second, bounds.latest)


def test_a_segment_deleted_between_plan_and_read_is_data_loss(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    reader = LogReader(str(tmp_path))
    bounds = reader.bounds()[NODE]
    runs = runs_of(reader.blocks(NODE, *bounds))
    os.unlink(segment(tmp_path, 0))
    with pytest.raises(DataLoss, match=r"events 0 to \d+ of node mqttd were deleted"):
        reader.read_run(runs[0])


def test_another_block_in_the_planned_place_is_no_answer(tmp_path: Path) -> None:
    written(tmp_path, 3)
    reader = LogReader(str(tmp_path))
    (run,) = runs_of(reader.blocks(NODE, *reader.bounds()[NODE]))
    data = reader.read_run(run)
    assert len(list(split(data, run))) == 3
    harmed = bytearray(data)
    harmed[200] ^= 1
    with pytest.raises(Corrupt, match="wrong checksum, events 0 to 9"):
        list(split(harmed, run))
    with pytest.raises(Corrupt, match="event 5 of node mqttd expected, 0 found"):
        list(split(data, run._replace(base=5)))
    # The place is that of the block, not of the run; a broker does not tell it.
    second = reader.blocks(NODE, 10, 20)[0]
    for at, wrong in (
        (0, "a harmed header"),
        (200, "wrong checksum, events 10 to 19 of node mqtt"),
    ):
        harmed = bytearray(data)
        harmed[second.position + 16 + at] ^= 1
        with pytest.raises(Corrupt, match=rf"^{second.segment}:{second.position}: {wrong}"):
            list(split(harmed, run))
        with pytest.raises(Corrupt, match=f"^{wrong}"):
            list(split(harmed, run._replace(segment="", position=0)))
    with pytest.raises(Corrupt, match="events up to 39"):
        list(split(data, run._replace(end=40)))


def test_a_log_that_was_made_anew_is_another_log(tmp_path: Path) -> None:
    written(tmp_path / "log", 3)
    reader = LogReader(str(tmp_path / "log"))
    reader.bounds()
    shutil.rmtree(tmp_path / "log")
    written(tmp_path / "log", 5)
    with pytest.raises(DataLoss, match="made anew"):
        reader.bounds()
    assert LogReader(str(tmp_path / "log")).log_id != reader.log_id


def test_a_directory_without_a_log_is_told(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    for path in (tmp_path, tmp_path / "a-file"):
        with pytest.raises(FileNotFoundError, match=r"no event log here .*events$"):
            LogReader(str(path))
    with pytest.raises(FileNotFoundError, match="between several is a semicolon"):
        LogReader(f"{tmp_path},{tmp_path}")


def test_runs_are_blocks_side_by_side(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    reader = LogReader(str(tmp_path))
    blocks = reader.blocks(NODE, *reader.bounds()[NODE])
    assert len(runs_of(blocks)) == len(segments_in(str(tmp_path / NODE)))
    assert len(runs_of(blocks, 1)) == 30
    some = runs_of([*blocks[:2], *blocks[3:4]])
    assert [(run.base, run.end) for run in some] == [(0, 20), (30, 40)]


def test_a_time_finds_its_offset(tmp_path: Path) -> None:
    written(tmp_path, 10)
    reader = LogReader(str(tmp_path))
    assert find_time(reader, NODE, 0) == 0
    assert find_time(reader, NODE, START + 37) == 37
    assert find_time(reader, NODE, START + 1000) == 100


def test_a_gap_is_in_the_range_of_its_first_offset(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1)
    writer.write([Encoded(10, 50, encode_gap(10, 50, START, "queue full"))])
    writer.write([block(60)])
    writer.close()
    reader = LogReader(str(tmp_path))
    assert reader.bounds()[NODE] == (0, 70)
    assert offsets(list(events(reader, NODE, 0, 30))) == list(range(11))
    assert offsets(list(events(reader, NODE, 30, 70))) == list(range(60, 70))


# -- a disk that fails


class Disk:
    """Stands for `os.writev`: takes so many bytes, then it is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.real = os.writev

    def writev(self, fd: int, buffers: list[Any]) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        return self.real(fd, [data])


def in_parts(whole: Encoded, size: int) -> Encoded:
    """The same block in parts of `size` bytes, some of them empty."""
    data = whole.data
    more = [data[at : at + size] for at in range(size, len(data), size)]
    return whole._replace(data=data[:size], more=[b"", *more, b""])


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_14_blocks_in_parts_are_written_as_they_follow_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also where the kernel takes a part of what it is given, and no more than 1,024 at once."""
    blocks = [block(at) for at in range(0, 100, 10)]
    real = os.writev
    monkeypatch.setattr(
        os, "writev", lambda fd, buffers: real(fd, [b"".join(buffers)[: max(len(buffers) * 2, 7)]])
    )
    writer = Writer(str(tmp_path / "less"), NODE)
    writer.write([in_parts(one, size) for one in blocks])
    writer.close()
    monkeypatch.undo()
    writer = Writer(str(tmp_path / "all"), NODE)
    writer.write([in_parts(one, size) for one in blocks])
    writer.close()
    for path in (tmp_path / "less", tmp_path / "all"):
        assert segment(path).read_bytes() == b"".join(one.data for one in blocks)


@pytest.mark.parametrize("size", [0, 1, 64])
def test_a_full_disk_leaves_whole_blocks_and_an_end_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    writer = Writer(str(tmp_path), NODE)
    blocks = [block(at) for at in (0, 10, 20, 30)]
    whole = len(blocks[0].data) + len(blocks[1].data)
    if size:
        blocks = [in_parts(one, size) for one in blocks]
    disk = Disk(whole + 100)
    monkeypatch.setattr(os, "writev", disk.writev)
    with pytest.raises(OSError, match="No space left"):
        writer.write(blocks)
    assert writer.next == 20
    assert os.path.getsize(segment(tmp_path)) == whole
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(20))
    disk.room = 1 << 20
    writer.write(blocks[2:])
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(40))
    writer.close()


def test_a_block_with_the_wrong_offset_is_refused(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    with pytest.raises(ValueError, match="block at 5, expected 0"):
        writer.write([block(5)])
    writer.close()


# -- segments and retention


def test_a_segment_ends_when_it_is_old(tmp_path: Path) -> None:
    now = [1000.0]
    writer = Writer(str(tmp_path), NODE, segment_seconds=60, clock=lambda: now[0])
    fill(writer, 2)
    now[0] += 61
    fill(writer, 1)
    assert len(segments_in(str(tmp_path / NODE))) == 2
    now[0] += 61
    writer.clean_up()  # nothing is written, retention by age must not wait for it
    assert len(segments_in(str(tmp_path / NODE))) == 3
    writer.close()
    assert offsets(all_events(LogReader(str(tmp_path)))) == list(range(30))


def test_a_log_stays_within_its_size(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=Retention(bytes=20_000))
    fill(writer, 100)
    sizes = [os.path.getsize(tmp_path / NODE / name) for name in segments_in(str(tmp_path / NODE))]
    assert sum(sizes) <= 20_000 + 5000
    reader = LogReader(str(tmp_path))
    bounds = reader.bounds()[NODE]
    assert bounds.earliest > 0 and bounds.latest == 1000
    assert writer.deleted_segments and writer.deleted_bytes
    assert offsets(all_events(reader)) == list(range(*bounds))
    writer.close()


def test_old_segments_go_and_the_newest_stays(tmp_path: Path) -> None:
    now = [2_000_000_000.0]
    writer = Writer(str(tmp_path), NODE, 4000, retention=Retention(0, 3600.0), clock=lambda: now[0])
    fill(writer, 30)
    for name in segments_in(str(tmp_path / NODE)):
        os.utime(tmp_path / NODE / name, (now[0] - 4000, now[0] - 4000))
    writer._born = now[0]
    writer.clean_up()
    assert len(segments_in(str(tmp_path / NODE))) == 1
    writer.close()


def test_what_nobody_writes_any_more_is_cleaned_up_as_well(tmp_path: Path) -> None:
    for name in ("n-worker-3", "n-worker-4"):
        left = Writer(str(tmp_path), name, segment_bytes=4000)
        fill(left, 100)
        left.close()
    writer = Writer(str(tmp_path), "n-worker-1", retention=Retention(bytes=20_000))
    writer.left = {"n-worker-3": lambda end: True, "n-worker-4": lambda end: end <= 500}
    writer.clean_up()
    bounds = LogReader(str(tmp_path)).bounds()
    assert 500 < bounds["n-worker-3"].earliest < bounds["n-worker-3"].latest == 1000
    assert 0 < bounds["n-worker-4"].earliest <= 500  # the rest is not in the archive
    writer.close()


def test_a_segment_is_closed_when_it_has_many_blocks_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new reader looks at each block of the newest one."""
    monkeypatch.setattr("mqttd.pipeline.log.writer.MOST_BLOCKS", 4)
    written(tmp_path, 3)
    writer = Writer(str(tmp_path), NODE, segment_seconds=1e12)
    fill(writer, 3)
    names = segments_in(str(tmp_path / NODE))
    assert [int(name.partition(".")[0]) for name in names] == [0, 40]
    writer.close()


def test_a_group_keeps_what_it_has_not_read_up_to_the_hard_cap(tmp_path: Path) -> None:
    limits = Retention(bytes=8000, held_bytes=40_000)
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=limits)
    commit_group(str(tmp_path), "etl", writer.log, {NODE: 50})
    fill(writer, 30)
    reader = LogReader(str(tmp_path))
    assert reader.bounds()[NODE].earliest <= 50
    fill(writer, 100)
    bounds = reader.bounds()[NODE]
    assert bounds.earliest > 50
    commit_group(str(tmp_path), "etl", writer.log, {NODE: bounds.latest})
    writer.clean_up()
    size = sum(f.stat().st_size for f in (tmp_path / NODE).glob("*.events"))
    assert size <= 8000 + 5000
    writer.close()


def test_a_group_that_is_gone_keeps_nothing(tmp_path: Path) -> None:
    limits = Retention(bytes=8000, held_bytes=1 << 30, group_seconds=-1)
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=limits)
    commit_group(str(tmp_path), "etl", writer.log, {NODE: 0})
    fill(writer, 40)
    assert LogReader(str(tmp_path)).bounds()[NODE].earliest > 0
    writer.close()


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 101])
def test_a_name_that_would_leave_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected letters"):
        commit_group(str(tmp_path), name, "log", {})
    with pytest.raises(ValueError, match="expected letters"):
        Writer(str(tmp_path), name)


def test_workers_that_start_together_make_one_log(tmp_path: Path) -> None:
    writers = [Writer(str(tmp_path), f"w{i}") for i in range(4)]
    assert len({writer.log for writer in writers}) == 1
    assert read_json(str(tmp_path / LOG_FILE))["log"] == writers[0].log
    assert sorted(os.listdir(tmp_path)) == [LOG_FILE, "w0", "w1", "w2", "w3"]
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("other", [False, True])
def test_a_log_that_is_taken_away_while_it_is_written_to_takes_nothing_more(
    tmp_path: Path, other: bool
) -> None:
    """Events went into files without a name, or as segments into the log of another writer."""
    log = tmp_path / "log"
    writer = Writer(str(log), NODE, segment_bytes=2000)
    fill(writer, 5)
    shutil.rmtree(log)
    written(log, 2, node=NODE) if other else None
    before = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    told = "another event log is in the place" if other else "was taken away .* reload spark"
    for _ in range(2):
        with pytest.raises(OSError, match=told):
            fill(writer, 1)
        with pytest.raises(OSError, match=told):
            writer.clean_up()
    assert writer.next == 50
    with pytest.raises(OSError, match=told):
        writer.close()
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == before
    written(log, 1)
    assert len(all_events(LogReader(str(log)))) == (30 if other else 10)


def test_a_segment_that_is_taken_away_is_followed_by_another_one(tmp_path: Path) -> None:
    """What came until the next look every few seconds went with it."""
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1)
    segment(tmp_path).unlink()
    fill(writer, 2)
    writer.close()
    with pytest.raises(DataLoss, match="events 0 to 9 of node mqttd"):
        all_events(LogReader(str(tmp_path)))
    found = list(events(LogReader(str(tmp_path)), NODE, 10, 30))
    assert offsets(found) == list(range(10, 30))
