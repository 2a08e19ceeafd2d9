"""Listeners of a broker of several workers: stopped, new and elsewhere, whichever worker dies."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_workers import asked, id_at
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker, write_settings
from tests.support.client import RawClient
from tests.support.ctl import run
from tests.support.ctl import told as ctl
from tests.support.doors import dial, doors_of
from tests.support.servers import free_port
from tests.support.waiting import until

COUNT = 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(tmp_path, node={"workers": COUNT})
    yield started
    started.stop()


def workers(broker: Broker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked(broker, "status")["workers"]
    return [one for one in found if one["state"] != "starting"]


def kill(broker: Broker, number: int) -> None:
    """End a worker, and wait until it is back."""
    before = {one["worker"]: one["pid"] for one in workers(broker)}
    os.kill(before[number], signal.SIGKILL)

    def back() -> bool:
        now = {one["worker"]: one["pid"] for one in workers(broker)}
        return len(now) == COUNT and now[number] != before[number]

    until(back, f"worker {number} is back")


def lets_in(port: int) -> bool:
    """Whether clients of both workers are served there, whichever worker takes the connection."""
    for worker in (1, 2) * 4:
        RawClient(port, mq.V5).connect(id_at(worker, COUNT)).disconnect()
    return True


def refuses(port: int) -> bool:
    for _ in range(8):
        with pytest.raises(ConnectionRefusedError):
            RawClient(port, mq.V5)
    return True


def state(broker: Broker, name: str) -> tuple[str, int]:
    (found,) = [one for one in asked(broker, "listeners", "list")["listeners"] if one["id"] == name]
    return found["state"], found["port"]


def configure(broker: Broker, **listeners: str) -> None:
    """Have these listeners in the configuration, beside the one that there is."""
    assert broker.directory is not None
    more = {name: {"bind": bind} for name, bind in listeners.items()}
    write_settings(broker.directory, {"node": {"workers": COUNT}, "listener": {"tcp": more}})


def test_one_that_was_stopped_stays_so_in_a_worker_that_is_started_again(broker: Broker) -> None:
    ctl(broker, "listeners", "stop", "tcp:default")
    for number in (1, 2):
        kill(broker, number)
        assert refuses(broker.port)
        assert state(broker, "tcp:default") == ("stopped", broker.port)
    assert "is running" in ctl(broker, "listeners", "start", "tcp:default")
    assert lets_in(broker.port)
    kill(broker, 2)
    assert lets_in(broker.port) and state(broker, "tcp:default") == ("running", broker.port)


def test_one_that_is_new_is_open_in_every_worker(broker: Broker) -> None:
    port = free_port()
    configure(broker, more=f"127.0.0.1:{port}")
    ctl(broker, "reload", "--yes")
    assert state(broker, "tcp:more") == ("running", port) and lets_in(port)
    kill(broker, 1)
    assert lets_in(port) and lets_in(broker.port)
    ctl(broker, "listeners", "stop", "tcp:more")
    assert refuses(port)
    kill(broker, 2)
    assert refuses(port)
    ctl(broker, "listeners", "start", "tcp:more")
    assert lets_in(port)
    configure(broker)
    ctl(broker, "reload", "--yes")
    assert refuses(port) and lets_in(broker.port)


def test_one_with_another_address_is_there_and_no_longer_where_it_was(broker: Broker) -> None:
    other = free_port()
    configure(broker, default=f"127.0.0.1:{other}")
    kill(broker, 2)  # it is where the file says, and the other where it was
    ctl(broker, "listeners", "restart", "tcp:default")
    assert refuses(broker.port) and lets_in(other)
    assert state(broker, "tcp:default") == ("running", other)
    kill(broker, 1)
    assert refuses(broker.port) and lets_in(other)
    # And back.
    configure(broker, default=f"127.0.0.1:{broker.port}")
    ctl(broker, "listeners", "restart", "tcp:default")
    assert refuses(other) and lets_in(broker.port)


def test_what_cannot_be_opened_changes_nothing(broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        configure(broker, more=f"127.0.0.1:{taken.getsockname()[1]}")
        done = run(broker, "reload", "--yes")
        assert done.returncode and "cannot listen on" in done.stderr
        assert run(broker, "reload", "--dry-run").stderr == done.stderr
        configure(broker, default=f"127.0.0.1:{taken.getsockname()[1]}")
        done = run(broker, "listeners", "restart", "tcp:default")
        assert done.returncode and "cannot listen on" in done.stderr
    configure(broker, more="127.0.0.1:0")
    done = run(broker, "reload", "--yes")
    assert done.returncode and "needs a restart" in done.stderr
    assert run(broker, "reload", "--dry-run").stderr == done.stderr
    assert lets_in(broker.port) and state(broker, "tcp:default") == ("running", broker.port)


def refused(broker: Broker) -> int:
    return int(asked(broker, "metrics")["counters"]["refused_crowded"])


@pytest.mark.parametrize(("kind", "most"), [("tcp", 4), ("ws", 4 * COUNT)])
def test_an_address_has_its_share_where_all_clients_are_of_one_worker(
    tmp_path: Path, kind: str, most: int
) -> None:
    """Plain connections count at the worker that has them, others at the one that accepted them."""
    door = {"bind": "127.0.0.1:0", "max_connections_per_address": 4}
    broker = start_broker(tmp_path, node={"workers": COUNT}, listener={kind: {"few": door}})
    try:
        place = doors_of(broker)[f"{kind}:few"]
        inside: list[RawClient] = []
        for _ in range(40):
            try:
                client = RawClient(place.port, mq.V5, sock=dial(place))
            except (OSError, EOFError, AssertionError):
                continue  # closed at the door
            client.send(mq.connect(id_at(2, COUNT), mq.V5))
            answer = client.receive()
            if answer is not None and answer.reason == 0:
                inside.append(client)
            else:
                assert answer is None or answer.reason == 0x97
        assert 0 < len(inside) <= most
        for client in inside:
            client.ping()
        # The other worker's figures come once a second.
        until(lambda: refused(broker) >= 40 - most, "those who were refused are counted")
        for client in inside:
            client.disconnect()
    finally:
        broker.stop()


@pytest.mark.parametrize("transport", ["engine", "twisted"])
def test_who_comes_to_a_full_worker_is_answered(tmp_path: Path, transport: str) -> None:
    """Whichever worker takes the connection: its own clients are refused, the others are let in."""
    most = 4
    listener = {"tcp": {"default": {"bind": "127.0.0.1:0", "transport": transport,
                                    "max_connections": most}}}  # fmt: skip
    broker = start_broker(tmp_path, node={"workers": COUNT}, listener=listener)
    clients: list[RawClient] = []

    def comes(worker: int) -> int:
        """The reason code; 0x97 where the connection was closed instead."""
        client = RawClient(broker.port, mq.V5)
        clients.append(client)
        client.send(mq.connect(id_at(worker, COUNT), mq.V5))
        try:
            return int(client.expect(mq.CONNACK).reason)
        except (AssertionError, ConnectionError):
            return 0x97

    try:
        if transport == "engine":
            assert [comes(1) for _ in range(3 * most)] == [0] * most + [0x97] * 2 * most
            assert [comes(2) for _ in range(3 * most)] == [0] * most + [0x97] * 2 * most
        else:
            said = [comes(worker) for worker in (1, 2) * 6 * most]
            assert said.count(0) == COUNT * most and said.count(0x97) == 10 * most
        (shown,) = asked(broker, "listeners", "list")["listeners"]
        assert shown["max_connections"] == shown["connections"] == COUNT * most
    finally:
        for client in clients:
            client.close()
        broker.stop()
