"""Pipelines over the event log, each a program: ``python -m mqttd.pipeline.spark NAME --help``.

archive     everything to Parquet, by date and event, compacted
rates       messages and bytes per topic level and window
sessions    when devices were connected, how long, and the gaps between
anomalies   devices that flap, are denied or suddenly send much more, told to the broker
latest      the last value of each device and topic, as a table
latency     publish to delivered to acknowledged, percentiles

Each module has `frame` functions from DataFrame to DataFrame, for programs of your own, and runs
under spark-submit too. docs/howto/spark-pipelines.md shows them.
"""

__all__ = ["NAMES"]

NAMES = ("archive", "rates", "sessions", "anomalies", "latest", "latency")
