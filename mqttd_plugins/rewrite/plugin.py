"""Rewrites the topics of messages and subscriptions by rules, the first that fits.

    from     old/+/data/#        a topic filter; each + and # is a group: $1, $2
    to       new/$2/of/$1        a template; %c is the client id, %u the user name

    PUBLISH      old/7/data/a/b --> new/a/b/of/7
    SUBSCRIBE    old/+/data/#   --> (a wildcard is a text like any other: new/#/of/+ is no filter,
                                     so the rule is passed over)

There is no regular expression: a rule costs one pass over the levels of a topic, whatever a client
writes into it. Access rules see the topic as the client wrote it in PUBLISH, and the new one too;
in SUBSCRIBE the new one.

Promise: a rewritten topic never means more than its rule says. One that would not be a valid topic,
whose client id or user name holds ``+ # /``, or that would begin with ``$`` although the template
does not, is not rewritten; `skipped_total` counts it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.codec.packets import Subscription
from mqttd.codec.reasons import NOT_AUTHORIZED, MqttError
from mqttd.codec.topic import validate_topic_filter, validate_topic_name
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import OK, STOP, Action, ClientInfo, HookResult, Verdict

__all__ = ["Rewrite", "Rule", "Rules", "Settings"]

_MARK: Final = re.compile(r"\$[1-9]|%[cu]")
_UNSAFE: Final = re.compile("[+#/\0]")


class Rule(Struct, frozen=True, kw_only=True, rename={"from_filter": "from"}):
    """One rule of the configuration."""

    #: A topic filter; what its wildcards stand for is $1, $2, ... of `to`.
    from_filter: Annotated[str, Meta(min_length=1)]
    #: What the topic becomes.
    to: Annotated[str, Meta(min_length=1)]
    #: Where the rule holds.
    action: Literal["all", "publish", "subscribe"] = "all"


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/rewrite.conf`` may say."""

    #: The first one that fits is taken.
    rules: Annotated[tuple[Rule, ...], Meta(max_length=1000)] = ()


class Rules:
    """The rules of one action. Raises ValueError for one that cannot be."""

    def __init__(self, rules: tuple[Rule, ...], action: str) -> None:
        self._rules: list[tuple[list[str], Rule]] = []
        self.skipped = 0
        for rule in rules:
            _check(rule)
            if rule.action in ("all", action):
                self._rules.append((rule.from_filter.split("/"), rule))

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def filters(self) -> list[str]:
        """What the rules hold for."""
        return [rule.from_filter for _, rule in self._rules]

    def rewrite(self, topic: str, client_id: str, username: str | None, filters: bool) -> str:
        """What `topic` becomes, or itself; `filters` says that it is a topic filter."""
        levels = topic.split("/")
        for pattern, rule in self._rules:
            groups = _fit(pattern, levels)
            if groups is None:
                continue
            made = _fill(rule.to, groups, client_id, username)
            if made is not None:
                try:
                    (validate_topic_filter if filters else validate_topic_name)(made)
                except MqttError:
                    made = None
            if made is None or (made.startswith("$") and not _named(rule.to)):
                self.skipped += 1
                return topic
            return made
        return topic


def _check(rule: Rule) -> None:
    try:
        validate_topic_filter(rule.from_filter)
    except MqttError as error:
        raise ValueError(f"from = {rule.from_filter!r}: {error.detail}") from None
    groups = sum(level in ("+", "#") for level in rule.from_filter.split("/"))
    for mark in _MARK.findall(rule.to):
        if mark[0] == "$" and int(mark[1]) > groups:
            raise ValueError(f"to = {rule.to!r}: {mark}, but from has {groups} wildcards")
    if re.search("[+#\0]", rule.to):
        raise ValueError(f"to = {rule.to!r}: expected a template without + and #")


def _named(template: str) -> bool:
    """Whether a template itself says that the topic begins with `$`."""
    return template.startswith("$") and _MARK.match(template) is None


def _fit(pattern: list[str], levels: list[str]) -> list[str] | None:
    """What the wildcards of a pattern stand for; None if it does not fit."""
    groups: list[str] = []
    for position, level in enumerate(pattern):
        if level == "#":
            if position == 0 and levels[0].startswith("$"):
                return None
            groups.append("/".join(levels[position:]))
            return groups
        if position == len(levels):
            return None
        if level == "+":
            if position == 0 and levels[0].startswith("$"):
                return None
            groups.append(levels[position])
        elif level != levels[position]:
            return None
    return groups if len(pattern) == len(levels) else None


def _fill(template: str, groups: list[str], client_id: str, username: str | None) -> str | None:
    """The template with its marks filled in, in one pass; None if a name may not stand there."""
    unsafe = False

    def put(mark: re.Match[str]) -> str:
        nonlocal unsafe
        text = mark[0]
        if text[0] == "$":
            return groups[int(text[1]) - 1]
        name = client_id if text == "%c" else username
        if not name or _UNSAFE.search(name):
            unsafe = True
            return ""
        return name

    made = _MARK.sub(put, template)
    return None if unsafe else made


@implementer(IPlugin)
class Rewrite:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Hook what there are rules for; raises ValueError for a rule that cannot be."""
        self.handle = handle
        self.rewritten = 0
        self.denied = 0
        self.publishing = Rules(config.rules, "publish")
        self.subscribing = Rules(config.rules, "subscribe")
        #: Who was asked about last: a will's publisher is not connected any more.
        self._asked: ClientInfo | None = None
        if self.publishing:
            handle.hook("message.publish", self.publish, priority=100)
            # Before those who end the chain with an answer.
            handle.hook(
                "client.authorize",
                self.authorize,
                priority=900_000,
                topic_filter=self.publishing.filters,
            )
        if self.subscribing:
            handle.hook("client.subscribe", self.subscribe, priority=100)
            handle.hook("client.unsubscribe", self.unsubscribe, priority=100)
        handle.add_metric("rewritten_total", "Topics rewritten.", lambda: self.rewritten)
        handle.add_metric(
            "denied_total",
            "Messages whose publisher has no right to the new topic.",
            lambda: self.denied,
        )
        handle.add_metric(
            "skipped_total",
            "Topics that a rule fits, but that could not be rewritten.",
            lambda: self.publishing.skipped + self.subscribing.skipped,
        )

    def unload(self) -> None:
        """Everything ends with the handle."""

    def publish(self, message: Any) -> HookResult:
        """message.publish"""
        topic = self.publishing.rewrite(message.topic, message.client_id, message.username, False)
        if topic == message.topic:
            return OK
        if message.client_id and not self._may(message, topic):
            self.denied += 1
            return STOP(self._refusal(message.client_id))
        self.rewritten += 1
        return OK(message.replace(topic=topic))

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, verdict: Verdict
    ) -> HookResult:
        """client.authorize: the right to the topic as it was written, just before `publish`."""
        self._asked = client
        return OK

    def _may(self, message: Any, topic: str) -> bool:
        """Whether the publisher has a right to the new topic as well."""
        client = self.handle.client(message.client_id)
        if client is None or not _is_by(client, message):
            # A will, or what was delayed: its client has gone, and was asked about a moment ago,
            # with the address it came from and what its authentication brought.
            client = self._asked
        if client is None or not _is_by(client, message):
            client = ClientInfo(message.client_id, message.username, "", 0, "", 5)
        return self.handle.authorize(client, Action("publish", message.qos, message.retain), topic)

    def _refusal(self, client_id: str) -> int | None:
        """What a publisher without the right is told, which before MQTT 5.0 is nothing."""
        client = self.handle.client(client_id)
        return NOT_AUTHORIZED if client is not None and client.protocol_version == 5 else None

    def subscribe(
        self, client: ClientInfo, properties: Any, subscriptions: list[Subscription]
    ) -> HookResult:
        """client.subscribe"""
        return OK(
            [
                Subscription(
                    self._filter(client, asked.topic_filter),
                    asked.qos,
                    asked.no_local,
                    asked.retain_as_published,
                    asked.retain_handling,
                )
                for asked in subscriptions
            ]
        )

    def unsubscribe(self, client: ClientInfo, properties: Any, filters: list[str]) -> HookResult:
        """client.unsubscribe"""
        return OK([self._filter(client, topic_filter) for topic_filter in filters])

    def _filter(self, client: ClientInfo, topic_filter: str) -> str:
        share, real = _split(topic_filter)
        made = self.subscribing.rewrite(real, client.client_id, client.username, True)
        if made == real:
            return topic_filter
        self.rewritten += 1
        return share + made


def _is_by(client: ClientInfo, message: Any) -> bool:
    return (client.client_id, client.username) == (message.client_id, message.username)


def _split(topic_filter: str) -> tuple[str, str]:
    """A filter behind its ``$share/group/`` or ``$queue/``."""
    if topic_filter.startswith("$queue/"):
        return "$queue/", topic_filter[7:]
    if topic_filter.startswith("$share/"):
        at = topic_filter.find("/", 7)
        if at > 0:
            return topic_filter[: at + 1], topic_filter[at + 1 :]
    return "", topic_filter
