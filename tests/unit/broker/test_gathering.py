"""Acknowledgements that wait for groups, beside a keeper that is asked about each client."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mqttd.codec.packets import Puback, Publish, Pubrec
from mqttd.session.gathering import Gathering
from mqttd.session.ground.connection import CLOSED
from mqttd.session.promise import Promise
from mqttd.testing import MemoryBroker, MemoryClient

Release = Callable[[], None]


class Log:
    """Something that keeps messages: `end` is what has come, `written` what is kept."""

    def __init__(self, node: MemoryBroker) -> None:
        self.node = node
        self.end = 0
        self.written = 0

    def close(self) -> None:
        """What waits is written with what has come by now."""

    def write(self, upto: int) -> None:
        raise NotImplementedError


class Asked(Log):
    """The slow way: about each client."""

    def __init__(self, node: MemoryBroker) -> None:
        super().__init__(node)
        self.open: list[Release] = []
        self.held: list[tuple[int, Release]] = []
        node.broker.add_holder(lambda release, client_id: self.open.append(release))

    def close(self) -> None:
        self.held += [(self.end, release) for release in self.open]
        self.open = []

    def write(self, upto: int) -> None:
        self.written = upto
        while self.held and self.held[0][0] <= upto:
            self.held.pop(0)[1]()
        self.node.settle()


class Gathers(Log):
    """The fast way."""

    def __init__(self, node: MemoryBroker) -> None:
        super().__init__(node)
        self.turns = 0
        self.refuses = False
        self.refused: list[Promise] = []
        self.gathering = Gathering(node.broker, self.brought, self.refused.extend)
        node.broker.add_holder(self.hold, None, False, self.gathering)

    def brought(self) -> bool:
        self.turns += 1
        return not self.refuses

    def hold(self, release: Release, client_id: str) -> None:
        assert self.gathering.careful
        release()

    def close(self) -> None:
        self.gathering.close(self.end)

    def write(self, upto: int) -> None:
        self.written = upto
        self.gathering.release(upto)
        self.node.settle()


def acked(client: MemoryClient) -> list[int]:
    return [packet.packet_id for packet in client.received if isinstance(packet, Puback | Pubrec)]


@pytest.mark.parametrize("seed", range(60))
def test_groups_are_acknowledged_as_by_a_keeper_that_is_asked_about_each_client(seed: int) -> None:
    drawn = random.Random(seed)
    steps: list[tuple[str, int, int]] = []
    for _ in range(60):
        what = drawn.choice(["send", "send", "send", "close", "write", "drop"])
        steps.append((what, drawn.randrange(4), drawn.randrange(1, 5)))
    found = []
    for kind in (Asked, Gathers):
        node = MemoryBroker()
        log = kind(node)
        clients: dict[int, MemoryClient] = {}
        ends = [0]
        seen: list[list[int]] = []
        sent = 0
        for what, who, count in steps:
            if what == "send":
                if who not in clients:
                    clients[who] = node.connect(f"c{who}")
                first = sent % 60000 + 1
                log.end += count
                sent += count
                clients[who].send(
                    *(Publish("t", b"", 1 + (i & 1), packet_id=first + i) for i in range(count))
                )
            elif what == "close":
                log.close()
                ends.append(log.end)
            elif what == "write":
                log.write(drawn_end(ends, count))
            elif who in clients:
                clients.pop(who).drop()
            seen.append([number for client in clients.values() for number in acked(client)])
        log.close()
        log.write(log.end)
        seen.append([number for client in clients.values() for number in acked(client)])
        for client in clients.values():
            assert not client.channel.promises
        if isinstance(log, Gathers):
            assert len(log.gathering) == 0
        found.append(seen)
    assert found[0] == found[1]
    assert found[0][-1]


def drawn_end(ends: list[int], back: int) -> int:
    """An end that was closed, and it never goes back."""
    return ends[max(0, len(ends) - back)]


def test_it_is_asked_once_a_turn_and_not_while_it_is_asked_about_each_client() -> None:
    node = MemoryBroker()
    log = Gathers(node)
    a, b = node.connect("a"), node.connect("b")
    node.clock.callLater(0, lambda: None)
    a.feed(b"".join(wire(i) for i in range(1, 4)))
    b.feed(wire(1))
    node.settle()
    assert 1 <= log.turns <= 2 and acked(a) == acked(b) == []
    log.close()
    log.write(1)
    assert acked(a) == [1, 2, 3] and acked(b) == [1]
    turns = log.turns
    log.gathering.careful = True
    a.send(Publish("t", b"", 1, packet_id=4))
    assert log.turns == turns and acked(a) == [1, 2, 3, 4]


def wire(packet_id: int) -> bytes:
    return b"\x32\x06\x00\x01t" + packet_id.to_bytes(2, "big") + b"\x00"


def test_one_that_cannot_be_asked_has_promised_nothing() -> None:
    node = MemoryBroker()
    log = Gathers(node)
    a = node.connect("a")
    log.refuses = True
    a.send(Publish("t", b"", 1, packet_id=1))
    assert len(log.refused) == 1
    log.refused[0].queue.refuse(PermissionError("not now"))
    node.settle()
    assert a.channel.state == CLOSED
    log.close()
    log.write(0)
    assert acked(a) == []
