"""Nodes of a cluster whose etcd asks for certificates, and for passwords."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.pipeline.log.cluster import Exports
from mqttd.pipeline.log.pull import Away
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import asked, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    authority.write(folder)
    # A server that hands JSON on to itself shows this certificate as a client, too.
    authority.node("etcd").write(folder, "dns-only")
    authority.both("etcd", "127.0.0.1").write(folder, "etcd")
    for name in ("client", "a", "b"):
        authority.client(name).write(folder, name)
    Authority("another").client("x").write(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def etcd(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = start_etcd(tmp_path_factory.mktemp("etcd"), 3, certificates)
    yield started
    started.stop()


def shown(certificates: Path, name: str) -> dict[str, object]:
    return {
        "etcd_ca_file": str(certificates / "ca.crt"),
        "etcd_certificate": str(certificates / f"{name}.crt"),
        "etcd_private_key": str(certificates / f"{name}.key"),
    }


def crosses(nodes: dict[str, Broker]) -> None:
    """A message from the first node to the second."""
    one, two = (RawClient(node.port).connect(name) for name, node in nodes.items())
    try:
        two.subscribe("t")
        one.publish("t", b"there", qos=1)
        assert two.payloads(1) == [b"there"]
    finally:
        one.close()
        two.close()


def test_17_nodes_and_etcd_show_each_other_certificates(
    certificates: Path, etcd: Etcd, tmp_path: Path
) -> None:
    wanted = {name: shown(certificates, name) for name in ("a", "b")}
    nodes = start_nodes(tmp_path, etcd, wanted)
    try:
        assert nodes["a"].says("node b is linked")
        crosses(nodes)
        # Leases are kept by connections of their own; a member that dies is followed by the next.
        for number in (0, 1):
            etcd.stop(number)
            until(lambda: all(one["state"] == "member" for one in
                              (asked(node, "cluster", "status") for node in nodes.values())),
                  "both are members", 20)  # fmt: skip
            etcd.start(number)
        crosses(nodes)
        assert asked(nodes["a"], "cluster", "status")["state"] == "member"
    finally:
        for node in nodes.values():
            node.stop()


@pytest.mark.parametrize(
    ("name", "said"), [("stranger", "alert"), ("", "alert"), ("plain", "does it speak TLS")]
)
def test_17_a_node_that_etcd_does_not_let_in_says_why(
    certificates: Path, etcd: Etcd, tmp_path: Path, name: str, said: str
) -> None:
    """And waits: it may be etcd's fault, and over in a moment."""
    of = {"etcd_ca_file": str(certificates / "ca.crt"), "kind": "etcd"}
    endpoints = etcd.endpoints
    if name == "plain":
        endpoints = [each.replace("https:", "http:") for each in endpoints]
    elif name:
        of.update(shown(certificates, name))
    broker = start_broker(tmp_path, wait=False, node={"name": "a"}, cluster={
        **of, "endpoints": endpoints, "bind": "127.0.0.1:0", "lease": "2s"})  # fmt: skip
    try:
        assert broker.says(said)
    finally:
        broker.stop()
        print(broker.output[-4000:])


@pytest.fixture
def wants_users(tmp_path: Path) -> Iterator[Etcd]:
    started = start_etcd(tmp_path / "etcd", 3)
    started.want_users("root's", "mqttd", "s3cret", "/mqttd/")
    yield started
    started.stop()


def test_17_nodes_log_in_to_etcd(wants_users: Etcd, tmp_path: Path) -> None:
    """Again when etcd knows their tokens no more: it has them in memory, each member its own."""
    etcd = wants_users
    (tmp_path / "password").write_text("s3cret\n")
    login = {"etcd_user": "mqttd", "etcd_password_file": str(tmp_path / "password")}
    nodes = start_nodes(tmp_path, etcd, {"a": login, "b": login})
    try:
        assert nodes["a"].says("node b is linked")
        crosses(nodes)
        for number in range(3):
            etcd.stop(number)
            etcd.start(number)
        etcd.stop()
        etcd.start()
        late = start_node(tmp_path, etcd, "c", cluster=login)
        nodes["c"] = late
        until(
            lambda: len(asked(nodes["a"], "cluster", "status")["nodes"]) == 3, "all are there", 30
        )
        crosses({"a": nodes["a"], "c": late})
        exports = Exports(etcd.endpoints, "mqttd", user="mqttd", password="s3cret")
        assert exports.urls() == {}
        with pytest.raises(Away, match="authentication failed"):
            Exports(etcd.endpoints, "mqttd", user="mqttd", password="wrong").urls()
        assert "s3cret" not in "".join(node.output for node in nodes.values())
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")


def test_17_a_wrong_password_is_said(wants_users: Etcd, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong")
    login = {"etcd_user": "mqttd", "etcd_password_file": str(tmp_path / "password")}
    more = {"kind": "etcd", "endpoints": wants_users.endpoints, "bind": "127.0.0.1:0"}
    broker = start_broker(tmp_path, wait=False, node={"name": "a"}, cluster={**more, **login})
    try:
        assert broker.says("authentication failed")
        shown = asked(broker, "cluster", "status")
        assert shown["state"] == "starting"
        assert "authentication failed" in shown["etcd_refuses"]
    finally:
        broker.stop()
