"""`mqttd-bench` against a real broker: what it says is what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, start_broker

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0  # seconds


def bench(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mqttd.bench.main", *arguments, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    try:
        output, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert output, errors
    return process.returncode, json.loads(output)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    started: Broker = start_broker(tmp_path_factory.mktemp("bench"))
    yield started
    started.stop()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_messages_of_several_processes_arrive_once_and_in_order(
    broker: Broker, qos: int
) -> None:
    port = ["-p", str(broker.port), "-q", str(qos), "-t", f"bench/{qos}/%i", "-c", "4"]
    subscribers = bench("sub", *port, "-N", "500", "-D", "45", "-V", "5")
    assert subscribers.stderr is not None
    for line in subscribers.stderr:
        if "4 connected" in line:
            break
    status, sent = result(bench("pub", *port, "-N", "500", "-w", "2"))
    assert (status, sent["sent"], sent["connected"]) == (0, 2000, 4)
    status, received = result(subscribers)
    assert status == 0
    assert [received[key] for key in ("received", "lost", "duplicates", "out_of_order")] == [
        2000, 0, 0, 0,
    ]  # fmt: skip
    assert received["latency_us"]["p50"] > 0


def test_connections_are_held_and_counted(broker: Broker) -> None:
    status, figures = result(bench("conn", "-p", str(broker.port), "-c", "50", "-D", "0.5"))
    assert (status, figures["connected"], figures["refused"]) == (0, 50, 0)


def test_a_broker_that_is_not_there_is_told_and_fails_the_run() -> None:
    status, figures = result(bench("conn", "-p", "1", "-c", "2"))
    assert (status, figures["refused"]) == (1, 2)
    assert figures["faults"]
