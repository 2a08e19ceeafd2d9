"""`mqttd-ctl status, metrics, memory, clients, hooks, publish`: look, kick, say.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from mqttd.admin.ctl.client import CtlError, client_of, of_node
from mqttd.admin.ctl.printing import (
    bytes_text,
    counted,
    done,
    duration_text,
    lasting,
    print_json,
    print_pairs,
    print_table,
    time_text,
)

__all__ = ["add_clients", "add_hooks", "add_publish"]

Json = dict[str, Any]


def add_clients(add: Callable[..., Any], group: Callable[..., Any], commands: Any) -> None:
    """Add what shows the broker and its clients, with `add` and `group` of
    `mqttd.admin.ctl.main`."""
    of_node(add(commands, "status", _status, "Who and where the broker is, and what it holds."))
    of_node(add(commands, "metrics", _metrics, "All counters and gauges."))
    text = "Who holds how much memory: by kind, and who holds most."
    of_node(add(commands, "memory", _memory, text))

    clients = group("clients", "Clients, connected or with a session that waits for them.")
    text = "List clients, all of them or those that fit."
    listing = of_node(add(clients, "list", _clients_list, text))
    listing.add_argument("--user", metavar="NAME", help="with this user name")
    listing.add_argument("--address", metavar="IP", help="from this address or network")
    listing.add_argument("--listener", metavar="KIND:NAME", help="of this listener")
    listing.add_argument("--state", choices=("connected", "away"))
    listing.add_argument(
        "--columns",
        metavar="NAME,...",
        help="these columns: names as `clients show` has them, or all",
    )
    for name, run, text in (
        ("show", _clients_show, "Show one client."),
        ("kick", _clients_kick, "End a client's connection."),
    ):
        command = of_node(add(clients, name, run, text))
        command.add_argument("client_id", metavar="ID")
    command.add_argument(
        "--reason",
        metavar="CODE",
        default="0x98",
        help="reason code for a 5.0 client: 0x98 administrative action (default), 0x87, ...",
    )

    command.add_argument(
        "--discard", action="store_true", help="end its session too, with all that waits for it"
    )


def add_hooks(add: Callable[..., Any], group: Callable[..., Any]) -> None:
    """Add what shows who listens in."""
    hooks = group("hooks", "Hook points.")
    of_node(add(hooks, "list", _hooks_list, "List hook points with callbacks."))


def add_publish(add: Callable[..., Any], commands: Any) -> None:
    """Add `publish`."""
    publish = add(commands, "publish", _publish, "Publish a message as the broker itself.")
    publish.add_argument("topic", metavar="TOPIC")
    publish.add_argument("payload", metavar="PAYLOAD", help="text; - reads standard input")
    publish.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)
    publish.add_argument("--retain", action="store_true")


def _status(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/status")
    if options.json:
        return print_json(answer)
    how = "compiled" if answer["compiled"] else "pure Python"
    print_pairs(
        [
            ("name", answer["name"]),
            ("version", f"{answer['version']} ({how}), Python {answer['python']}"),
            ("pid", answer["pid"]),
            ("uptime", duration_text(answer["uptime"])),
            ("who may connect", answer["who_may_connect"]),
            *((_SAID.get(name, name.replace("_", " ")), value)
              for name, value in answer["stats"].items() if name != "uptime_seconds"),
        ]
    )  # fmt: skip
    print()
    print_table(
        answer["listeners"],
        ["name", "kind", "host", "port", "transport", "connections", "max_connections"],
    )
    if "workers" in answer:
        print()
        print_table(
            [lasting(one) for one in answer["workers"]],
            ["worker", "pid", "state", "uptime", "connections", "sessions", "subscriptions"],
        )
    if "nodes" in answer:
        print()
        print_table(
            [{"node": one["name"], **lasting(one)} for one in answer["nodes"]],
            ["node", "here", "state", "version", "uptime", "connections", "sessions"],
        )


#: Gauges whose name alone would mislead.
_SAID = {
    "retained_messages": "retained messages (with $SYS)",
    "retained_bytes": "retained bytes (with $SYS)",
    "sessions": "sessions (connected and away)",
}


def _metrics(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/metrics")
    if options.json:
        return print_json(answer)
    print_pairs([*answer["gauges"].items(), *answer["counters"].items()])


def _memory(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/memory")
    if options.json:
        return print_json(answer)
    print_pairs(
        [
            ("budget", bytes_text(answer["budget"]) if answer["budget"] else "none"),
            ("held", bytes_text(answer["held"])),
            ("counted", bytes_text(answer["used"])),
            ("process grown by", bytes_text(answer["grown"])),
            ("not accounted for", bytes_text(answer["unexplained"])),
            *([("what is done", answer["step"])] if answer["step"] else []),
            ("not let in", bytes_text(answer["unauthenticated"])),
            *((name, bytes_text(size)) for name, size in answer["kinds"].items()),
        ]
    )
    for row in (*answer["sessions"], *answer["users"]):
        for name in ("bytes", "queued", "inflight"):
            if name in row:
                row[name] = bytes_text(row[name])
    print()
    print_table(
        answer["sessions"],
        ["client_id", "username", "connected", "bytes", "queued", "inflight", "subscriptions"],
    )
    if answer["users"]:
        print()
        print_table(answer["users"], ["username", "sessions", "retained", "bytes"])


def _clients_list(options: argparse.Namespace) -> None:
    client = client_of(options)
    clients = client.pages(
        "/clients",
        "clients",
        username=options.user,
        address=options.address,
        listener=options.listener,
        state=options.state,
    )
    if options.json:
        return print_json(client.found("clients", clients))
    clients = [_readable(one) for one in clients]
    print_table(clients, _columns(options.columns, clients))


#: The columns of a list that nobody asked for others.
_COLUMNS = ("client_id", "username", "connected", "peer", "listener", "connected_at",
            "messages_received", "messages_dropped", "subscriptions", "inflight",
            "mqueue")  # fmt: skip


def _columns(wanted: str | None, clients: list[Json]) -> list[str]:
    """The columns to print; CtlError for one that no client has."""
    if wanted is None or not clients:
        return list(_COLUMNS)
    if wanted == "all":
        return list(clients[0])
    names = [name.strip().replace(" ", "_") for name in wanted.split(",")]
    for name in names:
        if name not in clients[0]:
            raise CtlError(f"no column {name!r}; there are: {', '.join(clients[0])}")
    return names


def _readable(client: Json) -> Json:
    """Its address in one piece, times as people read them."""
    client["peer"] = _peer(client)
    if client["connected_at"] is not None:
        client["connected_at"] = time_text(client["connected_at"])
    return lasting(client)


def _clients_show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/clients/" + quote(options.client_id, safe=""))
    if options.json:
        return print_json(answer)
    answer = _readable(answer)
    hidden = ("peerhost", "peerport")
    print_pairs(
        [(name.replace("_", " "), value) for name, value in answer.items() if name not in hidden]
    )


def _clients_kick(options: argparse.Namespace) -> None:
    path = "/clients/" + quote(options.client_id, safe="")
    query = {"reason_code": options.reason, **({"discard": "true"} if options.discard else {})}
    answer = client_of(options).request("DELETE", f"{path}?{urlencode(query)}")
    what = "session" if options.discard else "connection"
    done(options, answer, f"ended the {what} of {options.client_id}")


def _hooks_list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/hooks")
    if options.json:
        return print_json(answer)
    rows = [
        {
            "point": point["point"],
            **callback,
            "topic_filter": " ".join(callback["topic_filter"]),
            "client": " ".join(callback["client"]),
        }
        for point in answer["hooks"]
        for callback in point["callbacks"]
    ]
    print_table(
        rows,
        ["point", "priority", "callback", "topic_filter", "client", "owner", "state", "errors"],
    )


def _publish(options: argparse.Namespace) -> None:
    if options.payload == "-":
        payload = sys.stdin.buffer.read()
    else:
        payload = os.fsencode(options.payload)
    answer = client_of(options).request(
        "POST",
        "/publish",
        {
            "topic": options.topic,
            "payload_base64": base64.b64encode(payload).decode(),
            "qos": options.qos,
            "retain": options.retain,
        },
    )
    done(options, answer, f"published to {counted(answer['receivers'], 'receiver')}")


def _peer(client: Json) -> str:
    host = client["peerhost"]
    if not host:
        return ""
    return f"[{host}]:{client['peerport']}" if ":" in host else f"{host}:{client['peerport']}"
