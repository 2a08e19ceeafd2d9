"""`mqttd-ctl cluster ...`: the nodes, as the one that is asked sees them.

Part of `mqttd.admin.ctl`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from mqttd.admin.ctl_client import client_of
from mqttd.admin.ctl_print import print_json, print_pairs, print_table

__all__ = ["add_commands"]


def add_commands(add: Callable[..., Any], cluster: Any) -> None:
    """Add the commands to the group `cluster`, with `add` of `mqttd.admin.ctl`."""
    add(cluster, "status", _status, "This node: its state, its routes, what has moved.")
    add(cluster, "nodes", _nodes, "The nodes that are there, as this one sees them.")
    routes = add(cluster, "routes", _routes, "The filters that nodes want.")
    routes.add_argument("node", metavar="NODE", nargs="?", default="", help="of this one alone")
    routes.add_argument("--limit", metavar="N", type=int, default=1000, help="how many (1000)")


def _status(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/cluster")
    if options.json:
        return print_json(answer)
    nodes = answer.pop("nodes")
    linked = sum(1 for node in nodes if node["linked"])
    answer["nodes"] = f"{len(nodes)}, {linked} linked"
    answer["proved_ago"] = f"{answer['proved_ago']:.1f} s"
    print_pairs((name.replace("_", " "), value) for name, value in answer.items())


def _nodes(options: argparse.Namespace) -> None:
    nodes = client_of(options).get("/cluster")["nodes"]
    if options.json:
        return print_json({"nodes": nodes})
    columns = ("node", "here", "linked", "ready", "filters", "kept", "address", "version", "epoch")
    print_table(nodes, columns)


def _routes(options: argparse.Namespace) -> None:
    query = urlencode({"node": options.node, "limit": options.limit})
    answer = client_of(options).get(f"/cluster/routes?{query}")
    if options.json:
        return print_json(answer)
    print_table(answer["routes"], ("topic_filter", "node"))
