"""Brokers of a list that are taken out, put back and made anew, at any moment: each event once.

With ``failOnDataLoss = false`` each event that is there is a row, or counted by a `log.gap`.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqttd.pipeline.log.blocks import encode_block
from mqttd.pipeline.log.files import base_of, segments_in
from mqttd.pipeline.log.reader import DataLoss, LogReader, events
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.unit.pipeline.logs import delete_first, row
from tests.unit.pipeline.test_many import by_node, fleet
from tests.unit.pipeline.test_source import rows, stream

NAMES = "abc"
STEPS = ("append", "append", "read", "read", "read", "restart", "retain", "anew", "out", "back")


class Fleet:
    """Three logs, and a query that reads those in its list; numbers are those of the payloads."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)
        self.count = 0
        #: Number -> node and offset, of what is there.
        self.there: dict[int, tuple[str, int]] = {}
        self.list = [*NAMES]
        self.read_numbers: list[int] = []
        self.lost: set[tuple[str, int]] = set()
        self.offset: Any = None
        self.planned: Any = None
        for name in NAMES:
            self.append(name)
        self.restart()

    def append(self, name: str) -> None:
        writer = Writer(str(self.path / name), name, segment_bytes=600)
        for _ in range(self.chance.randint(1, 4)):
            base, size = writer.next, self.chance.randint(1, 6)
            made = [row(self.count + i) for i in range(size)]
            self.there |= {self.count + i: (name, base + i) for i in range(size)}
            self.count += size
            writer.write([Encoded(base, size, encode_block(made, base))])
        writer.close()

    def restart(self) -> None:
        several = Path(";".join(str(self.path / name) for name in self.list))
        self.reader = stream(several, startingOffsets="earliest", failOnDataLoss="false")

    def retain(self, name: str) -> None:
        names = segments_in(str(self.path / name / name))
        if len(names) < 3:
            return
        count = self.chance.randint(1, len(names) - 2)
        log = LogReader(str(self.path / name))
        upto = base_of(names[count])
        for event in events(log, name, log.bounds()[name].earliest, upto):
            self.there.pop(int(event.payload or b""))
        delete_first(self.path / name / name, count)

    def anew(self, name: str) -> None:
        shutil.rmtree(self.path / name)
        self.there = {number: at for number, at in self.there.items() if at[0] != name}
        self.append(name)

    def read(self) -> bool:
        """A micro-batch; one that was planned may be run by a query that starts again."""
        if self.offset is None:
            self.offset = self.reader.initialOffset()
        most = self.chance.choice([0, 1, 2, 5, 50])
        limit = ReadMaxRows(most) if most else ReadAllAvailable()
        if self.planned is None:
            self.planned = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if self.planned == self.offset:
            self.planned = None
            return False
        if self.chance.random() < 0.15:
            return True
        for one in rows(self.reader, self.reader.partitions(self.offset, self.planned)):
            if one["event"] == "log.gap":
                count = int(one["reason"].split()[0])
                self.lost |= {(one["node"], one["seq"] + i) for i in range(count)}
            else:
                self.read_numbers.append(int(one["payload"]))
        self.offset, self.planned = self.planned, None
        return True

    def step(self) -> None:
        what, name = self.chance.choice(STEPS), self.chance.choice(NAMES)
        if what in ("append", "retain", "anew"):
            getattr(self, what)(name)
            return
        if what == "read":
            self.read()
            return
        if what == "out" and name in self.list and len(self.list) > 1:
            self.list.remove(name)
        elif what == "back" and name not in self.list:
            self.list.append(name)
        self.chance.shuffle(self.list)
        self.restart()


@pytest.mark.parametrize("seed", range(25))
def test_each_event_is_a_row_once_or_counted(tmp_path: Path, seed: int) -> None:
    """Of one that was out while another was made anew, events came twice, or without a word not."""
    one = Fleet(tmp_path, seed)
    for _ in range(40):
        one.step()
    one.list = [*NAMES]
    one.restart()
    while one.read():
        pass
    assert len(one.read_numbers) == len(set(one.read_numbers))
    missing = one.there.keys() - set(one.read_numbers)
    assert not {number for number in missing if one.there[number] not in one.lost}


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has the ids of the list alone, and not whose they are."""
    several = Path(fleet(tmp_path, *NAMES))
    options = {"startingOffsets": "earliest", "events": "message.publish"}
    reader = stream(several, **options)
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    ids = {name: LogReader(str(tmp_path / name)).log_id for name in NAMES}
    assert end["log"] == "+".join(f"{name}={ids[name]}" for name in NAMES)
    before = {**end, "log": "+".join(ids.values())}
    assert stream(several, **options).latestOffset(before, limit) == end
    shorter = Path(f"{tmp_path / 'a'};{tmp_path / 'c'}")
    with pytest.raises(DataLoss, match="missing from the list .* of node b, .* Put it back"):
        stream(shorter, **options).latestOffset(before, limit)
    without = stream(shorter, failOnDataLoss="false", **options).latestOffset(before, limit)
    one = Path(tmp_path / "a")
    alone = stream(one, failOnDataLoss="false", **options).latestOffset(without, limit)
    assert alone["nodes"] == end["nodes"]
    for at in (without, alone):
        assert stream(several, **options).latestOffset(at, limit)["nodes"] == end["nodes"]
    shutil.rmtree(tmp_path / "b")
    fleet(tmp_path, "b")
    for at in (before, without, alone, end):
        with pytest.raises(DataLoss, match="the event log of node b was made anew"):
            stream(several, **options).latestOffset(at, limit)
        reader = stream(several, failOnDataLoss="false", **options)
        after = reader.latestOffset(at, limit)
        assert by_node(rows(reader, reader.partitions(at, after))) == {"b": [*range(30)]}
