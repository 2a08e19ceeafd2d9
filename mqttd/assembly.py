"""Puts one broker together: each layer when those below it are there.

    data directory, log, hooks --> access, broker, store --> engine --> plugins
        --> what operators see and reload (`mqttd.control`) --> worker --> listeners

Promise: what can be refused is refused here (files unreadable, port or data directory in use), and
nothing begins: `mqttd.service` starts and stops what this has made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.application.service import MultiService
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqttd.access.auth.who import who_may_connect
from mqttd.access.roles.roles import DRAWER as ROLES
from mqttd.admin.http.parts import Parts
from mqttd.broker.broker import Broker
from mqttd.broker.drain import Drain
from mqttd.broker.ground.settings import settings_of
from mqttd.broker.rights.bans import DRAWER, Bans
from mqttd.broker.rights.flapping import Flapping
from mqttd.config.schema import Config
from mqttd.control import Control
from mqttd.faults import Faults
from mqttd.following import trail_of
from mqttd.gate import Gate
from mqttd.monitor.event_log import EventLog
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.monitor.log.service import Log
from mqttd.monitor.machine import excess, grown, memory_of_machine
from mqttd.monitor.malloc import trim
from mqttd.monitor.overload import Overload
from mqttd.monitor.sys_topics import SysTopics
from mqttd.net.files import connections_of, file_limit, raise_file_limit
from mqttd.options import StartError, lock_data_dir
from mqttd.others import api_of, cluster_of, from_workers, kept, listen
from mqttd.plugins.calls.hooks import Hooks
from mqttd.plugins.calls.watchdog import Watchdog
from mqttd.plugins.handle.handle import Host
from mqttd.plugins.plugins import Plugins
from mqttd.readmodel.feed import Feed
from mqttd.readmodel.model import Model
from mqttd.readmodel.topic_rates import TopicFigures
from mqttd.reload import Reload, listeners_of
from mqttd.reports import Reports
from mqttd.rounds import monotonic_ms
from mqttd.transports.engine import Engine
from mqttd.transports.listeners import Listeners
from mqttd.transports.protocol import MqttFactory
from mqttd.transports.reactor import epoll_of
from mqttd.transports.sockets import ListenError
from mqttd.transports.stalled import Stalled
from mqttd.workers.parent import parent_of
from mqttd.workers.place import Place

if TYPE_CHECKING:
    from mqttd.workers.machine import Machine
    from mqttd.workers.worker import Worker

__all__ = ["Assembly", "OnStart"]

#: Told of the end of a start: None, or why it failed.
OnStart = Callable[[Failure | None], None]


class Assembly(MultiService):
    """The parts of one broker; arguments and what is raised: see `mqttd.service.MqttdService`."""

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
        self.place = place
        self.keeper = parent_of(os.environ if on_start is None else {}, reactor)
        self.setName("mqttd")  # type: ignore[no-untyped-call]
        self.log = Logger(namespace="mqttd")
        #: Clients are let in.
        self.opened = False
        self.lock = lock_data_dir(config.node.data_dir)
        if place is None and os.path.exists(os.path.join(config.node.data_dir, "workers")):
            from_workers(config.node.data_dir, self.log)
        self._make_reports()
        self._make_broker()
        self._make_bans()
        self._make_engine()
        self._make_plugins()
        self._make_control()
        self._make_worker()
        self._make_doors()

    # -- what the service does -----------------------------------------------------------------

    def _turn_failed(self, error: BaseException, count: int) -> None:
        raise NotImplementedError

    def _plugin_gone(self) -> None:
        raise NotImplementedError

    def _drained(self) -> None:
        raise NotImplementedError

    def _is_first(self) -> bool:
        """Whether what is there once is here, of several workers."""
        return self.place is None or self.place.number == 1

    # -- one after the other -------------------------------------------------------------------

    def _make_reports(self) -> None:
        """What is told of, and who looks after callbacks."""
        self.events = EventLog(time.monotonic, self.config.log)
        self.reports = Reports(self.events)
        #: The log, where it is ours.
        self.logging: Log | LogLevelFilter | None = None
        self.faults = Faults(self.events)
        self.hooks = Hooks(self.faults.callback, self.reactor)
        self.watchdog = Watchdog(
            self.hooks.watch, self.faults.stuck, interrupts=self.on_start is None
        )

    def _make_broker(self) -> None:
        """Who may do what, the broker, and what keeps its sessions."""
        self.gate = Gate(self.config, self.reactor, self.reports, self.faults.module)
        self.roles = self.gate.roles
        self.access = self.gate.access
        self.cluster = cluster_of(self.config, self.reactor)
        self.broker = Broker(
            settings_of(self.config),
            self.access,
            self.hooks,
            clock=lambda: time.time_ns() // 1000,
            now=monotonic_ms(),
            soon=lambda later: self.reactor.callLater(0, later),
            log=self.events,
            process_id=os.getpid() & 0xFFFFFFFF,
            name=self.config.node.name,
            ownership=None if self.cluster is None else self.cluster.owners,
        )
        if self.cluster is not None:
            self.cluster.serve(self.broker, self.roles)
        self.reports.broker = self.broker
        self.store = kept(self.config, self.reactor, self.events, self.cluster)
        self.broker.drawers.most = self.config.plugins.max_store_bytes
        share = 2 if self.place is None else 2 * self.place.count
        self.broker.memory.watch(memory_of_machine() // share, grown, trim, excess())
        self.hooks.listeners_changed.append(self.broker.hooks_changed)
        self.hooks.turn = self.broker.topics
        self.broker.access_changed()
        self.access.on_change = self.broker.access_changed

    def _make_bans(self) -> None:
        """Who is kept out, and what operators may do."""
        self.broker.bans = Bans(
            os.path.join(self.config.node.data_dir, "bans.json"),
            drawer=None if self.store is None else self.broker.drawers.open(DRAWER, 1 << 30),
        )
        self.broker.bans.disabled = self.roles.disabled
        if self.store is not None:
            self.roles.drawer = self.broker.drawers.open(ROLES, 1 << 30)
        self.broker.flapping = Flapping(self.broker.bans, self.broker.metrics, self.events)

    def _make_engine(self) -> None:
        """What reads and writes, as many connections as there are files, and who watches it."""
        self.engine = Engine(self.broker, epoll_of(self.reactor), self.reactor.callLater)
        self.files = raise_file_limit() if self.on_start is None else file_limit()
        self.engine.most = connections_of(self.files)
        self.engine.failed = self._turn_failed
        self.stalled = Stalled(self.broker, int(self.config.output.send_timeout * 1000))
        self.overload = Overload(self.reactor, self.config.overload.lag, self.reports.overloaded)

    def _make_plugins(self) -> None:
        """The plugins, which are loaded later, and what they are given."""
        self.sys_topics = SysTopics(self.broker, self.config.sys.interval, self.reactor)
        self.broker.alarms.listeners.append(self.sys_topics.alarm)
        self.host = Host(
            self.broker,
            self.reactor,
            lambda name: MqttFactory(self.broker, name, self.reactor, self.files),
            *((0, 1) if self.place is None else (self.place.number, self.place.count)),
        )
        self.host.opened = False
        self.host.engine = self.engine
        self.plugins = Plugins(
            self.config,
            self.host,
            threaded=lambda: self.opened,
            gone=self._plugin_gone,
            first=self._is_first(),
        )
        self.broker.memory.others += [self.plugins.held, lambda: self.control.held()]
        self.plugins.check()
        self.sys_topics.more.append(self.plugins.sys_topics)

    def _make_control(self) -> None:
        """What operators see and change."""
        model = Model(self.broker, self._more_metrics)
        self.parts = parts = Parts(self.broker, model, self.listeners, self.who_may_connect)
        parts.store = self.store
        parts.has_store = True
        parts.roles = self.roles
        parts.plugins = self.plugins
        parts.cluster = self.cluster
        parts.is_ready = lambda: self.opened
        listeners = self.events.listeners
        parts.feed = Feed(model.figures, listeners.append, listeners.remove, self.reactor)
        parts.user_file = lambda: self.config.auth.username.file
        self.trail, self.spans = trail_of(self.config, self.broker, self.access)
        parts.trail = self.reports.trail = self.trail
        self.control = Control(
            self.config, parts, api_of(self.cluster, parts, self.reactor), self.reactor,
            lambda text: self.broker.alarms.activate("dashboard", text), self.place is not None,
        )  # fmt: skip
        self.addService(self.control)  # type: ignore[no-untyped-call]
        self.reports.audited = self.control.file_changed

    def _make_worker(self) -> None:
        """Our share in a broker of several workers, or in a machine of several nodes."""
        self.worker: Worker | None = None
        self.machine: Machine | None = None
        if self.keeper is not None and self.cluster is not None:
            from mqttd.workers.machine import Machine

            self.machine = Machine(
                self.broker, self.engine, self.reactor, self.keeper, self.cluster
            )
        if self.place is None:
            return
        from mqttd.workers.worker import ALARM, Worker

        self.worker = Worker(self.broker, self.engine, self.reactor, self.place)
        self.sys_topics.figures = self.worker.sums
        self.sys_topics.silent = not self._is_first()
        self.sys_topics.told_if_silent = frozenset((ALARM,))
        # What has changed in a file all workers see: the audit hears of it once.
        self.reports.audited = self.worker.audited
        self.worker.commons.roles = self.roles

    def _make_doors(self) -> None:
        """Where clients come in, and what is done with all of it. Binds the ports."""
        parts = self.parts
        self.doors = parts.doors = Listeners(
            self.config.listener, self.broker, self.engine, self.reactor, self.events,
            self.reports.alarm, lambda: self.engine.most,
            lambda: listeners_of(self.config, self.on_start is not None),
            self.gate.of_listener, None if self.worker is None else self.worker.sockets,
            self._is_first() and (self.keeper is None or self.keeper.number == 1),
            () if self.place is None else self.place.stopped,
            self.cluster is not None,
        )  # fmt: skip
        self.reload = parts.reload = Reload(self)
        self.reports.files_taken = lambda: self.reload.files_taken()
        self.topic_figures = parts.topic_figures = TopicFigures(self.broker, self.reactor.callLater)
        self.drain = parts.drain = Drain(self.broker, self._drained)
        if self.cluster is not None:
            self.cluster.leaves.serve(self.drain, parts)
            parts.apart = self.cluster.apart
            self.engine.holder = self.cluster.still
        try:
            self.doors.bind()
        except ListenError as error:
            raise StartError(str(error)) from None
        listen(self.cluster, self.control, self.plugins)

    # -- what it says of itself ----------------------------------------------------------------

    def who_may_connect(self) -> str:
        """Who gets past authentication, in a sentence."""
        return who_may_connect(self.config.auth)

    def listeners(self) -> list[dict[str, Any]]:
        """Each listener with the port it is bound to and its connections, for the API."""
        return self.doors.describe()

    def _more_metrics(self) -> dict[str, float]:
        """What the API shows beside the broker's own counters."""
        found: dict[str, float] = {name: value for name, _, value in self.plugins.metrics()}
        if self.cluster is not None:
            found.update(self.cluster.counters())
        return {**found, **self.events.counters()}
