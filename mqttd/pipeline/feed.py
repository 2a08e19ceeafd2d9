"""The broker's half of `mqttd-ctl replay`: takes recorded messages in, a few at a time.

    mqttd-ctl replay (reads the log, keeps the pace) --admin socket--> `mqttd-ctl spark feed`
        --> publish, or one client's session

Of several workers each is asked: the first publishes, that of the client tells it, others say "0".

For operators: who may use the admin socket may publish anything anyway. Without it, replay goes by
MQTT (`--to-broker`).
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.session.ground.message import Message
from mqttd.types import OK, ClientInfo, HookResult, PluginError

__all__ = ["MOST", "Feed", "encode"]

#: Messages in one request.
MOST: Final = 256


class _Info:
    """What `client.handle_info` gets: recorded messages for one client."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages


def encode(
    topic: str, payload: bytes, qos: int, retain: bool, properties: prop.Properties | None
) -> list[Any]:
    """A message as it travels in the request."""
    block = prop.encode_properties(properties) if properties else b""
    return [topic, base64.b64encode(payload).decode(), qos, retain, block.hex()]


class Feed:
    """The command `feed` of the plugin: arguments are a client id or "", and JSON messages."""

    def __init__(self, handle: Any) -> None:
        self.fed = 0
        self._handle = handle
        self._hooked = False

    def start(self) -> None:
        """Add the command."""
        self._handle.add_command("feed", self.feed, "Takes what `mqttd-ctl replay` sends.")
        self._handle.add_metric("replayed_total", "Messages replayed.", lambda: self.fed)

    def feed(self, argv: list[str]) -> str:
        """Publish, or tell one client; how many.

        Raises ValueError with what is wrong, PluginError for a client that is not there.
        """
        if len(argv) != 2:
            raise ValueError("expected a client id (or an empty argument) and JSON messages")
        client_id, text = argv
        found = json.loads(text)
        if not isinstance(found, list) or len(found) > MOST:
            raise ValueError(f"expected a JSON list of at most {MOST} messages")
        messages = [_decode(one) for one in found]
        handle = self._handle
        if client_id:
            if handle.client(client_id) is None:
                if handle.worker:
                    return "0"
                raise PluginError(f"client {client_id!r} is not connected")
            if not self._hooked:
                self._hooked = True
                handle.hook("client.handle_info", self.told)
            made = [
                Message(number + 1, *one[:4], properties=one[4])
                for number, one in enumerate(messages)
            ]
            handle.send_info(client_id, _Info(made))
        elif handle.worker > 1:
            return "0"
        else:
            for topic, payload, qos, retain, properties in messages:
                handle.publish(topic, payload, qos, retain, properties)
        self.fed += len(messages)
        return str(len(messages))

    def told(self, client: ClientInfo, info: object, messages: list[Message]) -> HookResult:
        """client.handle_info: what is for this client."""
        return OK([*messages, *info.messages]) if isinstance(info, _Info) else OK


def _decode(one: Any) -> tuple[str, bytes, int, bool, prop.Properties | None]:
    topic, payload, qos, retain, block = one
    properties: prop.Properties | None = None
    if block:
        data = bytes.fromhex(block)
        properties, _ = prop.decode_properties(data, 0, len(data), PUBLISH)
    return str(topic), base64.b64decode(payload), int(qos), bool(retain), properties
