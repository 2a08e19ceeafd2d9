"""A question to the rules on its way through the tables: what it asks, the best rule so far.

::

    Asked     may this client publish to, or subscribe to, this topic?
    OfAll     may all clients of a class publish to it?      (`mqttd.access.acl.classes`)
    Collecting   which rules are about it, whatever their conditions?

The tables (`mqttd.access.acl.topics`) offer the numbers of the rules whose topics fit; the question
takes the first one whose condition holds, and knows what a placeholder stands for.

Promise: a rule without a condition costs a comparison of numbers.
"""

from __future__ import annotations

import re
from typing import Final

from mqttd.access.acl.terms import (
    And,
    IpAddr,
    Match,
    Or,
    Rule,
    Who,
)
from mqttd.access.acl.who import is_about, is_anywhere, parse_address
from mqttd.types import ClientInfo

__all__ = [
    "UNSAFE",
    "Asked",
    "Collecting",
    "Condition",
    "OfAll",
    "OfRealm",
    "condition_of",
    "fill",
    "is_template",
    "own_value",
    "parts_of",
]


class Condition:
    """What a rule asks for that the index does not cover: QoS, retain, and some of its ``who``.

    ``narrow``: not all clients that find the rule in a table are those it is about.
    """

    __slots__ = ("allow", "narrow", "qos", "retain", "who")

    def __init__(self, rule: Rule) -> None:
        self.allow: bool = rule.allow
        self.qos: frozenset[int] | None = rule.qos
        self.retain: bool | None = rule.retain
        self.narrow: bool = isinstance(rule.who, (And, Or, Match))
        self.who: Who = rule.who


def condition_of(rule: Rule) -> Condition | None:
    """The rule's condition; None where the index says everything of whom it is about."""
    if rule.qos is None and rule.retain is None:
        if not isinstance(rule.who, (And, Or, Match, IpAddr)):
            return None
    return Condition(rule)


class Asked:
    """One question on its way through the tables; ``best`` is the lowest rule number so far.

    `conditions` are those of all rules, by their numbers; a question that is not to `publish` is to
    subscribe.
    """

    __slots__ = (
        "anywhere",
        "best",
        "client",
        "conditions",
        "publish",
        "qos",
        "retain",
        "topic",
        "wild",
        "words",
    )

    def __init__(
        self,
        conditions: list[Condition | None],
        client: ClientInfo,
        publish: bool,
        qos: int,
        retain: bool,
        topic: str,
    ) -> None:
        self.conditions = conditions
        self.client = client
        self.anywhere: bool = is_anywhere(client)
        self.publish = publish
        self.qos = qos
        self.retain = retain
        self.topic = topic
        self.words: list[str] = topic.split("/")
        self.best: int = len(conditions)
        self.wild: bool = not publish and ("+" in topic or "#" in topic)
        if self.wild and topic in ("#", "+/#"):
            # Two spellings of the same topics: {eq, "#"} finds one, "+/#" in a rule the other.
            self.topic = "#"
            self.words = ["+", "#"]

    def take(self, numbers: list[int]) -> None:
        """Take the first of these rules that holds, if it comes before the best so far."""
        for number in numbers:
            if number >= self.best:
                return
            condition = self.conditions[number]
            if condition is None or self.holds(condition):
                self.best = number
                return

    def holds(self, condition: Condition) -> bool:
        """Whether what the index does not cover is true of this question."""
        if condition.qos is not None and self.qos not in condition.qos:
            return False
        if condition.retain is not None and self.publish and self.retain != condition.retain:
            return False
        return self.concerns(condition)

    def concerns(self, condition: Condition) -> bool:
        """Whether the rule, which is in a table of the client, is about it."""
        if not condition.narrow and not self.anywhere:
            return True
        address = parse_address(self.client.peerhost)
        anywhere = self.anywhere and not condition.allow
        return is_about(self.client, address, condition.who, anywhere)

    def own(self, template: tuple[str, ...], first: bool) -> str | None:
        """A level with the client's values put in; None if it has none, `UNSAFE` if unsafe."""
        parts: list[str] = []
        unsafe = False
        for part in template:
            if _is_placeholder(part):
                value = own_value(self.client, part)
                if value is None:
                    return None
                if not value or "+" in value or "#" in value or "/" in value or "\0" in value:
                    unsafe = True
                parts.append(value)
            else:
                parts.append(part)
        if first and parts[0].startswith("$") and _is_placeholder(template[0]):
            unsafe = True
        return UNSAFE if unsafe else "".join(parts)


class Collecting(Asked):
    """Takes the numbers of all rules it comes by, whatever their conditions."""

    __slots__ = ("numbers",)

    def __init__(
        self, conditions: list[Condition | None], client: ClientInfo, publish: bool, topic: str
    ) -> None:
        super().__init__(conditions, client, publish, 0, False, topic)
        self.numbers: set[int] = set()

    def take(self, numbers: list[int]) -> None:
        """Take all of them."""
        self.numbers.update(numbers)


class OfRealm(Asked):
    """Asks for all topics below a beginning at once, whatever their QoS and RETAIN.

    `realm` ends with ``/``, or is empty: all topics that do not begin with ``$``.  An allow rule
    that looks at QoS or RETAIN matches nothing, a deny rule that does everything that it may match.
    Where an allow rule is found, no deny rule before it touches any of these topics.
    """

    __slots__ = ()

    def __init__(
        self, conditions: list[Condition | None], client: ClientInfo, publish: bool, realm: str
    ) -> None:
        super().__init__(conditions, client, publish, 0, False, realm + "#")
        self.wild = True
        if not realm:
            self.words = ["+", "#"]

    def holds(self, condition: Condition) -> bool:
        """Whether the rule counts for all of these topics."""
        if condition.allow and (condition.qos is not None or condition.retain is not None):
            return False
        return self.concerns(condition)


class OfAll(Asked):
    """Asks to publish for all clients at once that the conditions in `held` are true of.

    A placeholder may stand for anything: an allow rule with one matches nothing, a deny rule
    everything that begins as it does.  Where an allow rule is found, it is about all of them, and
    no deny rule before it is about any.
    """

    __slots__ = ("held",)

    def __init__(
        self,
        conditions: list[Condition | None],
        held: frozenset[Condition],
        qos: int,
        retain: bool,
        topic: str,
    ) -> None:
        super().__init__(conditions, _NOBODY, True, qos, retain, topic)
        self.held = held

    def concerns(self, condition: Condition) -> bool:
        """Whether the rule is about these clients."""
        return not condition.narrow or condition in self.held

    def own(self, template: tuple[str, ...], first: bool) -> str | None:
        """As for a client whose value must not stand in a topic."""
        return UNSAFE


_NOBODY: Final = ClientInfo("", None, "", 0, "", 5)


def own_value(client: ClientInfo, placeholder: str) -> str | None:
    """What a placeholder of a rule's topic stands for; None if the client has no such value."""
    if placeholder == "%u":
        return client.username
    if placeholder == "%c":
        return client.client_id
    if placeholder == "${cn}":
        return client.cert_common_name
    value = (client.attributes or {}).get(placeholder[len("${client_attrs.") : -1])
    return value if isinstance(value, str) else None


def fill(text: str, client: ClientInfo) -> str | None:
    """A rule's topic with the client's values put in.

    None if the client has no such value, "" if one must not stand in a topic.
    """
    asked = Asked([], client, True, 0, False, "")
    words: list[str] = []
    for word in text.split("/"):
        template = parts_of(word)
        if any(_is_placeholder(part) for part in template):
            own = asked.own(template, not words)
            if own is None or own == UNSAFE:
                return None if own is None else ""
            word = own
        words.append(word)
    return "/".join(words)


def is_template(word: str) -> bool:
    """True if a level of a rule's topic holds a placeholder."""
    return "%u" in word or "%c" in word or "${" in word


def _is_placeholder(part: str) -> bool:
    return part in ("%u", "%c") or part.startswith("${")


def parts_of(word: str) -> tuple[str, ...]:
    """A level of a rule's topic, taken apart into texts and placeholders."""
    return tuple(part for part in _TEMPLATE.split(word) if part)


_TEMPLATE: Final = re.compile(r"(%u|%c|\$\{[^}]*\})")

#: What `Asked.own` answers for a value that must not stand in a topic; no level reads so.
UNSAFE: Final = "#"
