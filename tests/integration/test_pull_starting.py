"""Readers of the event log who ask a broker that is starting: it is waited for, as any outage."""

from __future__ import annotations

import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from mqttd.pipeline.log.pull import PullError, PullReader
from tests.support.broker import Broker, start_broker
from tests.support.waiting import until

TOKEN = "fedcba9876543210fedcba9876543210"
ADMIN = "0123456789abcdef0123456789abcdef"

LATE = """
import os
from twisted.internet.task import LoopingCall
from zope.interface import implementer
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin

late = MqttdPlugin(name="late", version="1", description="Late.", factory="mqttd_plugins.late:Late")

@implementer(IPlugin)
class Late:
    def load(self, handle, config):
        look = LoopingCall(lambda: os.path.exists({go!r}) and look.stop())
        return look.start(0.02).addCallback(lambda _: None)

    def unload(self):
        pass
"""


def url_of(broker: Broker) -> str:
    """Where its door is, as soon as that is open: the port is told before it listens."""
    found = until(
        lambda: [line for line in broker.lines if "HTTP interface on port" in line], broker.output
    )
    port = int(found[0].rpartition(":")[2])
    until(lambda: listens(port), broker.output)
    return f"http://127.0.0.1:{port}"


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_broker_whose_plugins_are_loading_is_waited_for_and_one_without_is_told(
    tmp_path: Path,
) -> None:
    """It ended with "plugin 'spark' is not loaded" while the plugins before it were loaded."""
    go = tmp_path / "go"
    broker = start_broker(
        tmp_path,
        wait=False,
        files={
            "plugins/late.py": LATE.format(go=str(go)),
            "pull": f"{TOKEN}\n",
            "tokens": f"{ADMIN}\n",
        },
        plugins={"load": ["late", "spark"]},
        admin={
            "tcp": {"bind": "127.0.0.1:0", "pull_token_file": "pull", "token_file": "tokens"},
        },
    )
    try:
        url = url_of(broker)
        said: list[str] = []
        logs: list[PullReader] = []
        asks = threading.Thread(
            target=lambda: logs.append(PullReader(url, TOKEN, patience=60, say=said.append))
        )
        asks.start()
        until(lambda: said or not asks.is_alive(), broker.output)
        assert "'spark' is not loaded yet" in "".join(said)
        go.touch()
        asks.join(60)
        assert logs and "mqttd" in logs[0].bounds(), broker.output
        assert said[1:] and "is back after" in said[1]

        unload = urllib.request.Request(
            f"{url}/api/v1/plugins/spark/unload",
            method="POST",
            headers={"Authorization": f"Bearer {ADMIN}"},
        )
        urllib.request.urlopen(unload, timeout=30).close()
        with pytest.raises(PullError, match="'spark' is not loaded .mqttd-ctl plugins load spark"):
            PullReader(url, TOKEN, patience=60, sleep=lambda _: pytest.fail("it waits"))
    finally:
        broker.stop()
