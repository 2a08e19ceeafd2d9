"""Damages an event log in every way a disk, an operator and a downgrade can; nothing may be silent.

    python -m fuzz.event_log --seeds 20000
    python -m fuzz.event_log --first 1234 --seeds 1

    writer: blocks, kill or close --> damage --> writer again --> ...
       |                                                             reader by path  }
       '-- what was acknowledged: offset -> payload                  reader by url   } row by row
                                                                     strict reader   }

A seed is one log's life: some starts of a writer, each ended by a close, a kill or a crash of the
machine; damage to the newest and to older segments and to the small files (flipped bits,
truncations, zeroed ranges, duplicated and swapped blocks, blocks and logs of a foreign format,
files removed), also while the writer runs, and an older copy put back. What must hold:

* no offset is given twice in a log
* every acknowledged event is a row with its payload, or a gap row counts it; no row comes twice
* a block that is whole in the files before a start can be read after it
* a format that is not known is refused, and the file is untouched
* no reader is stuck; the strict one ends with range and count, and never passes anything over
* what is damaged, `events verify` says

Exit status 1 and the seed, if one of them does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from mqttd.pipeline.endpoint import LogResource, _Refused
from mqttd.pipeline.log import recovery
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    HEADER_SIZE,
    NO_ID,
    encode_block,
    verify,
)
from mqttd.pipeline.log.check import check
from mqttd.pipeline.log.files import (
    LOG_FILE,
    STATE_FILE,
    Damaged,
    read_json,
    segments_in,
    set_aside_in,
)
from mqttd.pipeline.log.merge import merge
from mqttd.pipeline.log.packed import pack, parts, taken_of
from mqttd.pipeline.log.pull import PullError, PullReader
from mqttd.pipeline.log.reader import DataLoss, LogReader, events
from mqttd.pipeline.log.scan import Harm, walk
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import StreamReader

__all__ = ["Fault", "Life", "main"]

NODE = "n1"
START = 1_700_000_000_000_000
COLUMNS = ("seq", "event", "payload", "reason")
#: Of the blocks, so many have text of a MiB and more, or half of one.
LARGE = 0.02
_COUNT = re.compile(r"(\d+) (?:events? lost|offsets? skipped): ")


class Fault(AssertionError):
    """Something that must hold does not."""


class Wire(PullReader):
    """A reader by url whose requests reach the endpoint without a network."""

    def __init__(self, resource: LogResource) -> None:
        self.resource = resource
        super().__init__("http://127.0.0.1:1")

    def _request(self, method: str, target: str, body: bytes | None) -> bytes:
        parts = urlsplit(target)
        request = Request({k.encode(): [v[0].encode()] for k, v in parse_qs(parts.query).items()})
        try:
            return self.resource._work(parts.path.removeprefix("/"), request)()
        except DataLoss as error:
            raise self._refused(410, _told(error)) from None
        except FileNotFoundError as error:
            raise self._refused(404, _told(error)) from None
        except _Refused as error:
            raise self._refused(error.status, _told(error)) from None
        except Exception as error:
            raise self._refused(500, _told(error)) from None


def _told(error: Exception) -> bytes:
    return json.dumps({"error": {"message": str(error)}}).encode()


class Request:
    """What `LogResource` needs of one."""

    def __init__(self, args: dict[bytes, list[bytes]]) -> None:
        self.args = args


class Query:
    """A stream with its checkpoint, and what its sink has got."""

    def __init__(self, life: Life, url: bool, strict: bool) -> None:
        self.life, self.url, self.strict = life, url, strict
        self.at: Any = None
        #: Covered offsets as (first, end), and payloads, of the log it reads.
        self.covered: list[tuple[int, int]] = []
        self.rows: dict[int, bytes] = {}
        self.losses = 0
        #: The first offset that it is owed.
        self.first = 0
        self.open()

    def open(self) -> None:
        """A driver that starts."""
        given = {"path": self.life.path, "startingOffsets": "earliest"}
        given["columns"] = ",".join(COLUMNS)
        given["failOnDataLoss"] = "true" if self.strict else "false"
        options = read_options(given)
        fields = [StructField(name, StringType()) for name in options.columns]
        self.reader = StreamReader(options, StructType(fields))
        if self.url and not self.life.nameless():
            # Every process has a reader of its own, and the endpoint keeps one.
            self.reader._log = Wire(self.life.resource)

    def step(self, limit: int) -> bool:
        """One micro-batch; whether it had anything."""
        if self.url and not isinstance(self.reader._log, Wire):
            self.open()
        if self.life.nameless():
            return False
        if self.at is None:
            self.at = self.reader.initialOffset()
            self.first = self.at["nodes"].get(NODE, 0)
        try:
            end = self.reader.latestOffset(
                self.at, ReadMaxRows(limit) if limit else ReadAllAvailable()
            )
            if end == self.at:
                return False
            tasks = self.reader.partitions(self.at, end)
            rows = [
                row for task in tasks for one in self.reader.read(task) for row in one.to_pylist()
            ]
        except DataLoss as error:
            if not self.strict:
                raise
            self.stopped(str(error))
            return False
        except (FileNotFoundError, Damaged, PullError) as error:
            if not self.life.nameless():
                raise
            self.life.done["no log to read"] += 1
            self.life.steps.append(f"no log: {error}")
            self.open()
            return False
        if end["log"] != self.at["log"]:
            self.covered.clear()
            self.rows.clear()
            self.first = min((row["seq"] for row in rows), default=end["nodes"].get(NODE, 0))
            rows = [row for row in rows if "made anew" not in (row["reason"] or "")]
        elif NODE not in self.at["nodes"]:
            # It began where nothing was, and is owed what is there when it is again.
            self.first = min((row["seq"] for row in rows), default=end["nodes"].get(NODE, 0))
        self.take(rows)
        if self.strict and end["log"] == self.at["log"]:
            # It may have begun where nothing was, and there is nothing whole yet.
            upto = end["nodes"].get(NODE, 0)
            first = min((row["seq"] for row in rows), default=upto)
            self.whole(self.at["nodes"].get(NODE, first), upto)
        self.life.steps.append(
            f"query {self.url}, {self.strict}: {self.at} to {end}, {len(rows)} rows"
        )
        self.at = end
        return True

    def take(self, rows: list[dict[str, Any]]) -> None:
        """What a sink gets."""
        for row in sorted(rows, key=lambda row: row["seq"]):
            seq = row["seq"]
            if row["event"] == "log.gap":
                count = _COUNT.match(row["reason"])
                if count is None:
                    raise Fault(f"a gap that does not count: {row['reason']}")
                self.covered.append((seq, seq + int(count[1])))
                continue
            if seq in self.rows:
                raise Fault(f"row {seq} came twice")
            self.rows[seq] = row["payload"]
            self.covered.append((seq, seq + 1))
            self.life.right(seq, row["payload"])

    def whole(self, start: int, end: int) -> None:
        """Raise Fault unless everything in [start, end) is a row or in a gap."""
        at = start
        for first, behind in sorted(self.covered):
            if behind <= at:
                continue
            if first > at:
                break
            at = behind
        if at < end:
            raise Fault(f"{'strict ' * self.strict}reader: event {at} of {end} is nowhere")

    def stopped(self, told: str) -> None:
        """The strict reader was stopped: it says what is missing, and begins again behind it."""
        self.losses += 1
        self.covered.clear()
        self.rows.clear()
        named = re.search(r"events \d+ to \d+ |made anew|ends at event \d+|node n1 is gone", told)
        if named is None:
            raise Fault(f"a loss without a range: {told}")
        if named[0].startswith("events") and not re.search(r"\(\d+ event", told):
            raise Fault(f"a loss without a count: {told}")
        try:
            log_id, found = self.reader.bounds()
        except DataLoss:
            self.at = None
            return
        self.at = {"log": log_id, "nodes": {node: one.latest for node, one in found.items()}}


class Life:
    """One log, from its first writer to what is left of it."""

    def __init__(self, path: str, seed: int) -> None:
        self.path, self.chance = os.path.join(path, "events"), random.Random(seed)
        #: A copy of the log that is older by and by.
        self.older = os.path.join(path, "older")
        self.boot = "b0"
        #: It is a log with headers without a checksum.
        self.old = self.chance.random() < 0.15
        self.log = ""
        #: Offset -> payload of what was acknowledged in this log; all payloads ever at an offset.
        self.given: dict[int, bytes] = {}
        self.ever: dict[int, set[bytes]] = {}
        #: The bytes of each block -> its offsets.
        self.blocks: dict[bytes, range] = {}
        self.count = 0
        self.done: Counter[str] = Counter()
        #: Blocks of a foreign format: file, bytes now and before.
        self.foreign: list[tuple[str, bytes, bytes]] = []
        #: Offsets in a segment that was moved away before the last start.
        self.moved_away: set[int] = set()
        #: What was done, in order.
        self.steps: list[str] = []
        self.writer: Writer | None = None
        self.resource = LogResource(self.path, cast("Any", None))
        self.queries: list[Query] = []

    def right(self, seq: int, payload: bytes) -> None:
        """Raise Fault if nothing like this was ever written there."""
        if self.given.get(seq, payload) != payload or payload not in self.ever.get(seq, ()):
            raise Fault(f"row {seq} is {payload!r}, {self.given.get(seq)!r} was acknowledged")

    def run(self) -> None:
        """All of it; raises Fault."""
        chance = self.chance
        self.start()
        self.write()
        self.queries = [
            Query(self, False, False),
            Query(self, True, False),
            Query(self, False, True),
        ]
        for _ in range(chance.randrange(1, 5)):
            self.read()
            self.write()
            if chance.random() < 0.3:
                self.merge()
                self.read()
            if chance.random() < 0.3:
                self.damage()  # while it runs
                self.write()
                self.read()
            self.end()
            if chance.random() < 0.2:
                shutil.copytree(self.path, self.older, dirs_exist_ok=True)
            foreign = None
            for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
                foreign = foreign or self.damage()
            if foreign:
                self.refused(*foreign)
            if os.path.exists(self.older) and chance.random() < 0.3:
                self.put_back()
            else:
                self.told()
                self.read()
            whole = self.intact()
            self.start()
            self.still(whole)
        self.write()
        self.finish()

    def nameless(self) -> bool:
        """Whether nothing says any more what log it is."""
        small = os.path.join(self.path, LOG_FILE), os.path.join(self.path, NODE, STATE_FILE)
        for name in small:
            try:
                read_json(name)
                return False
            except (FileNotFoundError, Damaged):
                continue
        return True

    # -- the writer

    def start(self) -> None:
        """A broker starts."""
        self.moved_away = set()
        try:
            self._start()
        except ValueError as error:
            if "format" not in str(error) or not self.foreign:
                raise
            # An older segment has become the newest.
            self.done["refused"] += 1
            for name, now, before in self.foreign:
                if os.path.exists(name):
                    _put(name, _bytes(name).replace(now, before))
            try:
                self._start()
            except ValueError:
                # It was harmed since: moved away, as the error says.
                folder = os.path.join(self.path, NODE)
                before = self.intact()
                os.unlink(os.path.join(folder, segments_in(folder)[-1]))
                self.moved_away = before - self.intact()
                self._start()

    def _start(self) -> None:
        writer = Writer(
            self.path, NODE, segment_bytes=self.chance.choice((1500, 4000, 1 << 20)), boot=self.boot
        )
        self.writer = writer
        if writer.log != self.log:
            self.log = writer.log
            self.given = {}
        if writer.next <= max(self.given, default=-1):
            raise Fault(f"offsets are given twice: {writer.next} of {max(self.given)}")
        self.steps.append(f"start at {writer.next} {writer.damage or writer.cut}")

    def write(self) -> None:
        """Some blocks are written and acknowledged."""
        writer = self.writer
        assert writer is not None
        for _ in range(self.chance.randrange(1, 6)):
            base, rows = writer.next, []
            # Some have so much text that it is written as it came, and compressed when merged.
            large = not self.old and self.chance.random() < LARGE
            for seq in range(base, base + self.chance.randrange(1, 12)):
                payload = b"%d" % self.count + b"MQEB" * self.chance.choice((0, 0, 0, 1, 9))
                if large:
                    payload += _text(self.chance)
                rows.append(_row(START + self.count, payload))
                self.count += 1
                if seq in self.given:
                    raise Fault(f"offset {seq} is given twice")
                self.given[seq] = payload
                self.ever.setdefault(seq, set()).add(payload)
            if self.old:
                data = _old(encode_block(rows, base, writer.epoch))
            else:
                codec = self.chance.choice((None, zstd()))
                loose = codec is not None
                data = b"".join(parts(taken_of(rows), base, writer.epoch, codec, zstd(), loose))
            self.blocks[data] = range(base, base + len(rows))
            writer.write([Encoded(base, len(rows), data)])

    def merge(self) -> None:
        """A finished segment is written again with large blocks."""
        assert self.writer is not None
        finished = segments_in(self.writer.folder)[:-1]
        if finished:
            name = os.path.join(self.writer.folder, self.chance.choice(finished))
            codec = self.chance.choice((None, zstd()))
            if merge(name, name + ".merged", codec):
                os.replace(name + ".merged", name)
                self.done["merged"] += 1
                data = _bytes(name)
                for one in walk(lambda at, n: data[at : at + n], 0, len(data), True):
                    if isinstance(one, Harm):
                        raise Fault(f"a merged segment is not whole: {one}")
                    if not one.gap:
                        block = data[one.position : one.position + one.size]
                        self.blocks[block] = range(one.base, one.end)
            elif os.path.exists(name + ".merged"):
                raise Fault("a harmed segment was merged")

    def end(self) -> None:
        """The broker is closed or killed, or the machine stops."""
        writer = self.writer
        assert writer is not None
        how = self.chance.choice(("close", "kill", "kill", "torn", "crash"))
        self.done[how] += 1
        self.steps.append(f"{how} at {writer.next}")
        if how == "close":
            writer.close()
        elif how == "torn" and os.fstat(writer._fd).st_nlink:
            row = _row(START + self.count, b"never acknowledged")
            data = pack(taken_of([row] * 3), writer.next, writer.epoch, zstd())
            os.pwrite(writer._fd, data[: self.chance.randrange(1, len(data))], writer._size)
        elif how == "crash":
            self.boot += "x"
        writer._let_go()
        self.writer = None

    def put_back(self) -> None:
        """The older copy is the log from now on."""
        self.done["put back"] += 1
        self.steps.append("put back")
        shutil.rmtree(self.path)
        shutil.copytree(self.older, self.path)

    # -- readers

    def read(self) -> None:
        """Each query goes on for some micro-batches, in a new driver now and then."""
        for query in self.queries:
            if self.chance.random() < 0.3:
                query.open()
            for _ in range(self.chance.randrange(3)):
                query.step(self.chance.choice((0, 1, 7, 100)))

    def finish(self) -> None:
        """Everything is read to its end."""
        writer = self.writer
        assert writer is not None
        for query in self.queries:
            for _ in range(60):
                if not query.step(0) and query.at["nodes"].get(NODE) == writer.next:
                    break
            else:
                raise Fault(f"stuck at {query.at}, the log ends at {writer.next}")
            if query.strict:
                continue
            query.whole(query.first, writer.next)
            for seq, payload in self.given.items():
                if query.rows.get(seq, payload) != payload:
                    raise Fault(f"row {seq} is another one")
        writer.close()

    def intact(self) -> set[int]:
        """The offsets of blocks that are whole in the files, found by their very bytes."""
        found: set[int] = set()
        folder = os.path.join(self.path, NODE)
        names = segments_in(folder)
        for i, name in enumerate(names):
            limit = int(names[i + 1][:20]) if i + 1 < len(names) else 1 << 62
            data = _bytes(os.path.join(folder, name))
            for block, offsets in self.blocks.items():
                if int(name[:20]) <= offsets.start and offsets.stop <= limit and block in data:
                    found.update(offsets)
        return found

    def still(self, whole: set[int]) -> None:
        """What was whole before the start is there after it."""
        reader = LogReader(self.path)
        bounds = reader.bounds()[NODE]
        read = {one.seq for one in events(reader, NODE, *bounds, whole=False)}
        if missing := sorted(whole - read - self.moved_away):
            raise Fault(f"whole before the start, gone behind it: {missing}")

    def told(self) -> None:
        """`events verify` is wrong about nothing that is acknowledged and not there."""
        try:
            findings = list(check(self.path))
        except (OSError, ValueError):
            return
        if any(one.bad for one in findings):
            return
        whole = self.intact()
        try:
            log = LogReader(self.path)
            bounds = log.bounds().get(NODE, (0, 0))
            gaps = [
                range(one.seq, one.seq + one.lost)
                for one in events(log, NODE, *bounds)
                if one.event == "log.gap"
            ]
        except DataLoss as error:
            raise Fault(f"verify says whole, a reader {error}") from None
        if log.log_id != self.log:
            return
        for seq in self.given:
            if seq not in whole and not any(seq in gap for gap in gaps) and seq >= bounds[0]:
                if self.boot.endswith("x") or not any(
                    one.text.endswith("torn)") for one in findings
                ):
                    if seq >= bounds[1] and self.boot.endswith("x"):
                        continue
                    raise Fault(f"verify says whole, event {seq} is nowhere")

    # -- damage

    def damage(self) -> tuple[str, bytes, bytes] | None:
        """Do something to a file; of a foreign format file, its bytes before and now."""
        chance = self.chance
        folder = os.path.join(self.path, NODE)
        names = segments_in(folder)
        small = [os.path.join(self.path, LOG_FILE)]
        small += [os.path.join(folder, name) for name in (STATE_FILE, "lock")]
        if not names or chance.random() < 0.2:
            return self._damage_small(chance.choice(small))
        at = chance.choice((-1, -1, chance.randrange(len(names))))
        name = os.path.join(folder, names[at])
        newest = names[at] == names[-1]
        data = bytearray(_bytes(name))
        kinds = ("flip", "flip", "cut", "zero", "double", "over", "swap", "foreign", "remove")
        kind = chance.choice(kinds)
        found = [block for block in self.blocks if bytes(block) in data]
        if kind == "double" and self.writer is not None:
            kind = "over"  # its writer would write into the middle of what was moved
        if not data or (kind in ("double", "over", "swap", "foreign") and len(found) < 2):
            return None
        self.done[kind] += 1
        self.steps.append(f"{kind} in {names[at]} of {names}")
        if kind == "flip":
            for _ in range(chance.choice((1, 1, 2, 5))):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            os.truncate(name, chance.randrange(len(data)))
            return None
        elif kind == "zero":
            begin = chance.randrange(len(data))
            end = min(len(data), begin + chance.choice((1, 8, 200, 5000)))
            data[begin:end] = bytes(end - begin)
        elif kind == "double":
            one, place = chance.choice(found), data.index(chance.choice(found))
            data[place:place] = one
        elif kind == "over":
            one, place = chance.choice(found), data.index(chance.choice(found))
            data[place : place + len(one)] = one
        elif kind == "swap":
            one, other = chance.sample(found, 2)
            data = bytearray(
                bytes(data).replace(one, b"\1" * 7, 1).replace(other, one).replace(b"\1" * 7, other)
            )
        elif kind == "remove":
            os.unlink(name)
            return None
        elif self.writer is not None:
            return None
        else:
            before = bytes(data)
            one = chance.choice(found)
            made = _foreign(one, chance)
            self.foreign.append((name, made, one))
            data = bytearray(data.replace(one, made, 1))
            _put(name, bytes(data))
            # An older one is only read: the gap that stands for it must say so.
            return (name, before, bytes(data)) if newest else None
        _put(name, bytes(data))
        return None

    def _damage_small(self, name: str) -> tuple[str, bytes, bytes] | None:
        chance = self.chance
        if not os.path.exists(name):
            return None
        if chance.random() < 0.4:
            self.done["remove small"] += 1
            self.steps.append(f"remove {name}")
            if self.writer is None or not name.endswith("lock"):
                os.unlink(name)
            return None
        before = _bytes(name)
        if name.endswith(LOG_FILE) and chance.random() < 0.3 and self.writer is None:
            try:
                found = read_json(name)
            except Damaged:
                return None
            self.done["foreign log"] += 1
            now = json.dumps({**found, "format": 2}).encode()
            _put(name, now)
            return name, before, now
        self.done["harm small"] += 1
        self.steps.append(f"harm {name}")
        data = bytearray(before)
        if data and chance.random() < 0.7:
            at = chance.randrange(len(data))
            if data[at : at + 1] == b"1" and b'"format": ' in data[max(0, at - 10) : at]:
                return None  # that is a log of a foreign format
            data[at] ^= 1 << chance.randrange(8)
        else:
            data = data[: chance.randrange(len(data) + 1)]
        _put(name, bytes(data))
        return None

    def refused(self, name: str, before: bytes, now: bytes) -> None:
        """A format that is not known: told by its name, the file is as it was; then put it back."""
        if _bytes(name) != now:
            return  # harmed once more since
        log = name.endswith(LOG_FILE)
        folder = os.path.join(self.path, NODE)
        if not log and (not segments_in(folder) or not name.endswith(segments_in(folder)[-1])):
            return
        files = {one: _bytes(os.path.join(folder, one)) for one in segments_in(folder)}
        try:
            Writer(self.path, NODE, boot=self.boot)._let_go()
        except ValueError as error:
            if "format" not in str(error) or (name not in str(error)):
                raise Fault(f"a foreign format is not named: {error}") from None
        else:
            # Beside other damage it may be taken for damage; then it is kept.
            kept = [_bytes(os.path.join(folder, one)) for one in set_aside_in(folder)]
            if log or now not in kept:
                raise Fault("a foreign format is not refused")
            self.done["foreign kept"] += 1
            return
        if {one: _bytes(os.path.join(folder, one)) for one in segments_in(folder)} != files:
            raise Fault("a file was changed that has a foreign format")
        self.done["refused"] += 1
        _put(name, before)


def _foreign(block: bytes, chance: random.Random) -> bytes:
    """The block as if it had been written in a format of its own."""
    made = bytearray(block)
    made[4:6] = chance.choice((4, 7, 8, 11)).to_bytes(2, "little")
    if chance.random() < 0.5:
        if chance.random() < 0.5:
            made[HEADER_SIZE:] = chance.randbytes(len(made) - HEADER_SIZE)
        made[12:16] = bytes(4)
        made[12:16] = zlib.crc32(made).to_bytes(4, "little")
        assert verify(bytes(made))
    return bytes(made)


def _old(block: bytes) -> bytes:
    """The block as it was written before headers had a checksum of their own."""
    made = bytearray(block)
    made[52:56] = bytes(4)
    made[12:16] = bytes(4)
    made[12:16] = zlib.crc32(made).to_bytes(4, "little")
    return bytes(made)


def _text(chance: random.Random) -> bytes:
    """JSON of a quarter of a MiB: readings that differ."""
    return b"".join(b'{"t":%d,"v":%d},' % (n, chance.randrange(99_999)) for n in range(12_000))


def _row(at: int, payload: bytes) -> Any:
    flags = 1 | HAS_QOS | HAS_SIZE | HAS_PAYLOAD
    return (11, at, flags, NO_ID, "c", "", "", "t", "", len(payload), payload, b"")


def _bytes(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _put(name: str, data: bytes) -> None:
    """Change a file in place: whoever has it open sees it."""
    with open(name, "r+b") as file:
        file.write(data)
        file.truncate()


def one(seed: int) -> Counter[str]:
    """Run one seed in a directory of its own; what was done. Raises Fault."""
    path = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        life = Life(path, seed)
        # Readers are on the writer's machine: its mark says to them, too, how far it was written.
        with patch.object(recovery, "boot_id", lambda: life.boot):
            life.run()
        life.done["events"] += life.count
        life.done["strict reader stopped"] += sum(query.losses for query in life.queries)
        return life.done
    except Exception as error:
        error.add_note("\n".join(life.steps))
        raise
    finally:
        shutil.rmtree(path)


def main(arguments: list[str] | None = None) -> int:
    """The program; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seeds", type=int, default=1000, metavar="COUNT")
    options = parser.parse_args(arguments)
    done: Counter[str] = Counter()
    began, bad = time.monotonic(), 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            done += one(seed)
        except Exception as error:
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if bad <= 3:
                traceback.print_exc()
            if bad >= 20:
                break
    seconds = time.monotonic() - began
    print(f"{options.seeds} seeds from {options.first}, {bad} bad, {seconds:.0f} s")
    print(json.dumps(dict(sorted(done.items()))))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
