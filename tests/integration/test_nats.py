"""The client of NATS against real servers: what it says, what it reads, and who is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.nats import start_nats

pytestmark = pytest.mark.timeout(120)

_HEAD = """
import json, sys
from twisted.internet import task
from twisted.internet.defer import Deferred
from mqttd.nats.client import Nats, NatsError
from mqttd.nats.jetstream import JetStream, Missing

asked = json.loads(sys.argv[1])
found = {}

def secure(host):
    from twisted.internet.ssl import optionsForClientTLS
    from mqttd.cluster.links.tls import roots_of
    return optionsForClientTLS(host, roots_of(asked["ca"]))

async def main(reactor):
    nats = Nats(reactor, asked["servers"], asked["said"], secure if "ca" in asked else None)
    stream = JetStream(nats)

    async def sure(step):
        for _ in range(600):
            try:
                return await step()
            except Missing:
                raise
            except NatsError as error:
                found.setdefault("errors", []).append(str(error))
                await task.deferLater(reactor, 0.05)
        raise AssertionError(found)

    nats.start()
    try:
        await steps(reactor, nats, stream, sure)
    finally:
        nats.stop()
    print(json.dumps(found))

"""
_TAIL = """
task.react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
"""

_STREAM = """
async def steps(reactor, nats, stream, sure):
    await sure(lambda: stream.make("test", "test.*", asked["copies"]))
    await sure(lambda: stream.make("test", "test.*", asked["copies"]))  # it is there
    sizes = [0, 1, 1000, 900_000]
    found["numbers"] = [
        await sure(lambda: stream.append("test.q", b"x" * size)) for size in sizes
    ]
    last = await stream.append("test.m", b"last")
    await stream.cut("test", 1)  # nothing is before it
    found["sizes"] = [len((await stream.get("test", n)).data) for n in found["numbers"]]
    await stream.cut("test", found["numbers"][2])
    found["cut"] = []
    for number in (*found["numbers"], last + 1):
        try:
            found["cut"].append(len((await stream.get("test", number)).data))
        except Missing:
            found["cut"].append(None)
    found["last"] = (await stream.last("test", "test.m")).data.decode()
    found["after"] = await stream.append("test.q", b"") - last
    await stream.remove("test")
    await stream.remove("test")
    try:
        await stream.info("test")
    except Missing:
        found["gone"] = True
"""

_REFUSED = """
async def steps(reactor, nats, stream, sure):
    found["errors"] = []
    nats.lost = found["errors"].append
    while not any("uthor" in each for each in found["errors"]):
        await task.deferLater(reactor, 0.05)
"""

_KILLED = """
async def steps(reactor, nats, stream, sure):
    await sure(lambda: stream.make("test", "test.*", 3))
    number = 0
    print("ready", flush=True)
    while True:
        number += 1
        last = await sure(lambda: stream.append("test.q", b"%d" % number))
        if found.get("errors") and number > 10:
            break
    there = [int((await sure(lambda: stream.get("test", n))).data) for n in range(1, last + 1)]
    found["missing"] = sorted(set(range(1, number + 1)) - set(there))
    found["number"] = number
"""


def run(steps: str, servers: list[str], **asked: Any) -> subprocess.Popen[str]:
    """A program with a client."""
    said = json.dumps({"servers": servers, "said": {}, **asked})
    command = [sys.executable, "-c", _HEAD + steps + _TAIL, said]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def result(program: subprocess.Popen[str]) -> dict[str, Any]:
    """What it has found."""
    said, _ = program.communicate(timeout=100)
    assert program.returncode == 0, said
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    """What `_STREAM` finds."""
    assert found["numbers"] == [1, 2, 3, 4]
    assert found["sizes"] == [0, 1, 1000, 900_000]
    assert found["cut"] == [None, None, 1000, 900_000, None]
    assert (found["last"], found["after"], found["gone"]) == ("last", 1, True)


def test_a_stream_is_made_written_read_and_cut(tmp_path: Path) -> None:
    more = "authorization { user: mqttd, password: secret }"
    servers = start_nats(tmp_path, 1, more)
    try:
        said = {"user": "mqttd", "pass": "secret"}
        check(result(run(_STREAM, servers.addresses, said=said, copies=1)))
        wrong = result(run(_REFUSED, servers.addresses, said={"user": "mqttd", "pass": "no"}))
        assert any("Authorization Violation" in each for each in wrong["errors"])
    finally:
        servers.stop()


def test_with_tls(tmp_path: Path) -> None:
    authority = Authority()
    authority.write(tmp_path)
    authority.server("localhost").write(tmp_path, "server")
    tls = f'tls {{ cert_file: "{tmp_path}/server.crt", key_file: "{tmp_path}/server.key" }}'
    servers = start_nats(tmp_path / "nats", 1, tls)
    try:
        there = [f"localhost:{servers.members[0].port}"]
        check(result(run(_STREAM, there, ca=str(tmp_path / "ca.crt"), copies=1)))
    finally:
        servers.stop()


def test_nothing_is_lost_with_the_leader_of_a_stream(tmp_path: Path) -> None:
    servers = start_nats(tmp_path, 3)
    try:
        program = run(_KILLED, servers.addresses)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        servers.stop(servers.leader("test"))
        found = result(program)
        assert found["missing"] == [] and found["number"] > 10
    finally:
        servers.stop()
