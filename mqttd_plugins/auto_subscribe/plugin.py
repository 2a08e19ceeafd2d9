"""Subscribes clients to topics of their own when they connect, as if they had asked.

    [[topics]]
    filter = "clients/%c/commands/#"     %c the client id, %u the user name

    client.connected --> filter for this client --access rules--> subscribed

Promise: a filter never widens. A client whose id or name holds ``+ # /`` (or who has no user name
where ``%u`` stands) is not subscribed to it; a refusal of the access rules stands. Both are counted
and logged, and the client stays connected.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.codec.packets import Subscription
from mqttd.codec.reasons import MqttError, name_of
from mqttd.codec.topic import validate_topic_filter
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import ClientInfo

__all__ = ["AutoSubscribe", "Settings", "Topic", "fill"]

_MARK: Final = re.compile("%[cu]")
_UNSAFE: Final = re.compile("[+#/\0]")


class Topic(Struct, frozen=True, kw_only=True):
    """One subscription of every client."""

    #: A topic filter, with %c for the client id and %u for the user name.
    filter: Annotated[str, Meta(min_length=1)]
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    no_local: bool = False
    retain_as_published: bool = False
    #: Retained messages: 0 at each connection, 1 if the subscription is new, 2 never.
    retain_handling: Annotated[int, Meta(ge=0, le=2)] = 1


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/auto_subscribe.conf`` may say."""

    topics: Annotated[tuple[Topic, ...], Meta(max_length=100)] = ()


def fill(template: str, client: ClientInfo) -> str | None:
    """The filter of one client, in one pass; None if its names may not stand in it."""
    unsafe = False

    def put(mark: re.Match[str]) -> str:
        nonlocal unsafe
        name = client.client_id if mark[0] == "%c" else client.username
        if not name or _UNSAFE.search(name):
            unsafe = True
            return ""
        return name

    made = _MARK.sub(put, template)
    return None if unsafe else made


@implementer(IPlugin)
class AutoSubscribe:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check the filters, hook connections; raises ValueError for what is no filter."""
        self.handle = handle
        self.topics = config.topics
        self.subscribed = 0
        self.refused = 0
        for topic in config.topics:
            try:
                validate_topic_filter(_MARK.sub("x", topic.filter))
            except MqttError as error:
                raise ValueError(f"filter = {topic.filter!r}: {error.detail}") from None
        if config.topics:
            handle.hook("client.connected", self.connected)
        handle.add_metric("subscribed_total", "Subscriptions made.", lambda: self.subscribed)
        handle.add_metric("refused_total", "Subscriptions not made.", lambda: self.refused)

    def unload(self) -> None:
        """Everything ends with the handle; the subscriptions stay with their sessions."""

    def connected(self, client: ClientInfo, acc: None) -> None:
        """client.connected"""
        for topic in self.topics:
            made = fill(topic.filter, client)
            if made is None:
                self._refuse(client, topic, "its names may not stand in a topic filter")
                continue
            asked: Any = Subscription(
                made, topic.qos, topic.no_local, topic.retain_as_published, topic.retain_handling
            )
            try:
                code = self.handle.subscribe_client(client.client_id, asked)
            except (KeyError, MqttError) as error:
                self._refuse(client, topic, str(error))
                continue
            if code < 0x80:
                self.subscribed += 1
            else:
                self._refuse(client, topic, name_of(code))

    def _refuse(self, client: ClientInfo, topic: Topic, why: str) -> None:
        self.refused += 1
        if self.refused <= 10 or self.refused % 1000 == 0:
            self.handle.log.warn(
                "client {client_id!r} is not subscribed to {filter}: {why} ({count} so far)",
                client_id=client.client_id,
                filter=topic.filter,
                why=why,
                count=self.refused,
            )
