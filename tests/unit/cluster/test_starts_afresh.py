"""A client that comes to another node and starts afresh: its session ends as one that is here."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.codec import properties as prop
from mqttd.codec.packets import Connect, Subscribe, Subscription, Will
from mqttd.types import Claim, Held, SessionState
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.broker.test_claims import Slow, begin

DELAY = 600


class Node:
    """One of two, whose client ids are given by hand."""

    def __init__(self, name: str) -> None:
        self.slow = Slow()
        self.memory = MemoryBroker(ownership=self.slow)
        self.broker = self.memory.broker
        mesh = NodeMesh(self.broker, lambda _: None, lambda *_: None, lambda *_: None)
        mesh.applied = 1 << 40  # etcd has said all
        settled: Any = lambda filters: succeed(None)  # noqa: E731
        moves = Moves(self.broker, mesh, Clock(), name, settled, lambda: 0)
        self.owners = Owners(None, Keys("t"), name, moves.transit.reactor, lambda _: True)  # type: ignore[arg-type]
        self.owners.moves, self.owners.sessions = moves, self.broker.sessions
        self.owners.hand_over = self.broker.registry.hand_over
        self.hears = self.let_in("hears")
        self.hears.send(Subscribe(1, [Subscription("w", 1)]))
        self.hears.take()

    def let_in(self, client_id: str) -> MemoryClient:
        client = begin(self.memory, client_id)
        self.slow.answer(Claim(1, Held.NOWHERE))
        self.memory.run_soon()
        client.take()
        return client

    def heard(self) -> list[bytes]:
        """What wills have come."""
        self.broker.perform()
        return [each.payload for each in self.hears.published()]


def left(is_there: bool, username: str | None = None) -> SessionState:
    """A session with a will that another node has claimed; whether its client `is_there` still."""
    node = Node("a")
    client = node.memory.client(5)
    will = Will("w", b"gone", 1, False, {prop.WILL_DELAY_INTERVAL: DELAY})
    connect(client, False, username, will)
    node.slow.answer(Claim(1, Held.NOWHERE))
    node.memory.run_soon()
    node.memory.advance(1_000)
    if not is_there:
        client.drop()
    state = node.owners._hand_over("c", 2)
    assert state is not None and not node.heard()
    return state


def connect(
    client: MemoryClient, clean: bool, username: str | None = None, will: Will | None = None
) -> None:
    properties = {prop.SESSION_EXPIRY_INTERVAL: 3600}
    client.send(
        Connect(
            "c",
            version=5,
            clean_start=clean,
            will=will,
            username=username,
            properties=properties,
        )
    )


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_its_will_is_published_when_it_starts_afresh(is_there: bool, clean: bool) -> None:
    """Though its delay is not over; who goes on has cancelled it. 3.1.2-8, 3.1.3.2.2."""
    state = left(is_there)
    node = Node("b")
    client = node.memory.client(5)
    connect(client, clean)
    node.slow.answer(Claim(2, Held.NODE, "a", state))
    node.memory.run_soon()
    assert client.take()
    assert node.heard() == [b"gone"] * clean
    node.memory.advance(DELAY * 1_000 + 1_000)
    assert node.heard() == []
    assert node.slow.released == []


def test_another_user_starts_afresh() -> None:
    """With `session.owner = "client_id"`."""
    state = left(False, "alice")
    node = Node("b")
    node.memory.settings.owned_by_user = False
    client = node.memory.client(5)
    connect(client, False, "bob")
    node.slow.answer(Claim(2, Held.NODE, "a", state))
    node.memory.run_soon()
    session = node.memory.session("c")
    assert session is not None and session.username == "bob"
    assert node.heard() == [b"gone"]


@pytest.mark.parametrize("is_there", [False, True])
def test_its_will_comes_in_time_when_nobody_is_let_in(is_there: bool) -> None:
    state = left(is_there)
    node = Node("b")
    client = node.memory.client(5)
    connect(client, False)
    client.drop()
    node.slow.answer(Claim(2, Held.NODE, "a", state))
    node.memory.run_soon()
    node.memory.advance(DELAY * 1_000 - 2_000)
    assert node.heard() == []
    node.memory.advance(4_000)
    assert node.heard() == [b"gone"]


def test_a_session_that_is_over_by_then_is_none_to_go_on_with() -> None:
    """And what ends it does not give the client id back, which has somebody else by now."""
    state = left(False)
    node = Node("b")
    node.memory.jump(3_700_000)
    client = node.memory.client(5)
    connect(client, False)
    node.slow.answer(Claim(2, Held.NODE, "a", state))
    node.memory.run_soon()
    (connack, *_) = client.take()
    assert not connack.session_present  # type: ignore[union-attr]
    assert node.heard() == [b"gone"] and node.slow.released == []


def comes_on(node: Node, state: SessionState) -> None:
    """A client that goes on with its session at this node."""
    client = node.memory.client(5)
    connect(client, False)
    node.slow.answer(Claim(2, Held.NODE, "a", state))
    node.memory.run_soon()
    (connack, *_) = client.take()
    assert connack.session_present  # type: ignore[union-attr]


def willed(node: Node) -> MemoryClient:
    client = node.memory.client(5)
    connect(client, False, None, Will("w", b"gone", 1, False, {prop.WILL_DELAY_INTERVAL: 5}))
    node.slow.answer(Claim(1, Held.NOWHERE))
    node.memory.run_soon()
    return client


@pytest.mark.parametrize("held", [False, True])
def test_a_will_that_is_overdue_when_its_session_goes_comes_once(held: bool) -> None:
    """Held: its node has just begun anew, and lets nobody in yet."""
    node, other = Node("a"), Node("b")
    willed(node).drop()
    if held:
        node.broker.wills.hold()
    node.broker.tick(node.broker.now + 5_100)  # it waits for its turn
    state = node.owners._hand_over("c", 2)
    assert state is not None
    if held:
        node.broker.wills.release()
    node.memory.run_soon()
    other.memory.jump(5_200)
    comes_on(other, state)
    assert node.heard() + other.heard() == [b"gone"]


@pytest.mark.parametrize("away", [4_900, 5_100])
def test_a_will_that_goes_along_comes_in_its_time(away: int) -> None:
    """Not a second before, though records are in whole seconds."""
    node, other = Node("a"), Node("b")
    behind = 1_900 - node.broker.now % 1_000
    node.memory.advance(behind)
    other.memory.advance(behind + away)
    willed(node).drop()
    node.memory.advance(1_000)
    state = node.owners._hand_over("c", 2)
    assert state is not None
    comes_on(other, state)
    assert other.heard() == [b"gone"] * (away > 5_000) and not node.heard()
