"""Handshakes on Twisted's transports: never more of them at once than the listener allows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mqttd.transports.tls_twisted import _Handshakes, _Records


class Peer:
    """A connection, and whether it is read from."""

    def __init__(self) -> None:
        self.reading = False

    def wait(self) -> None:
        self.reading = False

    def go(self) -> None:
        self.reading = True


class Port:
    connected = True
    reading = True

    def stopReading(self) -> None:
        self.reading = False

    def startReading(self) -> None:
        self.reading = True


def handshakes(most: int) -> tuple[_Handshakes, Port]:
    port = Port()
    made = object.__new__(_Handshakes)
    made.most = most
    made.mqtt = cast(Any, SimpleNamespace(port=port, paused=""))
    made.shaking = 0
    made.waiting = {}
    return made, port


def test_what_one_turn_accepted_on_top_waits_for_its_turn() -> None:
    made, port = handshakes(2)
    peers = [Peer() for _ in range(5)]
    for peer in peers:
        made.begins(cast(_Records, peer))
    assert [peer.reading for peer in peers] == [True, True, False, False, False]
    assert not port.reading
    made.ends(cast(_Records, peers[0]))
    assert [peer.reading for peer in peers] == [True, True, True, False, False]
    made.ends(cast(_Records, peers[4]))  # gave up while it waited
    made.ends(cast(_Records, peers[1]))
    assert peers[3].reading and not peers[4].reading and not port.reading
    made.ends(cast(_Records, peers[2]))
    assert port.reading and made.shaking == 1
    made.ends(cast(_Records, peers[3]))
    assert made.shaking == 0 and not made.waiting


def test_a_port_that_was_closed_or_paused_meanwhile_stays_so() -> None:
    for change in ("closed", "paused"):
        made, port = handshakes(1)
        peer = cast(_Records, Peer())
        made.begins(peer)
        if change == "closed":
            port.connected = False
        else:
            made.mqtt.paused = "full"
        made.ends(peer)
        assert not port.reading
