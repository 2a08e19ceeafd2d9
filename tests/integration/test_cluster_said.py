"""What nodes of a cluster, and `mqttd-ctl`, say of what is wrong."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.ctl import PROGRAM, run
from tests.support.etcd import Etcd
from tests.support.nats import start_nats
from tests.support.nodes import asked, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


def alarm(node: Broker, name: str) -> str:
    """Its text; empty: it is not active."""
    active = asked(node, "alarms")["alarms"]
    return next((str(each["text"]) for each in active if each["name"] == name), "")


def other(node: Broker) -> dict[str, Any]:
    """The other of two nodes, as this one sees it."""
    return next(each for each in asked(node, "cluster", "nodes")["nodes"] if not each["here"])


def here(node: Broker) -> dict[str, Any]:
    """That one as it sees itself."""
    return next(each for each in asked(node, "cluster", "nodes")["nodes"] if each["here"])


def test_nodes_that_cannot_link_say_so_at_both_sides(etcd: Etcd, tmp_path: Path) -> None:
    """And why; it ends by itself when one of them has gone."""
    wanted = {}
    for name in "ab":
        authority = Authority()
        authority.write(tmp_path / "tls" / name)
        authority.node(name).write(tmp_path / "tls" / name, "node")
        files = {"certificate": "node.crt", "private_key": "node.key", "ca_file": "ca.crt"}
        wanted[name] = {key: str(tmp_path / "tls" / name / file) for key, file in files.items()}
    nodes = start_nodes(tmp_path, etcd, wanted)
    try:
        for node, name, said in ((nodes["a"], "b", "ca_file"), (nodes["b"], "a", "unknown ca")):
            text = until(lambda at=node: alarm(at, "cluster_unlinked"), "the alarm", 30)
            assert text.startswith(f"no link to {name} (") and said in text
            assert said in other(node)["reason"] and not other(node)["linked"]
        ready = {name: here(node)["ready"] for name, node in nodes.items()}
        assert sorted(ready.values()) == [False, True]
        nodes.pop("b").stop()
        until(lambda: not alarm(nodes["a"], "cluster_unlinked"), "its end", 30)
    finally:
        for node in nodes.values():
            node.stop()
            print(node.output[-4000:])


@pytest.mark.parametrize("secure", ["a", "b"])
def test_a_node_with_tls_and_one_without_say_that_it_is_that(
    etcd: Etcd, tmp_path: Path, secure: str
) -> None:
    authority = Authority()
    authority.write(tmp_path / "tls")
    authority.node(secure).write(tmp_path / "tls", "node")
    files = {"certificate": "node.crt", "private_key": "node.key", "ca_file": "ca.crt"}
    tls = {key: str(tmp_path / "tls" / file) for key, file in files.items()}
    nodes = start_nodes(tmp_path, etcd, {name: tls if name == secure else {} for name in "ab"})
    try:
        for name, node in nodes.items():
            said = "it does not speak TLS" if name == secure else "it speaks TLS"
            until(lambda at=node: alarm(at, "cluster_unlinked"), "the alarm", 30)
            until(lambda at=node, said=said: said in other(at)["reason"], "why", 30)
    finally:
        for node in nodes.values():
            node.stop()
            print(node.output[-4000:])


def test_nodes_that_are_linked_have_no_such_alarm(etcd: Etcd, tmp_path: Path) -> None:
    node = start_node(tmp_path, etcd, "a")
    second = start_node(tmp_path, etcd, "b")
    try:
        assert node.says("node b is linked")
        assert other(node)["reason"] == "" and not alarm(node, "cluster_unlinked")
    finally:
        node.stop()
        second.stop()


def test_a_name_that_a_node_has_is_refused_soon_and_told_to_that_node(
    etcd: Etcd, tmp_path: Path
) -> None:
    """By a start, in a line and no more, and by `cluster join`, which writes nothing then."""
    node = start_node(tmp_path, etcd, "a")
    try:
        home = tmp_path / "join"
        home.mkdir()
        command = [PROGRAM, "cluster", "join", *etcd.endpoints, "--node", "a"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "'a' is in use in the cluster 'mqttd'" in done.stderr
        assert not list(home.iterdir())
        second = start_node(tmp_path / "other", etcd, "a", cluster={"lease": "5s"}, wait=False)
        try:
            assert second.says("waiting whether its lease ends")
            assert second.process is not None and second.process.wait(30) == 1
            assert "this one needs another name" in second.output
            assert "Traceback" not in second.output
        finally:
            second.stop()
        assert node.says("another node calls itself a, too, and was refused")
        assert asked(node, "cluster", "status")["state"] == "member"
    finally:
        node.stop()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"replicas": 3}, "3 copies are asked for (replicas)"),
        ({"replicas": 1, "tls": True}, "it does not speak TLS"),
        ({"servers": ["127.0.0.1:1"]}, "127.0.0.1:1: Connection was refused"),
    ],
)
def test_why_nothing_is_copied_is_said_at_once(
    etcd: Etcd, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    nats = start_nats(tmp_path / "nats")
    more = {
        "store": {"kind": "sqlite"},
        "session": {"replicate": "jetstream"},
        "jetstream": {"servers": nats.addresses, **wrong},
    }
    try:
        node = start_node(tmp_path, etcd, "a", wait=False, **more)
        try:
            assert node.says("the store cannot be copied now")
            assert node.says(said)
            assert "not connected yet" not in node.output
        finally:
            node.stop()
            print(node.output[-4000:])
    finally:
        nats.stop()


def test_what_is_wrong_with_a_start_or_with_etcd_is_one_line(etcd: Etcd, tmp_path: Path) -> None:
    """An address that is taken; an etcd that has gone, for `force-leave`."""
    node = start_node(tmp_path, etcd, "a")
    try:
        taken = asked(node, "cluster", "nodes")["nodes"][0]["address"]
        with pytest.raises(RuntimeError, match=f"cluster.bind = '{taken}': Address already in use"):
            start_node(tmp_path, etcd, "b", cluster={"bind": taken})
        etcd.stop()
        done = run(node, "cluster", "force-leave", "b")
        assert done.returncode == 1 and etcd.endpoints[0] in done.stderr
        assert "Failure" not in done.stderr and len(done.stderr.splitlines()) == 1
    finally:
        node.stop()


def test_who_leaves_as_planned_is_no_warning(etcd: Etcd, tmp_path: Path) -> None:
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}})
    try:
        assert nodes["a"].says("node b is linked")
        assert run(nodes.pop("b"), "cluster", "leave").returncode == 0
        assert nodes["a"].says("node b is gone")
        bad = [line for line in nodes["a"].lines if " warn " in line or " error " in line]
        assert not [line for line in bad if "node b" in line], bad
    finally:
        for node in nodes.values():
            node.stop()


def test_17_an_etcd_that_hangs_does_not_answer(etcd: Etcd, tmp_path: Path) -> None:
    """And is not said to close connections; nor by `cluster join`."""
    node = start_node(tmp_path, etcd, "a")
    (url,) = etcd.endpoints
    (member,) = etcd.members
    said = "does not answer (timed out after 2 s)"
    try:
        member.process.send_signal(signal.SIGSTOP)
        until(lambda: asked(node, "cluster", "status")["etcd_silent"], "it is silent", 20)
        (error,) = asked(node, "cluster", "status")["etcd_errors"]
        assert error == {"endpoint": url, "reason": said}
        assert node.says(f"etcd: {url}: does not answer (timed out after 0.5 s)")  # its lease
        home = tmp_path / "join"
        home.mkdir()
        command = [PROGRAM, "cluster", "join", url, "--node", "b"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and f"etcd has not answered: {url}: {said};" in done.stderr
        member.process.send_signal(signal.SIGCONT)
        until(lambda: asked(node, "cluster", "status")["state"] == "member", "it is one", 30)
        assert "closed the connection" not in node.output
    finally:
        node.stop()
        print(node.output[-4000:])
