"""The brokers that are attacked: as they are shipped, but for the memory budget of ours."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from benchmarks.brokers import Checkout, Mosquitto, Mqttd, Running, free_port
from benchmarks.conf import conf
from benchmarks.hostile import unread_log
from benchmarks.hostile.proxy_headers import header_for
from benchmarks.hostile.rows import Needs
from benchmarks.setting import PASSWORD, USER, certificates

__all__ = ["Attacked", "AttackedCheckout", "AttackedPeer", "honest_arguments"]

#: Who is asked by a port that no client uses.
_HTTP: Final = """
[admin.tcp]
bind = "127.0.0.1:PORT"
token_file = "tokens"
certificate = "server.crt"
private_key = "server.key"
"""
_USERS: Final = '\n[auth]\nchain = ["username"]\n\n[auth.username]\nfile = "users.conf"\n'


class Attacked(Mqttd):
    """mqttd with its own limits, and a memory budget."""

    CONFIG = conf('[memory]\nbudget = "BUDGETMiB"\n')
    needs: Needs = ""
    #: MiB
    budget: int = 512
    #: "engine" or "twisted".
    transport: str = "engine"
    #: Of the HTTP interface, where a row needs it.
    http: int = 0

    def for_row(self, needs: Needs, budget: int) -> Attacked:
        """Configured for one row."""
        self.needs, self.budget = needs, budget
        return self

    def configuration(self, port: int | str) -> Mapping[str, str]:
        conf = self.CONFIG.replace("BUDGET", str(self.budget))
        files = {"acl.conf": self.ACL}
        if self.needs == "tls":
            pair = 'certificate = "server.crt"\nprivate_key = "server.key"\n'
            conf = conf.replace("listener.tcp", "listener.ssl")
            conf = conf.replace('transport = "engine"\n', f'transport = "engine"\n{pair}')
            files |= certificates()
        if self.needs == "proxy":
            conf = conf.replace('"engine"\n', '"engine"\nproxy_protocol = ["127.0.0.0/8"]\n')
        if self.needs == "http":
            self.http = free_port()
            conf += _HTTP.replace("PORT", str(self.http))
            files |= {"tokens": f"{token_hex(32)}\n", **certificates()}
        conf = conf.replace('"engine"', f'"{self.transport}"')
        if self.needs in ("users", "unread log"):
            conf += _USERS
            files["users.conf"] = _user()
        return {**files, "mqttd.conf": conf}

    def attacked(self, running: Running) -> int:
        """The port that an attack is for."""
        return self.http if self.needs == "http" else running.port

    def command(self, directory: Path, port: int) -> list[str]:
        command = super().command(directory, port)
        if self.needs == "unread log":
            return [sys.executable, unread_log.__file__, *command]
        return command


class AttackedCheckout(Attacked, Checkout):
    """The same of another checkout."""


class AttackedPeer(Mosquitto):
    """mosquitto as it comes, which has no budget."""

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {"mosquitto.conf": f"listener {port} 127.0.0.1\nallow_anonymous true\n"
                "log_type error\n"}  # fmt: skip


def honest_arguments(needs: Needs) -> dict[str, Any]:
    """What an honest client has to say and do at such a broker."""
    if needs == "tls":
        return {"wrap": _greeting()}
    if needs == "proxy":
        return {"wrap": _proxied}
    if needs in ("users", "unread log"):
        return {"user": USER.encode(), "password": PASSWORD.encode()}
    return {}


def _proxied(sock: Any) -> Any:
    sock.sendall(header_for("127.0.0.9"))
    return sock


def _greeting() -> Callable[[Any], Any]:
    context = ssl.create_default_context(cadata=certificates()["ca.crt"])
    return lambda sock: context.wrap_socket(sock, server_hostname="localhost")


def _user() -> str:
    # A hash as `mqttd-ctl users add` makes it, with what verifying it costs.
    from mqttd.secrets.passwords import hash_password

    return f"{USER}:{hash_password(PASSWORD)}\n"
