"""Nodes without a link: when that is an alarm, and what is said of why."""

from __future__ import annotations

import pytest
from OpenSSL import SSL
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

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
        (SSL.Error([("SSL routines", "", "wrong version number")]), "wrong version number"),
        (ConnectionDone(), "closed cleanly"),
    ],
)
def test_an_operator_reads_why(error: Exception, said: str) -> None:
    assert said in reason_of(Failure(error))
