"""The reader of streams: where a micro-batch begins and ends, and what becomes of what is missing.

    latestOffset(start, limit) -> {"log": ID, "nodes": {"mqttd": 5000}}
    partitions(start, end) -> tasks

A broker that is away has nothing new to tell: the query goes on without a batch, its progress says
so, and ends only after `outageTimeout`. A group is registered when the query starts and whenever
Spark asks for the next batch: all before it is done then.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mqttd.pipeline.log.cluster import ClusterLog
from mqttd.pipeline.log.many import (
    ManyLogs,
    alike,
    archive_away,
    joined,
    knows,
    left_out,
    named,
    of_nodes,
    pull_of,
    remade,
)
from mqttd.pipeline.log.pull import Away, PullError, PullReader
from mqttd.pipeline.log.reader import Bounds, DataLoss
from mqttd.pipeline.spark.ending import Ending
from mqttd.pipeline.spark.options import Options
from mqttd.pipeline.spark.plain import plain
from mqttd.pipeline.spark.tasks import Reader, Task, lost_task, plan, wanted

__all__ = ["StreamReader"]

Offset = dict[str, Any]

#: What to do about what is lost.
_KEEP: Final = (
    "Keep more (retention_bytes, retention_seconds, for a groupId held_bytes in plugins/spark.conf)"
)
_OTHER_LOG: Final = "Look at path or url, or begin with a new checkpointLocation"
_SHORTER: Final = "Put it back into the list"
_COPY: Final = "Start its broker if the machine stopped; of an older copy see docs/howto/back-up.md"
_NO_NODE: Final = "Bring it back, if it was moved away rather than renamed (node.name)"

#: Seconds by which the clock of a broker may be ahead of ours.
AHEAD: Final = 60.0
#: Seconds after which a group that has nothing new is heard of again.
HEARD_OF_EVERY: Final = 60.0
#: How far ahead gaps are looked for at a time.
LOOKED_AT: Final = 1 << 22


class StreamReader(Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For readStream: offsets are ``{"log": ID, "nodes": {NODE: next offset}}``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending is not None:
            raise ValueError(
                f"mqttd: option {options.ending_as} is for batch queries (spark.read); a stream"
                " reads on, or with Trigger.AvailableNow to what is the end when it starts"
            )
        self._target: dict[str, int] | None = None
        #: What was registered last of the group, and when.
        self._registered: Offset | None = None
        self._registered_at = 0.0
        self._ending = Ending() if options.group else None
        #: Its name in the group: one query more of that group is another reader.
        self._name = uuid.uuid4().hex[:16]
        #: For progress: what was reported last, begin and end of the next micro-batch.
        self._reported: Offset | None = None
        self._start: dict[str, int] = {}
        self._end: dict[str, int] = {}
        #: Gaps of each node behind that end, and how far they were looked for.
        self._gaps: dict[str, set[tuple[int, int]]] = {}
        self._looked: dict[str, int] = {}
        #: Nodes of a cluster that are not there, as was told.
        self._absent: Set[str] = frozenset()
        #: A log by path was there: one that is not there any more may be made anew just now.
        self._met = self._gone = False
        #: What was told last: Spark asks some hundred times a second while nothing is new.
        self._said: deque[str] = deque(maxlen=100)

    @plain
    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins."""
        starting = self.options.starting
        if isinstance(starting, int) and starting > (time.time() + AHEAD) * 1_000_000:
            raise ValueError(
                f"mqttd: option {self.options.starting_as}: {_when(starting)} is in the future; a"
                " stream would begin with what comes next, before it. Begin it then, or take"
                ' startingOffsets = latest and where("timestamp >= ...")'
            )
        log_id, found = self.bounds(everybody=True)
        at = self.at("latest" if starting is None else starting, found)
        self._register(_offset(log_id, at))
        if self.options.group and starting == "earliest":
            # Nothing is deleted from here on, and what was so meanwhile is not missed.
            log_id, found = self.bounds()
            at = self.at("earliest", found)
        return _offset(log_id, at)

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxEventsPerTrigger."""
        if self.options.max_events:
            return ReadMaxRows(self.options.max_events)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        """What there is, for the query's progress: how far behind it is, and if it waits."""
        away = self._away()
        if away is None:
            try:
                log_id, found = self._now()
                self._reported = _offset(log_id, {node: one.latest for node, one in found.items()})
            except Away:
                away = self._away()
        told = dict(self._reported or {"log": "", "nodes": {}})
        told["source"] = self.options.description
        told["offsetsBehindLatest"] = self._behind(told["nodes"], away is None)
        told["bytes"] = 0 if away is not None else self._size()
        if away is not None:
            told["brokerAwaySeconds"] = round(away, 1)
        if (gone := archive_away(self._log)) is not None:
            told["archiveAwaySeconds"] = round(gone, 1)
        return told

    def _behind(self, latest: dict[str, int], there: bool) -> int:
        """Events up to `latest` that no batch has taken: none where the log has a gap."""
        behind = 0
        for node, upto in latest.items():
            end = self._end.get(node, upto)
            if there and end < upto:
                self._look_for_gaps(node, end, upto)
            gaps = self._gaps[node] = {one for one in self._gaps.get(node, ()) if one[1] > end}
            none = sum(min(stop, upto) - max(base, end) for base, stop in gaps if base < upto)
            behind += max(upto - end, 0) - none
        return behind

    def _look_for_gaps(self, node: str, start: int, end: int) -> None:
        """Look at most `LOOKED_AT` offsets on."""
        start = max(start, self._looked.get(node, 0))
        end = min(end, start + LOOKED_AT)
        try:
            with self._at_once():
                blocks = self.log().blocks(node, start, end, False) if start < end else []
        except (PullError, DataLoss, OSError, LookupError):  # told when it is planned
            return
        self._gaps.setdefault(node, set()).update(
            (block.base, block.end) for block in blocks if block.gap
        )
        self._looked[node] = max(end, self._looked.get(node, 0))

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """A broker that is away is not waited for meanwhile."""
        pull = self._pull()
        try:
            if pull is not None:
                pull.patience = 0.0
            yield
        finally:
            if pull is not None:
                pull.patience = self.options.outage

    def _size(self) -> int:
        """Bytes of the log that the next micro-batch reads: Spark reports before it plans it."""
        try:
            with self._at_once():
                return sum(
                    block.size
                    for node, end in self._end.items()
                    if (start := self._start.get(node, end)) < end
                    for block in wanted(self.log().blocks(node, start, end, False), self.options)
                )
        except (PullError, DataLoss, OSError):  # told when it is planned
            return 0

    @plain
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: this run ends with it."""
        found = self.bounds(everybody=True)[1]
        self._target = {node: bounds.latest for node, bounds in found.items()}

    def _away(self) -> float | None:
        """For how many seconds the broker has been away; None if it is there."""
        if isinstance(self._log, ManyLogs):
            return self._log.away_seconds
        log = self._pull()
        return None if log is None or log.away_since is None else log.away_seconds

    def _pull(self) -> PullReader | None:
        """The broker's endpoint, if that is what is read, with an archive or without."""
        return pull_of(self._log)

    def _now(self) -> tuple[str, dict[str, Bounds]]:
        """What `bounds` gives, or Away at once: a stream goes on without new events meanwhile."""
        log = self._pull()
        if log is None:
            try:
                now = self.bounds()
            except FileNotFoundError as error:
                if not self._met:
                    raise
                if not self._gone or self.options.fail_on_data_loss:
                    what = f"the event log is gone: {error.strerror}: {error.filename}"
                    self._lost(what, "Bring it back, or begin another one there")
                self._gone = True
                raise Away from None
            self._met, self._gone = True, False
            return now
        try:
            with self._at_once():
                return self.bounds()
        except Away as error:
            away = self._away() or 0.0
            if away >= self.options.outage:
                raise PullError(
                    f"{error}; it has been away for {away:.0f} s (outageTimeout)"
                ) from None
            log.tell(f"mqttd: {error}; the query waits for up to {self.options.outage:.0f} s")
            raise

    @plain
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch goes; raises DataLoss if its begin is gone.

        While the broker is away there is nothing new, unless this run has an end to come to.
        """
        start = _ours(start)
        try:
            log_id, found = self._now() if self._target is None else self.bounds()
        except Away:
            self._start = self._end
            return start
        log_id = _beside(log_id, found, start)
        # Spark asks for the next batch when all before it are done. It stops readers the hard way.
        self._register(start, stopped=self._done(start))
        begin = self._begin(start, log_id, found)
        ends = {node: offset for node, offset in begin.items() if node not in found}
        for node, bounds in found.items():
            latest = bounds.latest
            if self._target is not None:
                latest = min(latest, self._target.get(node, 0))
            ends[node] = max(latest, begin[node])
        if isinstance(limit, ReadMaxRows):
            there = {node: ends[node] for node in found}
            for node, end in _limited(begin, there, found, limit.max_rows).items():
                ends[node] = self._behind_gap(node, end, there[node])
        self._start, self._end = begin, ends
        return _offset(joined(log_id, start["log"]), ends)

    @plain
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, none for an empty range."""
        start, end = _ours(start), _ours(end)
        log_id, found = self.bounds()
        asked = {node for node, stop in end["nodes"].items() if start["nodes"].get(node, 0) < stop}
        if isinstance(self.log(), ClusterLog) and asked - found.keys():
            log_id, found = self.bounds(everybody=True)
        log_id = _beside(log_id, found, end)
        tasks: list[Task] = []
        anew = self._remade(log_id, end)
        if anew:
            self._anew(end, log_id)
            known = start["nodes"] if start["log"] == end["log"] else {}
            for node in sorted(anew):
                stop = end["nodes"][node]
                tasks += self._gap(node, known.get(node, 0), stop, "the log was made anew", True)
            if anew == end["nodes"].keys():
                return tasks
        before, nodes = alike(start["log"], end["log"], start["nodes"])
        begin = self._begin({"log": before, "nodes": nodes}, log_id, found)
        for node, stop in end["nodes"].items():
            if node in anew:
                continue
            first = begin.get(node, 0)
            bounds = found.get(node, Bounds(stop, first))
            if bounds.latest < stop:
                at = max(first, bounds.latest)
                if at < stop:
                    self._lost(
                        f"events {at} to {stop - 1} of node {node} are not in the log"
                        f" ({stop - at} events)"
                    )
                    tasks += self._gap(node, at, stop, "not in the log")
                if node not in found:
                    continue
            earliest = min(bounds.earliest, stop)
            tasks += self._gap(node, first, earliest, "deleted by retention before they were read")
            first = max(first, earliest)
            stop = min(stop, bounds.latest)
            if first < stop:
                tasks += plan(self.log(), node, first, stop, self.options)
        return tasks

    def _behind_gap(self, node: str, end: int, latest: int) -> int:
        """`end`, or if that is in a gap or a hole the end of it: one row stands for it."""
        if end == latest:
            return end
        for block in self.log().blocks(node, end - 1, end, whole=False):
            return max(block.end, end) if block.gap else end
        reach = 1
        while end < latest:
            behind = self.log().blocks(node, end, min(end + reach, latest), whole=False)
            if behind:
                return max(behind[0].base, end)
            end = min(end + reach, latest)
            reach *= 16
        return latest

    def _gap(self, node: str, start: int, end: int, why: str, anew: bool = False) -> list[Task]:
        """The task of the row that stands for these events, if there are any and it is wanted."""
        if start >= end or not self.options.gaps:
            return []
        return [lost_task(self.log(), node, start, end, why, anew)]

    def commit(self, end: Offset) -> None:
        """The micro-batch is done: register it, if the query has a group."""
        self._register(end)

    def stop(self) -> None:
        """The query ends: its group is not behind from now on, it has stopped."""
        if self._registered is not None:
            self._register(self._registered, stopped=True)
        if self._log is not None:
            self._log.close()
        if self._ending is not None:
            self._ending.leave()

    def _done(self, start: Offset) -> bool:
        """Whether this is a run with an end, and it has come there."""
        return self._target is not None and all(
            start["nodes"].get(node, 0) >= end for node, end in self._target.items()
        )

    def _register(self, offset: Offset, stopped: bool = False) -> None:
        """Tell the log how far the group is, if that is news or it was not heard of for a while."""
        group, now = self.options.group, time.monotonic()
        if not group or (self._away() is not None and self._pull() is not None):
            return
        same = offset == self._registered and now - self._registered_at < HEARD_OF_EVERY
        if same and not stopped:
            return
        self._registered, self._registered_at = offset, now
        try:
            log = self.log()
            if knows(log.log_id, offset["log"]) or left_out(log.log_id, offset["log"]):
                pull = self._pull()
                if stopped and pull is not None:
                    pull.patience = 0.0
                log.commit(group, offset["nodes"], stopped, self._name)
        except Exception as error:  # progress is a courtesy, the checkpoint has the truth
            self._tell(f"mqttd: retention does not wait for groupId {group}: {error}")

    def _begin(self, start: Offset, log_id: str, found: dict[str, Bounds]) -> dict[str, int]:
        """Where each node's next event is; a new node begins at its first one."""
        begin: dict[str, int] = dict(start["nodes"])
        if not knows(log_id, start["log"]):
            if gone := left_out(log_id, start["log"]):
                self._shorter(gone, begin.keys() - found.keys())
            else:
                self._anew(start, log_id)
                for node in self._remade(log_id, start):
                    del begin[node]
        there, logs = set(of_nodes(log_id).values()), of_nodes(start["log"])
        for node in sorted(begin.keys() - found.keys()):
            text = f"the query has read {begin[node]} of it"
            if not isinstance(self._log, ClusterLog):
                if logs.get(node, "") in there or node not in logs:
                    self._lost(f"the log of node {node} is gone, {text}", _NO_NODE)
                else:
                    self._shorter({logs[node]}, {node})
            elif node not in self._absent:
                print(f"mqttd: node {node} is not there, {text}", file=sys.stderr)
        self._absent = begin.keys() - found.keys()
        for node, (earliest, latest) in found.items():
            first = begin.setdefault(node, earliest)
            if first < earliest:
                self._lost(
                    f"events {first} to {earliest - 1} of node {node} were deleted by retention"
                    f" before this query read them ({earliest - first} events)"
                )
            if first > latest:
                self._lost(
                    f"the log of node {node} ends at event {latest}, the query has read up to"
                    f" {first}",
                    _COPY,
                )
        return begin

    def _remade(self, log_id: str, before: Offset) -> set[str]:
        """The nodes whose log was made anew since that offset."""
        log = self.log()
        ids = log.ids() if isinstance(log, ManyLogs) and not isinstance(log, ClusterLog) else None
        return remade(log_id, before["log"], before["nodes"], ids)

    def _shorter(self, gone: Set[str], nodes: Set[str]) -> None:
        """A broker that was read is in the list no more; the others are read on."""
        self._lost(
            "a broker is missing from the list in path or url, that of node"
            f" {', '.join(sorted(nodes)) or 'unknown'}, with log {', '.join(sorted(gone))}",
            _SHORTER,
        )

    def _anew(self, offset: Offset, log_id: str) -> None:
        nodes = sorted(self._remade(log_id, offset))
        of_these = f" of node {', '.join(nodes)}" if nodes and "+" in log_id else ""
        self._lost(
            f"the event log{of_these} was made anew, or another one is in its place: the query's"
            f" checkpoint is of log {offset['log']}, here is log {log_id}",
            _OTHER_LOG,
        )

    def _lost(self, what: str, advice: str = _KEEP) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"mqttd: {what}. {advice}, or set the option failOnDataLoss to false to go on with"
                " what there is"
            )
        self._tell(f"mqttd: {what}")

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.append(text)
            print(text, file=sys.stderr)


def _offset(log_id: str, nodes: dict[str, int]) -> Offset:
    """Spark compares offsets as text: the order of the nodes is always the same."""
    return {"log": log_id, "nodes": {node: nodes[node] for node in sorted(nodes)}}


def _beside(log_id: str, found: dict[str, Bounds], offset: Offset) -> str:
    """The log's id in the way of that offset, which may be one of several logs."""
    return named(log_id, found) if "=" in offset["log"] else log_id


def _ours(offset: Any) -> Offset:
    """An offset that Spark has in its checkpoint; raises ValueError for one of another source."""
    found: Offset = offset if isinstance(offset, dict) else {}
    nodes = found.get("nodes")
    if (
        isinstance(nodes, dict)
        and isinstance(found.get("log"), str)
        and all(type(place) is int for place in nodes.values())
    ):
        return found
    raise ValueError(
        f"mqttd: the checkpoint has the offset {json.dumps(offset)[:200]}, which is none of this"
        ' source ({"log": ID, "nodes": {NODE: offset}}): it is that of a query of another source,'
        " or harmed. Begin with a new checkpointLocation"
    )


def _when(time: int) -> str:
    """A time in µs, for people; one that has no date as it is."""
    try:
        return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{time} µs"


def _limited(
    begin: dict[str, int], ends: dict[str, int], found: dict[str, Bounds], most: int
) -> dict[str, int]:
    """`ends` so that at most `most` events are read, each node its share, one at least: where there
    are more nodes than that, those that have waited for most."""
    firsts = {node: max(begin[node], found[node].earliest) for node in ends}
    there = {node: max(ends[node] - firsts[node], 0) for node in ends}
    total = sum(there.values())
    if total <= most:
        return ends
    limited = {}
    left = most
    for node, count in sorted(there.items(), key=lambda each: each[1], reverse=True):
        share = min(count, left, max(1, most * count // total) if count else 0)
        left -= share
        limited[node] = max(firsts[node] + share, begin[node]) if share else begin[node]
    return limited
