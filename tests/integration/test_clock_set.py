"""Somebody sets the clock of the machine while a broker starts, and while it runs (libfaketime)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.troubles import FAKETIME, environment
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.needs import missing
from tests.support.nodes import asked, start_node
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

#: Sets the clock an hour forth while it is loaded.
PLUGIN = """
from pathlib import Path
from time import time
from twisted.internet.task import deferLater
from zope.interface import implementer
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin

slow = MqttdPlugin(name="slow", version="1.0", description="Takes its time to load.",
                   factory="mqttd_plugins.slow:Slow")

@implementer(IPlugin)
class Slow:
    def load(self, handle, config):
        return deferLater(handle.clock, 0, self.set, handle)

    def set(self, handle):
        before = time()
        Path({clock!r}).write_text("+3600")
        handle.log.info("set by {{s}}", s=round((time() - before) / 3600))
        return deferLater(handle.clock, 0, lambda: None)

    def unload(self):
        pass
"""

Start = Callable[..., Broker]


@pytest.fixture
def clocked(tmp_path: Path) -> dict[str, str]:
    """The environment of a broker whose clock is what the file `clock` says it is."""
    if not FAKETIME.exists():
        missing("libfaketime", "apt-get install faketime")
    return environment(["clock"], tmp_path) | {"FAKETIME_NO_CACHE": "1"}


@pytest.fixture
def start(clocked: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start such a broker."""
    begun: list[Broker] = []

    def started(**more: object) -> Broker:
        begun.append(start_broker(tmp_path, environment=clocked, **more))
        return begun[-1]

    yield started
    for broker in begun:
        broker.stop()


def test_a_clock_set_forth_while_plugins_are_loaded_ends_no_deadline(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "etc/plugins"
    directory.mkdir(parents=True)
    (directory / "slow.py").write_text(PLUGIN.format(clock=str(tmp_path / "clock")))
    assert start(plugins={"load": ["slow"]}).says("set by 1")


@pytest.mark.parametrize("step", ["+3600", "-3600"])
def test_a_client_is_given_its_keep_alive_whoever_sets_the_clock(
    start: Start, tmp_path: Path, step: str
) -> None:
    broker = start()
    with closing(RawClient(broker.port, mq.V5, deadline=20.0)) as silent:
        silent.connect("silent", keep_alive=2)
        (tmp_path / "clock").write_text(step)
        silent.ping()
        silent.ping()
        silent.expect_close(0x8D)


@pytest.mark.parametrize("step", ["+3600", "-3600"])
def test_a_node_whose_clock_is_set_stays_one(
    clocked: dict[str, str], etcd: Etcd, tmp_path: Path, step: str
) -> None:
    """Its lease is of 2 s: the alarm comes when it has told its time five times, and ends so."""
    nodes = [start_node(tmp_path, etcd, "a", environment=clocked)]
    try:
        nodes.append(start_node(tmp_path, etcd, "b"))
        with closing(RawClient(nodes[0].port, mq.V5, deadline=20.0)) as client:
            client.connect("stays")
            for behind in (step, "+0"):
                (tmp_path / "clock").write_text(behind)
                until(lambda want=behind == step: told(nodes[1]) == want, "the alarm", 60)
            client.ping()
    finally:
        for node in nodes:
            node.stop()
            print(node.output[-4000:])


def told(node: Broker) -> bool:
    """Whether a node says that the clock of another differs."""
    return any(each["name"] == "cluster_clock" for each in asked(node, "alarms")["alarms"])
