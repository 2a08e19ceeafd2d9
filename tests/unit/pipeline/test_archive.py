"""Finished segments elsewhere: what is deleted here is read there, as one log."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mqttd.pipeline.log.archive import Archive, ArchivedLog, main
from mqttd.pipeline.log.background import Background
from mqttd.pipeline.log.blocks import Block, encode_gap
from mqttd.pipeline.log.child import PARENT
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.merge import merge
from mqttd.pipeline.log.reader import DataLoss, LogReader, Run, events, runs_of, salvage
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.support.needs import missing
from tests.support.waiting import until as wait_for
from tests.unit.pipeline.logs import NODE, all_events, fill
from tests.unit.pipeline.test_source import batch, rows, seqs, stream


def segments(path: Path, count: int = 4) -> Writer:
    """A log of some finished segments and one that is written to; a gap in the second."""
    writer = Writer(str(path / "log"), NODE, retention=Retention(bytes=1))
    for i in range(count):
        writer.may_go = lambda end: False
        fill(writer, 3)
        if i == 1:
            writer.write([Encoded(writer.next, 5, encode_gap(writer.next, 5, 1, "queue full"))])
        writer._roll()
    fill(writer, 1)
    return writer


def finished(writer: Writer) -> list[tuple[str, int]]:
    """The finished segments: path, and the offset behind them."""
    names = segments_in(writer.folder)
    return [
        (os.path.join(writer.folder, name), int(following[:20]))
        for name, following in zip(names, names[1:], strict=False)
    ]


def test_what_is_deleted_here_is_read_there(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    near = LogReader(str(tmp_path / "log"))
    before = all_events(near)
    ends = finished(writer)
    for path, end in ends[:3]:
        assert main([url, writer.log, NODE, path, str(end)]) == 0
    log = ArchivedLog(near, url)
    log.bounds()
    planned = log.blocks(NODE, 0, before[-1].seq + 1)
    # Retention deletes what is safe there, and not what is not.
    writer.may_go = lambda end: end <= ends[2][1]
    writer.clean_up()
    assert segments_in(writer.folder)[0] == os.path.basename(ends[3][0])
    for reader in (log, ArchivedLog(LogReader(str(tmp_path / "log")), url)):
        assert reader.bounds()[NODE] == (0, before[-1].seq + 1)
        assert list(events(reader, NODE, 0, before[-1].seq + 1)) == before
        assert list(events(reader, NODE, 25, 77)) == [e for e in before if 25 <= e.seq < 77]
    assert len(log.blocks(NODE, 0, before[-1].seq + 1)) == len(planned)
    # A query reads both as one, in a batch and as a stream.
    wanted = [event.seq for event in before]
    reader = batch(tmp_path / "log", archive=url)
    assert seqs(rows(reader, reader.partitions())) == wanted
    reader = batch(tmp_path / "log")
    assert seqs(rows(reader, reader.partitions())) == [n for n in wanted if n >= ends[2][1]]
    live = stream(tmp_path / "log", archive=url, startingOffsets="earliest")
    start = live.initialOffset()
    end = live.latestOffset(start, live.getDefaultReadLimit())
    assert seqs(rows(live, live.partitions(start, end))) == wanted
    writer.close()


def test_a_hole_in_the_archive_is_not_passed_over(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    ends = finished(writer)
    for path, end in (ends[0], ends[2], ends[3]):
        assert main([url, writer.log, NODE, path, str(end)]) == 0
    writer.may_go = lambda end: True
    writer.clean_up()
    log = ArchivedLog(LogReader(str(tmp_path / "log")), url)
    assert log.bounds()[NODE].earliest == 0
    lost = f"events 30 to {ends[1][1] - 1} of node"
    with pytest.raises(DataLoss, match=lost):
        log.blocks(NODE, 0, ends[3][1])
    # A query that is to fail does; one that is not reads what is before the hole, and counts it.
    reader = batch(tmp_path / "log", archive=url)
    with pytest.raises(DataLoss, match=lost):
        rows(reader, reader.partitions())
    reader = batch(tmp_path / "log", archive=url, failOnDataLoss="false")
    found = rows(reader, reader.partitions())
    assert sorted(seqs(found)) == [*range(31), *range(ends[1][1], log.bounds()[NODE].latest)]
    os.unlink(next((tmp_path / "far").rglob(f"{ends[1][1]:020d}.events")))
    with pytest.raises(DataLoss, match="are not in the archive"):
        list(events(log, NODE, ends[1][1], ends[2][1]))
    writer.close()


@pytest.mark.slow
def test_children_archive_in_order_and_retention_waits_for_them(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    told: list[str] = []
    (tmp_path / "far").write_text("in the way")
    work = Background(writer.folder, "none", told.append, url, writer.log, again=0.0)
    writer.may_go = work.may_go

    def until(true: Callable[[], Any]) -> None:
        for _ in range(50):
            work.step()
            if true():
                return
            assert work._child is not None
            work._child.wait(60)
        raise AssertionError(told)

    until(lambda: told)
    assert "00000000000000000000.events could not be archived: " in told[0] and work.safe == 0
    writer.clean_up()
    assert len(segments_in(writer.folder)) == 5
    (tmp_path / "far").unlink()
    ends = [end for _, end in finished(writer)]
    until(lambda: work.safe == ends[-1] and not work.busy)
    assert told[-1] == "" and work.archived == 4
    writer.clean_up()
    assert len(segments_in(writer.folder)) == 1
    again = Background(writer.folder, "none", told.append, url, writer.log)
    assert again.safe == ends[-1]
    again.step()
    assert not again.busy
    # Another archive has nothing yet.
    assert Background(writer.folder, "none", told.append, url + "2", writer.log).safe == 0
    writer.close()


def test_a_broker_that_is_killed_again_and_again_archives_on(tmp_path: Path) -> None:
    """Each start looked first at all segments, whether one was to be merged: none was archived."""
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    ends = [end for _, end in finished(writer)]
    for end in ends:
        work = Background(writer.folder, "none", lambda why: None, url, writer.log)
        for _ in range(2):
            work.step()
            assert work._child is not None
            work._child.wait(60)
        work.step()
        assert work.safe == end
        work.stop()
    writer.close()


@pytest.mark.slow
def test_an_archive_that_hangs_is_told_and_waited_for(tmp_path: Path) -> None:
    """Nothing said so: segments stayed here until the disk was full."""
    writer = segments(tmp_path)
    told: list[str] = []
    work = Background(
        writer.folder, "none", told.append, (tmp_path / "far").as_uri(), writer.log, slow=0.0
    )
    folder = tmp_path / "far" / writer.log / NODE
    folder.mkdir(parents=True)
    first = folder / "00000000000000000000.events"
    os.mkfifo(first)  # whoever opens it waits for who reads

    def after(look: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (work.step(), look())[1]  # type: ignore[func-returns-value]

    wait_for(after(lambda: told), "it is not told")
    assert told == [
        f"{first.name} could not be archived: nothing came of it in 0 s; it is waited for"
    ]
    assert work.busy and work.safe == 0
    first.unlink()
    work.stop()
    wait_for(after(lambda: work.archived), "it is not archived")
    writer.close()


def test_what_a_copy_of_the_log_has_archived_is_not_written_over(tmp_path: Path) -> None:
    """The second took the first one's segments away, which were deleted where they came from."""
    url = (tmp_path / "far").as_uri()
    one, two = segments(tmp_path / "one"), segments(tmp_path / "two")
    (path, end), (other, other_end) = finished(one)[0], finished(two)[0]
    archive = Archive(url, one.log)
    archive.put(NODE, path, end)
    there = {file: file.read_bytes() for file in (tmp_path / "far").rglob("*.*")}
    fill(two, 1)
    two._roll()
    longer, longer_end = finished(two)[-1]
    os.rename(longer, other)
    for wrong in (other_end, longer_end):
        with pytest.raises(OSError, match="other events of the same log are there"):
            archive.put(NODE, other, wrong)
    assert there == {file: file.read_bytes() for file in (tmp_path / "far").rglob("*.*")}
    for writer in (one, two):
        writer.close()


def test_a_place_that_has_lost_what_was_put_there_is_told(tmp_path: Path) -> None:
    """A folder that was not mounted was made anew below the mount, and segments deleted here."""
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    (first, end), (second, next_end), *_ = finished(writer)
    archive = Archive(url, writer.log)
    archive.put(NODE, first, end)
    (tmp_path / "far").rename(tmp_path / "away")
    (tmp_path / "far").mkdir()
    with pytest.raises(OSError, match=f"not there, and the events before {end} were put there"):
        archive.put(NODE, second, next_end, end)
    (tmp_path / "far" / writer.log).mkdir()
    archive.put(NODE, second, next_end, end)
    assert [entry.end for entry in archive.entries(NODE)] == [next_end]
    writer.close()


def test_what_is_nobodys_in_an_archive_is_passed_by_and_a_harmed_entry_is_named(
    tmp_path: Path,
) -> None:
    """A file that was none of ours ended each read, with an error that named nothing."""
    writer = segments(tmp_path)
    path, end = finished(writer)[0]
    archive = Archive((tmp_path / "far").as_uri(), writer.log)
    archive.put(NODE, path, end)
    folder = tmp_path / "far" / writer.log
    (folder / "_SUCCESS").touch()
    entry = folder / NODE / "00000000000000000000.json"
    for name in ("notes.json", f"._{entry.name}", f"{entry.name}.new", "README.txt"):
        (folder / NODE / name).write_text("not ours")
    (folder / NODE / f"{7:020d}.json").mkdir()
    assert archive.nodes() == [NODE]
    assert [one.end for one in archive.entries(NODE)] == [end]
    for text in (
        "",
        "[]",
        "{",
        '{"format": 1, "end": 3}',
        '{"format": 1, "end": 3, "blocks": [1]}',
    ):
        entry.write_text(text)
        with pytest.raises(ValueError, match=f"{entry}: not the entry of an archived segment"):
            Archive((tmp_path / "far").as_uri(), writer.log).entries(NODE)
    entry.write_text('{"format": 2, "pieces": []}')
    with pytest.raises(ValueError, match="format 2, this program reads 1"):
        Archive((tmp_path / "far").as_uri(), writer.log).entries(NODE)
    writer.close()


def test_an_archive_without_this_log_is_told_before_anything_is_read(tmp_path: Path) -> None:
    writer = segments(tmp_path)
    far, typo = tmp_path / "far", (tmp_path / "typo").as_uri()
    # Nothing was archived yet, and nothing is missing.
    reader = batch(tmp_path / "log", archive=typo)
    assert seqs(rows(reader, reader.partitions())) == [
        event.seq for event in all_events(LogReader(str(tmp_path / "log")))
    ]
    for path, end in finished(writer):
        assert main([far.as_uri(), writer.log, NODE, path, str(end)]) == 0
    writer.may_go = lambda end: True
    writer.clean_up()
    told = rf"option archive = '{typo}': nothing of this log \({writer.log}\) is there, .*; the"
    with pytest.raises(ValueError, match=told):
        batch(tmp_path / "log", archive=typo).partitions()
    with pytest.raises(ValueError, match=told):
        stream(tmp_path / "log", archive=typo, startingOffsets="earliest").initialOffset()
    # An archive of other logs: a mistake for this one, but not where several are read.
    (tmp_path / "typo" / ("0" * 32)).mkdir(parents=True)
    with pytest.raises(ValueError, match="it has those of log 00000000"):
        batch(tmp_path / "log", archive=typo).partitions()
    ArchivedLog(LogReader(str(tmp_path / "log")), typo, alone=False).bounds()
    assert batch(tmp_path / "log", archive=far.as_uri()).partitions()
    writer.close()


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Writer]:
    """A log whose first three segments are in the archive `far`, and there alone."""
    writer = segments(tmp_path)
    ends = finished(writer)
    for path, end in ends[:3]:
        assert main([(tmp_path / "far").as_uri(), writer.log, NODE, path, str(end)]) == 0
    writer.may_go = lambda end: end <= ends[2][1]
    writer.clean_up()
    yield writer
    writer.close()


@pytest.mark.parametrize("mounted", [False, True])
def test_a_stream_goes_on_while_its_archive_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: Writer, mounted: bool
) -> None:
    """It ended, with what sounds as if the URL was wrong."""
    far, away = tmp_path / "far", tmp_path / "away"
    live = stream(tmp_path / "log", archive=far.as_uri(), startingOffsets="earliest")
    at = live.initialOffset()
    end = live.latestOffset(at, live.getDefaultReadLimit())
    tasks = live.partitions(at, end)
    wanted = seqs(rows(live, tasks))
    live.reportLatestOffset()
    far.rename(away)
    if mounted:
        far.mkdir()
    # What it reads here it reads, also where that was merged meanwhile and is planned anew.
    fill(cut, 3)
    more = live.latestOffset(end, live.getDefaultReadLimit())
    planned = live.partitions(end, more)
    cut._roll()
    fill(cut, 1)
    path = finished(cut)[-1][0]
    assert merge(path, f"{path}.new", None)
    os.replace(f"{path}.new", path)
    assert seqs(rows(live, planned)) == list(range(end["nodes"][NODE], more["nodes"][NODE]))
    live.log()._looked = 0.0  # type: ignore[attr-defined]
    live.latestOffset(more, live.getDefaultReadLimit())
    assert live.reportLatestOffset()["archiveAwaySeconds"] >= 0
    trouble = "nothing of this log is there any more" if mounted else "it is not there"
    told = f"archive {far.as_uri()}: {trouble}; what is read there is waited for"
    assert capsys.readouterr().err.count(told) == 1
    # What it reads there it waits for, and it is planned by what is known.
    there = live.partitions(at, end)

    def back() -> None:
        if mounted:
            far.rmdir()
        away.rename(far)

    timer = threading.Timer(0.7, back)
    timer.start()
    assert seqs(rows(live, there)) == wanted
    timer.join()
    said = capsys.readouterr().err
    assert f"{trouble}; waiting for up to 300 s" in said and "is back after" in said
    live.log()._looked = 0.0  # type: ignore[attr-defined]
    live.latestOffset(more, live.getDefaultReadLimit())
    assert "archiveAwaySeconds" not in live.reportLatestOffset()


def test_what_is_read_in_an_archive_that_stays_away_is_an_error(
    tmp_path: Path, cut: Writer
) -> None:
    far = tmp_path / "far"
    live = stream(
        tmp_path / "log", archive=far.as_uri(), startingOffsets="earliest", outageTimeout="0s"
    )
    at = live.initialOffset()
    tasks = live.partitions(at, live.latestOffset(at, live.getDefaultReadLimit()))
    far.rename(tmp_path / "away")
    with pytest.raises(OSError, match=r"it is not there, for 0 s \(outageTimeout\); events 0 to "):
        rows(live, tasks)
    # A query that starts says it, and not that the URL is another.
    with pytest.raises(ValueError, match=r"; the place is not there. Is it mounted\?"):
        stream(tmp_path / "log", archive=far.as_uri(), startingOffsets="earliest").initialOffset()


def test_a_url_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="archive = 'nowhere://x'"):
        Archive("nowhere://x", "id")


@pytest.mark.slow
@pytest.mark.parametrize("keys_in", ["the URL", "the environment"])
def test_the_archive_may_be_an_s3_server(
    tmp_path: Path, keys_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        import boto3
        from moto import server
    except ImportError:
        missing("moto", "pip install 'moto[s3]' flask flask-cors")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        address = f"http://{host}:{port}"
        s3 = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
        s3.create_bucket(Bucket="events")
        shown = "key:secret@" if keys_in == "the URL" else ""
        if not shown:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        url = (
            f"s3://{shown}events/far?endpoint_override={host}%3A{port}&scheme=http&region=us-east-1"
        )
        writer = segments(tmp_path)
        before = all_events(LogReader(str(tmp_path / "log")))
        for path, end in finished(writer):
            assert main([url, writer.log, NODE, path, str(end)]) == 0
        writer.may_go = lambda end: True
        writer.clean_up()
        assert len(segments_in(writer.folder)) == 1
        log = ArchivedLog(LogReader(str(tmp_path / "log")), url)
        assert list(events(log, NODE, *log.bounds()[NODE])) == before
        reader = batch(tmp_path / "log", archive=url)
        assert seqs(rows(reader, reader.partitions())) == [event.seq for event in before]
        writer.close()
    finally:
        running.stop()


class Endpoint(LogReader):
    """A log that looks again before it answers, as a broker's endpoint does."""

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """Raises DataLoss for what retention has deleted since."""
        if start < self.bounds()[node].earliest:
            raise DataLoss("deleted by retention")
        return super().blocks(node, start, end, whole)


def test_14_what_goes_to_the_archive_while_a_read_is_planned_is_read_there(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    log = ArchivedLog(Endpoint(str(tmp_path / "log")), url)
    latest = log.bounds()[NODE].latest
    ends = finished(writer)
    for path, end in ends[:2]:
        assert main([url, writer.log, NODE, path, str(end)]) == 0
    writer.may_go = lambda end: end <= ends[1][1]
    writer.clean_up()
    assert [one.seq for one in events(log, NODE, 0, latest)][:4] == [0, 1, 2, 3]
    writer.close()


def test_14_a_segment_that_moves_again_and_again_is_read(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    (first, end), *_ = finished(writer)

    class Moving(LogReader):
        """Each time it is read from, the segment was merged or archived just before."""

        moves = 0

        def read_run(self, run: Run) -> bytes:
            self.moves += 1
            if self.moves == 1:
                assert merge(first, first + ".merged", None)
                os.replace(first + ".merged", first)
            elif self.moves == 2:
                assert main([url, writer.log, NODE, first, str(end)]) == 0
                os.unlink(first)
            return super().read_run(run)

    log = ArchivedLog(Moving(str(tmp_path / "log")), url)
    log.bounds()
    (run,) = runs_of(log.blocks(NODE, 0, end))
    found = [one for piece in salvage(log, run) for one in decode_block(cast(Any, piece), NODE)]
    assert [one.seq for one in found] == [*range(end)]
    writer.close()


def test_14_what_is_whole_in_the_archive_is_not_written_again(tmp_path: Path) -> None:
    url = (tmp_path / "far").as_uri()
    writer = segments(tmp_path)
    (path, end), *_ = finished(writer)
    for _ in range(2):
        Archive(url, writer.log).put(NODE, path, end)
    there = tmp_path / "far" / writer.log / NODE
    before = {one.name: one.stat() for one in there.iterdir()}
    assert sorted(before) == ["00000000000000000000.events", "00000000000000000000.json"]
    Archive(url, writer.log).put(NODE, path, end)
    assert {one.name: one.stat().st_mtime_ns for one in there.iterdir()} == {
        name: one.st_mtime_ns for name, one in before.items()
    }
    (there / "00000000000000000000.events").write_bytes(b"harmed")
    Archive(url, writer.log).put(NODE, path, end)
    assert (there / "00000000000000000000.events").read_bytes() == Path(path).read_bytes()
    writer.close()


def test_14_a_child_does_nothing_without_its_writer(tmp_path: Path) -> None:
    writer = segments(tmp_path)
    (path, end), *_ = finished(writer)
    url = (tmp_path / "far").as_uri()
    for work in (["merge", path, path + ".merged", "none"],
                 ["archive", url, writer.log, NODE, path, str(end)]):  # fmt: skip
        command = [sys.executable, "-m", f"mqttd.pipeline.log.{work[0]}", *work[1:]]
        done = subprocess.run(command, env={**os.environ, PARENT: "0"}, capture_output=True)
        assert (done.returncode, done.stderr) == (1, b"the writer has ended\n")
    assert not (tmp_path / "far").exists() and not Path(path + ".merged").exists()
    writer.close()
