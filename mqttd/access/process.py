"""Looking at rules in a process of its own, so that the broker goes on meanwhile.

    a thread, which waits --a line of JSON--> python -P -m mqttd.access.child --a line--> thread

Rules may come from anybody who may see the broker, and what it takes to look at them grows by their
square where they are made for that: neither its loop nor a thread, which would hold the
interpreter lock, is to do it.

Promise: an answer within `PATIENCE` seconds, or `RulesError`; no more than `MOST_CPU` seconds of a
core for it (a machine that is busy answers later, not less); the process ends when this is closed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, Final

import msgspec

from mqttd.access.acl.conf import AclSyntaxError

__all__ = ["MOST_CPU", "PATIENCE", "RulesError", "RulesProcess"]

#: Seconds until one question is given up, and seconds of a core that it may take.
PATIENCE: Final = 25.0
MOST_CPU: Final = 10

Json = dict[str, Any]


class RulesError(OSError):
    """The rules could not be looked at; the text says what to do."""


class RulesProcess:
    """The process; it is started by the first question, and `close` ends it."""

    def __init__(self, patience: float = PATIENCE, cpu: int = MOST_CPU) -> None:
        self.patience, self.cpu = patience, cpu
        self.closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, do: str, **asked: Any) -> Json:
        """Ask and wait, not in the reactor thread.

        Raises `AclSyntaxError`; `RulesError` if there is no answer in time, or no process.
        """
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(self.patience, process.kill)
        late.start()
        try:
            process.stdin.write(msgspec.json.encode({"do": do, **asked}) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            late.cancel()
        if not line:
            raise RulesError(
                f"these rules take more than {self.cpu} s of a core, more than {self.patience:g} s,"
                " or too much memory, to look at:"
                " send fewer, or have `mqttd-ctl acl lint FILE` look at them without the broker"
            )
        found: Json = msgspec.json.decode(line)
        if "mistake" in found:
            raise AclSyntaxError(found["mistake"])
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.closed:
                raise RulesError("the broker stops")
            if self._process is None:
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", "mqttd.access.child", str(self.cpu)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    )
                except OSError as error:
                    raise RulesError(f"no process can be started: {error}") from None
            return self._process

    def kill(self) -> None:
        """Whoever waits for an answer gets none; in any thread."""
        with self._lock:
            self.closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process, and wait for that; not in the reactor thread."""
        self.kill()
        process = self._process
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
