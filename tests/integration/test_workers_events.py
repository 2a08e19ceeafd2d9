"""The event log of a broker of several workers: one, whoever reads it, and fed back once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.pipeline.log.pull import PullReader
from mqttd.pipeline.log.reader import LogReader, events
from tests.integration.test_workers import asked, id_at
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import run
from tests.support.ctl import told as ctl

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(
        tmp_path,
        node={"workers": 2},
        plugins={"load": ["spark"]},
        admin={"tcp": {"bind": "127.0.0.1:0", "pull_token_file": "pull"}},
        files={
            "plugins/spark.conf": 'events = ["message.publish"]\nacked_means_logged = true\n',
            "pull": TOKEN,
        },
    )
    yield started
    started.stop()


def test_it_is_one_log_and_fed_back_once(broker: Broker, tmp_path: Path) -> None:
    clients = {worker: RawClient(broker.port, mq.V5) for worker in (1, 2)}
    names = {worker: id_at(worker, 2) for worker in clients}
    for worker, client in clients.items():
        client.connect(names[worker])
        for number in range(3):
            client.publish(f"t/{worker}", b"%d" % number, qos=1)
    there = {"mqttd-worker-1": (0, 3), "mqttd-worker-2": (0, 3)}
    port = re.search(r"HTTP interface on port (\d+)", broker.output)
    assert port is not None
    for log in (
        LogReader(str(tmp_path / "data/events")),
        PullReader(f"http://127.0.0.1:{port[1]}", TOKEN),
    ):
        assert log.bounds() == there
        topics = [one.topic for node in there for one in events(log, node, 0, 3)]
        assert topics == ["t/1"] * 3 + ["t/2"] * 3
    assert set(asked(broker, "events", "info")["nodes"]) == set(there)
    # To all, and to the client of either worker.
    clients[2].subscribe("again/#", qos=1)
    again = ("replay", "--from", "2000-01-01", "--filter", "t/1", "--speed", "max")
    assert "3 messages sent" in ctl(broker, *again, "--to-topic", "again")
    clients[1].publish("again/end", b"", qos=1)
    seen = [clients[2].message() for _ in range(4)]
    assert [one.topic for one in seen] == ["again/t/1"] * 3 + ["again/end"]
    for worker, client in clients.items():
        assert "3 messages sent" in ctl(broker, *again, "--to-client", names[worker])
        assert client.payloads(3) == [b"0", b"1", b"2"]
        client.ping()
    done = run(broker, *again, "--to-client", "nobody")
    assert done.returncode and "client 'nobody' is not connected" in done.stderr
    for client in clients.values():
        client.disconnect()
