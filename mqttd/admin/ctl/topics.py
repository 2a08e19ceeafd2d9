"""`mqttd-ctl topics busiest|metrics|count|uncount`: how many messages come to which topics.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from mqttd.admin.ctl.client import client_of
from mqttd.admin.ctl.printing import done, print_json, print_table

__all__ = ["add_commands"]


def add_commands(add: Callable[..., Any], topics: Any) -> None:
    """Add the commands to the group `topics`, with `add` of `mqttd.admin.ctl.main`."""
    command = add(topics, "busiest", _busiest, "Count for some seconds: the topics with most.")
    command.add_argument("--filter", metavar="FILTER", default="#", help="of these topics alone")
    command.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", default=2.0)
    command.add_argument("--limit", type=int, metavar="N", default=20)
    add(topics, "metrics", _metrics, "What came to the topics of each filter that is counted.")
    for name, run, text in (
        ("count", _count, "Count what comes to the topics of a filter."),
        ("uncount", _uncount, "Count it no more."),
    ):
        add(topics, name, run, text).add_argument("filter", metavar="FILTER")


def _busiest(options: argparse.Namespace) -> None:
    answer = client_of(options).get(
        "/topics/busiest",
        topic_filter=options.filter, seconds=options.seconds, limit=options.limit,
    )  # fmt: skip
    _show(options, answer)


def _metrics(options: argparse.Namespace) -> None:
    _show(options, client_of(options).get("/topic-metrics"))


def _show(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    if options.json:
        return print_json(answer)
    columns = ["topic", "message_rate", "byte_rate", "messages", "bytes", "seconds"]
    print_table(answer["topics"], columns)


def _count(options: argparse.Namespace) -> None:
    body = {"topic_filter": options.filter}
    answer = client_of(options).request("POST", "/topic-metrics", body)
    done(options, answer, f"{options.filter} is counted: mqttd-ctl topics metrics")


def _uncount(options: argparse.Namespace) -> None:
    query = urlencode({"topic_filter": options.filter})
    answer = client_of(options).request("DELETE", f"/topic-metrics?{query}")
    done(options, answer, f"{options.filter} is counted no more")
