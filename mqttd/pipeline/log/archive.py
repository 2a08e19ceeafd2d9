"""Finished segments in another place: any file system that pyarrow reaches (S3, HDFS, a directory).

    URL / LOG ID / NODE / 00000000000000524288.events     the segment, byte for byte
                          00000000000000524288.json       its entry, written last: its blocks

    put        a segment, read back and compared, then its entry; a segment without one is not there
    ArchivedLog   a log and its archive as one: what is not here any more is read there

Readers plan by the entries and read ranges of bytes. Where the place is away (not mounted, not
reached) while they run, they plan by what they know, and wait for it where they read it.

Nothing is ever changed or deleted by this program; how long it stays there is the business of
whoever keeps the place.

    python -m mqttd.pipeline.log.archive URL LOG NODE SEGMENT END [SAFE]      put one segment
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from mqttd.checksum import crc32
from mqttd.pipeline.log.blocks import FLAG_GAP, Block
from mqttd.pipeline.log.child import begin
from mqttd.pipeline.log.files import OtherFormat, base_of
from mqttd.pipeline.log.reader import AGAIN, Bounds, DataLoss, EventLog, Run, check_cover
from mqttd.pipeline.log.scan import Harm, walk

__all__ = ["Archive", "ArchivedLog", "Entry"]

FORMAT: Final = 1
#: Stands before the names of segments that are there.
THERE: Final = "archive:"
#: Seconds after which it is looked again what is there.
LOOK_EVERY: Final = 60.0
#: Seconds between two looks whether an archive is back.
_PAUSE: Final = 0.5
_PIECE: Final = 4 << 20
_LOG_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
#: Whatever else lies there is somebody's who keeps the place, or was not put to its end.
_ENTRY: Final = re.compile(r"[0-9]{20}\.json\Z")
#: File systems in which folders come with the files in them.
_FLAT: Final = frozenset(("s3", "gcs", "abfs"))


class Entry(NamedTuple):
    """One segment that is there."""

    name: str
    end: int
    blocks: list[Block]

    @property
    def base(self) -> int:
        """Its first offset."""
        return base_of(self.name)


class Archive:
    """What is at `url` of the log `log`.

    Raises ValueError for a URL that pyarrow does not know, ImportError without pyarrow.
    """

    def __init__(self, url: str, log: str) -> None:
        from pyarrow import fs

        try:
            self._fs, path = fs.FileSystem.from_uri(url)
        except Exception as error:
            raise ValueError(f"archive = {url!r}: {error}") from None
        self._root = f"{path.rstrip('/')}/{log}"
        self._known: dict[str, dict[str, Entry]] = {}

    def put(self, node: str, path: str, end: int, safe: int = 0) -> None:
        """Copy the finished segment `path`, which ends at offset `end`.

        One that is there and whole stays as it is: somebody may be reading it. `safe`: what is
        before that offset was put there. Raises OSError; for other events in its place, and for a
        place that has lost what was put there (one that is not mounted), too.
        """
        folder = f"{self._root}/{node}"
        name = os.path.basename(path)
        target = f"{folder}/{name}"
        about = f"{target.removesuffix('.events')}.json"
        with open(path, "rb") as file:
            data = file.read()
        size, crc = len(data), crc32(data)
        found = walk(lambda at, count: data[at : at + count], 0, size, True, node, name)
        blocks = [list(one[2:9]) + [one.flags] for one in found if not isinstance(one, Harm)]
        there = self._there(target, about)
        if there == _span(end, blocks):
            return
        if there is not None:
            raise OSError(
                f"{target}: other events of the same log are there, of a copy of its directory:"
                " give one of them another archive, or a log of its own"
            )
        if self._fs.type_name not in _FLAT:
            if safe and not self._exists(self._root):
                raise OSError(
                    f"{self._root}: not there, and the events before {safe} were put there. Mount"
                    " it or put it back; to go on without them make that folder"
                )
            self._fs.create_dir(folder, recursive=True)
        with self._fs.open_output_stream(target) as out:
            for at in range(0, len(data), _PIECE):
                out.write(data[at : at + _PIECE])
        if self._sum(target) != (size, crc):
            raise OSError(f"{target}: what was read back is not what was written")
        entry = {"format": FORMAT, "node": node, "end": end, "size": size, "crc": crc}
        # Elsewhere a file is there when it is whole, in a directory as soon as it is begun.
        beside = about if self._fs.type_name in _FLAT else f"{about}.new"
        with self._fs.open_output_stream(beside) as out:
            out.write(json.dumps({**entry, "blocks": blocks}).encode())
        if beside != about:
            self._fs.move(beside, about)

    def _there(self, target: str, about: str) -> tuple[int, int, int] | None:
        """The span of the segment that is there, if it is whole."""
        try:
            with self._fs.open_input_stream(about) as file:
                found = json.loads(file.read())
            noted = found["format"], found["size"], found["crc"]
            if noted != (FORMAT, *self._sum(target)):
                return None
            return _span(found["end"], found["blocks"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None

    def _exists(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self._fs.get_file_info(path).type != fs.FileType.NotFound)

    def _sum(self, target: str) -> tuple[int, int]:
        """Bytes and checksum of a file that is there."""
        crc = size = 0
        with self._fs.open_input_stream(target) as back:
            while piece := back.read(_PIECE):
                crc = crc32(piece, crc)
                size += len(piece)
        return size, crc

    def is_missing(self) -> bool:
        """Whether the place itself is not there; raises OSError where it cannot be reached."""
        return self._fs.type_name not in _FLAT and not self._exists(os.path.dirname(self._root))

    def trouble(self) -> str:
        """Why nothing is read of a log that was put there; empty where something is."""
        try:
            if self.is_missing():
                return "it is not there"
            return "" if self._list(self._root) else "nothing of this log is there any more"
        except OSError as error:
            return f"it cannot be reached: {error}"

    def logs(self) -> list[str]:
        """The ids of all logs of which something is there."""
        names = (os.path.basename(one.path) for one in self._list(os.path.dirname(self._root)))
        return sorted(name for name in names if _LOG_ID.match(name))

    def nodes(self) -> list[str]:
        """The nodes of which something is there."""
        folders = (one for one in self._list(self._root) if not one.is_file)
        return sorted(os.path.basename(one.path) for one in folders)

    def entries(self, node: str) -> list[Entry]:
        """The segments of a node that are there, in order; looks again.

        Raises OSError, or ValueError for an entry that is none.
        """
        known = self._known.setdefault(node, {})
        there: dict[str, Entry] = {}
        for one in self._list(f"{self._root}/{node}"):
            name = os.path.basename(one.path)
            if one.is_file and _ENTRY.match(name):
                there[name] = known.get(name) or self._entry(node, one.path)
        self._known[node] = there
        return sorted(there.values(), key=lambda entry: entry.base)

    def _list(self, folder: str) -> list[Any]:
        from pyarrow import fs

        found: list[Any] = self._fs.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return found

    def _entry(self, node: str, path: str) -> Entry:
        with self._fs.open_input_stream(path) as file:
            data = file.read()
        name = os.path.basename(path).removesuffix(".json") + ".events"
        blocks = []
        try:
            found = json.loads(data)
            number = found["format"]
            if number != FORMAT:
                raise OtherFormat(f"{path}: format {number}, this program reads {FORMAT}")
            end = int(found["end"])
            for position, size, base, rows, mask, first, last, flags in found["blocks"]:
                gap = bool(flags & FLAG_GAP)
                where = node, THERE + name, position, size
                blocks.append(Block(*where, base, rows, mask, first, last, gap, flags))
        except OtherFormat:
            raise
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path}: not the entry of an archived segment ({error!r}): put back what was"
                " there, or delete it: its events are missing then"
            ) from None
        return Entry(name, end, blocks)

    def read(self, run: Run) -> bytes:
        """The bytes of a run that is there."""
        name = run.segment.removeprefix(THERE)
        try:
            with self._fs.open_input_file(f"{self._root}/{run.node}/{name}") as file:
                data: bytes = file.read_at(run.size, run.position)
        except FileNotFoundError:
            raise DataLoss(
                f"events {run.base} to {run.end - 1} of node {run.node} are not in the archive"
            ) from None
        return data


def _span(end: int, blocks: list[list[int]]) -> tuple[int, int, int]:
    """What stays the same of a segment when it is merged: its end, its first and last time."""
    return (
        end,
        min((one[5] for one in blocks), default=0),
        max((one[6] for one in blocks), default=0),
    )


class ArchivedLog:
    """A log with its archive: an `EventLog` that begins where the archive does.

    alone: no other log is read with this archive. The first `bounds` raises ValueError where
    nothing is there of a log that has lost its begin: what a wrong `url` hides nobody would miss.
    known: a query runs that has found it. patience: seconds for which what is read there is waited
    for, while the place is away.
    """

    def __init__(
        self,
        near: EventLog,
        url: str,
        alone: bool = True,
        known: bool = False,
        patience: float = 0.0,
    ) -> None:
        self.near = near
        self.log_id = near.log_id
        #: For people, without what may be secret.
        self._url = re.sub("//[^/@]*@", "//", url.partition("?")[0])
        self._alone, self._checked, self._patience = alone, known, patience
        #: Since when it is away.
        self._away_since: float | None = None
        self._archive = Archive(url, near.log_id)
        self._there: dict[str, list[Entry]] = {}
        self._looked = -LOOK_EVERY
        #: The first offset of each node that the log itself has.
        self._first: dict[str, int] = {}

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it, here and in the archive."""
        near = self.near.bounds()
        first = {node: found.earliest for node, found in near.items()}
        if first != self._first or time.monotonic() - self._looked >= LOOK_EVERY:
            self._look()
        self._first = first
        if not self._checked:
            self._check()
            self._checked = True
        found = {}
        for node in sorted({*near, *self._there}):
            latest = near[node].latest if node in near else self._there[node][-1].end
            firsts = [entry.base for entry in self._there.get(node, [])[:1]]
            if node in near:
                firsts.append(near[node].earliest)
            # What is not there between these is a loss, and told where it is read.
            found[node] = Bounds(min(firsts), latest)
        return found

    def _check(self) -> None:
        cut = {node: first for node, first in self._first.items() if first > 0}
        others = [] if self._there or not cut else self._archive.logs()
        if self._there or not cut or (others and not self._alone):
            return
        node, first = min(cut.items())
        what = (
            f"mqttd: option archive = {self._url!r}: nothing of this log ({self.log_id}) is there,"
            f" and the log itself begins at event {first} of node {node}; "
        )
        if not others:
            gone = "the place is not there" if self._archive.is_missing() else "no log is there"
            raise ValueError(
                f"{what}{gone}. Is it mounted? Or else look at the URL: expected is that of archive"
                " in the broker's etc/plugins/spark.conf, or no archive"
            )
        raise ValueError(
            f"{what}it has those of log {', '.join(others[:3])}. Expected the URL that archive has"
            " in the broker's etc/plugins/spark.conf, or no archive"
        )

    @property
    def archive_away(self) -> float | None:
        """For how many seconds the archive has been away, None if it is there."""
        return None if self._away_since is None else time.monotonic() - self._away_since

    def _look(self) -> None:
        try:
            there = {node: self._archive.entries(node) for node in self._archive.nodes()}
        except OSError as error:
            if not self._checked:
                raise OSError(f"mqttd: archive {self._url} cannot be reached: {error}") from None
            there = {}
        there = {node: entries for node, entries in there.items() if entries}
        self._looked = time.monotonic()
        if self._there and not there:
            # What was put there stays there: it is away, and what is known of it holds.
            self._tell(self._archive.trouble(), "what is read there is waited for")
        else:
            self._there = there
            self._tell("", "")

    def _tell(self, trouble: str, then: str) -> None:
        """Whether the archive is away, told once."""
        if trouble and self._away_since is None:
            self._away_since = time.monotonic()
            print(f"mqttd: archive {self._url}: {trouble}; {then}", file=sys.stderr)
        elif not trouble and (away := self.archive_away) is not None:
            self._away_since = None
            print(f"mqttd: archive {self._url} is back after {away:.0f} s", file=sys.stderr)

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """See `EventLog.blocks`; what the log deletes meanwhile is looked for in the archive."""
        if not self._first and not self._there:
            self.bounds()
        for _ in range(AGAIN):
            before = self._first.get(node)
            try:
                return self._blocks(node, start, end, whole)
            except DataLoss:
                self.bounds()
                if self._first.get(node) == before:
                    raise
        return self._blocks(node, start, end, whole)

    def _blocks(self, node: str, start: int, end: int, whole: bool) -> list[Block]:
        first = self._first.get(node)
        here: list[Block] = []
        if first is not None and first < end:
            here = self.near.blocks(node, max(start, first), end, whole=False)
        upto = here[0].base if here else end
        if first is not None and max(start, first) < upto:
            there = self._there.get(node, [])
            if not there or there[-1].end < upto:
                self._look()  # it was put there since, and taken away here by somebody
        found: list[Block] = []
        at = start
        for entry in self._there.get(node, []):
            for block in entry.blocks:
                if block.end > at and block.base < upto:
                    found.append(block)
                    at = block.end
        found += [block for block in here if block.end > at]
        if whole:
            check_cover(found, node, start, end)
        return found

    def read_run(self, run: Run) -> bytes:
        """See `EventLog.read_run`."""
        if not run.segment.startswith(THERE):
            return self.near.read_run(run)
        while True:
            try:
                data = self._archive.read(run)
            except (DataLoss, OSError):
                if not (trouble := self._archive.trouble()):
                    raise
                self._tell(trouble, f"waiting for up to {self._patience:.0f} s")
                if (self.archive_away or 0.0) >= self._patience:
                    raise OSError(
                        f"mqttd: archive {self._url}: {trouble}, for {self.archive_away:.0f} s"
                        f" (outageTimeout); events {run.base} to {run.end - 1} of node {run.node}"
                        " are read there"
                    ) from None
                time.sleep(_PAUSE)
            else:
                self._tell("", "")
                return data

    def commit(
        self, group: str, nodes: dict[str, int], stopped: bool = False, reader: str = ""
    ) -> None:
        """See `EventLog.commit`."""
        self.near.commit(group, nodes, stopped, reader)

    def close(self) -> None:
        """See `EventLog.close`."""
        self.near.close()


def main(arguments: Sequence[str]) -> int:
    """The process that puts one segment; says on its error output why it could not."""
    url, log, node, path, end, *safe = arguments
    try:
        Archive(url, log).put(node, path, int(end), *map(int, safe))
    except Exception as error:
        print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    begin()
    sys.exit(main(sys.argv[1:]))
