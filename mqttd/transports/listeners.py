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

import socket
from collections.abc import Callable, Collection, MutableMapping
from typing import Any

from twisted.internet.defer import Deferred, succeed

from mqttd.broker.broker import Broker
from mqttd.config.schema import EndpointListener, Listener
from mqttd.transports.door import Door, Given, place_of
from mqttd.transports.engine import Engine
from mqttd.transports.sockets import ListenError

__all__ = ["Listeners"]

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
    `access_of(id, settings)`, which reads a listener's own access control, or raises it too;
    `sockets`, those that are bound already, and `first` (see `Given`); `stopped`, ids of those that
    stay closed until somebody starts them; `refuses`: who comes before the start is refused, and
    does not wait for it.
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
        sockets: MutableMapping[str, socket.socket] | None = None,
        first: bool = True,
        stopped: Collection[str] = (),
        refuses: bool = False,
    ) -> None:
        self.read = read if read is not None else lambda: configured
        self.access_of = access_of
        self.given = Given(broker, engine, reactor, log, alarm, most, sockets, first)
        self.stopped = stopped
        self.refuses = refuses
        #: Clients are let in: what is added from here on is opened at once, before that it waits.
        self.started = False
        self.doors: dict[str, Door] = {}
        for kind, names in configured.items():
            for name, settings in names.items():
                door = Door(self.given, kind, name, settings)
                self.doors[door.id] = door

    def bind(self) -> None:
        """Take every address and read every file. Raises `ListenError`; nothing stays bound."""
        try:
            for door in self.doors.values():
                if door.id in self.stopped:
                    door.stay()
                else:
                    self._bind(door)
        except ListenError:
            for door in self.doors.values():
                door.release()
            raise

    def start(self) -> None:
        """Accept connections on all of them, but for those that stay closed."""
        self.started = True
        for door in self.doors.values():
            if door.id not in self.stopped:
                door.start()

    def _bind(self, door: Door) -> None:
        """Take its address, and have those who come wait or not as those of all others do."""
        door.bind(listen=self.started or not self.refuses)

    def _begin(self, door: Door) -> None:
        """Accept connections, or do so when all do."""
        self.doors[door.id] = door
        if self.started:
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
        door = Door(self.given, "endpoint", name, EndpointListener(endpoint=endpoint))
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
        return door.shut()

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
            self._begin(door)
            return succeed(door)
        return succeed(door) if door.running else self.restart_one(name)

    def stop_one(self, name: str) -> Deferred[Door]:
        """Stop a listener and end its connections; raises KeyError."""
        door = self.find(name)
        return door.shut().addCallback(lambda _: door)

    def restart_one(self, name: str) -> Deferred[Door]:
        """Stop a listener and start it with its settings and files as they are now.

        What cannot be used is told by `ListenError` before it stops: then it goes on as it was. A
        port 0 stays the port it had. Raises KeyError.
        """
        door = self.find(name)
        fresh = Door(self.given, door.kind, door.name, self._settings(door))
        fresh.configured = door.configured
        if place_of(fresh.settings) == place_of(door.settings):
            if door.running and fresh.shares() is not door.shares():
                # The kernel wants it of all who have the port: there is no way back from here.
                raise ListenError(f"{door.where}.reuse_port: a restart of the node changes it")
            fresh.port = door.port
            fresh.entrance.read_files()
        else:
            self._bind(fresh)
        prepared = self._prepare(fresh)

        def start(_: object) -> Door:
            prepared()
            self._begin(fresh)
            return fresh

        return door.stop().addCallback(start)

    def reload(self) -> list[Json]:
        """Give every listener what the configuration says now, as far as it needs no new socket.

        Connections stay and keep the rates they began with. Returns for each that differs its
        `id`, the keys that `changed`, those that wait for a `restart`, and a `note` of what else
        there is to say. Raises `ListenError` if there is a mistake in the configuration.
        """
        return self.take_over(self.read())

    def take_over(self, configured: Configured) -> list[Json]:
        """As `reload`, from what is given."""
        wanted = {f"{kind}:{name}": settings for kind, names in configured.items()
                  for name, settings in names.items()}  # fmt: skip
        told = []
        for door in self.doors.values():
            settings = wanted.pop(door.id, None)
            changed: list[str] = []
            waiting: list[str] = []
            note = ""
            if settings is not None:
                try:
                    access = self._access(door, settings)
                    changed, waiting = door.take_over(settings)
                    access()
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

    def _access(self, door: Door, settings: Listener) -> Callable[[], None]:
        """What puts another chain or other rules of a listener in force; raises `ListenError`."""
        before = door.settings
        same = before.auth_chain == settings.auth_chain and before.acl_file == settings.acl_file
        if same or self.access_of is None:
            return lambda: None
        return self.access_of(door.id, settings)

    # -- as a whole -----------------------------------------------------------------------------

    def in_force(self) -> Configured:
        """The configured listeners with the settings they have."""
        found: Configured = {}
        for door in self.doors.values():
            if door.configured:
                found.setdefault(door.kind, {})[door.name] = door.settings
        return found

    def added(self, configured: Configured) -> list[Door]:
        """The listeners that are in a configuration and not here, bound.

        Raises `ListenError`, and then none of them holds anything.
        """
        doors: list[Door] = []
        try:
            for kind, names in configured.items():
                for name, settings in names.items():
                    if f"{kind}:{name}" not in self.doors:
                        doors.append(Door(self.given, kind, name, settings))
                        self._bind(doors[-1])
        except ListenError:
            for door in doors:
                door.release()
            raise
        return doors

    def open(self, doors: list[Door]) -> None:
        """Start listeners that `added` has bound."""
        for door in doors:
            self._begin(door)

    def close_others(self, configured: Configured) -> list[Deferred[Any]]:
        """Stop the configured listeners that are not in a configuration any more."""
        gone = [door for door in self.doors.values()
                if door.configured and door.name not in configured.get(door.kind, {})]  # fmt: skip
        return [self.remove(door.id) for door in gone]

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
        door = Door(self.given, found[0][0], only, found[0][1])
        self._bind(door)
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
            fault = door.reload_certificate(only_changed)
            if fault is not None:
                told[door.id] = fault
        return told

    def tick(self, now: float) -> None:
        """Look at the files of those whose time has come (`now` in seconds)."""
        for door in self.doors.values():
            door.watch(now)
