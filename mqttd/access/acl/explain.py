"""Why a rule did not match: the same compiled pieces as the decision, asked one rule at a time.

::

    AclRules.first ──► number of the rule that decides (as enforced)
    Step 0 .. number   each earlier rule: access? who? QoS, retain? topics?   the first "no" is told

Promise: `steps` never changes a counter; a rule is said to match exactly if the compiled form of
this rule alone says so (tests hold both against each other on random rules).  Explaining costs
some 20 µs a rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mqttd.access.acl.asked import fill
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Or,
    Rule,
    Topic,
    User,
    Who,
)
from mqttd.access.acl.who import Address, is_about, parse_address
from mqttd.types import Action, ClientInfo, Decision

__all__ = ["Explanation", "Step", "reason", "steps"]


@dataclass(slots=True, frozen=True)
class Step:
    """One rule (or module without rules) that was asked, and what came of it.

    ``reason`` says why it did not match; it is empty for the one that decided.
    """

    module: str
    rule: str
    matched: bool
    reason: str = ""


@dataclass(slots=True, frozen=True)
class Explanation:
    """A decision with everything that was asked on the way to it."""

    client: ClientInfo
    action: Action
    topic: str
    decision: Decision
    steps: tuple[Step, ...]


def steps(
    rules: AclRules, client: ClientInfo, action: Action, topic: str, module: str
) -> list[Step]:
    """The rules up to the one that decides, each with why it did not match."""
    found = rules.first(client, action, topic)
    asked = rules.rules if found < 0 else rules.rules[:found]
    told = [
        Step(module, str(rule), False, reason(rule, client, action, topic) or "") for rule in asked
    ]
    if found >= 0:
        told.append(Step(module, str(rules.rules[found]), True))
    return told


def reason(rule: Rule, client: ClientInfo, action: Action, topic: str) -> str | None:
    """Why `rule` does not match, or None if it does."""
    if action.kind not in rule.kinds:
        return f"is about {' and '.join(sorted(rule.kinds))} only"
    address = parse_address(client.peerhost)
    if not is_about(client, address, rule.who):
        return _not_about(rule.who, client, address)
    if rule.qos is not None and action.qos not in rule.qos:
        return f"is about QoS {', '.join(map(str, sorted(rule.qos)))}, asked is QoS {action.qos}"
    if rule.retain not in (None, action.retain) and action.kind == "publish":
        return (
            "is about messages with RETAIN" if rule.retain else "is about messages without RETAIN"
        )
    if (
        rule.topics is None
        or AclRules([replace(rule, who=All())]).first(client, action, topic) == 0
    ):
        return None
    told = [_not_topic(rule, wanted, client, action, topic) for wanted in rule.topics[:3]]
    if len(rule.topics) > 3:
        told.append(f"nor do {len(rule.topics) - 3} more topics")
    return "; ".join(told)


def _not_about(who: Who, client: ClientInfo, address: Address | None) -> str:
    match who:
        case User(name):
            if client.username is None:
                return f'is about user "{name}", the client gave no user name'
            return f'is about user "{name}", not "{client.username}"'
        case Client(client_id):
            return f'is about client "{client_id}", not "{client.client_id}"'
        case Match(regex, of_client):
            text = client.client_id if of_client else client.username
            what = "client identifier" if of_client else "user name"
            if text is None:
                return "the client gave no user name"
            return f'{what} "{text}" does not match {regex.pattern}'
        case IpAddr(networks):
            where = ", ".join(str(network) for network in networks[:3])
            more = f" and {len(networks) - 3} more" if len(networks) > 3 else ""
            if address is None:
                return f"is about {where}{more}, the client's address is not known"
            return f"is about {where}{more}, not {address}"
        case And(parts):
            for part in parts:
                if not is_about(client, address, part):
                    return _not_about(part, client, address)
        case Or(parts):
            return "none of: " + "; ".join(_not_about(part, client, address) for part in parts)
    return "is about others"


def _not_topic(rule: Rule, wanted: Topic, client: ClientInfo, action: Action, topic: str) -> str:
    if wanted.eq:
        return f'"{topic}" is not the text "{wanted.text}"'
    filled = fill(wanted.text, client)
    if filled is None:
        return f'"{wanted.text}" needs a value that this client does not have'
    if filled == "":
        return f'"{wanted.text}": a value with "+", "#", "/" or "$" in it must not stand in a topic'
    shown = f'"{wanted.text}"' if filled == wanted.text else f'"{wanted.text}" (here "{filled}")'
    if action.kind == "publish":
        return f'{shown} does not match "{topic}"'
    if not rule.allow:
        return f'{shown} shares no topic with "{topic}"'
    deny = replace(rule, allow=False, who=All(), qos=None, topics=(wanted,))
    if AclRules([deny]).first(client, action, topic) == 0:
        return f'{shown} covers only a part of "{topic}"'
    return f'{shown} does not cover "{topic}"'
