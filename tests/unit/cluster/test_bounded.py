"""What may be under way to another node is what that handles in time, by both lanes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.broker.ground.turns import SLICES
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.mesh.flight import FIRST, TOLD
from mqttd.mesh.frames import LANE, TAKEN, TELL, number_of, split
from mqttd.mesh.link import Link
from tests.support.memory import MemoryClient
from tests.unit.cluster.test_once import Pair, Side, joined, pump

SUBSCRIBERS = 160
MESSAGES = 400


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def link_of(side: Side) -> Link:
    link = side.other.link
    assert link is not None
    return link


def frames(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        body, end = split(data, at)
        found.append((data[at], data[body:end]))
        at = end
    return found


def kinds(data: bytes) -> list[int]:
    return [kind for kind, _ in frames(data)]


def brings(client: MemoryClient, count: int, qos: int = 0, size: int = 100) -> None:
    """So many messages, read at once."""
    data = [Publish("t", b"x" * size, qos, packet_id=n if qos else 0) for n in range(1, count + 1)]
    client.channel.feed(b"".join(serialize(each, 5) for each in data))


def waits(client: MemoryClient) -> bool:
    return client.channel.paused


def test_it_is_asked_at_once_how_far_it_is(pair: Pair) -> None:
    pair.here.cut(), pair.there.cut()
    pair.here.link(), pair.there.link()
    said = pair.here.turn()
    assert kinds(said)[0] == TELL
    pair.there.take(said)
    answered = pair.there.turn()
    assert TAKEN in kinds(answered)
    pair.here.broker.now += 80
    pair.here.take(answered)
    assert link_of(pair.here).flight.far == 80


def test_who_sends_more_waits_until_it_is_handled(pair: Pair) -> None:
    brings(pair.publisher, 2 * FIRST // 100)
    crossed = pair.here.turn()
    assert waits(pair.publisher) and TELL in kinds(crossed)
    pair.here.broker.perform()
    assert waits(pair.publisher)
    pair.there.take(crossed)
    pair.here.take(pair.there.turn())
    assert not waits(pair.publisher)
    assert link_of(pair.here).flight.room > FIRST
    assert len(pair.received()) == 2 * FIRST // 100


@pytest.mark.parametrize("version", [1, 3])
def test_an_older_node_is_not_asked_and_told_nothing(pair: Pair, version: int) -> None:
    """Who sends more waits until it is written."""
    pair.here.cut(), pair.there.cut()
    pair.here.other.version = pair.there.other.version = version
    joined(pair.here, pair.there)
    link = link_of(pair.here)
    stream = link.edge
    stream.full(link)  # type: ignore[attr-defined]
    brings(pair.publisher, 2000)
    assert waits(pair.publisher) and pair.here.turn() == b""
    stream.room(link)  # type: ignore[attr-defined]
    crossed = pair.here.turn()
    assert not waits(pair.publisher)
    pair.there.take(crossed)
    assert len(pair.received()) == 2000
    assert not {TELL, TAKEN} & {*kinds(crossed), *kinds(pair.there.turn())}


def test_what_the_lane_of_qos_2_has_put_off_is_not_handled(pair: Pair) -> None:
    """It has come by the link; what is done of it is told after each turn."""
    for number in range(SUBSCRIBERS):
        client = pair.there.kept.node.connect(f"s{number}", 5)
        client.send(Subscribe(1, [Subscription("t", 0)]))
    pump(pair.here, pair.there)
    link, lane = link_of(pair.here), pair.there.other.lane_arriving
    assert lane is not None
    for client in (pair.publisher, pair.here.kept.client("q", kept=True)):
        client.channel.router.settings.receive_maximum = 65535
        brings(client, MESSAGES, 2, 40)
    assert waits(pair.publisher)
    pair.here.settle()
    crossed = pair.here.turn()
    assert LANE in kinds(crossed)
    pair.there.arriving.take(crossed)
    before = link.flight.handled
    told = []
    for _ in range(1000):
        lane_left = len(lane.later)
        pair.there.broker.perform()
        for kind, body in frames(pair.there.pipe.take()):
            if kind == TAKEN:
                told.append(number_of(body))
                assert told[-1] <= link.flight.written - lane_left
        if not lane.busy():
            break
        pair.there.broker.now += 10
        pair.there.broker.turns.turn()
    assert len(told) > 1 and told == sorted(told)
    assert told[-1] > before and link.flight.written - told[-1] < TOLD


def test_who_waits_for_a_link_to_a_node_far_away_goes_on_as_there_is_room(pair: Pair) -> None:
    """Not one by one, an answer long each."""
    link = link_of(pair.here)
    link.flight.far = 100
    clients = [pair.here.kept.node.connect(f"c{n}", 5) for n in range(50)]
    pump(pair.here, pair.there)
    link.limit = 0
    for client in clients:
        brings(client, 1)
    assert all(waits(client) for client in clients)
    pair.there.take(pair.here.turn())
    pair.here.broker.now += 100
    pair.here.arriving.take(pair.there.turn())
    assert waits(clients[-1])
    for _ in range(len(clients) // SLICES + 1):
        pair.here.broker.turns.turn()
    left = [client for client in clients if waits(client)]
    assert len(left) < len(clients) // 2 + 2
    for _ in range(len(clients)):
        pair.here.broker.turns.turn()
    assert not any(waits(client) for client in clients)
