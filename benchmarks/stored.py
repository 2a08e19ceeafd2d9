"""What the store costs beside the rows of the table: python -m benchmarks.stored WHAT [...]

    lag       PUBACK and the loop's own delay at 1,000, 10,000 and 50,000 stored/s, without a store,
              with `os` and `fsync`, and where each fdatasync takes 100 ms longer
    recover   a restart over 1,000,000 messages in 10,000 sessions: seconds, bytes of memory each
    running   memory of what is queued while the broker runs, payloads on disk
    away      --messages (10,000,000) of which one session in a hundred gets none for a fifth of
              them: what the file has beyond what lives, the writer's CPU for each
    backup    PUBACK while 200 MB are copied by `mqttd-ctl backup`, beside before and after

One line of JSON a figure. The load has core 1 where there are two, the broker those of `--cores`;
`--neighbour` has a process spin beside them. mqttload is built as `python -m benchmarks` builds it,
or named: --mqttload PATH. What a store costs beside others: `benchmarks.stored_beside`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Mqttd, raise_file_limit
from benchmarks.running import Running
from benchmarks.setting import Setting, Store
from mqttd import compiled
from mqttd.storage.database import OPEN_SESSION, SUBSCRIBE, connect
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.writer import write
from tests.faults.disk import Disk
from tests.support import packets as mq
from tests.support.client import RawClient

__all__ = ["Echo", "Stored", "Taker", "load", "main", "make", "spread", "tell"]

RATES: Final = (1_000, 10_000, 50_000)


class Stored(Mqttd):
    """mqttd with more lines in its configuration, and on a disk that may be slow."""

    def __init__(self, more: str = "", disk: Disk | None = None) -> None:
        super().__init__()
        self.more = more
        self.disk = disk

    def configuration(self, port: int | str) -> Mapping[str, str]:
        """See `Broker`."""
        files = dict(super().configuration(port))
        files["mqttd.conf"] += self.more
        return files

    def environment(self) -> dict[str, str]:
        """See `Broker`."""
        more = {} if self.disk is None else self.disk.environment
        return {**super().environment(), **more}


class Echo(threading.Thread):
    """Asks the broker for an answer some 400 times a second: how long its loop lets one wait.

    Before others, where that is allowed: the machine's load is not what is asked for.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(mq.connect("echo", mq.V311))
        self._socket.recv(4)
        #: When each was asked for, and how many ms it took.
        self.waited: list[tuple[float, float]] = []
        self.stopping = False

    def run(self) -> None:
        """Until `stopping`."""
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not self.stopping:
            began = time.perf_counter()
            self._socket.sendall(b"\xc0\x00")
            self._socket.recv(2)
            self.waited.append((began, (time.perf_counter() - began) * 1000))
            time.sleep(0.0025)
        self._socket.close()

    def end(self) -> list[tuple[float, float]]:
        """What it has seen."""
        self.stopping = True
        self.join()
        return self.waited

    def stop(self) -> dict[str, float]:
        """What it has seen, in ms."""
        return spread([ms for _, ms in self.end()])


def spread(values: list[float]) -> dict[str, float]:
    """The middle, the 99th percentile and the largest."""
    values = sorted(values) or [0.0]
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(values[int(share * (len(values) - 1))], 2) for name, share in at.items()}


def tell(**fields: Any) -> None:
    """One line."""
    print(json.dumps(fields), flush=True)


def load(tool: Path, running: Running, *arguments: str) -> dict[str, Any]:
    """What mqttload says of a run."""
    command = [str(tool), "--port", str(running.port), "--pid", str(running.pid), "--json"]
    if (os.cpu_count() or 1) > 1:
        command = ["taskset", "-c", "1", *command]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def lag(tool: Path, seconds: float, rates: list[int], cores: list[int], busy: bool) -> None:
    """See the module."""
    spin = [sys.executable, "-c", "while True: pass"]
    neighbour = subprocess.Popen(spin) if busy else None
    try:
        _lag(tool, seconds, rates, cores)
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


def _lag(tool: Path, seconds: float, rates: list[int], cores: list[int]) -> None:
    kinds: list[tuple[str, Store, int]] = [
        ("none", "", 0), ("os", "os", 0), ("fsync", "fsync", 0), ("os, slow disk", "os", 100),
        ("fsync, slow disk", "fsync", 100),
    ]  # fmt: skip
    for rate in rates:
        for name, store, slow in kinds:
            with tempfile.TemporaryDirectory() as folder:
                disk = Disk(Path(folder)) if slow else None
                if disk is not None:
                    disk.slow(slow)
                broker = Stored(disk=disk).under(Setting(store=store))
                with broker.start(Path(folder), cores) as running:
                    echo = Echo(running.port)
                    echo.start()
                    count = max(1, int(rate * seconds / 100))
                    began = time.perf_counter()
                    said = load(
                        tool, running, "--scenario", "offline", "--pubs", "10", "--subs", "100",
                        "--qos", "1", "--count", str(count), "--rate", str(rate),
                        "--inflight", "65535",
                    )  # fmt: skip
                    # While messages are stored: what follows has to do with draining them.
                    began += said["open_s"] + 0.4
                    waited = [ms for at, ms in echo.end() if 0 < at - began < said["store_s"]]
                    took = said["broker"]
                    tell(what="lag", store=name, rate=rate, stored_per_s=said["in_per_s"],
                         ok=said["ok"], cpu_us=took["cpu_s_per_m_in"],
                         loop_us=round(took["first_thread_cpu_s"] / said["sent"] * 1e6, 2),
                         ack_us=said["ack_us"], loop_ms=spread(waited))  # fmt: skip


def make(path: Path, sessions: int, messages: int) -> int:
    """A store with so much in it; returns bytes of payload."""
    base = connect(str(path))
    ledger = Ledger()
    for owner in range(1, sessions + 1):
        ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 1_000_000))
        ledger.row(SUBSCRIBE, (owner, f"t/{owner}", 1, 0))
    size = 0
    for number in range(messages):
        owner = number % sessions + 1
        wire = mq.publish(f"t/{owner}", b"%08d" % number + bytes(92), 1, 1)
        size += len(wire)
        ledger.note(owner, MESSAGE3, 0, wire)
        if number % 1000 == 999:
            group = ledger.close()
            assert group is not None
            write(base, group)
    group = ledger.close()
    if group is not None:
        write(base, group)
    base.close()
    return size


def rss(pid: int, key: str = "VmRSS") -> int:
    """Bytes that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024


def recover(messages: int, sessions: int) -> None:
    """See the module."""
    found = {}
    for count in (0, messages):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            data.mkdir(mode=0o700)
            make(data / "store.db", sessions, count)
            began = time.monotonic()
            with Stored().under(Setting(store="os")).start(Path(folder), 0) as running:
                seconds = time.monotonic() - began
                time.sleep(2)
                found[count] = (rss(running.pid), rss(running.pid, "VmHWM"), seconds)
    empty, full = found[0], found[messages]
    tell(what="recover", messages=messages, sessions=sessions, seconds=round(full[2], 2),
         seconds_of_empty_sessions=round(empty[2], 2),
         bytes_each=round((full[0] - empty[0]) / messages, 1),
         bytes_each_at_most=round((full[1] - empty[1]) / messages, 1))  # fmt: skip


def running_memory(tool: Path, messages: int, sessions: int) -> None:
    """See the module."""
    for in_memory in ("0B", "64MiB"):
        more = f'in_memory = "{in_memory}"\nin_memory_total = "{in_memory}"\n'
        with tempfile.TemporaryDirectory() as folder:
            broker = Stored().under(Setting(store="os"))
            broker.CONFIG = broker.CONFIG.replace("[mqueue]\n", "[mqueue]\n" + more)
            with broker.start(Path(folder), 0) as running:
                said = load(tool, running, "--scenario", "offline", "--pubs", "10", "--subs",
                            str(sessions), "--qos", "1", "--count", str(messages // sessions),
                            "--payload", "100")  # fmt: skip
                tell(what="running", in_memory=in_memory, messages=said["sent"], ok=said["ok"],
                     bytes_each=said["broker"]["rss_bytes_per_stored"])  # fmt: skip


def away(messages: int) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Stored().under(Setting(store="os")).start(folder, 0) as running:
            store = folder / "data" / "store.db"
            for number in range(100):
                client = RawClient(running.port).connect(f"c{number}", clean=False)
                client.subscribe(f"t/{number}", qos=1)
                client.close()
            there = [Taker(running.port, f"c{number}") for number in range(99)]
            gone = "c99"
            publisher = _Window(running.port)
            before = _writer(running.pid)
            began = time.monotonic()
            stretch = messages // 5
            for sent in range(stretch, 5 * stretch + 1, stretch):
                for number in range(stretch):
                    publisher.put(f"t/{number % 100}", there)
                # What one is to get: its bytes, and 16 of words.
                lives = stretch // 100 * (len(mq.publish("t/99", bytes(100), 1, 1)) + 16)
                size = store.stat().st_size
                tell(what="away", sent=sent, file=size, lives=lives, beyond=size - lives,
                     writer_us_each=round((_writer(running.pid) - before) / sent * 1e6, 2),
                     per_s=round(sent / (time.monotonic() - began)))  # fmt: skip
                there.append(Taker(running.port, gone))
                while there[-1].count < stretch // 100:
                    for taker in there:
                        taker.take()
                left = there.pop(0)
                gone = left.name
                left.close()


def _writer(pid: int) -> float:
    """Seconds of CPU of the threads beside the loop: the store's writer, all others nearly idle."""
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
        if task.name != str(pid)
    ) / 1e9  # fmt: skip


class Taker:
    """A session that is there and acknowledges what it gets, without looking at it."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.count = 0
        self._rest = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(mq.connect(name, mq.V311, clean=False))
        self._socket.recv(4)
        self._socket.setblocking(False)

    def take(self) -> None:
        """Acknowledge what has come."""
        try:
            data = self._rest + self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        at = 0
        answers = []
        while at + 2 <= len(data):
            length = data[at + 1]
            head = at + 2
            if length >= 0x80:
                if at + 3 > len(data):
                    break
                length = length & 0x7F | data[at + 2] << 7
                head = at + 3
            if head + length > len(data):
                break
            topic = int.from_bytes(data[head : head + 2], "big")
            answers.append(b"\x40\x02" + data[head + 2 + topic : head + 4 + topic])
            at = head + length
        self._rest = data[at:]
        self.count += len(answers)
        self._socket.setblocking(True)
        self._socket.sendall(b"".join(answers))
        self._socket.setblocking(False)

    def close(self) -> None:
        """Go."""
        self._socket.close()


class _Window:
    """A publisher with at most so many messages that are not acknowledged."""

    def __init__(self, port: int, window: int = 2000) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(mq.connect("publisher", mq.V311))
        self._socket.recv(4)
        self._window = window
        self._open = self._id = self._odd = 0
        self._out: list[bytes] = []

    def put(self, topic: str, others: list[Taker]) -> None:
        """Publish 100 bytes; others take what they have got."""
        self._id = self._id % 65535 + 1
        self._out.append(mq.publish(topic, bytes(100), 1, self._id))
        self._open += 1
        if len(self._out) >= 200:
            self._socket.sendall(b"".join(self._out))
            self._out = []
            while self._open > self._window:
                self._odd += len(self._socket.recv(1 << 16))
                self._open -= self._odd // 4
                self._odd %= 4
            for other in others:
                other.take()


def backup(megabytes: int) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir(mode=0o700)
        make(data / "store.db", 1000, megabytes * (1 << 20) // 170)
        with Stored().under(Setting(store="os")).start(folder, 0) as running:
            client = RawClient(running.port).connect("p")
            size = (data / "store.db").stat().st_size
            waited: dict[str, list[float]] = {"before": [], "while": [], "after": []}

            def publish(kind: str) -> None:
                began = time.perf_counter()
                client.publish("t/1", bytes(100), qos=1)
                waited[kind].append((time.perf_counter() - began) * 1000)
                time.sleep(0.002)

            for _ in range(500):
                publish("before")
            began = time.monotonic()
            ctl = [str(Path(sys.executable).parent / "mqttd-ctl"), "-c"]
            copy = folder / "copy.db"
            process = subprocess.Popen([*ctl, str(folder / "mqttd.conf"), "backup", str(copy)])
            while process.poll() is None:
                publish("while")
            seconds = round(time.monotonic() - began, 2)
            for _ in range(500):
                publish("after")
            tell(what="backup", bytes=size, copy=copy.stat().st_size, seconds=seconds,
                 status=process.returncode,
                 ack_ms={kind: spread(values) for kind, values in waited.items()})  # fmt: skip


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored")
    parser.add_argument(
        "what", choices=("lag", "recover", "running", "away", "backup")
    )  # fmt: skip
    parser.add_argument("--mqttload", type=Path, default=Path("build/load/mqttload"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run of `lag`")
    parser.add_argument("--rates", type=lambda text: [int(part) for part in text.split(",")],
                        default=list(RATES))  # fmt: skip
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--cores", type=lambda text: [int(part) for part in text.split(",")],
                        default=[0, 1], help="that the broker may use")  # fmt: skip
    parser.add_argument("--neighbour", action="store_true", help="somebody else is busy")
    parser.add_argument("--megabytes", type=int, default=200)
    asked = parser.parse_args()
    raise_file_limit()
    tell(compiled=compiled(), machine=re.sub(r"\s+", " ", os.uname().release))
    if asked.what in ("lag", "running") and not asked.mqttload.exists():
        subprocess.run(["make", "-s", "-C", "benchmarks/load"], check=True)
    match asked.what:
        case "lag":
            lag(asked.mqttload, asked.seconds, asked.rates, asked.cores, asked.neighbour)
        case "recover":
            recover(asked.messages or 1_000_000, asked.sessions or 10_000)
        case "running":
            running_memory(asked.mqttload, asked.messages or 300_000, asked.sessions or 100)
        case "away":
            away(asked.messages or 10_000_000)
        case "backup":
            backup(asked.megabytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
