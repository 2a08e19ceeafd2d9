"""NATS servers with JetStream for tests: on free ports of this machine, killed, started again."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import servers
from tests.support.waiting import until

__all__ = ["NatsServers", "start_nats"]

_CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor}"
jetstream {{ store_dir: "{store}" }}
{more}
"""
_CLUSTER = """\
cluster {{ name: test, listen: "127.0.0.1:{inner}", routes: [{routes}] }}
"""


_ATTEMPTS = 3


@dataclass
class NatsServers:
    """Some servers that keep streams together, and where they tell of themselves."""

    members: list[servers.Server]
    monitors: list[int]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{member.port}" for member in self.members]

    def start(self, *numbers: int) -> None:
        """Start those that were stopped (all, without numbers) and wait until they serve."""
        chosen = numbers or tuple(range(len(self.members)))
        for number in chosen:
            member = self.members[number]
            member.process = servers._run(member.folder, member.command, member.options)

        def serve() -> bool:
            for member in [self.members[number] for number in chosen]:
                if member.process.poll() is not None:
                    raise RuntimeError(f"{member.command} has ended\n{member.log()}")
            return self._serves()

        until(serve, "that JetStream has a leader", servers.DEADLINE)

    def stop(self, *numbers: int) -> None:
        """Kill these (all, without numbers)."""
        for member in [self.members[number] for number in numbers] or self.members:
            member.stop()

    def asked(self, number: int, path: str) -> dict[str, Any]:
        """What a server says of itself."""
        url = f"http://127.0.0.1:{self.monitors[number]}/{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _serves(self) -> bool:
        try:
            for number, member in enumerate(self.members):
                if member.process.poll() is None and len(self.members) > 1:
                    group = self.asked(number, "jsz").get("meta_cluster") or {}
                    if not group.get("leader") or group.get("cluster_size") != len(self.members):
                        return False
                elif member.process.poll() is None:
                    self.asked(number, "jsz")
        except OSError:
            return False
        return True

    def leader(self, stream: str) -> int:
        """The server that leads a stream whose name begins so."""
        for number, member in enumerate(self.members):
            if member.process.poll() is not None:
                continue
            found = self.asked(number, "jsz?streams=true&accounts=true&config=true")
            for account in found.get("account_details", ()):
                for each in account.get("stream_detail", ()):
                    leads = each.get("cluster", {}).get("leader")
                    if each["name"].startswith(stream) and leads:
                        return int(str(leads).removeprefix("n"))
        return 0


def start_nats(folder: Path, count: int = 1, more: str = "") -> NatsServers:
    """So many servers; `more` stands in the configuration of each.

    Somebody may take a port before they do: then again, with others.
    """
    for attempt in range(_ATTEMPTS):
        made = _prepared(folder / f"{attempt}", count, more)
        try:
            made.start()
            return made
        except BaseException as error:
            made.stop()
            if not isinstance(error, RuntimeError) or attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError


def _prepared(folder: Path, count: int, more: str) -> NatsServers:
    """Those servers, not started yet."""
    program = servers.program("nats-server", "nats-server")
    ports = servers.free_ports(3 * count)
    routes = ", ".join(f'"nats://127.0.0.1:{ports[3 * n + 2]}"' for n in range(count))
    members = []
    for n in range(count):
        home = folder / f"nats-{n}"
        home.mkdir(parents=True)
        port, monitor, inner = ports[3 * n : 3 * n + 3]
        text = _CONFIG.format(
            name=f"n{n}", port=port, monitor=monitor, store=home / "store", more=more
        )
        if count > 1:
            text += _CLUSTER.format(inner=inner, routes=routes)
        (home / "nats.conf").write_text(text)
        command = [program, "-c", str(home / "nats.conf")]
        members.append(servers.Server("nats", port, None, home, command, {}))  # type: ignore[arg-type]
    return NatsServers(members, [ports[3 * n + 1] for n in range(count)])
