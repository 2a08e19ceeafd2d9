"""The attacks of benchmarks.hostile: each opens against anything that listens, and stops."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator

import pytest

from tests.support.waiting import until

NAMES = ["client_hellos", "endless_connects", "silence", "wrong_passwords"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(10)
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_stops(listener: socket.socket, name: str) -> None:
    module = importlib.import_module(f"benchmarks.hostile.{name}")
    attack = module.open_attack(listener.getsockname()[1], rate=100.0)
    peer, address = listener.accept()
    assert address[0] == "127.0.0.66"
    peer.settimeout(10)
    assert peer.recv(100)
    until(lambda: attack.steps > 0, "a step", 10)
    module.stop(attack)
    while peer.recv(65536):
        pass
    peer.close()
    assert attack.sent > 0
