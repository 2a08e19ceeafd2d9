"""The log of a running broker: nobody waits for it, whoever reads it or does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
#: twistd ends by the signal it was sent.
ENDED = (0, -signal.SIGTERM)
Start = Callable[..., tuple[subprocess.Popen[bytes], int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker that writes to `stderr`, and give its process and port."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(log: str, stderr: Any) -> tuple[subprocess.Popen[bytes], int]:
        (tmp_path / "mqttd.conf").write_text(
            f'[node]\ndata_dir = "{tmp_path}/data"\n[log]\nrate = 100_000\n{log}\n'
            '[listener.tcp.default]\nbind = "127.0.0.1:0"\n'
        )
        (tmp_path / "acl.conf").write_text("{allow, all}.\n")
        twistd = Path(sys.executable).parent / "twistd"
        process = subprocess.Popen(
            [twistd, "-n", "--pidfile=", "mqttd", "--config", tmp_path / "mqttd.conf"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
        )
        processes.append(process)
        until = time.monotonic() + DEADLINE
        while True:
            listeners = ctl(tmp_path, "listeners", "list", "--json")
            if listeners is not None:
                ports = [one["port"] for one in listeners["listeners"] if one.get("port")]
                if ports:
                    return process, ports[0]
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)

    yield run
    for process in processes:
        process.kill()
        process.wait()


def ctl(path: Path, *words: str) -> Any:
    """What mqttd-ctl prints as JSON; None if it cannot ask."""
    program = Path(sys.executable).parent / "mqttd-ctl"
    found = subprocess.run(
        [program, "-c", path / "mqttd.conf", *words], capture_output=True, check=False
    )
    return json.loads(found.stdout) if found.returncode == 0 else None


def come_and_go(port: int, times: int) -> None:
    for number in range(times):
        client = RawClient(port, mq.V5).connect(f"client-{number}-{'x' * 100}")
        client.disconnect()


def test_a_pipe_that_nobody_reads_does_not_stop_the_broker(start: Start, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    process, port = start('queue = "64KiB"', writes)
    os.close(writes)
    come_and_go(port, 600)  # two lines each: more than pipe and queue hold
    told = ctl(tmp_path, "log", "show", "--json")
    assert told["dropped"] > 0 and told["waiting_bytes"] <= 64 << 10
    metrics = ctl(tmp_path, "metrics", "--json")
    assert metrics["counters"]["log_dropped_total"] > 0
    output = b""
    os.set_blocking(reads, True)
    while b"lines dropped: " not in output:  # a reader comes at last
        output = output[-1000:] + os.read(reads, 65536)
        come_and_go(port, 1)
    process.terminate()
    os.close(reads)
    assert process.wait(DEADLINE) in ENDED


def test_a_reader_that_is_gone_does_not_stop_it_either(start: Start, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    process, port = start("", writes)
    os.close(writes)
    os.close(reads)
    come_and_go(port, 20)
    told = ctl(tmp_path, "log", "show", "--json")
    assert told["fault"] == "Broken pipe" and told["dropped"] > 0
    process.terminate()
    assert process.wait(DEADLINE) in ENDED


def test_lines_as_json_into_a_file_that_is_rotated(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "log" / "mqttd.log"
    path.parent.mkdir()
    process, port = start(
        f'to = "file"\nfile = "{path}"\nformat = "json"\nrotate = "16KiB"\nkeep = 2',
        subprocess.DEVNULL,
    )
    come_and_go(port, 100)
    assert ctl(tmp_path, "log", "level", "mqttd.broker", "debug", "--json")["modules"]
    client = RawClient(port, mq.V5).connect("lamp")
    client.subscribe("a/#")
    # In one write: the line tells of what was taken in the same turn, too.
    said = mq.publish("b", version=mq.V5) * 2
    client.send(said + mq.disconnect(mq.V5))
    client.drain()
    process.terminate()
    assert process.wait(DEADLINE) in ENDED
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["mqttd.log", "mqttd.log.1", "mqttd.log.2"]
    assert all(file.stat().st_size <= 16 << 10 for file in files)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (subscribed,) = [line for line in lines if line["message"] == "subscribed"]
    assert (subscribed["client_id"], subscribed["filters"]) == ("lamp", ["a/#"])
    assert subscribed["level"] == "debug" and subscribed["module"] == "mqttd.broker"
    gone = [line for line in lines if line["message"] == "disconnected by client"][-1]
    assert gone["client_id"] == "lamp" and gone["reason"] == "client disconnected"
    assert gone["messages"] == 2 and gone["seconds"] >= 0
    assert lines[-1]["message"] == "Server Shut Down."


@pytest.mark.parametrize("log", ["", 'to = "file"\nfile = "{}/mqttd.log"'], ids=["stderr", "file"])
def test_sigusr1_begins_a_new_file_and_ends_nobody(start: Start, tmp_path: Path, log: str) -> None:
    with open(tmp_path / "stderr", "wb") as stderr:
        process, port = start(log.format(tmp_path), stderr)
    process.send_signal(signal.SIGUSR1)
    said = tmp_path / ("mqttd.log" if log else "stderr")
    wanted = b"the log begins a new file" if log else b"SIGUSR1 begins a new file"
    until(lambda: said.exists() and wanted in said.read_bytes(), "what became of the signal")
    assert (tmp_path / "mqttd.log.1").exists() is bool(log)
    client = RawClient(port)
    client.connect("still")
    client.close()
