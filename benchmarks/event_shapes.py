"""What exporting costs by who publishes what to whom: python -m benchmarks.event_shapes [--help]

Of pairs that publish to the same topics over and over much is ready made, and what is the same of
many messages is told once. Here nothing repeats, nobody listens, what is published is stored or
refused, or its payload is some KiB of text: what families of users do, not fifty pairs.

A broker without the plugin and with every event exported take turns, each started afresh; shown is
what `benchmarks.event_payloads` shows, for each message that was delivered, of those marked * for
each that was sent. --acked measures `message.publish` with `acked_means_logged` too. Leaves with 1
if a ratio is beyond the bound: 2.0, at QoS 0 4, acked 3.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.brokers import StartError, raise_file_limit
from benchmarks.event_log import CORES, MOST, Exporting
from benchmarks.event_payloads import HEAD, by_turns, kept, row
from benchmarks.load import Failure, Mqttload, NotFound
from benchmarks.report import machine

__all__ = ["SHAPES", "Shape", "main"]


class Shape(NamedTuple):
    """Arguments of mqttload; `acl`: rules of the broker before its others."""

    name: str
    title: str
    qos: int
    arguments: str
    acl: str = ""


_NEW: Final = "--scenario wildcard --filters 0 --unique-topics --levels 8 --shared-topics"
_TEXT: Final = "--fill text --scenario p2p --pubs 20 --payload 2048"
_JSON: Final = "--fill text --vary"

SHAPES: Final = (
    Shape("unheard", "20 clients, 100,000 topics, JSON of 100 to 300 B, to nobody *", 1,
          f"--scenario wildcard --filters 0 --pubs 20 --subs 1 --unheard --topics 5000"
          f" --random-topics {_JSON} 100-300"),
    Shape("new", "topics of 8 levels that never come again, 2 readers", 1,
          f"{_NEW} --pubs 20 --subs 2"),
    Shape("new-unheard", "the same, to nobody *", 1, f"{_NEW} --pubs 20 --subs 1 --unheard"),
    Shape("away", "100 persistent sessions away, 120 B, while it is stored *", 1,
          "--scenario offline --subs 100 --pubs 10 --payload 120 --count 6000"),
    Shape("refused", "half refused, the other half to one reader, 5.0 *", 1,
          "--scenario fanin --pubs 20 --subs 1 --refuse", '{deny, all, publish, ["+/x/#"]}.\n'),
    Shape("text", "20 pairs, 2 KiB of JSON", 1, _TEXT),
    Shape("retained", "retained updates, 20 x 500 topics, 2 readers", 1,
          "--scenario wildcard --filters 0 --pubs 20 --subs 2 --topics 500 --shared-topics"
          " --retain"),
    Shape("shared", "shared group of seven, QoS 0 to 2", 1,
          "--scenario fanin --pubs 20 --subs 7 --share g --mix-qos"),
    Shape("properties", "5.0, properties that differ, QoS 0 to 2, 100 to 10", 1,
          "--scenario fanin --pubs 100 --subs 10 --props5 --mix-qos"),
    Shape("fan-in", "500 publishers to five readers of QoS 0", 1,
          "--scenario fanin --pubs 500 --subs 5 --sub-qos 0"),
    Shape("fan-out", "fan-out, 3 to 201, mixed, JSON of 200 to 600 B", 1,
          f"--scenario fanout --pubs 3 --subs 201 --topics 3 --mix-subs --mqtt5 {_JSON} 200-600"),
    Shape("new-0", "topics of 8 levels that never come again, 2 readers", 0,
          f"{_NEW} --pubs 20 --subs 2"),
    Shape("unheard-0", "20 clients, 100,000 topics, JSON of 100 to 300 B, 1 reader", 0,
          f"--scenario wildcard --filters 0 --pubs 20 --subs 20 --topics 5000 --random-topics"
          f" {_JSON} 100-300"),
    Shape("text-0", "20 pairs, 2 KiB of JSON", 0, _TEXT),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.event_shapes",
        description="What exporting costs by who publishes what to whom.",
    )
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--acked", action="store_true", help="acked_means_logged too")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=1.2, help="seconds (%(default)g)")
    parser.add_argument("--fresh", action="store_true", help="do not warm the page cache before")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    met = True
    try:
        raise_file_limit()
        load = Mqttload.find(given.mqttload, CORES[1], os.environ)
        print(f"{Exporting(None).version()}, {load.version()},"
              f" load average {machine()['load_average']:.1f}")  # fmt: skip
        print(HEAD.format("shape | QoS | what", "---|---:|---"), flush=True)
        for shape in (shape for shape in SHAPES if shape.name in given.only):
            variants = ["all", *(["acked"] if given.acked and shape.qos else [])]
            confs = [None, *map(kept, variants)]
            asked = [*shape.arguments.split(), *_qos(shape)]
            off, *rest = by_turns(given, load, asked, confs, shape.acl)
            for variant, on in zip(variants, rest, strict=True):
                print(row(f"{shape.title} | {shape.qos} | {variant}", off, on), flush=True)
                ratio = statistics.median(b.cpu / a.cpu for a, b in zip(off, on, strict=True))
                met = met and ratio <= MOST[variant, shape.qos]
    except (Failure, NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if met else 1


def _qos(shape: Shape) -> list[str]:
    return [] if "--mix-qos" in shape.arguments else ["--qos", str(shape.qos)]


if __name__ == "__main__":
    sys.exit(main())
