"""A session leaves when other nodes have what its client was acknowledged while a link was cut.

Else what the client publishes at its new node overtakes that: the way from there may be shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.cluster.sessions.transit import TAIL
from mqttd.codec.packets import Publish
from mqttd.mesh.link import Link, Stream
from tests.unit.cluster.test_on_its_way import kill, marks
from tests.unit.cluster.test_once import Pipe
from tests.unit.cluster.test_remains import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """The session is on its way to `a`; there is no link to `b`, which wants `for/b`."""
    made = Node(tmp_path)
    made.mesh.add(made.nodes["b"], "for/b")
    yield made
    made.kept.base.close()


def publish(node: Node, qos: int) -> None:
    """A message for `b`, acknowledged."""
    node.sent += 1
    node.publisher.send(Publish("for/b", b"x", qos, packet_id=node.sent))
    node.kept.settle()
    assert len(node.publisher.take()) == 1


def link(node: Node) -> Link:
    """There is one to `b`, which has had nothing yet."""
    other = node.nodes["b"]
    made = Link(node.broker, Stream(Pipe()), other.number)
    node.mesh.linked(other.number, made, False)
    node.moves.linked(other)
    node.kept.settle()
    return made


def meet(node: Node) -> None:
    """`b` has said that it has nothing of QoS 2."""
    other = node.nodes["b"]
    assert other.lane is not None
    other.once.met(other.lane, bytes(16))
    settle(node)


def take(node: Node) -> None:
    """`b` has all of it."""
    for ferry in (node.nodes["b"].ferry, node.nodes["b"].once):
        ferry.acknowledge(ferry.posted)
    settle(node)


def settle(node: Node) -> None:
    node.broker.perform()
    node.kept.settle()


def has_gone(node: Node) -> bool:
    return ("a", TAIL, 5) in node.said


@pytest.mark.parametrize("qos", [1, 2])
def test_it_waits_for_what_was_kept_for_a_link(node: Node, qos: int) -> None:
    publish(node, qos)
    node.hand("a", 5)
    link(node)
    marks(node, 5)  # before all of it has gone
    assert not has_gone(node)
    meet(node)
    assert not has_gone(node)
    take(node)
    assert has_gone(node)


@pytest.mark.parametrize("qos", [1, 2])
def test_it_waits_on_when_the_link_is_cut_again(node: Node, qos: int) -> None:
    publish(node, qos)
    node.hand("a", 5)
    first = link(node)
    meet(node)
    marks(node, 5)
    node.mesh.unlinked(first)
    settle(node)
    assert not has_gone(node)
    link(node)
    meet(node)
    assert not has_gone(node)
    take(node)
    assert has_gone(node)


def test_it_does_not_wait_for_what_goes_by_a_link_that_is_there(node: Node) -> None:
    """Of that nothing is acknowledged, or its publisher's id goes along."""
    link(node)
    meet(node)
    take(node)
    node.publisher.send(Publish("for/b", b"x", 1, packet_id=1))
    settle(node)
    assert node.publisher.take() == []
    node.hand("a", 5)
    marks(node, 5)
    assert has_gone(node)


@pytest.mark.parametrize("qos", [1, 2])
def test_nor_for_a_node_that_is_gone(node: Node, qos: int) -> None:
    publish(node, qos)
    node.hand("a", 5)
    marks(node, 5)
    assert not has_gone(node)
    kill(node, "b")
    assert has_gone(node)
