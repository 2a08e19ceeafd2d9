"""What is suspicious in a rules file: rules that never decide, and rules that say too much.

::

    acl.conf:7 shadowed     {allow, {user, "bob"}, publish, ["a/b"]}   acl.conf:3 {deny, all, ...}
    acl.conf:9 unreachable  everything is decided at acl.conf:8 {deny, all}

=============  ====================================================================================
redundant      an earlier rule with the same verdict matches whatever this one does
shadowed       an earlier rule with the other verdict does
unreachable    a rule about everybody and everything stands before it
wide           more is allowed than the author may have meant
sys            clients that are not named may read the broker's own topics
=============  ====================================================================================

What is reported as never deciding never decides; the reverse is not promised (two rules that cover
a third only together are not found).  Promise: the earlier rules are found through the compiled
index, so 10,000 rules take seconds, not minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mqttd.access.acl.asked import is_template
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Or,
    Rule,
    Topic,
    User,
    Who,
)
from mqttd.types import ACTION_PUBLISH, ACTION_SUBSCRIBE, Action, ClientInfo, Verdict

__all__ = ["Finding", "lint"]

_SUBSCRIBE: Final = Action(ACTION_SUBSCRIBE)
#: Somebody nobody has written a rule for.
_STRANGERS: Final = tuple(
    ClientInfo("\x00", None, peer, 0, "", 5) for peer in ("192.0.2.1", "2001:db8::1")
)
_ODD_PERCENT: Final = re.compile(r"%[a-z]")


@dataclass(slots=True, frozen=True)
class Finding:
    """One remark; ``kind`` is a word of the table above, ``other`` the rule it refers to."""

    kind: str
    text: str
    rule: Rule
    other: Rule | None = None

    def shown(self) -> dict[str, object]:
        """For who asks: as JSON has it."""
        return {
            "kind": self.kind,
            "file": self.rule.source,
            "line": self.rule.line,
            "rule": self.rule.text,
            "text": self.text,
            "other": str(self.other) if self.other is not None else None,
        }


def lint(rules: AclRules, nomatch: str = "deny") -> list[Finding]:
    """All findings, in the order of the rules."""
    found: list[Finding] = []
    final: Rule | None = None
    for number, rule in enumerate(rules.rules):
        if final is not None:
            text = "never decides: everything is decided before it"
            found.append(Finding("unreachable", text, rule, final))
            continue
        found += _shadowed(rules, number, rule)
        found += _wide(rules, rule)
        if rule.who == All() and rule.topics is None and _unconditional(rule):
            if rule.kinds == {ACTION_PUBLISH, ACTION_SUBSCRIBE}:
                final = rule
    found += _sys(rules, nomatch)
    if final is None and nomatch == "allow" and rules.rules:
        text = 'what no rule matches is allowed: acl.nomatch = "allow"'
        found.append(Finding("wide", text, rules.rules[-1]))
    return found


# -- rules that never decide


def _shadowed(rules: AclRules, number: int, rule: Rule) -> Iterator[Finding]:
    """A rule all of whose topics are covered by earlier ones, for all it is about."""
    others: list[Rule] = []
    for kind in sorted(rule.kinds):
        for topic in rule.topics or (None,):
            for earlier in _covering(rules, rule, kind, topic):
                if earlier >= number:
                    return
                other = rules.rules[earlier]
                if _includes(other.who, rule.who) and _conditions(other, rule, kind):
                    others.append(other)
                    break
            else:
                return
    if not others:
        return
    first = others[0]
    if all(other.allow is rule.allow for other in others):
        yield Finding("redundant", "an earlier rule says the same", rule, first)
    elif all(other.allow is not rule.allow for other in others):
        word = "allowed" if first.allow else "denied"
        yield Finding("shadowed", f"never decides: all of it is {word} before", rule, first)
    else:
        yield Finding("shadowed", "never decides: earlier rules decide all of it", rule, first)


def _covering(rules: AclRules, rule: Rule, kind: str, topic: Topic | None) -> list[int]:
    """The rules that decide whatever `rule` would decide because of `topic`, rising."""
    if topic is None:
        return rules.covering(rule.who, kind, None, False)
    if topic.eq:
        # As a filter to publish to it is no topic name, and matches nothing.
        return rules.covering(rule.who, kind, topic.text, True)
    if rule.allow:
        return rules.covering(rule.who, kind, topic.text, not set("+#") & set(topic.text))
    # A deny rule touches filters that are wider than its topic, which an allow rule must cover;
    # and with a value that must not stand in a topic, it denies all that begins as it does.
    exact = kind == ACTION_PUBLISH and not set("+#") & set(topic.text)
    text: str | None = topic.text
    same: list[int] = []
    words = topic.text.split("/")
    at = next((i for i, word in enumerate(words) if is_template(word)), -1)
    if at >= 0:
        text = "/".join([*words[:at], "#"]) if at else None
        same = [
            number
            for number in rules.covering(rule.who, kind, topic.text, False)
            if any(each.text == topic.text for each in rules.rules[number].topics or ())
            and not rules.rules[number].allow
        ]
    found = rules.covering(rule.who, kind, text, exact and at < 0)
    if kind == ACTION_SUBSCRIBE:
        found = [number for number in found if _is_denial(rules.rules[number])]
    return sorted({*found, *same})


def _is_denial(rule: Rule) -> bool:
    """Whether a rule that covers a topic decides wider filters too."""
    return rule.topics is None or not rule.allow


def _conditions(other: Rule, rule: Rule, kind: str) -> bool:
    """Whether QoS and retain of `other` hold wherever those of `rule` do."""
    qos = rule.qos or {0, 1, 2}
    if other.qos is not None and not qos <= other.qos:
        return False
    return kind == ACTION_SUBSCRIBE or other.retain in (None, rule.retain)


def _includes(a: Who, b: Who) -> bool:
    """Whether `a` is true of every client that `b` is true of; False when in doubt."""
    if a == b or isinstance(a, All):
        return True
    match b:
        case Or(parts):
            return all(_includes(a, part) for part in parts)
        case And(parts) if any(_includes(a, part) for part in parts):
            return True
    match a:
        case Or(parts):
            return any(_includes(part, b) for part in parts)
        case And(parts):
            return all(_includes(part, b) for part in parts)
        case IpAddr(networks):
            return isinstance(b, IpAddr) and all(
                any(x.version == y.version and y.subnet_of(x) for x in networks)  # type: ignore[arg-type]
                for y in b.networks
            )
    return False


# -- rules that say too much


def _wide(rules: AclRules, rule: Rule) -> Iterator[Finding]:
    everybody = isinstance(rule.who, All) or (
        isinstance(rule.who, IpAddr) and any(net.prefixlen == 0 for net in rule.who.networks)
    )
    if rule.allow and everybody:
        if rule.topics is None:
            if _unconditional(rule):
                yield Finding("wide", "everybody may do this with every topic, $SYS too", rule)
        elif any(topic.text in ("#", "+/#") and not topic.eq for topic in rule.topics):
            yield Finding("wide", 'everybody may do this with "#"', rule)
    if isinstance(rule.who, User) and rule.who.name in ("all", "*", "+", "#", "%u"):
        yield Finding("wide", f'is about a user called "{rule.who.name}"; everybody is: all', rule)
    if rule.allow and _by_client_id(rule.who):
        text = "a client chooses its identifier itself: anybody who may connect can be this one"
        yield Finding("wide", text, rule)
    for host in re.findall(r'"([0-9a-fA-F.:]+)/\d+"', rule.text):
        if isinstance(rule.who, IpAddr) and not any(
            str(net.network_address) == host.lower() for net in rule.who.networks
        ):
            nets = ", ".join(str(net) for net in rule.who.networks)
            yield Finding("wide", f"{host} is inside a network: this is about all of {nets}", rule)
    for topic in rule.topics or ():
        if topic.eq and not rule.allow and topic.text in ("#", "+/#") and _reads_all(rules):
            text = f'{{eq, "{topic.text}"}} denies this filter alone: "+/+/#" and others remain'
            yield Finding("wide", text, rule)
        if topic.eq and rule.allow and ("%u" in topic.text or "%c" in topic.text):
            yield Finding("wide", f'{{eq, "{topic.text}"}} is this text, no placeholder', rule)
        if not topic.eq and _ODD_PERCENT.search(topic.text.replace("%u", "").replace("%c", "")):
            yield Finding("wide", f'"{topic.text}": only %u and %c are placeholders', rule)
        if not topic.eq and topic.text.endswith("/"):
            text = f'"{topic.text}" is not "{topic.text[:-1]}", nor what is below it'
            yield Finding("wide", text, rule)


def _by_client_id(who: Who) -> bool:
    match who:
        case Client():
            return True
        case Or(parts):
            return any(_by_client_id(part) for part in parts)
    return False


def _unconditional(rule: Rule) -> bool:
    return rule.qos is None and rule.retain is None


def _reads_all(rules: AclRules) -> bool:
    """Can somebody nobody has named subscribe to what is as good as everything?"""
    return any(
        rules.look(client, _SUBSCRIBE, "+/+/#").verdict is Verdict.ALLOW for client in _STRANGERS
    )


def _sys(rules: AclRules, nomatch: str) -> Iterator[Finding]:
    """Can somebody nobody has named read $SYS?"""
    text = "clients that no rule names may read the broker's own topics ($SYS/#)"
    for client in _STRANGERS:
        number = rules.first(client, _SUBSCRIBE, "$SYS/broker/uptime")
        if number >= 0 and rules.rules[number].allow:
            yield Finding("sys", text, rules.rules[number])
            return
        if number < 0 and nomatch == "allow" and rules.rules:
            yield Finding("sys", f'{text}: acl.nomatch = "allow"', rules.rules[-1])
            return
