"""Devices that flap, are denied again and again, or suddenly send much more: told to the broker.

    events of a client in a bucket of time --> flapping   `--flapping` connects
                                               denied     `--denied` denials
                                               spike      messages: mean of its buckets + `--sigma`
                                                          standard deviations, and `--spike`

A flag is raised once per client, bucket and kind, as soon as it is seen, and published to
``PREFIX/kind/client`` as JSON; with `--out` it goes to Parquet. Mean and deviation are exponential
averages of the client's earlier buckets, of which there must be five.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from mqttd.pipeline.spark.pipelines.command import add_sink, main, sink, source
from mqttd.pipeline.spark.pipelines.command import run as run_stream

__all__ = ["Limits", "add_arguments", "flags_of", "frame", "messages", "run"]

COLUMNS: Final = "client_id STRING, kind STRING, start TIMESTAMP, count BIGINT, usual DOUBLE"
#: bucket (s), its connects, denials and messages, bit mask of flags raised; mean, variance, buckets
STATE: Final = (
    "bucket BIGINT, connects BIGINT, denials BIGINT, messages BIGINT, raised INT, mean DOUBLE,"
    " variance DOUBLE, buckets BIGINT"
)
#: Weight of a bucket in the averages.
WEIGHT: Final = 0.1
#: Buckets before a spike can be told from the usual.
ENOUGH: Final = 5

EVENTS: Final = "client.connected,client.authenticate,client.authorize,message.publish"


class Limits:
    """When a flag is raised."""

    def __init__(
        self,
        flapping: int = 10,
        denied: int = 10,
        spike: int = 100,
        sigma: float = 4.0,
        seconds: int = 60,
    ) -> None:
        self.flapping = flapping
        self.denied = denied
        self.spike = spike
        self.sigma = sigma
        self.seconds = seconds


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    add_sink(command)
    command.add_argument("--topic", default="anomalies", metavar="PREFIX", help="of the flags")
    command.add_argument("--out", metavar="DIRECTORY", help="Parquet, in place of --to-broker")
    command.add_argument("--bucket", type=int, default=60, metavar="SECONDS")
    command.add_argument("--flapping", type=int, default=10, metavar="N", help="connects a bucket")
    command.add_argument("--denied", type=int, default=10, metavar="N", help="denials a bucket")
    command.add_argument("--spike", type=int, default=100, metavar="N", help="messages, at least")
    command.add_argument("--sigma", type=float, default=4.0, metavar="X", help="deviations")


def run(spark: Any, options: argparse.Namespace) -> None:
    """Find anomalies, publish or write them."""
    if bool(options.to_broker) == bool(options.out):
        raise ValueError("give one of --to-broker and --out")
    events = source(spark, options, EVENTS, columns="event,timestamp,client_id,topic")
    limits = Limits(options.flapping, options.denied, options.spike, options.sigma, options.bucket)
    # What this pipeline publishes is no device's doing.
    own = options.topic.rstrip("/") + "/"
    found = frame(events.where(f"topic is null or not startswith(topic, {own!r})"), limits)
    if options.out:
        run_stream(
            found, options, lambda to: to.format("parquet").option("path", options.out),
            options.out,
        )  # fmt: skip
    else:
        run_stream(messages(found, own), options, lambda to: sink(to, options), None)


def frame(events: Any, limits: Limits | None = None) -> Any:
    """From a stream of events to a stream of flags."""
    limits = limits or Limits()
    given = dict(limits.__dict__)

    def step(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        known = state.get if state.exists else (0, 0, 0, 0, 0, 0.0, 0.0, 0)
        counts = pd.concat(list(frames)).sort_values("bucket")
        rows, known = flags_of(key[0], known, counts.itertuples(index=False), Limits(**given))
        state.update(known)
        if rows:
            made = pd.DataFrame(rows, columns=[one.split()[0] for one in COLUMNS.split(", ")])
            made["start"] = pd.to_datetime(made["start"], unit="s")
            yield made

    return (
        events.where("client_id is not null")
        .selectExpr(
            "client_id",
            f"unix_seconds(timestamp) div {limits.seconds} * {limits.seconds} as bucket",
            "int(event = 'client.connected') as connects",
            "int(event in ('client.authenticate', 'client.authorize')) as denials",
            "int(event = 'message.publish') as messages",
        )
        .groupBy("client_id")
        .applyInPandasWithState(step, COLUMNS, STATE, "append", "NoTimeout")
    )


def flags_of(
    client_id: str, known: tuple[Any, ...], counts: Iterator[Any], limits: Limits
) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """Flags of a client, and what is known of it after counts, which are in order of buckets."""
    bucket, connects, denials, sent, raised, mean, variance, buckets = known
    rows: list[tuple[Any, ...]] = []
    for one in counts:
        at = int(one.bucket)
        if at > bucket:
            if bucket:
                # Buckets without an event count as well, though not for ever.
                for count in [sent] + [0] * min((at - bucket) // limits.seconds - 1, 50):
                    apart = count - mean
                    weight = max(WEIGHT, 1 / (buckets + 1))
                    mean += weight * apart
                    variance = (1 - weight) * (variance + weight * apart * apart)
                    buckets += 1
            bucket, connects, denials, sent, raised = at, 0, 0, 0, 0
        connects += int(one.connects)
        denials += int(one.denials)
        sent += int(one.messages)
        spike = max(float(limits.spike), mean + limits.sigma * variance**0.5)
        for bit, kind, count, limit, usual in (
            (1, "flapping", connects, limits.flapping, None),
            (2, "denied", denials, limits.denied, None),
            (4, "spike", sent, spike if buckets >= ENOUGH else float("inf"), mean),
        ):
            if count >= limit and not raised & bit:
                raised |= bit
                rows.append((client_id, kind, bucket, count, usual))
    return rows, (bucket, connects, denials, sent, raised, mean, variance, buckets)


def messages(flags: Any, prefix: str) -> Any:
    """Flags as messages for the sink."""
    from pyspark.sql import functions as F

    # A client id is no topic level: it may have wildcards and slashes.
    name = F.regexp_replace("client_id", "[+#/\\x00]", "_")
    return flags.select(
        F.concat(F.lit(prefix), "kind", F.lit("/"), name).alias("topic"),
        F.to_json(F.struct("client_id", "kind", "start", "count", "usual")).alias("payload"),
        F.lit(1).alias("qos"),
    )


if __name__ == "__main__":
    raise SystemExit(main(name="anomalies"))
