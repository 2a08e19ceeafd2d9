"""What is asked of etcd for wills in vain, and comes there later, is not put over what is newer."""

from __future__ import annotations

import random
from base64 import b64decode
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.ordered import Ordered
from mqttd.session.ground.message import Message
from tests.support.shared_etcd import KEYS
from tests.unit.cluster.test_wills_before import Net, Node

#: What becomes of a request, and in how many seconds it comes there all the same.
WELL, HELD = ("", 0.0), ("held", 6.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(Net(tmp_path), "b").open()


def fates(node: Node, *some: tuple[str, float]) -> None:
    """So it goes with what is asked next; all after that is well."""
    left = list(some)
    node.heirs.etcd.fate = lambda: left.pop(0) if left else WELL  # type: ignore[attr-defined]


def will(node: Node, client_id: str, text: bytes) -> None:
    """A client has this will from now on; none, if it is empty."""
    if client_id not in node.broker.sessions:
        node.memory.connect(client_id, clean=False)
    message = Message(0, "w", text, 1, False, None, client_id, None, 0) if text else None
    node.broker.sessions[client_id].set_will(message, 0)
    node.heirs.changed(client_id)


def wills(node: Node) -> dict[str, bytes]:
    """What etcd has of them."""
    kept = {b64decode(key): b64decode(each[0]) for key, each in node.net.store.kept.items()}
    return {
        KEYS.parts_of_will(key)[2]: value[-3:]
        for key, value in kept.items()
        if key.startswith(KEYS.wills)
    }


@pytest.mark.parametrize("next", [b"new", b""])
@pytest.mark.parametrize("held", [1, 2, 3])
def test_an_older_will_does_not_come_back(node: Node, next: bytes, held: int) -> None:
    """It was there again, and would have been published, though its client had said DISCONNECT."""
    fates(node, *[HELD] * held)
    will(node, "c", b"old")
    node.net.run(3 * held)
    assert wills(node) == {"c": b"old"}
    will(node, "c", next)
    node.net.run(0.5)
    now = {"c": b"new"} if next else {}
    assert wills(node) == now
    node.net.run(10)
    assert wills(node) == now


def test_who_is_no_member_any_more_has_nothing_written(node: Node) -> None:
    """Nor does it go on asking, be it a member anew by now."""
    fates(node, HELD)
    will(node, "c", b"old")
    node.net.run(0.5)
    ordered = Ordered(node.heirs.etcd, KEYS, "b", node.net.there["b"], 0)
    node.net.gone("b")
    done: list[bool] = []
    for _ in range(2):
        Deferred.fromCoroutine(ordered.change([])).addCallback(done.append)
        node.net.put(KEYS.node("b"), b"")
    node.net.run(10)
    assert done == [False, False] and not wills(node)


@pytest.mark.parametrize("seed", range(20))
def test_etcd_has_the_last_of_each_client(node: Node, seed: int) -> None:
    dice = random.Random(seed)
    kinds = ["", "lost", "held", "late", "gone", "hangs"]
    fate = lambda: (dice.choice(kinds), dice.uniform(0.2, 6.0))  # noqa: E731
    node.heirs.etcd.fate = fate  # type: ignore[attr-defined]
    last: dict[str, bytes] = {}
    for number in range(100):
        client_id = dice.choice("cdefgh")
        last[client_id] = b"" if dice.random() < 0.3 else b"%03d" % number
        will(node, client_id, last[client_id])
        node.net.run(dice.choice([0, 0.1, 0.5]))
    fates(node)
    node.net.run(10)
    assert wills(node) == {name: text for name, text in last.items() if text}
