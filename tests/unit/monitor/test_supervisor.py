"""What systemd is told, and when."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from mqttd.monitor.supervisor import Supervisor


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def said(heard: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(heard.recv(4096).decode())
        except BlockingIOError:
            return found


def test_it_hears_of_start_reload_and_end(heard: socket.socket) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": heard.getsockname()}, Clock())
    supervisor.ready()
    supervisor.reloading()
    supervisor.ready()
    supervisor.stopping()
    first, second, third, last = said(heard)
    assert (first, third, last) == ("READY=1", "READY=1", "STOPPING=1")
    assert second.startswith("RELOADING=1\nMONOTONIC_USEC=")


def test_a_sign_of_life_goes_out_twice_in_the_time_of_the_watchdog(heard: socket.socket) -> None:
    clock = Clock()
    environ = {"NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "10000000"}
    supervisor = Supervisor(environ, clock)
    supervisor.ready()
    clock.pump([5.0, 5.0])
    assert said(heard) == ["READY=1", *["WATCHDOG=1"] * 3]
    supervisor.stopping()
    clock.advance(20)
    assert said(heard) == ["STOPPING=1"]
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": "/nowhere"}, {"WATCHDOG_USEC": "1000"},
     {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
)  # fmt: skip
def test_nobody_listens(environ: dict[str, str]) -> None:
    clock = Clock()
    supervisor = Supervisor(environ, clock)
    supervisor.ready()
    supervisor.stopping()
    assert not clock.getDelayedCalls()
