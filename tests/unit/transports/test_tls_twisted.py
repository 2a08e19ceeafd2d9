"""Handshakes on Twisted's transports: never more of them at once than the listener allows."""

from __future__ import annotations

from typing import cast

from twisted.internet.task import Clock

from mqttd.transports.protocol import MqttFactory, MqttProtocol
from mqttd.transports.tls_twisted import _TURN, PATIENCE, _Handshakes, _Records


class Peer:
    """A connection that has said something: whether it is read from."""

    def __init__(self, made: _Handshakes) -> None:
        self.made = made
        self.reading = made.begins(cast(_Records, self))

    def go(self) -> None:
        self.reading = True

    def end(self) -> None:
        self.reading = False
        self.made.ends(cast(_Records, self))


def handshakes(most: int) -> _Handshakes:
    made = object.__new__(_Handshakes)
    made.most = most
    made.shaking = made.begun = 0
    made.waiting = {}
    made.busy_with = {}
    made.clock = Clock()
    made._looking = None
    return made


def test_whoever_is_one_too_many_waits_for_its_turn() -> None:
    made = handshakes(2)
    peers = [Peer(made) for _ in range(5)]

    def reading() -> list[int]:
        return [number for number, peer in enumerate(peers) if peer.reading]

    assert reading() == [0, 1]
    peers[0].end()
    assert reading() == [1, 2]
    peers[4].end()  # gave up while it waited
    peers[1].end()
    assert reading() == [2, 3]
    peers[2].end()
    assert (reading(), made.shaking) == ([3], 1)
    peers[3].end()
    assert made.shaking == 0 and not made.waiting


def test_one_that_fails_at_its_turn_lets_the_next_one_begin() -> None:
    made = handshakes(1)
    first, second, third = (Peer(made) for _ in range(3))
    second.go = second.end  # type: ignore[method-assign]
    first.end()
    assert third.reading and made.shaking == 1


def test_a_smaller_bound_holds_for_those_that_come_later() -> None:
    made = handshakes(3)
    peers = [Peer(made) for _ in range(4)]
    made.most = 1
    peers[0].end()
    peers[1].end()
    assert not peers[3].reading
    peers[2].end()
    assert peers[3].reading and made.shaking == 1


def test_issue_12_who_leaves_us_waiting_goes_on_without_a_place() -> None:
    made = handshakes(2)
    peers = [Peer(made) for _ in range(5)]
    made.clock.advance(PATIENCE / 2)
    made.heard(cast(_Records, peers[0]))
    made.clock.advance(PATIENCE / 2)
    assert [peer.reading for peer in peers] == [True, True, True, False, False]
    made.clock.advance(PATIENCE)
    assert all(peer.reading for peer in peers)
    assert made.shaking == 2 and not made.waiting
    for peer in peers:
        peer.end()
    assert made.shaking == 0 and not made.busy_with
    made.clock.advance(PATIENCE)
    assert made.clock.getDelayedCalls() == []


def test_issue_12_no_turn_has_more_handshakes_than_others_can_wait_for() -> None:
    made = handshakes(1000)
    peers = [Peer(made) for _ in range(3 * _TURN)]
    seen = []
    while not all(peer.reading for peer in peers):
        seen.append(sum(peer.reading for peer in peers))
        made._next_turn()
    assert seen == [_TURN, 2 * _TURN] and made.shaking == 3 * _TURN
    for peer in peers:
        peer.end()
    made.clock.advance(PATIENCE)
    assert not made.shaking and made.clock.getDelayedCalls() == []


def test_issue_12_small_records_of_one_read_are_fed_at_once() -> None:
    """Else each of them would have an allowance of its own, and a turn thousands of them."""
    fed: list[bytes] = []

    class Channel:
        state = 1

        def feed(self, data: bytes) -> None:
            fed.append(data)

    class Server:
        now = 0

    protocol = MqttProtocol()
    protocol.channel = Channel()  # type: ignore[assignment]
    factory = object.__new__(MqttFactory)
    factory.broker = Server()  # type: ignore[assignment]
    factory.reactor = Clock()
    factory._scheduled = True
    protocol.factory = factory
    protocol.gather()
    for byte in b"abc":
        protocol.dataReceived(bytes([byte]))
    assert fed == []
    protocol.gathered()
    protocol.gather()
    protocol.gathered()
    protocol.dataReceived(b"d")
    assert fed == [b"abc", b"d"]
