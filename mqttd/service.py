"""`twistd mqttd`: reads the configuration, puts the layers together, runs them as a service.

The only module that knows all the others. It imports no reactor when it is imported, so that
`--reactor` and a test's clock stay free to choose.
"""

from __future__ import annotations

import atexit
import gc
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from twisted.application.service import MultiService
from twisted.internet import task
from twisted.internet.defer import DeferredList, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python.components import Componentized
from twisted.python.failure import Failure

from mqttd import compiled
from mqttd.access.by_listener import AccessByListener, config_of, configs_by_listener
from mqttd.access.chain import AccessControl
from mqttd.access.roles import DRAWER as ROLES
from mqttd.access.roles import Roles
from mqttd.access.who import warning, who_may_connect
from mqttd.admin.api import Api
from mqttd.admin.api_users import ApiUsers
from mqttd.admin.door import AddressError, DoorError
from mqttd.admin.first import FirstUser
from mqttd.admin.logins import Logins
from mqttd.admin.page import PageService
from mqttd.admin.parts import Parts
from mqttd.admin.server import AdminService, limit_body
from mqttd.admin.tcp import AdminTcpService
from mqttd.broker.bans import DRAWER, Bans
from mqttd.broker.broker import Broker
from mqttd.broker.drain import Drain
from mqttd.broker.flapping import Flapping
from mqttd.broker.roles import RoleError
from mqttd.broker.settings import settings_of
from mqttd.config.load import ConfigError, load
from mqttd.config.schema import Config, Listener
from mqttd.faults import Faults
from mqttd.monitor.event_log import EventLog
from mqttd.monitor.garbage import WALKABLE, Garbage
from mqttd.monitor.log.service import Log, log_for
from mqttd.monitor.log.targets import FileTarget
from mqttd.monitor.log.writer import Writer
from mqttd.monitor.log_level import LogLevelFilter
from mqttd.monitor.machine import excess, grown, memory_of_machine
from mqttd.monitor.malloc import keep_freed, trim
from mqttd.monitor.otel import NoOtel, Spans
from mqttd.monitor.overload import Overload
from mqttd.monitor.quiet import Quiet
from mqttd.monitor.supervisor import Supervisor
from mqttd.monitor.sys_topics import SysTopics
from mqttd.monitor.trail import Trail
from mqttd.net.files import connections_of, file_limit, raise_file_limit
from mqttd.options import Options, StartError, lock_data_dir, why
from mqttd.plugins.handle import Host
from mqttd.plugins.hooks import Hooks
from mqttd.plugins.plugins import Plugins
from mqttd.plugins.watchdog import Watchdog
from mqttd.readmodel.feed import Feed
from mqttd.readmodel.model import Model
from mqttd.readmodel.topic_rates import TopicFigures
from mqttd.reload import Reload, on_hang_up
from mqttd.session.message import Message
from mqttd.storage.store import StoreError, store_of
from mqttd.transports.engine import Engine
from mqttd.transports.listeners import Listeners
from mqttd.transports.protocol import MqttFactory
from mqttd.transports.reactor import epoll_of, start_reading, stop_reading
from mqttd.transports.sockets import ListenError
from mqttd.transports.stalled import Stalled
from mqttd.types import Action, ClientInfo, PluginError
from mqttd.workers.place import Place, count_of, place_of

if TYPE_CHECKING:
    from mqttd.workers.supervisor import WorkersService
    from mqttd.workers.worker import Worker

__all__ = ["MqttdService", "Options", "StartError", "makeService", "settings_of"]


def makeService(options: Options) -> MqttdService | WorkersService:
    """The broker as a Twisted service (called by twistd): one process, or who starts several."""
    from twisted.internet import reactor

    try:
        place = place_of(os.environ)
        service: MqttdService | WorkersService
        if place is None and count_of(options.configuration.node.workers) > 1:
            from mqttd.workers.supervisor import WorkersService

            service = WorkersService(options.configuration, reactor)
        else:
            service = MqttdService(options.configuration, reactor, place=place)
        service.keep_log(getattr(options, "parent", None))
        return service
    except Exception as error:
        # twistd would print a traceback; the operator needs the one line.
        raise SystemExit(f"mqttd cannot start: {why(error, options.configuration)}") from None


#: Turns of the engine in a row that may raise before the process ends.
MOST_FAULTS = 100

#: Seconds after which the end of the process is waited for no longer.
_STOPPED = 60

#: Bytes of the file of the audit, and older ones that are kept.
_AUDIT_BYTES = 10 << 20
_AUDIT_FILES = 5

#: Told of the end of a start: None, or why it failed.
OnStart = Callable[[Failure | None], None]


class MqttdService(MultiService):
    """The broker with its listeners.

    Everything that can be refused is refused in the constructor (files unreadable, port or data
    directory in use), before twistd turns into a daemon.

    With `on_start` the process is somebody else's (`mqttd.embed`): it is called with None when
    clients are let in, or with the Failure that prevents it; signals, exit status, garbage
    collector and the limit of open files are left alone. With a `place` it is one worker of several
    (`mqttd.workers`).

    Raises StartError, or what the access layer raises for its files; each names the file.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any,
        on_start: OnStart | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.on_start = on_start
        self.reactor = reactor
        self.setName("mqttd")  # type: ignore[no-untyped-call]
        self.log = Logger(namespace="mqttd")
        self.lock = lock_data_dir(config.node.data_dir)
        if place is None and os.path.exists(os.path.join(config.node.data_dir, "workers")):
            self._from_workers(config.node.data_dir)
        self.events = EventLog(time.monotonic, config.log)
        #: The log, where it is ours.
        self.logging: Log | LogLevelFilter | None = None
        self.faults = Faults(self.events)
        self.hooks = Hooks(self.faults.callback, reactor)
        self.watchdog = Watchdog(self.hooks.watch, self.faults.stuck, interrupts=on_start is None)
        try:
            self.roles = Roles(os.path.join(config.node.data_dir, "roles.json"))
        except RoleError as error:
            raise StartError(str(error)) from None
        apart = configs_by_listener(config).items()
        self.access = AccessByListener(
            self.access_control(config), {name: self.access_control(own) for name, own in apart}
        )
        self.broker = Broker(
            settings_of(config),
            self.access,
            self.hooks,
            clock=lambda: time.time_ns() // 1000,
            now=_milliseconds(),
            soon=lambda later: reactor.callLater(0, later),
            log=self.events,
            process_id=os.getpid() & 0xFFFFFFFF,
            name=config.node.name,
        )
        try:
            self.store = store_of(config, reactor, self.events)
        except StoreError as error:
            raise StartError(str(error)) from None
        self.broker.drawers.most = config.plugins.max_store_bytes
        share = 2 if place is None else 2 * place.count
        self.broker.memory.watch(memory_of_machine() // share, grown, trim, excess())
        self.hooks.listeners_changed.append(self.broker.hooks_changed)
        self.broker.access_changed()
        self.access.on_change = self.broker.access_changed
        self.broker.bans = Bans(
            os.path.join(config.node.data_dir, "bans.json"),
            drawer=None if self.store is None else self.broker.drawers.open(DRAWER, 1 << 30),
        )
        self.broker.bans.disabled = self.roles.disabled
        if self.store is not None:
            self.roles.drawer = self.broker.drawers.open(ROLES, 1 << 30)
        self.roles.on_change = self._roles_changed
        self.broker.flapping = Flapping(self.broker.bans, self.broker.metrics, self.events)
        self.engine = Engine(self.broker, epoll_of(reactor))
        files = raise_file_limit() if on_start is None else file_limit()
        most = connections_of(files)
        self.engine.most = most
        self.engine.failed = self._turn_failed
        self.stalled = Stalled(self.broker, int(config.output.send_timeout * 1000))
        self.overload = Overload(reactor, config.overload.lag, self._overloaded)
        self.sys_topics = SysTopics(self.broker, config.sys.interval, reactor)
        self.broker.alarms.listeners.append(self.sys_topics.alarm)
        self.host = Host(
            self.broker, reactor, lambda name: MqttFactory(self.broker, name, reactor, files)
        )
        self.host.opened = False
        self.plugins = Plugins(
            config,
            self.host,
            threaded=lambda: self.opened,
            gone=self._plugin_gone,
        )
        self.broker.memory.others.append(self.plugins.held)
        self.plugins.check()
        self.sys_topics.more.append(self.plugins.sys_topics)
        model = Model(self.broker, self._more_metrics)
        self.parts = parts = Parts(self.broker, model, self.listeners, self.who_may_connect)
        parts.plugins = self.plugins
        parts.is_ready = lambda: self.opened
        listeners = self.events.listeners
        parts.feed = Feed(model.figures, listeners.append, listeners.remove, reactor)
        parts.user_file = lambda: self.config.auth.username.file
        self.spans: Spans | None = None
        self.trail = parts.trail = self._trail(config)
        self.audit = self._audit_file(config)
        parts.audit.write = self.audit.put
        self.api_users = ApiUsers(
            os.path.join(config.node.data_dir, "api-users.json"),
            lambda text: self.log.error("API users: {text}", text=text),
            changed=lambda before, after: self._file_changed("api-users.json", before, after),
        )
        parts.logins = Logins(self.api_users, reactor, parts.in_thread)
        parts.first = FirstUser(self.api_users, reactor, parts.in_thread)
        self.api = api = Api(parts, reactor.seconds)
        self.admin = AdminService(
            api.resource(), config.admin.socket, reactor, 2 * config.mqtt.max_packet_size
        )
        self.addService(self.admin)  # type: ignore[no-untyped-call]
        self.admin_tcp = self._admin_tcp()
        self.page = self._page(parts.logins)
        #: Our share in a broker of several workers.
        self.worker: Worker | None = None
        sockets: dict[str, socket.socket] | None = None
        if place is not None:
            from mqttd.workers.worker import Worker

            self.worker = Worker(self.broker, self.engine, reactor, place)
            sockets = self.worker.sockets
            self.sys_topics.figures = self.worker.sums
            self.sys_topics.silent = place.number != 1
        self.doors = Listeners(
            config.listener, self.broker, self.engine, reactor, self.events, self.alarm,
            lambda: most, self._read_listeners, self._access_of, sockets,
            place is None or place.number == 1,
        )  # fmt: skip
        parts.doors = self.doors
        self.reload = Reload(self)
        parts.reload = self.reload
        parts.store = self.store
        parts.roles = self.roles
        self.topic_figures = TopicFigures(self.broker, reactor.callLater)
        parts.topic_figures = self.topic_figures
        self.drain = parts.drain = Drain(self.broker, self._drained)
        parts.has_store = True
        try:
            self.doors.bind()
        except ListenError as error:
            raise StartError(str(error)) from None
        own = on_start is None
        self.garbage = Garbage(on_pause=self._paused) if own else None
        metrics = self.broker.metrics
        self.quiet = Quiet(lambda: metrics.bytes_received) if own else None
        #: Clients are let in.
        self.opened = False
        self._hang_up: Callable[[], None] = lambda: None
        self.supervisor = Supervisor(os.environ if on_start is None else {}, reactor)
        self._ticking = task.LoopingCall(self._tick)
        self._ticking.clock = reactor

    def _from_workers(self, data_dir: str) -> None:
        """Take over the sessions of a broker that had workers; raises StartError."""
        from mqttd.workers.resharding import reshard

        try:
            moved = reshard(data_dir, 1)
        except StoreError as error:
            raise StartError(f"node.workers = 1: {error}") from None
        if moved >= 0:
            self.log.info("{moved} sessions moved from workers", moved=moved)

    def keep_log(self, twistd: Mapping[str, Any] | None) -> None:
        """Write the log as `[log]` and twistd's own options say; raises LogError."""
        self.logging = log_for(self.config.log, twistd)
        if isinstance(self.logging, Log):
            self.events.write_to(self.logging)
            self.parts.logging = self.logging
        else:
            self.addService(self.logging)  # type: ignore[no-untyped-call]

    def setServiceParent(self, parent: Any) -> None:
        """Become a part of twistd's application, whose log is ours from its first line on."""
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]
        if isinstance(self.logging, Log) and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self.logging)

    def _audit_file(self, config: Config) -> Writer:
        """Where changes that were made over the HTTP interface are kept; raises StartError."""
        path = os.path.join(config.node.data_dir, "audit.jsonl")
        try:
            target = FileTarget(path, _AUDIT_BYTES, _AUDIT_FILES)
            os.chmod(path, 0o600)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
        return Writer(target, 1 << 20, lambda lost: b'{"lost": %d}\n' % lost)

    def _trail(self, config: Config) -> Trail | None:
        """What becomes of messages is kept here; raises StartError."""
        if not config.trace.ring:
            return None
        path = os.path.join(config.node.data_dir, "why.jsonl")
        try:
            trail = Trail(self.broker, config.trace, path, self._rule_for)
            if config.trace.otlp:
                self.spans = Spans(config.trace.otlp, config.node.name)
                trail.listeners.append(self.spans.take)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
        except NoOtel as error:
            raise StartError(str(error)) from None
        return trail

    def _rule_for(self, message: Message) -> str:
        """The rule by which a message may be published."""
        session = self.broker.sessions.get(message.client_id)
        if session is None:
            return ""
        client = self.broker.client_of(session)
        told = self.access.questions_of(client.listener).explain(
            client, Action("publish", message.qos, message.retain), message.topic
        )
        return str(told["rule"])

    def _admin_tcp(self) -> AdminTcpService | None:
        """The HTTP interface over TCP, where there are tokens for it."""
        settings = self.config.admin.tcp
        if not (settings.token_file or settings.pull_token_file):
            return None
        try:
            service = self.new_admin_tcp(self.config)
        except DoorError as error:
            raise StartError(str(error)) from None
        self.addService(service)  # type: ignore[no-untyped-call]
        return service

    def _page(self, logins: Logins) -> PageService | None:
        """The dashboard; a broker goes on without it where its address is in use."""
        settings = self.config.admin.page
        if not settings.enabled:
            return None
        most = 2 * self.config.mqtt.max_packet_size
        try:
            page = PageService(self.api.resource(), settings, self.reactor, most, logins)
        except AddressError as error:
            self.log.error("no dashboard: {error}", error=str(error))
            self.broker.alarms.activate("dashboard", f"there is no dashboard: {error}")
            return None
        except DoorError as error:
            raise StartError(str(error)) from None
        self.log.info("dashboard on port {port}: {url}", port=page.port, url=page.url)
        if token := cast(FirstUser, self.parts.first).offer():
            self.log.warn(
                "nobody may log in yet; this makes the first administrator, once, within an hour:"
                " {link}",
                link=f"{page.url}/#first={token}",
            )
        self.addService(page)  # type: ignore[no-untyped-call]
        return page

    def new_admin_tcp(
        self, config: Config, before: AdminTcpService | None = None
    ) -> AdminTcpService:
        """An HTTP interface over TCP, in the place of another one; raises DoorError."""
        most = 2 * config.mqtt.max_packet_size
        service = AdminTcpService(
            self.api.resource(), config.admin.tcp, self.reactor, most, before, self.api_users
        )
        self.log.info("HTTP interface on port {port}: {url}", port=service.port, url=service.url)
        return service

    def limit_bodies(self, most: int) -> None:
        """Refuse requests to the HTTP interface with bodies of more than so many bytes."""
        for service in (self.admin, self.admin_tcp, self.page):
            if service is not None:
                limit_body(service.site, most)

    def _open_store(self) -> None:
        """What plugins and the broker keep under keys."""
        if self.store is not None:
            self.store.open(self.broker)
            bad = self.broker.bans.take_in()
            if bad:
                self.alarm("bans", f"{len(bad)} bans cannot be read: {', '.join(bad)[:500]}")
            bad = self.roles.take_in()
            if bad:
                self.alarm("roles", f"these cannot be read: {', '.join(bad)[:500]}")

    def _recover(self, result: object) -> object:
        """Take in what was kept, before clients are let in."""
        if self.store is not None:
            self.store.recover(self.broker)
        return self.broker.recover()

    def access_control(self, config: Config) -> AccessControl:
        return AccessControl(
            config,
            self.reactor,
            on_deny=self._denied,
            on_error=self.faults.module,
            on_event=self._access_event,
            on_revoked=self._revoked,
            on_count=self._counted,
            roles=self.roles,
        )

    def _access_of(self, listener: str, settings: Listener) -> Callable[[], None]:
        """Read the chain and rules of its own that a listener has; the result puts them in force.

        Raises ListenError for files that cannot be used.
        """
        config = config_of(self.config, settings)
        try:
            own = None if config is None else self.access_control(config)
        except (OSError, ValueError) as error:
            raise ListenError(why(error)) from None
        return lambda: self.access.put(listener, own)

    # -- service -------------------------------------------------------------------------------

    def startService(self) -> None:
        """Start the clock, load the plugins, then `open`."""
        if isinstance(self.logging, Log):
            self.logging.startService()
        self.audit.start()
        if self.trail is not None:
            self.trail.start()
        self.broker.now = _milliseconds()
        start_reading(self.reactor, self.engine)
        self._ticking.start(0.25, now=False)
        self.overload.start()
        self.watchdog.start()
        if self.on_start is None:
            self._hang_up = on_hang_up(self.reload.hang_up, self.reactor)
            keep_freed()
        super().startService()  # type: ignore[no-untyped-call]
        # Nobody gets in before the plugins that may have something against it are there.
        # What they have kept is there before them.
        maybeDeferred(self._open_store).addCallback(lambda _: self.plugins.load()).addCallback(
            self._recover
        ).addCallback(self._join).addCallback(self.open).addErrback(self._cannot_start)

    def _join(self, result: object) -> Any:
        """Meet the other workers, where there are some."""
        return result if self.worker is None else self.worker.join()

    def open(self, result: object = None) -> None:
        """Listen, say where and for whom."""
        if not self.running:
            return
        self.doors.start()
        self.opened = True
        self.host.let_in()
        self.sys_topics.start()
        if self.garbage is not None:
            self.garbage.start()
        if self.worker is not None:
            line = self.ready_line()
            self.worker.ready({"line": line, "warning": warning(self.config.auth)})
        else:
            self._tell_ready()
        self.supervisor.ready()
        if self.on_start is not None:
            self.on_start(None)

    def _tell_ready(self) -> None:
        if told := warning(self.config.auth):
            self.log.warn("{told}", told=told)
        self.log.info("{line}", line=self.ready_line())
        for door in self.doors.doors.values():
            self.log.info("listener {id}: {url}", id=door.id, url=door.url())

    def _cannot_start(self, failure: Failure) -> None:
        """What can only be known while the reactor runs: end, and with a status that says so."""
        if self.worker is not None and not self.opened:
            self.worker.failed(failure.getErrorMessage())
        if failure.check(PluginError, StoreError):
            self.log.critical("mqttd cannot start: {error}", error=str(failure.value))
        else:
            what = "mqttd cannot go on" if self.opened else "mqttd cannot start"
            self.log.failure(what, failure, level=LogLevel.critical)
        if self.on_start is not None:
            self.on_start(failure)
            return
        # twistd has no way to be told a status: the last thing the process does.
        atexit.register(os._exit, 1)
        self.reactor.callWhenRunning(self.reactor.stop)

    def stopService(self) -> Any:
        """Tell the clients, close everything."""
        self.supervisor.stopping()
        if self.on_start is None:
            self.reactor.callLater(_STOPPED, self._stops_too_long)
        self.sys_topics.stop()
        if self._ticking.running:
            self._ticking.stop()
        self.overload.stop()
        if self.garbage is not None:
            self.garbage.stop()
        stop_reading(self.reactor, self.engine)
        self.broker.registry.stopping = True
        if self.worker is not None:
            self.worker.stop()
        self.engine.close_all()
        stopped = self.doors.stop()
        self._hang_up()
        # Plugins see the clients go; what they decide for the broker is asked to the last.
        stopped.append(self.plugins.unload())
        if self.spans is not None:
            stopped.append(deferToThread(self.spans.stop))
        return DeferredList(stopped, consumeErrors=True).addBoth(self._unloaded)

    def _stops_too_long(self) -> None:
        """A plugin, or whatever it is, does not come to its end: what is kept is, and this ends."""
        self.log.critical("the end took more than {seconds} s: ended", seconds=_STOPPED)
        if self.store is not None:
            self.store.stop()
        if isinstance(self.logging, Log):
            self.logging.stopService()
        os._exit(1)

    def _plugin_gone(self) -> None:
        """The classes of a plugin are cycles that have grown old: give them back."""
        garbage = self.garbage
        if garbage is not None and self.running and gc.get_freeze_count() < WALKABLE:
            garbage.collect()

    def _unloaded(self, result: object) -> Any:
        self.watchdog.stop()
        self.access.close()
        stopped = super().stopService()  # type: ignore[no-untyped-call]
        return stopped.addBoth(self._stopped)

    def _stopped(self, result: object) -> None:
        if self.store is not None:
            self.store.stop()
        self.audit.stop()
        if self.trail is not None:
            self.trail.stop()
        # Last of all: who gets the directory may create the admin socket anew.
        self.lock.close()
        self.events.tell_suppressed()
        self.log.info("mqttd stopped")
        if isinstance(self.logging, Log):
            self.logging.stopService()

    def ready_line(self) -> str:
        """Where we listen, who may connect and why, and how to try it."""
        places = ", ".join(door.text() for door in self.doors.doors.values())
        how = "hot path compiled" if compiled() else "hot path pure Python (slower)"
        return f"mqttd ready: {places}; {self.who_may_connect()}; {how}; try: {self.doors.try_it()}"

    def who_may_connect(self) -> str:
        """Who gets past authentication, in a sentence."""
        return who_may_connect(self.config.auth)

    def listeners(self) -> list[dict[str, Any]]:
        """Each listener with the port it is bound to and its connections, for the API."""
        return self.doors.describe()

    @property
    def ports(self) -> dict[str, int]:
        """The port each listener is bound to (port 0 in the configuration takes a free one)."""
        return {door.name: door.port for door in self.doors.doors.values() if door.port}

    def _turn_failed(self, error: BaseException, count: int) -> None:
        """What should not be: the broker serves on, or ends and is started again; never deaf."""
        trace = "".join(traceback.format_exception(error))
        self.events.error("internal error", {"error": error, "traceback": trace})
        if count >= MOST_FAULTS and self.on_start is None:
            self._cannot_start(Failure(error))

    def _tick(self) -> None:
        try:
            self._tick_all()
        except BaseException as error:
            # A LoopingCall that raises is over, and with it every timer.
            self._turn_failed(error, 1)

    def _tick_all(self) -> None:
        now = _milliseconds()
        self.broker.tick(now)
        if self.worker is not None:
            self.worker.tick(now)
        self.engine.tick(now)
        self.stalled.tick(now)
        self.broker.loop_lag = int(self.overload.lag * 1000)
        self.drain.tick(now)
        self.topic_figures.tick(now)
        self.api_users.look()
        self.doors.tick(now / 1000)
        self.hooks.tick()
        self.events.tick()
        if self.trail is not None:
            self.trail.tick()
        if self.spans is not None:
            self.spans.tick(time.time_ns() // 1000)
        if self.garbage is not None:
            self.garbage.tick()
        if self.quiet is not None and self.opened:
            self.quiet.tick()

    def _more_metrics(self) -> dict[str, float]:
        """What the API shows beside the broker's own counters."""
        found: dict[str, float] = {name: value for name, _, value in self.plugins.metrics()}
        return {**found, **self.events.counters()}

    # -- reports -------------------------------------------------------------------------------

    def _denied(self, client: ClientInfo, action: Action, topic: str, rule: str) -> None:
        if self.trail is not None:
            self.trail.because(rule)
        self.events(
            "denied",
            {
                "client_id": client.client_id,
                "username": client.username,
                "peer": client.peerhost,
                "action": action.kind,
                "qos": action.qos,
                "topic": topic,
                "rule": rule,
            },
        )

    def _read_listeners(self) -> dict[str, dict[str, Any]]:
        """The listeners as the configuration file says now; raises ListenError."""
        if not self.config.path or self.on_start is not None:
            return self.config.listener
        try:
            return load(self.config.path, os.environ).listener
        except ConfigError as error:
            more = len(error.mistakes) - 1
            others = f" (and {more} more)" if more else ""
            raise ListenError(f"{error.mistakes[0]}{others}; nothing was changed") from None

    def plugins_modules(self) -> set[str]:
        """The authentication modules that are plugins'."""
        return self.access.plugins_modules()

    def alarm(self, name: str, text: str) -> None:
        """Raise an alarm of the listeners; without a text it is over."""
        if text:
            self.broker.alarms.activate(name, text)
        else:
            self.broker.alarms.clear(name)

    def _overloaded(self, begins: bool, lag: float) -> None:
        """The event loop is too late for further clients, or has recovered."""
        self.broker.overloaded = begins
        self.events("overload", {"refusing": begins, "lag_seconds": round(lag, 3)})
        text = f"the event loop is {lag:.1f} s late: new clients are refused"
        self.alarm("overload", text if begins else "")

    def _paused(self, seconds: float) -> None:
        self.events("garbage collector paused", {"seconds": round(seconds, 3)})

    def _access_event(self, event: str, fields: dict[str, object]) -> None:
        """What an operator should know of authentication: log it, keep an alarm while it lasts."""
        self.events(event, fields)
        if event == "users changed":
            had = {name: fields[name] for name in ("removed", "changed") if fields[name]}
            has = {name: fields[name] for name in ("added", "changed") if fields[name]}
            self._file_changed(f"users of {fields['module']}", had, has)
            return
        name = f"auth breaker {fields.get('module')}"
        if event == "auth breaker opened":
            text = f"authentication by {fields['module']} fails: {fields['error']}"
            self.broker.alarms.activate(name, text)
        elif event == "auth breaker closed":
            self.broker.alarms.clear(name)

    def _file_changed(self, what: str, before: Any, after: Any) -> None:
        """Somebody has changed users in their file, as `mqttd-ctl` does: the audit has it too."""
        self.parts.audit.put(
            "file", "-", "file", "FILE", what, f"{what}: changed in their file", before or None,
            after or None,
        )  # fmt: skip

    def _revoked(self, module: str, names: frozenset[str]) -> None:
        """Users are gone or have new passwords: so are their connections."""
        self.broker.revoke_users(module, names, module == "clientid")

    def _drained(self) -> None:
        """Nobody is left: what this process was for is done."""
        self.log.info("drained: {count} clients were sent away", count=self.drain.ended)
        if self.parts.exit_when_drained and self.on_start is None:
            self.reactor.callLater(0, self.reactor.stop)

    def _roles_changed(self, disabled: bool) -> None:
        """Roles are others, or those of others: rights are asked for again."""
        self.broker.access_changed()
        if disabled:
            self.broker.enforce_bans()

    def _counted(self, name: str) -> None:
        metrics = self.broker.metrics
        setattr(metrics, name, getattr(metrics, name) + 1)


def _milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000
