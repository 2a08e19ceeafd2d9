"""One worker process, as its supervisor knows it: started, listened to, ended.

    Interpreter (`mqttd.workers.spare`) --given its place--> worker
    start --> up (its store is read) --> linked --> ready --> ended --> start, later each time

Its log comes by a pipe as JSON, a line an entry, and becomes part of the one log.
"""

from __future__ import annotations

import calendar
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from mqttd.workers.control import Control
from mqttd.workers.spare import CHANNEL, messages

__all__ = ["Interpreter", "WorkerProcess"]

#: What a worker runs: in the end twistd, in the foreground.
#: Started with -P: what lies in the directory in which the broker was begun is nobody's module.
_PROGRAM: Final = "from mqttd.workers.spare import main; main()"
#: Milliseconds before a worker that has ended is started again; doubled while it does not live.
_FIRST: Final = 0.1
_LONGEST: Final = 10.0
#: Seconds without a sign of life, after which one that serves is ended.
_STUCK: Final = 30.0
#: Seconds without one, after which nobody waits any more for what it is to show.
_SILENT: Final = 5.0
#: Seconds of service after which one that ends is not one that cannot live.
_LIVED: Final = 5.0

#: An entry of the log: time, level, module, message, fields, traceback.
Entry = Callable[[float, str, str, str, dict[str, Any], str], object]


class Interpreter(ProcessProtocol):
    """A process that is a worker, or will be one; `ended` is called if it was none yet.

    `reactor_name` is twistd's name of its reactor, `config` the path of the configuration.
    """

    def __init__(
        self,
        reactor: Any,
        config: str,
        environ: Mapping[str, str],
        reactor_name: str,
        ended: Callable[[Interpreter], object],
    ) -> None:
        self.worker: WorkerProcess | None = None
        self.ended = ended
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files: dict[int, Any] = {0: "w", 1: "r", 2: "r", CHANNEL: theirs.fileno()}
        command = [sys.executable, "-P", "-c", _PROGRAM, "--nodaemon", "--pidfile="]
        command += [f"--reactor={reactor_name}", "mqttd", *(["--config", config] if config else [])]
        try:
            process = reactor.spawnProcess(self, sys.executable, command, environ, childFDs=files)
        finally:
            theirs.close()
        self.pid: int = process.pid
        self.control = Control(ours, reactor, self._said, lambda: None)
        self.control.start()

    def end(self) -> None:
        """It is not needed: it has begun nothing."""
        self.control.close()

    def _said(self, message: dict[str, Any], fds: list[int]) -> None:
        if self.worker is not None:
            self.worker.said(message)

    # -- told by Twisted -----------------------------------------------------------------------

    def outReceived(self, data: bytes) -> None:
        """Both of its outputs are its log."""
        self.errReceived(data)

    def errReceived(self, data: bytes) -> None:
        """Entries of its log."""
        if self.worker is not None:
            self.worker.logged(data)

    def processEnded(self, reason: Failure) -> None:
        """It is over, and all it has said is read."""
        self.control.close()
        if self.worker is not None:
            self.worker.over(reason)
        else:
            self.ended(self)


class WorkerProcess:
    """Worker `number`; what it says goes to `told`, and its end to `ended`."""

    def __init__(
        self,
        number: int,
        reactor: Any,
        entry: Entry,
        told: Callable[[WorkerProcess, dict[str, Any]], object],
        ended: Callable[[WorkerProcess, str], object],
    ) -> None:
        self.number = number
        #: What lines about it call it, and what those of its own log have.
        self.name = str(number)
        self.shown: dict[str, object] = {"worker": number}
        self.reactor = reactor
        self.entry = entry
        self.told = told
        self.ended = ended
        self.control: Control | None = None
        self.pid = 0
        #: Its store is read, and it can be given links; it has let clients in.
        self.up = False
        self.ready = False
        self.met: set[int] = set()
        #: Whose retained messages it takes over; 0: nobody's.
        self.giver = 0
        #: When it was started, and when it has let clients in.
        self.started = 0.0
        self.served = 0.0
        #: When it has said something last.
        self.heard = 0.0
        self.starts = 0
        self.pause = _FIRST
        #: The exit status of its last end; None: it was ended by a signal, or is there.
        self.status: int | None = None
        #: Ends in a row, without service that was long enough; the last one in words.
        self.ends = 0
        self.why = ""
        self._rest = b""
        self._hung_up = False

    def start(
        self,
        process: Interpreter,
        count: int,
        environ: Mapping[str, str],
        sockets: Mapping[str, socket.socket],
        stopped: Collection[str] = (),
    ) -> None:
        """Have a process be this worker of `count`; see `mqttd.workers.spare.messages`."""
        self.started = time.monotonic()
        self.served = 0.0
        self.starts += 1
        self.up = self.ready = False
        self.met = set()
        self.giver = 0
        self._rest = b""
        self.pid = process.pid
        self.control = process.control
        process.worker = self
        for message, fds in messages(self.number, count, environ, sockets, stopped):
            self.control.send(message, fds)

    def said(self, message: dict[str, Any]) -> None:
        """It says something to its supervisor."""
        self.heard = time.monotonic()
        self.told(self, message)

    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started

    def is_stuck(self) -> bool:
        """Whether it serves clients, or should, and says nothing any more."""
        return self.ready and time.monotonic() - self.heard > _STUCK

    @property
    def state(self) -> str:
        """`running`, `starting`, or `silent`: it gives no sign of life."""
        if not self.ready:
            return "starting"
        return "silent" if time.monotonic() - self.heard > _SILENT else "running"

    @property
    def down(self) -> str:
        """Why it serves nobody, or has not for long enough to be trusted; empty: it serves."""
        if self.state == "silent":
            return "gives no sign of life"
        if self.ready and (self.ends < 2 or self._has_lived()):
            return ""
        return f"{self.why}, {self.ends} times in a row" if self.ends > 1 else self.why

    def _has_lived(self) -> bool:
        """Whether it has served for so long that its next end has nothing to do with the last."""
        return self.served > 0 and time.monotonic() - self.served > _LIVED

    def serves(self) -> None:
        """It has let clients in."""
        self.ready = True
        self.served = time.monotonic()
        if self._hung_up:
            self.hang_up()

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Say something to it, where it is."""
        if self.control is not None:
            self.control.send(message, fds or [])

    def signal(self, number: int) -> None:
        """Send it a signal, while it is there."""
        if self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def hang_up(self) -> None:
        """Have it read its configuration again; while it starts it would end by the signal."""
        self._hung_up = not self.ready
        if self.ready:
            self.signal(signal.SIGHUP)

    def next_pause(self) -> float:
        """Seconds until it is started again."""
        if self._has_lived():
            self.pause, self.ends = _FIRST, 0
        self.ends += 1
        pause, self.pause = self.pause, min(self.pause * 2, _LONGEST)
        return pause

    # -- told by its process -------------------------------------------------------------------

    def logged(self, data: bytes) -> None:
        """Entries of its log, a line each."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line:
                self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            said: dict[str, Any] = json.loads(line)
            when = _seconds(str(said.pop("time")))
            level, module = str(said.pop("level")), str(said.pop("module"))
            message, trace = str(said.pop("message")), said.pop("traceback", [])
        except (ValueError, KeyError, TypeError, AttributeError):
            text = line.decode("utf-8", "replace")
            self.entry(time.time(), "warn", "mqttd", text, dict(self.shown), "")
            return
        if module == "twistd":
            return  # that one of its kind has started is said by the supervisor
        said.update(self.shown)
        self.entry(when, level, module, message, said, "\n".join(trace))

    def over(self, reason: Failure) -> None:
        """It has ended, and all it has said is read."""
        if self._rest:
            self._line(self._rest)
        self.control = None
        self.pid = 0
        self.up = self.ready = False
        value: Any = reason.value
        number = getattr(value, "signal", None)
        self.status = None if number is not None else int(getattr(value, "exitCode", None) or 0)
        if number is not None:
            text = f"ended by {signal.Signals(number).name}"
        else:
            text = f"ended with status {self.status}"
        self.why = text
        self.ended(self, text)


def _seconds(text: str) -> float:
    """Seconds since 1970 of a time as the log writes it."""
    whole, _, part = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
