"""`mqttd-ctl cluster ...`: the nodes, as the one that is asked sees them.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

from mqttd.admin.ctl.client import CtlError, NoAnswer, client_of
from mqttd.admin.ctl.join import add_command as add_join
from mqttd.admin.ctl.printing import (
    counted,
    done,
    duration_text,
    print_json,
    print_pairs,
    print_table,
)

__all__ = ["add_commands"]


def add_commands(add: Callable[..., Any], cluster: Any) -> None:
    """Add the commands to the group `cluster`, with `add` of `mqttd.admin.ctl.main`."""
    add(cluster, "status", _status, "This node: its state, its routes, what has moved.")
    add(cluster, "nodes", _nodes, "The nodes that are there, as this one sees them.")
    routes = add(cluster, "routes", _routes, "The filters that nodes want.")
    routes.add_argument("node", metavar="NODE", nargs="?", default="", help="of this one alone")
    routes.add_argument("--limit", metavar="N", type=int, default=1000, help="how many (1000)")
    add_join(add, cluster)
    text = "Send clients elsewhere, hand the sessions over to other nodes, then end this one."
    leave = add(cluster, "leave", _leave, text)
    text = "Have a node send its clients elsewhere and hand its sessions over, and stay."
    drain = add(cluster, "drain", _drain, text)
    drain.add_argument("node", metavar="NODE")
    for command in (leave, drain):
        command.add_argument(
            "--rate", metavar="N", type=float, default=100.0, help="clients/s (100)"
        )
        command.add_argument("--to", metavar="HOST", default="", help="where clients are sent")
    text = "Put a node out: it is no member until `join` there."
    force = add(cluster, "force-leave", _force_leave, text)
    force.add_argument("node", metavar="NODE")
    text = "also one of a name that no node here has or had"
    force.add_argument("--anyway", action="store_true", help=text)
    text = "take that back: it may be a member again, and a mistyped name is forgotten"
    force.add_argument("--undo", action="store_true", help=text)


def _status(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/cluster")
    if options.json:
        return print_json(answer)
    nodes, away = answer.pop("nodes"), answer.pop("away")
    linked = sum(1 for node in nodes if node["linked"])
    answer["nodes"] = f"{len(nodes)}, {linked} linked"
    if away:
        answer["away"] = ", ".join(f"{node['node']} ({node['state']})" for node in away)
    ago = answer["proved_ago"]
    answer["proved_ago"] = "-" if ago is None else f"{ago:.1f} s"
    silent, errors = answer.pop("etcd_silent"), answer.pop("etcd_errors")
    if silent is not None:
        why = "; ".join(f"{each['endpoint']}: {each['reason']}" for each in errors)
        answer["etcd_silent"] = f"for {silent:.1f} s: {why}"
    answer["etcd_refuses"] = answer["etcd_refuses"] or "nothing"
    print_pairs((name.replace("_", " "), value) for name, value in answer.items())


def _nodes(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/cluster")
    nodes, away = answer["nodes"], answer["away"]
    if options.json:
        return print_json({"nodes": nodes, "away": away})
    columns = ("node", "here", "linked", "ready", "connections", "sessions", "filters", "kept",
               "address", "version", "epoch", "reason")  # fmt: skip
    for node in nodes:
        if node["here"]:
            node["linked"] = "-"  # a node needs no stream to itself
    print_table(nodes, columns)
    if away:
        print()
        for node in away:
            for key in ("away", "waits"):
                node[key] = "-" if node[key] is None else duration_text(node[key])
        print_table(away, ("node", "state", "by", "away", "waits", "kept", "kept_bytes"))


def _routes(options: argparse.Namespace) -> None:
    query = urlencode({"node": options.node, "limit": options.limit})
    answer = client_of(options).get(f"/cluster/routes?{query}")
    if options.json:
        return print_json(answer)
    print_table(answer["routes"], ("topic_filter", "node"))


def _leave(options: argparse.Namespace) -> None:
    body = {"rate": options.rate, "to": options.to}
    client = client_of(options)
    answer = client.request("POST", "/cluster/leave", body)
    stays, told = 0, ""
    try:
        while True:
            left = client.get("/drain")["left"]
            stays = client.get("/cluster")["stays"]
            text = f"{counted(left, 'client')} still here" if left else "handing sessions over"
            if not options.json and text != told:
                print(text, flush=True)
                told = text
            time.sleep(1)
    except NoAnswer:
        raise  # so it has not ended
    except CtlError:
        if stays:
            text = f"no other node has taken {counted(stays, 'session')}; the node has ended"
            raise CtlError(f"{text}: {_STAY}") from None
        done(options, answer, "the sessions are handed over; the node has ended")


_STAY: Final = "they stay in its store, or go to its heir where they are replicated"


_DRAINS: Final = "out of use until `mqttd-ctl drain --cancel` there, or a restart"


def _drain(options: argparse.Namespace) -> None:
    body = {"rate": options.rate, "to": options.to}
    answer = client_of(options).request("POST", f"/cluster/nodes/{quote(options.node)}/drain", body)
    done(options, answer, f"node {options.node} is asked to drain: {_DRAINS}")


def _force_leave(options: argparse.Namespace) -> None:
    path = f"/cluster/nodes/{quote(options.node)}/force-leave"
    if options.undo:
        answer = client_of(options).request("POST", path, {"undo": True})
        said = "is not put out any more" if answer["done"] else "was not put out"
        return done(options, answer, f"node {options.node} {said}")
    answer = client_of(options).request("POST", path, {"anyway": options.anyway})
    said = "is out" if answer["done"] else "is not there, and is out when it comes"
    done(options, answer, f"node {options.node} {said}, until `mqttd-ctl cluster join` there")
