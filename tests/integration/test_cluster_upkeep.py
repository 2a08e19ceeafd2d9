"""What etcd keeps is compacted by nodes; that it takes no writes is said, and ends."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import LASTS, asked, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20


@pytest.fixture(params=["", "s3cret"])
def login(request: pytest.FixtureRequest) -> str:
    """The password of the user who may do all below `/mqttd/`, and nothing else."""
    return str(request.param)


@pytest.fixture
def etcd(tmp_path: Path, login: str) -> Iterator[Etcd]:
    started = start_etcd(tmp_path / "etcd")
    if login:
        started.want_users("root's", "mqttd", login, "/mqttd/")
    yield started
    started.stop()


def history_of(etcd: Etcd, revision: int, token: str) -> str:
    """What etcd says to who asks for what was there at a revision; empty: it tells."""
    body = {"key": b64encode(b"/filler").decode(), "revision": str(revision)}
    try:
        etcd.ask("/v3/kv/range", body, token=token)
    except HTTPError as error:
        return str(json.load(error)["error"])
    return ""


def alarms(node: Broker) -> list[str]:
    return [each["name"] for each in asked(node, "alarms")["alarms"]]


def compactions(node: Broker) -> int:
    return int(asked(node, "metrics")["gauges"]["cluster_etcd_compactions"])


def test_nodes_compact_the_history_of_etcd(etcd: Etcd, tmp_path: Path, login: str) -> None:
    """A watch that is behind reads all anew: what is subscribed then is known at all nodes."""
    (tmp_path / "password").write_text(login)
    more = {"etcd_user": "mqttd", "etcd_password_file": str(tmp_path / "password")} if login else {}
    more |= LASTS
    nodes = start_nodes(tmp_path, etcd, {"a": more, "b": more})
    token = etcd.log_in("root", "root's") if login else ""
    try:
        assert nodes["a"].says("node b is linked")
        first = etcd.put("/filler", b"first", token)
        assert history_of(etcd, first, token) == ""
        for _ in range(70):
            etcd.put("/filler", bytes(MIB), token)
        until(lambda: "compacted" in history_of(etcd, first, token), "the history is gone")
        one, two = (RawClient(node.port, mq.V5).connect() for node in nodes.values())
        two.subscribe("t")
        one.publish("t", b"there", qos=1)
        assert two.payloads(1) == [b"there"]
        assert compactions(nodes["a"]) >= 1
        assert compactions(nodes["b"]) == 0
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")


def test_an_etcd_that_is_full_is_an_alarm_that_ends(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd", more=["--quota-backend-bytes", str(16 * MIB)])
    nodes = start_nodes(tmp_path, etcd, {"a": LASTS, "b": LASTS})
    try:
        assert nodes["a"].says("node b is linked")
        with pytest.raises(HTTPError):
            for number in range(40):
                etcd.put(f"/filler/{number}", bytes(MIB))
        for node in nodes.values():
            until(lambda node=node: "cluster_etcd_refuses" in alarms(node), "the alarm", 30)
            status = asked(node, "cluster", "status")
            assert status["state"] == "member"
            assert status["etcd_refuses"]
        client = RawClient(nodes["a"].port, mq.V5, deadline=20.0).connect()
        assert client.subscribe("new") == [0x83]
        # Who has said that it may grow again, and nothing else: the nodes have compacted it.
        for number in range(40):
            key = b64encode(f"/filler/{number}".encode()).decode()
            etcd.ask("/v3/kv/deleterange", {"key": key})
        body = {"key": b64encode(b"/filler/0").decode(), "revision": "5"}
        until(lambda: _refused(etcd, body), "it is compacted", 40)
        etcd.ask("/v3/maintenance/defragment", {})
        member = etcd.ask("/v3/maintenance/alarm", {"action": "GET"})["alarms"][0]["memberID"]
        said = {"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"}
        etcd.ask("/v3/maintenance/alarm", said)
        for node in nodes.values():
            until(lambda node=node: not alarms(node), "its end", 30)
            assert node.says("etcd takes writes again")
        assert client.subscribe("new") == [0]
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
        etcd.stop()


def _refused(etcd: Etcd, body: dict[str, str]) -> bool:
    try:
        etcd.ask("/v3/kv/range", body)
    except HTTPError:
        return True
    return False


def test_a_node_that_begins_with_a_full_etcd_waits_and_comes(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd", more=["--quota-backend-bytes", str(16 * MIB)])
    node: Broker | None = None
    try:
        with pytest.raises(HTTPError):
            for _ in range(40):
                etcd.put("/filler", bytes(MIB))
        revision = int(etcd.ask("/v3/maintenance/status", {})["header"]["revision"])
        node = start_node(tmp_path, etcd, "a", wait=False)
        assert node.says("etcd takes no writes")
        etcd.ask("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        etcd.ask("/v3/maintenance/defragment", {})
        member = etcd.ask("/v3/maintenance/alarm", {"action": "GET"})["alarms"][0]["memberID"]
        said = {"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"}
        etcd.ask("/v3/maintenance/alarm", said)
        assert node.says("member of the cluster")
        assert node.says("etcd takes writes again")
    finally:
        if node is not None:
            node.stop()
            print(node.output[-4000:])
        etcd.stop()
