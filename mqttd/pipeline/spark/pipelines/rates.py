"""Messages and bytes per second, for each window and each level of the topic tree.

    plant/line1/temperature --> plant, plant/line1, plant/line1/temperature     (levels 1 to 3)

A window is final, and in the table, when events later than its end and the lateness are there.
"""

from __future__ import annotations

import argparse
from typing import Any

from mqttd.pipeline.spark.pipelines.command import main, prefix_of, source
from mqttd.pipeline.spark.pipelines.command import run as run_stream

__all__ = ["add_arguments", "frame", "run"]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    command.add_argument("--out", required=True, metavar="DIRECTORY", help="Parquet")
    command.add_argument("--window", default="1 minute", metavar="TIME", help="length of a window")
    command.add_argument(
        "--lateness", default="10 seconds", metavar="TIME", help="how long a window waits"
    )
    command.add_argument("--levels", type=int, default=2, metavar="N", help="deepest level")


def run(spark: Any, options: argparse.Namespace) -> None:
    """Compute rates into Parquet."""
    events = source(spark, options, "message.publish", columns="event,timestamp,topic,payload_size")
    found = frame(events, options.window, options.lateness, options.levels)
    run_stream(
        found, options, lambda to: to.format("parquet").option("path", options.out), options.out
    )


def frame(
    events: Any, window: str = "1 minute", lateness: str = "10 seconds", levels: int = 2
) -> Any:
    """From events (`timestamp`, `topic`, `payload_size`) to start, end, level, topic, messages,
    bytes, messages_per_second and bytes_per_second.
    """
    from pyspark.sql import functions as F

    depth = F.least(F.size(F.split("topic", "/")), F.lit(levels))
    return (
        events.where("event = 'message.publish' and topic is not null")
        .withWatermark("timestamp", lateness)
        .withColumn("level", F.explode(F.sequence(F.lit(1), depth)))
        .withColumn("topic", prefix_of(F.col("topic"), F.col("level")))
        .groupBy(F.window("timestamp", window), "level", "topic")
        .agg(F.count("*").alias("messages"), F.sum("payload_size").alias("bytes"))
        .selectExpr(
            "window.start as start",
            "window.end as end",
            "level",
            "topic",
            "messages",
            "bytes",
            "messages / (unix_micros(window.end) - unix_micros(window.start)) * 1e6"
            " as messages_per_second",
            "bytes / (unix_micros(window.end) - unix_micros(window.start)) * 1e6"
            " as bytes_per_second",
        )
    )


if __name__ == "__main__":
    raise SystemExit(main(name="rates"))
