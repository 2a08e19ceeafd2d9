"""Topic trie: topic filters kept by level, so that one walk finds all that match a topic.

    t/+/x   t/+/y   t/#   t/a            t
                                       / | \\
                                      a  +  #
                                        / \\
                                       x   y

Each `Level` is one word of one or more filters. `+` and `#` have places of their own beside the
literal words, so a walk looks at three things in each level and never searches. A level that ends
a filter carries its subscribers; one without subscribers and without levels below does not exist.

Promise: `insert`, `get` and `remove` cost one step per level of the filter. `match` visits each
level whose words so far fit the topic once, with a work list of the places where it parted (no
recursion, however deep the topic): its cost is bounded by the filters that fit, not by those
stored or by the ways through them. Nothing remains of a removed filter. A filter
with two levels of its own and one subscriber takes about 0.3 KiB.

MQTT 5.0, 4.7 (topic names and topic filters); 4.7.2 (topics beginning with $).
"""

from __future__ import annotations

from sys import intern
from typing import Final

__all__ = ["Level", "Trie"]

PLUS: Final = "+"
HASH: Final = "#"
#: Who has a filter that was inserted, until somebody does.
_NOBODY: Final[dict[object, int]] = {}


class Trie:
    """A set of topic filters, each with its subscribers, searched by topic name.

    Filters are taken as valid (`mqttd.codec.topic.validate_topic_filter`): the trie only places
    their words. Literal filters are as welcome as those with wildcards.
    """

    __slots__ = ("deepest", "filters", "root", "visited")

    def __init__(self) -> None:
        self.root: Level = Level("", None)
        self.filters: int = 0
        #: Levels of the deepest filter since the trie was empty: no walk needs more words.
        self.deepest: int = 0
        #: Levels that the last `match` looked at, whatever it found.
        self.visited: int = 0

    def __len__(self) -> int:
        """Return how many filters the trie holds."""
        return self.filters

    def insert(self, topic_filter: str) -> Level:
        """Return the level that ends `topic_filter`, made where it is missing.

        The filter is in the trie, and matches, until `remove`, whether somebody has it or not.
        """
        return self.place(topic_filter.split("/"))

    def place(self, words: list[str]) -> Level:
        """As `insert`, of a filter in its words."""
        level = self.root
        for word in words:
            below = level.below(word)
            if below is None:
                below = level.add(word)
            level = below
        if level.held is None:
            level.held = _NOBODY
            self.filters += 1
            if len(words) > self.deepest:
                self.deepest = len(words)
        return level

    def get(self, topic_filter: str) -> Level | None:
        """Return the level that ends `topic_filter`, None when the filter is not in the trie."""
        return self.find(topic_filter.split("/"))

    def find(self, words: list[str]) -> Level | None:
        """As `get`, of a filter in its words."""
        level = self.root
        for word in words:
            below = level.below(word)
            if below is None:
                return None
            level = below
        return None if level.held is None else level

    def remove(self, topic_filter: str) -> bool:
        """Take out `topic_filter` with its subscribers; say whether it was there."""
        level = self.get(topic_filter)
        if level is None:
            return False
        self.remove_at(level)
        return True

    def remove_at(self, end: Level) -> None:
        """Take out the filter that ends at this level of the trie."""
        level = end
        level.held = None
        self.filters -= 1
        if not self.filters:
            self.deepest = 0
        while level.is_needless():
            above = level.parent
            if above is None:
                break
            above.drop(level)
            level = above

    def match(self, topic: str) -> list[Level]:
        """Return the level of each filter that matches the topic name, in no particular order.

        A wildcard in the first level does not match a topic that begins with `$`
        [MQTT-4.7.2-1]; `a/#` matches `a` [4.7.1.2].
        """
        # What lies deeper than any filter stays one word that nobody looks at.
        words = topic.split("/", self.deepest)
        count = len(words)
        matched: list[Level] = []
        # Where the walk parted: levels yet to visit, and the depth of each.
        parted: list[Level] | None = None
        depths: list[int] | None = None
        dollar = topic.startswith("$")
        level = self.root
        depth = 0
        visited = 0
        while True:
            while True:
                visited += 1
                wild = depth > 0 or not dollar
                rest = level.hash
                if rest is not None and wild:
                    matched.append(rest)
                if depth == count:
                    if level.held is not None:
                        matched.append(level)
                    break
                word = words[depth]
                depth += 1
                literal = level.literal
                child: Level | None = None
                if isinstance(literal, dict):
                    child = literal.get(word)
                elif literal is not None and literal.word == word:
                    child = literal
                plus = level.plus
                if plus is None or not wild:
                    if child is None:
                        break
                    level = child
                else:
                    if child is not None:
                        if parted is None or depths is None:
                            parted = []
                            depths = []
                        parted.append(child)
                        depths.append(depth)
                    level = plus
            if not parted or not depths:
                self.visited = visited
                return matched
            level = parted.pop()
            depth = depths.pop()


class Level:
    """One word of one or more topic filters.

    word: the word; "+" and "#" for the wildcards, "" for the root and for an empty level.
    parent: the level above, None for the root and for a level that was removed.
    literal: the literal level below, by their word once there was more than one (a dict for one
        entry is 0.2 KiB).
    plus, hash: the `+` and `#` levels below.
    held: who has the filter that ends here, or, once there was more than one, subscriber ->
        subscription options; None where none ends. options: of the one.
    """

    __slots__ = ("hash", "held", "literal", "options", "parent", "plus", "word")

    def __init__(self, word: str, parent: Level | None) -> None:
        self.word: str = word
        self.parent: Level | None = parent
        self.literal: Level | dict[str, Level] | None = None
        self.plus: Level | None = None
        self.hash: Level | None = None
        self.held: object | None = None
        self.options: int = 0

    # -- who has the filter --------------------------------------------------------------------

    @property
    def subscribers(self) -> dict[object, int]:
        """Subscriber -> options. To look at: it may be a copy."""
        held = self.held
        if held is None:
            return _NOBODY
        return held if isinstance(held, dict) else {held: self.options}

    def options_of(self, subscriber: object) -> int:
        """The options of a subscriber, -1 where it has not got the filter."""
        held = self.held
        if isinstance(held, dict):
            found: int = held.get(subscriber, -1)
            return found
        return self.options if held is subscriber else -1

    def put(self, subscriber: object, options: int) -> None:
        """A subscriber has the filter that was placed here, with these options."""
        held = self.held
        if held is subscriber or held is _NOBODY:
            self.held = subscriber
            self.options = options
        elif isinstance(held, dict):
            held[subscriber] = options
        else:
            self.held = {held: self.options, subscriber: options}

    def take(self, subscriber: object) -> bool:
        """Take out a subscriber that is there; say whether it was the last."""
        held = self.held
        if not isinstance(held, dict):
            return True
        del held[subscriber]
        return not held

    # -- levels below --------------------------------------------------------------------------

    def topic_filter(self) -> str:
        """Return the topic filter that ends here."""
        words: list[str] = []
        level = self
        parent = level.parent
        while parent is not None:
            words.append(level.word)
            level = parent
            parent = level.parent
        words.reverse()
        return "/".join(words)

    def below(self, word: str) -> Level | None:
        """Return the level below that holds `word` of a filter, None when there is none."""
        if word == PLUS:
            return self.plus
        if word == HASH:
            return self.hash
        literal = self.literal
        if isinstance(literal, dict):
            return literal.get(word)
        return literal if literal is not None and literal.word == word else None

    def add(self, word: str) -> Level:
        """Make and return the level below for `word`, which must be missing.

        The first word of a filter that no other has is mostly its own; those behind it are others'
        words, too, and their text is shared.
        """
        if word != PLUS and word != HASH and self.is_needless():
            word = intern(word)
        level = Level(word, self)
        literal = self.literal
        if word == PLUS:
            self.plus = level
        elif word == HASH:
            self.hash = level
        elif literal is None:
            self.literal = level
        elif isinstance(literal, dict):
            literal[word] = level
        else:
            self.literal = {literal.word: literal, word: level}
        return level

    def drop(self, level: Level) -> None:
        """Take out `level`, which is directly below."""
        level.parent = None
        literal = self.literal
        if level is self.plus:
            self.plus = None
        elif level is self.hash:
            self.hash = None
        elif isinstance(literal, dict):
            del literal[level.word]
            if not literal:
                self.literal = None
        else:
            self.literal = None

    def is_needless(self) -> bool:
        """Say whether no filter ends here and no level is below."""
        return (
            self.held is None and self.literal is None and self.plus is None and self.hash is None
        )
