"""Starts a broker: fresh, alone on one core, on a free loopback port, as a row asks for it.

    Broker.under(setting).start(directory, core)  -->  Running(port, pid, log), a context manager

A `Setting` is what a row of the table asks of a broker's configuration.
"""

from __future__ import annotations

import copy
import os
import resource
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from benchmarks.setting import PLAIN, Setting

__all__ = ["Broker", "Running", "StartError", "free_port", "program", "raise_file_limit", "said"]

READY: Final = 30.0
"""Seconds a broker may take until it accepts connections."""


class StartError(Exception):
    """A broker is not installed or did not start; the message says which and why."""


class Broker(ABC):
    """A broker that can be started for one run."""

    name: str
    setting: Setting = PLAIN
    cwd: Path | None = None
    cuts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Workload -> further arguments of mqttload, for *both* brokers, where this one needs less."""

    @abstractmethod
    def configuration(self, port: int | str) -> Mapping[str, str]:
        """File name -> text of what is written into the directory of a run, which is ``CWD``."""

    @abstractmethod
    def command(self, directory: Path, port: int) -> list[str]:
        """The command line that stays in the foreground."""

    @abstractmethod
    def version(self) -> str:
        """Name, version and what else matters to a figure; raises StartError if not installed."""

    def under(self, setting: Setting) -> Self:
        """The same broker, configured as a row asks for."""
        other = copy.copy(self)
        other.setting = setting
        return other

    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        return dict(os.environ)

    def ready_port(self, log: str, port: int) -> int | None:
        """The port from what the broker said so far; None until it listens."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return port if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    def start(self, directory: Path, core: int | Sequence[int]) -> Running:
        """Start it in `directory`, pinned to `core`, or to some; raises StartError."""
        port = free_port()
        for name, text in self.configuration(port).items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("CWD", str(directory)), "utf-8")
            path.chmod(0o600)  # some hold keys and passwords
        return Running(self, directory, port, core)


class Running:
    """A started broker; a context manager that ends it.

    `port` is where it listens, `pid` the broker itself (taskset becomes it), `log` what it said.
    """

    def __init__(
        self, broker: Broker, directory: Path, port: int, core: int | Sequence[int]
    ) -> None:
        self.broker = broker
        self._log = directory / "log"
        cores = str(core) if isinstance(core, int) else ",".join(map(str, core))
        command = ["taskset", "-c", cores, *broker.command(directory, port)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=broker.environment(), cwd=broker.cwd,
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            self.port = self._await(port)
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        """Everything it wrote so far."""
        return self._log.read_text("utf-8", "replace")

    def _await(self, port: int) -> int:
        deadline = time.monotonic() + READY
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StartError(f"{self.broker.name} ended at once:\n{self.log[-2000:]}")
            found = self.broker.ready_port(self.log, port)
            if found is not None:
                return found
            time.sleep(0.02)
        raise StartError(f"{self.broker.name} was not ready in {READY:g} s:\n{self.log[-2000:]}")

    def ended(self) -> str:
        """How it ended by itself; empty while it runs."""
        status = self._process.poll()
        return "" if status is None else f"ended with {status}:\n{self.log[-2000:]}"

    def stop(self) -> None:
        """End it, if need be by force."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """A port nobody listens on; the broker takes it a moment later."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def raise_file_limit() -> int:
    """Allow this process and so the brokers all the open files the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def program(name: str, hint: str) -> str:
    # Debian keeps servers in /usr/sbin, which is not on everybody's path.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise StartError(f"{name} is not installed: {hint}")
    return found


def said(command: list[str], directory: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY, cwd=directory)
    if done.returncode and not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout
