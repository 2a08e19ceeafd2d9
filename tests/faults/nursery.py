"""Brokers that start in a few hundredths of a second: forked by a process that has imported all.

    Nursery() --spawn--> imports, then waits        start(tac) --fork--> a broker, as twistd runs it

A broker made so is a process like any other: it opens its files and its reactor itself, and
kill -9 ends it as it ends one that was started from a shell. Only the imports are not its own.

    python -m tests.faults.nursery FD        what `Nursery` runs; FD is its socket
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.broker import PROGRAM, READY, write_settings
from tests.support.waiting import Patience

__all__ = ["Nursery", "Started"]

#: What a broker imports only while it starts.
LATER: Final = (
    "twisted.internet.reactor",
    "twisted.scripts._twistd_unix",
    "twisted.scripts.twistd",
    "twisted.web.server",
    "mqttd.service",
    "mqttd.plugins.plugins",
    "encodings.idna",
    "stringprep",
)
#: Seconds for a broker to be ready.
DEADLINE: Final = 600.0
_PIPE: Final = 1 << 20


class Started:
    """A broker that was forked; `output` is what it has written so far."""

    def __init__(self, nursery: Nursery, pid: int, out: int) -> None:
        self.nursery = nursery
        self.pid = pid
        self.port = 0
        self.output = ""
        self._out = out
        self._status: int | None = None

    def ready(self) -> None:
        """Wait until it lets clients in. Raises RuntimeError that says why it does not."""
        patience = Patience(DEADLINE)
        while (found := READY.search(self.output)) is None:
            if self._read(0.1) and patience.left():
                continue
            status = self.stop()
            raise RuntimeError(f"the broker did not start ({status}):\n{self.output}")
        self.port = int(found[1])

    def _read(self, seconds: float) -> bool:
        """Take what it has written within so long; False at its end."""
        if not select.select([self._out], [], [], seconds)[0]:
            return True
        data = os.read(self._out, 65536)
        self.output += data.decode(errors="replace")
        return data != b""

    def stop(self, how: int = signal.SIGKILL) -> int:
        """End it; returns its status (a signal is negative) when nothing of it is left."""
        if self._status is None:
            # It is the nursery's child and not waited for yet: the id is its own still.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)
            self._status = self.nursery.wait(self.pid)
            while self._read(1.0):
                pass
            os.close(self._out)
        return self._status


class Nursery:
    """The process that forks; `environment` is that of all its brokers."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                env={**os.environ, **(environment or {})},
                pass_fds=[theirs.fileno()],
            )

    def start(
        self,
        path: Path,
        program: str = "",
        acl: str = "{allow, all}.\n",
        files: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Started:
        """A broker below `path` that is ready; see `start_broker`."""
        config = write_settings(path, settings, acl, files)
        tac = config.with_name("broker.tac")
        tac.write_text(PROGRAM.format(config=str(config)) + program)
        mine, theirs = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(mine, fcntl.F_SETPIPE_SZ, _PIPE)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))]
        self._socket.sendmsg([b"s" + os.fsencode(tac)], rights)
        os.close(theirs)
        broker = Started(self, self._answer(), mine)
        broker.ready()
        return broker

    def wait(self, pid: int) -> int:
        """The status of a broker that ends."""
        self._socket.send(b"w%d" % pid)
        return self._answer()

    def _answer(self) -> int:
        data = self._socket.recv(4)
        if len(data) < 4:
            raise RuntimeError(f"the nursery has ended: {self.process.wait()}")
        return int(struct.unpack("i", data)[0])

    def close(self) -> None:
        """Nothing more is to be started."""
        self._socket.close()
        self.process.wait()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run(tac: str) -> None:
    """What `twistd -n -y TAC` does, without a look for twistd's other plugins."""
    from twisted.scripts.twistd import ServerOptions, runApp

    class Options(ServerOptions):  # type: ignore[misc]
        subCommands = ()

    options = Options()
    options.parseOptions(["-n", "--pidfile=", "-y", tac])
    runApp(options)


def _own_reactor() -> None:
    """Make the reactor anew that was imported: what it waits with is not for two processes."""
    from twisted.internet import reactor

    poller = reactor._poller  # type: ignore[attr-defined]
    type(reactor).__init__(reactor)  # type: ignore[misc]
    poller.close()


def _child(tac: str, out: int, line: socket.socket) -> None:
    """A broker, in the process that was forked for it."""
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    line.close()
    status = 1
    try:
        _own_reactor()
        run(tac)
        status = 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main(line: socket.socket) -> None:
    """Fork and wait as one is told, until nobody is there."""
    for name in LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    room = socket.CMSG_SPACE(4)
    while True:
        data, rights, _, _ = line.recvmsg(4096, room)
        if not data:
            return
        if data[:1] == b"w":
            _, status = os.waitpid(int(data[1:]), 0)
            line.send(struct.pack("i", os.waitstatus_to_exitcode(status)))
            continue
        (out,) = struct.unpack("i", rights[0][2][:4])
        pid = os.fork()
        if pid == 0:
            _child(os.fsdecode(data[1:]), out, line)
        os.close(out)
        line.send(struct.pack("i", pid))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
