"""A real broker is drained: its clients go to a second one at the rate, then it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.waiting import until

SERVER_REFERENCE = 0x1C


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(tmp_path / "first")
    yield started
    started.stop()


def api(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data/mqttd.sock"))


def test_clients_move_to_a_second_broker_and_the_first_one_ends(
    broker: Broker, tmp_path: Path
) -> None:
    second = start_broker(tmp_path / "second")
    try:
        clients = [RawClient(broker.port, mq.V5).connect(f"c{number}") for number in range(6)]
        old = RawClient(broker.port, mq.V311).connect("old")
        assert broker.directory is not None
        ctl = subprocess.Popen(
            [Path(sys.executable).parent / "mqttd-ctl",
             "--config", broker.directory / "etc/mqttd.conf",
             "drain", "--rate", "8/s", "--to", f"127.0.0.1:{second.port}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        moved = []
        for client in clients:
            said = client.wait_for(mq.DISCONNECT)
            assert said.reason == 0x9C
            (to,) = [value for name, value in said.props if name == SERVER_REFERENCE]
            host, _, port = to.rpartition(":")
            assert host == "127.0.0.1"
            moved.append(RawClient(int(port), mq.V5).connect(f"again{len(moved)}"))
            if len(moved) == 1:  # the others are still served, and nobody else gets in
                assert api(broker).get("/drain")["left"] >= 1
                late = RawClient(broker.port, mq.V5).connect("late", reason=0x9C)
                assert late.connack is not None
                assert (SERVER_REFERENCE, to) in [tuple(one) for one in late.connack.props]
                RawClient(broker.port, mq.V311).connect("late", reason=3)
        old.expect_close()
        told, _ = ctl.communicate(timeout=60)
        assert "nobody is left; the broker ends" in told
        assert broker.process is not None
        assert broker.process.wait(30) == 0
        assert len(api(second).get("/clients")["clients"]) == 6
    finally:
        second.stop()


def test_a_drain_can_be_given_up_and_can_leave_the_broker_there(broker: Broker) -> None:
    client = RawClient(broker.port, mq.V5).connect("c")
    for _ in range(2):
        RawClient(broker.port, mq.V5).connect("other")
        assert api(broker).request("POST", "/drain", {"rate": 0.01, "exit": False})["draining"]
        RawClient(broker.port, mq.V5).connect("late", reason=0x9C)
        assert api(broker).request("DELETE", "/drain")["left"] >= 1
        RawClient(broker.port, mq.V5).connect("late").disconnect()
    with pytest.raises(CtlError, match="expected HOST or HOST:PORT"):
        api(broker).request("POST", "/drain", {"to": "mqtt://other/"})
    with pytest.raises(CtlError, match="not being drained"):
        api(broker).request("DELETE", "/drain")
    api(broker).request("POST", "/drain", {"rate": 1000, "exit": False, "moved": True})
    assert client.wait_for(mq.DISCONNECT).reason == 0x9D
    until(lambda: api(broker).get("/drain")["left"] == 0)
    assert api(broker).get("/status")["name"]
    # Nobody is left, and still nobody is let in: it says so until it is taken back.
    assert api(broker).get("/drain")["draining"]
    assert [alarm["name"] for alarm in api(broker).get("/alarms")["alarms"]] == ["drain"]
    RawClient(broker.port, mq.V5).connect("late", reason=0x9D)
    api(broker).request("DELETE", "/drain")
    RawClient(broker.port, mq.V5).connect("late").disconnect()
    assert not api(broker).get("/alarms")["alarms"]
