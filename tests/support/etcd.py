"""etcd for tests: members on free ports of this machine, killed and started again."""

from __future__ import annotations

import json
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import servers

__all__ = ["Etcd", "start_etcd"]


@dataclass
class Etcd:
    """The members of one etcd, and where clients reach them."""

    members: list[servers.Server]
    #: How a test speaks TLS with them; None: they speak plain HTTP.
    tls: ssl.SSLContext | None = None

    @property
    def endpoints(self) -> list[str]:
        return [f"{_scheme(self.tls)}://127.0.0.1:{member.port}" for member in self.members]

    def start(self, *numbers: int) -> None:
        """Start those that were stopped (all, without numbers) and wait until they answer."""
        chosen = [self.members[number] for number in numbers] or self.members
        for member in chosen:
            member.process = servers._run(member.folder, member.command, member.options)
        for member in chosen:
            servers._wait(member, lambda port=member.port: _healthy(port, self.tls))

    def stop(self, *numbers: int) -> None:
        """Kill these (all, without numbers)."""
        for member in [self.members[number] for number in numbers] or self.members:
            member.stop()

    def ask(
        self, path: str, body: dict[str, Any], number: int = 0, token: str = ""
    ) -> dict[str, Any]:
        """One request of the JSON that a member speaks."""
        request = urllib.request.Request(self.endpoints[number] + path, json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=10, context=self.tls) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def put(self, key: str | bytes, value: bytes, token: str = "") -> int:
        """Write a key; the revision."""
        said = {"key": _text(key), "value": b64encode(value).decode()}
        return int(self.ask("/v3/kv/put", said, token=token)["header"]["revision"])

    def remove(self, key: str | bytes) -> None:
        """A key is gone."""
        self.ask("/v3/kv/deleterange", {"key": _text(key)})

    def log_in(self, user: str, password: str) -> str:
        """A token of this user."""
        asked = {"name": user, "password": password}
        return str(self.ask("/v3/auth/authenticate", asked)["token"])

    def want_users(self, root: str, user: str, password: str, prefix: str) -> None:
        """Ask who comes for a password from now on; `user` may do all below `prefix`."""
        start, end = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
        may = {
            "permType": "READWRITE",
            "key": b64encode(start).decode(),
            "range_end": b64encode(end).decode(),
        }
        for path, body in (
            ("role/add", {"name": "root"}),
            ("role/add", {"name": "mqttd"}),
            ("role/grant", {"name": "mqttd", "perm": may}),
            ("user/add", {"name": "root", "password": root}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": user, "password": password}),
            ("user/grant", {"user": user, "role": "mqttd"}),
            ("enable", {}),
        ):
            self.ask(f"/v3/auth/{path}", body)


def _text(key: str | bytes) -> str:
    return b64encode(key if isinstance(key, bytes) else key.encode()).decode()


def _scheme(tls: ssl.SSLContext | None) -> str:
    return "http" if tls is None else "https"


def _healthy(port: int, tls: ssl.SSLContext | None) -> None:
    url = f"{_scheme(tls)}://127.0.0.1:{port}/health"
    with urllib.request.urlopen(url, timeout=5, context=tls) as answer:
        assert json.load(answer)["health"] == "true"


def start_etcd(
    folder: Path, count: int = 1, certificates: Path | None = None, more: Sequence[str] = ()
) -> Etcd:
    """An etcd of so many members, with election time-outs of a quarter of a second.

    more: options of its command line.
    certificates: a folder with ca.crt, etcd.crt and etcd.key, which its members show, and
    client.crt and client.key for the test: who comes without one of that authority is not heard.
    """
    program = servers.program("etcd", "etcd-server")
    tls = None
    files: list[str] = []
    if certificates is not None:
        tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        tls.load_cert_chain(certificates / "client.crt", certificates / "client.key")
        files = [
            "--cert-file", str(certificates / "etcd.crt"),
            "--key-file", str(certificates / "etcd.key"),
            "--trusted-ca-file", str(certificates / "ca.crt"), "--client-cert-auth",
        ]  # fmt: skip
    ports = [(servers.free_port(), servers.free_port()) for _ in range(count)]
    names = [f"e{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports)]
    members = []
    for n, (port, peer) in enumerate(ports):
        home = folder / f"etcd-{n}"
        home.mkdir(parents=True)
        client, other = f"{_scheme(tls)}://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        command = [
            program, "--name", f"e{n}", "--data-dir", str(home / "data"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", ",".join(names), "--initial-cluster-token", folder.name,
            "--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error",
            *files, *more,
        ]  # fmt: skip
        members.append((home, port, command))
    etcd = Etcd([servers.Server("etcd", port, None, home, command, {})  # type: ignore[arg-type]
                 for home, port, command in members], tls)  # fmt: skip
    etcd.start()
    return etcd
