"""Readers of the event log over a slow line: who reads gets all of it, who does not makes room."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.log.pull import PullReader
from mqttd.pipeline.log.reader import LogReader, Run, runs_of
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.waiting import until

TOKEN = "fedcba9876543210fedcba9876543210"
MIB = 1 << 20


class Line:
    """A connection to the door over which so much is asked for; with little room at this end."""

    def __init__(self, port: int, run: Run, ca_file: str) -> None:
        raw = socket.create_connection(("localhost", port), 30)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        context = ssl.create_default_context(cafile=ca_file)
        self.socket = context.wrap_socket(raw, server_hostname="localhost")
        target = f"blocks?node={run.node}&start={run.base}&end={run.end}"
        self.socket.sendall(
            f"GET /api/v1/plugins/spark/log/{target} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
        )
        self.data = bytearray()
        self.error = ""

    def head(self) -> bytes:
        """The first line of the answer."""
        while b"\r\n" not in self.data:
            self._read()
        return bytes(self.data.split(b"\r\n")[0])

    def body(self) -> bytes:
        """What it answers, piece by piece, with a pause after each."""
        pause = threading.Event()
        try:
            while self._read():
                pause.wait(0.002)
        except OSError as error:
            self.error = repr(error)
        return bytes(self.data.partition(b"\r\n\r\n")[2])

    def _read(self) -> bool:
        found = self.socket.recv(64 << 10)
        self.data += found
        return len(found) > 0


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[Broker, int, Run, str]]:
    """A broker with 15 MiB that do not compress in its log, its door, and all of it as one run."""
    authority = Authority()
    authority.write(tmp_path / "etc")
    authority.server("localhost").write(tmp_path / "etc", "server")
    broker = start_broker(
        tmp_path,
        files={"plugins/spark.conf": 'events = ["message.publish"]\n', "pull": f"{TOKEN}\n"},
        plugins={"load": ["spark"]},
        auth={"anonymous": "always"},
        admin={
            "tcp": {
                "bind": "127.0.0.1:0",
                "token_file": "pull",
                "pull_token_file": "pull",
                "certificate": "server.crt",
                "private_key": "server.key",
            }
        },
    )
    try:
        client = Client(Address("127.0.0.1", broker.port))
        for _ in range(15):
            client.publish("t", os.urandom(MIB - 1000), 1)
        client.flush()
        client.close()
        there = LogReader(str(tmp_path / "data/events"))
        end = until(
            lambda: next((b.latest for b in there.bounds().values() if b.latest >= 15), 0),
            broker.output,
        )
        (run,) = runs_of(there.blocks("mqttd", 0, end), 64 * MIB)
        found = until(
            lambda: [line for line in broker.lines if "HTTP interface on port" in line],
            broker.output,
        )
        yield broker, int(found[0].rpartition(":")[2]), run, str(tmp_path / "etc/ca.crt")
    finally:
        broker.stop()


def test_whoever_reads_gets_all_of_it(door: tuple[Broker, int, Run, str]) -> None:
    """Of three the first was ended: 32 MiB were there for all in the broker's memory."""
    _, port, run, ca_file = door
    lines = [Line(port, run, ca_file) for _ in range(5)]
    bodies: dict[Line, bytes] = {}
    threads = [
        threading.Thread(target=lambda line=line: bodies.update({line: line.body()}))
        for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    want = PullReader(f"https://localhost:{port}", TOKEN, ca_file).read_run(run)
    assert [(line.error, bodies[line] == want) for line in lines] == [("", True)] * 5


def test_who_reads_nothing_makes_room(door: tuple[Broker, int, Run, str]) -> None:
    """Eight keep as much as there is room for; the next one is served a little later."""
    broker, port, run, ca_file = door
    lines = [Line(port, run, ca_file) for _ in range(8)]
    assert all(b" 200 " in line.head() for line in lines)
    reader = PullReader(f"https://localhost:{port}", TOKEN, ca_file, patience=30)
    assert len(reader.read_run(run)) == run.size
