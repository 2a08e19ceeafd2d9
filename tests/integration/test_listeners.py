"""Listeners that change while the broker runs: a new configuration, without and with a restart."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.main import Client, CtlError
from tests.support import packets as mq
from tests.support import waiting
from tests.support.broker import Broker, start_broker, to_toml
from tests.support.client import RawClient
from tests.support.doors import KINDS, TRANSPORTS, dial, doors_of, write_certificates

DEADLINE = 20.0  # seconds; what is waited for takes a part of one
until = partial(waiting.until, deadline=DEADLINE)
DOORS = [f"{kind}:{transport}" for kind in KINDS for transport in TRANSPORTS]


class Site:
    """A broker with every door, and its configuration file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_certificates(folder / "etc" / "certs")
        listener: dict[str, dict[str, Any]] = {}
        for door in DOORS:
            kind, _, name = door.partition(":")
            where = {"path": str(folder / name)} if kind == "unix" else {"bind": "127.0.0.1:0"}
            listener.setdefault(kind, {})[name] = {**where, "transport": name}
        chain = {"chain": ["certificate", "anonymous"]}
        self.broker: Broker = start_broker(folder, listener=listener, auth=chain)
        self.file = folder / "etc" / "mqttd.conf"
        self.before = self.file.read_text()
        self.control = Client(str(folder / "data" / "mqttd.sock"))

    def configure(self, door: str, **settings: Any) -> None:
        """Change keys of one listener in the file; a None takes one away."""
        tables = tomllib.loads(self.file.read_text())
        kind, _, name = door.partition(":")
        listener = tables["listener"].setdefault(kind, {}).setdefault(name, {})
        listener.update(settings)
        for key in [key for key, value in listener.items() if value is None]:
            del listener[key]
        self.file.write_text(to_toml(tables))

    def client(self, door: str, version: int = mq.V5, certificate: str = "") -> RawClient:
        where = doors_of(self.broker)[door]
        sock = dial(where, self.folder / "etc" / "certs", certificate)
        return RawClient(0, version, sock=sock, deadline=DEADLINE)

    def post(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.control.request("POST", f"/listeners/{path}")
        return answer

    def described(self, door: str) -> dict[str, Any]:
        listed = self.control.get("/listeners")["listeners"]
        return next(entry for entry in listed if entry["id"] == door)

    def hang_up(self) -> None:
        assert self.broker.process is not None
        os.kill(self.broker.process.pid, signal.SIGHUP)

    def alarms(self) -> dict[str, str]:
        found = self.control.get("/alarms")["alarms"]
        return {alarm["name"]: alarm["text"] for alarm in found}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("listeners"))
    yield site
    site.broker.stop()


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """The broker; its configuration and its listeners are put back afterwards."""
    yield running
    running.file.write_text(running.before)
    for told in running.post("reload")["listeners"]:
        if told["restart"]:
            running.post(f"{told['id']}/restart")


@pytest.mark.parametrize("door", DOORS)
def test_a_reload_gives_new_connections_new_limits_and_drops_nobody(site: Site, door: str) -> None:
    stays = site.client(door).connect("stays")
    site.configure(
        door, max_packet_size="2KiB", protocol_versions=["5.0"], max_connections=7, backlog=99
    )
    changed = ["max_connections", "max_packet_size", "protocol_versions"]
    told = {"id": door, "changed": changed, "restart": ["backlog"], "note": ""}
    assert site.post("reload") == {"listeners": [told]}
    told["changed"] = []
    assert site.post("reload") == {"listeners": [told]}
    assert site.described(door)["max_connections"] == 7
    new = site.client(door).connect("new")
    assert new.connack is not None and new.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 2048
    old = site.client(door, mq.V311).connect("old", reason=1)
    stays.ping()
    site.file.write_text(site.before)
    assert site.post("reload")["listeners"][0]["changed"] == changed
    back = site.client(door, mq.V311).connect("old")
    for client in (stays, new, old, back):
        client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_full_listener_goes_on_when_a_reload_lets_more_in(site: Site, transport: str) -> None:
    door = f"tcp:{transport}"
    site.configure(door, max_connections=1)
    site.post("reload")
    first = site.client(door).connect("first")
    second = site.client(door)
    second.send(mq.connect("second", mq.V5))
    with pytest.raises(TimeoutError):
        second.receive(0.3)
    site.configure(door, max_connections=2)
    site.post("reload")
    second.expect(mq.CONNACK, reason=0)
    first.close()
    second.close()


@pytest.mark.parametrize("door", DOORS)
def test_a_restart_takes_the_whole_new_configuration(site: Site, door: str) -> None:
    """A mountpoint, another transport and rates, on the address there was."""
    other = "twisted" if door.endswith("engine") else "engine"
    before = site.described(door)
    goes = site.client(door).connect("goes")
    site.configure(door, mountpoint="dev/%c/", transport=other, messages_rate=1000)
    assert set(site.post("reload")["listeners"][0]["restart"]) == {"mountpoint", "transport"}
    after = site.post(f"{door}/restart")
    assert (after["state"], after["transport"]) == ("running", other)
    assert (after["host"], after["port"]) == (before["host"], before["port"])
    assert goes.expect(mq.DISCONNECT).reason == 0x8B
    watcher = RawClient(site.broker.port, mq.V5, deadline=DEADLINE).connect("watcher")
    watcher.subscribe("dev/#")
    lamp = site.client(door).connect("lamp")
    lamp.publish("state", b"on")
    assert watcher.message().topic == "dev/lamp/state"
    site.file.write_text(site.before)
    assert site.post(f"{door}/restart")["transport"] == before["transport"]
    again = site.client(door).connect("lamp")
    again.publish("dev/plain", b"")
    assert watcher.message().topic == "dev/plain"
    for client in (goes, watcher, lamp, again):
        client.close()


def test_a_listener_moves_to_another_address_or_stays_where_it_is(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stays = site.client("tcp:engine").connect("stays")
        site.configure("tcp:engine", bind=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(CtlError, match=r"listener\.tcp\.engine: cannot listen on .* in use"):
            site.post("tcp:engine/restart")
        stays.ping()
    site.configure("tcp:engine", bind="[::1]:0")
    moved = site.post("tcp:engine/restart")
    assert moved["host"] == "::1"
    assert stays.expect(mq.DISCONNECT).reason == 0x8B
    sock = socket.create_connection(("::1", moved["port"]), timeout=DEADLINE)
    client = RawClient(0, mq.V5, sock=sock).connect("moved")
    assert site.control.get("/clients/moved")["peerhost"] == "::1"
    client.close()
    stays.close()


def test_a_mistake_in_the_configuration_changes_nothing(site: Site) -> None:
    client = site.client("tcp:engine").connect("stays")
    site.configure("tcp:engine", max_packet_size="much", transport="twisted")
    for operation in ("reload", "tcp:engine/restart"):
        with pytest.raises(
            CtlError, match=r"mqttd\.conf:\d+: .*max_packet_size.*nothing was chang"
        ):
            site.post(operation)
    site.hang_up()
    until(lambda: "max_packet_size" in site.alarms().get("configuration", ""))
    client.ping()
    site.configure("tcp:engine", max_packet_size="2KiB", transport="engine")
    site.hang_up()
    until(lambda: "configuration" not in site.alarms())
    new = site.client("tcp:engine").connect("new")
    assert new.connack is not None and new.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 2048
    client.ping()
    client.close()
    new.close()


@pytest.mark.parametrize("operation", ["reload", "restart"])
@pytest.mark.parametrize("door", ["tcp:engine", "ws:twisted"])
def test_a_listener_gets_a_chain_of_its_own(site: Site, door: str, operation: str) -> None:
    path = operation if operation == "reload" else f"{door}/{operation}"
    other = site.client("ws:engine").connect("other")
    (site.folder / "etc" / "users").write_text("")
    site.configure(door, auth_chain=["username"])
    site.client(door).connect("c").close()
    told = site.post(path)
    if operation == "reload":
        assert told["listeners"] == [
            {"id": door, "changed": ["auth_chain"], "restart": [], "note": ""}
        ]
    client = site.client(door)
    client.send(mq.connect("c", mq.V5))
    assert client.expect(mq.CONNACK).reason == 0x87
    client.close()
    other.ping()
    site.client("tcp:twisted").connect("c").close()
    site.configure(door, auth_chain=None)
    site.post(path)
    site.client(door).connect("c").close()
    other.close()


def may_publish(site: Site, door: str, topic: str) -> bool:
    client = site.client(door).connect("asks")
    client.send(mq.publish(topic, b"", 1, 1, version=mq.V5))
    allowed = client.expect(mq.PUBACK).reason != 0x87
    client.close()
    return allowed


def test_a_restart_gives_a_listener_rules_of_its_own(site: Site) -> None:
    rules = site.folder / "etc" / "own.acl"
    rules.write_text('{allow, all, publish, ["up/#"]}.\n{deny, all}.\n')
    site.configure("tcp:engine", acl_file=str(rules))
    site.post("tcp:engine/restart")
    assert may_publish(site, "tcp:engine", "up/1") and not may_publish(site, "tcp:engine", "t")
    assert may_publish(site, "tcp:twisted", "t")
    rules.write_text('{allow, all, publish, ["t"]}.\n{deny, all}.\n')
    site.post("tcp:engine/restart")
    assert may_publish(site, "tcp:engine", "t") and not may_publish(site, "tcp:engine", "up/1")
    site.configure("tcp:engine", acl_file=None)
    site.post("tcp:engine/restart")
    assert may_publish(site, "tcp:engine", "t") and may_publish(site, "tcp:engine", "up/1")


def test_rules_that_cannot_be_read_leave_a_listener_as_it_was(site: Site) -> None:
    client = site.client("ws:engine").connect("stays")
    rules = site.folder / "etc" / "wrong.acl"
    rules.write_text("{allow, nobody}.\n")
    site.configure("ws:engine", acl_file=str(rules))
    with pytest.raises(
        CtlError, match=r"listener\.ws\.engine: .*wrong\.acl:1.*nothing was changed"
    ):
        site.post("ws:engine/restart")
    rules.unlink()
    with pytest.raises(CtlError, match=r"wrong\.acl: No such file.*; nothing was changed"):
        site.post("ws:engine/restart")
    site.configure("ws:engine", acl_file=None, auth_chain=["nonesuch"])
    with pytest.raises(CtlError, match="nonesuch.*nothing was changed"):
        site.post("ws:engine/restart")
    client.ping()
    assert site.described("ws:engine")["state"] == "running"
    client.close()


def test_a_new_listener_may_have_a_chain_of_its_own(site: Site) -> None:
    site.configure("tcp:apart", bind="127.0.0.1:0", auth_chain=["username"])
    assert site.post("tcp:apart/start")["state"] == "running"
    client = site.client("tcp:apart")
    client.send(mq.connect("c", mq.V5))
    assert client.expect(mq.CONNACK).reason == 0x87
    client.close()
    assert site.post("tcp:apart/stop")["state"] == "stopped"


def test_a_listener_comes_and_goes_with_the_configuration(site: Site) -> None:
    site.configure("tcp:late", bind="127.0.0.1:0", max_packet_size="3KiB")
    assert site.post("reload")["listeners"] == [
        {"id": "tcp:late", "changed": [], "restart": [],
         "note": "new in the configuration; it can be started"}
    ]  # fmt: skip
    with pytest.raises(CtlError, match="no listener 'tcp:never'; there are: "):
        site.post("tcp:never/start")
    assert site.post("tcp:late/start")["state"] == "running"
    client = site.client("tcp:late").connect("early")
    assert client.connack is not None and client.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 3072
    site.file.write_text(site.before)
    assert "not in the configuration any more" in site.post("reload")["listeners"][0]["note"]
    client.ping()
    with pytest.raises(CtlError, match="not in the configuration any more"):
        site.post("tcp:late/restart")
    client.ping()
    assert site.post("tcp:late/stop")["state"] == "stopped"
    assert site.post("reload") == {"listeners": []}
    client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reload_changes_what_a_tls_listener_asks_for(site: Site, transport: str) -> None:
    """Certificates are demanded of new clients; files that are not there change nothing."""
    door = f"ssl:{transport}"
    stays = site.client(door).connect("stays")
    site.configure(door, verify="required", ca_file="certs/missing.crt")
    told = site.post("reload")["listeners"][0]
    assert "missing.crt" in told["note"] and told["changed"] == []
    site.client(door).connect("open").close()
    site.configure(door, ca_file="certs/ca.crt", cert_as_username="cn")
    assert site.post("reload")["listeners"][0]["note"] == ""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        refused = site.client(door)
        refused.sock.sendall(mq.connect("refused", 5))
        if not refused.sock.recv(4):
            raise ConnectionResetError
    known = site.client(door, certificate="client").connect("known")
    assert site.control.get("/clients/known")["username"] == "device-7"
    stays.ping()
    stays.close()
    known.close()


def test_the_command_says_what_it_did(site: Site) -> None:
    def ctl(*argv: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).parent / "mqttd-ctl"
        return subprocess.run([program, "--config", site.file, "listeners", *argv],
                              capture_output=True, text=True, timeout=30)  # fmt: skip

    assert ctl("reload").stdout == "nothing differs from the configuration\n"
    site.configure("wss:engine", origins=["*"], mountpoint="a/")
    assert ctl("reload").stdout == (
        "wss:engine: changed origins; waits for a restart: mountpoint\n"
    )
    assert ctl("restart", "wss:engine").stdout == "listener wss:engine is running\n"
    site.configure("wss:engine", path="bad")
    wrong = ctl("restart", "wss:engine")
    assert wrong.returncode == 1 and wrong.stderr.count("\n") == 1 and "wss.engine" in wrong.stderr
