"""Connections that the kernel keeps until they have sent something (`defer_accept`)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import doors_of

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="this system has no TCP_DEFER_ACCEPT"
)
DEADLINE = 20.0  # seconds; what is waited for takes one


@pytest.fixture(scope="module", params=["engine", "twisted"])
def broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    common = {"bind": "127.0.0.1:0", "transport": request.param, "first_byte_timeout": "500ms"}
    folder: Path = tmp_path_factory.mktemp("defer")
    listener = {"tcp": {"deferred": common, "shown": {**common, "defer_accept": False}}}
    running = start_broker(folder, listener=listener)
    yield running
    running.stop()


def dial(broker: Broker, name: str) -> socket.socket:
    door = doors_of(broker)[f"tcp:{name}"]
    sock = socket.create_connection((door.host, door.port), DEADLINE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@pytest.mark.parametrize("name", ["deferred", "shown"])
def test_who_speaks_at_once_is_served_at_once(broker: Broker, name: str) -> None:
    client = RawClient(0, mq.V5, sock=dial(broker, name), deadline=DEADLINE)
    client.connect("speaks")
    client.ping()
    client.close()


@pytest.mark.parametrize("name", ["deferred", "shown"])
def test_who_says_nothing_is_closed_either_way(broker: Broker, name: str) -> None:
    began = time.monotonic()
    with dial(broker, name) as silent:
        try:
            assert silent.recv(1) == b""
        except ConnectionResetError:
            pass
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("name", ["deferred", "shown"])
def test_a_connect_in_pieces_is_served_too(broker: Broker, name: str) -> None:
    with dial(broker, name) as slow:
        packet = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04late"
        for at in range(len(packet)):
            slow.sendall(packet[at : at + 1])
        assert slow.recv(4) == b"\x20\x02\x00\x00"


@pytest.mark.parametrize("name", ["deferred", "shown"])
def test_who_goes_without_a_word_leaves_nothing_behind(broker: Broker, name: str) -> None:
    for _ in range(20):
        dial(broker, name).close()
    client = RawClient(0, mq.V5, sock=dial(broker, name), deadline=DEADLINE)
    client.connect("after")
    client.ping()
    client.close()
