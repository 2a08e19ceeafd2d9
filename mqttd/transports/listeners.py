"""The doors of the broker: every `[listener.KIND.NAME]`, opened and closed one by one.

    kind      socket    layers on the engine        with transport = "twisted"
    tcp       TCP       -                           MqttProtocol
    ssl       TCP       TLS records                 Twisted's TLS, MqttProtocol
    ws        TCP       HTTP upgrade, frames        MqttProtocol with the same layers
    wss       TCP       TLS, upgrade, frames        Twisted's TLS, MqttProtocol with layers
    unix      Unix      -                           MqttProtocol
    endpoint  whatever Twisted's endpoint string says, always on Twisted's transports

A listener is called `KIND:NAME` (`ssl:default`), in the log, in hooks, and by mqttd-ctl. With
`proxy_protocol` a layer that takes the PROXY header comes first.

The configuration is read again by `Listeners.reload`, which gives the listeners that are open what
needs no new socket (limits, certificates; connections stay), and when one is started or restarted.

Promise: what can be refused is refused before the broker serves (address in use, files unreadable);
starting, stopping and restarting one listener touches no other; a configuration with a mistake
changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.endpoints import serverFromString

from mqttd.broker.broker import Broker
from mqttd.config.schema import (
    EndpointListener,
    Listener,
    SocketListener,
    SslListener,
    UnixListener,
    WsListener,
    WssListener,
)
from mqttd.net.addresses import address_text
from mqttd.net.sockets import unlink
from mqttd.session.limits import Limits
from mqttd.session.listener import FlappingRule
from mqttd.session.listener import Listener as Record
from mqttd.transports.admission import Admission
from mqttd.transports.certificates import certificate_identity, map_identity, subject_of
from mqttd.transports.engine import Engine
from mqttd.transports.frames import WebSocketLayer
from mqttd.transports.layers import Layer, Stack
from mqttd.transports.protocol import MqttFactory
from mqttd.transports.proxy import ProxyHeader, ProxyLayer
from mqttd.transports.records import TlsLayer
from mqttd.transports.sockets import (
    ListenError,
    bind_tcp,
    bind_unix,
    give_away,
    peer_process,
    transport_identity,
)
from mqttd.transports.tls import Tls, TlsError
from mqttd.types import PeerIdentity

__all__ = ["Door", "Listeners"]

_VERSIONS: Final = {"3.1": 3, "3.1.1": 4, "5.0": 5}

Json = dict[str, Any]
Configured = dict[str, dict[str, Any]]
Log = Callable[[str, dict[str, object]], None]
#: Reads the chain and rules that a listener has of its own; the result puts them in force.
AccessOf = Callable[[str, Listener], Callable[[], None]]


class Listeners:
    """All listeners of a broker.

    Arguments: the configured ones, kind -> name -> settings; the broker; its engine; the reactor;
    the log; `alarm(name, text)`, with an empty text when it is over; the most connections a
    listener without a limit of its own may have, asked when it starts; `read()`, which gives the
    configured ones as the configuration says now, or raises `ListenError`;
    `access_of(id, settings)`, which reads a listener's own access control, or raises it too.
    """

    def __init__(
        self,
        configured: Configured,
        broker: Broker,
        engine: Engine,
        reactor: Any,
        log: Log,
        alarm: Callable[[str, str], None],
        most: Callable[[], int],
        read: Callable[[], Configured] | None = None,
        access_of: AccessOf | None = None,
    ) -> None:
        self.read = read if read is not None else lambda: configured
        self.access_of = access_of
        self.broker = broker
        self.engine = engine
        self.reactor = reactor
        self.log = log
        self.alarm = alarm
        self.most = most
        self.doors: dict[str, Door] = {}
        for kind, names in configured.items():
            for name, settings in names.items():
                door = Door(self, kind, name, settings)
                self.doors[door.id] = door

    def bind(self) -> None:
        """Take every address and read every file. Raises `ListenError`; nothing stays bound."""
        try:
            for door in self.doors.values():
                door.bind()
        except ListenError:
            for door in self.doors.values():
                door.release()
            raise

    def start(self) -> None:
        """Accept connections on all of them."""
        for door in self.doors.values():
            door.start()

    def stop(self) -> list[Deferred[Any]]:
        """Stop all of them, with their connections."""
        return [door.stop() for door in self.doors.values()]

    def find(self, name: str) -> Door:
        """The listener `KIND:NAME`, or `NAME` where only one is called so; raises KeyError."""
        if name in self.doors:
            return self.doors[name]
        found = [door for door in self.doors.values() if door.name == name]
        if len(found) == 1:
            return found[0]
        raise KeyError(name)

    def add_endpoint(self, endpoint: str, name: str) -> Door:
        """A further listener at a Twisted endpoint, called `endpoint:NAME`, started at once."""
        door = Door(self, "endpoint", name, EndpointListener(endpoint=endpoint))
        door.configured = False
        if door.id in self.doors:
            raise ListenError(f"listener.endpoint.{name}: there is one of this name")
        door.bind()
        self.doors[door.id] = door
        door.start()
        return door

    def remove(self, name: str) -> Deferred[Any]:
        """Stop a listener and forget it."""
        door = self.find(name)
        del self.doors[door.id]
        return door.stop()

    # -- one by one, as the configuration says now ----------------------------------------------

    def start_one(self, name: str) -> Deferred[Door]:
        """Start a listener that is stopped, or has been added to the configuration.

        Raises KeyError for one that is nowhere, `ListenError` if it cannot be opened.
        """
        try:
            door = self.find(name)
        except KeyError:
            door = self._added(name)
            self._prepare(door)()
            door.start()
            self.doors[door.id] = door
            return succeed(door)
        return succeed(door) if door.running else self.restart_one(name)

    def stop_one(self, name: str) -> Deferred[Door]:
        """Stop a listener and end its connections; raises KeyError."""
        door = self.find(name)
        return door.stop().addCallback(lambda _: door)

    def restart_one(self, name: str) -> Deferred[Door]:
        """Stop a listener and start it with its settings and files as they are now.

        What cannot be used is told by `ListenError` before it stops: then it goes on as it was. A
        port 0 stays the port it had. Raises KeyError.
        """
        door = self.find(name)
        fresh = Door(self, door.kind, door.name, self._settings(door))
        fresh.configured = door.configured
        if _place(fresh.settings) == _place(door.settings):
            fresh.port = door.port
            fresh.read_files()
        else:
            fresh.bind()
        prepared = self._prepare(fresh)

        def start(_: object) -> Door:
            prepared()
            fresh.start()
            self.doors[fresh.id] = fresh
            return fresh

        return door.stop().addCallback(start)

    def reload(self) -> list[Json]:
        """Give every listener what the configuration says now, as far as it needs no new socket.

        Connections stay and keep the rates they began with. Returns for each that differs its
        `id`, the keys that `changed`, those that wait for a `restart`, and a `note` of what else
        there is to say. Raises `ListenError` if there is a mistake in the configuration.
        """
        wanted = {f"{kind}:{name}": settings for kind, names in self.read().items()
                  for name, settings in names.items()}  # fmt: skip
        told = []
        for door in self.doors.values():
            settings = wanted.pop(door.id, None)
            changed: list[str] = []
            waiting: list[str] = []
            note = ""
            if settings is not None:
                try:
                    changed, waiting = door.take_over(settings)
                except ListenError as error:
                    note = str(error)
            elif door.configured and door.running:
                note = "not in the configuration any more; it runs until it is stopped"
            if changed or waiting or note:
                told.append({"id": door.id, "changed": changed, "restart": waiting, "note": note})
        for name in wanted:
            note = "new in the configuration; it can be started"
            told.append({"id": name, "changed": [], "restart": [], "note": note})
        return told

    def _settings(self, door: Door) -> Listener:
        """What the configuration says of a listener now; raises `ListenError`."""
        if not door.configured:
            before: Listener = door.settings
            return before
        found: Listener | None = self.read().get(door.kind, {}).get(door.name)
        if found is None:
            raise ListenError(f"{door.where} is not in the configuration any more")
        return found

    def _added(self, name: str) -> Door:
        """A listener that the configuration has and we have not; raises KeyError."""
        kind, _, only = name.rpartition(":")
        found = [(each, names[only]) for each, names in self.read().items() if only in names]
        found = [(each, settings) for each, settings in found if kind in ("", each)]
        if len(found) != 1:
            raise KeyError(name)
        door = Door(self, found[0][0], only, found[0][1])
        door.bind()
        return door

    def _prepare(self, door: Door) -> Callable[[], None]:
        """Read the access control of a listener that is to start; the result puts it in force.

        Raises `ListenError`, and then the listener's address is free again.
        """
        if self.access_of is None or not door.configured:
            return lambda: None
        try:
            return self.access_of(door.id, door.settings)
        except ListenError as error:
            door.release()
            raise ListenError(f"{door.where}: {error}; nothing was changed") from None

    def try_it(self) -> str:
        """A command that subscribes at the first listener that mosquitto_sub can reach."""
        doors = sorted(self.doors.values(), key=lambda door: door.kind != "tcp")
        host, port = "127.0.0.1", 1883
        if doors and doors[0].kind == "tcp":
            host, port = doors[0].host or host, doors[0].port
        return f"mosquitto_sub -h {host} -p {port} -t 'test/#' -v"

    def describe(self) -> list[Json]:
        """Each listener as the API shows it."""
        return [door.describe() for door in self.doors.values()]

    def reload_certificates(self, only_changed: bool = False) -> dict[str, str]:
        """Read certificates, authorities and revocation lists again: listener -> fault or ""."""
        told = {}
        for door in self.doors.values():
            if door.tls is not None and (not only_changed or door.tls.changed()):
                told[door.id] = door.reload_certificate()
        return told

    def tick(self, now: float) -> None:
        """Look at the files of those whose time has come (`now` in seconds)."""
        for door in self.doors.values():
            door.watch(now)


class Door:
    """One listener; `running` while it accepts."""

    def __init__(self, doors: Listeners, kind: str, name: str, settings: Listener) -> None:
        self.doors = doors
        self.kind = kind
        self.name = name
        self.id = f"{kind}:{name}"
        self.settings: Any = settings
        self.where = f"listener.{kind}.{name}"
        self.running = False
        #: It comes from the configuration, not from a plugin.
        self.configured = True
        self.host = ""
        self.port = 0
        self.tls: Tls | None = None
        self.factory: MqttFactory | None = None
        self._socket: socket.socket | None = None
        self._twisted_port: Any = None
        self._site: Any = None
        self._networks = [
            ipaddress.ip_network(text) for text in getattr(settings, "proxy_protocol", ())
        ]
        self._next_look = 0.0
        #: What has been told of files that have expired.
        self._expired = ""
        self.gate: Admission | None = None
        #: In force: that of the settings when it was started.
        self._mountpoint = ""

    # -- life -----------------------------------------------------------------------------------

    def bind(self) -> None:
        """Take the address and read the files. Raises `ListenError`."""
        settings = self.settings
        self.read_files()
        if isinstance(settings, SocketListener):
            self._socket = bind_tcp(self.where, settings, self.port)
            self.host, self.port = self._socket.getsockname()[:2]
            self.host = settings.address[0]
        elif isinstance(settings, UnixListener):
            self._socket = bind_unix(self.where, settings)
            self.host = settings.path
        elif isinstance(settings, EndpointListener):
            self.host = settings.endpoint

    def read_files(self) -> None:
        """Read what is served, if that is not done. Raises `ListenError`."""
        settings = self.settings
        if isinstance(settings, WsListener | WssListener) and self._site is None:
            from mqttd.transports.websocket import WebSite

            self._site = WebSite(settings.path, settings.origins, settings.page)
        if not isinstance(settings, SslListener) or self.tls is not None:
            return
        alpn = ("http/1.1",) if isinstance(settings, WssListener) else ("mqtt",)
        try:
            self.tls = Tls(settings, alpn)
        except TlsError as error:
            raise ListenError(f"{self.where}: {error}") from None

    def release(self) -> None:
        """Let go of a bound address."""
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()

    def start(self) -> None:
        """Accept connections. Raises `ListenError`."""
        if self.running:
            return
        if self._socket is None and not isinstance(self.settings, EndpointListener):
            self.bind()
        self._mountpoint = self.settings.mountpoint
        most = self._limit()
        bound, self._socket = self._socket, None
        self.running = True
        if self.tls is not None:
            self.doors.alarm(f"tls:{self.id}", "")
            self._tell_expiry()
        if bound is None:
            self._start_endpoint(most)
        elif self.settings.transport == "engine":
            self._start_engine(bound, most)
        else:
            self._start_twisted(bound, most)

    def _limit(self) -> int:
        """Give the broker the limits of this listener; returns the most connections it may have."""
        settings, broker = self.settings, self.doors.broker
        versions = frozenset(_VERSIONS[text] for text in settings.protocol_versions)
        rules = settings.rules if isinstance(settings, SocketListener) else [(True, None)]
        proxied = bool(self._networks)
        self.gate = None
        if settings.accept_rate or (len(rules) > 1 and not proxied):
            around = [(True, None)] if proxied else rules
            self.gate = Admission(around, settings.accept_rate, broker.now)
        rates = (
            settings.bytes_rate,
            settings.messages_rate,
            settings.all_bytes_rate,
            settings.all_messages_rate,
            settings.send_rate,
        )
        limits = None
        if any(rates) or settings.max_packet_size:
            limits = Limits(broker.now, *rates, settings.burst, settings.max_packet_size)
        flapping = None
        if settings.flapping_disconnects:
            flapping = FlappingRule(
                settings.flapping_disconnects, settings.flapping_window, settings.flapping_ban
            )
        broker.listeners[self.id] = Record(
            self.id,
            versions if len(versions) < len(_VERSIONS) else None,
            self._mountpoint,
            limits,
            Admission(rules, 0, broker.now) if proxied and len(rules) > 1 else None,
            int(settings.connect_timeout * 1000),
            flapping,
        )
        return int(settings.max_connections or self.doors.most())

    def take_over(self, wanted: Listener) -> tuple[list[str], list[str]]:
        """Take over what can change while connections stay.

        Returns the keys that did, and those that wait for a restart. Raises `ListenError` for TLS
        files that cannot be used, and then nothing is changed.
        """
        before = self.settings
        differ = [key for key in before.__struct_fields__
                  if getattr(before, key) != getattr(wanted, key)]  # fmt: skip
        live = _live(type(before))
        changed = [key for key in differ if key in live]
        waiting = [key for key in differ if key not in live]
        if not changed:
            return [], waiting
        settings = msgspec.structs.replace(before, **{key: getattr(wanted, key) for key in changed})
        if self.tls is not None:
            self._take_over_tls(settings, changed)
        self.settings = settings
        if self._site is not None:
            self._site = None
            self.read_files()
        if self.running:
            self._adjust()
        return changed, waiting

    def _take_over_tls(self, settings: Any, changed: list[str]) -> None:
        assert self.tls is not None
        before, self.tls.settings = self.tls.settings, settings
        if set(changed) <= set(SocketListener.__struct_fields__):
            return
        try:
            self.tls.reload()
        except TlsError as error:
            self.tls.settings = before
            raise ListenError(f"{self.where}: {error}; nothing was changed") from None

    def _adjust(self) -> None:
        """Give what accepts connections the limits as they are now."""
        most = self._limit()
        port, factory = self.doors.engine.by_name.get(self.id), self.factory
        if port is not None:
            port.max_connections = most
            self._time(port)
        if factory is not None:
            factory.max_connections = most
            self._time_factory(factory)
            factory.make_room()

    def stop(self) -> Deferred[Any]:
        """Stop accepting, end the connections; fires when the port is closed."""
        self.release()
        if not self.running:
            return maybeDeferred(lambda: None)
        self.running = False
        self.doors.engine.close_listener(self.id)
        factory, self.factory = self.factory, None
        if factory is not None:
            factory.close_all()
        port, self._twisted_port = self._twisted_port, None
        if isinstance(self.settings, UnixListener) and port is None:
            unlink(self.settings.path)
        if isinstance(port, Deferred):
            port.cancel()
            return port
        return maybeDeferred(port.stopListening if port is not None else lambda: None)

    def _start_engine(self, bound: socket.socket, most: int) -> None:
        engine = self.doors.engine
        make = self._make() if self._has_layers() else None
        handshakes = self.settings.max_handshakes if isinstance(self.settings, SslListener) else 0
        engine.listen(self.id, bound, most, make, handshakes)
        port = engine.by_name[self.id]
        self._time(port)
        if isinstance(self.settings, UnixListener):
            port.identify = peer_process

    def _time(self, port: Any) -> None:
        """Give a port of the engine its gate and its times."""
        port.gate = self.gate
        port.first_byte_timeout = int(self.settings.first_byte_timeout * 1000)
        if isinstance(self.settings, SslListener):
            port.handshake_timeout = int(self.settings.handshake_timeout * 1000)

    def _time_factory(self, factory: MqttFactory) -> None:
        """Give a factory of Twisted's transports its gate and its times."""
        factory.gate = self.gate
        if factory.make is None and self.tls is None:
            factory.first_byte_timeout = int(self.settings.first_byte_timeout * 1000)

    def _start_twisted(self, bound: socket.socket, most: int) -> None:
        factory = self._factory(most)
        settings = self.settings
        if isinstance(settings, UnixListener):
            # Twisted would open an adopted socket to everybody; this sets the mode first.
            bound.close()
            unlink(settings.path)
            self._twisted_port = self.doors.reactor.listenUNIX(
                settings.path, factory, settings.backlog, int(settings.mode, 8)
            )
            factory.port = self._twisted_port
            give_away(settings)
            return
        self._twisted_port = self.doors.reactor.adoptStreamPort(
            bound.fileno(), bound.family, self._wrapped(factory)
        )
        factory.port = self._twisted_port
        bound.close()

    def _start_endpoint(self, most: int) -> None:
        factory = self._factory(most)
        try:
            endpoint = serverFromString(self.doors.reactor, self.settings.endpoint)
        except Exception as error:
            self.running = False
            text = f"endpoint = {self.settings.endpoint!r}: {error}"
            raise ListenError(f"{self.where}: {text}") from None
        waiting = endpoint.listen(factory)
        self._twisted_port = waiting

        def opened(port: Any) -> None:
            self._twisted_port = factory.port = port
            address = port.getHost()
            self.port = getattr(address, "port", 0)

        def failed(failure: Any) -> None:
            self.running = False
            self._twisted_port = None
            text = failure.getErrorMessage()
            self.doors.log("listener failed", {"listener": self.id, "reason": text})

        waiting.addCallbacks(opened, failed)

    def _factory(self, most: int) -> MqttFactory:
        make = None
        if self._has_layers(below_tls=False):
            make = self._make(below_tls=False)
        factory = MqttFactory(self.doors.broker, self.id, self.doors.reactor, most, make)
        self._time_factory(factory)
        factory.identify_transport = transport_identity
        factory.identify_certificate = self._identify_certificate
        self.factory = factory
        return factory

    def _wrapped(self, factory: MqttFactory) -> Any:
        """The factory with Twisted's TLS below, and the PROXY header below that."""
        if self.tls is None:
            return factory
        from mqttd.transports.tls_twisted import tls_factory

        return tls_factory(self.tls, factory, self._proxy_layer if self._networks else None)

    # -- layers ---------------------------------------------------------------------------------

    def _has_layers(self, below_tls: bool = True) -> bool:
        if below_tls:
            return bool(self._networks or self.tls is not None or self._site is not None)
        return bool((self._networks and self.tls is None) or self._site is not None)

    def _make(self, below_tls: bool = True) -> Callable[[Any], Stack | None]:
        """What makes the layers of a new connection from its address."""

        def make(address: Any) -> Stack | None:
            layers: list[Layer] = []
            if self._networks and (below_tls or self.tls is None):
                proxy = self._proxy_layer(address)
                if proxy is None:
                    return None
                layers.append(proxy)
            if self.tls is not None and below_tls:
                layers.append(TlsLayer(self.tls.context, self.tls.identify))
            if self._site is not None:
                layers.append(WebSocketLayer(self._site.upgrade()))
            return Stack(layers)

        return make

    def _proxy_layer(self, address: Any) -> ProxyLayer | None:
        """The layer for the PROXY header; None (and a line in the log) for a stranger."""
        host = str(address[0]).partition("%")[0]
        peer = ipaddress.ip_address(host)
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if any(peer in network for network in self._networks):
            return ProxyLayer(self._identify_proxied)
        fields: dict[str, object] = {"listener": self.id, "peer": f"{host}:{address[1]}"}
        self.doors.log("connection refused", {**fields, "reason": "no proxy of this listener"})
        return None

    def _identify_proxied(self, header: ProxyHeader) -> PeerIdentity | None:
        name = header.common_name
        subject = subject_of(name) if name is not None else None
        return map_identity(PeerIdentity(header.host, header.port, name, subject), self.settings)

    def _identify_certificate(self, certificate: Any) -> PeerIdentity | None:
        from OpenSSL import crypto

        der = crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
        return map_identity(certificate_identity(der), self.settings)

    # -- certificates ---------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Look at the certificate files if it is time to."""
        if self.tls is None or not self.running or now < self._next_look:
            return
        first = self._next_look == 0.0
        self._next_look = now + self.settings.watch_interval
        if not first and self.tls.changed():
            self.reload_certificate()
        else:
            self._tell_expiry()

    def reload_certificate(self) -> str:
        """Read the TLS files again; returns what is wrong with them, and then the old ones stay."""
        if self.tls is None:
            return ""
        alarm = f"tls:{self.id}"
        try:
            self.tls.reload()
        except TlsError as error:
            text = f"{self.where}: {error}; the old certificate stays in use"
            self.doors.log("certificate refused", {"listener": self.id, "reason": str(error)})
            self.doors.alarm(alarm, text)
            return str(error)
        self.doors.log("certificate loaded", {"listener": self.id})
        self.doors.alarm(alarm, "")
        self._expired = ""
        self._tell_expiry()
        return ""

    def _tell_expiry(self) -> None:
        """Raise an alarm once something has expired; the next good reload clears it."""
        text = self.tls.expired() if self.tls is not None else ""
        if text and text != self._expired:
            self.doors.alarm(f"tls:{self.id}", f"{self.where}: {text}")
        self._expired = text

    # -- telling --------------------------------------------------------------------------------

    def text(self) -> str:
        """Where it listens: `ssl 127.0.0.1:8883`."""
        if isinstance(self.settings, SocketListener):
            return f"{self.kind} {address_text(self.host, self.port)}"
        return f"{self.kind} {self.host}"

    def describe(self) -> Json:
        """As the API shows it."""
        opened = self.doors.engine.by_name.get(self.id) or self.factory
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "host": self.host,
            "port": self.port,
            "transport": "twisted" if self.kind == "endpoint" else self.settings.transport,
            "state": "running" if self.running else "stopped",
            "connections": opened.connections if opened is not None else 0,
            "max_connections": opened.max_connections if opened is not None else 0,
            "certificate_until": self.tls.not_after.isoformat() if self.tls is not None else None,
        }


def _place(settings: Any) -> str:
    """Where a listener with these settings is to be found."""
    if isinstance(settings, SocketListener):
        return settings.bind
    return str(settings.path if isinstance(settings, UnixListener) else settings.endpoint)


def _live(kind: type[Listener]) -> set[str]:
    """The keys of a kind of listener that a reload applies, as the schema says."""
    return {
        part.name
        for part in msgspec.structs.fields(kind)
        if part.type.__metadata__[0].extra["reload"]
    }
