"""A ban that was lifted is not there again since etcd hears late of what had made it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqttd.access.roles.roles import Roles
from mqttd.cluster.commons import Commons
from mqttd.cluster.etcd.client import put, remove
from tests.support.memory import MemoryBroker
from tests.support.shared_etcd import KEYS, Asked, Store


class Node:
    """`a`, a member, whose requests go as `fates` say: what becomes of them, and when."""

    def __init__(self) -> None:
        self.clock, self.store = Clock(), Store()
        self.fates: list[tuple[str, float]] = []
        self.etcd = Asked(
            self.clock, self.store, lambda: self.fates.pop(0) if self.fates else ("", 0.0)
        )
        self.member: Any = SimpleNamespace(
            etcd=self.etcd, keys=KEYS, name="a", reactor=self.clock, epoch=0, lease=0
        )
        self.begin()
        self.bans = MemoryBroker().broker.bans
        broker: Any = SimpleNamespace(bans=self.bans, enforce_bans=lambda: None)
        self.commons = Commons(broker, self.member)
        self.commons.share(Roles())
        self.commons.begin()

    def begin(self) -> None:
        """Be a member, anew."""
        self.member.lease = self.store.grant()
        change = [remove(KEYS.node("a")), put(KEYS.node("a"), b"", self.member.lease)]
        for each in change:
            self.store.transact({"success": [each]})
        self.member.epoch = self.store.revision

    def run(self, seconds: float) -> None:
        """Time goes by."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)

    def told(self) -> dict[str, bool]:
        """Who is banned, by etcd, or was."""
        prefix = KEYS.ban("client_id", "")
        found = [kv for kv in self.store.all() if kv.key.startswith(prefix)]
        return {kv.key[len(prefix) :].decode(): bool(kv.value) for kv in found}


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.parametrize("anew", [False, True])
def test_what_comes_late_does_not_undo_what_has_changed_since(node: Node, anew: bool) -> None:
    """`anew`: in another epoch."""
    node.fates = [("held", 8.0)]
    node.bans.add("client_id", "c")
    node.run(3)
    assert node.told() == {"c": True}
    if anew:
        node.begin()
    node.bans.remove("client_id", "c")
    node.run(1)
    assert node.told() == {"c": False}
    node.run(10)
    assert node.told() == {"c": False}


def test_what_changes_while_it_is_no_member_is_told_after_that(node: Node) -> None:
    node.store.end(node.member.lease)
    node.bans.add("client_id", "c")
    why: list[str] = []
    node.run(1)
    node.commons.when_told(why.append)
    assert why == ["this node is no member of the cluster"] and not node.told()
    node.begin()
    node.run(1)
    assert node.told() == {"c": True}
    node.commons.when_told(why.append)
    assert why[1:] == [""]
