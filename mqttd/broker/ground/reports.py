"""The log's lines about connections: each that came and went, was refused, faulted or ended by us.

    peer breaks the rules      protocol fault         CONNECT refused       connect refused
    layers below MQTT refuse   connection refused     ended by us           disconnected
    listener is full           accept paused          our own mistake       internal error
    CONNECT accepted           connected              client went           disconnected by client

Promise: one event each, with the peer's address and the client id where there is one; nothing that
a peer sends can make more lines than it makes connections or packets that break the rules.
"""

from __future__ import annotations

import traceback
from typing import Final

from mqttd.broker.ground.alarms import Alarms
from mqttd.broker.ground.ground import Given, Ground
from mqttd.codec import reasons
from mqttd.codec.packet_types import TYPE_NAMES
from mqttd.codec.packets import Connect
from mqttd.codec.reasons import MqttError
from mqttd.session.channel.channel import WAITING, Channel
from mqttd.session.ground.connection import Connection
from mqttd.types import ClientInfo

__all__ = ["Reports"]

_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class Reports(Ground):
    """Logs what becomes of connections, and keeps the alarms."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        #: What an operator should know.
        self.alarms = Alarms(self.log)

    def fault(self, channel: Channel, error: MqttError, packet_type: int) -> None:
        """One log line for a peer that broke the rules."""
        host, port = channel.edge.peer(channel)
        session = channel.session
        self.log(
            "protocol fault",
            {
                "peer": f"{host}:{port}",
                "client_id": session.client_id if session is not None else "",
                "packet_type": TYPE_NAMES[packet_type] if packet_type else "unknown",
                "reason": reasons.name_of(error.reason_code),
                "detail": error.detail,
            },
        )

    def connect_refused(self, channel: Channel, connect: Connect, code: int, detail: str) -> None:
        """One log line for a CONNECT that is answered with a reason to go."""
        host, port = channel.edge.peer(channel)
        self.log(
            "connect refused",
            {
                "peer": f"{host}:{port}",
                "client_id": connect.client_id,
                "username": connect.username,
                "reason": reasons.name_of(code),
                "detail": detail,
            },
        )

    def connected(self, channel: Channel, client: ClientInfo, present: bool) -> None:
        """One log line for a client that was let in."""
        self.log(
            "connected",
            {
                "client_id": client.client_id,
                "username": client.username,
                "peer": f"{client.peerhost}:{client.peerport}",
                "listener": channel.listener,
                "version": _VERSIONS.get(channel.version),
                "keep_alive": client.keep_alive,
                "session": "resumed" if present else "new",
            },
        )

    def ended(self, channel: Channel) -> None:
        """One log line for a client whose connection ends, by us or by it."""
        session = channel.session
        code = channel.reason_code
        kind = "disconnected" if code else "disconnected by client"
        if session is None or (not code and not self.tells(kind)):
            return
        known = channel.known
        if isinstance(known, ClientInfo):
            host, port = known.peerhost, known.peerport
        else:
            host, port = channel.edge.peer(channel)
        told: dict[str, object] = {
            "client_id": session.client_id,
            "username": session.username,
            "peer": f"{host}:{port}" if host else None,
            "reason": reasons.name_of(code) if code else channel.close_reason,
            "detail": channel.close_reason if code else None,
            "seconds": (self.now - channel.since) / 1000,
            "messages": channel.taken(),
        }
        self.log(kind, told)

    def refused(self, channel: Channel, reason: str) -> None:
        """One log line for a peer that did not get through the layers below MQTT."""
        host, port = channel.edge.peer(channel)
        self.metrics.connections_refused += 1
        self.log(
            "connection refused",
            {"listener": channel.listener, "peer": f"{host}:{port}", "reason": reason},
        )

    def turned_away(self, listener: str, host: str, port: int) -> None:
        """One log line for an address that the rules of a listener keep out."""
        self.metrics.refused_address += 1
        reason = "this address may not connect here"
        self.log(
            "connection refused",
            {"listener": listener, "peer": f"{host}:{port}", "reason": reason},
        )

    def house_full(self, listener: str, host: str) -> None:
        """One log line for an address that has as many connections as it may."""
        self.metrics.connections_refused += 1
        self.metrics.refused_crowded += 1
        reason = "this address has max_connections_per_address"
        self.log("connection refused", {"listener": listener, "peer": host, "reason": reason})

    def line_full(self, listener: str, host: str) -> None:
        """One log line for who waited last in the longest line, where there were too many."""
        self.metrics.connections_refused += 1
        self.metrics.refused_in_line += 1
        reason = "connections come faster than accept_rate, and of this address most wait"
        self.log("connection refused", {"listener": listener, "peer": host, "reason": reason})

    def accept_paused(self, listener: str, why: str, connections: int) -> None:
        """One log line, and an alarm while a listener is full or descriptors are short."""
        name = f"listener full: {listener}"
        if not why:
            self.alarms.clear(name)
            self.log("accept resumed", {"listener": listener, "connections": connections})
            return
        reason = {
            "full": "there are max_connections",
            "rate": "connections come faster than accept_rate",
            "files": "the process has no open file left",
        }[why]
        self.log(
            "accept paused", {"listener": listener, "reason": reason, "connections": connections}
        )
        if why != "rate":
            self.alarms.activate(name, f"{listener} accepts nobody: {reason}")

    def limited(self, channel: Channel) -> None:
        """One log line a minute for a client that sends faster than it may."""
        host, port = channel.edge.peer(channel)
        session = channel.session
        client_id = session.client_id if session is not None else ""
        self.log(
            "rate limited",
            {"listener": channel.listener, "peer": f"{host}:{port}", "client_id": client_id},
        )

    def crashed(self, channel: Connection, error: Exception) -> None:
        """An exception that should not be: one line with its traceback, and the end of this one."""
        self.metrics.crashes += 1
        host, port = channel.edge.peer(channel)
        client_id = ""
        if isinstance(channel, Channel) and channel.session is not None:
            client_id = channel.session.client_id
        self.log(
            "internal error",
            {
                "peer": f"{host}:{port}",
                "client_id": client_id,
                "traceback": "".join(traceback.format_exception(error)),
            },
        )
        if isinstance(channel, Channel) and channel.state == WAITING:
            channel.refuse(reasons.UNSPECIFIED_ERROR, "internal error")
        channel.close(reasons.UNSPECIFIED_ERROR, "internal error")

    def end_channel(self, channel: Connection, reason_code: int, detail: str) -> None:
        """End a connection for a reason of ours, with one log line."""
        if not isinstance(channel, Channel) or channel.session is None:
            host, port = channel.edge.peer(channel)
            self.log(
                "disconnected",
                {
                    "peer": f"{host}:{port}",
                    "reason": reasons.name_of(reason_code),
                    "detail": detail,
                },
            )
        channel.close(reason_code, detail)
