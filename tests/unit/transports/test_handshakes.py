"""TLS handshakes on the engine: never more at once than allowed, and places only for who speaks.

The real engine and layers, turned by hand, over pairs of connected sockets.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, socket, socketpair
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.packets import Connect
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import CLOSED, OPEN
from mqttd.transports.engine import Engine
from mqttd.transports.frames import WebSocketLayer
from mqttd.transports.layered_edge import LayeredEdge
from mqttd.transports.layers import Layer, Stack
from mqttd.transports.ports import Port
from mqttd.transports.proxy import ProxyHeader, ProxyLayer
from mqttd.transports.records import TlsLayer
from mqttd.transports.websocket import WebSite
from mqttd.types import PeerIdentity
from tests.support.certificates import Authority
from tests.support.memory import MemoryBroker

HELLO = b"\x16\x03\x01\x02\x00\x01"  # the beginning of one
HEADER = b"PROXY TCP4 192.0.2.9 198.51.100.1 50000 8883\r\n"
MOST = 2
TIMEOUT = 5_000

Make = Callable[[], list[Layer]]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's, and that of a client which trusts it."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    authority.write(folder)
    authority.server("localhost").write(folder, "server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    return server, ssl.create_default_context(cafile=str(folder / "ca.crt"))


def identify_proxied(header: ProxyHeader) -> PeerIdentity:
    return PeerIdentity(header.host, header.port, None, None)


class Peer:
    """The far end of a connection, and the broker's."""

    def __init__(self, edge: LayeredEdge, sock: socket) -> None:
        self.edge = edge
        self.sock = sock

    @property
    def begun(self) -> bool:
        """Whether the broker has read the beginning of its handshake."""
        return not self.closed and self.edge.stack.begun()

    @property
    def waits(self) -> bool:
        return self.edge.waiting and not self.closed

    @property
    def closed(self) -> bool:
        return self.edge.channel.state == CLOSED


class Site:
    """A listener of the engine into which connections are put."""

    def __init__(self, make: Make, most: int = MOST) -> None:
        self.node = MemoryBroker()
        self.engine = Engine(self.node.broker)
        self.make = make
        self.clock = time.monotonic_ns()  # stands: a machine that pauses is no peer that is silent
        self.pair = socketpair()
        self.port = Port("ssl:door", self.pair[0], 0, None, most, TIMEOUT)
        self.peers: list[Peer] = []

    def peer(self, said: bytes = b"", host: str = "192.0.2.7") -> Peer:
        """A new connection; what it says arrives in the next turn."""
        near, far = socketpair()
        near.setblocking(False)
        far.settimeout(10)
        fd = near.detach()
        self.port.connections += 1
        address = (host, 40_000 + len(self.peers))
        edge = LayeredEdge(self.engine, self.port, fd, address, Stack(self.make()))
        self.engine.layered[fd] = edge
        self.engine.epoll.register(fd, 1)
        peer = Peer(edge, far)
        self.peers.append(peer)
        if said:
            far.sendall(said)
        return peer

    def _turn_once(self) -> None:
        now = self.node.broker.now
        with mock.patch.object(time, "monotonic_ns", lambda: self.clock):
            self.engine.doRead()
        self.node.broker.now = now  # the clock is turned by hand

    def turn(self) -> None:
        """Turns of the engine until all is done that can be done."""
        for _ in range(5 + len(self.peers)):
            self._turn_once()
            begun = sum(peer.begun for peer in self.peers)
            assert begun <= self.port.handshakes <= (self.port.max_handshakes or 1_000)

    def turn_freely(self) -> None:
        """As `turn`, where some go on without a place."""
        for _ in range(5 + len(self.peers)):
            self._turn_once()
            assert self.port.handshakes <= self.port.max_handshakes

    def begun(self) -> list[bool]:
        return [peer.begun for peer in self.peers]

    def close(self) -> None:
        """Nothing is left of anything once everybody has gone."""
        for peer in self.peers:
            peer.sock.close()
        self.turn()
        assert not self.port.handshakes and not self.port.connections and not self.port.waiting
        for sock in self.pair:
            sock.close()
        self.engine.epoll.close()


def shake(
    site: Site, peer: Peer, context: ssl.SSLContext, turn: Callable[[], None] | None = None
) -> ssl.SSLSocket:
    """The client's side of a whole handshake."""
    turn = turn or site.turn
    peer.sock.setblocking(False)
    tls = context.wrap_socket(peer.sock, server_hostname="localhost", do_handshake_on_connect=False)
    peer.sock = tls
    for _ in range(10):
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            break
        turn()
    else:
        raise TimeoutError
    turn()
    return tls


@pytest.fixture
def site_of() -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(layers: Make, most: int = MOST) -> Site:
        made.append(Site(layers, most))
        return made[-1]

    yield make
    for site in made:
        site.close()


Sites = Callable[..., Site]
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def test_silent_peers_take_no_place_and_no_memory(site_of: Sites, contexts: Contexts) -> None:
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    silent = [site.peer() for _ in range(50)]
    site.turn()
    assert site.port.handshakes == 0 and not site.port.waiting
    for peer in silent:
        (layer,) = peer.edge.stack.layers
        assert isinstance(layer, TlsLayer) and layer.session is None
    peer = site.peer()
    tls = shake(site, peer, client)
    tls.sendall(serialize(Connect("real"), 4))
    site.turn()
    assert peer.edge.channel.state == OPEN and site.port.handshakes == 0


def test_who_would_be_one_too_many_waits_for_its_turn(site_of: Sites, contexts: Contexts) -> None:
    """First come, first served; whoever gives up meanwhile is passed over."""
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    first, second, third, fourth, fifth = (site.peer(HELLO) for _ in range(5))
    site.turn()
    assert site.begun() == [True, True, False, False, False]
    assert [peer.waits for peer in site.peers] == [False, False, True, True, True]
    third.edge.channel.end("gave up")
    first.sock.close()
    site.turn()
    assert first.closed and third.closed
    assert site.begun() == [False, True, False, True, False]
    second.sock.close()
    fourth.sock.close()
    site.turn()
    assert site.begun() == [False, False, False, False, True] and not site.port.waiting
    shake(site, site.peer(), client)
    assert site.port.handshakes == 1 and not fifth.closed


def test_a_client_that_waited_gets_in_with_what_it_said(site_of: Sites, contexts: Contexts) -> None:
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    stalled = [site.peer(HELLO) for _ in range(MOST)]
    site.turn()
    peer = site.peer()
    with pytest.raises(TimeoutError):
        shake(site, peer, client)
    assert peer.waits
    stalled[0].sock.close()
    tls = peer.sock
    assert isinstance(tls, ssl.SSLSocket)
    for _ in range(10):
        site.turn()
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            break
    tls.sendall(serialize(Connect("patient"), 4))
    site.turn()
    assert peer.edge.channel.state == OPEN and site.port.handshakes == 1


def test_silent_and_waiting_ones_are_closed_in_time(site_of: Sites, contexts: Contexts) -> None:
    server, _ = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    for said in (HELLO, HELLO, HELLO, b""):
        site.peer(said)
    site.turn()
    site.node.advance(TIMEOUT + 500)
    assert [peer.closed for peer in site.peers] == [True] * 4
    assert site.port.handshakes == 0 and not site.port.waiting


def test_what_is_no_tls_gives_its_place_back_at_once(site_of: Sites, contexts: Contexts) -> None:
    server, _ = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)], 1)
    peers = [site.peer(b"GET / HTTP/1.1\r\n\r\n") for _ in range(3)]
    site.turn()
    assert all(peer.closed for peer in peers) and site.port.handshakes == 0


def test_a_proxy_header_alone_takes_no_place(site_of: Sites, contexts: Contexts) -> None:
    """A proxy sends its header at once, for clients that stay silent too."""
    server, client = contexts
    site = site_of(
        lambda: [ProxyLayer(identify_proxied), TlsLayer(server, lambda connection: None)]
    )
    silent = [site.peer(HEADER) for _ in range(10)]
    partly = site.peer(HEADER[:7])
    site.turn()
    assert site.port.handshakes == 0 and not site.port.waiting
    assert silent[0].edge.peer(silent[0].edge.channel) == ("192.0.2.9", 50000)
    assert partly.edge.peer(partly.edge.channel) == ("192.0.2.7", 40010)
    stalled = [site.peer(HEADER + HELLO) for _ in range(MOST)]
    site.turn()
    assert [peer.begun for peer in stalled] == [True, True]
    late = site.peer(HEADER)
    site.turn()
    assert late.waits
    stalled[0].sock.close()
    site.turn()
    assert not late.waits and site.port.handshakes == 1
    shake(site, late, client)
    assert site.port.handshakes == 1


def test_a_websocket_that_is_slow_to_open_takes_no_place(
    site_of: Sites, contexts: Contexts
) -> None:
    """Its TLS is done; the time it has stays that of the whole."""
    server, client = contexts
    web = WebSite("/mqtt", (), False)
    site = site_of(
        lambda: [TlsLayer(server, lambda connection: None), WebSocketLayer(web.upgrade())]
    )
    peer = site.peer()
    shake(site, peer, client)
    assert site.port.handshakes == 0 and peer.edge.shaking
    site.node.advance(TIMEOUT + 500)
    assert peer.closed


def test_the_address_is_known_after_a_reset(site_of: Sites) -> None:
    """It is the one that `accept` told: the kernel has forgotten it by then."""
    site = site_of(lambda: [ProxyLayer(identify_proxied)], 0)
    peer = site.peer(HEADER[:7])
    peer.sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()
    site.turn()
    assert peer.closed
    assert peer.edge.peer(peer.edge.channel) == ("192.0.2.7", 40000)


@given(steps=st.lists(st.tuples(st.sampled_from("chglte"), st.integers(0, 9)), max_size=40))
def test_there_are_never_more_and_nobody_is_forgotten(
    steps: list[tuple[str, int]], contexts: Contexts
) -> None:
    """Peers come, speak, go and are closed in any order: `turn` looks at the bound."""
    server, _ = contexts
    site = Site(lambda: [TlsLayer(server, lambda connection: None)])
    for step, number in steps:
        if step == "c":
            site.peer()
        elif step == "h":
            site.peer(HELLO)
        elif step == "t":
            site.turn()
        elif site.peers:
            peer = site.peers[number % len(site.peers)]
            with contextlib.suppress(OSError):
                if step == "g":
                    peer.sock.close()
                elif step == "l":
                    peer.sock.sendall(HELLO[:1])
                elif not peer.closed:
                    peer.edge.channel.end("ended")
    site.turn()
    waiting = sum(peer.waits for peer in site.peers)
    assert not waiting or site.port.handshakes == MOST
    site.close()


def test_issue_12_a_place_is_for_work_and_silence_loses_it(
    site_of: Sites, contexts: Contexts
) -> None:
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    for _ in range(5):
        site.peer(HELLO)
    site.turn()
    assert sum(peer.waits for peer in site.peers) == 3
    for waiting in (1, 0):
        site.port.tick(time.monotonic_ns() // 1_000_000 + 500)
        site.turn_freely()
        assert sum(peer.waits for peer in site.peers) == waiting
    assert site.port.handshakes <= MOST and not any(peer.closed for peer in site.peers)
    shaken = site.peer()
    site.port.tick(time.monotonic_ns() // 1_000_000 + 500)
    shake(site, shaken, client, site.turn_freely)
    assert not shaken.edge.shaking


def test_issue_12_half_a_hello_has_no_object_of_openssl(site_of: Sites, contexts: Contexts) -> None:
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    peer = site.peer(HELLO)
    site.turn()
    (layer,) = peer.edge.stack.layers
    assert isinstance(layer, TlsLayer) and layer.session is None and layer.hello == HELLO
    peer.sock.sendall(bytes(511))
    site.turn()
    assert peer.closed


def test_issue_12_houses_that_wait_have_their_turn(site_of: Sites, contexts: Contexts) -> None:
    server, _ = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    crowd = [site.peer(HELLO) for _ in range(6)]
    site.turn()
    honest = site.peer(HELLO, host="192.0.2.66")
    site.turn()
    assert honest.waits
    for peer in crowd[:2]:
        peer.sock.close()
    site.turn()
    assert not honest.waits and [peer.waits for peer in crowd[2:]] == [False, True, True, True]


def test_issue_12_a_house_has_so_many_places(site_of: Sites, contexts: Contexts) -> None:
    server, _ = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)], 4)
    site.port.handshakes_each = 2
    crowd = [site.peer(HELLO) for _ in range(5)]
    site.turn()
    assert [peer.waits for peer in crowd] == [False, False, True, True, True]
    honest = site.peer(HELLO, host="192.0.2.66")
    site.turn()
    assert not honest.waits and site.port.handshakes == 3


def test_issue_12_what_a_handshake_takes_counts_as_a_strangers(
    site_of: Sites, contexts: Contexts
) -> None:
    server, client = contexts
    site = site_of(lambda: [TlsLayer(server, lambda connection: None)])
    account = site.node.broker.account
    half, whole = site.peer(HELLO), site.peer()
    site.turn()
    before = account.unauthenticated
    tls = shake(site, whole, client)
    assert account.unauthenticated - before > 40_000
    tls.sendall(serialize(Connect("real"), 4))
    site.turn()
    assert account.unauthenticated < before
    half.edge.channel.end("gone")
    site.turn()
    assert account.unauthenticated == 0
