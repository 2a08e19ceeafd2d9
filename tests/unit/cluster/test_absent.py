"""What is kept for a node that is away, and how much of it that node has."""

from __future__ import annotations

from mqttd.cluster.links.nodes import TAKEN, Node, NodeMesh
from mqttd.cluster.routes.absent import Absent
from mqttd.cluster.sessions.transit import DONE, WHOLE
from mqttd.mesh.frames import STATE, packed_frame
from mqttd.mesh.link import Link, Stream
from tests.support import packets as mq
from tests.support.memory import MemoryBroker


class Transport:
    def write(self, data: bytes) -> None:
        pass

    def abortConnection(self) -> None:
        pass


def _mesh() -> NodeMesh:
    return NodeMesh(MemoryBroker().broker, lambda _: None, lambda _: None, lambda *_: None)


def _link(mesh: NodeMesh, node: Node, stream: int) -> None:
    node.stream = stream
    mesh.linked(node.number, Link(mesh.broker, Stream(Transport()), node.number), False)


def _message(number: int, qos: int) -> bytes:
    return mq.publish("t", b"%d" % number, qos, number, version=mq.V5)


def test_a_node_that_is_back_is_sent_what_it_has_not_taken() -> None:
    """Four were sent, two of which it has; another was kept while it was away."""
    mesh = _mesh()
    absent = Absent(mesh)
    node = mesh.join("b", 1)
    _link(mesh, node, 77)
    for number in (1, 2):
        node.ferry.carry(_message(number, 2), True)
    node.ferry.keep(packed_frame(STATE, [WHOLE, b"s", bytes(8)]))
    for number in (3, 4):
        node.ferry.carry(_message(number, number - 2), number == 4)
    absent.begin(node)
    node.ferry.carry(_message(5, 2), True)
    back = mesh.join("b", 2)
    absent.back(back)
    assert back.stream == 77
    back.ferry.resume(4)  # the session that moves counts
    assert [data for _, data in back.ferry.kept] == [_message(4, 2), _message(5, 2)]
    assert back.ferry.kept_bytes == sum(len(data) for _, data in back.ferry.kept)


def test_a_node_that_stood_still_hears_that_a_session_is_here() -> None:
    """It keeps that until then, with what is published for it."""
    mesh = _mesh()
    absent = Absent(mesh)
    node = mesh.join("b", 1)
    _link(mesh, node, 77)
    done = packed_frame(STATE, [DONE, b"s", bytes(8)])
    for what in (packed_frame(STATE, [WHOLE, b"s", bytes(8)]), done, _message(1, 1)):
        node.ferry.keep(what)
    absent.begin(node)
    back = mesh.join("b", 2)
    absent.back(back)
    back.ferry.resume(1)
    assert [data for _, data in back.ferry.kept] == [done, _message(1, 1)]


def test_how_much_was_taken_outlasts_a_link_and_the_process() -> None:
    mesh = _mesh()
    mesh.drawer = mesh.broker.drawers.open(TAKEN)
    node = mesh.join("b", 1)
    _link(mesh, node, 1 << 61)
    assert node.arriving is not None
    node.arriving.count = 9
    mesh.frames(node).taken(9, True)
    node.arriving.count = 10
    mesh.frames(node).taken(10, False)  # no store keeps that
    assert node.link is not None
    mesh.unlinked(node.link)
    again = mesh.join("b", 2)
    assert (again.of, again.had) == (1 << 61, 10)
    killed = _mesh()
    killed.read(mesh.drawer)
    node = killed.join("b", 3)
    assert (node.of, node.had) == (1 << 61, 9)
