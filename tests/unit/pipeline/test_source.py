"""What the readers plan and read, without Spark: exactly the rows of a range, or an error."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from mqttd.pipeline.log.blocks import FLAG_SKIP, Block, encode_block, encode_gap
from mqttd.pipeline.log.check import check
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.files import read_json, segments_in, write_json
from mqttd.pipeline.log.groups import commit_group, groups
from mqttd.pipeline.log.packed import pack, taken_of
from mqttd.pipeline.log.reader import Bounds, DataLoss, LogReader, events
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.schema import COLUMNS
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd
from mqttd.pipeline.spark.data_source import MqttdDataSource
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import BatchReader, StreamReader, plan
from mqttd.pipeline.spark.stream import _limited
from mqttd.session.ground.runs import Run
from tests.unit.pipeline.logs import NODE, START, all_events, block, fill, row, written


def schema(columns: tuple[str, ...]) -> StructType:
    # Only the names count: the types are those of COLUMNS.
    return StructType([StructField(name, StringType()) for name in columns])


def stream(path: Path, **options: str) -> StreamReader:
    found = read_options({"path": str(path), **options})
    return StreamReader(found, schema(found.columns))


def batch(path: Path, kind: type[BatchReader] = BatchReader, **options: str) -> BatchReader:
    found = read_options({"path": str(path), **options})
    return kind(found, schema(found.columns))


def rows(reader: Any, tasks: Any) -> list[dict[str, Any]]:
    """What executors read: reader and tasks travel there."""
    found: list[dict[str, Any]] = []
    for task in tasks:
        there = pickle.loads(pickle.dumps(reader))
        for one in there.read(pickle.loads(pickle.dumps(task))):
            found += one.to_pylist()
    return found


def seqs(found: list[dict[str, Any]]) -> list[int]:
    return [one["seq"] for one in found]


def step(reader: StreamReader, start: Any, limit: int = 0) -> tuple[Any, list[dict[str, Any]]]:
    """One micro-batch: the next offset and its rows."""
    read_limit = ReadMaxRows(limit) if limit else ReadAllAvailable()
    end = reader.latestOffset(start, read_limit)
    return end, rows(reader, reader.partitions(start, end))


# -- batch


def test_a_batch_is_the_log_row_for_row(tmp_path: Path) -> None:
    written(tmp_path, 50, segment_bytes=6000)
    reader = batch(tmp_path, includeHeaders="true", includeUserProperties="true")
    found = rows(reader, reader.partitions())
    wanted = all_events(LogReader(str(tmp_path)))
    assert len(found) == 500
    for got, event in zip(found, wanted, strict=True):
        assert list(got) == list(COLUMNS)
        assert int(got["timestamp"].timestamp() * 1e6 + 0.5) == event.timestamp
        for name in COLUMNS:
            if name != "timestamp":
                assert got[name] == getattr(event, name, None), name


@pytest.mark.parametrize("how", ["plain", "packed", "zstd"])
def test_values_of_every_kind_reach_arrow(tmp_path: Path, how: str) -> None:
    from mqttd.codec.properties import encode_properties

    writer = Writer(str(tmp_path), NODE)
    header = encode_properties({38: [("k", "v"), ("k", "w")]})
    other = encode_properties({3: "text/plain", 8: "answers", 9: b"\0\1", 2: 0xFFFFFFFF})
    mixed = [
        row(0, "client.connected"),
        (*row(1)[:6], "", "ü/ß", "", 3, b"abc", header),
        (*row(2)[:2], 0x3E, *row(2)[3:9], 9, b"x" * 9, other),
        (*row(3)[:2], 0x28, *row(3)[3:8], "why", 1 << 20, b"", b""),
        row(4, "session.created"),
    ]
    if how == "plain":
        data = encode_block(mixed, 0)
    else:
        data = pack(taken_of(mixed), 0, 0, zstd() if how == "zstd" else None)
    writer.write([Encoded(0, 5, data)])
    fill(writer, 1)
    writer.close()
    reader = batch(tmp_path, includeHeaders="true", includeUserProperties="true")
    found = rows(reader, reader.partitions())
    assert seqs(found) == list(range(15))
    assert [one["topic"] for one in found[:5]] == [None, "ü/ß", "t/2", "t/3", None]
    assert [one["qos"] for one in found[:5]] == [None, 1, 2, 0, None]
    assert [one["retain"] for one in found[:5]] == [None, False, True, False, None]
    assert [one["payload"] for one in found[:5]] == [None, b"abc", b"x" * 9, None, None]
    assert [one["payload_size"] for one in found[:5]] == [None, 3, 9, 1 << 20, None]
    assert [one["reason"] for one in found[:5]] == [None, None, None, "why", None]
    assert [one["message_id"] is None for one in found[:5]] == [True, False, False, False, True]
    assert found[1]["headers"] == [{"key": "k", "value": "v"}, {"key": "k", "value": "w"}]
    assert found[2]["headers"] is None and found[5]["headers"] is None
    assert found[1]["user_properties"] == [("k", "w")] and found[1]["content_type"] is None
    assert found[2]["user_properties"] is None and found[2]["content_type"] == "text/plain"
    assert (found[2]["response_topic"], found[2]["correlation_data"]) == ("answers", b"\0\1")
    assert [one["message_expiry"] for one in found[1:3]] == [None, 0x7FFFFFFF]


def test_runs_reach_arrow_as_events(tmp_path: Path) -> None:
    columns = Columns(10_000, lambda: None, lambda: None)
    data = b"".join(b"0\x05\0\1a%02d" % i for i in range(40))
    columns.append(row(0, "client.connected"))
    run = Run(START + 7, 1 << 40 | 9, b"a", 0x30, 2, 40)
    columns.note(run, "bob", None, data, b"", 5, 7, 7)
    columns.append(row(2))
    writer = Writer(str(tmp_path), NODE)
    taken = columns.take()
    for codec in (None, zstd()):
        writer.write([Encoded(writer.next, 42, pack(taken, writer.next, 1, codec))])
    fill(writer, 1)
    writer.close()
    reader = batch(tmp_path, includeHeaders="true")
    found = rows(reader, reader.partitions())
    wanted = all_events(LogReader(str(tmp_path)))
    assert seqs(found) == list(range(94)) == [event.seq for event in wanted]
    for got, event in zip(found, wanted, strict=True):
        for name in ("event", "message_id", "client_id", "topic", "payload", "payload_size", "qos"):
            assert got[name] == getattr(event, name), name
    assert [one["payload"] for one in found[1:41]] == [b"%02d" % i for i in range(40)]
    ids = [int.from_bytes(one["message_id"], "big") for one in found[1:41]]
    assert ids == [(START + 7 << 64 | 1 << 40 | 9) + i for i in range(40)]


def test_offsets_and_times_cut_a_batch(tmp_path: Path) -> None:
    written(tmp_path, 10)
    reader = batch(tmp_path, startingOffsets='{"mqttd": 15}', endingOffsets='{"mqttd": 37}')
    assert seqs(rows(reader, reader.partitions())) == list(range(15, 37))
    reader = batch(tmp_path, startingOffsets='{"mqttd": -1}')
    assert rows(reader, reader.partitions()) == []
    reader = batch(tmp_path, endingOffsets="2023-11-14T22:13:20.000042Z")
    assert seqs(rows(reader, reader.partitions())) == list(range(42))
    with pytest.raises(
        ValueError, match="endingOffsets: offset 5000 of node mqttd is behind the end"
    ):
        batch(tmp_path, endingOffsets='{"mqttd": 5000}').partitions()
    with pytest.raises(ValueError, match="startingOffsets names the node 'n7'; the log has mq"):
        batch(tmp_path, startingOffsets='{"n7": 0}').partitions()
    with pytest.raises(ValueError, match="end node mqttd at 10, before startingOffsets .* at 20"):
        batch(tmp_path, startingOffsets='{"mqttd": 20}', endingOffsets='{"mqttd": 10}').partitions()


@pytest.mark.parametrize(
    "place",
    [
        {"{}Timestamp": "0"},
        {"{}Timestamp": "1970-01-01T00:00:00Z"},
        {"{}Offsets": "1970-01-01T00:00:00Z"},
        {"{}Timestamp": "0", "{}Offsets": '{"mqttd": 20}'},
    ],
)
def test_the_beginning_of_1970_is_a_time_like_any_other(
    tmp_path: Path, place: dict[str, str]
) -> None:
    """A truth test took it for one that was not given."""
    written(tmp_path, 3)
    ending = {name.format("ending"): value for name, value in place.items()}
    reader = batch(tmp_path, **ending)
    assert rows(reader, reader.partitions()) == []
    starting = {name.format("starting"): value for name, value in place.items()}
    reader = batch(tmp_path, **starting)
    assert len(rows(reader, reader.partitions())) == 30
    assert stream(tmp_path, **starting).initialOffset()["nodes"] == {NODE: 0}


def test_tasks_are_about_equal_and_lose_nothing(tmp_path: Path) -> None:
    written(tmp_path, 40, segment_bytes=5000)
    for partitions, most in ((1, 250_000), (7, 250_000), (1, 33), (1000, 1)):
        reader = batch(tmp_path, minPartitions=str(partitions), maxEventsPerPartition=str(most))
        tasks = reader.partitions()
        assert len(tasks) >= min(partitions, 20) if partitions > 1 else len(tasks) >= 1
        assert seqs(rows(reader, tasks)) == list(range(400))


@pytest.mark.parametrize(
    ("rows", "cores", "most", "tasks"),
    [
        (0, 2, 1_000_000, 0),
        (99_840, 2, 1_000_000, 1),  # to start a task takes as long as 50,000 events
        (100_096, 2, 1_000_000, 2),
        (2_000_128, 2, 2_000_000, 2),
        (2_000_128, 64, 1_000_000, 40),
        (2_000_128, 2, 1_000_000, 2),
        (3_000_064, 2, 1_000_000, 4),  # three would leave a core idle
        (2_000_128, 2, 250_000, 8),
    ],
)
def test_there_are_as_many_tasks_as_cores_but_none_for_a_few_events(
    rows: int, cores: int, most: int, tasks: int
) -> None:
    given = {"path": "/nowhere", "maxEventsPerPartition": str(most)}
    blocks = [
        Block(NODE, "s", at, 100, at, 256, 1 << 11, 0, 0, False) for at in range(0, rows, 256)
    ]

    class Log:
        def blocks(self, *_: object) -> list[Block]:
            return blocks

    found = plan(cast("Any", Log()), NODE, 0, rows, read_options(given, cores))
    assert len(found) == tasks, cores
    assert sum(run.end - run.base for task in found for run in task.runs) == rows


@pytest.mark.parametrize(
    ("blocks", "asked", "tasks"), [(85, 20, 20), (3, 2, 2), (5, 5, 5), (3, 7, 3), (100, 99, 99)]
)
def test_there_are_at_least_as_many_tasks_as_asked_for_where_there_are_blocks(
    blocks: int, asked: int, tasks: int
) -> None:
    chance = random.Random(blocks)
    found, at = [], 0
    for _ in range(blocks):
        count = chance.choice((1, 30, 250, 900))
        found.append(Block(NODE, "s", at, 100, at, count, 1 << 11, 0, 0, False))
        at += count

    class Log:
        def blocks(self, *_: object) -> list[Block]:
            return found

    options = read_options({"path": "/nowhere", "minPartitions": str(asked)}, 2)
    planned = plan(cast("Any", Log()), NODE, 0, at, options)
    assert len(planned) == tasks
    sizes = [sum(run.end - run.base for run in task.runs) for task in planned]
    assert sum(sizes) == at and min(sizes) > 0 and max(sizes) <= 2 * at // tasks + 900


def test_topics_are_matched_as_the_broker_does(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    topics = ["a", "a/b", "a/b/c", "$SYS/x", "b/b", "a/", "/b", "a/b"]
    data = encode_block([row(i, topic=topic) for i, topic in enumerate(topics)], 0)
    writer.write(
        [
            Encoded(0, len(topics), data),
        ]
    )
    writer.write([Encoded(8, 1, encode_block([row(8, "client.connected")], 8))])
    writer.close()
    for filters, wanted in (
        ("#", [0, 1, 2, 4, 5, 6, 7]),
        ("+/b", [1, 4, 6, 7]),
        ("a/#", [0, 1, 2, 5, 7]),
        ("$SYS/#, b/b", [3, 4]),
        ("nothing", []),
    ):
        reader = batch(tmp_path, subscribe=filters)
        assert seqs(rows(reader, reader.partitions())) == wanted, filters
    reader = batch(tmp_path, subscribePattern="a/b|.SYS.*")
    assert seqs(rows(reader, reader.partitions())) == [1, 3, 7]


def test_events_and_columns_prune_what_is_read(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    for i in range(20):
        one = "client.connected" if i % 4 == 0 else "message.publish"
        writer.write([block(10 * i, event=one)])
    writer.close()
    reader = batch(tmp_path, events="client.*", columns="event,seq")
    tasks = reader.partitions()
    assert sum(run.end - run.base for task in tasks for run in task.runs) == 50
    found = rows(reader, tasks)
    assert found[0] == {"event": "client.connected", "seq": 0}
    assert len(found) == 50


# -- streams


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_a_stream_gets_each_event_once_whatever_the_batches(tmp_path: Path, seed: int) -> None:
    """Writers roll and readers start anew between batches; each range is read twice."""
    chance = random.Random(seed)
    writer = Writer(str(tmp_path), NODE, segment_bytes=3000)
    fill(writer, 1)
    reader = stream(tmp_path, startingOffsets="earliest")
    at = reader.initialOffset()
    found: list[int] = []
    for _ in range(25):
        fill(writer, chance.randrange(6), chance.randrange(1, 25))
        if chance.random() < 0.3:
            reader = stream(tmp_path)  # a restart from the checkpoint
        end, some = step(reader, at, chance.choice([0, 1, 17, 1000]))
        assert rows(stream(tmp_path), stream(tmp_path).partitions(at, end)) == some
        found += seqs(some)
        at = end
    while step(reader, at)[1]:
        at, some = step(reader, at)
        found += seqs(some)
    assert found == list(range(writer.next))
    writer.close()


def test_a_stream_begins_with_what_comes_next_unless_told(tmp_path: Path) -> None:
    written(tmp_path, 3)
    assert stream(tmp_path).initialOffset()["nodes"] == {NODE: 30}
    assert stream(tmp_path, startingOffsets="earliest").initialOffset()["nodes"] == {NODE: 0}
    assert stream(tmp_path, startingOffsets='{"mqttd": 7}').initialOffset()["nodes"] == {NODE: 7}


def test_a_node_that_joins_is_read_from_its_first_event(tmp_path: Path) -> None:
    written(tmp_path, 1)
    reader = stream(tmp_path)
    at = reader.initialOffset()
    writer = Writer(str(tmp_path), "w2")
    fill(writer, 2)
    writer.close()
    end, some = step(reader, at)
    assert list(end["nodes"]) == [NODE, "w2"]
    assert [(one["node"], one["seq"]) for one in some] == [("w2", i) for i in range(20)]


def test_a_limit_is_shared_by_the_nodes_and_none_starves(tmp_path: Path) -> None:
    for node, count in (("a", 100), ("b", 1), ("c", 10)):
        writer = Writer(str(tmp_path), node)
        fill(writer, count)
        writer.close()
    reader = stream(tmp_path, startingOffsets="earliest")
    at = reader.initialOffset()
    found = []
    batches = 0
    while True:
        end, some = step(reader, at, 50)
        if end == at:
            break
        assert 0 < len(some) <= 50
        found += [(one["node"], one["seq"]) for one in some]
        at, batches = end, batches + 1
    assert len(found) == len(set(found)) == 1110 and batches < 30


def test_a_stream_has_no_end_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="option endingOffsets is for batch queries"):
        stream(tmp_path, endingOffsets="latest")
    with pytest.raises(ValueError, match="option endingTimestamp is for batch queries"):
        stream(tmp_path, endingTimestamp="0")


def test_an_option_that_a_stream_has_not_is_told_by_the_reader_when_it_is_asked() -> None:
    """Spark stops a reader that could not be made, and tells of that alone."""
    source = MqttdDataSource({"path": "/nowhere", "endingOffsets": "latest"})
    reader = source.streamReader(schema(("topic",)))
    with pytest.raises(ValueError, match="option endingOffsets is for batch queries"):
        reader.initialOffset()
    reader.stop()


def test_offsets_that_were_skipped_are_not_behind(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 2)
    for kind in (FLAG_SKIP, 0):
        gap = encode_gap(writer.next, 1 << 20, START, "the writer was killed", kind=kind)
        writer.write([Encoded(writer.next, 1 << 20, gap)])
        fill(writer, 3)
    writer.close()
    reader = stream(tmp_path, startingOffsets="earliest")
    at, behind = reader.initialOffset(), []
    while True:
        end = reader.latestOffset(at, ReadMaxRows(7))
        behind.append(reader.reportLatestOffset()["offsetsBehindLatest"])
        if end == at:
            break
        at = end
    assert behind[0] == 73 and behind[-1] == 0 and behind == sorted(behind, reverse=True)


def test_available_now_ends_with_what_was_there(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 3)
    reader = stream(tmp_path, startingOffsets="earliest")
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(writer, 3)
    end, some = step(reader, at)
    assert len(some) == 30
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.partitions(end, end) == []
    assert reader.reportLatestOffset()["nodes"] == {NODE: 60}
    writer.close()


def lagging(path: Path) -> Any:
    """A checkpoint at 100, and a log that retention has cut since."""
    writer = Writer(str(path), NODE, segment_bytes=4000, retention=Retention(bytes=10_000))
    at = {"log": writer.log, "nodes": {NODE: 100}}
    fill(writer, 100)
    writer.close()
    return at


def test_a_reader_past_retention_stops_and_names_what_is_missing(tmp_path: Path) -> None:
    at = lagging(tmp_path)
    reader = stream(tmp_path)
    earliest = reader.bounds()[1][NODE].earliest
    told = rf"events 100 to {earliest - 1} of node mqttd were deleted by retention.*failOnDataLoss"
    with pytest.raises(DataLoss, match=told):
        reader.latestOffset(at, ReadAllAvailable())
    with pytest.raises(DataLoss, match=told):
        reader.partitions(at, {"log": at["log"], "nodes": {NODE: 1000}})


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_without_fail_on_data_loss_it_goes_on_and_the_gap_is_a_row(
    tmp_path: Path, limit: int
) -> None:
    at = lagging(tmp_path)
    reader = stream(tmp_path, failOnDataLoss="false")
    earliest = reader.bounds()[1][NODE].earliest
    end, some = step(reader, at, limit)
    assert some[0]["event"] == "log.gap" and some[0]["seq"] == 100
    assert some[0]["reason"] == (
        f"{earliest - 100} events lost: deleted by retention before they were read"
    )
    assert seqs(some[1:]) == list(range(earliest, earliest + limit if limit else 1000))
    end, some = step(reader, end, 7)
    assert all(one["event"] != "log.gap" for one in some)


def test_a_hole_in_the_log_fails_the_query_or_is_a_row(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    names = segments_in(str(tmp_path / NODE))
    first, second = int(names[1][:20]), int(names[2][:20])
    os.unlink(tmp_path / NODE / names[1])
    strict = stream(tmp_path, startingOffsets="earliest", events="client.connected")
    with pytest.raises(DataLoss, match=f"events {first} to {second - 1}"):
        step(strict, strict.initialOffset())  # before pruning: no event was even wanted there
    reader = stream(tmp_path, startingOffsets="earliest", failOnDataLoss="false")
    _, some = step(reader, reader.initialOffset())
    gaps = [one for one in some if one["event"] == "log.gap"]
    assert [(one["seq"], one["reason"]) for one in gaps] == [
        (first, f"{second - first} events lost: not in the log")
    ]
    assert len(some) == 300 - (second - first) + 1


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("which", [0, 3, -1], ids=["begin", "middle", "end"])
def test_one_row_stands_for_a_hole_however_small_batches_are(
    tmp_path: Path, limit: int, which: int
) -> None:
    """There was one for each batch that the limit cut out of it."""
    written(tmp_path, 100, segment_bytes=4000)
    names = segments_in(str(tmp_path / NODE))
    first = int(names[which][:20])
    behind = 1000 if which < 0 else int(names[which + 1][:20])
    os.unlink(tmp_path / NODE / names[which])
    reader = stream(tmp_path, startingOffsets="earliest", failOnDataLoss="false")
    at, found = reader.initialOffset(), []
    while True:
        end, some = step(reader, at, limit)
        found += some
        if end == at:
            break
        at = end
    gaps = [one["seq"] for one in found if one["event"] == "log.gap"]
    assert gaps == [first]
    wanted = [*range(first), *range(behind, 1000)]
    assert [one["seq"] for one in found if one["event"] != "log.gap"] == wanted


def test_a_column_that_no_log_has_is_told(tmp_path: Path) -> None:
    """Spark lets ALTER TABLE add one, and users give Kafka's by schema()."""
    more = StructType([*schema(("seq", "topic")).fields, StructField("value", StringType())])
    with pytest.raises(ValueError, match="a column 'value'; there are seq.*dropped and created"):
        BatchReader(read_options({"path": str(tmp_path)}), more)


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        (
            "payload",
            StringType(),
            r"payload as string, and the log as binary\. .*cast\(payload as",
        ),
        ("seq", IntegerType(), "seq as int, and the log as bigint"),
        ("topic", StringType(), ""),
    ],
)
def test_a_column_of_another_type_is_told_before_a_task_reads(
    tmp_path: Path, name: str, kind: DataType, told: str
) -> None:
    """Spark told of it in its own words, once the first rows were there."""
    source = MqttdDataSource({"path": str(written(tmp_path, 1))})
    asked = StructType([StructField(name, kind)])
    if told:
        with pytest.raises(ValueError, match=told):
            source.reader(asked)
    else:
        reader = source.reader(asked)
        assert len(rows(reader, reader.partitions())) == 10


@pytest.mark.parametrize("deleted", [False, True], ids=["", "behind what retention took"])
def test_a_begin_that_retention_has_not_deleted_is_a_hole(tmp_path: Path, deleted: bool) -> None:
    """It read like retention: a batch gave fewer rows without a word."""
    if deleted:
        lagging(tmp_path)
    else:
        written(tmp_path, 100, segment_bytes=4000)
    names = segments_in(str(tmp_path / NODE))
    first, second = int(names[0][:20]), int(names[1][:20])
    assert (first > 0) is deleted
    os.unlink(tmp_path / NODE / names[0])
    told = rf"events {first} to {second - 1} of node mqttd are not in the log.*somebody took.*"
    told += "Set the option failOnDataLoss to false"
    with pytest.raises(DataLoss, match=told):
        batch(tmp_path).partitions()
    strict = stream(tmp_path, startingOffsets="earliest")
    with pytest.raises(DataLoss, match=told):
        step(strict, strict.initialOffset())
    reader = batch(tmp_path, failOnDataLoss="false")
    some = rows(reader, reader.partitions())
    assert (some[0]["seq"], some[0]["event"]) == (first, "log.gap")
    assert some[0]["reason"] == f"{second - first} events lost: not in the log"
    assert seqs(some[1:]) == list(range(second, 1000))
    (bad,) = [one for one in check(str(tmp_path)) if one.bad]
    assert f"events {first} to {second - 1} are missing" in bad.text
    # A broker that starts does not make it good; retention that comes there does.
    Writer(str(tmp_path), NODE, segment_bytes=4000).close()
    with pytest.raises(DataLoss, match=told):
        batch(tmp_path).partitions()
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=Retention(bytes=1))
    writer.clean_up()
    writer.close()
    reader = batch(tmp_path)
    left = range(reader.bounds()[1][NODE].earliest, 1000)
    assert left.start > second and seqs(rows(reader, reader.partitions())) == list(left)


def test_a_log_that_an_older_broker_writes_tells_nothing_of_what_it_deletes(tmp_path: Path) -> None:
    written(tmp_path, 30, segment_bytes=4000)
    state = tmp_path / NODE / "state.json"
    known = read_json(str(state))
    del known["deleted"]
    write_json(str(state), known)
    names = segments_in(str(tmp_path / NODE))
    os.unlink(tmp_path / NODE / names[0])
    assert batch(tmp_path).bounds()[1][NODE].earliest == int(names[1][:20])


def test_retention_notes_what_it_deletes_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=Retention(bytes=10_000))
    found = []

    def unlink(name: str) -> None:
        os.remove(name)
        found.append(batch(tmp_path).bounds()[1][NODE].earliest)

    monkeypatch.setattr("mqttd.pipeline.log.retention.os.unlink", unlink)
    fill(writer, 100)
    assert len(found) > 5 and found == sorted(set(found))
    names = segments_in(str(tmp_path / NODE))
    assert found[-1] == int(names[0][:20]) > 0
    writer.close()


@pytest.mark.parametrize("named", ["log.gap", "client.*, log.gap"])
def test_who_asks_for_gaps_hears_of_damage_in_any_block(tmp_path: Path, named: str) -> None:
    """Blocks without the events that were named were passed over unread."""
    written(tmp_path, 30, segment_bytes=4000)
    harmed = LogReader(str(tmp_path)).blocks(NODE, 20, 21)[0]
    with open(tmp_path / NODE / harmed.segment, "r+b") as file:
        file.seek(harmed.position + harmed.size - 9)
        file.write(b"\xff" * 4)
    reader = batch(tmp_path, events=named, failOnDataLoss="false")
    found = rows(reader, reader.partitions())
    assert [(one["event"], one["seq"]) for one in found] == [("log.gap", 20)]
    assert found[0]["reason"].startswith("10 events lost: ")
    reader = batch(tmp_path, events=named)
    with pytest.raises(DataLoss, match="events 20 to 29 of node mqttd are lost"):
        rows(reader, reader.partitions())
    # Who does not ask reads less.
    reader = batch(tmp_path, events="client.*")
    assert rows(reader, reader.partitions()) == []


def test_a_log_made_anew_under_a_checkpoint_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, 5)
    reader = stream(path, startingOffsets="earliest")
    at, _ = step(reader, reader.initialOffset())
    shutil.rmtree(path)
    written(path, 9)
    for one in (reader, stream(path)):
        with pytest.raises(DataLoss, match="made anew, .* is of log .* new checkpointLoc"):
            one.latestOffset(at, ReadAllAvailable())
    relaxed = stream(path, failOnDataLoss="false")
    end, some = step(relaxed, at)
    assert seqs(some) == list(range(90)) and end["log"] != at["log"]


def test_a_log_that_is_gone_under_a_query_is_a_loss_or_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with nothing but a path, whatever failOnDataLoss was."""
    log = written(tmp_path / "log", 3)
    strict = stream(log, startingOffsets="earliest")
    reader = stream(log, startingOffsets="earliest", failOnDataLoss="false", events="message.*")
    end, some = step(reader, reader.initialOffset())
    assert step(strict, strict.initialOffset())[0] == end and len(some) == 30
    shutil.rmtree(log)
    told = r"mqttd: the event log is gone: No such file or directory: .*log.*failOnDataLoss"
    with pytest.raises(DataLoss, match=told):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLoss, match=told):
        strict.reportLatestOffset()
    for _ in range(2):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert reader.reportLatestOffset()["offsetsBehindLatest"] == 0
    assert capsys.readouterr().err.count("the event log is gone") == 1
    written(log, 2)
    end, some = step(reader, end)
    assert seqs(some) == list(range(20))
    with pytest.raises(FileNotFoundError, match="no event log here"):  # it was never there
        stream(tmp_path / "other", failOnDataLoss="false").latestOffset(end, ReadAllAvailable())


def test_an_offset_of_another_source_is_told(tmp_path: Path) -> None:
    written(tmp_path, 1)
    good = stream(tmp_path).initialOffset()
    bad: Any
    for bad in ({"topic": {"0": 5}}, {"nodes": {NODE: 1}}, [1], {"log": "", "nodes": {NODE: "1"}}):
        with pytest.raises(ValueError, match="which is none of this source.*checkpointLocation"):
            stream(tmp_path).latestOffset(bad, ReadAllAvailable())
        for start, end in ((good, bad), (bad, good)):
            with pytest.raises(ValueError, match="which is none of this source"):
                stream(tmp_path).partitions(start, end)


def test_a_stream_does_not_begin_in_the_future(tmp_path: Path) -> None:
    """It began with what came next, which was before the time that was given."""
    written(tmp_path, 1)
    told = r"option startingTimestamp: 2099-01-01T00:00:00\+00:00 is in the future"
    with pytest.raises(ValueError, match=told):
        stream(tmp_path, startingTimestamp="2099-01-01T00:00:00Z").initialOffset()
    with pytest.raises(ValueError, match="option startingOffsets: .* is in the future"):
        stream(tmp_path, startingOffsets="9999-12-31T00:00:00Z").initialOffset()
    now = datetime.now(UTC).isoformat()
    assert stream(tmp_path, startingTimestamp=now).initialOffset()["nodes"] == {NODE: 10}
    future = batch(tmp_path, startingTimestamp="2099-01-01T00:00:00Z")
    assert rows(future, future.partitions()) == []


def test_a_log_that_ends_before_the_checkpoint_is_data_loss(tmp_path: Path) -> None:
    written(tmp_path, 1)
    reader = stream(tmp_path, startingOffsets="earliest")
    at = reader.initialOffset()
    at["nodes"][NODE] = 50
    with pytest.raises(DataLoss, match=r"ends at event 10, .* up to 50\. .*back-up\.md"):
        reader.latestOffset(at, ReadAllAvailable())
    with pytest.raises(DataLoss, match="events 10 to 49 of node mqttd are not in the log"):
        reader.partitions({**at, "nodes": {NODE: 0}}, at)
    shutil.rmtree(tmp_path / NODE)
    with pytest.raises(DataLoss, match="the log of node mqttd is gone"):
        stream(tmp_path).latestOffset(at, ReadAllAvailable())


def test_an_older_copy_of_a_log_is_another_one_without_its_names(tmp_path: Path) -> None:
    """As it is it gives offsets a second time: what docs/howto/back-up.md says."""
    log = written(tmp_path / "log", 2)
    copy = shutil.copytree(log, tmp_path / "copy")
    written(log, 1)
    reader = stream(log, startingOffsets="earliest")
    at, found = step(reader, reader.initialOffset())
    assert len(found) == 30
    (copy / "log.json").unlink()
    (copy / NODE / "state.json").unlink()
    shutil.rmtree(log)
    copy.rename(log)
    written(log, 3)
    with pytest.raises(DataLoss, match="made anew"):
        step(stream(log), at)
    _, found = step(stream(log, failOnDataLoss="false"), at)
    assert seqs(found) == list(range(50))


def test_gaps_in_the_log_are_rows_once(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 2)
    writer.write([Encoded(20, 100, encode_gap(20, 100, START, "queue full"))])
    writer.write([block(120)])
    writer.close()
    for limit in (0, 1, 7, 30):
        reader = stream(tmp_path, startingOffsets="earliest")
        at, found = reader.initialOffset(), []
        for _ in range(500):
            end, some = step(reader, at, limit)
            if end == at:
                break
            found += some
            at = end
        assert seqs(found) == [*range(21), *range(120, 130)]
        assert found[20]["reason"] == "100 events lost: queue full"


def test_a_group_is_there_from_the_start_and_moves_when_a_batch_is_done(tmp_path: Path) -> None:
    """availableNow too: Spark never calls `commit` for the last batch of such a run."""
    written(tmp_path, 2)
    reader = stream(tmp_path, startingOffsets="earliest", groupId="etl")

    def known() -> Any:
        return groups(str(tmp_path))["etl"]["nodes"]

    start = reader.initialOffset()
    assert known() == {NODE: 0}
    reader.prepareForTriggerAvailableNow()
    end, _ = step(reader, start)
    assert known() == {NODE: 0}
    assert step(reader, end) == (end, [])
    assert known() == {NODE: 20}
    reader.stop()
    assert groups(str(tmp_path))["etl"]["stopped"]
    # A restart from the checkpoint registers as well.
    stream(tmp_path, groupId="etl").latestOffset(start, ReadAllAvailable())
    assert known() == {NODE: 0} and not groups(str(tmp_path))["etl"]["stopped"]


def test_a_group_of_another_log_keeps_nothing_nor_does_a_harmed_one(tmp_path: Path) -> None:
    limits = Retention(bytes=8000, held_bytes=1 << 30)
    commit_group(str(tmp_path), "old", "another log", {NODE: 0})
    writer = Writer(str(tmp_path), NODE, segment_bytes=4000, retention=limits)
    fill(writer, 40)
    earliest = LogReader(str(tmp_path)).bounds()[NODE].earliest
    assert earliest > 0
    (tmp_path / "groups" / "etl.json").write_text('{"nodes": {"mqttd": 9999')
    fill(writer, 40)
    assert LogReader(str(tmp_path)).bounds()[NODE].earliest > earliest
    assert [line.split(":")[0] for line in writer.skipped] == ["'etl.json'"]
    writer.close()


def test_two_queries_do_not_know_of_each_other(tmp_path: Path) -> None:
    written(tmp_path, 20)
    readers = [stream(tmp_path, startingOffsets="earliest") for _ in range(2)]
    at = [reader.initialOffset() for reader in readers]
    found: list[list[int]] = [[], []]
    for turn in range(40):
        one = turn % 2
        at[one], some = step(readers[one], at[one], 13 + one)
        found[one] += seqs(some)
    assert found == [list(range(200)), list(range(200))]


def test_the_batches_have_the_schema_spark_expects(tmp_path: Path) -> None:
    from pyspark.sql import types as t
    from pyspark.sql.pandas.types import to_arrow_schema

    written(tmp_path, 1)
    kinds = {
        "BIGINT": t.LongType(),
        "STRING": t.StringType(),
        "TIMESTAMP": t.TimestampType(),
        "BINARY": t.BinaryType(),
        "TINYINT": t.ByteType(),
        "BOOLEAN": t.BooleanType(),
        "INT": t.IntegerType(),
        "MAP<STRING, STRING>": t.MapType(t.StringType(), t.StringType()),
    }
    pairs = t.StructType(
        [t.StructField("key", t.StringType()), t.StructField("value", t.StringType())]
    )
    fields = [
        t.StructField(name, kinds.get(kind, t.ArrayType(pairs)))
        for name, (kind, _) in COLUMNS.items()
    ]
    options = read_options({"path": str(tmp_path), "includeHeaders": "true"})
    reader = BatchReader(options, t.StructType(fields))
    (task,) = reader.partitions()
    (one,) = reader.read(task)
    wanted = to_arrow_schema(t.StructType(fields), timezone="UTC")
    assert isinstance(one, pa.RecordBatch) and one.schema.equals(wanted)


def test_the_readers_agree_with_the_plain_one(tmp_path: Path) -> None:
    written(tmp_path, 10)
    log = LogReader(str(tmp_path))
    log.bounds()
    for start, end in ((0, 100), (5, 6), (9, 31), (99, 100)):
        position = f'{{"{NODE}": {start}}}', f'{{"{NODE}": {end}}}'
        reader = batch(tmp_path, startingOffsets=position[0], endingOffsets=position[1])
        plain = [event.seq for event in events(log, NODE, start, end)]
        assert seqs(rows(reader, reader.partitions())) == plain == list(range(start, end))


def test_no_node_waits_for_others_that_always_have_news() -> None:
    """Where fewer events may be read than there are nodes, who has waited for most is next."""
    begin = dict.fromkeys("abc", 0)
    for end in range(10, 40):
        found = {node: Bounds(0, end) for node in "abc"}
        limited = _limited(begin, dict.fromkeys("abc", end), found, 1)
        assert sum(limited[node] - begin[node] for node in begin) == 1
        begin = limited
    assert set(begin.values()) == {10}
