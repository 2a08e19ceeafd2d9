"""Who makes room in a lobby: silent strangers, of the house that has too many first."""

from __future__ import annotations

from collections.abc import Iterator
from socket import socket, socketpair

import pytest

from mqttd.codec.packets import Connect
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import CLOSED, Channel
from mqttd.transports.lobby import SILENT, UNNAMED, House, Lobby
from mqttd.transports.stream import StreamEdge
from tests.support.memory import MemoryBroker, Wire

CROWD, OTHER = "10.0.0.66", "10.0.0.7"


class Hall:
    """A lobby, its clock, and connections over pairs of sockets."""

    def __init__(self, **limits: int) -> None:
        self.node = MemoryBroker()
        self.lobby = Lobby(**limits)
        self.now = 0
        self.houses: dict[Channel, House] = {}
        self.socks: dict[Channel, tuple[socket, socket]] = {}

    def comes(self, host: str = CROWD) -> Channel:
        pair = socketpair()
        edge = StreamEdge(self.node.broker, Wire(None), CROWD, 1)
        channel = edge.channel = Channel(self.node.broker, edge, pair[0].fileno(), "tcp:hall")
        self.houses[channel] = self.lobby.enter(channel, host, self.now)
        self.socks[channel] = pair
        return channel

    def says(self, channel: Channel, data: bytes) -> None:
        channel.feed(data)
        self.lobby.heard(channel, self.houses[channel], self.now)

    def goes(self, channel: Channel) -> None:
        self.lobby.left(channel, self.houses[channel])

    def close(self) -> None:
        for channel in self.socks:
            self.goes(channel)
        for pair in self.socks.values():
            for sock in pair:
                sock.close()
        assert not self.lobby.houses and not self.lobby.strangers


@pytest.fixture
def halls() -> Iterator[list[Hall]]:
    made: list[Hall] = []
    yield made
    for hall in made:
        hall.close()


def hall_of(halls: list[Hall], **limits: int) -> Hall:
    halls.append(Hall(**limits))
    return halls[-1]


CONNECT = serialize(Connect("c"), 4)


def test_whoever_is_silent_for_longest_makes_room(halls: list[Hall]) -> None:
    hall = hall_of(halls, strangers_each=3)
    first, second, third = (hall.comes() for _ in range(3))
    hall.now = 10
    hall.says(first, CONNECT[:3])
    assert hall.lobby.admits(CROWD, SILENT - 1)
    assert CLOSED not in (first.state, second.state, third.state)  # nobody is silent yet
    assert hall.lobby.admits(CROWD, SILENT)
    assert (first.state, second.state) != (CLOSED, CLOSED) and second.state == CLOSED
    assert hall.node.broker.metrics.strangers_ended == 1


def test_in_one_turn_as_many_make_room_as_have_to(halls: list[Hall]) -> None:
    """Those who have are closed at its end, and stood before all others until then."""
    hall = hall_of(halls, strangers_each=200)
    crowd = [hall.comes() for _ in range(200)]
    assert all(hall.lobby.make_room("", SILENT) for _ in crowd)
    assert [channel.state for channel in crowd] == [CLOSED] * 200
    assert hall.lobby.houses[CROWD].strangers == 0
    assert not hall.lobby.can_make_room(SILENT)


def test_others_houses_and_those_let_in_are_left_alone(halls: list[Hall]) -> None:
    hall = hall_of(halls, each=2)
    other, inside = hall.comes(OTHER), hall.comes()
    hall.says(inside, CONNECT)
    stranger = hall.comes()
    assert hall.lobby.admits(OTHER, 5000)
    assert hall.lobby.admits(CROWD, 5000)  # for the stranger's place
    assert (other.state == CLOSED, inside.state == CLOSED, stranger.state == CLOSED) == (
        False, False, True,
    )  # fmt: skip
    hall.goes(stranger)
    hall.socks.pop(stranger)
    hall.says(hall.comes(), CONNECT)
    assert not hall.lobby.admits(CROWD, 10_000)
    hall.goes(inside)
    hall.socks.pop(inside)
    assert hall.lobby.admits(CROWD, 10_000)


def test_who_has_sent_what_nobody_read_is_not_silent(halls: list[Hall]) -> None:
    hall = hall_of(halls, strangers_each=1)
    speaks, silent = hall.comes(), hall.comes()
    hall.socks[speaks][1].sendall(CONNECT)
    assert hall.lobby.make_room("", 5000)
    assert (speaks.state == CLOSED, silent.state == CLOSED) == (False, True)
    assert not hall.lobby.make_room("", 5000)
    # Found once, and not for each of the next ones that want to connect.
    assert [since for since, _ in hall.lobby.strangers.values()] == [5000]


def test_proxies_who_have_named_nobody_have_no_limit_and_move(halls: list[Hall]) -> None:
    hall = hall_of(halls, each=1, strangers_each=1)
    proxied = [hall.comes("") for _ in range(3)]
    assert hall.lobby.admits("", 0)
    moved = hall.lobby.move(proxied[0], hall.houses[proxied[0]], OTHER, 0)
    assert moved is not None and moved.name == OTHER
    hall.houses[proxied[0]] = moved
    assert hall.lobby.move(proxied[1], hall.houses[proxied[1]], OTHER, 0) is None
    assert hall.houses[proxied[1]].connections == 2


def test_a_proxy_that_says_nothing_makes_room_sooner(halls: list[Hall]) -> None:
    """It has its header ready; a client may be slow."""
    hall = Hall()
    halls.append(hall)
    client = hall.comes()
    proxy = hall.comes("")
    hall.now = UNNAMED - 1
    assert not hall.lobby.can_make_room(hall.now) and not hall.lobby.make_room("", hall.now)
    hall.now = UNNAMED
    assert hall.lobby.can_make_room(hall.now) and hall.lobby.make_room("", hall.now)
    assert proxy.state == CLOSED and client.state != CLOSED
    hall.goes(proxy)
    for sock in hall.socks.pop(proxy):
        sock.close()
    assert not hall.lobby.can_make_room(hall.now) and not hall.lobby.make_room("", hall.now)
    hall.now = SILENT
    assert hall.lobby.can_make_room(hall.now) and hall.lobby.make_room("", hall.now)
    assert client.state == CLOSED


def test_a_network_of_ipv6_and_all_unix_sockets_are_one_house(halls: list[Hall]) -> None:
    hall = hall_of(halls, each=1)
    for host in ("2001:db8::1", "unix"):
        hall.says(hall.comes(host), CONNECT)
    assert not hall.lobby.admits("2001:db8::2", 0)
    assert hall.lobby.admits("2001:db8:0:1::2", 0)
    assert not hall.lobby.admits("unix", 0)
    assert not hall.lobby.admits("/run/mqtt.sock", 0)
