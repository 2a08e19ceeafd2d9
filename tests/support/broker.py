"""Broker processes for tests: started on a free port from a written configuration, and stopped.

Black box: a test gives a broker its configuration, learns its port from the ready line, and may
look at its output and its memory as an operator would.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import warm
from tests.support.waiting import LONG, Patience, until
from tests.support.warm import Warm

__all__ = ["READY", "Broker", "Settings", "start_broker", "write_settings"]

READY: Final = re.compile(r"mqttd ready: .*?\btcp \S*?:(\d+)")
START_DEADLINE: Final = 60.0  # seconds
#: Which reactor the brokers run on: `MQTTD_TEST_REACTOR=mqttd` takes the engine's own.
REACTOR: Final = (
    [f"--reactor={os.environ['MQTTD_TEST_REACTOR']}"] if "MQTTD_TEST_REACTOR" in os.environ else []
)
STOP_DEADLINE: Final = LONG

#: What comes before the `program` of `start_broker`.
PROGRAM: Final = """\
from twisted.application.service import Application
from mqttd.service import Options, makeService

options = Options()
options.parseOptions(["--config", {config!r}])
service = makeService(options)
application = Application("mqttd")
service.setServiceParent(application)
"""

Settings = Mapping[str, Any]

#: Seconds for a line that was written to be read.
SAYS_DEADLINE: Final = LONG


@dataclass
class Broker:
    """A broker to talk to; `process` is None for one that somebody else runs."""

    port: int
    process: subprocess.Popen[str] | Warm | None = None
    directory: Path | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What the broker has written so far, standard output and error together."""
        return "\n".join(self.lines)

    def says(self, text: str, times: int = 1) -> bool:
        """Whether it writes `text`, in time: what it writes may come later than what it sends."""
        until(lambda: self.output.count(text) >= times, f"{text!r} in the log", SAYS_DEADLINE)
        return True

    def resident_kib(self) -> int:
        """Resident memory of the process in KiB (Linux)."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]

    def cpu_seconds(self) -> float:
        """Processor time of the process so far (Linux)."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, *, hard: bool = False) -> int:
        """End the process (SIGTERM, then SIGKILL after a while) and return its exit status."""
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        try:
            return process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def start_broker(
    tmp_path: Path,
    *,
    acl: str = "{allow, all}.\n",
    files: Mapping[str, str] | None = None,
    program: str = "",
    environment: Mapping[str, str] | None = None,
    wait: bool = True,
    checkout: Path | None = None,
    directory: Path | None = None,
    cold: bool = False,
    **overrides: Any,
) -> Broker:
    """Start a broker below `tmp_path` and wait until it is ready.

    Keyword arguments are configuration tables merged over the defaults:
    ``start_broker(tmp_path, session={"retry_interval": "1s"})``. `acl` is the text of acl.conf,
    `files` are more files (name -> text) to lay beside the configuration. `program` is Python text
    that gets the `MqttdService` as `service` before it starts, for what a configuration cannot say;
    `environment` are variables of its process. Without `wait` it may not get ready at all;
    `checkout` is another one than this, with its .venv; `directory` where it is begun; `cold`: as a
    program of its own, which no other has imported anything for (`tests.support.warm`).
    Raises RuntimeError with the broker's output when it does not get ready.
    """
    config = write_settings(tmp_path, overrides, acl, files)
    here = Path(__file__).parents[2] if checkout is None else checkout
    twistd = (here / ".venv/bin" if checkout else Path(sys.executable).parent) / "twistd"
    command = [str(twistd), "-n", "--pidfile=", *REACTOR, "mqttd", "--config", str(config)]
    if program:
        tac = config.with_name("broker.tac")
        tac.write_text(PROGRAM.format(config=str(config)) + program)
        command = [str(twistd), "-n", "--pidfile=", *REACTOR, "-y", str(tac)]
    process: subprocess.Popen[str] | Warm
    if not cold and checkout is None and warm.can(environment or {}):
        process = warm.start(command, directory or here, environment or {})
    else:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=directory or here,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",
                **(environment or {}),
            },
            text=True,
            errors="replace",
        )
    broker = Broker(0, process, tmp_path)
    ready = threading.Event()
    reader = threading.Thread(target=_read_output, args=(broker, ready), daemon=True)
    reader.start()
    patience = Patience(START_DEADLINE)
    while wait and not ready.wait(0.05):
        ended = process.poll() is not None
        if ended or not patience.left():
            if not ended:
                process.send_signal(signal.SIGABRT)  # it says where it is
            status = process.wait()
            reader.join(STOP_DEADLINE)
            why = f"status {status}" if ended else f"not ready after {START_DEADLINE:.0f} s"
            raise RuntimeError(f"the broker did not start ({why}):\n{broker.output}")
    return broker


def write_settings(
    tmp_path: Path,
    overrides: Settings,
    acl: str = "{allow, all}.\n",
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a configuration below `tmp_path`; see `start_broker`."""
    etc = tmp_path / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    data = tmp_path / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    settings: dict[str, Any] = {
        "node": {"data_dir": str(data)},
        "listener": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
    }
    _merge(settings, overrides)
    config = etc / "mqttd.conf"
    config.write_text(to_toml(settings))
    for name, text in {"acl.conf": acl, **(files or {})}.items():
        path = etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    return config


def _read_output(broker: Broker, ready: threading.Event) -> None:
    assert broker.process is not None and broker.process.stdout is not None
    for line in broker.process.stdout:
        broker.lines.append(line.rstrip("\n"))
        found = READY.search(line)
        if found and not ready.is_set():
            broker.port = int(found[1])
            ready.set()


def _merge(settings: dict[str, Any], overrides: Settings) -> None:
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(settings.get(key), dict):
            _merge(settings[key], value)
        else:
            settings[key] = dict(value) if isinstance(value, Mapping) else value


def to_toml(settings: Settings, path: str = "") -> str:
    """Nested dictionaries as TOML: plain values first, then one table per dictionary."""
    plain = [(k, v) for k, v in settings.items() if not isinstance(v, Mapping)]
    tables = [(k, v) for k, v in settings.items() if isinstance(v, Mapping)]
    lines = [f"[{path}]"] if path and (plain or not tables) else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain]
    text = "\n".join(lines) + "\n" if lines else ""
    for key, value in tables:
        text += to_toml(value, f"{path}.{_key(key)}" if path else _key(key))
    return text


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
