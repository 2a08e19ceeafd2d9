"""The tree of the topics that have retained messages: one level for each word.

    level --first--> newest below --next--> older --next--> ...     children: by word, from two on

New levels are put in front of their neighbours, behind every cursor that reads along them
(`mqttd.broker.retained.retainer`).
"""

from __future__ import annotations

from mqttd.codec.native import mypyc_attr

__all__ = ["RetainedLevel", "Word", "after_dollar", "comes_after", "has_head", "literal"]


@mypyc_attr(acyclic=True)
class Word:
    """A word that levels of one depth hold: the text that they share, and how many they are."""

    __slots__ = ("levels", "text")

    def __init__(self, text: str) -> None:
        self.text: str = text
        self.levels: int = 0


class RetainedLevel:
    """One word of one or more topics, with the retained message of the topic that ends here.

    first, next, prev: the levels below, and those beside, the newest first.
    children: the levels below by word, once there are two (a dict for one takes 0.2 KiB).
    born: counts the levels of the tree, so of those beside each other which come first.
    stored: the number of the store that put the message here, 0 while there is none.
    cursors: how many cursors rest here.
    """

    __slots__ = (
        "born",
        "children",
        "cursors",
        "expires_at",
        "first",
        "message",
        "next",
        "parent",
        "prev",
        "size",
        "stored",
        "word",
    )

    def __init__(self, word: str, parent: RetainedLevel | None) -> None:
        self.word: str = word
        self.parent: RetainedLevel | None = parent
        self.first: RetainedLevel | None = None
        self.next: RetainedLevel | None = None
        self.prev: RetainedLevel | None = None
        self.children: dict[str, RetainedLevel] | None = None
        self.message: object | None = None
        self.size: int = 0
        self.expires_at: int = 0
        self.stored: int = 0
        self.cursors: int = 0
        self.born: int = 0

    def topic(self) -> str:
        """Return the topic name that ends here."""
        words: list[str] = []
        level = self
        parent = level.parent
        while parent is not None:
            words.append(level.word)
            level = parent
            parent = level.parent
        words.reverse()
        return "/".join(words)

    def depth(self) -> int:
        """Return how many levels are above."""
        depth = 0
        parent = self.parent
        while parent is not None:
            depth += 1
            parent = parent.parent
        return depth

    def is_expired(self, now: int) -> bool:
        """Say whether the message has expired by `now`."""
        return self.expires_at != 0 and self.expires_at <= now

    def below(self, word: str) -> RetainedLevel | None:
        """Return the level below that holds `word`, None when there is none."""
        children = self.children
        if children is not None:
            return children.get(word)
        first = self.first
        return first if first is not None and first.word == word else None

    def add(self, word: str) -> RetainedLevel:
        """Make and return the level below for `word`, which must be missing."""
        level = RetainedLevel(word, self)
        first = self.first
        if first is not None:
            first.prev = level
            level.next = first
            if self.children is None:
                self.children = {first.word: first}
            self.children[word] = level
        self.first = level
        return level

    def drop(self, level: RetainedLevel) -> None:
        """Take out `level`, which is directly below."""
        before = level.prev
        after = level.next
        if before is None:
            self.first = after
        else:
            before.next = after
        if after is not None:
            after.prev = before
        level.next = None
        level.prev = None
        level.parent = None
        children = self.children
        if children is not None:
            del children[level.word]
            if len(children) < 2:
                self.children = None


def after_dollar(level: RetainedLevel | None) -> RetainedLevel | None:
    """Return the first of `level` and those after it whose word does not begin with `$`.

    A wildcard in the first level does not match a topic that begins with `$` [MQTT-4.7.2-1].
    """
    while level is not None and level.word.startswith("$"):
        level = level.next
    return level


def comes_after(level: RetainedLevel, here: RetainedLevel) -> bool:
    """Whether who goes through the tree comes to `level` later than to `here`.

    What is above comes first, and of those beside each other the newest.
    """
    one = level
    other = here
    deeper = level.depth() - here.depth()
    for _ in range(deeper):
        assert one.parent is not None
        one = one.parent
    for _ in range(-deeper):
        assert other.parent is not None
        other = other.parent
    if one is other:
        return deeper > 0
    while one.parent is not other.parent:
        assert one.parent is not None and other.parent is not None
        one = one.parent
        other = other.parent
    return one.born < other.born


def literal(words: list[str]) -> int:
    """How many words stand before the first `+`."""
    count = 0
    while count < len(words) and words[count] != "+":
        count += 1
    return count


def has_head(words: list[dict[str, Word]], topic_filter: str) -> bool:
    """Whether any topic begins with the first word of a filter; False: it matches none.

    words: by depth, those of all topics.
    """
    if not words:
        return False
    end = topic_filter.find("/")
    head = topic_filter if end < 0 else topic_filter[:end]
    return head == "+" or head == "#" or head in words[0]
