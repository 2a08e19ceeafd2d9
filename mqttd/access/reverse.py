"""The question the other way round: who may publish to, or read, what is in a topic filter?

::

    plant/# , publish ──► the allow rules that reach it, what part of it, what is taken out again
                     └──► the clients that are here now, and the rule each of them owes it to

Promise: a client that may use any topic of the filter is listed.  One that is listed may in rare
cases not: when several deny rules before it take all of its part only together.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqttd.access.acl_asked import fill, is_template
from mqttd.access.acl_rules import AclRules
from mqttd.access.acl_terms import (
    All,
    Rule,
)
from mqttd.access.acl_who import is_about, parse_address
from mqttd.access.filters import covers, meet
from mqttd.types import ClientInfo

__all__ = ["Reach", "reached_by", "reaches"]


@dataclass(slots=True, frozen=True)
class Reach:
    """An allow rule that reaches into the filter.

    ``parts`` are the topic filters it reaches; ``but`` the earlier deny rules that take something
    of them away again, from all or some of its clients.
    """

    rule: Rule
    parts: tuple[str, ...]
    but: tuple[Rule, ...]


def touching(rules: AclRules, kind: str, topic_filter: str) -> list[Rule]:
    """The rules, of both verdicts, that have to do with topics of the filter."""
    return [rule for rule in rules.rules if kind in rule.kinds and _parts(rule, topic_filter)]


def reaches(rules: list[Rule], topic_filter: str) -> list[Reach]:
    """What each allow rule of `touching` reaches; rules that reach nothing are left out."""
    found: list[Reach] = []
    denies: list[Rule] = []
    for rule in rules:
        if not rule.allow:
            denies.append(rule)
            continue
        parts = _parts(rule, topic_filter)
        for deny in denies:
            if deny.who in (All(), rule.who) and deny.qos is None and deny.retain is None:
                parts = [part for part in parts if not _denies(deny, part)]
        but = tuple(deny for deny in denies if any(_parts(deny, part) for part in parts))
        if parts:
            found.append(Reach(rule, tuple(parts), but))
    return found


def reached_by(rules: list[Rule], client: ClientInfo, topic_filter: str) -> Reach | None:
    """The first rule of `touching` by which `client` reaches a topic of the filter."""
    address = parse_address(client.peerhost)
    denies: list[Rule] = []
    for rule in rules:
        if not is_about(client, address, rule.who):
            continue
        parts = _parts(rule, topic_filter, client)
        if not rule.allow:
            if parts and rule.qos is None and rule.retain is None:
                denies.append(rule)
            continue
        for deny in denies:
            parts = [part for part in parts if not _denies(deny, part, client)]
        if parts:
            but = tuple(d for d in denies if any(_parts(d, part, client) for part in parts))
            return Reach(rule, tuple(parts), but)
    return None


def _texts(rule: Rule, client: ClientInfo | None) -> list[str]:
    """The rule's topics, filled in for a client; without one placeholders stay."""
    texts: list[str] = []
    for topic in rule.topics or ():
        text: str | None = topic.text
        if client is not None and not topic.eq and is_template(topic.text):
            text = fill(topic.text, client)
        if text:
            texts.append(text)
    return texts


def _parts(rule: Rule, topic_filter: str, client: ClientInfo | None = None) -> list[str]:
    """What the rule and the filter have in common."""
    if rule.topics is None:
        return [topic_filter]
    parts = (meet(text, topic_filter) for text in _texts(rule, client))
    return [part for part in parts if part is not None]


def _denies(deny: Rule, part: str, client: ClientInfo | None = None) -> bool:
    """Whether a deny rule takes all of `part` away."""
    if deny.topics is None:
        return True
    plain = [topic for topic in deny.topics if not topic.eq]
    wanted = {topic.text for topic in deny.topics if topic.eq and not set("+#") & set(topic.text)}
    texts = [
        text
        for topic in plain
        if (text := topic.text if client is None else fill(topic.text, client))
    ]
    return part in wanted or any(covers(text, part) for text in texts)
