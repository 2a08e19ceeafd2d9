"""How much each node has, as the others are told."""

from __future__ import annotations

from mqttd.cluster.admin.figures import EVERY, Figures, Told
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.mesh.frames import FIGURES, split
from mqttd.mesh.link import Link
from tests.support.memory import MemoryBroker


def parts() -> tuple[MemoryBroker, Figures, Node, list[tuple[Node, int, bytes]]]:
    node = MemoryBroker()
    said: list[tuple[Node, int, bytes]] = []
    mesh = NodeMesh(
        node.broker, lambda full_filter: None, lambda taken: None,
        lambda other, kind, body: said.append((other, kind, body)),
    )  # fmt: skip
    return node, Figures(mesh), mesh.join("b", 7), said


def link_to(node: MemoryBroker, other: Node) -> Link:
    client = node.connect("link-of-the-test")
    other.link = Link(node.broker, client.channel.edge, other.number)
    return other.link


def sent(link: Link) -> list[bytes]:
    """The bodies of what was told since the last call."""
    data, link.out, link.out_bytes = b"".join(link.out or []), None, 0
    found = []
    at = 0
    while at < len(data):
        assert data[at] == FIGURES
        body, end = split(data, at)
        found.append(data[body:end])
        at = end
    return found


def test_a_node_tells_the_others_how_much_it_has_now_and_then() -> None:
    node, figures, other, _ = parts()
    figures.tick()  # there is nobody to tell
    link = link_to(node, other)
    node.broker.now += EVERY
    figures.tick()
    figures.tick()
    (body,) = sent(link)
    here = figures.here()
    assert (here.connections, here.sessions) == (1, 1)
    figures.take(other, body)
    assert figures.of(other) == here
    link.blocked = True
    node.broker.now += EVERY
    figures.tick()
    assert not sent(link)


def test_what_a_node_has_said_counts_while_it_is_linked_and_the_same() -> None:
    node, figures, other, _ = parts()
    assert figures.of(other) is None
    link_to(node, other)
    figures.take(other, b'{"uptime":1,"connections":2,"sessions":3,"more":4}')
    assert figures.of(other) == Told(1, 2, 3)
    figures.mesh.leave(other)
    again = figures.mesh.join("b", 8)
    link_to(node, again)
    assert figures.of(again) is None
    figures.take(again, b'{"uptime":1,"connections":2,"sessions":3}')
    for nonsense in (b"", b"{}", b'{"uptime":1,"connections":-2,"sessions":3}', b"\xff"):
        figures.take(again, nonsense)
        assert figures.of(again) is None


def test_it_is_heard_as_a_frame_of_the_stream() -> None:
    node, figures, other, said = parts()
    frames = figures.mesh.frames(other)
    frames.control(link_to(node, other), FIGURES, b"{}")
    assert said == [(other, FIGURES, b"{}")]
