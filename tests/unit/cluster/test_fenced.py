"""What a node asks of etcd comes there when another is taking its sessions over: nothing is done.

Its heir makes them its own if etcd still says what it has read. What had been written anew it took
for another's by then, and dropped what it had: the session was lost.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.client import EtcdError, Json, created, remove
from mqttd.cluster.etcd.keys import claimed
from tests.unit.cluster.test_users import ALICE, HOME, KEYS, LEASE, OTHER, Node

OWN, MEMBER = (b64encode(key).decode() for key in (KEYS.own("s"), KEYS.node("c")))


@pytest.fixture
def node() -> Node:
    """`c`, a member, with a session whose client is away."""
    made = Node()
    epoch = made.etcd.write(KEYS.node("c"), b"", LEASE)
    made.owners.all_lasts = True
    made.owners.fence = [created(KEYS.node("c"), epoch)]
    made.comes("alice", False).drop()
    assert made.etcd.read() == ("c", "", ALICE)
    return made


def claims_anew(node: Node) -> None:
    """It has another home than the one that all of it is under."""
    node.owners.home = HOME + 90
    Deferred.fromCoroutine(node.owners.amends.claim_all(["s"])).addErrback(lambda _: None)


def says_whose(node: Node) -> None:
    """That was not known when it was claimed."""
    node.owners.amends._write_later("s", False)


def ends(node: Node) -> None:
    node.memory.broker.registry.discard(node.memory.broker.sessions["s"], 0, "ended")


def has_ended(node: Node) -> None:
    """Etcd could not be told so at once."""
    node.etcd.away = True
    ends(node)
    node.turn()
    node.etcd.away = False


def has_back(node: Node) -> None:
    """Who has claimed it is gone before he had it."""
    revision = node.etcd.write(KEYS.own("s"), claimed("a", "c", ALICE), OTHER)
    node.owners.taken("s", "a", revision)
    node.members.discard("a")
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")


def changes(body: Json) -> bool:
    """Whether it changes who has the client id, if that may be."""
    steps = [*body["success"]]
    for step in steps:
        steps += step.get("request_txn", {}).get("success", ())
    return any(step.get(kind, {}).get("key") == OWN for step in steps
               for kind in ("request_put", "request_delete_range"))  # fmt: skip


def held_up(node: Node, happens: Callable[[Node], None]) -> Json:
    """The first such request by this; nobody waits for it any more."""
    original, late = node.etcd.ask, list[Json]()

    async def ask(path: str, body: Json, patience: float = 0) -> Json:
        if not changes(body):
            return await original(path, body)
        late.append(body)
        raise EtcdError("no answer")

    node.etcd.ask = ask  # type: ignore[method-assign]
    happens(node)
    for _ in range(8):
        node.turn(0.5)
    node.etcd.ask = original  # type: ignore[method-assign]
    return late[0]


@pytest.mark.parametrize("member", ["still", "gone", "anew"])
@pytest.mark.parametrize("happens", [claims_anew, says_whose, ends, has_ended, has_back])
def test_17_what_comes_late_to_etcd_is_done_for_a_member_alone(
    node: Node, happens: Callable[[Node], None], member: str
) -> None:
    """`anew`: in another epoch, which it may not know of yet."""
    late = held_up(node, happens)
    if member != "still":
        node.etcd._step(remove(KEYS.node("c")), node.etcd.revision)
    if member == "anew":
        node.etcd.write(KEYS.node("c"), b"", LEASE)
    known = node.etcd.kept[OWN]
    asyncio.run(node.etcd.ask("", late))
    assert (node.etcd.kept.get(OWN) == known) is (member != "still")


@pytest.mark.parametrize("happens", [ends, has_ended])
def test_17_while_another_takes_them_over_no_end_is_said(
    node: Node, happens: Callable[[Node], None]
) -> None:
    """It has them in its hands, and what etcd says is ours still."""
    lasts = True
    node.owners.silence.lasts = lambda: lasts
    happens(node)
    node.turn(3)
    assert node.etcd.read() == ("c", "", ALICE)
    lasts = False
    node.turn(3)
    assert node.etcd.read() is None
