"""`twistd mqttd`: runs what `mqttd.assembly` has put together as a service.

    makeService --> startService: store, plugins, others --> open: clients are let in
                    stopService: clients told, plugins, store --> the lock of the data directory

Imports no reactor, so that `--reactor` and a test's clock are free.
"""

from __future__ import annotations

import atexit
import os
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import DeferredList, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import ILogObserver, LogLevel
from twisted.python.components import Componentized
from twisted.python.failure import Failure

from mqttd import compiled
from mqttd.access.auth.who import warning
from mqttd.assembly import Assembly, OnStart
from mqttd.broker.ground.settings import settings_of
from mqttd.config.schema import Config
from mqttd.hang_up import on_hang_up
from mqttd.monitor.garbage import Garbage
from mqttd.monitor.log.service import Log, log_for
from mqttd.monitor.malloc import keep_freed
from mqttd.monitor.quiet import Quiet
from mqttd.monitor.supervisor import Supervisor
from mqttd.monitor.switching import switch_soon
from mqttd.net.clock import steady
from mqttd.options import Options, StartError, why
from mqttd.others import join
from mqttd.rounds import Rounds, monotonic_ms
from mqttd.storage.store import StoreError
from mqttd.transports.reactor import start_reading, stop_reading
from mqttd.transports.sockets import ListenError
from mqttd.types import PluginError
from mqttd.workers.place import Place, count_of, place_of

if TYPE_CHECKING:
    from mqttd.workers.processes import Processes

__all__ = ["MqttdService", "Options", "StartError", "makeService", "settings_of"]


def makeService(options: Options) -> MqttdService | Processes:
    """The broker as a Twisted service (called by twistd): one process, or who starts several."""
    from twisted.internet import reactor

    steady(reactor)
    try:
        place = place_of(os.environ)
        service: MqttdService | Processes
        config = options.configuration
        if place is None and count_of(config.node.workers) > 1:
            service = _several(config)(config, reactor, options.parent)
        else:
            service = MqttdService(options.configuration, reactor, place=place)
        service.keep_log(getattr(options, "parent", None))
        return service
    except Exception as error:
        # twistd would print a traceback; the operator needs the one line.
        raise SystemExit(f"mqttd cannot start: {why(error, options.configuration)}") from None


def _several(config: Config) -> Callable[[Config, Any, Mapping[str, Any] | None], Processes]:
    """Who starts several processes: workers, or nodes of a cluster."""
    if config.cluster.kind != "none":
        from mqttd.workers.nodes import NodesService

        return NodesService
    from mqttd.workers.supervisor import WorkersService

    return WorkersService


#: Turns of the engine in a row that may raise before the process ends.
MOST_FAULTS = 100

#: Seconds after which the end of the process is waited for no longer.
_STOPPED = 60


class MqttdService(Assembly):
    """The broker with its listeners.

    What can be refused is refused in the constructor (files unreadable, port or data directory in
    use), before twistd is a daemon.

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
        super().__init__(config, reactor, on_start, place)
        own = on_start is None
        self.garbage = Garbage(on_pause=self.reports.paused) if own else None
        metrics = self.broker.metrics
        self.quiet = Quiet(lambda: metrics.bytes_received) if own else None
        self._hang_up: Callable[[], None] = lambda: None
        self.supervisor = Supervisor(os.environ if own else {}, reactor)
        self._rounds = Rounds(reactor, self._look, self._turn_failed)

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

    def _open_store(self) -> None:
        """What plugins and the broker keep under keys."""
        if self.store is not None:
            self.store.open(self.broker)
            bad = self.broker.bans.take_in()
            if bad:
                text = f"{len(bad)} bans cannot be read: {', '.join(bad)[:500]}"
                self.reports.alarm("bans", text)
            bad = self.roles.take_in()
            if bad:
                self.reports.alarm("roles", f"these cannot be read: {', '.join(bad)[:500]}")

    def _recover(self, result: object) -> object:
        """Take in what was kept, before clients are let in."""
        if self.store is not None:
            self.store.recover(self.broker, self.engine)
        return self.broker.recover()

    # -- service -------------------------------------------------------------------------------

    def startService(self) -> None:
        """Start the clock, load the plugins, then `open`."""
        if isinstance(self.logging, Log):
            self.logging.startService()
        self.control.start_audit()
        if self.trail is not None:
            self.trail.start()
        self.broker.now = monotonic_ms()
        start_reading(self.reactor, self.engine)
        self._rounds.start()
        if self.keeper is not None:
            self.keeper.start()
        self.overload.start()
        self.watchdog.start()
        if self.on_start is None:
            self._hang_up = on_hang_up(self.reload.hang_up, self.reactor)
            keep_freed()
            switch_soon()
        super().startService()  # type: ignore[no-untyped-call]
        # Nobody gets in before the plugins that may have something against it are there.
        # What they have kept is there before them.
        maybeDeferred(self._open_store).addCallback(lambda _: self.plugins.load()).addCallback(
            self._recover
        ).addCallback(self._join).addCallback(self.open).addErrback(self._cannot_start)

    def _join(self, result: object) -> Any:
        """Meet the other workers or nodes, where there are some."""
        if self.cluster is not None:
            return join(self.cluster)
        return result if self.worker is None else self.worker.join()

    def open(self, result: object = None) -> None:
        """Listen, say where and for whom."""
        if not self.running:
            return
        self.doors.start()
        self.opened = True
        self.host.let_in()
        if self.cluster is not None:
            self.cluster.opened()
        self.sys_topics.start()
        if self.garbage is not None:
            self.garbage.start()
        kept_by = self.worker or self.keeper
        if kept_by is not None:
            urls = {door.id: door.url() for door in self.doors.doors.values()}
            line, told = self.ready_line(), warning(self.config.auth)
            kept_by.ready({"line": line, "warning": told, "listeners": urls})
        else:
            self._tell_ready()
        self.supervisor.ready()
        if self._is_first():
            for text in self.gate.unclaimed():
                self.log.error("{text}", text=text)
        if self.on_start is not None:
            self.on_start(None)

    def _tell_ready(self) -> None:
        if told := warning(self.config.auth):
            self.log.warn("{told}", told=told)
        self.log.info("{line}", line=self.ready_line(), always=True)
        for door in self.doors.doors.values():
            self.log.info("listener {id}: {url}", id=door.id, url=door.url())

    def _cannot_start(self, failure: Failure) -> None:
        """What can only be known while the reactor runs: end, and with a status that says so."""
        kept_by = self.worker or self.keeper
        if kept_by is not None and not self.opened:
            kept_by.failed(failure.getErrorMessage())
        if failure.check(PluginError, StoreError, StartError, ListenError):
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
        self._rounds.stop()
        self.overload.stop()
        if self.garbage is not None:
            self.garbage.stop()
        stop_reading(self.reactor, self.engine)
        self.broker.stop()
        if self.worker is not None:
            self.worker.stop()
        if self.machine is not None:
            self.machine.stop()
        if self.cluster is not None:
            self.cluster.leaving()
        self.engine.close_all()
        stopped = self.doors.stop()
        if self.cluster is not None:
            stopped.append(self.cluster.stop())
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
        if garbage is not None and self.running and garbage.is_small():
            garbage.collect()

    def _unloaded(self, result: object) -> Any:
        self.watchdog.stop()
        self.access.close()
        stopped = super().stopService()  # type: ignore[no-untyped-call]
        return stopped.addBoth(self._stopped)

    def _stopped(self, result: object) -> None:
        if self.store is not None:
            self.store.stop()
        self.control.stop_audit()
        self.reports.look()
        if self.trail is not None:
            self.trail.stop()
        # Last of all: who gets the directory may create the admin socket anew. And SIGHUP, which
        # has nothing to do while the broker ends, must not cut that short.
        self.lock.close()
        self._hang_up()
        self.events.tell_suppressed()
        self.log.info("mqttd stopped")
        if isinstance(self.logging, Log):
            self.logging.stopService()

    def ready_line(self) -> str:
        """Where we listen, who may connect and why, and how to try it."""
        places = ", ".join(door.text() for door in self.doors.doors.values())
        how = "hot path compiled" if compiled() else "hot path pure Python (slower)"
        return f"mqttd ready: {places}; {self.who_may_connect()}; {how}; try: {self.doors.try_it()}"

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

    def _look(self, now: int) -> None:
        self.broker.tick(now)
        if self.worker is not None:
            self.worker.tick(now)
        if self.cluster is not None:
            self.cluster.tick()
        if self.keeper is not None:
            self.keeper.tick()
        self.engine.tick(now)
        self.stalled.tick(now)
        self.broker.loop_lag = int(self.overload.lag * 1000)
        self.drain.tick(now)
        self.topic_figures.tick(now)
        self.control.api_users.look()
        self.doors.tick(now / 1000)
        self.hooks.tick()
        self.reports.look()
        self.events.tick()
        if self.trail is not None:
            self.trail.tick()
        if self.spans is not None:
            self.spans.tick(time.time())
        if self.garbage is not None:
            self.garbage.tick()
        if self.quiet is not None and self.opened:
            self.quiet.tick()

    # -- reports -------------------------------------------------------------------------------

    def _drained(self) -> None:
        """Nobody is left: what this process was for is done."""
        self.log.info("drained: {count} clients were sent away", count=self.drain.ended)
        if self.parts.exit_when_drained and self.on_start is None:
            self.reactor.callLater(0, self.reactor.stop)
