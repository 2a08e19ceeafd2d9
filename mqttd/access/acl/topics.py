"""The topics of rules in a tree, searched by a topic name or a topic filter.

::

    Table ─┬─ publish    ┬─ every, eq
           └─ subscribe  ├─ allow: levels ──► what covers the topic asked for
                         └─ deny:  levels ──► what shares a topic with it

What "covers" and "shares" mean is told in `mqttd.access.acl.rules`; for a topic name both are
"matches".  A search carries an `Asked`, which takes the numbers of the rules it comes by, and turns
back where no lower one can follow.

Promise: a search costs the levels of the topic and the rules that match it.  The levels go as deep
as the rules, which the parser bounds, however deep the topic asked for is.
"""

from __future__ import annotations

from typing import Final

from mqttd.access.acl.asked import (
    UNSAFE,
    Asked,
    Collecting,
    Condition,
    OfRealm,
    is_template,
    parts_of,
)
from mqttd.access.acl.terms import (
    Rule,
)
from mqttd.types import ACTION_PUBLISH, ACTION_SUBSCRIBE

__all__ = ["Side", "Table"]


class Table:
    """The rules that apply to the same clients."""

    __slots__ = ("publish", "subscribe")

    def __init__(self) -> None:
        self.publish: Side = Side()
        self.subscribe: Side = Side()

    def add(self, number: int, rule: Rule, condition: Condition | None) -> None:
        """Add a rule, with the highest number so far."""
        if ACTION_PUBLISH in rule.kinds:
            self.publish.add(number, rule, condition)
        if ACTION_SUBSCRIBE in rule.kinds:
            self.subscribe.add(number, rule, condition)

    def spread(self) -> None:
        """All rules are in: index what a filter with ``+`` may have to search."""
        if self.subscribe.deny is not None:
            self.subscribe.deny.spread()


class Side:
    """The rules of a table that are about publishing, or about subscribing.

    Numbers are added in rising order, so that every list of them is sorted.  ``anywhere`` are those
    of the rules about all topics but those that begin with ``$``, at least; ``denials`` are those
    of the rules that deny, but for topics that begin with ``$``; ``narrow`` are the conditions that
    are to be asked of each client.  ``realms`` are the first topics of allow rules that go on with
    ``#`` behind levels without ``+``, up to their last ``/``; ``exactly`` are the numbers of the
    deny rules with ``eq``.
    """

    __slots__ = (
        "allow",
        "anywhere",
        "denials",
        "deny",
        "every",
        "exact",
        "exactly",
        "filled",
        "narrow",
        "realms",
    )

    def __init__(self) -> None:
        self.filled: bool = False
        self.every: list[int] = []
        self.anywhere: list[int] = []
        self.exact: dict[str, list[int]] | None = None
        self.allow: _Node | None = None
        self.deny: _Node | None = None
        self.denials: list[int] = []
        self.narrow: list[Condition] = []
        self.realms: list[str] = []
        self.exactly: list[int] = []

    def add(self, number: int, rule: Rule, condition: Condition | None) -> None:
        """Add a rule, with the highest number so far."""
        self.filled = True
        if not rule.allow and not _of_dollar(rule):
            self.denials.append(number)
        if condition is not None and condition.narrow:
            self.narrow.append(condition)
        if _of_all(rule):
            self.anywhere.append(number)
        if rule.topics is None:
            self.every.append(number)
            return
        for topic in rule.topics:
            if topic.eq:
                if self.exact is None:
                    self.exact = {}
                text = "#" if topic.text == "+/#" else topic.text
                self.exact.setdefault(text, []).append(number)
                if not rule.allow:
                    self.exactly.append(number)
            elif rule.allow:
                if self.allow is None:
                    self.allow = _Node(number)
                self.allow.add(number, topic.text)
                if len(self.realms) < _REALMS and _is_realm(topic.text):
                    self.realms.append(topic.text[:-1])
            else:
                if self.deny is None:
                    self.deny = _Node(number)
                self.deny.add(number, topic.text)

    def covering(self, asked: Collecting, exact: bool) -> None:
        """Collect the rules, of either verdict, that cover what is asked for.

        With `exact`, those with ``eq`` too.
        """
        asked.take(self.every)
        if exact and self.exact is not None:
            asked.take(self.exact.get(asked.topic, []))
        for node in (self.allow, self.deny):
            if node is not None:
                _covering(node, asked, 0)

    def over(self, asked: OfRealm) -> None:
        """Have the lowest rule taken that may decide about any topic of a realm.

        Those that compare a text are not looked at closer: they let nothing in, and may keep out.
        """
        asked.take(self.every)
        asked.take(self.exactly)
        if self.allow is not None:
            _covering(self.allow, asked, 0)
        if self.deny is not None:
            _overlapping(self.deny, asked, 0)

    def search(self, asked: Asked) -> None:
        """Have the lowest rule taken that matches."""
        if self.every:
            asked.take(self.every)
        if self.exact is not None:
            numbers = self.exact.get(asked.topic)
            if numbers is not None:
                asked.take(numbers)
        if self.allow is not None:
            _covering(self.allow, asked, 0)
        if self.deny is not None:
            _overlapping(self.deny, asked, 0)


def _of_dollar(rule: Rule) -> bool:
    """Whether a rule is about topics that begin with ``$`` and no others."""
    if rule.topics is None:
        return False
    for topic in rule.topics:
        # With a placeholder in front it may be about all: `$%u`, for a name that must not be there.
        if not topic.text.startswith("$") or is_template(topic.text.split("/", 1)[0]):
            return False
    return True


def _of_all(rule: Rule) -> bool:
    """Whether a rule is about all topics, but for those that begin with ``$``."""
    if rule.topics is None:
        return True
    for topic in rule.topics:
        if not topic.eq and topic.text in ("#", "+/#"):
            return True
    return False


def _is_realm(topic_filter: str) -> bool:
    """Whether a rule's topic is one beginning and whatever follows, and not all topics."""
    return topic_filter.endswith("/#") and "+" not in topic_filter


class _Node:
    """One level of the filters of a side.

    ``ends`` are the rules whose filter ends here, ``hashes`` those that go on with ``#``;
    ``templates`` are levels with placeholders.  ``lowest`` is the lowest number from here on:
    a search turns back where it cannot improve.  The order of ``children`` is that of their
    ``lowest``, as rules are added in their order.
    """

    __slots__ = ("children", "ends", "fan", "hashes", "lowest", "plus", "templates")

    def __init__(self, lowest: int) -> None:
        self.lowest = lowest
        self.children: dict[str, _Node] = {}
        self.plus: _Node | None = None
        self.templates: dict[tuple[str, ...], _Node] | None = None
        self.ends: list[int] = []
        self.hashes: list[int] = []
        self.fan: _Fan | None = None

    def below(self) -> list[_Node]:
        """The levels below, whatever leads to them."""
        found = list(self.children.values())
        if self.plus is not None:
            found.append(self.plus)
        if self.templates is not None:
            found += self.templates.values()
        return found

    def spread(self) -> None:
        """Give each level with many words below, from here on, its `_Fan`."""
        if len(self.children) >= _MANY:
            self.fan = _Fan(self)
        for node in self.below():
            node.spread()

    def add(self, number: int, topic_filter: str) -> None:
        node = self
        for word in topic_filter.split("/"):
            if word == "#":
                node.hashes.append(number)
                return
            node = node._child(number, word)
        node.ends.append(number)

    def _child(self, number: int, word: str) -> _Node:
        if word == "+":
            if self.plus is None:
                self.plus = _Node(number)
            return self.plus
        if is_template(word):
            if self.templates is None:
                self.templates = {}
            return self.templates.setdefault(parts_of(word), _Node(number))
        child = self.children.get(word)
        if child is None:
            child = self.children[word] = _Node(number)
        return child


class _Fan:
    """Which of a level's many children can hold what a filter asks for behind its ``+``.

    ::

        plant/1/secret  plant/2/secret ... plant/9999/secret     asked: plant/+/open     none

    Offsets count from the children: what follows directly has offset 1.  A child is listed under
    each word at each offset below it; under ``open`` at an offset where anything may stand
    (``+``, a placeholder, or ``#`` before it); under ``ends`` at an offset where a rule may end.
    """

    __slots__ = ("ends", "most", "open", "words")

    def __init__(self, node: _Node) -> None:
        reaches = {name: _Reach(child) for name, child in node.children.items()}
        #: the largest offset that occurs; beyond it only ``#`` reaches
        self.most: int = max(reach.most for reach in reaches.values()) + 1
        self.words: dict[tuple[int, str], list[tuple[str, _Node]]] = {}
        self.open: list[list[tuple[str, _Node]]] = [[] for _ in range(self.most + 1)]
        self.ends: list[list[tuple[str, _Node]]] = [[] for _ in range(self.most + 1)]
        for name, child in node.children.items():
            reach = reaches[name]
            for key in reach.words:
                self.words.setdefault(key, []).append((name, child))
            for offset in range(self.most + 1):
                if offset in reach.wild or offset > reach.hash:
                    self.open[offset].append((name, child))
                if offset in reach.ends or offset >= reach.hash:
                    self.ends[offset].append((name, child))

    def may_match(self, words: list[str], i: int) -> tuple[list[tuple[str, _Node]], ...] | None:
        """The children that `words` from `i` on (a ``+``) can lead to; None for all."""
        best: tuple[list[tuple[str, _Node]], ...] | None = None
        fewest = -1
        for offset in range(1, len(words) - i):
            word = words[i + offset]
            if word == "+":
                continue
            if word == "#":
                return best
            found = self.words.get((offset, word), [])
            anything = self.open[offset if offset < self.most else self.most]
            count = len(found) + len(anything)
            if fewest < 0 or count < fewest:
                fewest, best = count, (found, anything)
        last = len(words) - i - 1
        ends = self.ends[last if last < self.most else self.most]
        return (ends,) if fewest < 0 or len(ends) < fewest else best


class _Reach:
    """What there is at and below a level, by offset; ``hash`` is the first ``#``, or far away."""

    __slots__ = ("ends", "hash", "most", "wild", "words")

    def __init__(self, node: _Node) -> None:
        self.words: set[tuple[int, str]] = set()
        self.wild: set[int] = set()
        self.ends: set[int] = set()
        self.hash: int = 1 << 30
        self.most: int = 0
        level = [node]
        while level:
            if any(each.ends for each in level):
                self.ends.add(self.most)
            if self.hash > self.most and any(each.hashes for each in level):
                self.hash = self.most
            under: list[_Node] = []
            for each in level:
                self.words.update((self.most + 1, word) for word in each.children)
                if each.plus is not None or each.templates is not None:
                    self.wild.add(self.most + 1)
                under += each.below()
            if under:
                self.most += 1
            level = under


#: Realms of a side that clients are looked at for.
_REALMS: Final = 8
#: Words below a level from which it has a `_Fan`.
_MANY: Final = 16


# The recursions below end with the rules' own depth, which the parser bounds: a deep topic
# does not make them deeper.


def _covering(node: _Node, asked: Asked, i: int) -> None:
    """Take the rules below `node` that cover all topics of the asked words from `i` on."""
    if node.lowest >= asked.best:
        return
    words = asked.words
    dollar = i == 0 and words[0].startswith("$")
    if node.hashes and not dollar:
        asked.take(node.hashes)
    if i == len(words):
        if node.ends:
            asked.take(node.ends)
        return
    word = words[i]
    if asked.wild and word == "#":
        return
    if node.plus is not None and not dollar:
        _covering(node.plus, asked, i + 1)
    if asked.wild and word == "+":
        return
    child = node.children.get(word)
    if child is not None:
        _covering(child, asked, i + 1)
    if node.templates is not None:
        for template, child in node.templates.items():
            if child.lowest >= asked.best:
                break
            value = asked.own(template, i == 0)
            if value == word and value != UNSAFE:
                _covering(child, asked, i + 1)


def _overlapping(node: _Node, asked: Asked, i: int) -> None:
    """Take the rules below `node` that share a topic with the asked words from `i` on."""
    if node.lowest >= asked.best:
        return
    words = asked.words
    dollar = i == 0 and words[0].startswith("$")
    if node.hashes and not dollar:
        asked.take(node.hashes)
    if i == len(words):
        if node.ends:
            asked.take(node.ends)
        return
    word = words[i]
    if asked.wild and word == "#":
        _everything(node, asked)
        return
    any_word = asked.wild and word == "+"
    if node.plus is not None and not dollar:
        _overlapping(node.plus, asked, i + 1)
    if any_word:
        found = node.fan.may_match(words, i) if node.fan is not None else None
        for children in (node.children.items(),) if found is None else found:
            for name, child in children:
                if child.lowest >= asked.best:
                    break
                if i > 0 or not name.startswith("$"):
                    _overlapping(child, asked, i + 1)
    else:
        literal = node.children.get(word)
        if literal is not None:
            _overlapping(literal, asked, i + 1)
    if node.templates is not None:
        for template, child in node.templates.items():
            if child.lowest >= asked.best:
                break
            value = asked.own(template, i == 0)
            if value is None:
                continue
            if value == UNSAFE:
                _everything(child, asked)
            elif value == word or (any_word and (i > 0 or not value.startswith("$"))):
                _overlapping(child, asked, i + 1)


def _everything(node: _Node, asked: Asked) -> None:
    """Take all rules below `node`; never called for the first level."""
    if node.lowest >= asked.best:
        return
    asked.take(node.hashes)
    asked.take(node.ends)
    for child in node.children.values():
        if child.lowest >= asked.best:
            break
        _everything(child, asked)
    if node.plus is not None:
        _everything(node.plus, asked)
    if node.templates is not None:
        for template, child in node.templates.items():
            if asked.own(template, False) is not None:
                _everything(child, asked)
