"""Workers one of which does not answer: what is shown, and what is said of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.admin.ctl.client import _UnixConnection
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told as ctl
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("workers")
    made = start_broker(
        folder,
        node={"workers": 2},
        listener={"ws": {"default": {"bind": "127.0.0.1:0"}},
                  "unix": {"default": {"path": str(folder / "mqtt.sock")}}},
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


def beside(socket: Path, *words: str) -> tuple[str, str]:
    """What a command writes to both of its outputs."""
    command = [sys.executable, "-m", "mqttd.admin.ctl.main", "--socket", str(socket), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_the_log_says_where_each_listener_is(broker: Broker) -> None:
    for said in ("listener tcp:default: mqtt://", "listener ws:default: ws://",
                 "listener unix:default: unix://"):  # fmt: skip
        until(lambda said=said: broker.output.count(said) == 1, said)  # type: ignore[misc]
    assert "(try it: http://" in broker.output


def test_a_worker_asked_itself_says_that_it_is_one(broker: Broker) -> None:
    assert broker.directory is not None
    _, said = beside(broker.directory / "data/worker-1/mqttd.sock", "status")
    assert said.startswith("mqttd-ctl: this is one worker alone")
    _, said = beside(broker.directory / "data/mqttd.sock", "status")
    assert said == ""


def test_the_status_is_there_while_a_worker_is_stuck(broker: Broker) -> None:
    assert broker.directory is not None
    workers = json.loads(ctl(broker, "--json", "status"))["workers"]
    assert [one["state"] for one in workers] == ["running", "running"]
    os.kill(workers[1]["pid"], signal.SIGSTOP)
    try:
        before = time.monotonic()
        shown, said = beside(broker.directory / "data/mqttd.sock", "status")
        assert time.monotonic() - before < 15
        assert said == "mqttd-ctl: worker 2 does not answer, and is left out\n"
        assert "silent" in shown and "running" in shown
        clients, said = beside(broker.directory / "data/mqttd.sock", "clients", "list")
        assert said == "mqttd-ctl: worker 2 does not answer, and is left out\n"
        for list_of in ("clients", "topics"):
            shown, said = beside(broker.directory / "data/mqttd.sock", "--json", list_of, "list")
            missing = {"worker": 2, "reason": "it gives no sign of life"}
            assert json.loads(shown)["missing"] == [missing]
    finally:
        os.kill(workers[1]["pid"], signal.SIGCONT)
    until(lambda: json.loads(ctl(broker, "--json", "status"))["workers"][1]["state"] == "running",
          "it is there again")  # fmt: skip
    assert "did not answer /api/v1/status: it gives no sign of life" in broker.output
    assert "Traceback" not in broker.output and "Failure" not in broker.output


def alarms(broker: Broker, kind: str) -> list[tuple[int, str]]:
    """Which worker has the alarm `worker_down`, or had it (`past`), and its text."""
    found = json.loads(ctl(broker, "--json", "alarms"))[kind]
    return [(one["worker"], one["text"]) for one in found if one["name"] == "worker_down"]


def test_17_a_worker_that_is_down_is_an_alarm_and_a_metric(tmp_path: Path) -> None:
    """Of the first that is there; it ends when that worker serves."""
    broker = start_broker(tmp_path, node={"workers": 2})

    def figures() -> tuple[int, int]:
        said = json.loads(ctl(broker, "--json", "metrics"))
        return said["gauges"]["workers_down"], said["counters"]["workers_restarted"]

    def pid_of(number: int) -> int:
        return int(json.loads(ctl(broker, "--json", "status"))["workers"][number - 1]["pid"])

    try:
        assert figures() == (0, 0) and alarms(broker, "alarms") == []
        silent = pid_of(2)
        os.kill(silent, signal.SIGSTOP)
        try:
            until(lambda: alarms(broker, "alarms"), "the alarm", 20)
            text = "worker 2 gives no sign of life: who is its client waits until it serves again"
            assert alarms(broker, "alarms") == [(1, text)]
            assert figures() == (1, 0)
        finally:
            os.kill(silent, signal.SIGCONT)
        until(lambda: not alarms(broker, "alarms"), "its end", 20)
        for times, number in enumerate((1, 2), 1):
            os.kill(pid_of(number), signal.SIGKILL)
            until(lambda times=times: figures() == (0, times), "it is back", 30)  # type: ignore[misc]
        until(lambda: not alarms(broker, "alarms"), "its end", 20)
        past = alarms(broker, "past")
        assert any(text.startswith("worker 2 ended by SIGKILL: ") for _, text in past)
        assert broker.says("worker 1 ended by SIGKILL: who is its client waits")
    finally:
        broker.stop()


def test_who_is_at_worker_2_hears_in_sys_that_worker_1_is_down(tmp_path: Path) -> None:
    """The figures there are worker 1's to publish; this it cannot."""
    broker = start_broker(tmp_path, node={"workers": 2})
    try:
        for number in range(16):
            client = RawClient(broker.port)
            client.connect(f"c{number}")
        shown = json.loads(ctl(broker, "--json", "clients", "list"))["clients"]
        name = next(one["client_id"] for one in shown if one["worker"] == 2)
        client = RawClient(broker.port)
        client.connect(name)
        client.subscribe("$SYS/brokers/+/alarms/#")
        workers = json.loads(ctl(broker, "--json", "status"))["workers"]
        os.kill(workers[0]["pid"], signal.SIGKILL)
        for verb in ("activate", "deactivate"):
            told = client.wait_for(mq.PUBLISH, 30)
            assert told.topic.endswith(f"/alarms/{verb}")
            said = json.loads(told.payload)
            assert said["name"] == "worker_down"
            assert said["message"].startswith("worker 1 ended by SIGKILL: ")
    finally:
        broker.stop()


def test_what_a_stuck_worker_is_asked_for_a_plugin_is_given_up(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, node={"workers": 2}, plugins={"load": ["spark"]})
    try:
        workers = json.loads(ctl(broker, "--json", "status"))["workers"]

        def asked(path: str) -> tuple[int, dict[str, object]]:
            connection = _UnixConnection(str(tmp_path / "data/mqttd.sock"), 20)
            connection.request("GET", f"/api/v1/{path}")
            answer = connection.getresponse()
            found = answer.status, json.loads(answer.read())
            connection.close()
            return found

        assert asked("workers/1/plugins/spark/log/bounds")[0] == 200
        os.kill(workers[0]["pid"], signal.SIGSTOP)
        try:
            before = time.monotonic()
            status, told = asked("workers/1/plugins/spark/log/bounds")
            assert (status, time.monotonic() - before < 15) == (502, True)
            assert told["detail"] == "worker 1 did not answer: it gives no sign of life"
            # The log is of all workers: one that lives is asked.
            assert asked("plugins/spark/log/bounds")[0] == 200
        finally:
            os.kill(workers[0]["pid"], signal.SIGCONT)
    finally:
        broker.stop()
