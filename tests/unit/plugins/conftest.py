"""A broker in memory with its plugins, and a folder where tests write plugins' code."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred

import mqttd_plugins
from mqttd.config.load import load
from mqttd.plugins.handle.handle import Host, PluginHandle
from mqttd.plugins.plugins import Plugins
from mqttd.testing import MemoryBroker

HEAD = """
from zope.interface import implementer
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import OK, STOP
"""


class Node(MemoryBroker):
    """The broker, its `plugins`, and what they are made from."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        config = load(None, {})
        self.dir = directory / "etc" / "plugins"
        self.dir.mkdir(parents=True)
        (directory / "data").mkdir()
        replace = msgspec.structs.replace
        self.configured: Any = replace(
            config,
            path=str(directory / "etc/mqttd.conf"),
            node=replace(config.node, data_dir=str(directory / "data")),
            plugins=replace(config.plugins, dir=str(self.dir)),
        )
        self.plugins = self.start_anew()

    def start_anew(self, *names: str) -> Plugins:
        """The plugins of a broker that is started with these in its configuration."""
        self.configured = msgspec.structs.replace(
            self.configured,
            plugins=msgspec.structs.replace(self.configured.plugins, load=names),
        )
        self.plugins = Plugins(self.configured, Host(self.broker, self.clock))
        return self.plugins

    def write(self, name: str, body: str, **declaration: object) -> Path:
        """A plugin in a file of its own: a declaration, and `body` below the imports."""
        given = {
            "name": name,
            "version": "1.0",
            "description": f"Plugin {name}.",
            "factory": f"mqttd_plugins.{name}:Plugin",
            **declaration,
        }
        path = self.dir / f"{name}.py"
        arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
        path.write_text(f"{HEAD}\n{name} = MqttdPlugin({arguments})\n\n{textwrap.dedent(body)}")
        return path

    def load(self, name: str) -> PluginHandle:
        """Load it; raises what the broker would tell the operator."""
        result_of(self.plugins.load(name))
        self.settle()
        return self.plugins.handle(name)


def result_of(done: Deferred[Any]) -> Any:
    """What a Deferred has fired with; raises what it failed with."""
    results: list[Any] = []
    done.addBoth(results.append)
    assert results, "the Deferred has not fired"
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    paths = list(mqttd_plugins.__path__)
    before = set(sys.modules)
    yield Node(tmp_path)
    mqttd_plugins.__path__[:] = paths
    for name in set(sys.modules) - before:
        if name.startswith("mqttd_plugins."):
            del sys.modules[name]
            vars(mqttd_plugins).pop(name.split(".")[1], None)
