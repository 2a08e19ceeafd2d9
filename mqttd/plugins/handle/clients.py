"""The handle's clients: who is connected, and what is done to them."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from mqttd.plugins.handle.base import HandleBase
from mqttd.types import ClientInfo

__all__ = ["Clients"]


class Clients(HandleBase):
    """The clients of the broker."""

    def ready(self) -> Deferred[None]:
        """See `IPluginHandle.ready`."""
        self._check()
        fired: Deferred[None] = Deferred()

        def told() -> None:
            if not self.revoked:
                self._guard("ready", fired.callback, (None,))

        if self._host.opened:
            told()
        else:
            self._host.opening.append(told)
        return fired

    def client(self, client_id: str) -> ClientInfo | None:
        """See `IPluginHandle.client`."""
        self._check()
        session = self._host.broker.sessions.get(client_id)
        if session is None or session.channel is None:
            return None
        found: ClientInfo = self._host.broker.client_of(session)
        return found

    def clients(self) -> list[ClientInfo]:
        """See `IPluginHandle.clients`."""
        self._check()
        broker = self._host.broker
        sessions = list(broker.sessions.values())
        return [broker.client_of(session) for session in sessions if session.channel is not None]

    def subscribe_client(self, client_id: str, subscription: Any) -> int:
        """See `IPluginHandle.subscribe_client`."""
        self._check()
        code: int = self._host.broker.subscribe_client(client_id, subscription)
        return code

    def disconnect(self, client_id: str, reason_code: int = 0x98) -> bool:
        """See `IPluginHandle.disconnect`."""
        self._check()
        ended: bool = self._host.broker.kick(client_id, reason_code)
        return ended

    def send_info(self, client_id: str, info: Any) -> bool:
        """See `IPluginHandle.send_info`."""
        self._check()
        told: bool = self._host.broker.send_info(client_id, info)
        return told
