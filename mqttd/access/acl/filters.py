"""Topic filters as sets of topics: what two of them share, and which of them holds the other.

::

    meet("plant/+/temp", "plant/1/#")  -->  "plant/1/temp"
    covers("plant/#", "plant/+/temp")  -->  True

For reports, word by word and without an index.  A placeholder (``%u``, ``${cn}``, ...) is a word
that may become any other: it meets every word and covers itself alone.  MQTT 5.0, 4.7.
"""

from __future__ import annotations

from mqttd.access.acl.asked import is_template

__all__ = ["covers", "meet"]


def meet(a: str, b: str) -> str | None:
    """The filter of the topics that match both, None if there are none."""
    if _dollar_apart(a, b) or _dollar_apart(b, a):
        return None
    first, second = a.split("/"), b.split("/")
    words: list[str] = []
    for i in range(max(len(first), len(second))):
        one = first[i] if i < len(first) else None
        two = second[i] if i < len(second) else None
        if one == "#":
            return "/".join([*words, *second[i:]])
        if two == "#":
            return "/".join([*words, *first[i:]])
        if one is None or two is None:
            return None
        if one == "+" or (is_template(one) and two != "+"):
            words.append(two)
        elif two == "+" or is_template(two) or one == two:
            words.append(one)
        else:
            return None
    return "/".join(words)


def covers(a: str, b: str) -> bool:
    """True if every topic that matches `b` matches `a` too."""
    if _dollar_apart(a, b):
        return False
    if b == "#":
        b = "+/#"
    first, second = a.split("/"), b.split("/")
    for i, word in enumerate(first):
        if word == "#":
            return True
        if i >= len(second) or second[i] == "#":
            return False
        if word != "+" and word != second[i]:
            return False
    return len(first) == len(second)


def _dollar_apart(a: str, b: str) -> bool:
    """A first level `+` or `#` of `a` has nothing to do with topics beginning with `$`."""
    return a.startswith(("+", "#")) and b.startswith("$") and not b.startswith("${")
