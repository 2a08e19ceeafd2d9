"""Brokers and `mqttd-ctl` that begin as forks of one process that has imported what they import.

    the tests --command, environment, files--> a warm process --clone--> the program, a child of the
                                                                         tests as any other
To start Python and to import takes three quarters of the processor time of a start, and the tests
start thousands. From the arguments on all is as the script does it: only the reactor, and what
imports it, is imported by each process itself.

Promise: what is told of a process by its environment when it begins (`PYTHON…`, `LD_PRELOAD`), or
measured of it, needs one that begins cold; all do where this kernel's call is not known, or with
MQTTD_TEST_COLD=1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pkgutil
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final, NoReturn

__all__ = ["Warm", "can", "run", "start"]

#: The number of clone, by machine, and its flag for a child of the caller's parent.
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT: Final = 0x00008000
_MOST: Final = 1 << 20
#: What starts one: the reactor is not among what it imports.
_PROGRAM: Final = "from tests.support.warm import main; main()"
_TWISTD: Final = "twisted.scripts.twistd:run"
_WITHOUT: Final = frozenset({"twisted.internet.reactor", "klein"})
_IMPORTED: Final = (
    "mqttd.service", "mqttd.workers.supervisor", "twisted.scripts.twistd", "mqttd.admin.ctl.main",
)  # fmt: skip
_SWITCHES: Final = frozenset({"MQTTD_TEST_COLD", "MQTTD_COVERAGE"})
_COLD: Final = ("LD_", "PYTHON", "MALLOC_", "MQTTD_PURE", "COVERAGE_")


class Warm:
    """One of those processes: what tests ask of a `subprocess.Popen`."""

    def __init__(self, pid: int, args: Sequence[str], stdout: IO[str] | None = None) -> None:
        self.pid = pid
        self.args = args
        self.stdout = stdout
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status, as `Popen` tells it; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, when it has ended. Raises TimeoutExpired."""
        if self.poll() is None:
            end = os.pidfd_open(self.pid)
            try:
                ends = select.poll()
                ends.register(end, select.POLLIN)
                if not ends.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            finally:
                os.close(end)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Source:
    """The process they are forks of."""

    def __init__(self) -> None:
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lock = threading.Lock()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-X", "faulthandler", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT,
            )  # fmt: skip

    def start(self, told: bytes, files: Sequence[int]) -> int:
        with self.lock:
            socket.send_fds(self.end, [told], files)
            answer = self.end.recv(100)
        if not answer:
            raise RuntimeError(f"the process to fork has ended: {self.process.wait()}")
        return int(answer)


_ROOT: Final = Path(__file__).parents[2]
_sources: list[_Source] = []
_starting = threading.Lock()


def can(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables of its own may begin so."""
    if platform.machine() not in _CLONE or not _SWITCHES.isdisjoint(os.environ):
        return False
    return not any(name.startswith(_COLD) for name in environment)


def start(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Warm:
    """`twistd` with these arguments, as `Popen` would start it, its output in a pipe."""
    output, theirs = os.pipe()
    with open(os.devnull, "rb") as nothing:
        try:
            files = [nothing.fileno(), theirs, theirs]
            pid = _start(command, directory, environment, files)
        finally:
            os.close(theirs)
    return Warm(pid, command, open(output, encoding="utf-8", errors="replace"))


def run(
    command: Sequence[str], stdin: str = "", timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """`mqttd-ctl` with these arguments, as `subprocess.run` would. Raises TimeoutExpired."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_file()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        process = Warm(_start(command, Path.cwd(), {}, [each.fileno() for each in files]), command)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for each in files:
            each.seek(0)
        return subprocess.CompletedProcess(command, status, files[1].read(), files[2].read())


def _file() -> IO[str]:
    return open(os.memfd_create("file"), "w+", encoding="utf-8")


def _start(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], files: Sequence[int]
) -> int:
    with _starting:
        if not _sources:
            _sources.append(_Source())
    told = {"argv": [*command], "cwd": str(directory), "environ": {**os.environ, **environment}}
    return _sources[0].start(json.dumps(told).encode(errors="surrogateescape"), files)


# -- in that process ---------------------------------------------------------------------------


class _Without:
    """Finds no reactor: what imports one is imported after the fork."""

    @staticmethod
    def find_spec(name: str, path: object, target: ModuleType | None = None) -> None:
        if name in _WITHOUT:
            raise ImportError(f"{name}: not here")


def main() -> NoReturn:
    """Import, then be whatever program is told, in a process of its own each."""
    end = socket.socket(fileno=int(sys.argv[1]))
    _import()
    _wait(end)  # returns in each child
    name = "mqttd.admin.ctl.main:main" if sys.argv[0].endswith("mqttd-ctl") else _TWISTD
    sys.exit(pkgutil.resolve_name(name)())


def _import() -> None:
    # A process that does nothing else says what all is imported.
    code = f"import sys, {', '.join(_IMPORTED)}; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    without: Any = _Without()
    sys.meta_path.insert(0, without)
    for name in names.decode().split():
        with contextlib.suppress(Exception):
            __import__(name)
    sys.meta_path.remove(without)
    assert not _WITHOUT & set(sys.modules)


def _wait(end: socket.socket) -> None:
    while True:
        try:
            data, files, _, _ = socket.recv_fds(end, _MOST, 3)
        except KeyboardInterrupt:
            os._exit(0)
        if not data:
            os._exit(0)
        pid = _clone()
        if not pid:
            break
        for each in files:
            os.close(each)
        end.send(str(pid).encode())
    end.close()
    told = json.loads(data)
    for number, each in enumerate(files):
        os.dup2(each, number)
    for each in files:
        os.close(each)
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(told["cwd"])
    sys.argv[:] = told["argv"]
    sys.path[0] = os.path.dirname(told["argv"][0])


def _clone() -> int:
    """As `os.fork`, but the new process is the child of our parent, which can wait for it."""
    api = ctypes.PyDLL(None)
    api.PyOS_BeforeFork()
    pid = api.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        api.PyOS_AfterFork_Parent()
    else:
        api.PyOS_AfterFork_Child()
    if pid < 0:
        raise OSError("no process could be started")
    return int(pid)
