"""A stream reads every event once while its log is merged, archived, deleted and its clock jumps.

Anything may happen between any two calls that Spark makes of a reader, also between the plan of a
micro-batch and the tasks that read it. MQTTD_LONG=1 takes more seeds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqttd.pipeline.log.archive import Archive
from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.merge import merge
from mqttd.pipeline.log.packed import pack, taken_of
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd
from tests.unit.pipeline.logs import NODE, row
from tests.unit.pipeline.test_source import rows, stream

LONG = os.environ.get("MQTTD_LONG") == "1"


class History:
    """A log, its archive, and a query that reads both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.url = (path / "far").as_uri()
        self.now = 1_700_000_000.0
        self.safe = 0
        self.count = 0
        self.seen: dict[int, bytes | None] = {}
        self.at: Any = None
        self.start()
        self.driver()

    def start(self) -> None:
        """The broker starts."""
        self.writer = Writer(
            str(self.path / "log"),
            NODE,
            segment_bytes=1500,
            retention=Retention(bytes=3000),
            boot="one",
            clock=lambda: self.now,
        )
        self.writer.may_go = lambda end: end <= self.safe
        self.archive = Archive(self.url, self.writer.log)

    def write(self) -> None:
        """Some small blocks."""
        for _ in range(self.chance.randrange(1, 6)):
            base, size = self.writer.next, self.chance.randrange(1, 9)
            found = taken_of([row(base + i) for i in range(size)])
            data = pack(found, base, self.writer.epoch, self.chance.choice((None, zstd())))
            self.writer.write([Encoded(base, size, data)])
            self.count += size

    def finished(self) -> list[tuple[str, int]]:
        """The finished segments, and the offset behind each."""
        names = segments_in(self.writer.folder)
        return [
            (os.path.join(self.writer.folder, name), int(behind[:20]))
            for name, behind in zip(names, names[1:], strict=False)
        ]

    def merge(self) -> None:
        """A finished segment gets large blocks."""
        if found := self.finished():
            path, _ = self.chance.choice(found)
            if merge(path, path + ".merged", zstd()):
                os.replace(path + ".merged", path)

    def offload(self) -> None:
        """The next segment goes to the archive, perhaps in two tries."""
        for path, end in self.finished():
            if end > self.safe:
                self.archive.put(NODE, path, end)
                if self.chance.random() < 0.8:
                    self.safe = end
                return

    def delete(self) -> None:
        """Retention deletes what is safe."""
        self.writer.clean_up()

    def jump(self) -> None:
        """The clock goes up to two hours forth or back."""
        self.now += self.chance.uniform(-7200, 7200)

    def restart(self) -> None:
        """The broker is closed or killed, and starts."""
        if self.chance.random() < 0.5:
            self.writer.close()
        else:
            self.writer._let_go()
        self.start()

    def driver(self) -> None:
        """A driver starts, with the checkpoint."""
        self.reader = stream(self.path / "log", archive=self.url, startingOffsets="earliest")

    def happens(self) -> None:
        """Something."""
        things = (self.write, self.write, self.merge, self.offload, self.delete, self.jump)
        self.chance.choice((*things, self.restart, self.driver))()

    def read(self) -> None:
        """A micro-batch."""
        if self.at is None:
            self.at = self.reader.initialOffset()
        most = self.chance.choice((0, 5, 40))
        end = self.reader.latestOffset(self.at, ReadMaxRows(most) if most else ReadAllAvailable())
        self.happens()
        if end == self.at:
            return
        tasks = self.reader.partitions(self.at, end)
        reader = self.reader
        for task in tasks:
            if self.chance.random() < 0.5:
                self.happens()
            for one in rows(reader, [task]):
                assert one["seq"] not in self.seen, "twice"
                assert one["event"] != "log.gap", one["reason"]
                self.seen[one["seq"]] = one["payload"]
        self.at = end


@pytest.mark.parametrize("seed", range(400 if LONG else 12))
@pytest.mark.slow
def test_every_event_is_read_once(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(25):
        history.happens()
        history.read()
    for _ in range(500):
        if history.at["nodes"].get(NODE) == history.writer.next:
            break
        history.read()
    assert sorted(history.seen) == list(range(history.count))
    assert all(payload == b"%d" % seq for seq, payload in history.seen.items())
    history.writer.close()
