"""`mqttd-ctl acl ...`: explain decisions, ask who may, check rules and try out others.

    acl rules|explain|who|lint|diff|shadow|promote|reload   --HTTP-->  the broker
    acl lint FILE                                           --> the file itself, no broker needed

Part of `mqttd.admin.ctl.main`, whose promises hold here too; `lint` ends with status 1 if it found
something.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError, at_this_node, client_of
from mqttd.admin.ctl.printing import counted, done, print_json, print_pairs, print_table
from mqttd.printable import printable

__all__ = ["add_commands"]

Json = dict[str, Any]


def add_commands(add: Callable[..., Any], acl: Any) -> None:
    """Add the commands to the group `acl`, with `add` of `mqttd.admin.ctl.main`."""
    add(acl, "reload", _reload,
        "Read the access rules again; with a mistake in them the old ones stay.")  # fmt: skip
    add(acl, "rules", _rules, "List the rules in force, and how often each has decided.")

    explain = add(acl, "explain", _explain,
                  "Show what is decided, by which rule, and why the rules before it do not"
                  " match.")  # fmt: skip
    explain.add_argument("--user", metavar="NAME", help="the client's user name")
    explain.add_argument(
        "--client", metavar="ID", help="its client id; one that is connected lends the rest"
    )
    explain.add_argument("--peer", metavar="IP", help="its address (default: 127.0.0.1)")
    explain.add_argument("--listener", metavar="KIND:NAME", help="the listener it comes by")
    explain.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)
    explain.add_argument("--retain", action="store_true", help="publish with RETAIN")
    explain.add_argument("action", choices=("publish", "subscribe"))
    explain.add_argument("topic", metavar="TOPIC", help="a topic name, or a filter to subscribe to")

    who = add(acl, "who", _who, "Who may publish to, or read, topics that match a filter.")
    who.add_argument("topic", metavar="FILTER")
    who.add_argument("--access", choices=("publish", "subscribe"), default="subscribe")

    lint = add(acl, "lint", _lint, "Find rules that never decide, and rules that allow too much.")
    lint.add_argument("file", metavar="FILE", nargs="?", help="default: the rules in force")

    diff = add(acl, "diff", _diff, "Which clients and subscriptions other rules would change.")
    diff.add_argument("file", metavar="NEW_FILE")

    add(acl, "shadow", _shadow, "Where the candidate (acl.shadow.file) decides otherwise.")
    add(acl, "promote", _promote, "Make the candidate the rules; the old are kept as FILE.bak.")


def _reload(options: argparse.Namespace) -> None:
    answer = client_of(options).request("POST", "/acl/reload")
    done(options, answer, "the new rules are in force" + at_this_node(options))


def _rules(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/acl/rules")
    if options.json:
        return print_json(answer)
    print_table(answer["rules"], ["file", "line", "hits", "rule"])


def _explain(options: argparse.Namespace) -> None:
    answer = client_of(options).get(
        "/acl/explain",
        username=options.user,
        client_id=options.client,
        peerhost=options.peer,
        listener=options.listener,
        action=options.action,
        topic=options.topic,
        qos=options.qos,
        retain="true" if options.retain else "false",
    )
    if options.json:
        return print_json(answer)
    retain = ", RETAIN" if answer["retain"] else ""
    print("allowed" if answer["allowed"] else "DENIED")
    print_pairs(
        [
            ("client", f"{answer['client_id'] or '-'}, user {answer['username'] or '-'},"
                       f" from {answer['peerhost'] or '-'}"),
            ("wants to", f"{answer['action']} {answer['topic']} (QoS {answer['qos']}{retain})"),
            ("rule", answer["rule"]),
        ]
    )  # fmt: skip
    if answer["hooks"]:
        first = "comes first; it was" if answer["hooks"] == 1 else "come first; they were"
        print(f"{counted(answer['hooks'], 'callback')} at client.authorize {first} not asked")
    print()
    rows = [
        {"rule": step["rule"], "why": step["reason"] if not step["matched"] else "decides"}
        for step in answer["steps"]
    ]
    print_table(rows, ["rule", "why"])


def _who(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/acl/who", topic=options.topic, access=options.access)
    if options.json:
        return print_json(answer)
    for entry in [*answer["rules"], *answer["clients"]]:
        entry["reaches"] = ", ".join(entry["parts"])
        entry["but for"] = "; ".join(entry["but"])
    print_table(answer["rules"], ["reaches", "rule", "but for"])
    if answer["nomatch"] == "allow":
        print('and whoever no rule matches: acl.nomatch = "allow"')
    print()
    print_table(answer["clients"], ["client_id", "username", "peerhost", "reaches", "rule"])
    if answer["count"] > len(answer["clients"]):
        print(f"... {answer['count']} clients in all")


def _lint(options: argparse.Namespace) -> int:
    if options.file is None:
        findings: list[Json] = client_of(options).get("/acl/lint")["findings"]
    else:
        findings = _lint_file(options.file)
    if options.json:
        print_json({"findings": findings})
    for finding in findings if not options.json else ():
        other = f" ({finding['other']})" if finding["other"] else ""
        place = f"{finding['file']}:{finding['line']}"
        print(printable(f"{place}: {finding['kind']}: {finding['text']}{other}"))
        print(printable(f"    {finding['rule']}"))
    if not findings and not options.json:
        print("nothing suspicious")
    return 1 if findings else 0


def _lint_file(path: str) -> list[Json]:
    from mqttd.access.acl.lint import lint
    from mqttd.access.acl.rules import AclRules

    try:
        found = lint(AclRules.from_file(path))
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        *more, last = getattr(error, "mistakes", (str(error),))
        for mistake in more:
            print(f"mqttd-ctl: {printable(mistake)}", file=sys.stderr)
        raise CtlError(last) from None
    return [finding.shown() for finding in found]


def _diff(options: argparse.Namespace) -> None:
    try:
        with open(options.file, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise CtlError(f"{options.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CtlError(f"{options.file}: expected UTF-8 text") from None
    answer = client_of(options).request("POST", "/acl/diff", {"text": text, "name": options.file})
    if options.json:
        return print_json(answer)
    print_pairs(
        [
            ("rules", f"{answer['rules_added']} new, {answer['rules_removed']} gone or moved"),
            ("clients", f"{answer['clients_changed']} of {answer['clients']} are concerned"),
            ("subscriptions", f"{answer['subscriptions_lost']} would end"),
        ]
    )
    if answer["changes"]:
        print()
        print_table(
            answer["changes"],
            ["client_id", "username", "change", "action", "topic", "held", "rule"],
        )
    if answer["gains"] + answer["losses"] > len(answer["changes"]):
        print(f"... {answer['gains'] + answer['losses']} changes in all")


def _shadow(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/acl/shadow")
    if options.json:
        return print_json(answer)
    print_pairs(
        [
            ("candidate", f"{answer['file']}, {counted(answer['rules'], 'rule')}"),
            ("compared", f"{answer['compared']} decisions since it was read"),
            ("would allow", answer["would_allow"]),
            ("would deny", answer["would_deny"]),
        ]
    )
    if answer["differences"]:
        print()
        print_table(
            answer["differences"],
            ["count", "would", "client_id", "username", "action", "topic", "rule", "shadow_rule"],
        )


def _promote(options: argparse.Namespace) -> None:
    answer = client_of(options).request("POST", "/acl/promote")
    text = f"the candidate is in force; the old rules are {answer['backup']}"
    done(options, answer, text + at_this_node(options))
