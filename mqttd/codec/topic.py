"""Topic names and filters: their syntax, their words, and whether one matches the other.

    sensors/+/temperature      words   ["sensors", "+", "temperature"]
    $share/group/sensors/#     shared  ("group", "sensors/#")
    $queue/sensors/#           shared  ("$queue", "sensors/#")

Every function is one pass over the text: time is linear in its length, no recursion and no regular
expression, so 256 levels or 65,535 bytes cost what their length says (MQTT 5.0, 4.7 and 4.8.2).
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.reasons import TopicFilterInvalid, TopicNameInvalid

__all__ = [
    "MAX_LEVELS",
    "MAX_TOPIC_BYTES",
    "QUEUE_GROUP",
    "is_shared",
    "match",
    "overlap",
    "split_shared",
    "validate_topic_filter",
    "validate_topic_name",
    "words",
]

MAX_LEVELS: Final = 256
MAX_TOPIC_BYTES: Final = 65535

QUEUE_GROUP: Final = "$queue"
"""The one group that all subscribers of ``$queue/filter`` share; the name is EMQ's."""


def match(topic_name: str, topic_filter: str) -> bool:
    """True if a message on this topic goes to this filter (4.7.1, 4.7.2).

    A first level ``+`` or ``#`` does not match a name that begins with ``$``. Expects a valid name
    and a valid filter without its ``$share/group/``.
    """
    if "+" not in topic_filter and "#" not in topic_filter:
        return topic_name == topic_filter
    if topic_name.startswith("$") and not topic_filter.startswith("$"):
        return False
    levels = topic_name.split("/")
    count = len(levels)
    position = 0
    for level in topic_filter.split("/"):
        if level == "#":
            return True
        if position == count:
            return False
        if level != "+" and level != levels[position]:
            return False
        position += 1
    return position == count


def overlap(topic_filter: str, other: str) -> bool:
    """True if there may be a topic that goes to both filters (4.7.1, 4.7.2).

    A name is a filter without wildcards. Expects valid ones without their ``$share/group/``.
    """
    if topic_filter[:1] in "+#" and other.startswith("$"):
        return False
    if other[:1] in "+#" and topic_filter.startswith("$"):
        return False
    levels = topic_filter.split("/")
    others = other.split("/")
    for level, beside in zip(levels, others, strict=False):
        if level == "#" or beside == "#":
            return True
        if level != beside and level != "+" and beside != "+":
            return False
    longer = levels if len(levels) > len(others) else others
    common = min(len(levels), len(others))
    return len(longer) == common or longer[common] == "#"


def words(topic: str) -> list[str]:
    """The levels of a topic name or filter; an empty level is a level (4.7.1.1)."""
    return topic.split("/")


def is_shared(topic_filter: str) -> bool:
    """Whether a filter is that of a shared subscription (4.8.2)."""
    return topic_filter[:1] == "$" and topic_filter.startswith(("$share/", "$queue/"))


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """(group, filter) of a shared subscription, (None, filter) of an ordinary one (4.8.2).

    :raises TopicFilterInvalid: no group name, a wildcard in it, or no filter behind it.
    """
    if topic_filter[:1] != "$":
        return None, topic_filter
    if topic_filter.startswith("$queue/"):
        real = topic_filter[7:]
        if not real:
            raise TopicFilterInvalid("$queue without a topic filter")
        return QUEUE_GROUP, real
    if not topic_filter.startswith("$share/"):
        return None, topic_filter
    slash = topic_filter.find("/", 7)
    if slash < 0 or slash == len(topic_filter) - 1:
        raise TopicFilterInvalid("$share without a topic filter")
    group = topic_filter[7:slash]
    if not group:
        raise TopicFilterInvalid("$share without a group name")
    if "+" in group or "#" in group:
        raise TopicFilterInvalid("wildcard in the group name of $share")
    return group, topic_filter[slash + 1 :]


def validate_topic_name(topic: str, max_levels: int = MAX_LEVELS) -> None:
    """Accept what a PUBLISH may carry (4.7).

    :param max_levels: largest number of levels; 0 for any.
    :raises TopicNameInvalid: empty, too long, too deep, with a wildcard or U+0000.
    """
    if not topic:
        raise TopicNameInvalid("empty topic name")
    if "+" in topic or "#" in topic:
        raise TopicNameInvalid("wildcard in a topic name")
    if "\0" in topic:
        raise TopicNameInvalid("U+0000 in a topic name")
    if max_levels and topic.count("/") >= max_levels:
        raise TopicNameInvalid(f"topic name has more than {max_levels} levels")
    if len(topic) > 16383 and _too_long(topic):
        raise TopicNameInvalid(f"topic name is longer than {MAX_TOPIC_BYTES} bytes")


def validate_topic_filter(
    topic_filter: str, max_levels: int = MAX_LEVELS, any_length: bool = False
) -> None:
    """Accept what a SUBSCRIBE may carry, shared subscriptions included (4.7, 4.8.2).

    :param max_levels: largest number of levels, without ``$share/group``; 0 for any.
    :param any_length: it may be longer than a SUBSCRIBE can say, as with a mountpoint.
    :raises TopicFilterInvalid: empty, too long, too deep, a wildcard that shares its level or
        stands before the end, a bad share, U+0000.
    """
    if not topic_filter:
        raise TopicFilterInvalid("empty topic filter")
    if "\0" in topic_filter:
        raise TopicFilterInvalid("U+0000 in a topic filter")
    if not any_length and len(topic_filter) > 16383 and _too_long(topic_filter):
        raise TopicFilterInvalid(f"topic filter is longer than {MAX_TOPIC_BYTES} bytes")
    _, real = split_shared(topic_filter)
    if max_levels and real.count("/") >= max_levels:
        raise TopicFilterInvalid(f"topic filter has more than {max_levels} levels")
    if "+" not in real and "#" not in real:
        return
    closed = False
    for level in real.split("/"):
        if closed:
            raise TopicFilterInvalid("# before the last level of a topic filter")
        if level == "#":
            closed = True
        elif level != "+" and ("+" in level or "#" in level):
            raise TopicFilterInvalid("wildcard that does not fill its level of a topic filter")


def _too_long(text: str) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES
