"""The authenticator and the access control of the documentation, in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from mqttd.testing import MemoryBroker

EXAMPLES = Path(__file__).parents[3] / "docs/examples/access"


def plugin(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Plugin


def test_a_token_says_who_a_client_is() -> None:
    node = MemoryBroker()
    node.load(plugin("token_table"))
    client = node.connect("c", username="token", password=b"s3cret-of-pump-1")
    assert node.broker.sessions["c"].username == "pump-1"
    assert client.subscribe("devices/pump-1/#", qos=1) == [1]
    assert client.subscribe("devices/pump-2/#", qos=1) == [0x87]
    refused = node.connect("d", username="token", password=b"wrong")
    assert refused.closed and refused.connack.reason_code == 0x86


def test_a_locked_machine_is_not_commanded() -> None:
    node = MemoryBroker()
    loaded = node.load(plugin("locked_machines"))
    heard = node.subscribe("command/#")
    client = node.connect("c")
    client.publish("command/pump-1", b"go", qos=1)
    assert len(heard) == 1
    assert loaded.command("lock", "pump-1") == "locked: pump-1"
    client.publish("command/pump-1", b"go", qos=1)
    client.publish("command/pump-2", b"go", qos=1)
    assert [message.topic for message in heard] == ["command/pump-1", "command/pump-2"]
