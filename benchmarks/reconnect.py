"""A storm of clients that come back: python -m benchmarks.reconnect

    start --> storm (each password is verified) --> storm again (remembered)
          --> restart --> storm (verified again)

So many clients of the module `username`, each a user, connect at once from one address with the
sessions that they had; a storm is over when the last has its CONNACK. Whoever is refused as busy
or loses the connection comes again after a second. No part is pinned to a core: what the broker and
its threads may have is what the machine has.

Exit status 0 if each storm was through in `--within` seconds, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.conf import ALLOW_ALL, conf
from benchmarks.hostile.wire import connect
from mqttd.secrets.passwords import Cost, hash_password

__all__ = ["main"]

_PASSWORD: Final = b"correct horse"
_TABLES: Final = """\
[auth]
chain = ["username"]

[auth.username]
file = "users.conf"

[store]
kind = "sqlite"
"""


class Broker:
    """mqttd with so many users, in a directory of its own; `start` after `stop` is a restart."""

    def __init__(self, directory: Path, users: int, cost: Cost) -> None:
        self.directory = directory
        hashed = hash_password(_PASSWORD, cost)
        (directory / "mqttd.conf").write_text(conf(_TABLES), "utf-8")
        (directory / "acl.conf").write_text(ALLOW_ALL, "utf-8")
        names = directory / "users.conf"
        names.write_text("".join(f"u{n}:{hashed}\n" for n in range(users)), "utf-8")
        names.chmod(0o600)
        self.port = 0

    def start(self) -> None:
        """Returns when it listens."""
        self.log = (self.directory / "log").open("w+b")
        twistd = Path(sys.executable).with_name("twistd")
        command = [sys.executable, str(twistd), "--nodaemon", "--pidfile=", "mqttd", "--config"]
        self.process = subprocess.Popen(
            [*command, str(self.directory / "mqttd.conf")],
            cwd=self.directory, stdout=self.log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            told = (self.directory / "log").read_text("utf-8", "replace")
            found = re.search(r"127\.0\.0\.1:(\d+)", told)
            if found and int(found[1]):
                self.port = int(found[1])
                return
            time.sleep(0.05)
        raise SystemExit((self.directory / "log").read_text("utf-8", "replace"))

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


async def come_back(port: int, number: int, again: list[int]) -> asyncio.StreamWriter:
    """One client, until it is let in."""
    said = connect(b"c%d" % number, 3600, user=b"u%d" % number, password=_PASSWORD)
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            head = await reader.readexactly(4)
        except OSError:
            head = b""
        except asyncio.IncompleteReadError:
            head = b""
        if head and head[3] == 0:
            return writer
        again.append(head[3] if head else 0)
        await asyncio.sleep(1)


async def storm(port: int, clients: int) -> tuple[float, list[int]]:
    """Seconds until the last is in, and with which codes some had to come again."""
    again: list[int] = []
    began = time.monotonic()
    writers = await asyncio.gather(*(come_back(port, n, again) for n in range(clients)))
    took = time.monotonic() - began
    for writer in writers:
        writer.close()
    await asyncio.sleep(1)
    return took, again


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.reconnect", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--clients", type=int, default=1000, metavar="N")
    parser.add_argument("--within", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--memory", type=int, default=Cost().memory, metavar="KIB")
    parser.add_argument("--passes", type=int, default=Cost().passes)
    options = parser.parse_args(arguments)
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        cost = Cost(options.memory, options.passes)
        broker = Broker(Path(folder), options.clients, cost)
        broker.start()
        try:
            for name in ("first", "again", "after a restart"):
                if name == "after a restart":
                    broker.stop()
                    broker.start()
                took, again = asyncio.run(storm(broker.port, options.clients))
                codes = {code: again.count(code) for code in sorted(set(again))}
                rate = options.clients / took
                print(
                    f"{name:16} {options.clients} clients in {took:6.2f} s, {rate:7.0f} a second,"
                    f" came again: {codes or 'nobody'}; {os.cpu_count()} cores",
                    flush=True,
                )
                late += took > options.within
        finally:
            broker.stop()
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
