"""The question the other way round: who may publish to, or read, what is in a topic filter?

::

    plant/# , publish ──► the allow rules that reach it, what part of it, what is taken out again
                     └──► the clients that are here now, and the rule each of them owes it to

Each allow rule is compared with the deny rules before it: that is done in steps (`in_steps`), with
the broker going on in between.

Promise: a client that may use any topic of the filter is listed.  One that is listed may in rare
cases not: when several deny rules before it take all of its part only together.  A step is as long
as one rule has topics, what is said of a rule that allows as long as that and `MAX_BUT` others.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from mqttd.access.acl.asked import fill, is_template
from mqttd.access.acl.filters import covers, meet
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import (
    All,
    Rule,
)
from mqttd.access.acl.who import is_about, parse_address
from mqttd.types import ClientInfo

__all__ = ["MAX_BUT", "Comparing", "Reach", "in_steps", "reached_by", "reaches", "touching"]

T = TypeVar("T")

#: Deny rules that are named with one that allows: all of many with each of many would be an answer
#: as large as both together multiplied.
MAX_BUT: Final = 100
#: Comparisons of a step, about half a millisecond.
_STEP: Final = 250
#: Work that says how many comparisons come next.
Comparing: TypeAlias = Generator[int, None, T]


@dataclass(slots=True, frozen=True)
class Reach:
    """An allow rule that reaches into the filter.

    ``parts`` are the topic filters it reaches; ``but`` the first ``MAX_BUT`` of the earlier deny
    rules that take something of them away again, from all or some of its clients.
    """

    rule: Rule
    parts: tuple[str, ...]
    but: tuple[Rule, ...]


def in_steps(work: Comparing[T]) -> Generator[None, None, T]:
    """Do some of it in each step."""
    done = 0
    while True:
        try:
            done += next(work)
        except StopIteration as end:
            found: T = end.value
            return found
        if done >= _STEP:
            done = 0
            yield


def touching(rules: AclRules, kind: str, topic_filter: str) -> Comparing[list[Rule]]:
    """The rules, of both verdicts, that have to do with topics of the filter."""
    found: list[Rule] = []
    for rule in rules.rules:
        if kind in rule.kinds and _parts(rule, topic_filter):
            found.append(rule)
        yield _size(rule)
    return found


def reaches(rules: list[Rule], topic_filter: str) -> Comparing[list[Reach]]:
    """What each allow rule of `touching` reaches; rules that reach nothing are left out."""
    found: list[Reach] = []
    denies: list[Rule] = []
    for rule in rules:
        if not rule.allow:
            denies.append(rule)
            continue
        yield _size(rule)
        reach = yield from _left(rule, _parts(rule, topic_filter), denies)
        if reach is not None:
            found.append(reach)
    return found


def reached_by(rules: list[Rule], client: ClientInfo, topic_filter: str) -> Comparing[Reach | None]:
    """The first rule of `touching` by which `client` reaches a topic of the filter."""
    address = parse_address(client.peerhost)
    denies: list[Rule] = []
    for rule in rules:
        yield _size(rule)
        if not is_about(client, address, rule.who):
            continue
        parts = _parts(rule, topic_filter, client)
        if rule.allow:
            reach = yield from _left(rule, parts, denies, client)
            if reach is not None:
                return reach
        elif parts and rule.qos is None and rule.retain is None:
            denies.append(rule)
    return None


def _left(
    rule: Rule, parts: list[str], denies: list[Rule], client: ClientInfo | None = None
) -> Comparing[Reach | None]:
    """What earlier rules leave of these parts; those that are a client's are all about it."""
    about = (All(), rule.who)
    for deny in denies:
        if client is None and (deny.who not in about or (deny.qos, deny.retain) != (None, None)):
            yield 1
            continue
        left: list[str] = []
        for part in parts:
            yield _size(deny)
            if not _denies(deny, part, client):
                left.append(part)
        parts = left
        if not parts:
            return None
    but: list[Rule] = []
    for deny in denies:
        for part in parts:
            yield _size(deny)
            if _parts(deny, part, client):
                but.append(deny)
                break
        if len(but) == MAX_BUT:
            break
    return Reach(rule, tuple(parts), tuple(but)) if parts else None


def _size(rule: Rule) -> int:
    return len(rule.topics or ()) + 1


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
