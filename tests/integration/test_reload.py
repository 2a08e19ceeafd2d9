"""A running broker takes a changed configuration up: `mqttd-ctl reload`, SIGHUP, under systemd."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client
from tests.faults import judge
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import run as ctl
from tests.support.waiting import until

#: A plugin that takes a second to go.
SLOW = """\
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.logger import Logger
from zope.interface import implementer

from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin

slow = MqttdPlugin(name="slow", version="1.0", description="", factory="mqttd_plugins.slow:Slow")


@implementer(IPlugin)
class Slow:
    def load(self, handle, config):
        pass

    def unload(self):
        Logger().warn("slow takes its time")
        return deferLater(reactor, 1.0, lambda: None)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = start_broker(tmp_path)
    try:
        yield broker
    finally:
        broker.stop()


def configure(folder: Path, text: str) -> None:
    path = folder / "etc/mqttd.conf"
    path.write_text(f"{path.read_text()}\n{text}")


def test_nobody_without_a_name_is_left_when_the_file_says_never(
    broker: Broker, tmp_path: Path
) -> None:
    client = RawClient(broker.port, mq.V5).connect("anonymous")
    (tmp_path / "etc/users.conf").write_text("")
    (tmp_path / "etc/users.conf").chmod(0o600)
    configure(tmp_path, '[auth]\nanonymous = "never"\n')
    plan = ctl(tmp_path, "reload", "--dry-run")
    assert plan.returncode == 0
    assert 'auth.anonymous: "loopback" -> "never": in force at once' in plan.stdout
    held = ctl(tmp_path, "reload")
    assert held.returncode == 1 and "ends the connections of 1 client," in held.stdout
    client.ping()
    assert ctl(tmp_path, "reload", "--yes").returncode == 0
    assert client.expect(mq.DISCONNECT).reason == 0x87
    late = RawClient(broker.port, mq.V5)
    late.send(mq.connect("late", mq.V5))
    assert late.expect(mq.CONNACK).reason == 0x87
    late.close()
    typed = ctl(tmp_path, "config", "show", "mqtt.maxqos").stderr
    assert "there is no key 'mqtt.maxqos'; did you mean mqtt.max_qos?" in typed
    shown = ctl(tmp_path, "config", "show", "auth.anonymous").stdout
    assert '"never"' in shown and "mqttd.conf:" in shown


def test_sighup_does_the_same_and_holds_back_what_cuts_somebody_off(
    broker: Broker, tmp_path: Path
) -> None:
    assert broker.process is not None
    configure(tmp_path, "[mqtt]\nmax_qos = 1\n")
    os.kill(broker.process.pid, signal.SIGHUP)
    assert broker.says("configuration read again, 1 keys differed")
    client = RawClient(broker.port, mq.V5).connect("one")
    assert client.connack is not None and client.connack.prop(mq.MAXIMUM_QOS) == 1
    configure(tmp_path, '[auth]\nchain = ["username"]\n')
    os.kill(broker.process.pid, signal.SIGHUP)
    assert broker.says("reload held back")
    client.ping()
    client.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_sessions_of_the_store_keep_what_a_rule_by_address_allows(
    tmp_path: Path, workers: int
) -> None:
    """Nobody knows their clients' addresses: they were judged as if they came from nowhere."""
    acl = '{allow, {ipaddr, "127.0.0.1"}}.\n'
    node = {"workers": workers}
    store = {"kind": "sqlite"}
    broker = start_broker(tmp_path, acl=acl, node=node, store=store)
    try:
        names = ("one", "two", "three")
        for name in names:
            client = RawClient(broker.port, mq.V311).connect(name, clean=False)
            client.subscribe((f"{name}/#", 1))
            client.disconnect()
        publisher = RawClient(broker.port, mq.V311).connect("publisher")
        for name in names:
            publisher.publish(f"{name}/a", b"kept", 1)
        publisher.close()
        broker.stop()
        broker = start_broker(tmp_path, acl=acl, node=node, store=store)
        assert ctl(tmp_path, "reload").returncode == 0
        assert ctl(tmp_path, "acl", "reload").returncode == 0
        late = RawClient(broker.port, mq.V311).connect("late")
        late.publish("one/b", b"after", 1)
        for name in names:
            client = RawClient(broker.port, mq.V311).connect(name, clean=False)
            assert client.payloads(2 if name == "one" else 1)[0] == b"kept"
            client.close()
        assert "subscription revoked" not in broker.output
    finally:
        broker.stop()


def test_a_worker_that_starts_does_not_end_by_sighup(tmp_path: Path) -> None:
    """It has nothing to take a signal with before it serves: it reads its configuration then."""
    broker = start_broker(tmp_path, node={"workers": 2})
    control = Client(str(tmp_path / "data/mqttd.sock"))

    def second() -> dict[str, Any]:
        return next(one for one in control.get("/workers")["workers"] if one["worker"] == 2)

    try:
        assert broker.process is not None
        os.kill(second()["pid"], signal.SIGKILL)
        until(lambda: second()["starts"] == 2, "the worker is started again")
        os.kill(broker.process.pid, signal.SIGHUP)
        assert broker.says("configuration read again, 0 keys differed: worker=2")
        assert second()["starts"] == 2
        assert "SIGHUP" not in broker.output
    finally:
        broker.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_does_not_cut_the_end_short(tmp_path: Path, workers: int) -> None:
    """While something takes its time to end, and to the very last."""
    files = {"plugins/slow.py": SLOW}
    plugins = {"load": ["slow"]}
    broker = start_broker(tmp_path, node={"workers": workers}, files=files, plugins=plugins)
    try:
        assert broker.process is not None
        broker.process.terminate()
        assert broker.says("slow takes its time")
        while broker.process.poll() is None:
            os.kill(broker.process.pid, signal.SIGHUP)
            time.sleep(0.01)
        assert broker.process.returncode == -signal.SIGTERM
        assert broker.says("mqttd stopped")
        assert "read again" not in broker.output
    finally:
        broker.stop()


def test_a_plugin_that_lets_clients_in_is_somebody_whatever_the_chain_names(tmp_path: Path) -> None:
    """Every reload was held back: nobody else had anybody to let in."""
    broker = start_broker(tmp_path, acl=judge.ACL, files=judge.FILES, **judge.SETTINGS)
    try:
        client = RawClient(broker.port, mq.V5).connect("one", **judge.login("one"))
        done = ctl(tmp_path, "reload")
        assert done.returncode == 0, done.stdout
        client.ping()
        text = (tmp_path / "etc/mqttd.conf").read_text()
        (tmp_path / "etc/mqttd.conf").write_text(text.replace('load = ["judge"]', "load = []"))
        held = ctl(tmp_path, "reload")
        assert held.returncode == 1 and "locks everybody out" in held.stdout
        client.close()
    finally:
        broker.stop()


def test_systemd_hears_of_start_and_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        broker = start_broker(tmp_path)
        try:
            assert heard.recv(1000) == b"READY=1"
            assert broker.process is not None
            os.kill(broker.process.pid, signal.SIGHUP)
            assert heard.recv(1000).startswith(b"RELOADING=1\n")
            assert heard.recv(1000) == b"READY=1"
        finally:
            broker.stop()
        assert heard.recv(1000) == b"STOPPING=1"
