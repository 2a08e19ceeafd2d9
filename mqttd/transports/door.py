"""One listener: bound, started on the engine or on Twisted's transports, adjusted, stopped.

    bind --> start --> (take_over, certificates) --> stop
     |         '-- the broker's record of it, and what accepts its connections
     '-- address taken, files read: what can be refused is refused here

Promise: a listener that cannot be opened holds nothing; other listeners are not touched.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, maybeDeferred
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
from mqttd.transports.admission import Admission
from mqttd.transports.engine import Engine
from mqttd.transports.entrance import Entrance
from mqttd.transports.expiry import CertificateWatch
from mqttd.transports.lobby import Lobby
from mqttd.transports.ports import WAITING
from mqttd.transports.protocol import MqttFactory
from mqttd.transports.sockets import (
    ListenError,
    begin,
    bind_tcp,
    bind_unix,
    give_away,
    peer_process,
    transport_identity,
)
from mqttd.transports.terms import accept_gate, record_of

__all__ = ["PASSING", "Door", "Given", "place_of"]

#: Connections that a worker accepts beyond its most, to see whose they are: a port that several
#: have is nobody's to leave alone, since the kernel goes on giving connections to who does.
PASSING: Final = 128

Json = dict[str, Any]
Log = Callable[[str, dict[str, object]], None]


@dataclass(slots=True, frozen=True)
class Given:
    """What every listener works with.

    The broker; its engine; the reactor; the log; `alarm(name, text)`, with an empty text when it is
    over; `most()` gives the connections a listener without a limit of its own may have.
    """

    broker: Broker
    engine: Engine
    reactor: Any
    log: Log
    alarm: Callable[[str, str], None]
    most: Callable[[], int]
    #: By the listener's id, sockets that a supervisor has bound (`mqttd.workers`); None: we bind.
    sockets: MutableMapping[str, socket.socket] | None = None
    #: Of several workers the first, which has the listeners that cannot be shared.
    first: bool = True

    @property
    def passing(self) -> int:
        """Connections that are accepted beyond the most, whoever decides then."""
        return PASSING if self.sockets is not None else 0


class Door:
    """One listener; `running` while it accepts."""

    def __init__(self, given: Given, kind: str, name: str, settings: Listener) -> None:
        self.given = given
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
        self.entrance = Entrance(self.id, self.where, settings, given.log)
        self.factory: MqttFactory | None = None
        self._socket: socket.socket | None = None
        #: Of a worker, for an address that its supervisor has no socket for.
        self._own: socket.socket | None = None
        self._twisted_port: Any = None
        self._watch: CertificateWatch | None = None
        self.gate: Admission | None = None
        #: In force: that of the settings when it was started.
        self._mountpoint = ""

    # -- life -----------------------------------------------------------------------------------

    def _elsewhere(self) -> bool:
        """Whether it is the first worker's alone, and we are another one."""
        return not (self.given.first or isinstance(self.settings, SocketListener))

    def bind(self, listen: bool = True) -> None:
        """Take the address and read the files. Raises `ListenError`.

        Without `listen` whoever comes before `start` is refused, and does not wait for it.
        """
        settings = self.settings
        self.entrance.read_files()
        if self._elsewhere():
            return
        if isinstance(settings, SocketListener):
            self._socket = self._bound(settings, listen)
            self.host, self.port = self._socket.getsockname()[:2]
            self.host = settings.address[0]
        elif isinstance(settings, UnixListener):
            self._socket = bind_unix(self.where, settings)
            if not listen:
                # It can be had, and that has to do: who only binds is taken for one that is gone.
                self.release()
                unlink(settings.path)
            self.host = settings.path
        elif isinstance(settings, EndpointListener):
            self.host = settings.endpoint

    def _bound(self, settings: SocketListener, listen: bool) -> socket.socket:
        """A socket that listens: a supervisor's, where there is one for this address."""
        sockets = self.given.sockets
        if sockets is None:
            # Who is not ready and shares its port would be given a share of those who come.
            listen = listen and not settings.reuse_port
            return bind_tcp(self.where, settings, self.port, listen=listen)
        known = sockets.get(self.id)
        if known is None or not _is_at(known, settings):
            if not settings.address[1]:
                text = "a port that the system chooses (0) needs a restart where node.workers is"
                raise ListenError(f"{self.where}.bind = {settings.bind!r}: {text} above 1")
            # Every worker binds one, as the supervisor would for it.
            known = self._own = bind_tcp(self.where, settings, 0, listen=False, shared=True)
        bound = known.dup()
        bound.listen(settings.backlog)
        bound.setblocking(False)
        return bound

    def stay(self) -> None:
        """It stays closed: where it would be is known all the same."""
        settings = self.settings
        self.host = place_of(settings)
        if isinstance(settings, SocketListener):
            self.host, self.port = settings.address
            bound = (self.given.sockets or {}).get(self.id)
            if bound is not None and not self.port:
                self.port = bound.getsockname()[1]

    def release(self) -> None:
        """Let go of a bound address."""
        for bound in (self._socket, self._own):
            if bound is not None:
                bound.close()
        self._socket = self._own = None

    def start(self) -> None:
        """Accept connections. Raises `ListenError`."""
        if self.running:
            return
        if self._socket is None and not isinstance(self.settings, EndpointListener):
            self.bind()
        if self._socket is not None and isinstance(self.settings, SocketListener):
            begin(self.where, self.settings, self._socket)
        self._mountpoint = self.settings.mountpoint
        most = self._limit()
        bound, self._socket = self._socket, None
        self.running = True
        if self._elsewhere():
            return
        self._keep()
        tls = self.entrance.tls
        if tls is not None:
            given = self.given
            self._watch = CertificateWatch(self.id, self.where, tls, given.log, given.alarm)
            self._watch.begin()
        if bound is None:
            self._start_endpoint(most)
        elif self.settings.transport == "engine":
            self._start_engine(bound, most)
        else:
            self._start_twisted(bound, most)

    def _keep(self) -> None:
        """Nobody is let in any more where it was, if that is elsewhere."""
        sockets, own = self.given.sockets, self._own
        if sockets is None or own is None:
            return
        before, self._own = sockets.get(self.id), None
        if before is not None:
            _shut(before)
            before.close()
        sockets[self.id] = own

    def _limit(self) -> int:
        """Give the broker the limits of this listener; returns the most connections it may have."""
        given, settings = self.given, self.settings
        now = given.broker.now
        self.gate = accept_gate(settings, now)
        given.broker.listeners[self.id] = record_of(self.id, settings, self._mountpoint, now)
        return int(settings.max_connections or given.most())

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
        self.entrance.take_over(settings, changed)
        self.settings = settings
        if self.running:
            self._adjust()
        return changed, waiting

    def _adjust(self) -> None:
        """Give what accepts connections the limits as they are now."""
        most = self._limit()
        port, factory = self.given.engine.by_name.get(self.id), self.factory
        if port is not None:
            port.max_connections = most + self.given.passing
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
        self.given.engine.close_listener(self.id)
        factory, self.factory = self.factory, None
        if factory is not None:
            factory.close_all()
        port, self._twisted_port = self._twisted_port, None
        if isinstance(self.settings, UnixListener) and port is None and not self._elsewhere():
            unlink(self.settings.path)
        if isinstance(port, Deferred):
            port.cancel()
            return port
        return maybeDeferred(port.stopListening if port is not None else lambda: None)

    def shut(self) -> Deferred[Any]:
        """The same, and whoever comes is refused, though a supervisor has the socket as well."""
        stopped = self.stop()
        bound = (self.given.sockets or {}).get(self.id)
        if bound is not None:
            _shut(bound)
        return stopped

    def _start_engine(self, bound: socket.socket, most: int) -> None:
        engine = self.given.engine
        make = self.entrance.maker() if self.entrance.any() else None
        handshakes = self.settings.max_handshakes if isinstance(self.settings, SslListener) else 0
        engine.listen(self.id, bound, most + self.given.passing, make, handshakes)
        port = engine.by_name[self.id]
        self._time(port)
        if isinstance(self.settings, UnixListener):
            port.identify = peer_process

    def _time(self, port: Any) -> None:
        """Give a port of the engine its gate and its times."""
        port.gate = self.gate
        port.proxied = bool(self.entrance.networks)
        port.waiting_most = self.settings.backlog
        self._settle(port.lobby, port.max_connections - self.given.passing)
        port.first_byte_timeout = int(self.settings.first_byte_timeout * 1000)
        if isinstance(self.settings, SslListener):
            port.handshakes_each = self.settings.max_handshakes_per_address
            port.handshake_timeout = int(self.settings.handshake_timeout * 1000)

    def _settle(self, lobby: Lobby, most: int) -> None:
        """Give a lobby its limits, where there are `most` connections."""
        each = self.settings.max_connections_per_address
        lobby.each = each or max(most - most // 50, 1000)  # a fiftieth stays for the others
        lobby.strangers_each = self.settings.max_strangers_per_address

    def _time_factory(self, factory: MqttFactory) -> None:
        """Give a factory of Twisted's transports its gate and its times."""
        factory.gate = self.gate
        factory.waits = not self.given.passing
        factory.waiting_most = getattr(self.settings, "backlog", WAITING)
        self._settle(factory.lobby, factory.max_connections)
        factory.proxied = bool(self.entrance.networks)
        if factory.make is None and self.entrance.tls is None:
            factory.first_byte_timeout = int(self.settings.first_byte_timeout * 1000)

    def _start_twisted(self, bound: socket.socket, most: int) -> None:
        factory = self._factory(most)
        settings = self.settings
        if isinstance(settings, UnixListener):
            # Twisted would open an adopted socket to everybody; this sets the mode first.
            bound.close()
            unlink(settings.path)
            self._twisted_port = self.given.reactor.listenUNIX(
                settings.path, factory, settings.backlog, int(settings.mode, 8)
            )
            factory.port = self._twisted_port
            give_away(settings)
            return
        self._twisted_port = self.given.reactor.adoptStreamPort(
            bound.fileno(), bound.family, self._wrapped(factory)
        )
        factory.port = self._twisted_port
        bound.close()

    def _start_endpoint(self, most: int) -> None:
        factory = self._factory(most)
        try:
            endpoint = serverFromString(self.given.reactor, self.settings.endpoint)
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
            self.given.log("listener failed", {"listener": self.id, "reason": text})

        waiting.addCallbacks(opened, failed)

    def _factory(self, most: int) -> MqttFactory:
        make = None
        if self.entrance.any(below_tls=False):
            make = self.entrance.maker(below_tls=False)
        factory = MqttFactory(self.given.broker, self.id, self.given.reactor, most, make)
        self._time_factory(factory)
        factory.identify_transport = transport_identity
        factory.identify_certificate = self.entrance.identify_certificate
        self.factory = factory
        return factory

    def _wrapped(self, factory: MqttFactory) -> Any:
        """The factory with Twisted's TLS below, and the PROXY header below that."""
        entrance = self.entrance
        if entrance.tls is None:
            return factory
        from mqttd.transports.tls_twisted import tls_factory

        proxy_for = entrance.proxy_layer if entrance.networks else None
        return tls_factory(entrance.tls, factory, proxy_for)

    # -- certificates ---------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Look at the certificate files if it is time to (`now` in seconds)."""
        if self._watch is not None and self.running:
            self._watch.look(now)

    def reload_certificate(self, only_changed: bool = False) -> str | None:
        """Read the TLS files again; returns what is wrong with them, and then the old ones stay.

        None where there are none, or none has changed.
        """
        tls = self.entrance.tls
        if tls is None or (only_changed and not tls.changed()):
            return None
        given = self.given
        watch = self._watch or CertificateWatch(self.id, self.where, tls, given.log, given.alarm)
        return watch.reload()

    # -- telling --------------------------------------------------------------------------------

    def shares(self) -> bool:
        """Whether other nodes may have its port, too."""
        return isinstance(self.settings, SocketListener) and self.settings.reuse_port

    def _of_workers(self) -> bool:
        """Whether other workers have its port, too."""
        return self.given.sockets is not None and isinstance(self.settings, SocketListener)

    def text(self) -> str:
        """Where it listens: `ssl 127.0.0.1:8883`."""
        if isinstance(self.settings, SocketListener):
            return f"{self.kind} {address_text(self.host, self.port)}"
        return f"{self.kind} {self.host}"

    def url(self) -> str:
        """What to give a client, or to open in a browser: `mqtts://127.0.0.1:8883`."""
        settings = self.settings
        if not isinstance(settings, SocketListener):
            return f"unix://{self.host}" if self.kind == "unix" else self.host
        scheme = {"tcp": "mqtt", "ssl": "mqtts"}.get(self.kind, self.kind)
        place = address_text(self.host or socket.gethostname(), self.port)
        path = settings.path if isinstance(settings, WsListener | WssListener) else ""
        page = ""
        if isinstance(settings, WsListener | WssListener) and settings.page:
            page = f" (try it: {'https' if self.kind == 'wss' else 'http'}://{place}/)"
        return f"{scheme}://{place}{path}{page}"

    def describe(self) -> Json:
        """As the API shows it."""
        tls = self.entrance.tls
        port = self.given.engine.by_name.get(self.id)
        opened = port or self.factory
        passing = self.given.passing if port is not None else 0
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "host": self.host,
            "port": self.port,
            "reuse_port": self.shares() or self._of_workers(),
            "transport": "twisted" if self.kind == "endpoint" else self.settings.transport,
            "state": "running" if self.running else "stopped",
            "connections": opened.connections if opened is not None else 0,
            "max_connections": opened.max_connections - passing if opened is not None else 0,
            "certificate_until": tls.not_after.isoformat() if tls is not None else None,
        }


def _is_at(bound: socket.socket, settings: SocketListener) -> bool:
    """Whether a socket is bound where a listener with these settings is to be found."""
    host, port = settings.address
    name = bound.getsockname()
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    if bound.family != family or port not in (0, name[1]):
        return False
    try:
        found = socket.getaddrinfo(host or "::", port, family, socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found[0][4][0] == name[0])


def _shut(bound: socket.socket) -> None:
    """Whoever comes is refused, whoever else has this socket as well."""
    with suppress(OSError):  # it has not listened
        bound.shutdown(socket.SHUT_RD)


def place_of(settings: Any) -> str:
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
