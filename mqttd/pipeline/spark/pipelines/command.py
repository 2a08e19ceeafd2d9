"""What the pipelines have in common: their arguments, and how a query is started and ended.

    arguments --> session, register --> source(spark, options) --> the pipeline --> run(writer)

Promise: a mistake is one line on standard error and exit status 1 or 2; what was read is remembered
in the checkpoint, so that the next run goes on from there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mqttd.pipeline.log.many import parts
from mqttd.pipeline.log.reader import LogReader
from mqttd.pipeline.spark.options import local
from mqttd.pipeline.spark.pipelines import NAMES
from mqttd.pipeline.spark.sessions import NoJava, check_java, register, session

__all__ = ["main", "prefix_of", "run", "sink", "source", "start"]

#: Where a token is looked for when no file is named.
TOKEN: Final = "MQTTD_TOKEN"


def main(arguments: Sequence[str] | None = None, name: str = "") -> int:
    """Run a pipeline; `name` is that of a module that is run by itself.

    Returns the exit status.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m mqttd.pipeline.spark", description="Pipelines over mqttd's event log."
    )
    commands = parser.add_subparsers(required=True, metavar="PIPELINE", dest="pipeline")
    modules: dict[str, ModuleType] = {}
    for one in [name] if name else NAMES:
        module = importlib.import_module(f"mqttd.pipeline.spark.pipelines.{one}")
        text = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(one, help=text, description=text)
        _add_arguments(command)
        module.add_arguments(command)
        modules[one] = module
    if name:
        given = [name, *given]
    options = parser.parse_args(given)
    try:
        spark = start(options)
        modules[options.pipeline].run(spark, options)
    except (NoJava, ImportError, ValueError, OSError) as error:
        print(f"mqttd {options.pipeline}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("MQTTD_TRACEBACK"):
            raise
        print(f"mqttd {options.pipeline}: {_told(error)}", file=sys.stderr)
        return 1
    return 0


def _add_arguments(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--path", metavar="DIRECTORY", help="the event log, data/events")
    where.add_argument("--url", metavar="URL", help="a broker's pull endpoint, https://host:port")
    where.add_argument("--cluster", metavar="NAME", help="a cluster of brokers, with --etcd")
    command.add_argument("--etcd", metavar="URLS", default="", help="where etcd is, with commas")
    command.add_argument(
        "--token-file", metavar="FILE", help=f"not with --path: the token (default: ${TOKEN})"
    )
    command.add_argument("--ca-file", metavar="FILE", help="certificates to trust")
    command.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the format, such as outageTimeout=1h; may come several times",
    )
    command.add_argument("--subscribe", metavar="FILTERS", help="topic filters, comma-separated")
    command.add_argument(
        "--from",
        dest="start",
        metavar="PLACE",
        default="earliest",
        help="where the first run begins: earliest (default), latest, JSON of offsets, or a time",
    )
    command.add_argument("--max-events", type=int, metavar="N", help="in one micro-batch")
    command.add_argument("--min-partitions", type=int, metavar="N", help="tasks, at least")
    command.add_argument("--group", metavar="NAME", help="retention waits for this reader")
    command.add_argument(
        "--ignore-data-loss", action="store_true", help="go on where events are gone"
    )
    command.add_argument(
        "--follow", action="store_true", help="go on with what comes, instead of ending with it"
    )
    command.add_argument(
        "--trigger", metavar="TIME", default="10 seconds", help="with --follow: how often"
    )
    command.add_argument("--master", metavar="URL", help="where to run, such as local[2]")
    command.add_argument("--checkpoint", metavar="DIRECTORY", help="default: below --out")


def start(options: argparse.Namespace) -> Any:
    """The session a pipeline runs in, with the data source; UTC, and quiet on a laptop.

    Raises OSError or ValueError for a path where no log is, before Spark starts.
    """
    check_java()
    for path in _paths(options):
        LogReader(path)
    conf = {"spark__sql__session__timeZone": "UTC"}
    master, level = options.master, "ERROR"
    if (
        master is not None
        and master.startswith("local")
        or (master is None and "PYSPARK_GATEWAY_PORT" not in os.environ)
    ):
        conf |= {
            "spark__ui__enabled": "false",
            "spark__ui__showConsoleProgress": "false",
        }
        if not os.environ.get("MQTTD_TRACEBACK"):
            level = "OFF"  # what ends a query is told by `main`, in one line
    spark = session(f"mqttd {options.pipeline}", master, **conf)
    spark.sparkContext.setLogLevel(level)
    return register(spark)


def source(spark: Any, options: argparse.Namespace, events: str, **more: str) -> Any:
    """A stream of the log, as the arguments say.

    Raises ValueError or OSError for a token that cannot be had.
    """
    reader = spark.readStream.format("mqttd").option("events", events).options(**more)
    return _configured(reader, options).load()


def table(spark: Any, options: argparse.Namespace, events: str, **more: str) -> Any:
    """The log as it is now, for batch; as `source`."""
    reader = spark.read.format("mqttd").option("events", events).options(**more)
    return _configured(reader, options).load()


def _paths(options: argparse.Namespace) -> list[str]:
    return [local(one) for one in parts(options.path or "")]


def _configured(reader: Any, options: argparse.Namespace) -> Any:
    if options.path:
        reader = reader.option("path", ";".join(map(os.path.abspath, _paths(options))))
    else:
        token = os.environ.get(TOKEN, "")
        if options.token_file:
            lines = Path(options.token_file).read_text(encoding="utf-8").splitlines()
            token = next((one.strip() for one in lines if one[:1] not in ("", "#")), "")
        reader = reader.option("token", token)
        if options.url:
            reader = reader.option("url", options.url)
        else:
            reader = reader.option("cluster", options.cluster).option("etcd", options.etcd)
    for name, value in (
        ("caFile", _trusted(options)),
        ("subscribe", options.subscribe),
        ("startingOffsets", options.start),
        ("maxEventsPerTrigger", options.max_events),
        ("minPartitions", options.min_partitions),
        ("groupId", options.group),
    ):
        if value:
            reader = reader.option(name, str(value))
    for given in options.option:
        name, equals, value = given.partition("=")
        if not equals:
            raise ValueError(f"--option {given}: expected NAME=VALUE")
        reader = reader.option(name, value)
    return reader.option("failOnDataLoss", str(not options.ignore_data_loss).lower())


def _trusted(options: argparse.Namespace) -> str | None:
    """What is trusted where the log is read; None if that is said of the broker written to."""
    secure = options.cluster or "https:" in (options.url or "")
    return options.ca_file if secure or not getattr(options, "to_broker", None) else None


def run(
    frame: Any,
    options: argparse.Namespace,
    to: Callable[[Any], Any],
    out: str | None,
    mode: str = "append",
) -> Any:
    """Write a stream: to its end as it is now, or on and on; returns the query, ended.

    :param to: gives the writer its sink: ``lambda writer: writer.format(...)``.
    :param out: below which the checkpoint lies, unless the arguments say where.
    :raises ValueError: there is no place for a checkpoint.
    """
    checkpoint = options.checkpoint or (os.path.join(out, "_checkpoint") if out else None)
    if checkpoint is None:
        raise ValueError("--checkpoint DIRECTORY is needed: it remembers what was read")
    writer = to(frame.writeStream.outputMode(mode)).option("checkpointLocation", checkpoint)
    if options.follow:
        writer = writer.trigger(processingTime=options.trigger)
    else:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        raise
    rows = sum(one["numInputRows"] for one in query.recentProgress)
    print(json.dumps({"pipeline": options.pipeline, "events": rows, "out": out}), flush=True)
    return query


def sink(writer: Any, options: argparse.Namespace) -> Any:
    """The sink `mqttd`, with the arguments of `add_sink`."""
    writer = writer.format("mqttd").option("broker", options.to_broker)
    if options.user:
        writer = writer.option("username", options.user)
    if options.password_file:
        writer = writer.option("passwordFile", os.path.abspath(options.password_file))
    if options.ca_file:
        writer = writer.option("caFile", options.ca_file)
    return writer


def add_sink(command: argparse.ArgumentParser) -> None:
    """Arguments of a pipeline that publishes."""
    command.add_argument("--to-broker", metavar="HOST:PORT", help="publish to this broker")
    command.add_argument("--user", metavar="NAME", help="user name there")
    command.add_argument("--password-file", metavar="FILE", help="its password")


def prefix_of(topic: Any, levels: Any) -> Any:
    """The column of a topic's first `levels` levels."""
    from pyspark.sql import functions as F

    return F.array_join(F.slice(F.split(topic, "/"), F.lit(1), levels), "/")


def _told(error: Exception) -> str:
    """The line of an error of Spark's that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        kind, colon, text = line.partition(": ")
        if colon and kind.rpartition(".")[2].endswith(("Error", "DataLoss", "Exception")):
            return text
    return lines[0] if lines else type(error).__name__
