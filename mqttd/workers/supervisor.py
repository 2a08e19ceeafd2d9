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
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from mqttd.admin.doors.door import DoorError
from mqttd.admin.http.parts import Desk
from mqttd.config.load import ConfigError, load
from mqttd.config.plan import merged
from mqttd.config.schema import Config
from mqttd.control import Control
from mqttd.monitor.log.service import Log
from mqttd.options import StartError, check_cluster, check_files, lock_data_dir
from mqttd.storage.database import StoreError
from mqttd.workers.front import Front
from mqttd.workers.place import count_of
from mqttd.workers.process import WorkerProcess
from mqttd.workers.processes import Processes
from mqttd.workers.resharding import LEFT, data_of, reshard

__all__ = ["WorkersService"]

#: Seconds for which one that is up waits for others that are not.
_LONG: Final = 30.0


class WorkersService(Processes):
    """A broker of several workers.

    Raises StartError, or what the access layer raises for its files; each names the file.
    """

    def __init__(self, config: Config, reactor: Any, twistd: Mapping[str, Any] | None) -> None:
        super().__init__(config, reactor, twistd, count_of(config.node.workers))
        check_cluster(config)
        self.lock = lock_data_dir(config.node.data_dir)
        self._reshard(config.node.data_dir)
        check_files(config).close()
        self._bind()
        self.desk = Desk()
        self.front = Front(self, self.desk)
        self.doors = Control(config, self.desk, self.front, reactor)
        self.addService(self.doors)  # type: ignore[no-untyped-call]
        #: Workers that do not serve, and why, as the others were told.
        self._down: list[tuple[int, str]] = []

    def _reshard(self, data_dir: str) -> None:
        left: list[str] = []
        try:
            moved = reshard(data_dir, self.count, left)
        except StoreError as error:
            raise StartError(f"node.workers = {self.count}: {error}") from None
        if moved >= 0:
            self.log.info(
                "{moved} sessions moved to {count} workers", moved=moved, count=self.count
            )
        for what in left:
            self.log.error(LEFT, what=what)
        for number in range(1, self.count + 1):
            os.makedirs(self.data_of(number), mode=0o700, exist_ok=True)

    def keep_log(self, twistd: Mapping[str, Any] | None) -> None:
        """See `Processes.keep_log`; its tail is shown by the doors."""
        super().keep_log(twistd)
        if isinstance(self.logging, Log):
            self.desk.logging = self.logging

    # -- workers -------------------------------------------------------------------------------

    def data_of(self, number: int) -> str:
        """The data directory of a worker."""
        return data_of(self.config.node.data_dir, number, self.count)

    def socket_of(self, number: int) -> str:
        """The admin socket of a worker."""
        return os.path.join(self.data_of(number), "mqttd.sock")

    def environ_of(self, number: int) -> dict[str, str]:
        """See `Processes.environ_of`."""
        return {
            "MQTTD__NODE__DATA_DIR": self.data_of(number),
            "MQTTD__ADMIN__SOCKET": self.socket_of(number),
        }

    def _begins(self) -> None:
        self.doors.start_audit()

    def _is_over(self) -> None:
        self.doors.stop_audit()
        self.lock.close()

    def _looked(self) -> None:
        self.doors.api_users.look()
        if not all(worker.ready for worker in self.workers):
            self._let_in()
        self._tell_down()

    def _changed(self) -> None:
        self._tell_down()

    def _tell_down(self) -> None:
        """Workers hear which do not serve, as soon as that is others than before."""
        down = [(each.number, each.down) for each in self.workers if self.opened and each.down]
        if down != self._down:
            self._down = down
            for worker in self.workers:
                worker.send({"down": down})

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
        elif "audited" in message:
            self.doors.file_changed(*message["audited"])
        else:
            super()._told(worker, message)

    def _link(self, one: WorkerProcess, two: WorkerProcess) -> None:
        """Give two workers a stream, and a way for connections."""
        self._join(one, two, (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), self._linked)

    def _linked(self, worker: WorkerProcess, other: WorkerProcess) -> dict[str, Any]:
        takes = self._takes(worker, other)
        if takes:
            worker.giver = other.number
        return {"link": other.number, "takes": takes}

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

    def _ended(self, worker: WorkerProcess, why: str) -> None:
        if not self.stopping:
            self._give_anew(worker)
        super()._ended(worker, why)

    # -- another configuration, the end --------------------------------------------------------

    def _reloaded(self) -> None:
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
        """See `Processes.stopService`."""
        self.front.draining.stop()
        return super().stopService()
