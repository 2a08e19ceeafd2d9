"""Starts mqttd and its peers the same way: fresh, alone on one core, on a free loopback port.

    class Broker        name, cuts, configuration(), command(), version()
      Mqttd             this checkout or the installed one, whichever the interpreter imports
      Mosquitto         Debian's package
      FlashMQ  Aedes  Amqtt     where they are installed

Each gets a window, queue and output limit so large that none of them decides a run, no-delay on
its sockets, anonymous clients and no storage. The configuration is printed with the results.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final

__all__ = ["BROKERS", "Broker", "Mosquitto", "Mqttd", "Running", "StartError"]

READY: Final = 30.0
"""Seconds a broker may take until it accepts connections."""


class StartError(Exception):
    """A broker is not installed or did not start; the message says which and why."""


class Broker(ABC):
    """A broker that can be started for one run."""

    name: ClassVar[str]
    cuts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Workload -> further arguments of mqttload, for *both* brokers, where this one needs less."""

    @abstractmethod
    def configuration(self, port: int | str) -> Mapping[str, str]:
        """File name -> text of what is written into the directory of a run."""

    @abstractmethod
    def command(self, directory: Path, port: int) -> list[str]:
        """The command line that stays in the foreground."""

    @abstractmethod
    def version(self) -> str:
        """Name, version and what else matters to a figure; raises StartError if not installed."""

    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        return dict(os.environ)

    def ready_port(self, log: str, port: int) -> int | None:
        """The port from what the broker said so far; None until it listens."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return port if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    def start(self, directory: Path, core: int) -> Running:
        """Start it in `directory`, pinned to `core`; raises StartError."""
        port = free_port()
        for name, text in self.configuration(port).items():
            (directory / name).write_text(text, "utf-8")
        return Running(self, directory, port, core)


class Running:
    """A started broker; a context manager that ends it.

    `port` is where it listens, `pid` the broker itself (taskset becomes it), `log` what it said.
    """

    def __init__(self, broker: Broker, directory: Path, port: int, core: int) -> None:
        self.broker = broker
        self._log = directory / "log"
        command = ["taskset", "-c", str(core), *broker.command(directory, port)]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=broker.environment()
            )
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


class Mqttd(Broker):
    """The broker of the running interpreter, compiled or with `pure` its plain sources."""

    name = "mqttd"

    #: twistd of the same environment, without looking for a script.
    TWISTD = ("-c", "from twisted.scripts.twistd import run; run()")

    # The engine, the access rules, metrics and limits as they come: only what mosquitto's
    # configuration raises is raised here. mqttload connects from 127.0.0.1 to 127.0.0.8.
    CONFIG = """\
[node]
data_dir = "data"

[listener.tcp.default]
bind = "127.0.0.1:0"
transport = "engine"

[session]
max_inflight = 65535

[mqueue]
max_length = 100_000_000
max_bytes = "1GiB"

[output]
high_watermark = "64MiB"
low_watermark = "16MiB"
backlog = "1GiB"

[acl]
file = "acl.conf"
"""
    ACL = """\
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "127.0.0.0/8"}, pubsub, ["$SYS/#", "#"]}.
"""
    READY_LINE = re.compile(r"mqttd ready: tcp 127\.0\.0\.1:(\d+).*hot path (compiled|pure)")

    def __init__(self, pure: bool = False, twistd: Sequence[str] = TWISTD) -> None:
        self.pure = pure
        self.twistd = twistd
        if pure:
            self.name = "mqttd (pure)"  # type: ignore[misc]

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {"mqttd.conf": self.CONFIG, "acl.conf": self.ACL}

    def command(self, directory: Path, port: int) -> list[str]:
        return [
            sys.executable, *self.twistd, "--nodaemon", "--pidfile=", "mqttd",
            "--config", str(directory / "mqttd.conf"),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        # No setting of the caller's may change what the printed configuration says.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MQTTD_")}
        if self.pure or os.environ.get("MQTTD_PURE") == "1":
            kept["MQTTD_PURE"] = "1"
        return kept

    def ready_port(self, log: str, port: int) -> int | None:
        found = self.READY_LINE.search(log)
        return int(found[1]) if found else None

    def version(self) -> str:
        said = subprocess.run(
            [sys.executable, *self.TWISTD, "mqttd", "--version"],
            capture_output=True, text=True, timeout=READY, env=self.environment(),
        )  # fmt: skip
        if said.returncode or not said.stdout.startswith("mqttd "):
            raise StartError(f"mqttd does not run here:\n{said.stderr.strip()[-2000:]}")
        return f"{said.stdout.strip()}, Twisted {metadata.version('twisted')}"


class Mosquitto(Broker):
    """mosquitto of the Debian package."""

    name = "mosquitto"

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {
            "mosquitto.conf": f"listener {port} 127.0.0.1\n"
            "allow_anonymous true\n"
            "persistence false\n"
            "max_queued_messages 0\n"
            "max_inflight_messages 65535\n"
            "set_tcp_nodelay true\n"
            "log_type error\n"
        }

    def command(self, directory: Path, port: int) -> list[str]:
        return [_program("mosquitto", "apt install mosquitto"), "-c",
                str(directory / "mosquitto.conf")]  # fmt: skip

    def version(self) -> str:
        said = _said([_program("mosquitto", "apt install mosquitto"), "-h"])
        return said.split("\n")[0].replace(" version", "")


class FlashMQ(Broker):
    """FlashMQ, one thread."""

    name = "flashmq"

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {
            "flashmq.conf": "thread_count 1\n"
            "allow_anonymous true\n"
            "max_qos_msg_pending_per_client 65535\n"
            "client_max_write_buffer_size 67108864\n"
            "quiet true\n"
            "listen {\n"
            "  protocol mqtt\n"
            "  inet_protocol ip4\n"
            "  inet4_bind_address 127.0.0.1\n"
            f"  port {port}\n"
            "  tcp_nodelay true\n"
            "}\n"
        }

    def command(self, directory: Path, port: int) -> list[str]:
        return [_program("flashmq", "build it from its sources"), "--config-file",
                str(directory / "flashmq.conf")]  # fmt: skip

    def version(self) -> str:
        said = _said([_program("flashmq", "build it from its sources"), "--version"])
        return said.split("\n")[0]


class Aedes(Broker):
    """aedes on Node, storage in memory; found where `node` finds it from here, or in $AEDES."""

    name = "aedes"
    cuts = dict.fromkeys(("fanout-qos0", "fanout-qos0-1k", "fanout-qos1"), ("--window", "16"))

    SERVER = """\
import { createServer } from 'node:net'
import { pathToFileURL } from 'node:url'
import { createRequire } from 'node:module'
const from = createRequire(process.argv[3] + '/')
const { Aedes } = await import(pathToFileURL(from.resolve('aedes')))
const broker = await Aedes.createBroker()
createServer({ noDelay: true }, broker.handle).listen(Number(process.argv[2]), '127.0.0.1')
"""

    def __init__(self) -> None:
        self.home = os.environ.get("AEDES", os.getcwd())

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {"server.mjs": self.SERVER}

    def command(self, directory: Path, port: int) -> list[str]:
        return [_program("node", "apt install nodejs"), str(directory / "server.mjs"), str(port),
                self.home]  # fmt: skip

    def version(self) -> str:
        node = _program("node", "apt install nodejs")
        code = (  # newer ones do not export their package.json
            "const path = require('path'), home = path.dirname(require.resolve('aedes'));"
            "console.log(require(path.join(home, 'package.json')).version, process.version)"
        )
        try:
            said = _said([node, "-e", code], self.home)
        except subprocess.CalledProcessError:
            hint = "npm install aedes; $AEDES names the directory"
            raise StartError(f"no aedes in {self.home}: {hint}") from None
        version, _, on = said.strip().partition(" ")
        return f"aedes {version}, Node {on}"


class Amqtt(Broker):
    """amqtt, on the interpreter that $AMQTT names or that its `amqtt` command belongs to."""

    name = "amqtt"
    _short = ("--window", "16")
    _few = ("--window", "2")
    cuts = {
        **dict.fromkeys(("p2p-qos0", "p2p-qos0-1k", "p2p-qos1", "p2p-qos2", "fanin-qos0",
                         "fanin-qos1", "batch1-qos0", "batch1-qos1"), _short),
        **dict.fromkeys(("fanout-qos0", "fanout-qos0-1k", "fanout-qos1"), _few),
        "wildcard": (*_short, "--filters", "2000"),
        "trickle": ("--rate", "500"),
        "idle": ("--conns", "5000"),
        "idle-sub": ("--conns", "5000"),
        "connstorm": ("--conns", "2000"),
        "retained": ("--count", "5000"),
    }  # fmt: skip

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {
            "amqtt.yaml": "listeners:\n"
            "  default:\n"
            "    type: tcp\n"
            f"    bind: 127.0.0.1:{port}\n"
            "plugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
            "    allow_anonymous: true\n"
        }

    def command(self, directory: Path, port: int) -> list[str]:
        return [self._amqtt(), "-c", str(directory / "amqtt.yaml")]

    def version(self) -> str:
        return f"amqtt {_said([self._amqtt(), '--version']).strip()}"

    def _amqtt(self) -> str:
        return os.environ.get("AMQTT") or _program("amqtt", "pip install amqtt")


BROKERS: Final[Mapping[str, type[Broker]]] = {
    broker.name: broker for broker in (Mqttd, Mosquitto, FlashMQ, Aedes, Amqtt)
}


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


def _program(name: str, hint: str) -> str:
    # Debian keeps servers in /usr/sbin, which is not on everybody's path.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise StartError(f"{name} is not installed: {hint}")
    return found


def _said(command: list[str], directory: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY, cwd=directory)
    if done.returncode and not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout
