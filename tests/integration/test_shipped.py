"""The shipped access rules go by the client's address: they hold when its connection is gone."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient

ETC = Path(__file__).parents[2] / "etc"
DEADLINE = 15.0  # seconds, for what follows the end of a connection
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module", params=["engine", "twisted"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    broker = start_broker(
        tmp_path_factory.mktemp("shipped"),
        acl=(ETC / "acl.conf").read_text("utf-8"),
        listener={"tcp": {"default": {"transport": request.param}}},
    )
    try:
        yield broker.port
    finally:
        broker.stop()


def leave(client: RawClient, how: str) -> None:
    if how == "says goodbye":
        client.send(mq.disconnect(client.version))
    elif how == "breaks a rule":
        client.send(b"\x36\x06\x00\x01a\x00\x01\x00")
        client.expect_close()
    elif how == "is reset":
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.sock.close()


@pytest.mark.parametrize("how", ["says goodbye", "closes", "is reset", "breaks a rule"])
def test_a_session_keeps_its_subscriptions(port: int, how: str) -> None:
    name = f"{port}-{how.replace(' ', '-')}"
    subscriber = RawClient(port)
    subscriber.connect(name, clean=False)
    assert subscriber.subscribe(f"{name}/#", qos=1) == [1]
    leave(subscriber, how)
    publisher = RawClient(port)
    publisher.connect(f"{name}-publisher")
    publisher.publish(f"{name}/news", b"one", 1)
    back = RawClient(port)
    back.connect(name, clean=False)
    assert back.resumed
    back.message(topic=f"{name}/news", payload=b"one")
    publisher.publish(f"{name}/news", b"two", 1)
    back.message(topic=f"{name}/news", payload=b"two")


@pytest.mark.parametrize("how", ["closes", "is reset", "breaks a rule"])
def test_a_will_is_published(port: int, how: str) -> None:
    name = f"{port}-{how.replace(' ', '-')}"
    watcher = RawClient(port)
    watcher.connect(f"{name}-watcher")
    watcher.subscribe(f"{name}/will", qos=1)
    client = RawClient(port)
    client.connect(name, will=mq.Will(f"{name}/will", b"gone", 1))
    leave(client, how)
    watcher.message(payload=b"gone", deadline=DEADLINE)
