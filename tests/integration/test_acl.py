"""Access rules of a real broker, seen from outside: clients, mqttd-ctl, the log."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import run
from tests.support.doors import dial, doors_of

Ctl = Callable[..., subprocess.CompletedProcess[str]]

OPEN = "{allow, all}.\n"
CLOSED = """{deny, {client, "sensor"}, publish, ["plant/secret"]}.
{deny, all, subscribe, ["secret/#"]}.
{allow, all}.
"""


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    return partial(run, tmp_path)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    started: list[Broker] = []

    def start(acl: str, **more: object) -> Broker:
        started.append(start_broker(tmp_path, acl=acl, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


def connected(broker: Broker, client_id: str, version: int = mq.V5) -> RawClient:
    client = RawClient(broker.port, version)
    client.connect(client_id)
    return client


def wait_for(broker: Broker, text: str) -> str:
    """The first line of the broker's log with `text`."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for line in broker.lines:
            if text in line:
                return line
        time.sleep(0.05)
    raise AssertionError(f"no {text!r} in:\n{broker.output}")


def test_a_reload_ends_subscriptions_of_connected_clients(
    running: Callable[..., Broker], ctl: Ctl, tmp_path: Path
) -> None:
    broker = running(OPEN)
    reader, old = connected(broker, "reader"), connected(broker, "old", mq.V311)
    for client in (reader, old):
        client.subscribe(("secret/a", 1), ("open/a", 1))
    (tmp_path / "etc/acl.conf").write_text(CLOSED)
    lost = json.loads(ctl("acl", "diff", str(tmp_path / "etc/acl.conf"), "--json").stdout)
    assert (lost["subscriptions_lost"], lost["clients_changed"]) == (2, 2)
    assert ctl("acl", "reload").returncode == 0
    wait_for(broker, "subscription revoked: client_id=old")
    wait_for(broker, "subscription revoked: client_id=reader")
    assert ctl("publish", "secret/a", "1").stdout == "published to 0 receivers\n"
    assert ctl("publish", "open/a", "2").stdout == "published to 2 receivers\n"
    for client in (reader, old):
        assert client.message().payload == b"2"
        client.close()
    line = wait_for(broker, "denied: client_id=reader")
    assert "action=subscribe" in line and "acl.conf:2 {deny, all, subscribe" in line


def test_on_revoke_disconnect_tells_5_0_clients_why(
    running: Callable[..., Broker], ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQTTD__ACL__ON_REVOKE", "disconnect")
    broker = running(OPEN)
    reader, other = connected(broker, "reader"), connected(broker, "other")
    reader.subscribe(("secret/a", 1))
    other.subscribe(("open/a", 1))
    (tmp_path / "etc/acl.conf").write_text(CLOSED)
    assert ctl("acl", "reload").returncode == 0
    reader.expect_close(0x87)
    other.ping()
    for client in (reader, other):
        client.close()


def test_deny_action_disconnect_and_the_reason_codes_of_ignore(
    running: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = running(CLOSED)
    sensor = connected(broker, "sensor")
    assert sensor.publish("plant/secret", b"x", qos=1).reason == 0x87
    assert sensor.subscribe(("secret/a", 0), ("open/a", 0)) == [0x87, 0]
    sensor.close()
    line = wait_for(broker, "denied: client_id=sensor")
    assert "rule=" in line and "acl.conf:1 {deny, {client, " in line
    broker.stop()
    monkeypatch.setenv("MQTTD__ACL__DENY_ACTION", "disconnect")
    broker = running(CLOSED)
    sensor = connected(broker, "sensor")
    sensor.send(mq.publish("plant/secret", b"x", version=mq.V5))
    sensor.expect_close(0x87)
    sensor.close()


def test_a_refusal_is_explained(running: Callable[..., Broker], ctl: Ctl, tmp_path: Path) -> None:
    broker = running(CLOSED)
    sensor = connected(broker, "sensor")
    told = ctl("acl", "explain", "--client", "sensor", "publish", "plant/secret")
    assert told.returncode == 0
    lines = told.stdout.splitlines()
    assert lines[0] == "DENIED"
    assert f"{tmp_path}/etc/acl.conf:1 {{deny, {{client, " in lines[3]
    told = ctl("acl", "explain", "--client", "other", "--peer", "10.0.0.1", "--user", "eve",
               "subscribe", "open/#", "--json")  # fmt: skip
    answer = json.loads(told.stdout)
    assert answer["allowed"] and answer["rule"].endswith("acl.conf:3 {allow, all}")
    assert [step["reason"] for step in answer["steps"]] == [
        "is about publish only", '"secret/#" shares no topic with "open/#"', "",
    ]  # fmt: skip
    who = json.loads(ctl("acl", "who", "plant/secret", "--access", "publish", "--json").stdout)
    assert who["clients"] == []
    who = json.loads(ctl("acl", "who", "plant/#", "--access", "publish", "--json").stdout)
    assert [one["client_id"] for one in who["clients"]] == ["sensor"]
    assert "acl.conf:3: sys:" in ctl("acl", "lint").stdout
    assert ctl("acl", "rules").stdout.count("acl.conf") == 3
    sensor.close()


def test_a_candidate_is_tried_out_and_promoted(
    running: Callable[..., Broker], ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQTTD__ACL__SHADOW__FILE", "next.conf")
    broker = running(OPEN, files={"next.conf": CLOSED})
    reader = connected(broker, "reader")
    assert reader.subscribe(("secret/a", 1), ("open/a", 1)) == [1, 1]
    line = wait_for(broker, "acl shadow differs")
    assert "would=deny" in line and "topic=secret/a" in line and "next.conf:2 " in line
    told = json.loads(ctl("acl", "shadow", "--json").stdout)
    assert (told["compared"], told["would_deny"], told["would_allow"]) == (2, 1, 0)
    assert "secret/a" in ctl("acl", "shadow").stdout
    done = ctl("acl", "promote")
    assert done.stdout.endswith("acl.conf.bak\n"), done.stderr
    wait_for(broker, "subscription revoked: client_id=reader")
    assert (tmp_path / "etc/acl.conf").read_text() == CLOSED
    assert (tmp_path / "etc/acl.conf.bak").read_text() == OPEN
    assert reader.subscribe(("secret/a", 1)) == [0x87]
    reader.close()


def test_a_mistake_in_the_rules_stops_the_start_and_names_its_place(
    running: Callable[..., Broker],
) -> None:
    with pytest.raises(RuntimeError, match=r"acl\.conf:2:7: found all, expected ',' or '}'"):
        running("{allow, all}.\n{deny all}.\n")


def test_the_rules_that_emqx_5_ships_work_unchanged(running: Callable[..., Broker]) -> None:
    from tests.unit.access.test_acl_conf import EMQX_5

    broker = running(EMQX_5)
    local = connected(broker, "local")
    assert local.subscribe(("$SYS/#", 0), ("#", 0), ("a/+", 0)) == [0, 0, 0]
    local.close()


def reset_before_it_is_read(broker: Broker, client: RawClient, *parts: bytes) -> None:
    """The broker stands still; the client sends, and its connection is reset; the broker goes on.

    Now the kernel has what was sent, and tells no address any more.
    """
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        client.send(*parts)
        sock = getattr(client.sock, "sock", client.sock)  # that below a WebSocket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


def test_a_reset_gets_nothing_past_a_rule_about_addresses(
    running: Callable[..., Broker], ctl: Ctl
) -> None:
    broker = running(
        '{deny, {ipaddr, "127.0.0.1"}, publish, ["secret"]}.\n{allow, all}.\n',
        listener={"ws": {"door": {"bind": "127.0.0.1:0"}}},
    )
    watcher = connected(broker, "watcher")
    watcher.subscribe("secret", "open")
    hasty = connected(broker, "hasty")
    reset_before_it_is_read(
        broker, hasty,
        mq.publish("secret", b"no", version=mq.V5), mq.publish("open", b"yes", version=mq.V5),
    )  # fmt: skip
    assert watcher.message().payload == b"yes"

    door = RawClient(0, mq.V5, sock=dial(doors_of(broker)["ws:door"]))
    assert ctl("bans", "add", "peerhost", "127.0.0.0/8").returncode == 0
    reset_before_it_is_read(
        broker, door, mq.connect("banned", mq.V5), mq.publish("open", b"no", version=mq.V5)
    )
    # Its address is the one that `accept` told: the ban holds.
    assert "banned: peerhost" in wait_for(broker, "connect refused")
    counters = json.loads(ctl("metrics", "--json").stdout)["counters"]
    assert counters["messages_received_qos0"] == 2


@pytest.mark.timeout(120)
def test_rules_that_are_sent_along_are_not_looked_at_in_the_broker(
    running: Callable[..., Broker], tmp_path: Path
) -> None:
    """They were in a thread, which held the interpreter, and in the loop: no client was served."""
    broker = running(OPEN)
    client = connected(broker, "client")
    client.subscribe(("a/#", 1))
    door = Client(str(tmp_path / "data/mqttd.sock"), timeout=60)
    # Each is looked for among all others with a placeholder at its level.
    text = "".join(f'{{deny, all, subscribe, ["x%u{n}/#"]}}.\n' for n in range(1200))
    many = "".join(f'{{allow, {{user, "u{n}"}}, publish, ["a/{n}"]}}.\n' for n in range(8000))
    before = broker.cpu_seconds()
    assert door.request("POST", "/acl/lint", {"text": text})["findings"] == []
    found = door.request("POST", "/acl/diff", {"text": many})
    assert (found["rules_added"], found["clients"], found["clients_changed"]) == (8000, 1, 1)
    # As quick as the machine and the code are, this is done in time or given up.
    try:
        door.request("POST", "/acl/lint", {"text": text.replace("x", "y") * 5})
    except CtlError as error:
        assert re.search(r"more than 10 s.*mqttd-ctl acl lint FILE", str(error))
    assert broker.cpu_seconds() - before < 1
    client.ping()
