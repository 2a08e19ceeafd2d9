"""The Unix socket listener: aiomqtt over it, its mode, and the peer's process in access rules."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import Door, dial

DEADLINE = 10.0


@pytest.fixture(scope="module", params=["engine", "twisted"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("unix")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(folder / "mqtt.sock"))
    made = start_broker(
        folder,
        acl='{allow, all, all, ["uid/${client_attrs.peer_uid}", "test/#"]}.\n',
        listener={"unix": {"local": {"path": str(folder / "mqtt.sock"), "mode": "0600",
                                     "transport": request.param}}},
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


def path_of(broker: Broker) -> str:
    assert broker.directory is not None
    return str(broker.directory / "mqtt.sock")


def test_the_socket_has_its_mode_and_replaces_a_dead_one(broker: Broker) -> None:
    info = os.stat(path_of(broker))
    assert stat.S_ISSOCK(info.st_mode)
    assert stat.S_IMODE(info.st_mode) == 0o600


def test_aiomqtt_over_the_socket(broker: Broker) -> None:
    """A message makes its way from one asyncio client to another."""

    async def talk() -> list[bytes]:
        def client() -> aiomqtt.Client:
            return aiomqtt.Client(path_of(broker), transport="unix", timeout=DEADLINE)

        async with client() as reader, client() as writer:
            await reader.subscribe("test/#", qos=1)
            for number in range(3):
                await writer.publish("test/unix", f"{number}", qos=number)
            found = []
            async for message in reader.messages:
                found.append(bytes(message.payload))  # type: ignore[arg-type]
                if len(found) == 3:
                    return found
        raise AssertionError("unreachable")

    result: list[bytes] = []
    runner = threading.Thread(target=lambda: result.extend(asyncio.run(talk())), daemon=True)
    runner.start()
    runner.join(2 * DEADLINE)
    assert result == [b"0", b"1", b"2"]


def test_rules_know_the_process_at_the_other_end(broker: Broker) -> None:
    """Its user id, from the kernel, is an attribute of the client."""
    client = RawClient(0, mq.V5, sock=dial(Door("unix", "local", path_of(broker), 0))).connect("u")
    assert client.subscribe(f"uid/{os.getuid()}", f"uid/{os.getuid() + 1}") == [0, 0x87]
    assert broker.directory is not None
    control = Client(str(broker.directory / "data" / "mqttd.sock"))
    assert control.get("/clients/u")["listener"] == "unix:local"
    client.close()


def test_the_socket_goes_with_its_listener(broker: Broker) -> None:
    assert broker.directory is not None
    control = Client(str(broker.directory / "data" / "mqttd.sock"))
    control.request("POST", "/listeners/unix:local/stop")
    assert not Path(path_of(broker)).exists()
    control.request("POST", "/listeners/local/start")
    RawClient(0, mq.V5, sock=dial(Door("unix", "local", path_of(broker), 0))).connect().close()


def test_a_socket_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "s"))
        taken.listen()
        with pytest.raises(RuntimeError, match=r"listener\.unix\.x: .*in use by another process"):
            start_broker(tmp_path, listener={"unix": {"x": {"path": str(tmp_path / "s")}}})
