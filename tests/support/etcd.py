"""etcd for tests: members on free ports of this machine, killed and started again."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import servers

__all__ = ["Etcd", "start_etcd"]


@dataclass
class Etcd:
    """The members of one etcd, and where clients reach them."""

    members: list[servers.Server]

    @property
    def endpoints(self) -> list[str]:
        return [f"http://127.0.0.1:{member.port}" for member in self.members]

    def start(self, *numbers: int) -> None:
        """Start those that were stopped (all, without numbers) and wait until they answer."""
        chosen = [self.members[number] for number in numbers] or self.members
        for member in chosen:
            member.process = servers._run(member.folder, member.command, member.options)
        for member in chosen:
            servers._wait(member, lambda port=member.port: _healthy(port))

    def stop(self, *numbers: int) -> None:
        """Kill these (all, without numbers)."""
        for member in [self.members[number] for number in numbers] or self.members:
            member.stop()

    def ask(self, path: str, body: dict[str, Any], number: int = 0) -> dict[str, Any]:
        """One request of the JSON that a member speaks."""
        data = json.dumps(body).encode()
        with urllib.request.urlopen(self.endpoints[number] + path, data, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def _healthy(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        assert json.load(answer)["health"] == "true"


def start_etcd(folder: Path, count: int = 1) -> Etcd:
    """An etcd of so many members, with election time-outs of a quarter of a second."""
    program = servers.program("etcd", "etcd-server")
    ports = [(servers.free_port(), servers.free_port()) for _ in range(count)]
    names = [f"e{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports)]
    members = []
    for n, (port, peer) in enumerate(ports):
        home = folder / f"etcd-{n}"
        home.mkdir(parents=True)
        client, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        command = [
            program, "--name", f"e{n}", "--data-dir", str(home / "data"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", ",".join(names), "--initial-cluster-token", folder.name,
            "--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error",
        ]  # fmt: skip
        members.append((home, port, command))
    etcd = Etcd([servers.Server("etcd", port, None, home, command, {})  # type: ignore[arg-type]
                 for home, port, command in members])  # fmt: skip
    etcd.start()
    return etcd
