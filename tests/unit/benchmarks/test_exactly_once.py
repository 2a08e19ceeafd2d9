"""The comparison behind `benchmarks.exactly_once` finds what is wrong, wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.exactly_once import Failed, compared
from benchmarks.numbered import payload_of
from mqttd.pipeline.log.blocks import encode_block
from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.unit.pipeline.logs import NODE, row

SENT = 600
Rows = list[dict[str, Any]]


def made(folder: Path, change: Callable[[Rows], object] = lambda rows: None) -> list[str]:
    """Two publishers' messages in a log and in a table of two files; the files."""
    writer = Writer(str(folder / "data/events"), NODE)
    payloads = [payload_of(i % 2, i // 2) for i in range(SENT)]
    payloads.insert(300, payloads[299])  # sent again
    for at in range(0, SENT + 1, 100):
        part = payloads[at : at + 100]
        data = encode_block([row(at + i, payload=one) for i, one in enumerate(part)], at)
        writer.write([Encoded(at, len(part), data)])
    writer.close()
    (folder / "publishers").mkdir()
    for index in range(2):
        (folder / f"publishers/{index}.acknowledged").write_bytes(b"\1" * (SENT // 2))
    log = LogReader(str(folder / "data/events"))
    rows = [one._asdict() for one in events(log, NODE, *log.bounds()[NODE])]
    for one in rows:
        one["timestamp"] = one["timestamp"] * 1000
        del one["properties"], one["lost"]
    change(rows)
    kinds = {"timestamp": pa.timestamp("ns"), "qos": pa.int8(), "payload_size": pa.int32(),
             "peer": pa.string(), "username": pa.string(), "reason": pa.string()}  # fmt: skip
    files = []
    for number, part in enumerate((rows[350:], rows[:350])):  # files are in no order
        columns = {name: pa.array([one[name] for one in part], kinds.get(name)) for name in rows[0]}
        files.append(str(folder / f"{number}.parquet"))
        pq.write_table(pa.table(columns), files[-1])
    return files


def told(**more: int) -> dict[str, Any]:
    return {"acknowledged": SENT, "sent_again": 1, "refused": 0, **more}


def test_what_is_equal_is_told_so(tmp_path: Path) -> None:
    found = compared(tmp_path, made(tmp_path), told())
    assert found["rows_in_table"] == found["events_in_log"] == SENT + 1
    assert (found["different_messages"], found["logged_twice_and_sent_again"]) == (SENT, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.pop(123), "column seq"),
        (lambda rows: rows.pop(), "column seq|600 rows in the table"),
        (lambda rows: rows.append(rows[5]), "column seq"),
        (lambda rows: rows.append({**rows[-1], "seq": SENT + 1}), "602 rows in the table, 601"),
        (lambda rows: rows[7].update(payload=bytes(8)), "column payload"),
        (lambda rows: rows[7].update(topic="t/other"), "column topic"),
        (lambda rows: rows[7].update(timestamp=1000), "column timestamp"),
        (lambda rows: rows[7].update(message_id=None), "column message_id"),
    ],
)
def test_a_table_that_is_not_the_log_is_found(
    tmp_path: Path, change: Callable[[Rows], object], said: str
) -> None:
    with pytest.raises(Failed, match=said):
        compared(tmp_path, made(tmp_path, change), told())


def test_what_was_acknowledged_and_is_not_in_the_log_is_found(tmp_path: Path) -> None:
    files = made(tmp_path)
    (tmp_path / "publishers/1.acknowledged").write_bytes(b"\1" * (SENT // 2 + 1))
    with pytest.raises(Failed, match="1 messages of publisher 1 acknowledged and not logged"):
        compared(tmp_path, files, told())


def test_what_nobody_sent_is_found(tmp_path: Path) -> None:
    files = made(tmp_path)
    (tmp_path / "publishers/0.acknowledged").write_bytes(b"\1" * (SENT // 2 - 1))
    with pytest.raises(Failed, match="publisher 0 that was never sent"):
        compared(tmp_path, files, told())


def test_more_than_was_sent_again_is_found(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="600 acknowledged, 601 logged"):
        compared(tmp_path, made(tmp_path), told(sent_again=0))
