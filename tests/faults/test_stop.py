"""A broker that is stopped, or drained, under load: nothing that was acknowledged is lost.

Some hundred clients; MQTTD_LONG=1: 10,000, and the figures are printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.running import raise_file_limit
from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.crowded import Crew, Member

LONG = os.environ.get("MQTTD_LONG") == "1"
COUNT = 10_000 if LONG else 300
#: Messages that are acknowledged before the end.
LOAD = 50_000 if LONG else 2_000
#: Seconds that a stop may take (`mqttd.service`).
BOUND = 60.0
SETTINGS: dict[str, Any] = {
    "store": {"kind": "sqlite"},
    "mqueue": {"max_length": 100_000, "max_bytes": "1GiB"},
    "listener": {
        "tcp": {
            "default": {
                "bind": "127.0.0.1:0",
                "max_connections": 2 * COUNT,
                "max_connections_per_address": 2 * COUNT,
            }
        }
    },
}
pytestmark = pytest.mark.timeout(900 if LONG else 120)


def test_what_was_acknowledged_survives_a_stop_under_load(tmp_path: Path) -> None:
    raise_file_limit()
    crew = Crew(COUNT)
    broker = start_broker(tmp_path, **SETTINGS)
    try:
        crew.connect(broker.port)
        crew.publish(broker.port)
        crew.until(lambda: sum(map(len, crew.acknowledged)) >= LOAD, "acknowledgements")
        assert broker.process is not None
        began = time.monotonic()
        broker.process.terminate()
        crew.until(lambda: not crew.lines, "the end of all connections")
        hung_up = time.monotonic() - began
        # twistd ends by the signal that it was sent.
        assert broker.process.wait(BOUND) == -signal.SIGTERM
        assert broker.says("mqttd stopped")
        took = time.monotonic() - began
        assert took < BOUND  # the bound that is promised
        assert Counter(crew.ended.values()) == {0x8B: COUNT}
        before = sum(map(len, crew.got))
        acknowledged = sum(map(len, crew.acknowledged))

        broker = start_broker(tmp_path, **SETTINGS)
        crew.publishing = False
        members = crew.connect(broker.port, clean=False)
        assert all(member.present for member in members)
        due = list(range(COUNT))

        def all_there() -> bool:
            due[:] = [n for n in due if not set(crew.acknowledged[n]) <= set(crew.got[n])]
            return not due

        crew.until(all_there, "what was acknowledged")
        after = sum(map(len, crew.got)) - before
        print(
            f"{COUNT} clients, {acknowledged} acknowledged, {before} delivered before the end and"
            f" {after} after it; all told and closed in {hung_up:.2f} s, ended in {took:.2f} s"
        )
    finally:
        crew.close()
        broker.stop()


def test_a_drain_moves_all_clients_at_the_rate(tmp_path: Path) -> None:
    """Each comes to the second broker as soon as it is told to, while messages come there."""
    raise_file_limit()
    rate = 500 if LONG else 100
    crew = Crew(COUNT)
    first, second = (start_broker(tmp_path / name, **SETTINGS) for name in ("first", "second"))
    moved: list[float] = []

    def follow(member: Member, packet: mq.Packet) -> None:
        moved.append(time.monotonic())
        (to,) = [value for name, value in packet.props if name == mq.SERVER_REFERENCE]
        host, _, port = to.rpartition(":")
        assert (host, packet.reason) == ("127.0.0.1", 0x9C)
        crew.join(int(port), member.number)

    try:
        crew.connect(first.port)
        crew.there = 0
        crew.on_end = follow
        assert first.directory is not None and first.process is not None
        drain = subprocess.Popen(
            [Path(sys.executable).parent / "mqttd-ctl", "-c", first.directory / "etc/mqttd.conf",
             "drain", "--rate", f"{rate}/s", "--to", f"127.0.0.1:{second.port}"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        crew.until(lambda: crew.there == COUNT, "all clients at the second broker")
        assert drain.wait(60) == 0
        assert first.process.wait(60) == 0
        seconds = moved[-1] - moved[0]
        # No window of a second has more than the rate, but for the turn that it ends in.
        busiest = max(
            sum(1 for at in moved[n : n + 2 * rate] if at < moved[n] + 1)
            for n in range(0, COUNT, max(1, rate // 10))
        )
        print(f"{COUNT} clients moved in {seconds:.2f} s at {rate}/s; most in a second {busiest}")
        assert len(moved) == COUNT
        publishers = crew.publish(second.port)
        crew.until(lambda: sum(map(len, crew.acknowledged)) >= LOAD // 10, "acknowledgements")
        crew.publishing = False
        crew.until(lambda: all(not one.waiting for one in publishers), "the last of them")
        crew.until(
            lambda: sum(map(len, crew.got)) == sum(one.sent for one in publishers), "all messages"
        )
    finally:
        crew.close()
        first.stop()
        second.stop()
