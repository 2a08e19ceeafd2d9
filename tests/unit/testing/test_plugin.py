"""A plugin under test gets the handle, the checks and the end that it gets in a running broker."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred
from zope.interface import Invalid, implementer

from mqttd.interfaces import IPlugin
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.declare import MqttdPlugin
from mqttd.plugins.loader import PluginError
from mqttd.testing import MemoryBroker, PluginConformance
from mqttd.types import OK


class Settings(msgspec.Struct):
    """What the configuration file of the example holds."""

    suffix: str = "!"


@implementer(IPlugin)
class Shout:
    """Puts something behind each message, counts, and tells operators."""

    def load(self, handle: Any, config: Settings) -> None:
        self.count = 0
        self.config = config
        self.ticks = 0
        handle.hook("message.publish", self.publish)
        handle.add_metric("seen_total", "Messages seen.", lambda: self.count)
        handle.add_sys_topic("seen", lambda: self.count)
        handle.add_command("say", lambda argv: " ".join(argv), "Say it.")
        handle.call_every(1.0, self.tick)
        self.handle = handle

    def tick(self) -> None:
        self.ticks += 1

    def publish(self, message: Any) -> Any:
        self.count += 1
        return OK(message.replace(payload=message.payload + self.config.suffix.encode()))

    def unload(self) -> None:
        pass


shout = MqttdPlugin(
    name="shout",
    version="1.0",
    description="Shouts.",
    factory=f"{__name__}:Shout",
    config_schema=f"{__name__}:Settings",
)


class TestShout(PluginConformance):
    plugin = shout
    config = {"suffix": "?"}


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


def test_a_declared_plugin_is_loaded_with_its_configuration(node: MemoryBroker) -> None:
    loaded = node.load(shout, {"suffix": "?"})
    heard = node.subscribe("t")
    node.connect("alice").publish("t", b"what")
    assert [message.payload for message in heard] == [b"what?"]
    assert loaded.metrics() == {"seen_total": 1.0}
    assert loaded.sys_topics() == {"seen": "1"}
    assert loaded.command("say", "hello", "world") == "hello world"
    node.advance(3.5)
    assert loaded.plugin.ticks == 3
    loaded.unload()
    node.publish("t", b"what")
    assert heard[-1].payload == b"what"
    node.advance(3.5)
    assert loaded.plugin.ticks == 3


def test_a_text_is_read_as_its_file_would_be(node: MemoryBroker) -> None:
    assert node.load(shout, 'suffix = "."').config == Settings(".")
    with pytest.raises(PluginError, match=r"shout.conf:1: suffx: unknown key; did you mean suffix"):
        node.load(shout, 'suffx = "."')
    with pytest.raises(ValueError, match="unknown keys"):
        node.load(shout, {"suffx": "."})


def test_what_is_no_plugin_is_refused(node: MemoryBroker) -> None:
    with pytest.raises(Invalid, match="load"):
        node.load(object)


def test_one_that_fails_to_load_leaves_nothing(node: MemoryBroker) -> None:
    class Broken(Shout):
        def load(self, handle: Any, config: Any) -> None:
            super().load(handle, Settings())
            raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        node.load(Broken)
    assert not node.hooks.listening("message.publish")
    assert not node.clock.getDelayedCalls()


def test_a_load_that_never_ends_is_found(node: MemoryBroker) -> None:
    class Waits(Shout):
        def load(self, handle: Any, config: Any) -> Any:
            return Deferred()

    with pytest.raises(AssertionError, match="Deferred of load"):
        node.load(Waits)


def test_threads_are_turns(node: MemoryBroker) -> None:
    loaded = node.load(Shout())
    results: list[int] = []
    loaded.handle.in_thread(sum, [1, 2]).addCallback(results.append)
    assert not results
    node.settle()
    assert results == [3]


def test_quarantine_can_be_tested_with_a_budget(node: MemoryBroker) -> None:
    class Broken(Shout):
        def publish(self, message: Any) -> Any:
            raise RuntimeError("no")

    budget = Budget("broken", error_limit=3)
    node.load(Broken, budget=budget)
    for _ in range(5):
        node.publish("t", b"x")
    assert budget.state == "quarantined"
    assert len(node.faults) == 3


@pytest.mark.parametrize(
    "name", ["test_plugin.py", "test_plugin_store.py", "test_hold.py", "test_authenticator.py"]
)
def test_the_examples_of_the_documentation_pass(name: str) -> None:
    names = runpy.run_path(str(Path(__file__).parents[3] / "docs/examples" / name))
    tests = [test for name, test in names.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert len(tests) >= 2, "or they are not found"
