"""Handshakes on Twisted's transports: a turn has so many of them, and each house its share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mqttd.admin.doors.door import certificate_options
from mqttd.admin.doors.site import site_of
from mqttd.config.schema import AdminTcp
from mqttd.net.handshakes import TURN, Handshakes
from tests.support.certificates import Authority
from tests.unit.admin.test_site import GET, Echo, Reactor


class Socket(StringTransport):
    """What is written stays here."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing is delayed."""


class Client:
    """One connection to the door, and TLS at its other end."""

    def __init__(self, factory: Handshakes, host: str) -> None:
        address = IPv4Address("TCP", host, 40000)
        self.transport = Socket(peerAddress=address)
        self.protocol: Any = factory.buildProtocol(address)
        self.protocol.makeConnection(self.transport)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        self.shake()

    def shake(self) -> bool:
        """Go on with the handshake as far as the server has answered; whether it is done."""
        self.incoming.write(self.transport.value())
        self.transport.clear()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            if self.transport.producerState == "producing":
                self.protocol.dataReceived(self.outgoing.read() or b"")
        return True

    @property
    def answered(self) -> bool:
        """Whether the server has said something that was not taken yet."""
        return bool(self.transport.value())


@pytest.fixture
def clock() -> Reactor:
    return Reactor()


@pytest.fixture
def factory(clock: Reactor, tmp_path: Path) -> Handshakes:
    Authority().server("localhost").write(tmp_path, "server")
    settings = AdminTcp(
        certificate=str(tmp_path / "server.crt"), private_key=str(tmp_path / "server.key")
    )
    echo = Echo()
    echo.clock = clock
    site = site_of(echo, 100, reactor=clock)
    return Handshakes(certificate_options("admin.tcp", settings), site, clock, 100)


def test_a_turn_has_so_many_steps_and_the_rest_come_in_order(
    factory: Handshakes, clock: Reactor
) -> None:
    clients = [Client(factory, "10.0.0.66") for _ in range(3 * TURN)]
    assert [client.answered for client in clients] == [True] * TURN + [False] * 2 * TURN
    assert clients[-1].transport.producerState == "paused"
    clock.turn()
    assert [client.answered for client in clients] == [True] * 2 * TURN + [False] * TURN
    clock.turn()
    assert all(client.answered for client in clients)
    assert clients[-1].transport.producerState == "producing"
    for client in clients:
        client.shake()
        clock.turn()
    served = clients[-1]
    assert served.tls.version() == "TLSv1.3"
    served.tls.write(GET)
    served.protocol.dataReceived(served.outgoing.read())
    clock.advance(0)
    served.incoming.write(served.transport.value())
    assert served.tls.read(15) == b"HTTP/1.1 200 OK"


def test_a_crowd_of_one_house_keeps_no_other_waiting(factory: Handshakes, clock: Reactor) -> None:
    crowd = [Client(factory, "10.0.0.66") for _ in range(60)]
    honest = Client(factory, "10.0.0.1")
    clock.turn()
    assert honest.answered and sum(client.answered for client in crowd) == 2 * TURN - 1


def test_who_has_gone_meanwhile_takes_no_turn(factory: Handshakes, clock: Reactor) -> None:
    clients = [Client(factory, "10.0.0.66") for _ in range(30)]
    for client in clients[TURN:29]:
        client.protocol.connectionLost(Failure(ConnectionDone()))
    clock.turn()
    assert clients[29].answered
    clock.turn()
    assert not clock.calls or all(call.getTime() > clock.seconds() for call in clock.calls)


def test_a_door_that_is_full_of_those_who_wait_sends_one_of_the_longest_line_away(
    factory: Handshakes, clock: Reactor
) -> None:
    crowd = [Client(factory, "10.0.0.66") for _ in range(100 + TURN)]
    assert not any(client.transport.disconnecting for client in crowd)
    honest = Client(factory, "10.0.0.1")
    assert crowd[-1].transport.disconnecting and not honest.transport.disconnecting
    clock.turn()
    assert honest.answered
