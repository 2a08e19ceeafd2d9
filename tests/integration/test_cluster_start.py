"""A node that is started while etcd is away: nobody waits at its listeners until it is a member."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told
from tests.support.etcd import start_etcd
from tests.support.nodes import LASTS, asked, start_node
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


def taken(folder: Path, **more: object) -> str:
    """What a broker says that cannot have the place of another."""
    with pytest.raises(RuntimeError) as refused:
        start_broker(folder, **more).stop()
    assert "Traceback" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("transport", ["engine", "twisted"])
def test_who_comes_before_it_is_a_member_is_refused_and_its_port_is_its_own(
    tmp_path: Path, transport: str
) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    etcd.stop()
    port, path = free_port(), tmp_path / "mqtt.sock"
    listener = {
        "tcp": {"default": {"bind": f"127.0.0.1:{port}", "transport": transport}},
        "unix": {"default": {"path": str(path), "transport": transport}},
    }
    node = start_node(tmp_path, etcd, "a", listener=listener, wait=False)
    try:
        assert node.says("waiting for etcd (cluster.endpoints): ")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)
        assert not path.exists()
        said = taken(tmp_path / "other", listener={"tcp": listener["tcp"]})
        assert f"listener.tcp.default: cannot listen on 127.0.0.1:{port}: Address already" in said
        etcd.start()
        assert node.says("mqttd ready")
        RawClient(port).connect("c").close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    finally:
        node.stop()
        etcd.stop()


def test_a_listener_that_is_added_while_it_waits_waits_with_the_others(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    etcd.stop()
    node = start_node(tmp_path, etcd, "a", wait=False)
    assert node.process is not None
    ports = {"added": free_port(), "started": free_port()}
    try:
        assert node.says("waiting for etcd")
        config = tmp_path / "a" / "etc" / "mqttd.conf"
        add(config, "added", ports["added"])
        node.process.send_signal(signal.SIGHUP)
        assert node.says("configuration read again")
        add(config, "started", ports["started"])
        told(node, "listeners", "start", "tcp:started")
        for port in ports.values():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 10)
        etcd.start()
        assert node.says("mqttd ready")
        for port in ports.values():
            RawClient(port).connect("c").close()
    finally:
        node.stop()
        etcd.stop()


def add(config: Path, name: str, port: int) -> None:
    """One listener more."""
    config.write_text(f'{config.read_text()}\n[listener.tcp.{name}]\nbind = "127.0.0.1:{port}"\n')


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_place_that_another_has_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    """Whether etcd answers or not."""
    path = str(tmp_path / "mqtt.sock")
    other = start_broker(tmp_path / "other", listener={"unix": {"default": {"path": path}}})
    listener = {"tcp": {"default": {"bind": f"127.0.0.1:{other.port}"}}}
    cluster = {"kind": "etcd", "endpoints": [f"http://127.0.0.1:{free_port()}"],
               "bind": "127.0.0.1:0"}  # fmt: skip
    if kind == "unix":
        listener = {"unix": {"default": {"path": path}}}  # type: ignore[dict-item]
    try:
        said = taken(tmp_path / "a", node={"name": "a"}, cluster=cluster, listener=listener)
        assert f"mqttd cannot start: listener.{kind}.default: " in said
        assert "in use" in said
    finally:
        other.stop()


def test_status_says_since_when_etcd_is_silent_and_why(tmp_path: Path) -> None:
    """Of a node that waits for it, and of one that is in a minority."""
    etcd = start_etcd(tmp_path / "etcd")
    etcd.stop()
    endpoints = [*etcd.endpoints, f"http://127.0.0.1:{free_port()}"]
    node = start_node(tmp_path, etcd, "a", cluster={"endpoints": endpoints}, wait=False)
    assert node.says("waiting for etcd")

    def silent(state: str) -> bool:
        said = asked(node, "cluster", "status")
        return said["state"] == state and len(said["etcd_errors"]) == 2

    try:
        for state in ("starting", "minority"):
            until(lambda state=state: silent(state), "both were asked", 20)
            said = asked(node, "cluster", "status")
            assert said["etcd_silent"] > 0
            assert [each["endpoint"] for each in said["etcd_errors"]] == sorted(endpoints)
            assert all("refused" in each["reason"] for each in said["etcd_errors"])
            line = next(each for each in told(node, "cluster", "status").splitlines()
                        if each.startswith("etcd silent"))  # fmt: skip
            assert all(f"{each}: Connection" in line for each in endpoints)
            etcd.start()
            until(lambda: asked(node, "cluster", "status")["state"] == "member", "it is one", 30)
            until(lambda: "etcd silent" not in told(node, "cluster", "status"), "it answers", 10)
            etcd.stop()
    finally:
        node.stop()
        etcd.stop()


def test_a_link_is_told_once(tmp_path: Path) -> None:
    """A node that begins ends its first one to another, to have what that retains with the next."""
    etcd = start_etcd(tmp_path / "etcd")
    nodes = [start_node(tmp_path, etcd, "b", cluster=LASTS)]
    try:
        nodes.append(start_node(tmp_path, etcd, "a", cluster=LASTS))  # it dials the other
        assert nodes[0].says("node a is linked") and nodes[1].says("node b is linked")
        told(nodes[0], "cluster", "nodes")
        assert [node.output.count("is linked") for node in nodes] == [1, 1]
        nodes.pop().stop(hard=True)
        nodes.append(start_node(tmp_path, etcd, "a", cluster=LASTS))
        assert nodes[0].says("node a is linked", times=2)
    finally:
        for node in nodes:
            node.stop()
        etcd.stop()


def test_a_place_that_is_taken_while_it_waits_ends_it_with_one_line(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    etcd.stop()
    listener = {"unix": {"default": {"path": str(tmp_path / "mqtt.sock")}}}
    node = start_node(tmp_path, etcd, "a", listener=listener, wait=False)
    other: Broker | None = None
    try:
        assert node.says("waiting for etcd")
        other = start_broker(tmp_path / "other", listener=listener)
        etcd.start()
        assert node.says("mqttd cannot start: listener.unix.default: ")
        assert node.process is not None
        until(lambda: node.process.poll() == 1, "it ends", 20)  # type: ignore[union-attr]
        assert "Traceback" not in node.output
    finally:
        node.stop()
        if other is not None:
            other.stop()
        etcd.stop()
