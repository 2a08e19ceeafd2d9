"""The processes that a broker of several has, as twistd's own process starts and keeps them.

    twistd mqttd
      supervisor    pid file, one log, signals; sockets of the listeners stay bound here
        |-- process 1 ... N    started again after 0.1 s, later each time while they do not live
        '-- a spare one        which has imported all, and is the next that is started again

Two kinds of brokers stand on it: workers (`mqttd.workers.supervisor`), and nodes of a cluster on
one machine (`mqttd.workers.nodes`).

Promise: what can be refused is refused before twistd turns into a daemon. A process that says
nothing for 30 s is ended; one that says that it cannot start at the first start ends the broker.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python.components import Componentized

from mqttd.config.load import ConfigError, load
from mqttd.config.schema import Config, SocketListener
from mqttd.hang_up import hang_up_no_more
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.monitor.log.service import Log, log_for
from mqttd.monitor.supervisor import Supervisor
from mqttd.options import StartError
from mqttd.transports.sockets import ListenError, bind_tcp
from mqttd.workers.process import Interpreter, WorkerProcess

__all__ = ["Processes"]

#: Seconds after SIGTERM until a process is killed.
_END: Final = 15.0
#: The end of one that cannot start, and has written why to its log.
_REFUSED: Final = 1


class Processes(MultiService):
    """Who starts `count` processes of `config` and is what is seen of them.

    They run on the reactor of `twistd`, what twistd was told, or else on the engine's own.
    """

    #: What the log calls one of them.
    one = "worker"

    def __init__(
        self, config: Config, reactor: Any, twistd: Mapping[str, Any] | None, count: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.reactor = reactor
        self.reactor_name: str = (twistd or {}).get("reactor", "mqttd")
        self.count = count
        self.setName("mqttd")  # type: ignore[no-untyped-call]
        self.log = Logger(namespace="mqttd")
        self.logging: Log | LogLevelFilter | None = None
        self.systemd = Supervisor(os.environ, reactor)
        #: Of each process, the sockets of its listeners, and where they are bound.
        self.sockets: list[dict[str, socket.socket]] = [{} for _ in range(count)]
        self.places: dict[str, tuple[str, int]] = {}
        #: Listeners that an operator has stopped.
        self.stopped: set[str] = set()
        self.workers = [
            WorkerProcess(number, reactor, self._entry, self._told, self._ended)
            for number in range(1, count + 1)
        ]
        #: A process that is ready to be the next that has to be started again.
        self.spare: Interpreter | None = None
        #: All have let clients in once.
        self.opened = False
        #: What the first has said when it let clients in.
        self._said: dict[str, Any] = {}
        self.stopping = False
        self._stopped: Deferred[None] | None = None
        self._calls: list[Any] = []
        self._looking = LoopingCall(self._look)
        self._looking.clock = reactor

    # -- what the kind of broker says ----------------------------------------------------------

    def environ_of(self, number: int) -> dict[str, str]:
        """Variables of one process: what is its own of the configuration."""
        raise NotImplementedError

    def _told(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        """It has said something."""
        if "ready" in message:
            worker.serves()
            self._ready(worker, message["ready"])
        elif "failed" in message and not self.opened:
            self._fail(f"{self.one} {worker.name}: {message['failed']}")

    def _looked(self) -> None:
        """Once a second."""

    def _changed(self) -> None:
        """One of them serves, or has ended."""

    def _reloaded(self) -> None:
        """They were told to read their configuration again, which has no mistakes."""

    def _begins(self) -> None:
        """Before the first of them is started."""

    def _is_over(self) -> None:
        """All of them have ended."""

    def _join(
        self, one: WorkerProcess, two: WorkerProcess, kinds: Sequence[socket.SocketKind],
        message: Callable[[WorkerProcess, WorkerProcess], dict[str, Any]],
    ) -> None:  # fmt: skip
        """Give two of them the ends of new sockets, with what either is told of the other."""
        pairs = [socket.socketpair(socket.AF_UNIX, kind) for kind in kinds]
        for at, (each, other) in enumerate(((one, two), (two, one))):
            each.send(message(each, other), [pair[at].fileno() for pair in pairs])
        for pair in pairs:
            for end in pair:
                end.close()

    # -- sockets -------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Bind a socket for each listener and process; raises StartError."""
        try:
            for kind, names in self.config.listener.items():
                for name, settings in names.items():
                    if isinstance(settings, SocketListener):
                        self._bind_one(f"{kind}:{name}", f"listener.{kind}.{name}", settings)
        except ListenError as error:
            raise StartError(str(error)) from None

    def _bind_one(self, where: str, key: str, settings: SocketListener) -> None:
        # Whoever else has the port is seen without SO_REUSEPORT only. A port that is asked for by
        # its number is kept when a listener is stopped.
        alone = bind_tcp(key, settings, 0, listen=False)
        port = alone.getsockname()[1]
        alone.close()
        self.places[where] = (settings.address[0], port)
        for sockets in self.bound():
            sockets[where] = bind_tcp(key, settings, port, listen=False, shared=True)

    def bound(self) -> list[dict[str, socket.socket]]:
        """Where the sockets of listeners go that keep their ports: to each process."""
        return self.sockets

    # -- the log -------------------------------------------------------------------------------

    def keep_log(self, twistd: Mapping[str, Any] | None) -> None:
        """Write the log as `[log]` and twistd's own options say; raises LogError."""
        self.logging = log_for(self.config.log, twistd)
        if not isinstance(self.logging, Log):
            self.addService(self.logging)  # type: ignore[no-untyped-call]

    def setServiceParent(self, parent: Any) -> None:
        """Become a part of twistd's application, whose log is ours from its first line on."""
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]
        if isinstance(self.logging, Log) and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self.logging)

    def _entry(
        self,
        when: float,
        level: str,
        module: str,
        message: str,
        fields: dict[str, Any],
        trace: str,
    ) -> None:
        """An entry of the log of one of them."""
        if isinstance(self.logging, Log):
            self.logging.put(when, level, module, message, fields, trace)
        else:
            text = " ".join(f"{key}={value}" for key, value in fields.items())
            self.log.emit(LogLevel.levelWithName(level), "{said}", said=f"{message}: {text}")

    # -- processes -----------------------------------------------------------------------------

    def startService(self) -> None:
        """Start all of them."""
        if isinstance(self.logging, Log):
            self.logging.startService()
        self._begins()
        super().startService()  # type: ignore[no-untyped-call]
        self._before = signal.signal(signal.SIGHUP, self._hang_up)
        for worker in self.workers:
            self._start(worker)
        self._looking.start(1.0, now=False)

    def _look(self) -> None:
        """Once a second: one that is stuck would hold up those that wait for it."""
        for worker in self.workers:
            if worker.is_stuck():
                self.log.error("{one} {name} is stuck: killed", one=self.one, name=worker.name)
                worker.signal(signal.SIGKILL)
        self._looked()
        if self.spare is None and all(worker.ready for worker in self.workers):
            self.spare = self._interpreter()

    def _start(self, worker: WorkerProcess) -> None:
        if self.stopping:
            return
        environ = {
            "MQTTD__LOG__TO": "stderr",
            "MQTTD__LOG__FORMAT": "json",
            **self.environ_of(worker.number),
        }
        process, self.spare = self.spare or self._interpreter(), None
        sockets = self.sockets[worker.number - 1]
        worker.start(process, self.count, environ, sockets, self.stopped)

    def _interpreter(self) -> Interpreter:
        """A process that will be one of them."""
        environ = {key: value for key, value in os.environ.items() if key not in _OURS}
        path = self.config.path or ""
        return Interpreter(self.reactor, path, environ, self.reactor_name, self._spare_ended)

    def _spare_ended(self, process: Interpreter) -> None:
        if self.spare is process:
            self.spare = None

    def _ready(self, worker: WorkerProcess, told: dict[str, Any]) -> None:
        """It lets clients in, and they all do for the first time."""
        self.log.info(
            "{one} {name} ready: process {pid}",
            one=self.one, name=worker.name, pid=worker.pid,
        )  # fmt: skip
        if worker.number == 1:
            self._said = told  # it has the listeners that no other one has, too
        self._changed()
        if self.opened or not all(each.ready for each in self.workers):
            return
        self.opened = True
        told = self._said
        if told.get("warning"):
            self.log.warn("{told}", told=told["warning"])
        line = f"{told['line']}; {self.count} {self.one}s"
        self.log.info("{line}", line=line, always=True)
        for where, url in told["listeners"].items():
            self.log.info("listener {id}: {url}", id=where, url=url)
        self.systemd.ready()

    def _ended(self, worker: WorkerProcess, why: str) -> None:
        """One of them is over."""
        if self.stopping:
            if not any(each.pid for each in self.workers) and self._stopped is not None:
                stopped, self._stopped = self._stopped, None
                stopped.callback(None)
            return
        if not self.opened and worker.starts == 1 and worker.status == _REFUSED:
            self._fail(f"{self.one} {worker.name} has said why")
            return
        pause = worker.next_pause()
        self.log.error(
            "{one} {name} {why}: it is started again in {pause:.1f} s",
            one=self.one, name=worker.name, why=why, pause=pause,
        )  # fmt: skip
        self._changed()
        self._calls = [call for call in self._calls if call.active()]
        self._calls.append(self.reactor.callLater(pause, self._start, worker))

    def _fail(self, text: str) -> None:
        self.log.critical("mqttd cannot start: {text}", text=text)
        # twistd has no way to be told a status: the last thing the process does.
        atexit.register(os._exit, 1)
        self.reactor.callWhenRunning(self.reactor.stop)

    # -- signals, end --------------------------------------------------------------------------

    def _hang_up(self, number: int, frame: object) -> None:
        """SIGHUP: all read their configuration again, if it has no mistakes."""
        if self.stopping:
            return
        try:
            load(self.config.path or None, os.environ)
        except ConfigError as error:
            text = f"the configuration has mistakes: {'; '.join(error.mistakes)}"
            self.log.error("not reloaded: {text}", text=text)
            return
        for worker in self.workers:
            worker.hang_up()
        self._reloaded()

    def stopService(self) -> Any:
        """End all of them, then the rest."""
        self.stopping = True
        if self._looking.running:
            self._looking.stop()
        self.systemd.stopping()
        for call in self._calls:
            if call.active():
                call.cancel()
        if self.spare is not None:
            self.spare.end()
        stopped: Deferred[None] = Deferred()
        self._stopped = stopped
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        if not any(worker.pid for worker in self.workers):
            self._stopped = None
            stopped.callback(None)
        kill = self.reactor.callLater(_END, self._kill)
        return stopped.addBoth(self._all_ended, kill)

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.pid:
                self.log.error("{one} {name} does not end: killed", one=self.one, name=worker.name)
                worker.signal(signal.SIGKILL)

    def _all_ended(self, result: object, kill: Any) -> Any:
        if kill.active():
            kill.cancel()
        for sockets in self.sockets:
            for bound in sockets.values():
                bound.close()
        stopped = super().stopService()  # type: ignore[no-untyped-call]
        return stopped.addBoth(self._unlock)

    def _unlock(self, result: object) -> None:
        self._is_over()
        hang_up_no_more(self._before)
        self.log.info("mqttd stopped")
        if isinstance(self.logging, Log):
            self.logging.stopService()


#: Variables of our own process, which are none of theirs.
_OURS: Final = frozenset(("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
