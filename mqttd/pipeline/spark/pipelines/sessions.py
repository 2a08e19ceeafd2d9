"""When devices were connected: pairs of connect and disconnect, durations, gaps between.

    connected ........ disconnected      connected .... connected (elsewhere) ....
              seconds              gap            reason: replaced

A row is written when a connection has ended. What is known of a client is kept until it has been
away for `--forget`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from mqttd.pipeline.spark.pipelines.command import main, source
from mqttd.pipeline.spark.pipelines.command import run as run_stream

__all__ = ["add_arguments", "frame", "run", "sessions_of"]

COLUMNS: Final = (
    "client_id STRING, username STRING, peer STRING, connected_at TIMESTAMP,"
    " disconnected_at TIMESTAMP, seconds DOUBLE, gap_seconds DOUBLE, reason STRING"
)
#: What comes later than that, behind the latest event of all nodes, is left out.
LATENESS: Final = "1 day"
#: connected at (µs, 0: is not), user name, peer, disconnected at (µs, 0: never)
STATE: Final = "connected BIGINT, username STRING, peer STRING, left BIGINT"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    command.add_argument("--out", required=True, metavar="DIRECTORY", help="Parquet")
    command.add_argument(
        "--forget", type=float, default=30.0, metavar="DAYS", help="clients away so long"
    )


def run(spark: Any, options: argparse.Namespace) -> None:
    """Compute sessions into Parquet."""
    events = source(
        spark,
        options,
        "client.connected,client.disconnected",
        columns="seq,event,timestamp,client_id,username,peer,reason",
    )
    found = frame(events, options.forget)
    run_stream(
        found, options, lambda to: to.format("parquet").option("path", options.out), options.out
    )


def frame(events: Any, forget_days: float = 30.0) -> Any:
    """From a stream of events to a stream of connections that have ended."""
    wanted = "event in ('client.connected', 'client.disconnected') and client_id is not null"
    forget = round(forget_days * 86_400_000)

    def step(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
            return
        known = state.get if state.exists else (0, None, None, 0)
        events = pd.concat(list(frames)).sort_values(["at", "seq"])
        rows, known = sessions_of(key[0], known, events.itertuples(index=False))
        state.update(known)
        if not known[0]:
            now = state.getCurrentWatermarkMs()
            state.setTimeoutTimestamp(max(known[3] // 1000 + forget, now + 1))
        names = [one.split()[0] for one in COLUMNS.split(", ")]
        if rows:
            made = pd.DataFrame(rows, columns=names)
            for name in ("connected_at", "disconnected_at"):
                made[name] = pd.to_datetime(made[name], unit="us")
            yield made

    return (
        events.where(wanted)
        # Event time and not the clock's: a run that ends with what is there would wait for that.
        .withWatermark("timestamp", LATENESS)
        .selectExpr(
            "timestamp",
            "client_id", "seq", "event", "unix_micros(timestamp) as at", "username", "peer",
            "reason",
        )
        .groupBy("client_id")
        .applyInPandasWithState(step, COLUMNS, STATE, "append", "EventTimeTimeout")
    )  # fmt: skip


Known = tuple[int, str | None, str | None, int]


def sessions_of(
    client_id: str, known: Known, events: Iterator[Any]
) -> tuple[list[tuple[Any, ...]], Known]:
    """Rows for connections that ended, and what is known after the events, which are in order."""
    connected, username, peer, left = known
    rows: list[tuple[Any, ...]] = []

    def ended(at: int, reason: str | None) -> None:
        gap = (connected - left) / 1e6 if left else None
        rows.append((client_id, username, peer, connected, at, (at - connected) / 1e6, gap, reason))

    for event in events:
        at = int(event.at)
        if event.event == "client.connected":
            if connected:
                ended(at, "replaced")
                left = at
            connected, username, peer = at, event.username, event.peer
        elif connected:
            ended(at, event.reason)
            connected, left = 0, at
        # A disconnect without its connect: that was before the first event.
    return rows, (connected, username, peer, left)


if __name__ == "__main__":
    raise SystemExit(main(name="sessions"))
