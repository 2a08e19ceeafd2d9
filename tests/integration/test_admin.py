"""The operator's door of a real broker: mqttd-ctl, `$SYS`, and the socket itself."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.ctl import run

Ctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = start_broker(tmp_path)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    return partial(run, tmp_path)


def test_an_operator_looks_in_and_acts(broker: Broker, ctl: Ctl, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "data/mqttd.sock").stat().st_mode) == 0o600
    status = json.loads(ctl("status", "--json").stdout)
    assert [listener["port"] for listener in status["listeners"]] == [broker.port]
    assert broker.process is not None and status["pid"] == broker.process.pid

    client = RawClient(broker.port, mq.V5)
    try:
        client.connect("one/two")
        client.subscribe(("$SYS/broker/version", 0))
        version = client.message()
        assert version.payload == f"mqttd {status['version']}".encode()
        client.subscribe(("news", 1))
        assert "published to 1 receiver" in ctl("publish", "news", "-", stdin="hello").stdout
        assert client.message(topic="news").payload == b"hello"

        assert "one/two" in ctl("clients", "list").stdout
        assert "news" in ctl("subscriptions", "list", "--client", "one/two").stdout
        shown = json.loads(ctl("clients", "show", "one/two", "--json").stdout)
        assert (shown["subscriptions"], shown["protocol_version"]) == (2, 5)
        assert (shown["clean_start"], shown["messages_received"]) == (True, 0)
        client.publish("news/not", b"1", 1, packet_id=9)
        shown = json.loads(ctl("clients", "show", "one/two", "--json").stdout)
        assert (shown["messages_received"], shown["messages_dropped"]) == (1, 0)
        counted = json.loads(ctl("metrics", "--json").stdout)["counters"]
        assert shown["bytes_received"] == counted["bytes_received"] > 0
        assert shown["bytes_sent"] == counted["bytes_sent"] > 0
        assert 0 <= time.time() - shown["connected_at"] < 60
        table = ctl("clients", "list", "--columns", "client_id,keep_alive,bytes_sent").stdout
        assert table.splitlines()[0].split("  ") == ["client id", "keep alive", "bytes sent"]
        assert "there are: client_id, username" in ctl("clients", "list", "--columns", "x").stderr
        assert ctl("clients", "kick", "one/two").returncode == 0
        client.expect_close(0x98)
    finally:
        client.close()


def test_a_broker_alone_has_no_nodes(broker: Broker, ctl: Ctl) -> None:
    client = RawClient(broker.port, mq.V5).connect("pump")
    client.subscribe("a/+")
    for words in ("clients list", "clients show pump", "clients kick pump", "status", "metrics"):
        done = ctl(*words.split(), "--node", "b")
        text = "mqttd-ctl: --node: the broker that was asked is no node of a cluster\n"
        assert (done.returncode, done.stderr) == (1, text)
    for words in ("clients list", "subscriptions list", "topics list", "routes show a/b"):
        told = json.loads(ctl("--json", *words.split()).stdout)
        assert "missing" not in told and '"node' not in json.dumps(told)
    lines = ctl("routes", "show", "a/b").stdout.splitlines()
    assert lines[0].split() == ["topic", "filter", "group", "receivers", "clients"]
    assert lines[1].split() == ["a/+", "-", "1", "pump"]
    client.close()


def test_a_mistake_in_the_rules_is_told(broker: Broker, ctl: Ctl, tmp_path: Path) -> None:
    assert ctl("acl", "reload").returncode == 0
    (tmp_path / "etc/acl.conf").write_text("{allow, al}.\n")
    refused = ctl("acl", "reload")
    assert refused.returncode == 1
    assert "acl.conf:1" in refused.stderr and refused.stderr.count("\n") == 1


def test_the_socket_goes_with_the_broker_and_one_left_behind_is_no_hindrance(
    broker: Broker, ctl: Ctl, tmp_path: Path
) -> None:
    path = tmp_path / "data/mqttd.sock"
    broker.stop(hard=True)
    assert path.exists()
    gone = ctl("status")
    assert (gone.returncode, gone.stderr) == (1, f"mqttd-ctl: no broker is running at {path}\n")
    again = start_broker(tmp_path)
    try:
        assert ctl("status").returncode == 0
    finally:
        again.stop()
    assert not path.exists()


def test_a_socket_another_broker_listens_on_stops_the_start(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"admin\.socket = .* is in use"):
        start_broker(tmp_path / "second", admin={"socket": str(tmp_path / "data/mqttd.sock")})
    assert (tmp_path / "data/mqttd.sock").exists()


def test_the_door_over_tcp_is_for_who_shows_a_token(tmp_path: Path, ctl: Ctl) -> None:
    authority = Authority()
    folder = tmp_path / "etc"
    folder.mkdir()
    authority.server("localhost", "127.0.0.1").write(folder, "server")
    authority.write(folder)
    (folder / "tokens").write_text("t" * 32 + "\n")
    (folder / "others").write_text("o" * 32 + "\n")
    broker = start_broker(tmp_path, admin={"tcp": {
        "bind": "127.0.0.1:0", "token_file": "tokens",
        "certificate": "server.crt", "private_key": "server.key"}})  # fmt: skip
    try:
        (line,) = [line for line in broker.lines if "HTTP interface on port" in line]
        url = line.split()[-1]

        def remote(token: str, *argv: str, ca: str = "ca.crt") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [Path(sys.executable).parent / "mqttd-ctl", "--url", url,
                 "--token-file", folder / token, "--ca-file", folder / ca, *argv],
                capture_output=True, text=True, timeout=20,
            )  # fmt: skip

        assert "who may connect" in remote("tokens", "status").stdout
        assert "token" in remote("others", "status").stderr
        assert "not trusted" in remote("tokens", "status", ca="server.key").stderr or (
            "server.key" in remote("tokens", "status", ca="server.key").stderr
        )
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))

        def get(path: str, token: str = "") -> tuple[int, str]:
            request = urllib.request.Request(url + path)
            if token:
                request.add_header("Authorization", f"Bearer {token}")
            try:
                with urllib.request.urlopen(request, context=context, timeout=20) as response:
                    return response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, ""

        assert get("/health/live") == (200, '{"live": true}\n')
        assert get("/health/ready") == (200, '{"ready": true}\n')
        assert get("/metrics")[0] == 401
        status, text = get("/metrics", "t" * 32)
        assert status == 200 and "\nmqttd_clients_connected 0\n" in text
    finally:
        broker.stop()


def test_who_has_changed_what_and_the_log_are_told(broker: Broker, ctl: Ctl) -> None:
    ctl("publish", "told/topic", "payload")
    assert "POST /publish" in ctl("audit", "--limit", "5").stdout
    assert len(ctl("log", "tail", "-n", "2").stdout.splitlines()) == 2
    assert "unsent" in ctl("slow").stdout
    assert "no alarm 'nothing' is raised" in ctl("alarms", "--clear", "nothing").stderr
