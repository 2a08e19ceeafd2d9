"""A node that is a member anew: each step of that until it has been done, whatever fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.cluster.cluster import Cluster
from mqttd.cluster.etcd.client import EtcdError


class Node:
    """What `Cluster._keep` works with; `fails`: the step that etcd does not answer, once."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.done: list[str] = []
        is_kept = lambda: "register" in self.done  # noqa: E731
        self.membership = SimpleNamespace(kept=is_kept, lease=1, home=2)
        self.owners = SimpleNamespace(strict=True, known=-1)
        self.moves = SimpleNamespace(
            anew=lambda: self.done.append("ask others"), seen=lambda: self.known.append(self.owners)
        )
        self.known: list[object] = []
        self.replication = SimpleNamespace(rejoined=lambda: self._step("rejoin"))
        self.still = SimpleNamespace(end=lambda: None)
        self.reactor = SimpleNamespace(seconds=lambda: 0.0)
        self.minority = self._anew = self._rejoins = False
        self._failed = lambda text: None

    async def _step(self, name: str) -> None:
        if name == self.fails:
            self.fails = ""
            raise EtcdError("away")
        self.done.append(name)

    async def _register(self, since: float) -> None:
        await self._step("register")

    async def _look(self) -> None:
        await self._step("look")

    async def _claim_all(self) -> None:
        await self._step("claim")

    async def _heal(self) -> None:
        await Cluster._heal(self)  # type: ignore[arg-type]

    def keep(self) -> None:
        node: Any = self
        kept = Deferred.fromCoroutine(Cluster._keep(node))
        kept.addErrback(lambda failure: Cluster._not_kept(node, failure))


@pytest.mark.parametrize("fails", ["register", "look", "rejoin", "claim", ""])
def test_17_who_is_a_member_anew_asks_others_again_though_etcd_does_not_answer(fails: str) -> None:
    """It had read nothing since, and was one: others were to send what they had said before."""
    node = Node(fails)
    node.keep()
    node.keep()
    node.keep()
    assert node.done[-1] == "claim" and not node._anew
    assert node.owners.known == node.owners.lease == 1 and node.known
    assert set(node.done) == {"register", "look", "ask others", "rejoin", "claim"}
    assert node.done.count("register") == node.done.count("rejoin") == 1


def test_17_what_is_missed_while_all_is_claimed_is_claimed_again() -> None:
    node = Node("")
    node.done.append("register")
    node._anew = True

    async def claim_all() -> None:
        node._anew = not node.done.count("claim")
        node.done.append("claim")

    node._claim_all = claim_all  # type: ignore[method-assign]
    node.keep()
    assert node._anew and node.owners.known == -1
    node.keep()
    assert node.done.count("claim") == 2 and not node._anew
