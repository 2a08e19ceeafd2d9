"""Nodes that are drained, leave, are put out and join; what all nodes have in common."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client
from mqttd.config.load import load
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.ctl import run, told
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import Nodes, asked, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)
_STAYS = [(mq.SESSION_EXPIRY, 600)]


@pytest.fixture
def nodes(etcd: Etcd, tmp_path: Path) -> Iterator[Nodes]:
    started = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store={"kind": "sqlite"})
    assert started["a"].says("node b is linked")
    yield started
    for node in started.values():
        node.stop()


def test_a_node_that_leaves_hands_its_sessions_over(nodes: Nodes) -> None:
    """Those of clients that are away and of those it sends away, with what waits for them."""
    count = 30
    for n in range(count):
        client = RawClient(nodes["a"].port, mq.V5)
        client.connect(f"away{n}", clean=False, props=_STAYS)
        client.subscribe(f"t/{n}", qos=2)
        client.disconnect()
    stays = RawClient(nodes["a"].port, mq.V5).connect("stays", clean=False, props=_STAYS)
    stays.subscribe("t/#", qos=1)
    publisher = RawClient(nodes["b"].port, mq.V5).connect()
    for n in range(count):
        publisher.publish(f"t/{n}", b"%d" % n, qos=2)
        stays.expect(mq.PUBLISH)  # not acknowledged
    asked(nodes["a"], "cluster", "leave", "--rate", "1000")
    stays.wait_for(mq.DISCONNECT, reason=0x9C)
    leaver = nodes.pop("a").process
    assert leaver is not None and leaver.wait(20) == 0
    for n in range(count):
        publisher.publish(f"t/{n}", b"later", qos=2)
    for n in range(count):
        client = RawClient(nodes["b"].port, mq.V5).connect(f"away{n}", clean=False, props=_STAYS)
        assert client.resumed
        assert client.payloads(2) == [b"%d" % n, b"later"]
        client.close()
    back = RawClient(nodes["b"].port, mq.V5).connect("stays", clean=False, props=_STAYS)
    assert back.resumed
    assert len(back.collect(2 * count)) == 2 * count


def test_a_node_that_leaves_says_where_nobody_takes_its_sessions(
    nodes: Nodes, etcd: Etcd, tmp_path: Path
) -> None:
    client = RawClient(nodes["a"].port, mq.V5).connect("stays", clean=False, props=_STAYS)
    client.disconnect()
    asked(nodes["a"], "cluster", "drain", "b")
    until(lambda: not all(each["ready"] for each in asked(nodes["a"], "cluster", "nodes")["nodes"]),
          "b takes no more")  # fmt: skip
    done = run(nodes["a"], "cluster", "leave")
    assert done.returncode == 1 and "no other node has taken 1 session;" in done.stderr
    left = nodes.pop("a").process
    assert left is not None and left.wait(20) == 0
    assert asked(nodes["b"], "sessions", "list")["sessions"] == []
    nodes["a"] = start_node(tmp_path, etcd, "a", store={"kind": "sqlite"})
    assert RawClient(nodes["a"].port, mq.V5).connect("stays", clean=False, props=_STAYS).resumed


def test_a_node_drains_at_the_wish_of_another_and_is_put_out(nodes: Nodes) -> None:
    """And is a member again by one command. No node needs a link to itself."""
    rows = [line.split()[:3] for line in told(nodes["a"], "cluster", "nodes").splitlines()]
    assert rows[1:] == [["a", "yes", "-"], ["b", "no", "yes"]]
    client = RawClient(nodes["b"].port, mq.V5).connect("c", clean=False, props=_STAYS)
    assert "is asked to drain" in told(nodes["a"], "cluster", "drain", "b")
    client.wait_for(mq.DISCONNECT, reason=0x9C)
    until(lambda: asked(nodes["a"], "cluster", "status")["client_ids"] == 1, "its session")
    assert asked(nodes["b"], "cluster", "status")["state"] == "draining"
    asked(nodes["b"], "drain", "--cancel")
    asked(nodes["a"], "cluster", "force-leave", "b")
    until(lambda: len(asked(nodes["a"], "cluster", "status")["nodes"]) == 1, "it is out")
    assert nodes["b"].says("put out of the cluster")
    until(lambda: asked(nodes["b"], "cluster", "status")["state"] == "put_out", "it knows")
    (alarm,) = asked(nodes["b"], "alarms")["alarms"]
    assert alarm["name"] == "cluster_put_out" and "cluster join" in alarm["text"]
    assert "etcd has not answered" not in nodes["b"].output
    RawClient(nodes["b"].port, mq.V5).connect("another", reason=0x88)
    assert nodes["b"].says("cannot be claimed: this node is put out of its cluster")
    assert [(each["node"], each["state"]) for each in
            asked(nodes["a"], "cluster", "nodes")["away"]] == [("b", "put_out")]  # fmt: skip
    asked(nodes["b"], "cluster", "join")
    until(lambda: len(asked(nodes["a"], "cluster", "status")["nodes"]) == 2, "it is back")
    until(lambda: asked(nodes["b"], "cluster", "status")["state"] == "member", "it knows")
    assert not asked(nodes["b"], "alarms")["alarms"]


def test_what_etcd_has_not_taken_is_said_and_not_done_later(tmp_path: Path) -> None:
    """A drain that was refused does not begin when etcd is back; nor is a start taken for more."""
    etcd = start_etcd(tmp_path / "etcd")
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store={"kind": "sqlite"})
    waiting: Broker | None = None
    try:
        assert nodes["a"].says("node b is linked")
        etcd.stop()
        done = run(nodes["a"], "cluster", "drain", "b")
        assert done.returncode == 1 and "etcd has not taken it: " in done.stderr
        waiting = start_node(tmp_path, etcd, "c", store={"kind": "sqlite"}, wait=False)
        assert waiting.says("waiting for etcd")
        assert asked(waiting, "cluster", "status")["proved_ago"] is None
        assert re.search(r"^proved ago +-$", told(waiting, "cluster", "status"), re.M)
        etcd.start()
        assert waiting.says("node b is linked")

        def ready() -> set[str]:
            found = asked(waiting, "cluster", "nodes")["nodes"]
            return {each["node"] for each in found if each["ready"]}

        until(lambda: ready() >= {"a", "b"}, "both are ready")
        assert asked(nodes["b"], "cluster", "status")["state"] in ("member", "minority")
        assert asked(waiting, "cluster", "status")["proved_ago"] is not None
    finally:
        for node in (*nodes.values(), *filter(None, [waiting])):
            node.stop()
        etcd.stop()


def test_a_node_that_is_long_gone_is_put_out_and_does_not_come_back(
    nodes: Nodes, etcd: Etcd, tmp_path: Path
) -> None:
    """Nobody waits for it any more; when it is started it waits to be let in, and says so."""
    nodes.pop("b").stop()
    until(lambda: len(asked(nodes["a"], "cluster", "nodes")["nodes"]) == 1, "it is gone")
    assert not asked(nodes["a"], "cluster", "nodes")["away"]
    said = told(nodes["a"], "cluster", "force-leave", "b")
    assert said.startswith("node b is not there, and is out when it comes")
    assert run(nodes["a"], "cluster", "force-leave", "no/node").returncode == 1
    mistyped = run(nodes["a"], "cluster", "force-leave", "bb")
    assert mistyped.returncode == 1
    assert "no node here is or was called 'bb': known are a, b" in mistyped.stderr
    assert [each["node"] for each in asked(nodes["a"], "cluster", "nodes")["away"]] in (["b"], [])
    until(lambda: asked(nodes["a"], "cluster", "nodes")["away"], "it is shown")
    nodes["b"] = start_node(tmp_path, etcd, "b", store={"kind": "sqlite"}, wait=False)
    assert nodes["b"].says("`mqttd-ctl cluster join` here has it in again")
    assert asked(nodes["b"], "cluster", "status")["state"] == "put_out"
    asked(nodes["b"], "cluster", "join")
    assert nodes["b"].says("mqttd ready")
    asked(nodes["a"], "cluster", "force-leave", "later", "--anyway")
    until(lambda: [each["node"] for each in asked(nodes["a"], "cluster", "nodes")["away"]]
          == ["later"], "it is shown, and the mistyped one is not")  # fmt: skip
    said = told(nodes["b"], "cluster", "force-leave", "later", "--undo")
    assert said.startswith("node later is not put out any more")
    until(lambda: not asked(nodes["a"], "cluster", "nodes")["away"], "it is forgotten")
    again = told(nodes["a"], "cluster", "force-leave", "later", "--undo")
    assert again.startswith("node later was not put out")
    assert asked(nodes["b"], "cluster", "status")["state"] == "member"


def test_a_node_that_is_waited_for_is_shown_with_what_is_kept_for_it(nodes: Nodes) -> None:
    client = RawClient(nodes["b"].port, mq.V5).connect("c", clean=False, props=_STAYS)
    client.subscribe("t", qos=1)
    nodes.pop("b").stop(hard=True)
    (away,) = until(lambda: asked(nodes["a"], "cluster", "nodes")["away"], "it is away")
    assert (away["node"], away["state"], away["by"]) == ("b", "away", "")
    assert away["waits"] <= 30 and away["away"] >= 0
    RawClient(nodes["a"].port, mq.V5).connect("p").publish("t", b"kept", qos=1)
    (away,) = asked(nodes["a"], "cluster", "nodes")["away"]
    assert away["kept"] == 1 and away["kept_bytes"] > 0
    assert "b (away)" in told(nodes["a"], "cluster", "status")
    here, between, head, gone = told(nodes["a"], "cluster", "nodes").splitlines()[1:]
    assert here.startswith("a") and not between and head.split()[:3] == ["node", "state", "by"]
    assert gone.split()[:2] == ["b", "away"]


def test_a_node_that_leaves_says_which_sessions_nobody_has_taken(
    etcd: Etcd, tmp_path: Path
) -> None:
    """Of one that is alone: they stay where they are, and that is no success."""
    node = start_node(tmp_path, etcd, "a", store={"kind": "sqlite"})
    try:
        for n in range(3):
            client = RawClient(node.port, mq.V5)
            client.connect(f"c{n}", clean=False, props=_STAYS)
            client.disconnect()
        done = run(node, "cluster", "leave")
        assert done.returncode == 1 and "handed over" not in done.stdout
        assert "no other node has taken 3 sessions; " in done.stderr
        assert node.process is not None and node.process.wait(20) == 0
        assert "3 sessions: they stay in the store of this one" in node.output
    finally:
        node.stop()


def test_bans_are_everywhere_and_a_node_that_joins_has_them(
    nodes: Nodes, etcd: Etcd, tmp_path: Path
) -> None:
    """Lifted ones are not brought back by who was away."""
    asked(nodes["a"], "bans", "add", "client_id", "bad")
    asked(nodes["b"], "bans", "add", "client_id", "worse")
    for node in nodes.values():
        until(lambda at=node: len(asked(at, "bans", "list")["bans"]) == 2, "both bans")
        RawClient(node.port, mq.V5).connect("bad", reason=0x8A)
    assert asked(nodes["a"], "bans", "list") == asked(nodes["b"], "bans", "list")
    nodes.pop("b").stop()
    asked(nodes["a"], "bans", "del", "client_id", "worse")
    nodes["b"] = start_node(tmp_path, etcd, "b", store={"kind": "sqlite"})
    nodes["c"] = start_node(tmp_path, etcd, "c")
    for name in "bc":
        RawClient(nodes[name].port, mq.V5).connect("bad", reason=0x8A)
        RawClient(nodes[name].port, mq.V5).connect("worse")


def test_a_ban_that_others_have_not_heard_of_says_so_and_they_hear_of_it_later(
    nodes: Nodes, etcd: Etcd
) -> None:
    assert "other nodes" not in told(nodes["a"], "bans", "add", "client_id", "bad")
    etcd.stop()
    text = "other nodes have not heard of it, and will when etcd is back: "
    assert text in told(nodes["a"], "bans", "add", "client_id", "worse")
    assert text in told(nodes["a"], "bans", "del", "client_id", "bad")
    answer = asked(nodes["a"], "bans", "add", "client_id", "worst")
    assert answer["untold"] and not answer["unkept"]
    etcd.start()
    until(
        lambda: (
            [ban["value"] for ban in asked(nodes["b"], "bans", "list")["bans"]]
            == ["worse", "worst"]
        ),
        "they have heard",
    )
    assert asked(nodes["a"], "bans", "add", "client_id", "last")["untold"] is None


def test_a_role_that_others_have_not_heard_of_says_so_and_they_hear_of_it_later(
    nodes: Nodes, etcd: Etcd, tmp_path: Path
) -> None:
    """As a ban does: it was said to be put, and held at one of the nodes alone."""
    here, there = (Client(str(tmp_path / name / "data/mqttd.sock")) for name in "ab")

    def put(path: str, **body: Any) -> Any:
        return here.request("POST", path, body)["untold"]

    assert put("/roles", name="old") is None
    etcd.stop()
    why = put("/roles", name="shy")
    assert why
    assert put("/groups", name="house", roles=["shy"]) == why
    assert put("/members", username="ann", groups=["house"]) == why
    assert put("/roles/import", roles=[{"name": "more"}]) == why
    assert here.request("DELETE", "/roles/old")["untold"] == why
    text = told(nodes["a"], "roles", "put", "last")
    assert text.endswith(f"; other nodes have not heard of it, and will when etcd is back: {why}")
    etcd.start()
    names = ["last", "more", "shy"]
    until(lambda: [role["name"] for role in there.get("/roles")["roles"]] == names, "they have")
    assert there.get("/members/ann")["groups"] == ["house"]
    assert here.request("DELETE", "/groups/house")["untold"] is None


def test_roles_are_everywhere_and_a_node_that_joins_has_them(
    nodes: Nodes, etcd: Etcd, tmp_path: Path
) -> None:
    """Also for clients that are there; what was deleted is not brought back by who was away."""
    rule = '{deny, all, subscribe, ["secret/#"]}'
    asked(nodes["a"], "roles", "put", "shy", "--rule", rule)
    asked(nodes["b"], "roles", "put", "gone")

    def names(node: Broker) -> list[str]:
        return sorted(role["name"] for role in asked(node, "roles", "list")["roles"])

    for node in nodes.values():
        until(lambda at=node: names(at) == ["gone", "shy"], "both roles")
    asked(nodes["b"], "roles", "put-group", "house", "--role", "shy")
    asked(nodes["b"], "roles", "give", "$anonymous", "--group", "house", "--role", "gone")
    until(lambda: asked(nodes["a"], "roles", "users")["members"], "who has them")
    client = RawClient(nodes["a"].port, mq.V5).connect()
    assert client.subscribe("secret/x") == [0x87]
    assert client.subscribe("open/x") == [0]
    nodes.pop("b").stop()
    asked(nodes["a"], "roles", "del", "gone")
    nodes["b"] = start_node(tmp_path, etcd, "b", store={"kind": "sqlite"})
    nodes["c"] = start_node(tmp_path, etcd, "c")
    for name in "bc":
        assert names(nodes[name]) == ["shy"]
        [member] = asked(nodes[name], "roles", "users")["members"]
        assert (member["roles"], member["groups"]) == ([], ["house"])
        client = RawClient(nodes[name].port, mq.V5).connect()
        assert client.subscribe("secret/x") == [0x87]


def test_an_empty_directory_is_a_node_by_one_command(etcd: Etcd, tmp_path: Path) -> None:
    """Written is what the reference says; a second time is refused."""
    home = tmp_path / "new"
    home.mkdir()
    command = [str(Path(sys.executable).parent / "mqttd-ctl"), "cluster", "join", *etcd.endpoints]
    command += ["--node", "n1", "--bind", "127.0.0.1:0"]
    subprocess.run(command, cwd=home, check=True)
    text = (home / "etc/mqttd.conf").read_text()
    assert 'name = "n1"' in text
    assert f'endpoints = ["{etcd.endpoints[0]}"]' in text
    loaded = load(str(home / "etc/mqttd.conf"), {})
    assert (loaded.cluster.kind, loaded.node.name) == ("etcd", "n1")
    assert subprocess.run(command, cwd=home, check=False, capture_output=True).returncode == 1
