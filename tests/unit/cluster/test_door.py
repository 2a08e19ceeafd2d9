"""The door of a node: strangers are few, and refused before anything is begun for them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mqttd.cluster.links.door import EACH, MOST, Door
from mqttd.cluster.links.tls import node_options
from mqttd.config.schema.cluster import Cluster
from tests.support.certificates import Authority


class Socket(StringTransport):
    """What is written stays here."""

    aborted = False

    def abortConnection(self) -> None:
        """It ends later, as a socket's does."""
        self.aborted = True


class Knocks:
    """A door, what was logged of it, and those who have come through."""

    def __init__(self, tls: Any = None) -> None:
        self.clock = Clock()
        self.said: list[tuple[str, dict[str, object]]] = []
        knocks = self

        class Stream(Protocol):
            def connectionMade(self) -> None:
                knocks.door.came(self)

            def close(self) -> None:
                assert self.transport is not None
                self.transport.abortConnection()  # type: ignore[attr-defined]

            def connectionLost(self, reason: Failure | None = None) -> None:
                knocks.door.strangers.leave(self)

        self.door = Door(
            tls, Factory.forProtocol(Stream), self.clock, lambda *said: self.said.append(said)
        )

    def knock(self, host: str) -> tuple[Any, Socket] | None:
        """Somebody comes; None: it was closed at once."""
        address = IPv4Address("TCP", host, 40000)
        protocol = self.door.buildProtocol(address)
        if protocol is None:
            return None
        transport = Socket(peerAddress=address)
        protocol.makeConnection(transport)
        return protocol, transport


def hello() -> bytes:
    """The first bytes of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = context.wrap_bio(incoming, outgoing)
    try:
        made.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def test_so_many_have_a_place_and_a_line_says_who_was_refused() -> None:
    knocks = Knocks()
    inside = [knocks.knock("10.0.0.1") for _ in range(100)]
    assert sum(1 for each in inside if each) == EACH
    assert knocks.said == [("node strangers refused", {"peer": "10.0.0.1", "count": 1})]
    knocks.clock.advance(10)
    knocks.knock("10.0.0.1")
    assert len(knocks.said) == 1  # one that was silent has made room
    for _ in range(EACH):
        knocks.knock("10.0.0.1")
    assert knocks.said[1][1]["count"] == 100 - EACH
    counted = knocks.door.counters()
    assert counted["cluster_strangers_refused"] == 100 - EACH + 1
    assert counted["cluster_strangers_ended"] == EACH


def test_a_node_that_is_known_comes_in_whoever_else_wants_to() -> None:
    knocks = Knocks()
    first = knocks.knock("10.9.9.9")
    assert first is not None
    knocks.door.greeted(first[0], "a")
    knocks.door.expect("b", "10.8.8.8")
    knocks.door.expect("c", "node-c.example")
    for number in range(MOST):
        assert knocks.knock(f"10.0.0.{number}") is not None
    assert knocks.knock("10.7.7.7") is None
    assert knocks.knock("10.9.9.9") is not None
    assert knocks.knock("10.8.8.8") is not None
    assert len(knocks.door.strangers) == MOST + 2


def test_half_a_handshake_is_ended_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    authority = Authority()
    authority.write(tmp_path)
    authority.node("a").write(tmp_path, "node")
    settings = Cluster(
        certificate=str(tmp_path / "node.crt"),
        private_key=str(tmp_path / "node.key"),
        ca_file=str(tmp_path / "ca.crt"),
    )
    knocks = Knocks(node_options(settings))
    inside = [knocks.knock("10.0.0.1") for _ in range(EACH)]
    assert knocks.knock("10.0.0.1") is None
    for found in inside:
        assert found is not None
        found[0].dataReceived(hello())
        knocks.clock.advance(0)
        assert found[1].value()
    knocks.clock.advance(10)
    assert knocks.knock("10.0.0.1") is not None
    assert inside[0] is not None
    protocol, transport = inside[0]
    assert transport.aborted
    protocol.connectionLost(Failure(ConnectionDone()))
    protocol.abortConnection()  # who ends it once more finds nothing to shut down
    for found in inside[1:]:
        assert found is not None
        found[0].connectionLost(Failure(ConnectionDone()))
    assert len(knocks.door.strangers) == 1
