"""`mqttd-ctl sessions, subscriptions, topics, routes, retained ...`: what the broker keeps.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from mqttd.admin.ctl import topics as ctl_topics
from mqttd.admin.ctl.client import client_of, of_node
from mqttd.admin.ctl.printing import (
    counted,
    done,
    lasting,
    print_json,
    print_pairs,
    print_table,
)
from mqttd.printable import printable

__all__ = ["add_commands"]

Json = dict[str, Any]

#: What a session has beside its client.
_OF_A_SESSION = (
    "client_id", "connected", "session_age", "away", "session_expiry_interval", "will",
    "subscriptions", "inflight", "awaiting_rel", "mqueue", "mqueue_bytes",
)  # fmt: skip


def add_commands(add: Callable[..., Any], group: Callable[..., Any]) -> None:
    """Add the groups, with `add` and `group` of `mqttd.admin.ctl.main`."""
    sessions = group("sessions", "What is kept for clients, connected or not.")
    listing = of_node(add(sessions, "list", _sessions_list, "List sessions."))
    listing.add_argument("--user", metavar="NAME", help="of this user name")
    listing.add_argument("--state", choices=("connected", "away"))
    for name, run, text in (
        ("show", _sessions_show, "Show one session and its subscriptions."),
        ("end", _sessions_end, "End a session with all that is kept, and its connection."),
    ):
        of_node(add(sessions, name, run, text)).add_argument("client_id", metavar="ID")

    subscriptions = group("subscriptions", "Who subscribes to what.")
    listing = of_node(add(subscriptions, "list", _subscriptions_list, "List subscriptions."))
    listing.add_argument("--client", metavar="ID", help="of this client only")
    for name, run, text in (
        ("add", _subscriptions_add, "Subscribe a client; its access rules are asked."),
        ("delete", _subscriptions_delete, "End a subscription of a client."),
    ):
        command = of_node(add(subscriptions, name, run, text))
        command.add_argument("client_id", metavar="ID")
        command.add_argument("topic_filter", metavar="FILTER")
        if name == "add":
            command.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)

    topics = group("topics", "What is subscribed to, and how many messages come.")
    ctl_topics.add_commands(add, topics)
    text = "List filters with the number of their subscribers."
    of_node(add(topics, "list", _topics_list, text))

    routes = group("routes", "Where messages go.")
    show = of_node(add(routes, "show", _routes_show, "Show who gets a message to a topic."))
    show.add_argument("topic", metavar="TOPIC")

    retained = group("retained", "The last message of each topic, where one is kept.")
    listing = add(retained, "list", _retained_list, "List the topics that have one.")
    listing.add_argument("filter", metavar="FILTER", nargs="?", default="#")
    show = add(retained, "show", _retained_show, "Show one with its payload.")
    show.add_argument("topic", metavar="TOPIC")
    show.add_argument("--payload", action="store_true", help="the payload alone, as it is")
    delete = add(retained, "delete", _retained_delete, "Forget those of a filter.")
    delete.add_argument("filter", metavar="FILTER")
    delete.add_argument("--dry-run", action="store_true", help="say which they are, and stop")


def _sessions_list(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.pages("/clients", "clients", username=options.user, state=options.state)
    rows = [_of_a_session(one) for one in found]
    if options.json:
        return print_json(client.found("sessions", rows))
    print_table([lasting(row) for row in rows], _OF_A_SESSION)


def _of_a_session(client: Json) -> Json:
    """What is shown of a session, with its worker or node where there are some."""
    return {name: client[name] for name in (*_OF_A_SESSION, "worker", "node") if name in client}


def _sessions_show(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.get("/clients/" + quote(options.client_id, safe=""))
    held = client.get("/subscriptions", client_id=options.client_id)["subscriptions"]
    shown = _of_a_session(found)
    if options.json:
        return print_json({**shown, "subscriptions": held})
    print_pairs([(name.replace("_", " "), value) for name, value in lasting(shown).items()])
    if held:
        print()
        print_table(held, ["topic_filter", "qos", "no_local", "subscription_identifier"])


def _sessions_end(options: argparse.Namespace) -> None:
    path = "/sessions/" + quote(options.client_id, safe="")
    answer = client_of(options).request("DELETE", path)
    done(options, answer, f"ended the session of {options.client_id}")


def _subscriptions_list(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.client is not None:
        found = client.get("/subscriptions", client_id=options.client)["subscriptions"]
    else:
        found = client.pages("/subscriptions", "subscriptions")
    if options.json:
        return print_json(client.found("subscriptions", found))
    print_table(
        found,
        ["client_id", "topic_filter", "qos", "no_local", "retain_as_published",
         "subscription_identifier"],
    )  # fmt: skip


def _subscriptions_add(options: argparse.Namespace) -> None:
    body = {
        "client_id": options.client_id,
        "topic_filter": options.topic_filter,
        "qos": options.qos,
    }
    answer = client_of(options).request("POST", "/subscriptions", body)
    text = f"{options.client_id} subscribes to {options.topic_filter} with QoS {answer['qos']}"
    done(options, answer, text)


def _subscriptions_delete(options: argparse.Namespace) -> None:
    query = urlencode({"client_id": options.client_id, "topic_filter": options.topic_filter})
    answer = client_of(options).request("DELETE", f"/subscriptions?{query}")
    done(options, answer, f"{options.client_id} does not subscribe to {options.topic_filter} now")


def _topics_list(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.pages("/topics", "topics")
    if options.json:
        return print_json(client.found("topics", found))
    rows = [{**row, "nodes": ", ".join(row.get("nodes", ()))} for row in found]
    columns = ["topic_filter", "subscribers"]
    if any(row["nodes"] for row in rows):
        columns.append("nodes")
    print_table(rows, columns)


def _routes_show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/routes", topic=options.topic)
    if options.json:
        return print_json(answer)
    for row in answer["routes"]:
        more = row["receivers"] - len(row["clients"])
        row["clients"] = ", ".join(row["clients"]) + (f" and {more} more" if more > 0 else "")
    print_table(answer["routes"], ["topic_filter", "group", "receivers", "clients"])


def _retained_list(options: argparse.Namespace) -> None:
    found = client_of(options).pages("/retained", "retained", filter=options.filter)
    if options.json:
        return print_json({"retained": found})
    rows = [lasting(row) for row in found]
    print_table(rows, ["topic", "qos", "bytes", "publisher", "username", "expires_in"])


def _retained_show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/retained/" + quote(options.topic, safe=""))
    if options.json:
        return print_json(answer)
    payload = base64.b64decode(answer.pop("payload_base64"))
    if options.payload:
        sys.stdout.flush()
        sys.stdout.buffer.write(payload)
        return None
    print_pairs([(name.replace("_", " "), value) for name, value in lasting(answer).items()])
    print()
    print(printable(payload.decode("utf-8", "backslashreplace")))
    return None


def _retained_delete(options: argparse.Namespace) -> None:
    query = {"filter": options.filter, **({"dry_run": "true"} if options.dry_run else {})}
    answer = client_of(options).request("DELETE", f"/retained?{urlencode(query)}")
    if options.json:
        return print_json(answer)
    for topic in answer["topics"]:
        print(printable(topic))
    if answer["count"] > len(answer["topics"]):
        print("...")
    messages = counted(answer["count"], "retained message")
    print(f"deleted {messages}" if answer["deleted"] else f"would delete {messages}")
    return None
