"""`mqttd-ctl why`, `mqttd-ctl trace ...`: what became of a message, and whose are followed.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from mqttd.admin.ctl.client import CtlError, client_of, of_node
from mqttd.admin.ctl.printing import done, print_json, print_table, seconds_of, time_text
from mqttd.printable import printable

__all__ = ["add_commands", "step_text"]


def add_commands(add: Callable[..., Any], group: Callable[..., Any], commands: Any) -> None:
    """Add `why` and the group `trace`, with `add` and `group` of `mqttd.admin.ctl.main`."""
    text = "What became of a message, and why it was lost."
    command = of_node(add(commands, "why", _why, text))
    command.add_argument("id", metavar="MESSAGE_ID", nargs="?", help="32 hexadecimal digits")
    command.add_argument("--client", metavar="ID", help="messages from or to this client")
    command.add_argument("--topic", metavar="FILTER", help="messages to these topics")
    command.add_argument("--since", metavar="TIME", help="not older than this, such as 10m or 2h")
    command.add_argument("--reason", metavar="REASON", help="lost for this reason: queue_full, ...")
    command.add_argument("--lost", action="store_true", help="only messages that were lost")
    command.add_argument("--limit", metavar="N", type=int, default=50, help="at most so many (50)")

    traces = group("trace", "Whose messages are followed from hand to hand, for `why`.")
    of_node(add(traces, "list", _list, "List the clients and topics that are traced."))
    for kind, name in (("client", "ID"), ("topic", "FILTER")):
        command = of_node(add(traces, kind, _trace, f"Follow the messages of a {kind}."))
        command.set_defaults(kind=kind)
        command.add_argument("value", metavar=name)
        command.add_argument(
            "--for", dest="duration", metavar="TIME", help="how long, such as 10m (until stopped)"
        )
    command = of_node(add(traces, "stop", _stop, "Follow them no more."))
    command.add_argument("kind", metavar="KIND", choices=("client", "topic"), help="client, topic")
    command.add_argument("value", metavar="VALUE")


def _why(options: argparse.Namespace) -> int:
    client = client_of(options)
    if options.id is not None:
        if options.client or options.topic or options.since or options.reason or options.lost:
            raise CtlError("why: name a message id, or what to look for")
        lives, unrecorded = [client.get(f"/why/{options.id}")], {}
        found: Any = lives[0]
    else:
        since = None
        if options.since is not None:
            since = time.time() - seconds_of("--since", options.since)
        found = client.get(
            "/why", client_id=options.client, topic=options.topic, since=since,
            reason=options.reason, lost="true" if options.lost else None, limit=options.limit,
        )  # fmt: skip
        lives, unrecorded = found["messages"], found["unrecorded"]
    if options.json:
        print_json(found)
        return 0
    for life in lives:
        _print(life)
    for reason, count in unrecorded.items():
        print(f"and {count} more for {reason}, which are not kept one by one")
    if not lives and not unrecorded:
        print("nothing is kept of such messages: of those that arrive only what `trace` follows is")
    return 0


def _print(life: dict[str, Any]) -> None:
    # Of what was dropped out of a queue nobody has kept who had sent it.
    source = life["client_id"] or "the broker, or a client that is not known any more"
    print(printable(f"{life['id']}  {life['topic']}  from {source}"))
    for sentence in life["answer"]:
        print(printable(f"  lost: {sentence}"))
    for step in life["steps"]:
        print(printable(f"  {time_text(step['at'], exact=True)}  {step_text(step)}"))


def step_text(step: dict[str, Any]) -> str:
    """One thing that happened to a message, in words."""
    what = step["what"]
    to = f" {step['receiver']}" if step.get("receiver") else ""
    detail = f" ({step['detail']})" if step.get("detail") else ""
    if what == "published":
        user = f"user {step['username']}" if step.get("username") else "no user name"
        rule = f", by {step['rule']}" if step.get("rule") else ""
        trace = f", traceparent {step['traceparent']}" if step.get("traceparent") else ""
        size = f"{step.get('bytes', 0)} bytes"
        return f"published, QoS {step.get('qos', 0)}, {size}, {user}{rule}{trace}"
    if what == "asked":
        return "hooks: " + (", ".join(f"{who}: {said}" for who, said in step["hooks"]) or "none")
    if what == "crossed":
        for name in ("worker", "node"):
            if name in step:
                return f"came to {name} {step[name]}"
        return "came to another worker"
    if what == "routed":
        filters = [f"{one['topic_filter']} ({one['receivers']})" for one in step.get("filters", [])]
        return f"matched {', '.join(filters) or 'no filter'}: {step.get('count', 1)} receivers"
    if what == "lost":
        return f"lost{f' for{to}' if to else ''}: {step['reason']}{detail}"
    if what == "held":
        return f"held by {step['detail']}"
    if what == "retained":
        return "kept as the retained message of its topic; nobody had subscribed to it"
    words = {"queued": "queued for", "sent": "sent to", "acked": "acknowledged by"}
    return f"{words.get(what, what + ' by')}{to}{detail}"


def _list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/trace")
    if options.json:
        return print_json(answer)
    for one in answer["traced"]:
        one["until"] = "" if one["until"] is None else time_text(one["until"])
        one["from"] = "configuration" if one["configured"] else ""
    print_table(answer["traced"], ["kind", "value", "until", "from"])
    print(f"of all others, {answer['sample']:g} of one is followed")


def _trace(options: argparse.Namespace) -> None:
    body = {"kind": options.kind, "value": options.value}
    if options.duration is not None:
        body["seconds"] = seconds_of("--for", options.duration)
    answer = client_of(options).request("POST", "/trace", body)
    done(options, answer, f"the messages of {options.kind} {options.value} are followed")


def _stop(options: argparse.Namespace) -> None:
    client = client_of(options)
    query = urlencode({"kind": options.kind, "value": options.value})
    answer = client.request("DELETE", f"/trace?{query}")
    done(options, answer, f"the messages of {options.kind} {options.value} are followed no more")
