"""The handle's services and listeners: what the plugin runs beside its callbacks."""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.endpoints import serverFromString
from zope.interface.verify import verifyObject

from mqttd.codec import reasons
from mqttd.plugins.handle.base import SEGMENT, HandleBase

__all__ = ["Services"]


class Services(HandleBase):
    """Twisted services, and endpoints where MQTT clients are accepted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._services = MultiService()
        self._ports: dict[str, Any] = {}
        self._at_end(self._stop_services)
        self._at_end(self._stop_ports)

    def add_service(self, service: Any) -> None:
        """See `IPluginHandle.add_service`."""
        self._check()
        verifyObject(IService, service)
        if not self._services.running:
            self._services.startService()
        service.setServiceParent(self._services)

    def add_listener(self, endpoint: str, name: str) -> Deferred[Any]:
        """See `IPluginHandle.add_listener`."""
        self._new(name, self._ports, SEGMENT, "name", "letters, digits and _ . -")
        if self._host.make_factory is None:
            raise RuntimeError("there are no listeners here")
        self._ports[name] = None
        factory = self._host.make_factory(f"{self.name}.{name}")
        opened = maybeDeferred(
            lambda: serverFromString(self._host.reactor, endpoint).listen(factory)
        )

        def listening(port: Any) -> Any:
            if self.revoked:
                port.stopListening()
                raise RuntimeError(f"plugin {self.name} was unloaded")
            self._ports[name] = port
            return port.getHost()

        def failed(failure: Any) -> Any:
            self._ports.pop(name, None)
            return failure

        return opened.addCallbacks(listening, failed)

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        return {
            "services": len(list(self._services)),
            "listeners": sorted(self._ports),
            **super().describe(),
        }

    def _stop_services(self) -> Deferred[Any] | None:
        return self._ended(self._services.stopService) if self._services.running else None

    def _stop_ports(self) -> Deferred[Any]:
        """Stop listening, and end the connections that came through."""
        stopping = []
        broker = self._host.broker
        for name, port in self._ports.items():
            if port is not None:
                stopping.append(self._ended(port.stopListening))
            listener = f"{self.name}.{name}"
            for session in list(broker.sessions.values()):
                channel = session.channel
                if channel is not None and channel.listener == listener:
                    channel.close(reasons.SERVER_SHUTTING_DOWN, f"listener {listener} ended")
        if self._ports:
            broker.perform_later()
        self._ports.clear()
        return DeferredList(stopping)
