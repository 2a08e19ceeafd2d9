"""Filters that begin with a wildcard below a mountpoint: no topic that they match begins with `$`.

    mountpoint dev/7/    +/on   is   dev/7/+/on, MOUNTED    matches dev/7/a/on, not dev/7/$a/on
                         a/#    is   dev/7/a/#
    everybody else                   dev/7/+/on             matches both

For who lives there it is the first level of the tree [MQTT-4.7.2-1]. Others may have the same
filter, so this is no matter of the trie, but an option of a subscription; and of a member where a
shared group has it.

Promise: only topics with `/$` right behind the prefix of such a filter are looked at again, when
their route is built. Topics that have no such word pay nothing. MQTT 5.0, 4.7.2.
"""

from __future__ import annotations

from mqttd.broker.routing.trie import Level
from mqttd.session.routes.route import MOUNTED
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["Mounts", "mounted", "wildcard_at"]


def wildcard_at(topic_filter: str) -> int:
    """Where the first wildcard of a valid filter stands, -1 without one.

    >>> wildcard_at("dev/7/+/#")
    6
    """
    plus = topic_filter.find("+")
    return plus if plus >= 0 else topic_filter.find("#")


def mounted(session: Session, topic_filter: str) -> int:
    """The option MOUNTED if this filter begins with a wildcard for the session's client, else 0."""
    client = session.client
    # It is None most often, and a class that is not compiled asks None for its own.
    if client is None or not isinstance(client, ClientInfo) or not client.mountpoint:
        return 0
    prefix = client.mountpoint
    begins = topic_filter.startswith(prefix) and wildcard_at(topic_filter) == len(prefix)
    return MOUNTED if begins else 0


class Mounts:
    """The mountpoints right below which filters of their clients have wildcards."""

    def __init__(self) -> None:
        #: Prefix -> how many subscriptions; groups see to their members themselves.
        self.prefixes: dict[str, int] = {}

    def changed(self, topic_filter: str, options: int) -> None:
        """A subscription has MOUNTED among its options now, or no more."""
        prefix = topic_filter[: wildcard_at(topic_filter)]
        count = self.prefixes.get(prefix, 0) + (1 if options & MOUNTED else -1)
        if count:
            self.prefixes[prefix] = count
        else:
            del self.prefixes[prefix]

    def hide(self, topic: str) -> bool:
        """Whether a subscription with MOUNTED may lack this topic, though its filter matches."""
        if not self.prefixes:
            return False
        at = topic.find("/$")
        while at >= 0:
            if topic[: at + 1] in self.prefixes:
                return True
            at = topic.find("/$", at + 1)
        return False

    def begin_at(self, levels: list[Level]) -> bool:
        """Whether one of these levels is where a mountpoint ends."""
        if not self.prefixes:
            return False
        for level in levels:
            leads = level.plus is not None or level.hash is not None
            if leads and level.topic_filter() + "/" in self.prefixes:
                return True
        return False
