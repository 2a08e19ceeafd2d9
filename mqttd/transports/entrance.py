"""What a new connection of a listener passes through before MQTT: PROXY header, TLS, WebSocket.

    bytes --> [ProxyLayer] --> [TlsLayer] --> [WebSocketLayer] --> MQTT

On Twisted's transports TLS, and the PROXY header below it, are Twisted's affair (`tls_twisted`):
then the layers are those above TLS alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from mqttd.config.schema import Listener, SocketListener, SslListener, WsListener, WssListener
from mqttd.transports.certificates import certificate_identity, map_identity, subject_of
from mqttd.transports.frames import WebSocketLayer
from mqttd.transports.layers import Layer, Stack
from mqttd.transports.proxy import ProxyHeader, ProxyLayer
from mqttd.transports.records import TlsLayer
from mqttd.transports.sockets import ListenError
from mqttd.transports.tls import Tls, TlsError
from mqttd.types import PeerIdentity

__all__ = ["Entrance"]


class Entrance:
    """The layers of one listener, called `name`, in the configuration `where`.

    ``log(event, fields)`` hears who is turned away. `tls` is None without TLS. `take_over`
    replaces the settings, for connections to come.
    """

    def __init__(
        self,
        name: str,
        where: str,
        settings: Listener,
        log: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.name = name
        self.where = where
        self.settings: Any = settings
        self.log = log
        self.tls: Tls | None = None
        self.site: Any = None
        self.networks = [
            ipaddress.ip_network(text) for text in getattr(settings, "proxy_protocol", ())
        ]

    def read_files(self) -> None:
        """Read what is served, if that is not done. Raises `ListenError`."""
        settings = self.settings
        if isinstance(settings, WsListener | WssListener) and self.site is None:
            from mqttd.transports.websocket import WebSite

            self.site = WebSite(settings.path, settings.origins, settings.page)
        if not isinstance(settings, SslListener) or self.tls is not None:
            return
        alpn = ("http/1.1",) if isinstance(settings, WssListener) else ("mqtt",)
        try:
            self.tls = Tls(settings, alpn)
        except TlsError as error:
            raise ListenError(f"{self.where}: {error}") from None

    def take_over(self, settings: Any, changed: list[str]) -> None:
        """Let further connections pass by other settings, which differ in the keys `changed`.

        Raises `ListenError` for TLS files that cannot be used, and then nothing is changed.
        """
        if self.tls is not None:
            self._take_over_tls(self.tls, settings, changed)
        self.settings = settings
        if self.site is not None:
            self.site = None
            self.read_files()

    def _take_over_tls(self, tls: Tls, settings: Any, changed: list[str]) -> None:
        before, tls.settings = tls.settings, settings
        if set(changed) <= set(SocketListener.__struct_fields__):
            return
        try:
            tls.reload()
        except TlsError as error:
            tls.settings = before
            raise ListenError(f"{self.where}: {error}; nothing was changed") from None

    def any(self, below_tls: bool = True) -> bool:
        """Whether there are layers; `below_tls` is whether TLS is among them."""
        if below_tls:
            return bool(self.networks or self.tls is not None or self.site is not None)
        return bool((self.networks and self.tls is None) or self.site is not None)

    def maker(self, below_tls: bool = True) -> Callable[[Any], Stack | None]:
        """What makes the layers of a new connection from its address."""

        def make(address: Any) -> Stack | None:
            layers: list[Layer] = []
            if self.networks and (below_tls or self.tls is None):
                proxy = self.proxy_layer(address)
                if proxy is None:
                    return None
                layers.append(proxy)
            if self.tls is not None and below_tls:
                layers.append(TlsLayer(self.tls.context, self.tls.identify))
            if self.site is not None:
                layers.append(WebSocketLayer(self.site.upgrade()))
            return Stack(layers)

        return make

    def proxy_layer(self, address: Any) -> ProxyLayer | None:
        """The layer for the PROXY header; None (and a line in the log) for a stranger."""
        host = str(address[0]).partition("%")[0]
        peer = ipaddress.ip_address(host)
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if any(peer in network for network in self.networks):
            return ProxyLayer(self._identify_proxied)
        fields: dict[str, object] = {"listener": self.name, "peer": f"{host}:{address[1]}"}
        self.log("connection refused", {**fields, "reason": "no proxy of this listener"})
        return None

    def _identify_proxied(self, header: ProxyHeader) -> PeerIdentity | None:
        name = header.common_name
        subject = subject_of(name) if name is not None else None
        return map_identity(PeerIdentity(header.host, header.port, name, subject), self.settings)

    def identify_certificate(self, certificate: Any) -> PeerIdentity | None:
        """Who the client is by the certificate (of pyOpenSSL) it has shown."""
        from OpenSSL import crypto

        der = crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
        return map_identity(certificate_identity(der), self.settings)
