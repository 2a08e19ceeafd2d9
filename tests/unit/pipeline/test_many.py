"""Several logs in one query: nodes side by side, some that join later, one that is away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.log.groups import groups, readers
from mqttd.pipeline.log.many import ManyLogs, knows
from mqttd.pipeline.log.pull import Away, PullError, PullReader
from mqttd.pipeline.log.reader import Bounds, DataLoss, LogReader
from mqttd.pipeline.log.writer import Writer
from tests.unit.pipeline.logs import fill, written
from tests.unit.pipeline.test_source import batch, rows, stream


def by_node(found: list[dict[str, Any]]) -> dict[str, list[int]]:
    nodes: dict[str, list[int]] = {}
    for one in found:
        nodes.setdefault(one["node"], []).append(one["seq"])
    return {node: sorted(numbers) for node, numbers in nodes.items()}


def fleet(path: Path, *names: str) -> str:
    for name in names:
        written(path / name, 3, node=name)
    return "; ".join(str(path / name) for name in names)


def test_a_batch_reads_all_and_offsets_are_by_node(tmp_path: Path) -> None:
    several = fleet(tmp_path, "a", "b", "c")
    reader = batch(Path(several), startingOffsets='{"b": 25, "c": -1}')
    assert by_node(rows(reader, reader.partitions())) == {
        "a": list(range(30)),
        "b": list(range(25, 30)),
    }


@pytest.mark.parametrize(
    ("starting", "ending", "a", "b"),
    [
        (None, '{"a": 5}', range(5), range(30)),
        ('{"a": 5}', '{"b": 5}', range(5, 30), range(5)),
        (None, "{}", range(30), range(30)),
        ("{}", '{"a": -2}', range(0), range(30)),
    ],
)
def test_nodes_that_offsets_do_not_name_are_read_whole(
    tmp_path: Path, starting: str | None, ending: str, a: range, b: range
) -> None:
    """An end for one node left out the others."""
    options = {"endingOffsets": ending} | ({"startingOffsets": starting} if starting else {})
    reader = batch(Path(fleet(tmp_path, "a", "b")), **options)
    wanted = {node: [*seqs] for node, seqs in (("a", a), ("b", b)) if seqs}
    assert by_node(rows(reader, reader.partitions())) == wanted


def test_a_stream_begins_with_what_is_there_of_nodes_that_its_offsets_do_not_name(
    tmp_path: Path,
) -> None:
    several = Path(fleet(tmp_path, "a", "b"))
    for offsets, nodes in (("{}", {"a": 0, "b": 0}), ('{"b": -1}', {"a": 0, "b": 30})):
        reader = stream(several, startingOffsets=offsets)
        assert reader.initialOffset()["nodes"] == nodes


def test_a_stream_goes_on_when_one_joins_and_groups_hear_of_their_own(tmp_path: Path) -> None:
    several = fleet(tmp_path, "a", "b")
    options = {"startingOffsets": "earliest", "groupId": "g"}
    reader = stream(Path(several), **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert by_node(rows(reader, reader.partitions(start, end))) == {
        "a": list(range(30)),
        "b": list(range(30)),
    }
    reader.commit(end)
    assert groups(str(tmp_path / "a"))["g"]["nodes"] == {"a": 30}
    assert groups(str(tmp_path / "b"))["g"]["nodes"] == {"b": 30}
    more = f"{fleet(tmp_path, 'c')}; {several}"
    writer = Writer(str(tmp_path / "a"), "a")
    fill(writer, 1)
    writer.close()
    reader = stream(Path(more), **options)
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert by_node(rows(reader, reader.partitions(end, later))) == {
        "a": list(range(30, 40)),
        "c": list(range(30)),
    }
    # One that is taken out of the list is a loss, not silence.
    reader = stream(Path(several), **options)
    with pytest.raises(DataLoss, match="missing from the list .* of node c, .* Put it back"):
        reader.latestOffset(later, reader.getDefaultReadLimit())
    # Who goes on without it reads the others on, not again.
    reader = stream(Path(several), failOnDataLoss="false")
    last = reader.latestOffset(later, reader.getDefaultReadLimit())
    assert rows(reader, reader.partitions(later, last)) == []
    assert last["nodes"] == {"a": 40, "b": 30, "c": 30}


@pytest.mark.parametrize("name", ["b", "other"])
def test_one_that_was_made_anew_is_read_anew_and_no_other(tmp_path: Path, name: str) -> None:
    """All of the list were: what had been read of the others came twice."""
    several = fleet(tmp_path, "a", "b", "c")
    options = {"startingOffsets": "earliest", "events": "message.publish"}
    reader = stream(Path(several), **options)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    shutil.rmtree(tmp_path / "b")
    written(tmp_path / "b", 2, node=name)
    written(tmp_path / "c", 1, node="c")
    told = {"b": "the event log of node b was made anew, .* Look at path"}
    with pytest.raises(
        DataLoss, match=told.get(name, "is missing from .* that of node b, with log")
    ):
        stream(Path(several), **options).latestOffset(end, limit)
    reader = stream(Path(several), failOnDataLoss="false", **options)
    after = reader.latestOffset(end, limit)
    assert after["nodes"] == {"a": 30, "b": 30, "c": 40} | {name: 20}
    wanted = {name: [*range(20)], "c": [*range(30, 40)]}
    assert by_node(rows(reader, reader.partitions(end, after))) == wanted
    assert reader.latestOffset(after, limit) == after
    # A batch that was planned before it was made anew: what is left of it is read.
    assert by_node(rows(reader, reader.partitions(start, end))) == {
        "a": [*range(30)],
        "c": [*range(30)],
    }


def test_names_that_occur_twice_are_told(tmp_path: Path) -> None:
    one, other = written(tmp_path / "1", 1), written(tmp_path / "2", 1)
    with pytest.raises(ValueError, match=f"two of the logs have a node 'mqttd', {one} and {other}"):
        batch(Path(f"{one};{other}")).partitions()
    with pytest.raises(ValueError, match=f"named twice in path or url: {one} and {one} have log"):
        batch(Path(f"{one};{one}")).partitions()
    # A broker whose data directory was copied from another one.
    copy = shutil.copytree(one, tmp_path / "copy")
    with pytest.raises(ValueError, match=f"{one} and {copy} have log .* give it its own"):
        batch(Path(f"{one};{other};{copy}")).partitions()


@pytest.mark.parametrize("anew", [False, True])
def test_one_that_is_put_back_into_the_list_goes_on_or_is_told_with_its_new_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anew: bool
) -> None:
    """Of a log that was begun meanwhile so many events as had been read before were left out."""
    several = fleet(tmp_path, "a", "b", "c")
    options = {"startingOffsets": "earliest", "events": "message.publish", "groupId": "g"}
    reader = stream(Path(several), **options)
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    shorter = f"{tmp_path / 'a'};{tmp_path / 'c'}"
    reader = stream(Path(shorter), failOnDataLoss="false", **options)
    without = reader.latestOffset(end, limit)
    for _ in range(9):
        assert reader.latestOffset(without, limit) == without
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "a broker is missing from the list" in said[0]
    reader.commit(without)  # the others hear of their group
    assert reader._name in {name for _, name in readers(str(tmp_path / "c"))}
    if anew:
        shutil.rmtree(tmp_path / "b")
    written(tmp_path / "b", 5, node="b")
    if anew:
        with pytest.raises(DataLoss, match="the event log of node b was made anew"):
            stream(Path(several), **options).latestOffset(without, limit)
    reader = stream(Path(several), failOnDataLoss="false", **options)
    after = reader.latestOffset(without, limit)
    wanted = {"b": [*range(50)] if anew else [*range(30, 80)]}
    capsys.readouterr()
    assert by_node(rows(reader, reader.partitions(without, after))) == wanted
    assert not capsys.readouterr().err  # it was told when the batch was planned
    assert stream(Path(several), **options).latestOffset(after, limit) == after


def test_whose_offsets_are_known() -> None:
    assert knows("a", "a") and knows("a+b", "b") and knows("b+a", "a+b")
    assert not knows("a", "a+b") and not knows("c", "a")


class Pull(PullReader):
    """An endpoint that can be away."""

    def __init__(self, log: LogReader) -> None:
        self.log, self.log_id = log, log.log_id
        self.away_since, self._clock, self._told = None, lambda: self.now, False
        self.now, self.patience, self.said = 0.0, 60.0, ""
        self._say = self._note

    def _note(self, text: str) -> None:
        self.said = text

    def bounds(self) -> dict[str, Bounds]:
        if self.away_since is not None:
            assert self.patience == 0.0  # nobody waits for it here
            raise Away("http://b cannot be reached")
        return self.log.bounds()


def test_the_others_go_on_while_one_is_away(tmp_path: Path) -> None:
    fleet(tmp_path, "a", "b")
    near, far = LogReader(str(tmp_path / "a")), Pull(LogReader(str(tmp_path / "b")))
    log = ManyLogs([near, far], 60.0)
    before = log.bounds()
    far.away_since = 0.0
    writer = Writer(str(tmp_path / "a"), "a")
    fill(writer, 1)
    writer.close()
    far.now = 59.0
    assert log.bounds() == {"a": (0, 40), "b": before["b"]} and log.away_seconds == 59.0
    assert "the others go on" in far.said
    far.now = 60.0
    with pytest.raises(PullError, match="cannot be reached"):
        log.bounds()
