"""All nodes without their leases at once, or several gone: who is taken over, and who waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.beginning import MEET, TAKEN_OVER, Beginning
from mqttd.cluster.etcd.keys import Copy, Heir, Keys, Member
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.replication.replication import Replication
from mqttd.cluster.routes.view import View
from tests.support.memory import MemoryBroker


@pytest.fixture
def view() -> View:
    """That of `c`: `b` is gone, its sessions wait for it, and it has a copy."""
    nothing: Any = lambda *_: None  # noqa: E731
    mesh = NodeMesh(MemoryBroker().broker, nothing, nothing, nothing)
    follower: Any = None
    made = View("c", Keys("test"), mesh, follower)
    made.copies["b"], made.homes["b"] = Copy("stream", "s"), 7
    return made


def test_17_who_is_a_member_anew_takes_over_nobody_who_is_about_to_be_one(view: View) -> None:
    """The first that was back took over the others, who lived, and sent all their clients away."""
    clock, adopted = Clock(), list[str]()
    clock.advance(100)
    membership = SimpleNamespace(epoch=9)
    silence = SimpleNamespace(look=lambda: None)
    owners = SimpleNamespace(silence=silence, fence=[])
    cluster = SimpleNamespace(
        membership=membership, minority=False, stopped=False, view=view, owners=owners
    )
    node: Any = SimpleNamespace(
        cluster=cluster, reactor=clock, keys=view.keys, name="c", adoptions={}, _since={},
        inheriting=silence, copying=SimpleNamespace(whole=False), _adopt=adopted.append,
    )  # fmt: skip
    Replication._fence(node)
    for _ in range(7):
        Replication._look(node)
        clock.advance(0.25)
    assert not adopted
    del view.copies["b"]  # as where it is there
    view.copies["d"], view.homes["d"] = Copy("stream", "s"), 8
    clock.advance(0.25)
    Replication._look(node)
    assert adopted == ["d"]


def test_who_begins_lets_nobody_in_while_somebody_is_taken_over(view: View) -> None:
    """Of what is published there nothing would be kept for that one: it knows no filter of it."""
    clock = Clock()
    streams: Any = None
    beginning = Beginning(view.mesh, view, streams, clock)
    for ends in (True, False):
        taken = Deferred.fromCoroutine(beginning.take())
        clock.pump([0.5] * 8)
        assert not taken.called
        view.heirs["b"] = Heir("stream", "s", "a", 5, "marks")
        clock.pump([0.5] * 8)
        assert not taken.called
        if ends:
            view.heirs["b"] = Heir("stream", "s", "a", 5, "done")
            del view.copies["b"]
            clock.advance(0.5)
            assert taken.called
            view.heirs["b"] = Heir("stream", "s", "a", 5, "read")
        else:
            clock.pump([0.5] * int(2 * TAKEN_OVER))
            assert taken.called


def test_a_set_that_nobody_gave_is_had_from_the_first_that_is_reached(view: View) -> None:
    """Clients are let in after a while, whatever it is; it was had from the last that was asked."""
    clock = Clock()
    streams: Any = SimpleNamespace(of={})
    beginning = Beginning(view.mesh, view, streams, clock)
    del view.copies["b"]
    for name in "ab":
        view.members[name] = Member(name, name, f"{name}:1", "1", (1, 1), True, 1)
    nodes = {name: view.mesh.join(name, 1) for name in "abd"}
    assert not beginning.takes(nodes["a"])
    taken = Deferred.fromCoroutine(beginning.take())
    assert beginning.takes(nodes["a"]) and not beginning.takes(nodes["b"])
    clock.advance(MEET)
    assert beginning.takes(nodes["b"]) and not beginning.takes(nodes["a"])
    clock.advance(MEET)
    assert taken.called
    for name in "ad":
        assert beginning.takes(nodes[name])
    beginning.met(nodes["b"].number)
    assert not beginning.takes(nodes["a"])
