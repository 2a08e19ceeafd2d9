"""Several logs as one: the brokers of a fleet in one query, told apart by the column `node`.

    "/srv/a/events;/srv/b/events"                 path
    "https://a1:8081,https://a2:8081;https://b"   url: `;` between brokers, `,` between addresses

A node is in one log only: its name says which. The id of all is theirs with `+` between, and says
whose each is, ``a=ID+b=ID``, as that of a cluster does (`pipeline.log.cluster`): a query that knew
some of them goes on when others join (`knows`), and nodes may be missing. Offsets of earlier
versions have a list's ids alone, ``ID+ID``. A broker that is away has nothing new to tell, and the
others go on; when it has been away for too long it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mqttd.pipeline.log.blocks import Block
from mqttd.pipeline.log.pull import Away, PullError, PullReader
from mqttd.pipeline.log.reader import Bounds, EventLog, Run

__all__ = ["ManyLogs", "alike", "archive_away", "joined", "knows", "left_out", "named",
           "of_nodes", "parts", "pull_of", "remade"]  # fmt: skip

_BETWEEN = ";"


def parts(text: str) -> list[str]:
    """The paths or URLs of the single logs."""
    return [one.strip() for one in text.split(_BETWEEN) if one.strip()]


def knows(now: str, before: str) -> bool:
    """Whether offsets of the log `before` mean the same in the log `now`."""
    return not _others(now, before)


def _others(now: str, before: str) -> set[str]:
    """The ids of `before` that are not in `now`, but for nodes that are not there."""
    there = set(now.split("+"))
    ids = _ids(now)
    nodes = {one.partition("=")[0] for one in there}
    return {
        one
        for one in before.split("+")
        if one
        and one.rpartition("=")[2] not in ids
        and not (_has_names(now) and "=" in one and one.partition("=")[0] not in nodes)
    }


def _ids(text: str) -> set[str]:
    return {one.rpartition("=")[2] for one in text.split("+")}


def left_out(now: str, before: str) -> set[str]:
    """The ids of `before` that a shorter list lacks; empty where another log is there instead."""
    there, known = _ids(now), _ids(before)
    return known - there if there < known else set()


def _has_names(log_id: str) -> bool:
    return not log_id or "=" in log_id


def named(log_id: str, nodes: Iterable[str]) -> str:
    """The id of a single log, saying that `nodes` are its."""
    return log_id if _has_names(log_id) else "+".join(f"{node}={log_id}" for node in sorted(nodes))


def remade(
    now: str, before: str, nodes: Iterable[str], ids: Mapping[str, str] | None = None
) -> set[str]:
    """Those of `nodes` whose log was made anew since `before`.

    :param ids: of a list of logs, which of them has which node now (`ManyLogs.ids`).
    """
    others = _others(now, before)
    if _has_names(now) and all("=" in one for one in others):
        return {one.partition("=")[0] for one in others}.intersection(nodes)
    if not others or left_out(now, before):
        return set()
    if ids is not None:
        known = _ids(before)
        return {node for node in nodes if ids.get(node) not in known}
    return set(nodes)


def joined(now: str, before: str) -> str:
    """The id of `now`, with what `before` had of nodes that are not there.

    So it has that of a broker which the list lacks: one that is put back is known again by it, and
    if it has another log by then its offset is not taken for one in that.
    """
    if not _has_names(now):
        return "+".join([now, *sorted(left_out(now, before))])
    ids = of_nodes(before) | of_nodes(now)
    nameless = {one for one in left_out(now, before) if one in before.split("+")}
    return "+".join([*(f"{node}={ids[node]}" for node in sorted(ids)), *sorted(nameless)])


def alike(before: str, after: str, offsets: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """The id `before` and offsets of it, without nodes that have another log in the id `after`."""
    then = of_nodes(before)
    others = {node for node, one in of_nodes(after).items() if then.get(node, one) != one}
    if others:
        before = "+".join(f"{node}={one}" for node, one in then.items() if node not in others)
    return before, {node: at for node, at in offsets.items() if node not in others}


def of_nodes(log_id: str) -> dict[str, str]:
    """Node -> the id of its log, as far as the id of several says."""
    found = (one.partition("=") for one in log_id.split("+") if "=" in one)
    return {node: one for node, _, one in found}


def _place(log: EventLog) -> str:
    """Where a log is, for people."""
    near = getattr(log, "near", log)
    return str(getattr(near, "url", "") or getattr(near, "path", ""))


def pull_of(log: EventLog | None) -> PullReader | None:
    """The endpoint that a log is read from, with an archive or without; None for a directory."""
    near = getattr(log, "near", log)
    return near if isinstance(near, PullReader) else None


def archive_away(log: EventLog | None) -> float | None:
    """For how many seconds the archive of a log, or of one of several, has been away, if it is."""
    logs = log.logs if isinstance(log, ManyLogs) else [log]
    away = [seconds for one in logs if (seconds := getattr(one, "archive_away", None)) is not None]
    return max(away, default=None)


class ManyLogs:
    """An `EventLog` of several; `patience`: seconds that one of them may be away.

    Raises ValueError when one of them is given twice.
    """

    def __init__(self, logs: Sequence[EventLog], patience: float) -> None:
        self.logs = list(logs)
        self.patience = patience
        ids: dict[str, EventLog] = {}
        for log in logs:
            if (other := ids.setdefault(log.log_id, log)) is not log:
                raise ValueError(
                    f"mqttd: the same log is named twice in path or url: {_place(other)} and"
                    f" {_place(log)} have log {log.log_id}. If these are two brokers, one of them"
                    " has a copy of the other's data directory: give it its own"
                )
        self.log_id = "+".join(ids)
        self._of: dict[str, EventLog] = {}
        self._last: dict[str, dict[str, Bounds]] = {}

    @property
    def away_seconds(self) -> float | None:
        """For how long one of the brokers has been away, None while all are there."""
        away = [pull.away_seconds for pull in self._pulls() if pull.away_since is not None]
        return max(away, default=None)

    def _pulls(self) -> list[PullReader]:
        return [pull for log in self.logs if (pull := pull_of(log)) is not None]

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it; of a broker that is away, what was there last."""
        found: dict[str, Bounds] = {}
        for log in self.logs:
            for node, there in self._bounds(log).items():
                if node in found:
                    raise ValueError(
                        f"mqttd: two of the logs have a node {node!r}, {_place(self._of[node])} and"
                        f" {_place(log)}: events of both cannot be told apart. Give each broker a"
                        " name of its own (node.name), and the data directory that is its own"
                    )
                found[node] = there
                self._of[node] = log
        self.log_id = "+".join(f"{node}={self._of[node].log_id}" for node in sorted(found))
        return found

    def ids(self) -> dict[str, str]:
        """Node -> the id of its log."""
        return {node: log.log_id for node, log in self._of.items()}

    def _bounds(self, log: EventLog) -> dict[str, Bounds]:
        last = self._last.get(log.log_id)
        pull = pull_of(log)
        if pull is None:
            last = log.bounds()
        else:
            pull.patience = self.patience if last is None else 0.0
            try:
                last = log.bounds()
            except Away as error:
                if last is None or pull.away_seconds >= self.patience:
                    raise PullError(str(error)) from None
                pull.tell(f"mqttd: {error}; the others go on, for up to {self.patience:.0f} s")
            finally:
                pull.patience = self.patience
        self._last[log.log_id] = last
        return last

    def _log(self, node: str) -> EventLog:
        if node not in self._of:
            self.bounds()
        return self._of[node]

    def blocks(self, node: str, start: int, end: int, whole: bool = True) -> list[Block]:
        """See `EventLog.blocks`."""
        return self._log(node).blocks(node, start, end, whole)

    def read_run(self, run: Run) -> bytes:
        """See `EventLog.read_run`."""
        return self._log(run.node).read_run(run)

    def commit(
        self, group: str, nodes: dict[str, int], stopped: bool = False, reader: str = ""
    ) -> None:
        """See `EventLog.commit`: each log hears of its own nodes, unless it is away."""
        for log in self.logs:
            pull = pull_of(log)
            if pull is not None and pull.away_since is not None:
                continue
            own = {node: at for node, at in nodes.items() if self._of.get(node) is log}
            log.commit(group, own, stopped, reader)

    def close(self) -> None:
        """See `EventLog.close`."""
        for log in self.logs:
            log.close()
