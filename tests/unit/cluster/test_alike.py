"""Nodes that do not speak or replicate alike: an operator hears of it before one has gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqttd.cluster.admin.alike import ALARM, Alike
from mqttd.cluster.etcd.keys import Keys, Member, member_of
from mqttd.cluster.links.hello import hello_of
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.links.stream import Streams
from mqttd.cluster.routes.view import View
from tests.support.memory import MemoryBroker

MEMBER = Member("a", "a", "a:1", "1", (1, 1), True, replicate="jetstream")


def test_what_a_node_replicates_stands_in_etcd() -> None:
    assert member_of("a", MEMBER.dump(), 0) == MEMBER
    of_before = MEMBER.dump().replace(b', "replicate": "jetstream", "tls": null', b"")
    assert member_of("a", of_before, 0) == replace(MEMBER, replicate="")


def test_why_a_node_with_tls_and_one_without_have_no_link() -> None:
    """It was "Connection was closed cleanly", and "this is no node"."""
    nothing: Any = lambda *_: None  # noqa: E731
    broker = MemoryBroker().broker
    mesh = NodeMesh(broker, nothing, nothing, nothing)
    plain = Streams(broker, mesh, Clock(), "c", "b", None)
    said = {tls: plain.mismatch(replace(MEMBER, tls=tls)) for tls in (None, False, True)}
    assert not said[None] and not said[False]
    assert said[True].startswith("it speaks TLS, and this node does not")
    with pytest.raises(ValueError, match="it speaks TLS, and this node does not"):
        hello_of(b"\x16\x03\x01\x02\x00\x01")
    for text in ("", "wrong"):
        with pytest.raises(ValueError, match="this is no node"):
            hello_of(b"\x16" + text.encode())
    plain.tls = object()
    assert plain.mismatch(replace(MEMBER, tls=False)).startswith("it does not speak TLS")
    assert member_of("a", replace(MEMBER, tls=True).dump(), 0).tls is True


def test_nodes_that_do_not_replicate_alike_are_an_alarm_until_they_do() -> None:
    nothing: Any = lambda *_: None  # noqa: E731
    mesh = NodeMesh(MemoryBroker().broker, nothing, nothing, nothing)
    follower: Any = None
    view = View("a", Keys("test"), mesh, follower)
    alike = Alike(view)

    def said() -> str:
        alike.tick()
        found = [each for each in mesh.broker.alarms.active() if each.name == ALARM]
        return found[0].text if found else ""

    view.members["a"] = MEMBER
    view.members["old"] = replace(MEMBER, name="old", replicate="")
    assert not said()
    for name in "cb":
        view.members[name] = replace(MEMBER, name=name, replicate="none")
    assert '"jetstream" at a; "none" at b, c;' in said()
    del view.members["c"]
    assert '"none" at b;' in said()
    view.members["b"] = replace(MEMBER, name="b")
    assert not said()
