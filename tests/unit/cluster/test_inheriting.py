"""What a node that is taken over was about to send to one that is gone itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger

from mqttd.cluster.replication.inheriting import KEPT as KEPT_FRAME
from mqttd.cluster.replication.inheriting import LANE_MARK, LEFT, MARK, Inheriting, Kept
from mqttd.mesh.frames import packed, unpacked

UNDER_WAY = {"c": [(3, b"one"), (4, b"two")]}
KEPT = [(7, 3, b"one"), (7, 4, b"two")]
OWN = (9, 1, b"of a")


class Node:
    """Another node, and what it was sent."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.ferry = self.once = self
        self.kept: list[tuple[int, bytes]] = []

    def keep(self, data: bytes) -> None:
        """As of a ferry."""
        self.sent.append(unpacked(data[2:]))  # short: one byte of length
        self.kept.append((0, data))


class Nodes:
    """Node a, which has taken over b while c is gone."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.awaited: dict[str, Any] = {"c": None}
        self.heirs: dict[str, Any] = {}
        #: Those that somebody is about to take over.
        self.copies: set[str] = set()
        self.clock = Clock()
        view = SimpleNamespace(
            heirs=self.heirs,
            names=lambda: {"b", "c", *self.heirs, *self.copies},
            is_left=lambda name: name in self.copies,
            home_of=lambda name: 1 if name in self.copies else -1,
            is_taken_over=lambda name: name in self.heirs and self.heirs[name].stage != "done",
            absent=SimpleNamespace(nodes=self.awaited, take=lambda name: [OWN]),
        )
        arrivals = SimpleNamespace(awaited_of=lambda name: [])
        cluster: Any = SimpleNamespace(
            name="a",
            reactor=self.clock,
            view=view,
            mesh=SimpleNamespace(nodes=self.there, ferries={}),
            moves=SimpleNamespace(arrivals=arrivals, handed_out=lambda name: None),
            broker=SimpleNamespace(
                perform_later=lambda: None, fans=SimpleNamespace(after_all=lambda called: called())
            ),
        )
        self.inheriting = Inheriting(cluster, Logger())
        self.inheriting.hand_out("b", 7, UNDER_WAY)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_its_heir_gets_it(nodes: Nodes) -> None:
    """It was lost: b was cut off, c killed, and a took over both (kind `leases`)."""
    given: list[list[Kept]] = []
    nodes.inheriting.heirs["c"] = lambda name, link, kept, wanted: given.append(kept)
    nodes.inheriting.look()
    assert given == []
    nodes.heirs["c"] = SimpleNamespace(stage="marks", by="a", changed=1)
    nodes.inheriting.look()
    assert given == [[*KEPT, OWN]]


def test_it_gets_it_when_it_is_back(nodes: Nodes) -> None:
    nodes.awaited.clear()
    nodes.there["c"] = back = Node()
    nodes.inheriting.look()
    book = (7).to_bytes(8, "big")
    assert back.sent == [
        [LEFT, b"b", book, number.to_bytes(8, "big") + data] for number, data in UNDER_WAY["c"]
    ]
    nodes.inheriting.look()
    assert len(back.sent) == 2


@pytest.mark.parametrize("has_taken", [True, False])
def test_who_goes_before_it_has_taken_it_gets_it_when_it_is_back(
    nodes: Nodes, has_taken: bool
) -> None:
    """It was lost with the link to who it had been; that had lost its lease."""
    nodes.awaited.clear()
    nodes.there["c"] = before = Node()
    nodes.inheriting.look()
    if has_taken:
        before.kept.clear()
        nodes.inheriting.look()
    del nodes.there["c"]
    nodes.awaited["c"] = None
    nodes.inheriting.left("c")
    nodes.inheriting.look()
    nodes.awaited.clear()
    nodes.there["c"] = back = Node()
    nodes.inheriting.look()
    assert back.sent == ([] if has_taken else before.sent)


def test_of_who_is_taken_over_already_it_is_lost(nodes: Nodes) -> None:
    """Its sessions are at others, and which of theirs have had it nobody knows."""
    nodes.awaited.clear()
    nodes.heirs["c"] = SimpleNamespace(stage="done", by="d", changed=1)
    nodes.there["d"] = heir = Node()
    nodes.inheriting.look()
    assert heir.sent == []


def handed_to(nodes: Nodes, name: str) -> list[list[Kept]]:
    """What its heir, which we are, is given of what others had for it."""
    given: list[list[Kept]] = []
    done = Deferred.fromCoroutine(nodes.inheriting.handed_to(name, lambda: None))
    done.addCallback(given.append)
    return given


def inherits(nodes: Nodes) -> None:
    """We are the heir of c, and have what was kept for it so far."""
    given: list[list[Kept]] = []
    nodes.inheriting.heirs["c"] = lambda name, link, kept, wanted: given.append(kept)
    nodes.heirs["c"] = SimpleNamespace(stage="marks", by="a", changed=1)
    nodes.inheriting.look()
    assert given == [[*KEPT, OWN]]


def test_17_an_heir_waits_for_what_others_had_for_it_that_are_gone_too(nodes: Nodes) -> None:
    """c was done before what b had for it was handed out: 196 messages were lost (`leases`)."""
    inherits(nodes)
    nodes.inheriting.left("b")
    nodes.copies.add("b")
    given = handed_to(nodes, "c")
    assert given == []
    nodes.inheriting.hand_out("b", 7, UNDER_WAY)
    nodes.clock.advance(0.1)
    assert given == [KEPT]


def test_17_or_until_the_heir_of_these_has_handed_it_out(nodes: Nodes) -> None:
    nodes.inheriting.left("d")
    nodes.copies.add("d")
    inherits(nodes)
    given = handed_to(nodes, "c")
    assert given == []
    heir: Any = SimpleNamespace(name="e", number=1, version=5)
    nodes.inheriting.told(heir, packed([LEFT, b"d", bytes(8)]))
    nodes.clock.advance(0.1)
    assert given == [[]]


def test_17_not_for_good(nodes: Nodes) -> None:
    nodes.inheriting.left("d")
    nodes.copies.add("d")
    inherits(nodes)
    given = handed_to(nodes, "c")
    for _ in range(110):
        nodes.clock.advance(0.1)
    assert given == [[]]


def test_17_what_is_handed_out_behind_our_mark_is_given_to_its_heir_as_well(nodes: Nodes) -> None:
    nodes.heirs["c"] = SimpleNamespace(stage="marks", by="e", changed=1)
    nodes.there["e"] = heir = Node()
    nodes.inheriting.look()
    assert [each[0] for each in heir.sent] == [KEPT_FRAME, MARK, LANE_MARK]
    heir.sent.clear()
    nodes.inheriting.hand_out("d", 8, {"c": [(5, b"three")]})
    numbers = b"".join(each.to_bytes(8, "big") for each in (8, 5))
    assert heir.sent[0][:3] == [KEPT_FRAME, b"c", numbers + b"three"]
    assert heir.sent[-1] == [LEFT, b"d", (8).to_bytes(8, "big")]


def test_nobody_waits_for_it_without_end(nodes: Nodes) -> None:
    nodes.awaited.clear()
    nodes.inheriting.look()
    nodes.there["c"] = late = Node()
    nodes.inheriting.look()
    assert late.sent == []
