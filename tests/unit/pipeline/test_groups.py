"""Consumer groups of the event log, and several queries that read as one."""

from __future__ import annotations

import argparse
import io
import os
import stat
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqttd.pipeline.log import groups as groups_module
from mqttd.pipeline.log.blocks import FLAG_DAMAGE, FLAG_SKIP, encode_gap
from mqttd.pipeline.log.groups import (
    MOST_BYTES,
    SILENT,
    commit_group,
    groups,
    readers,
    standing,
)
from mqttd.pipeline.log.reader import LogReader
from mqttd.pipeline.log.retention import Retention, slowest
from mqttd.pipeline.log.tools import run
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.unit.pipeline.logs import NODE, fill, written
from tests.unit.pipeline.test_source import stream

NOW = 1_800_000_000.0
EVER = Retention(group_seconds=1e12)


class Clock:
    """What the time is here."""

    def __init__(self) -> None:
        self.now = NOW

    def time(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(groups_module, "time", made)
    return made


def at(path: Path, clock: Clock) -> int | None:
    return slowest(standing(readers(str(path))).values(), "log", "n", EVER, clock.now)


def put(path: Path, reader: str, offset: int, stopped: bool = False) -> None:
    commit_group(str(path), "g", "log", {"n": offset}, stopped, reader)


def test_a_group_is_as_far_as_the_slowest_of_its_queries(tmp_path: Path, clock: Clock) -> None:
    put(tmp_path, "a", 10)
    put(tmp_path, "b", 500)
    for offset in range(600, 1000, 100):
        clock.now += 60
        put(tmp_path, "a", 20)  # alive, and slow
        put(tmp_path, "b", offset)
    assert at(tmp_path, clock) == 20
    clock.now += 10_000  # a batch that takes hours: it is not known whether it is still there
    put(tmp_path, "b", 2000)
    assert at(tmp_path, clock) == 20
    found = groups(str(tmp_path))["g"]
    assert (found["nodes"], found["readers"], found["stopped"]) == ({"n": 20}, 2, False)


def test_a_query_that_starts_again_takes_the_place_of_what_it_was(
    tmp_path: Path, clock: Clock
) -> None:
    put(tmp_path, "a", 100)  # killed
    clock.now += 30
    put(tmp_path, "b", 100)
    put(tmp_path, "b", 300)
    assert at(tmp_path, clock) == 100  # it may be alive yet
    clock.now += groups_module.SILENT
    put(tmp_path, "b", 400)
    assert at(tmp_path, clock) == 400
    put(tmp_path, "b", 450, stopped=True)
    clock.now += 86_400
    put(tmp_path, "c", 450)  # the next night
    assert list(readers(str(tmp_path))) == [("g", "c")]


def test_one_that_took_a_place_and_ended_soon_has_taken_it(tmp_path: Path, clock: Clock) -> None:
    """A nightly query that was killed once held everything until the next night."""
    put(tmp_path, "killed", 10)
    clock.now += 60
    put(tmp_path, "next", 10)
    put(tmp_path, "next", 500)
    put(tmp_path, "next", 500, stopped=True)
    assert at(tmp_path, clock) == 10  # it may be at a long batch
    assert not groups(str(tmp_path))["g"]["stopped"]
    clock.now += SILENT
    assert at(tmp_path, clock) == 500
    group = groups(str(tmp_path))["g"]
    assert (group["nodes"], group["stopped"], group["readers"]) == ({"n": 500}, True, 0)
    put(tmp_path, "killed", 20)  # it was alive
    assert at(tmp_path, clock) == 20


def test_what_dies_again_and_again_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    for life in range(50):
        put(tmp_path, f"r{life}", life)
        clock.now += 20
    clock.now += groups_module.SILENT
    put(tmp_path, "last", 50)
    assert list(readers(str(tmp_path))) == [("g", "last")]


def test_a_query_from_the_beginning_passes_what_was_before_it(tmp_path: Path, clock: Clock) -> None:
    put(tmp_path, "a", 100, stopped=True)
    put(tmp_path, "b", 0)
    assert at(tmp_path, clock) == 0
    put(tmp_path, "b", 99)
    assert len(readers(str(tmp_path))) == 2
    put(tmp_path, "b", 100)
    assert list(readers(str(tmp_path))) == [("g", "b")]


def test_one_that_is_down_is_waited_for_while_the_other_reads_on(
    tmp_path: Path, clock: Clock
) -> None:
    put(tmp_path, "a", 100)
    put(tmp_path, "b", 100)
    put(tmp_path, "a", 150, stopped=True)  # after b came
    clock.now += 3600
    put(tmp_path, "b", 5000)
    assert at(tmp_path, clock) == 150


def test_nodes_are_looked_at_one_by_one(tmp_path: Path, clock: Clock) -> None:
    commit_group(str(tmp_path), "g", "log", {"n": 5, "m": 90}, reader="a")
    commit_group(str(tmp_path), "g", "log", {"n": 50, "m": 9}, reader="b")
    assert groups(str(tmp_path))["g"]["nodes"] == {"m": 9, "n": 5}
    clock.now += 3600
    commit_group(str(tmp_path), "g", "log", {"n": 50, "m": 89}, reader="c")
    assert len(readers(str(tmp_path))) == 2  # b is passed, a is not


def test_a_clock_that_jumps_keeps_no_ghost(tmp_path: Path, clock: Clock) -> None:
    put(tmp_path, "a", 100)
    clock.now -= 7200
    put(tmp_path, "b", 100)
    assert list(readers(str(tmp_path))) == [("g", "b")]


def test_another_log_and_a_harmed_file_give_way(tmp_path: Path, clock: Clock) -> None:
    commit_group(str(tmp_path), "g", "made anew since", {"n": 10**6}, True, "a")
    put(tmp_path, "b", 10)
    assert list(readers(str(tmp_path))) == [("g", "b")]
    (tmp_path / "groups/g~b.json").write_text("{")
    assert at(tmp_path, clock) is None
    put(tmp_path, "c", 10)
    assert at(tmp_path, clock) == 10


NO_GROUPS = {
    "a directory": Path.mkdir,
    "a fifo": os.mkfifo,
    "a link to itself": lambda file: file.symlink_to(file.name),
    "an endless one": lambda file: file.symlink_to("/dev/zero"),
    "a socket": lambda file: os.mknod(file, stat.S_IFSOCK | 0o600),
    "a huge one": lambda file: file.write_bytes(b"") or os.truncate(file, 3 << 30),
    "a large one": lambda file: file.write_text('{"log": "' + "x" * MOST_BYTES + '"}'),
    "a deep one": lambda file: file.write_text("[" * 100_000),
    "no JSON": lambda file: file.write_bytes(b"\xff{" * 1000),
    "nothing in it": lambda file: file.write_text("{}"),
    "a list": lambda file: file.write_text("[]"),
    "no offset": lambda file: file.write_text('{"log": "log", "nodes": {"n": "q"}, "time": 1}'),
    "a large offset": lambda file: file.write_text(
        '{"log": "log", "nodes": {"n": 9223372036854775808}, "time": 1}'
    ),
    "no time": lambda file: file.write_text('{"log": "log", "nodes": {}, "time": 1e999}'),
    "no node": lambda file: file.write_text(
        '{"log": "log", "nodes": {"\\u001b[2J": 0}, "time": 1}'
    ),
    "no found": lambda file: file.write_text('{"log": "log", "nodes": {}, "time": 1, "found": 5}'),
}


@pytest.mark.parametrize("kind", NO_GROUPS)
def test_what_is_no_group_is_passed_over_and_named(tmp_path: Path, clock: Clock, kind: str) -> None:
    limits = Retention(bytes=8000, held_bytes=1 << 30)
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=limits)
    commit_group(str(tmp_path), "z", writer.log, {NODE: 200}, reader="a")
    NO_GROUPS[kind](tmp_path / "groups" / "x.json")
    fill(writer, 80)
    assert 0 < LogReader(str(tmp_path)).bounds()[NODE].earliest <= 200  # what z has not read stays
    (line,) = writer.skipped
    assert line.startswith("'x.json': ")
    writer.close()
    out = io.StringIO()
    assert run(argparse.Namespace(events_command="info"), str(tmp_path), out) == 0
    assert "group   z: read to mqttd 200" in out.getvalue()
    assert "skipped 'x.json': " in out.getvalue()
    commit_group(str(tmp_path), "x", writer.log, {NODE: 1}, reader="b")


def test_many_files_and_names_of_no_group_cost_a_bounded_time(tmp_path: Path, clock: Clock) -> None:
    put(tmp_path, "a", 7)
    folder = tmp_path / "groups"
    (folder / "\x1b[2J.json").write_text("{}")
    for i in range(groups_module.MOST + 20):
        (folder / f"n{i}.json").write_text("{}")
    lines: list[str] = []
    assert list(readers(str(tmp_path), skipped=lines)) == [("g", "a")]
    assert len(lines) == groups_module.MOST + 21 and not any("\x1b" in line for line in lines)
    assert sum("too many files" in line for line in lines) == 21
    for i in range(50):
        (folder / f"large{i}.json").write_text(" " * MOST_BYTES)
    assert sum("too large together" in line for line in _skipped(tmp_path)) >= 20
    for i in range(groups_module.MOST_NAMES):
        (folder / f"t{i}").touch()
    assert "more than 1000 files" in _skipped(tmp_path)[0]


def _skipped(path: Path) -> list[str]:
    lines: list[str] = []
    readers(str(path), skipped=lines)
    return lines


def test_a_folder_of_groups_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    writer = Writer(
        str(tmp_path), NODE, segment_bytes=4000, retention=Retention(bytes=8000, held_bytes=1 << 30)
    )
    (tmp_path / "groups").write_text("x")
    fill(writer, 80)
    writer.close()
    assert LogReader(str(tmp_path)).bounds()[NODE].earliest > 0
    assert writer.skipped == ["groups: Not a directory"]


def test_a_link_beside_leads_no_writing_elsewhere(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "groups").mkdir()
    (tmp_path / "conf").write_text("mine")
    (tmp_path / "groups/g~a.json.new").symlink_to("../conf")
    put(tmp_path, "a", 1)
    assert (tmp_path / "conf").read_text() == "mine" and at(tmp_path, clock) == 1
    os.mkfifo(tmp_path / "groups/g~a.json.new")
    put(tmp_path, "a", 2)
    assert at(tmp_path, clock) == 2


@pytest.mark.parametrize("name", ["../x", "a~b", "x" * 41, "a.b"])
def test_a_reader_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected letters and digits"):
        put(tmp_path, name, 0)


def test_nothing_is_deleted_that_one_of_two_queries_has_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = Retention(bytes=8000, held_bytes=1 << 30)
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=limits)
    fill(writer, 2)
    slow = stream(tmp_path, startingOffsets="earliest", groupId="g")
    fast = stream(tmp_path, startingOffsets="earliest", groupId="g")
    first, last = slow.initialOffset(), fast.initialOffset()
    first = slow.latestOffset(first, ReadMaxRows(5))
    slow.commit(first)
    for _ in range(40):
        fill(writer, 1)
        last = fast.latestOffset(last, ReadAllAvailable())
        fast.commit(last)
    writer.clean_up()
    bounds = LogReader(str(tmp_path)).bounds()[NODE]
    assert bounds.earliest <= 5 < bounds.latest == last["nodes"][NODE]
    slow.partitions(first, slow.latestOffset(first, ReadAllAvailable()))  # no DataLoss
    assert run(argparse.Namespace(events_command="info"), str(tmp_path)) == 0
    assert "read to mqttd 5 by the slowest of 2 queries" in capsys.readouterr().out
    slow.commit(slow.latestOffset(first, ReadAllAvailable()))
    writer.clean_up()
    assert LogReader(str(tmp_path)).bounds()[NODE].earliest > 5
    writer.close()


def test_one_log_has_one_group_without_a_name_for_its_reader(tmp_path: Path) -> None:
    log = LogReader(str(written(tmp_path, 1)))
    log.commit("old", {NODE: 3})
    log.commit("old", {NODE: 2})
    assert os.listdir(tmp_path / "groups") == ["old.json"]
    assert groups(str(tmp_path))["old"]["nodes"] == {NODE: 2}


@pytest.mark.parametrize("kind", [0, FLAG_SKIP, FLAG_DAMAGE])
def test_a_group_is_behind_by_events_that_there_are(tmp_path: Path, kind: int) -> None:
    """A start after a power cut skips the offsets that may have been given: nobody is behind."""
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 1)
    gap = encode_gap(10, 5_000, 1, "skipped", kind=kind)
    writer.write([Encoded(10, 5_000, gap, gap=True)])
    fill(writer, 1)
    writer.close()
    for read, behind in ((0, 20), (4, 16), (10, 10), (3_000, 10), (5_013, 7), (5_020, 0)):
        LogReader(str(tmp_path)).commit(f"g{read}", {NODE: read})
        out = io.StringIO()
        assert run(argparse.Namespace(events_command="info"), str(tmp_path), out) == 0
        assert f"group   g{read}: read to mqttd {read}; {behind} behind\n" in out.getvalue()


def test_a_reader_that_has_seen_enough_is_no_error_of_the_log(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    options = argparse.Namespace(events_command="info", json=False)
    with pytest.raises(BrokenPipeError):
        run(options, str(written(tmp_path)), Closed())
