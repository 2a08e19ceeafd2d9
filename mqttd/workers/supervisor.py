"""twistd's process where a broker has several workers: it starts them, and is what is seen of them.

    twistd mqttd, workers = 3
      supervisor    lock of the data directory, pid file, log, signals, mqttd.sock
        |-- worker 1    engine, sessions, data/worker-1      \\
        |-- worker 2    engine, sessions, data/worker-2       > the mesh: a stream between each two
        '-- worker 3    engine, sessions, data/worker-3      /

It serves no client. The sockets of the listeners are bound here, one for each worker
(SO_REUSEPORT), and stay open while a worker is started again: who connects to it meanwhile waits
some tenths of a second: a process that has all imported is there (`mqttd.workers.spare`).
Two workers that are up are given the ends of a new stream.

A worker lets clients in when it has met all others, since whose filters it does not know it would
not send messages to. Only of workers that are away for long nobody waits (`_LONG`).

Promise: what can be refused is refused before twistd turns into a daemon. A worker that ends is
started again after 0.1 s, later each time while it does not live, and one that says nothing for
30 s is ended; one that says that it cannot start at the first start ends the broker.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python.components import Componentized

from mqttd.admin.doors.door import DoorError
from mqttd.admin.http.parts import Desk
from mqttd.config.load import ConfigError, load
from mqttd.config.plan import merged
from mqttd.config.schema import Config, SocketListener
from mqttd.control import Control
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.monitor.log.service import Log, log_for
from mqttd.monitor.supervisor import Supervisor
from mqttd.options import StartError, check_cluster, check_files, lock_data_dir
from mqttd.storage.database import StoreError
from mqttd.transports.sockets import ListenError, bind_tcp
from mqttd.workers.front import Front
from mqttd.workers.place import count_of
from mqttd.workers.process import Interpreter, WorkerProcess
from mqttd.workers.resharding import data_of, reshard

__all__ = ["WorkersService"]

#: Seconds after SIGTERM until a worker is killed.
_END: Final = 15.0
#: Seconds for which one that is up waits for others that are not.
_LONG: Final = 30.0


class WorkersService(MultiService):
    """A broker of several workers.

    They run on the reactor of `twistd`, what twistd was told, or else on the engine's own.

    Raises StartError, or what the access layer raises for its files; each names the file.
    """

    def __init__(self, config: Config, reactor: Any, twistd: Mapping[str, Any] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.reactor = reactor
        self.reactor_name: str = (twistd or {}).get("reactor", "mqttd")
        self.count = count_of(config.node.workers)
        self.setName("mqttd")  # type: ignore[no-untyped-call]
        self.log = Logger(namespace="mqttd")
        check_cluster(config)
        self.lock = lock_data_dir(config.node.data_dir)
        self._reshard(config.node.data_dir)
        check_files(config).close()
        self.logging: Log | LogLevelFilter | None = None
        self.systemd = Supervisor(os.environ, reactor)
        #: Of each worker, the sockets of its listeners, and where they are bound.
        self.sockets: list[dict[str, socket.socket]] = [{} for _ in range(self.count)]
        self.places: dict[str, tuple[str, int]] = {}
        self._bind()
        self.stopped: set[str] = set()
        self.workers = [
            WorkerProcess(number, reactor, self._entry, self._told, self._ended)
            for number in range(1, self.count + 1)
        ]
        #: A process that is ready to be the next worker that has to be started again.
        self.spare: Interpreter | None = None
        self.desk = Desk()
        self.front = Front(self, self.desk)
        self.doors = Control(config, self.desk, self.front, reactor)
        self.addService(self.doors)  # type: ignore[no-untyped-call]
        #: All workers have let clients in once.
        self.opened = False
        #: Workers that do not serve, and why, as the others were told.
        self._down: list[tuple[int, str]] = []
        #: What worker 1 has said when it let clients in.
        self._said: dict[str, Any] = {}
        self.stopping = False
        self._stopped: Deferred[None] | None = None
        self._calls: list[Any] = []
        self._looking = LoopingCall(self._look)
        self._looking.clock = reactor

    def _reshard(self, data_dir: str) -> None:
        try:
            moved = reshard(data_dir, self.count)
        except StoreError as error:
            raise StartError(f"node.workers = {self.count}: {error}") from None
        if moved >= 0:
            self.log.info(
                "{moved} sessions moved to {count} workers", moved=moved, count=self.count
            )
        for number in range(1, self.count + 1):
            os.makedirs(self.data_of(number), mode=0o700, exist_ok=True)

    def _bind(self) -> None:
        """Bind a socket for each listener and worker; raises StartError."""
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
        for sockets in self.sockets:
            sockets[where] = bind_tcp(key, settings, port, listen=False, shared=True)
        self.places[where] = (settings.address[0], port)

    # -- the log -------------------------------------------------------------------------------

    def keep_log(self, twistd: Mapping[str, Any] | None) -> None:
        """Write the log as `[log]` and twistd's own options say; raises LogError."""
        self.logging = log_for(self.config.log, twistd)
        if isinstance(self.logging, Log):
            self.desk.logging = self.logging
        else:
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
        """An entry of a worker's log."""
        if isinstance(self.logging, Log):
            self.logging.put(when, level, module, message, fields, trace)
        else:
            text = " ".join(f"{key}={value}" for key, value in fields.items())
            self.log.emit(LogLevel.levelWithName(level), "{said}", said=f"{message}: {text}")

    # -- workers -------------------------------------------------------------------------------

    def data_of(self, number: int) -> str:
        """The data directory of a worker."""
        return data_of(self.config.node.data_dir, number, self.count)

    def socket_of(self, number: int) -> str:
        """The admin socket of a worker."""
        return os.path.join(self.data_of(number), "mqttd.sock")

    def startService(self) -> None:
        """Start all workers."""
        if isinstance(self.logging, Log):
            self.logging.startService()
        self.doors.start_audit()
        super().startService()  # type: ignore[no-untyped-call]
        self._before = signal.signal(signal.SIGHUP, self._hang_up)
        for worker in self.workers:
            self._start(worker)
        self._looking.start(1.0, now=False)

    def _look(self) -> None:
        """Once a second: a worker that is stuck would hold up those that wait for it."""
        self.doors.api_users.look()
        for worker in self.workers:
            if not worker.ready:
                self._let_in()
            elif worker.is_stuck():
                self.log.error("worker {number} is stuck: killed", number=worker.number)
                worker.signal(signal.SIGKILL)
        self._tell_down()
        if self.spare is None and all(worker.ready for worker in self.workers):
            self.spare = self._interpreter()

    def _tell_down(self) -> None:
        """Workers hear which do not serve, as soon as that is others than before."""
        down = [(each.number, each.down) for each in self.workers if self.opened and each.down]
        if down != self._down:
            self._down = down
            for worker in self.workers:
                worker.send({"down": down})

    def _start(self, worker: WorkerProcess) -> None:
        if self.stopping:
            return
        environ = {
            "MQTTD__NODE__DATA_DIR": self.data_of(worker.number),
            "MQTTD__ADMIN__SOCKET": self.socket_of(worker.number),
            "MQTTD__LOG__TO": "stderr",
            "MQTTD__LOG__FORMAT": "json",
        }
        process, self.spare = self.spare or self._interpreter(), None
        sockets = self.sockets[worker.number - 1]
        worker.start(process, self.count, environ, sockets, self.stopped)

    def _interpreter(self) -> Interpreter:
        """A process that will be a worker."""
        environ = {key: value for key, value in os.environ.items() if key not in _OURS}
        path = self.config.path or ""
        return Interpreter(self.reactor, path, environ, self.reactor_name, self._spare_ended)

    def _spare_ended(self, process: Interpreter) -> None:
        if self.spare is process:
            self.spare = None

    def _told(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        if "up" in message:
            worker.up = True
            for other in self.workers:
                if other is not worker and other.up:
                    self._link(worker, other)
        elif "lost" in message:
            other = self.workers[int(message["lost"]) - 1]
            if worker.up and other.up:
                self._link(worker, other)
        elif "met" in message:
            worker.met = set(message["met"])
            self._let_in()
        elif "ready" in message:
            worker.serves()
            self._ready(worker, message["ready"])
        elif "audited" in message:
            self.doors.file_changed(*message["audited"])
        elif "failed" in message and not self.opened:
            self._fail(f"worker {worker.number}: {message['failed']}")

    def _link(self, one: WorkerProcess, two: WorkerProcess) -> None:
        """Give two workers a stream, and a way for connections."""
        stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        way = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for at, (worker, other) in enumerate(((one, two), (two, one))):
            fds = [stream[at].fileno(), way[at].fileno()]
            takes = self._takes(worker, other)
            if takes:
                worker.giver = other.number
            worker.send({"link": other.number, "takes": takes}, fds)
        for end in (*stream, *way):
            end.close()

    def _takes(self, worker: WorkerProcess, other: WorkerProcess) -> bool:
        """Whether a worker takes over the retained messages of another one."""
        if worker.ready:
            return False
        serving = [each.number for each in self.workers if each.ready]
        return other.number == (serving[0] if serving else 1)

    def _give_anew(self, gone: WorkerProcess) -> None:
        """Those that were taking over the retained messages of this one take another's."""
        serving = [each for each in self.workers if each.ready]
        for worker in self.workers:
            if serving and worker.up and not worker.ready and worker.giver == gone.number:
                self._link(worker, serving[0])

    def _let_in(self) -> None:
        """Workers that have met all others serve clients."""
        there = {worker.number for worker in self.workers if worker.up}
        for worker in self.workers:
            if not worker.up or worker.ready:
                continue
            late = self.opened and worker.age() > _LONG
            if not late and len(there) < self.count:
                continue
            if worker.met >= there - {worker.number}:
                worker.send({"opened": True})

    def _ready(self, worker: WorkerProcess, told: dict[str, Any]) -> None:
        self.log.info("worker {number} ready: process {pid}", number=worker.number, pid=worker.pid)
        if worker.number == 1:
            self._said = told  # it has the listeners that no other one has, too
        self._tell_down()
        if self.opened or not all(each.ready for each in self.workers):
            return
        self.opened = True
        told = self._said
        if told.get("warning"):
            self.log.warn("{told}", told=told["warning"])
        line = f"{told['line']}; {self.count} workers (experimental)"
        self.log.info("{line}", line=line, always=True)
        for where, url in told["listeners"].items():
            self.log.info("listener {id}: {url}", id=where, url=url)
        self.systemd.ready()

    def _ended(self, worker: WorkerProcess, why: str) -> None:
        """A worker process is over."""
        if self.stopping:
            if not any(each.pid for each in self.workers) and self._stopped is not None:
                stopped, self._stopped = self._stopped, None
                stopped.callback(None)
            return
        self._give_anew(worker)
        pause = worker.next_pause()
        self.log.error(
            "worker {number} {why}: it is started again in {pause:.1f} s",
            number=worker.number, why=why, pause=pause,
        )  # fmt: skip
        self._tell_down()
        self._calls = [call for call in self._calls if call.active()]
        self._calls.append(self.reactor.callLater(pause, self._start, worker))

    def _fail(self, text: str) -> None:
        self.log.critical("mqttd cannot start: {text}", text=text)
        # twistd has no way to be told a status: the last thing the process does.
        atexit.register(os._exit, 1)
        self.reactor.callWhenRunning(self.reactor.stop)

    # -- signals, end --------------------------------------------------------------------------

    def _hang_up(self, number: int, frame: object) -> None:
        """SIGHUP: every worker reads its configuration again, if it has no mistakes."""
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
        for note in self.applied():
            self.log.error("{note}", note=note)

    def drained(self) -> None:
        """Nobody is left, and that is the end."""
        self.reactor.stop()

    def warned(self) -> list[str]:
        """What the configuration, as it is in its file, would do to our doors."""
        try:
            return self.doors.locks_out(self.config, load(self.config.path or None, os.environ))
        except ConfigError as error:
            return [str(error)]

    def applied(self) -> list[str]:
        """The workers have another configuration: so do our own doors and the log."""
        try:
            after = merged(self.config, load(self.config.path or None, os.environ))
            tcp, before = None, self.doors.tcp
            changed = self.config.admin.tcp != after.admin.tcp
            if changed and self.doors.has_tcp(after):
                tcp = self.doors.new_tcp(after, before)
        except (ConfigError, DoorError, OSError) as error:
            return [str(error)]
        self.config = after
        # One that is not in the configuration any more is new, should it ever be in it again.
        self.stopped &= {f"{kind}:{name}" for kind, of in after.listener.items() for name in of}
        if changed:
            self.doors.put_tcp(tcp)
        self.doors.limit_bodies(2 * after.mqtt.max_packet_size)
        if self.logging is not None:
            self.logging.take_over(after.log)
        return self.doors.closed(after) if changed else []

    def stopService(self) -> Any:
        """End all workers, then the rest."""
        self.stopping = True
        self.front.draining.stop()
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
                self.log.error("worker {number} does not end: killed", number=worker.number)
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
        self.doors.stop_audit()
        self.lock.close()
        signal.signal(signal.SIGHUP, self._before)
        self.log.info("mqttd stopped")
        if isinstance(self.logging, Log):
            self.logging.stopService()


#: Variables of our own process, which are none of a worker's.
_OURS: Final = frozenset(("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
