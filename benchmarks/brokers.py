"""The brokers that are measured: mqttd, here or from another checkout, mosquitto and FlashMQ.

    Mqttd             this checkout or the installed one, whichever the interpreter imports
    Checkout          mqttd of another checkout, with that one's own .venv
    Mosquitto         Debian's package
    FlashMQ           where it was built: --flashmq PATH, or on $PATH
    Aedes, Amqtt      see `benchmarks.others`

Each gets a window, queue and output limit so large that none of them decides a run, packets of
16 MiB, no-delay on its sockets, anonymous clients and no storage but where a row asks for it. The
configuration is printed with the results. How one is started is in `benchmarks.running`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.conf import conf
from benchmarks.others import Aedes, Amqtt
from benchmarks.peers import flashmq_noop, mosquitto_noop
from benchmarks.running import (
    READY,
    Broker,
    Running,
    StartError,
    free_port,
    program,
    raise_file_limit,
    said,
)
from benchmarks.setting import OWN, Door, certificates, password_line, rule_topics

__all__ = [
    "BROKERS",
    "Aedes",
    "Amqtt",
    "Broker",
    "Checkout",
    "FlashMQ",
    "Mosquitto",
    "Mqttd",
    "Running",
    "StartError",
    "free_port",
    "raise_file_limit",
]


class Mqttd(Broker):
    """The broker of the running interpreter, compiled or with `pure` its plain sources."""

    name = "mqttd"

    #: twistd of the same environment, without looking for a script.
    TWISTD = ("-c", "from twisted.scripts.twistd import run; run()")

    # The engine, the access rules, metrics and limits as they come: only what mosquitto's
    # configuration raises is raised here. mqttload connects from 127.0.0.1 to 127.0.0.8.
    CONFIG = conf("""\
[mqtt]
max_packet_size = "16MiB"

[session]
max_inflight = 65535

[mqueue]
max_length = 100_000_000
max_bytes = "1GiB"

[output]
high_watermark = "64MiB"
low_watermark = "16MiB"
backlog = "1GiB"
""")
    ACL = """\
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "127.0.0.0/8"}, pubsub, ["$SYS/#", "#"]}.
"""
    #: A plugin of the directory `plugins`, with one of two lives.
    PROBE = """\
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin
from zope.interface import implementer

probe = MqttdPlugin(
    name="probe", version="1.0", description="Is there.", factory="mqttd_plugins.probe:Probe"
)


@implementer(IPlugin)
class Probe:
    def load(self, handle, config):
        self.waiting = []
        START

    def publish(self, message):
        return None

    def hold(self, release, client_id):
        from twisted.internet import reactor

        if not self.waiting:
            reactor.callLater(0, self.go)
        self.waiting.append(release)

    def go(self):
        waiting, self.waiting = self.waiting, []
        for release in waiting:
            release()

    def unload(self):
        self.go()
"""
    START: ClassVar[Mapping[str, str]] = {
        "noop": 'handle.hook("message.publish", self.publish)',
        "held": "handle.hold_acknowledgements(self.hold)",
    }
    SPARK = 'events = ["message.publish"]\nretention_bytes = 1_000_000_000\n'
    LISTENERS: ClassVar[Mapping[Door, str]] = {"tcp": "tcp", "tls": "ssl", "ws": "ws"}
    READY_LINE = re.compile(
        r"mqttd ready: (?:tcp|ssl|ws)\b[^;]*?127\.0\.0\.1:(\d+).*hot path (compiled|pure)"
    )

    #: It keeps sessions on disk unless told otherwise.
    stores = True

    def __init__(self, pure: bool = False, twistd: Sequence[str] = TWISTD) -> None:
        self.pure = pure
        self.twistd = twistd
        self.python = sys.executable
        if pure:
            self.name = "mqttd (pure)"

    def configuration(self, port: int | str) -> Mapping[str, str]:
        wanted = self.setting
        files = {"mqttd.conf": self.CONFIG, "acl.conf": self.ACL}
        conf = self.CONFIG
        if wanted.door != "tcp":
            kind = self.LISTENERS[wanted.door]
            conf = conf.replace("[listener.tcp.default]", f"[listener.{kind}.default]")
        if wanted.door == "tls":
            tls = 'certificate = "server.crt"\nprivate_key = "server.key"\n'
            conf = conf.replace('transport = "engine"\n', f'transport = "engine"\n{tls}')
            files |= certificates()
        if wanted.rules:
            conf += '\n[auth]\nchain = ["username"]\n\n[auth.username]\nfile = "users.conf"\n'
            files["users.conf"] = password_line()
            files["acl.conf"] = "".join(
                f'{{allow, {{user, "bench"}}, pubsub, ["{topic}"]}}.\n'
                for topic in rule_topics(wanted.rules)
            )
        if wanted.own:
            files["acl.conf"] = (
                f'{{allow, all, publish, ["{OWN}/#"]}}.\n{{allow, all, subscribe, ["#"]}}.\n'
            )
        if wanted.workers > 1:
            conf = conf.replace("[node]\n", f"[node]\nworkers = {wanted.workers}\n")
        if not wanted.gather:
            conf = conf.replace("[output]\n", "[output]\ngather = 0\n")
        if wanted.store:
            conf += f'\n[store]\nkind = "sqlite"\n\n[durability]\ndefault = "{wanted.store}"\n'
        elif self.stores:
            conf += '\n[store]\nkind = "memory"\n'
        if wanted.plugin == "spark":
            conf += '\n[plugins]\nload = ["spark"]\n'
            files["plugins/spark.conf"] = self.SPARK
        elif wanted.plugin:
            conf += '\n[plugins]\nload = ["probe"]\n'
            files["plugins/probe.py"] = self.PROBE.replace("START", self.START[wanted.plugin])
        return {**files, "mqttd.conf": conf}

    def command(self, directory: Path, port: int) -> list[str]:
        return [
            self.python, *self.twistd, "--nodaemon", "--pidfile=", "mqttd",
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
        told = subprocess.run(
            [self.python, *self.TWISTD, "mqttd", "--version"], cwd=self.cwd,
            capture_output=True, text=True, timeout=READY, env=self.environment(),
        )  # fmt: skip
        if told.returncode or not told.stdout.startswith("mqttd "):
            raise StartError(f"{self.name} does not run here:\n{told.stderr.strip()[-2000:]}")
        return f"{told.stdout.strip()}, Twisted {metadata.version('twisted')}"


class Checkout(Mqttd):
    """mqttd of another checkout, `name` in the results; it brings its own .venv and is compiled
    there, or not.
    """

    def __init__(self, name: str, path: Path) -> None:
        super().__init__()
        self.name = name
        self.cwd = path.resolve()
        self.stores = (self.cwd / "mqttd/storage").is_dir()
        self.python = str(self.cwd / ".venv/bin/python")
        #: Its twistd; from its root, since twistd looks for modules there first.
        self.twistd = (str(self.cwd / ".venv/bin/twistd"),)
        for file in (self.python, *self.twistd):
            if not os.access(file, os.X_OK):
                raise StartError(f"{name}: no {file}: make the checkout's .venv first")

    def version(self) -> str:
        told = super().version().partition(", Twisted")[0]
        try:
            commit = said(["git", "-C", str(self.cwd), "rev-parse", "--short=9", "HEAD"]).strip()
        except (OSError, subprocess.SubprocessError):
            commit = ""
        return f"{self.name}: {told}" + (f", commit {commit}" if commit else "")


class Mosquitto(Broker):
    """mosquitto of the Debian package."""

    name = "mosquitto"

    def configuration(self, port: int | str) -> Mapping[str, str]:
        wanted = self.setting
        text = f"listener {port} 127.0.0.1\n"
        files: dict[str, str] = {}
        if wanted.door == "ws":
            # It does not start without another listener, and wants an interface, no address.
            text = f"listener {free_port()} 127.0.0.1\nlistener {port} lo\nprotocol websockets\n"
        if wanted.door == "tls":
            text += "cafile CWD/ca.crt\ncertfile CWD/server.crt\nkeyfile CWD/server.key\n"
            files |= certificates()
        if wanted.rules:
            text += "allow_anonymous false\npassword_file CWD/passwd\nacl_file CWD/acl\n"
            files |= mosquitto_rules(wanted.rules)
        else:
            text += "allow_anonymous true\n"
        if wanted.own:
            text += "acl_file CWD/acl\n"
            files["acl"] = OWN_RULES
        if wanted.store:
            text += "persistence true\npersistence_location CWD/\n"
        else:
            text += "persistence false\n"
        noop = mosquitto_noop() if wanted.plugin == "noop" else None
        if noop is not None:
            text += f"plugin {noop}\n"
        if (files or wanted.store) and os.geteuid() == 0:
            text += "user root\n"  # else it drops its rights and cannot use the run's directory
        return {
            "mosquitto.conf": text + "max_queued_messages 0\n"
            "max_inflight_messages 65535\n"
            "set_tcp_nodelay true\n"
            "log_type error\n",
            **files,
        }

    def command(self, directory: Path, port: int) -> list[str]:
        return [program("mosquitto", "apt install mosquitto"), "-c",
                str(directory / "mosquitto.conf")]  # fmt: skip

    def version(self) -> str:
        told = said([program("mosquitto", "apt install mosquitto"), "-h"])
        return told.split("\n")[0].replace(" version", "") + _hooked(mosquitto_noop())


class FlashMQ(Broker):
    """FlashMQ, one thread."""

    name = "flashmq"

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def configuration(self, port: int | str) -> Mapping[str, str]:
        wanted = self.setting
        files: dict[str, str] = {}
        text = (
            "thread_count 1\n"
            "max_qos_msg_pending_per_client 65535\n"
            "max_qos_bytes_pending_per_client 1073741824\n"
            "client_max_write_buffer_size 67108864\n"
            "retained_messages_delivery_limit 100000000\n"
            "max_packet_size 16777216\n"
            "log_level error\n"
            "log_file CWD/flashmq.log\n"
        )
        if wanted.rules:
            text += "allow_anonymous false\n"
            text += "mosquitto_password_file CWD/passwd\nmosquitto_acl_file CWD/acl\n"
            files |= mosquitto_rules(wanted.rules)
        else:
            text += "allow_anonymous true\n"
        if wanted.own:
            text += "mosquitto_acl_file CWD/acl\n"
            files["acl"] = OWN_RULES
        noop = flashmq_noop(self.path) if wanted.plugin == "noop" else None
        if noop is not None:
            text += f"plugin {noop}\n"
        text += (
            "listen {\n"
            f"  protocol {'websockets' if wanted.door == 'ws' else 'mqtt'}\n"
            "  inet_protocol ip4\n"
            "  inet4_bind_address 127.0.0.1\n"
            f"  port {port}\n"
        )
        if wanted.door == "tls":
            text += "  fullchain CWD/server.crt\n  privkey CWD/server.key\n"
            files |= certificates()
        return {"flashmq.conf": text + "  tcp_nodelay true\n}\n", **files}

    def command(self, directory: Path, port: int) -> list[str]:
        return [self._program(), "--config-file", str(directory / "flashmq.conf")]

    def version(self) -> str:
        told = said([self._program(), "--version"]).split("\n")[0]
        return told + _hooked(flashmq_noop(self.path))

    def _program(self) -> str:
        if self.path is None:
            return program("flashmq", "build it from its sources, and name it with --flashmq")
        if not os.access(self.path, os.X_OK):
            raise StartError(f"no FlashMQ at {self.path}")
        return str(self.path.resolve())


def _hooked(plugin: Path | None) -> str:
    """What a version says of the rows with a hook."""
    return "" if plugin is None else ", a no-op plugin where a row has a hook"


#: What a client without a user name may do where a rule names it, as mosquitto's file.
OWN_RULES: Final = f"topic read #\npattern write {OWN}/#\n"


def mosquitto_rules(count: int) -> dict[str, str]:
    """The user and the rules as mosquitto's files."""
    lines = [f"topic readwrite {topic}" for topic in rule_topics(count)]
    return {"passwd": password_line(), "acl": "\n".join(["user bench", *lines, ""])}


BROKERS: Final[Mapping[str, type[Broker]]] = {
    broker.name: broker for broker in (Mqttd, Mosquitto, FlashMQ, Aedes, Amqtt)
}
