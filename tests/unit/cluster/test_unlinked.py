"""Nodes without a link: when that is an alarm, and what is said of why."""

from __future__ import annotations

import pytest
from OpenSSL import SSL
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.links.unlinked import ALARM, PATIENCE, Unlinked, reason_of
from mqttd.mesh.link import Link
from tests.support.memory import MemoryBroker


def parts(name: str) -> tuple[MemoryBroker, NodeMesh, Unlinked]:
    node = MemoryBroker()
    mesh = NodeMesh(node.broker, lambda _: None, lambda taken, coming: None, lambda *_: None)
    return node, mesh, Unlinked(name, mesh)


def text(node: MemoryBroker) -> str:
    """Of the alarm; empty: there is none."""
    found = [each for each in node.broker.alarms.active() if each.name == ALARM]
    return found[0].text if found else ""


def test_a_node_without_a_link_is_an_alarm_until_it_has_one() -> None:
    node, mesh, unlinked = parts("a")
    other = mesh.join("b", 7)
    unlinked.tick()
    node.broker.now += PATIENCE - 1
    unlinked.tick()
    assert not text(node)
    node.broker.now += 1
    unlinked.failed("b", "10.0.0.2", "nobody answers")
    unlinked.tick()
    assert "b (nobody answers)" in text(node)
    client = node.connect("link")
    other.link = Link(node.broker, client.channel.edge, other.number)
    unlinked.tick()
    assert not text(node) and not unlinked.reason(other)
    other.link = None
    node.broker.now += PATIENCE
    unlinked.tick()
    assert not text(node)
    assert unlinked.reason(other) == "it has not answered yet"


def test_a_node_that_is_another_or_gone_begins_anew() -> None:
    node, mesh, unlinked = parts("a")
    other = mesh.join("b", 7)
    unlinked.tick()
    node.broker.now += PATIENCE
    unlinked.tick()
    assert text(node)
    mesh.leave(other)
    unlinked.tick()
    assert not text(node)
    mesh.join("b", 8)
    unlinked.tick()
    assert not text(node)


def test_who_is_dialled_says_who_came_last() -> None:
    """It does not know which node that was."""
    node, mesh, unlinked = parts("b")
    other = mesh.join("a", 7)
    assert unlinked.reason(other) == "it has to come here, and has not"
    unlinked.failed("", "10.0.0.1", "tlsv1 alert unknown ca")
    assert unlinked.reason(other).endswith("not let in, 10.0.0.1: tlsv1 alert unknown ca")
    node.broker.now += 60_000
    assert unlinked.reason(other) == "it has to come here, and has not"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SSL.Error([("SSL routines", "", "certificate verify failed")]), "not of cluster.ca_file"),
        (SSL.Error([("SSL routines", "", "tlsv1 alert unknown ca")]), "does not take the certif"),
        (SSL.Error([("SSL routines", "", "wrong version number")]), "does not speak TLS"),
        (ConnectionDone(), "closed cleanly"),
    ],
)
def test_an_operator_reads_why(error: Exception, said: str) -> None:
    assert said in reason_of(Failure(error))


def member(name: str, epoch: int, ready: bool = True) -> Member:
    return Member(name, name, f"{name}:1", "1", (1, 1), ready, epoch)


def test_a_node_that_begins_without_a_link_to_any_is_sent_nobody() -> None:
    """Those that were there before it are."""
    node, mesh, unlinked = parts("c")
    others = [mesh.join(name, epoch) for name, epoch in (("a", 1), ("b", 2))]
    members = {each.name: member(each.name, each.epoch) for each in others}
    assert not unlinked.alone(members)  # it is none yet
    members["c"] = member("c", 3)
    unlinked.tick()
    assert unlinked.alone(members).startswith("no link to any other node")
    members["c"] = member("c", 0)
    assert not unlinked.alone(members)
    members["c"] = member("c", 3)
    others[0].link = Link(node.broker, node.connect("link").channel.edge, others[0].number)
    assert not unlinked.alone(members)
    unlinked.tick()
    others[0].link = None
    unlinked.tick()
    assert not unlinked.alone(members)  # it may be back at once
    node.broker.now += PATIENCE
    unlinked.tick()
    assert unlinked.alone(members)
    for name in "ab":
        members[name] = member(name, 1, ready=False)
    assert not unlinked.alone(members)


def test_of_two_without_a_link_the_one_that_came_first_stays_ready() -> None:
    members = {"a": member("a", 7), "b": member("b", 8)}
    said = {}
    for name, other in ("ab", "ba"):
        node, mesh, unlinked = parts(name)
        mesh.join(other, members[other].epoch)
        unlinked.tick()
        node.broker.now += PATIENCE
        unlinked.tick()
        said[name] = unlinked.alone(members)
    assert not said["a"] and said["b"]
