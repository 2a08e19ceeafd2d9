"""How long messages take: publish to delivered to acknowledged, joined by message id.

    message.publish --delivery--> message.delivered --acknowledgement--> message.acked
          '---------------------------- total ------------------------------'

Percentiles in milliseconds for each window and topic prefix, over everything the log has, or as a
stream with `--follow`. The plugin must export delivered and acked events (``events``, ``sample``).
A message with several receivers counts once for each.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from mqttd.pipeline.spark.pipelines.command import main, prefix_of, source, table
from mqttd.pipeline.spark.pipelines.command import run as run_stream

__all__ = ["add_arguments", "frame", "run"]

EVENTS: Final = "message.publish,message.delivered,message.acked"
SHARES: Final = (0.5, 0.95, 0.99)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    command.add_argument("--out", metavar="DIRECTORY", help="Parquet (default: print a table)")
    command.add_argument("--window", default="1 minute", metavar="TIME", help="length of a window")
    command.add_argument(
        "--longest", default="1 minute", metavar="TIME", help="what is later counts as never"
    )
    command.add_argument("--levels", type=int, default=1, metavar="N", help="of the topic")


def run(spark: Any, options: argparse.Namespace) -> None:
    """Compute percentiles, print or write them."""
    columns = {"columns": "event,timestamp,message_id,client_id,topic"}
    given = (options.window, options.longest, options.levels)
    if options.follow:
        if not options.out:
            raise ValueError("--follow needs --out")
        found = frame(source(spark, options, EVENTS, **columns), *given)
        run_stream(
            found, options, lambda to: to.format("parquet").option("path", options.out),
            options.out,
        )  # fmt: skip
        return
    found = frame(table(spark, options, EVENTS, **columns), *given).orderBy("start", "topic")
    if options.out:
        found.write.mode("overwrite").parquet(options.out)
        print(json.dumps({"pipeline": "latency", "out": options.out}))
    else:
        found.show(100, truncate=False)


def frame(events: Any, window: str = "1 minute", longest: str = "1 minute", levels: int = 1) -> Any:
    """From events to start, topic, deliveries, acked, and ``{delivery,ack,total}_p{50,95,99}``.

    Works for batch and for streams.
    """
    from pyspark.sql import functions as F

    def of(event: str, name: str, *columns: Any) -> Any:
        chosen = events.where(F.col("event") == event).select(
            F.col("message_id").alias(f"{name}_id"),
            F.col("timestamp").alias(f"{name}_at"),
            *columns,
        )
        return chosen.withWatermark(f"{name}_at", longest)

    published = of("message.publish", "publish", prefix_of(F.col("topic"), F.lit(levels))
                   .alias("topic"))  # fmt: skip
    delivered = of("message.delivered", "deliver", F.col("client_id").alias("receiver"))
    acked = of("message.acked", "ack", F.col("client_id").alias("acker"))
    # Clocks of one node: what is delivered was published, at the same microsecond at the earliest.
    # A millisecond of play, since events are stamped one after the other.
    near = f"between publish_at - interval 1 millisecond and publish_at + interval {longest}"

    def micros(name: str) -> Any:
        # As a number: a stream may have one column only that it tells its time by.
        return F.unix_micros(f"{name}_at").alias(f"{name}_us")

    pairs = published.join(delivered, F.expr(f"publish_id = deliver_id and deliver_at {near}"))
    pairs = pairs.select("publish_at", "topic", "deliver_id", "receiver", micros("deliver"))
    pairs = pairs.join(
        acked,
        F.expr(f"deliver_id = ack_id and receiver = acker and ack_at {near}"),
        "leftOuter",
    ).select("publish_at", "topic", micros("publish"), "deliver_us", micros("ack"))

    def took(begin: str, end: str) -> Any:
        # greatest() alone would make 0 of what never came.
        gone = (F.col(end) - F.col(begin)) / F.lit(1000.0)
        return F.when(gone.isNotNull(), F.greatest(gone, F.lit(0.0)))

    parts = {
        "delivery": took("publish_us", "deliver_us"),
        "ack": took("deliver_us", "ack_us"),
        "total": took("publish_us", "ack_us"),
    }
    percentiles = [
        F.percentile_approx(column, share, 10_000).alias(f"{name}_p{round(share * 100)}")
        for name, column in parts.items()
        for share in SHARES
    ]
    return (
        pairs.groupBy(F.window("publish_at", window), "topic")
        .agg(F.count("*").alias("deliveries"), F.count("ack_us").alias("acked"), *percentiles)
        .select("window.start", "topic", "deliveries", "acked",
                *[f"{name}_p{round(share * 100)}" for name in parts for share in SHARES])
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(name="latency"))
