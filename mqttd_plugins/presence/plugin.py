"""Publishes a notice when a client connects or disconnects.

    client.connected     -->  $SYS/brokers/NODE/clients/CLIENT_ID/connected      {"clientid": ...}
    client.disconnected  -->  $SYS/brokers/NODE/clients/CLIENT_ID/disconnected   {"clientid": ...}

Topics and JSON are EMQ's. A client id that holds a character with a meaning in topics is percent
encoded in the topic (``/`` is ``%2F``): whatever it calls itself, its notices stay below its own
level; the JSON has it as it is.

With `retain` the last notices of a client are there as long as its session: an empty message to
both topics says that it has ended, or that another connection has taken it over, which may be one
to another node.

Promise: one small message for each event; what is remembered is one number for each connection.
What is retained is at most `RETAINED` bytes twice for each session, and sessions have their limits:
client ids that are never seen again leave nothing.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import ClientInfo

__all__ = ["RETAINED", "Presence", "Settings", "level_of"]

#: Most bytes of a notice that is retained, topic included: nobody is charged for those of $SYS, and
#: a client id or user name may have thousands of characters.
RETAINED: Final = 4096
#: Why a client has left whose session another connection goes on with, here or elsewhere.
_TAKEN_OVER: Final = "taken over"

_PROTOCOL: Final = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}
_ESCAPES: Final = {ord(char): f"%{ord(char):02X}" for char in "%/+#\0"}


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/presence.conf`` may say."""

    #: QoS of the notices.
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    #: Keep the last notice of each kind for later subscribers, as long as the client's session.
    retain: bool = False
    #: Tell the user name and the address too.
    identity: bool = True


def level_of(client_id: str) -> str:
    """A client id as one level of a topic."""
    return client_id.translate(_ESCAPES) or "%00"


@implementer(IPlugin)
class Presence:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Hook both ends of a connection."""
        self.handle = handle
        self.config = config
        self.published = 0
        #: When each connected client came, in milliseconds since the epoch.
        self._since: dict[str, int] = {}
        handle.hook("client.connected", self.connected)
        handle.hook("client.disconnected", self.disconnected)
        if config.retain:
            handle.hook("session.takenover", self.takenover)
            handle.hook("session.terminated", self.terminated)
        handle.add_metric("notices_total", "Notices published.", lambda: self.published)

    def unload(self) -> None:
        """Everything ends with the handle."""

    def connected(self, client: ClientInfo, acc: None) -> None:
        """client.connected"""
        now = self._now()
        self._since[client.client_id] = now
        self._publish(
            client,
            "connected",
            self._of(client, now)
            | {
                "connack": 0,
                "clean_start": client.clean_start,
                "keepalive": client.keep_alive,
                "connected_at": now,
            },
        )

    def disconnected(self, client: ClientInfo, reason: str, acc: None) -> None:
        """client.disconnected"""
        now = self._now()
        since = self._since.pop(client.client_id, None)
        notice = self._of(client, now) | {"reason": reason, "disconnected_at": now}
        if since is not None:
            notice["connected_at"] = since
        # Who has its session now tells of it, and may be in another process.
        self._publish(client, "disconnected", notice, stays=reason != _TAKEN_OVER)

    def takenover(self, client: ClientInfo, acc: None) -> None:
        """session.takenover"""
        self._forget(client.client_id)

    def terminated(self, client: ClientInfo, reason: str, acc: None) -> None:
        """session.terminated"""
        self._forget(client.client_id)

    def _of(self, client: ClientInfo, now: int) -> dict[str, object]:
        notice: dict[str, object] = {
            "clientid": client.client_id,
            "protocol": "mqtt",
            "proto_name": _PROTOCOL.get(client.protocol_version, "MQTT"),
            "proto_ver": client.protocol_version,
            "listener": client.listener,
            "ts": now,
        }
        if self.config.identity:
            notice |= {"username": client.username or "undefined", "ipaddress": client.peerhost}
        return notice

    def _publish(
        self, client: ClientInfo, event: str, notice: dict[str, object], stays: bool = True
    ) -> None:
        topic = self._topic(client.client_id, event)
        payload = json.dumps(notice, ensure_ascii=False).encode()
        fits = len(topic.encode()) + len(payload) <= RETAINED
        self.handle.publish(topic, payload, self.config.qos, self.config.retain and stays and fits)
        self.published += 1

    def _forget(self, client_id: str) -> None:
        """What is retained of this client goes."""
        for event in ("connected", "disconnected"):
            self.handle.publish(self._topic(client_id, event), b"", 0, True)

    def _topic(self, client_id: str, event: str) -> str:
        return f"$SYS/brokers/{self.handle.node}/clients/{level_of(client_id)}/{event}"

    def _now(self) -> int:
        return int(self.handle.time() * 1000)
