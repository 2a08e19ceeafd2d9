"""Reads a log: what is there, which blocks hold a range, their bytes. From any process.

    LogReader   the log's directory        } the same methods: a reader need not know
    PullReader  a broker's pull endpoint   } which it has (`open_log`)

    offsets   bounds() ----> earliest .............. latest
    plan      blocks(start, end) -> headers only: prune by event mask and time
    read      split(read_run(run)) -> bytes, each block verified

Rules that a silent loss has taught:

* A segment is complete only when what was indexed ends at the first offset in the *next* segment's
  name. Anything else is looked at again.
* `check_cover` is called on the blocks of a range before any is pruned, and again where they are
  read: a hole is a `DataLoss`, never a short answer.
* What is harmed does not hide what follows: the index goes on at the next whole block, wherever it
  lies, and `salvage` says of a range which events are there and which are not.

Promise: an index costs one read of 64 bytes per block, once; a refresh what is new, and where the
folder has changed one `scandir`. The writer may append, roll, delete and repair meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from mqttd.pipeline.log.blocks import (
    Block,
    Corrupt,
    lost_text,
    parse_header,
    place_of,
    span,
    verify,
)
from mqttd.pipeline.log.decode import decode_block, part_of
from mqttd.pipeline.log.files import (
    LOG_FILE,
    base_of,
    first_kept,
    log_id_at,
    nodes_in,
)
from mqttd.pipeline.log.groups import commit_group
from mqttd.pipeline.log.recovery import written_to
from mqttd.pipeline.log.scan import Harm, walk
from mqttd.pipeline.log.schema import Event
from mqttd.pipeline.log.segments import Folder

__all__ = [
    "AGAIN",
    "Bounds",
    "DataLoss",
    "EventLog",
    "LogReader",
    "Missing",
    "Run",
    "check_cover",
    "events",
    "find_time",
    "runs_of",
    "salvage",
    "split",
    "time_beside",
]

#: Blocks that follow one another are read in pieces of about this size.
READ_SIZE: Final = 4 << 20
#: How often the log is asked again where a run is by now.
AGAIN: Final = 10


class DataLoss(Exception):
    """Events that should be in the log are not; the text names node and range."""


class Bounds(NamedTuple):
    """The first offset there is, and the one behind the last."""

    earliest: int
    latest: int


class Run(NamedTuple):
    """Blocks of one node that lie side by side: `size` bytes with the events [base, end)."""

    node: str
    segment: str
    position: int
    size: int
    base: int
    end: int


class Missing(NamedTuple):
    """Events [base, end) that should be in the log and are not, and why."""

    base: int
    end: int
    why: str
    #: What `time_beside` says of it.
    time: int = 0

    def __str__(self) -> str:
        return lost_text(self.end - self.base, self.why)


class EventLog(Protocol):
    """What can be read from: `LogReader` and `mqttd.pipeline.log.pull.PullReader`."""

    log_id: str

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now."""

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """The headers of all blocks with an event in [start, end), in order.

        Of what `bounds` saw. Raises DataLoss if they do not cover the range (if `whole`).
        """

    def read_run(self, run: Run) -> bytes:
        """The bytes of blocks that lie side by side; `split` takes them apart and verifies them.

        Raises DataLoss when they are gone.
        """

    def commit(
        self, group: str, nodes: dict[str, int], stopped: bool = False, reader: str = ""
    ) -> None:
        """Register that a reader of `group` has read this far, and whether it has stopped."""

    def close(self) -> None:
        """Let go of connections and files."""


def check_cover(blocks: Sequence[Block], node: str, start: int, end: int) -> None:
    """Raise DataLoss unless `blocks` hold every offset in [start, end)."""
    for base, upto in holes(blocks, start, end):
        raise _hole(node, base, upto)


def holes(blocks: Sequence[Block], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What of [start, end) no block covers."""
    at = start
    for block in blocks:
        if block.base > at:
            yield at, block.base
        at = max(at, block.end)
    if at < end:
        yield at, end


def _hole(node: str, base: int, end: int, why: str = "") -> DataLoss:
    count = end - base
    return DataLoss(
        f"events {base} to {end - 1} of node {node} are not in the log"
        f" ({count} event{'s' if count > 1 else ''}{why and '; '}{why})"
    )


class LogReader:
    """The log in the directory `path` (that of `log.json`).

    Raises FileNotFoundError or ValueError if there is no log, PermissionError if it may not be
    read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.log_id = log_id_at(path)
        except (FileNotFoundError, NotADirectoryError):
            hint = "; between several is a semicolon" if "," in path else ""
            raise FileNotFoundError(
                f"{path}: no event log here (no {LOG_FILE}); expected the directory the broker's"
                f" spark plugin writes to, such as data/events{hint}"
            ) from None
        self._nodes: dict[str, Folder] = {}

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now; looks at the directory again.

        What the writer had written counts, and what retention has not deleted: where the end or the
        begin is gone, that is a loss.
        """
        if log_id_at(self.path) != self.log_id:
            raise DataLoss(f"{self.path}: the log was made anew while it was read")
        found = {}
        known = {node for node, folder in self._nodes.items() if folder.segments}
        for node in nodes_in(self.path, known):
            folder = os.path.join(self.path, node)
            written = written_to(folder)  # before it is written on
            segments = self._folder(node).refresh()
            if segments:
                earliest = first_kept(folder, base_of(segments[0].name))
                newest = segments[-1]
                found[node] = Bounds(earliest, max(newest.end, newest.foreign, written))
        return found

    def _folder(self, node: str) -> Folder:
        if node not in self._nodes:
            self._nodes[node] = Folder(self.path, node)
        return self._nodes[node]

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """The blocks with an event in [start, end); see `EventLog.blocks`."""
        folder = self._folder(node)
        if not folder.segments:
            folder.refresh()
        found: list[Block] = []
        for segment in folder.segments.values():
            if segment.end <= start:
                continue
            if base_of(segment.name) >= end:
                break
            for i in range(bisect_right(segment.ends, start), len(segment.blocks)):
                block = segment.blocks[i]
                if block.base >= end:
                    break
                found.append(block)
        if whole:
            for base, upto in holes(found, start, end):
                raise _hole(node, base, upto, self.why(node, base, upto))
        return found

    def why(self, node: str, base: int, end: int) -> str:
        """What is known of the reason why [base, end) is not there; may be empty."""
        segments = list(self._folder(node).segments.values())
        for segment in segments:
            for at, harm in segment.harms:
                if base <= at < end:
                    return harm.why
        taken = segments and end <= base_of(segments[0].name)
        return "somebody took the begin of the log, not its retention" if taken else ""

    def read_run(self, run: Run) -> bytes:
        """The bytes of a run; see `EventLog.read_run`."""
        if (folder := self._nodes.get(run.node)) is not None:
            folder.changes()  # who finds something else there looks again
        path = os.path.join(self.path, run.node, run.segment)
        try:
            with open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), run.size, run.position)
        except FileNotFoundError:
            raise DataLoss(
                f"events {run.base} to {run.end - 1} of node {run.node} were deleted while they"
                " were read (retention)"
            ) from None
        if len(data) != run.size:
            raise DataLoss(
                f"{path}: {run.size} bytes at {run.position} expected, {len(data)} there"
            )
        return data

    def commit(
        self, group: str, nodes: dict[str, int], stopped: bool = False, reader: str = ""
    ) -> None:
        """Register that `group` has read this far, in the log's directory."""
        commit_group(self.path, group, self.log_id, nodes, stopped, reader)

    def close(self) -> None:
        """Nothing is kept open."""


def runs_of(blocks: Sequence[Block], most: int = READ_SIZE) -> list[Run]:
    """Blocks of one node as ranges of bytes, each of blocks that lie side by side.

    A run has about `most` bytes at most, and at least one block.
    """
    found: list[list[Block]] = []
    size = 0
    for block in blocks:
        if found:
            first, last = found[-1][0], found[-1][-1]
            if (
                block.segment == first.segment
                and block.position == first.position + size
                and block.base == last.end
                and size + block.size <= most
            ):
                found[-1].append(block)
                size += block.size
                continue
        found.append([block])
        size = block.size
    made = []
    for first, *_, last in ((*one, one[-1]) for one in found):
        end = last.position + last.size
        made.append(Run(*first[:3], end - first.position, first.base, last.end))
    return made


def split(data: bytes | memoryview, run: Run) -> Iterator[memoryview]:
    """The blocks in the bytes of a run, each verified.

    Raises Corrupt if the bytes are not exactly the blocks that were planned, unharmed.
    """
    view = memoryview(data)
    at, offset = 0, run.base
    while at < len(view):
        base, end, size = span(view, at)
        piece = view[at : at + size]
        if base != offset or len(piece) != size or not verify(piece):
            raise _not_that(view[at:], run, at, offset)
        yield piece
        at += size
        offset = end
    if offset != run.end:
        raise Corrupt(
            f"{place_of(run.segment, run.position + at)}events up to {run.end - 1} of node"
            f" {run.node} expected, {offset - 1} found"
        )


def _not_that(data: memoryview, run: Run, at: int, offset: int) -> Corrupt:
    """What is wrong with what begins at `at` of a run, where the event `offset` should."""
    where = place_of(run.segment, run.position + at)
    try:
        block = parse_header(data, run.node, run.segment, run.position + at)
    except Corrupt as error:
        return error
    if block.base != offset or len(data) < block.size:
        return Corrupt(f"{where}event {offset} of node {run.node} expected, {block.base} found")
    return Corrupt(
        f"{where}wrong checksum, events {block.base} to {block.end - 1} of node {run.node}"
    )


def salvage(log: EventLog, run: Run) -> Iterator[memoryview | Missing]:
    """What `split` gives, and where that ends with an error: all there is, and what is missing.

    Of a run that is not as it was planned the log is asked again, as long as it names other places:
    its file may have been merged, repaired, archived or deleted since, and so again. Blocks come
    in order, and with what is missing cover the run.
    """
    piece: memoryview | None = None
    try:
        for piece in split(log.read_run(run), run):
            yield piece
        return
    except (Corrupt, DataLoss) as error:
        why = str(error)
    at = run.base if piece is None else parse_header(piece).end
    places: list[Run] = []
    for _ in range(AGAIN):
        before, places = places, _places(log, run.node, at, run.end)
        if places == before:
            break
        for one in _pieces(log, places, at, run.end):
            if isinstance(one, Missing):
                break
            yield one
            at = parse_header(one).end
        if at >= run.end:
            return
    for one in _pieces(log, places, at, run.end):
        if isinstance(one, Missing):
            one = _missing(log, run.node, one.base, one.end, why)
        yield one


def _places(log: EventLog, node: str, start: int, end: int) -> list[Run]:
    """Where [start, end) is by now."""
    try:
        log.bounds()
        return runs_of(log.blocks(node, start, end, whole=False))
    except (DataLoss, LookupError):
        return []


def _pieces(
    log: EventLog, places: Sequence[Run], start: int, end: int
) -> Iterator[memoryview | Missing]:
    """What of [start, end) is whole in these places, and what is not."""
    at = start
    for place in places:
        try:
            data = log.read_run(place)
        except DataLoss:
            continue

        def read(position: int, count: int, data: bytes = data) -> bytes:
            return data[position : position + count]

        for one in walk(read, 0, len(data), True, place.node, place.segment):
            if isinstance(one, Harm) or one.end <= at or one.base >= end:
                continue
            if one.base > at:
                yield Missing(at, one.base, "")
            piece = memoryview(data)[one.position : one.position + one.size]
            first, behind = max(one.base, at), min(one.end, end)
            whole = (first, behind) == (one.base, one.end)
            yield piece if whole else part_of(piece, first, behind)
            at = behind
    if at < end:
        yield Missing(at, end, "")


def events(log: EventLog, node: str, start: int, end: int, whole: bool = True) -> Iterator[Event]:
    """The events with offsets in [start, end), one by one: for tools, tests and replay.

    A gap comes as one `log.gap`, from the range that its first offset is in. What is missing is a
    DataLoss or Corrupt, or unless `whole` such a gap, too.
    """
    at = start
    for run in runs_of(log.blocks(node, start, end, whole)):
        if not whole and run.base > at:
            yield _gap(node, _missing(log, node, at, run.base))
        at = run.end
        for data in _whole(log, run) if whole else salvage(log, run):
            if isinstance(data, Missing):
                yield _gap(node, data)
                continue
            for event in decode_block(data, node):
                if start <= event.seq < end:
                    yield event
    if not whole and at < end:
        yield _gap(node, _missing(log, node, at, end))


def _whole(log: EventLog, run: Run) -> list[memoryview | Missing]:
    """The blocks of a run; raises if they are not all there, though they may have been merged."""
    try:
        return [*split(log.read_run(run), run)]
    except (Corrupt, DataLoss):
        found = [*salvage(log, run)]
        if any(isinstance(one, Missing) for one in found):
            raise
        return found


def _missing(log: EventLog, node: str, base: int, end: int, why: str = "not in the log") -> Missing:
    return Missing(base, end, why, time_beside(log, node, base, end))


def _gap(node: str, one: Missing) -> Event:
    count = one.end - one.base
    return Event(one.base, node, "log.gap", one.time, reason=str(one), lost=count)


def time_beside(log: EventLog, node: str, base: int, end: int) -> int:
    """The time of what is missing: of the last event before it, else of the first behind it.

    In µs since 1970, 0 where the log has neither. It is no later than what follows, so that a
    watermark does not run ahead, and the same whenever it is read.
    """
    try:
        earliest, latest = log.bounds().get(node, Bounds(0, 0))
        base, end = min(base, latest), max(end, earliest)
        for reach in _reaches(base - earliest):
            found = log.blocks(node, base - reach, base, whole=False)
            before = [one.last_time for one in found if one.end <= base]
            if before:
                return before[-1]
        for reach in _reaches(latest - end):
            found = log.blocks(node, end, end + reach, whole=False)
            behind = [one.first_time for one in found if one.base >= end]
            if behind:
                return behind[0]
    except (DataLoss, LookupError):
        pass  # it goes, or is made anew, just now
    return 0


def _reaches(most: int) -> Iterator[int]:
    """How far to look for a block: nearly always it is the next one."""
    reach = 1
    while reach < most:
        yield reach
        reach *= 16
    if most > 0:
        yield most


def find_time(log: EventLog, node: str, time: int) -> int:
    """The offset of the first event at or after `time` (µs since 1970); the latest if none is."""
    bounds = log.bounds().get(node)
    if bounds is None:
        return 0
    for block in log.blocks(node, bounds.earliest, bounds.latest, whole=False):
        if block.last_time >= time:
            if block.gap:
                return block.base
            for event in events(log, node, block.base, block.end, whole=False):
                if event.timestamp >= time:
                    return event.seq
    return bounds.latest
