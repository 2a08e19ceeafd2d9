"""Sessions that outlive their node: what a quorum of NATS servers has, another node serves."""

from __future__ import annotations

import shutil
import signal
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.ctl import told
from tests.support.etcd import Etcd
from tests.support.nats import NatsServers, start_nats
from tests.support.nodes import STAYS, let_in, start_node, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServers]:
    started = start_nats(tmp_path / "nats", 3)
    yield started
    started.stop()


def settings(nats: NatsServers, **more: Any) -> dict[str, Any]:
    """Of a node whose sessions are replicated."""
    return {
        "store": {"kind": "sqlite"},
        "session": {"replicate": "jetstream"},
        "jetstream": {"servers": nats.addresses, "replicas": len(nats.members)},
        **more,
    }


def is_copied(node: Broker) -> bool:
    """Once its store is copied, and others know."""
    return node.says("the store is copied to")


def owner_of(etcd: Etcd, client_id: str) -> str:
    """Who has a client id, and from whom it was claimed."""
    key = b64encode(f"/mqttd/mqttd/v1/own/{client_id}".encode()).decode()
    found = etcd.ask("/v3/kv/range", {"key": key}).get("kvs", [])
    return "\0".join(b64decode(found[0]["value"]).decode().split("\0")[:2]) if found else ""


#: An heir that reads nothing before there is this file.
WAITS = """
import os
from twisted.internet import reactor
from twisted.internet.task import deferLater
from mqttd.cluster.replication import adoption
fetch = adoption.fetch
async def waits(*about):
    while not os.path.exists({path!r}):
        await deferLater(reactor, 0.05)
    return await fetch(*about)
adoption.fetch = waits
"""
#: A node that gives nothing away.
KEEPS = """
from mqttd.cluster.sessions.owners import Owners
Owners.taken = lambda *_: None
"""
#: A node that gives up nothing that it waits for of a taking over.
PATIENT = """
from mqttd.cluster.replication import adoption
from mqttd.cluster.sessions import arrivals
from mqttd.cluster.sessions import departures
from mqttd.cluster.sessions import moves
adoption._LATE = moves.HEIR = arrivals.MARKS = departures.MARKS = 1e6
"""


def test_a_session_outlives_its_node(etcd: Etcd, nats: NatsServers, tmp_path: Path) -> None:
    """Its queue, and what came while it was gone, are elsewhere; and the node has them no more."""
    of = settings(nats)
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, **of)
    try:
        until(lambda: all(is_copied(each) for each in nodes.values()), "that all is copied")
        reader = RawClient(nodes["b"].port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t/+", qos=2)
        sender = RawClient(nodes["b"].port, mq.V5, deadline=20.0)
        sender.connect("sender", clean=False, props=STAYS)
        reader.close()
        sender.publish("t/1", b"one", qos=1)
        other = RawClient(nodes["a"].port, mq.V5, deadline=20.0).connect("other")
        other.publish("t/2", b"two", qos=2)
        nodes["b"].stop(hard=True)
        other.publish("t/3", b"three", qos=1)
        assert nodes["a"].says("sessions of node b are here now")
        back = let_in(nodes["a"], "reader")
        assert back.resumed
        assert [back.message().payload for _ in range(3)] == [b"one", b"two", b"three"]
        back.close()
        nodes["b"] = start_node(tmp_path, etcd, "b", **of)
        again = let_in(nodes["b"], "reader")
        assert again.resumed
        other.publish("t/4", b"four", qos=1)
        assert again.message(payload=b"four")
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")


def test_acknowledgements_wait_for_the_servers(etcd: Etcd, tmp_path: Path) -> None:
    """Withheld, then refused while none answers; what was withheld comes when they are back."""
    nats = start_nats(tmp_path / "nats", 1)
    node = start_node(tmp_path, etcd, "a", **settings(nats))
    try:
        assert is_copied(node)
        reader = RawClient(node.port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=1)
        reader.close()
        sender = RawClient(node.port, mq.V5, deadline=60.0).connect("sender")
        nats.stop()
        sender.send(mq.publish("t", b"withheld", 1, 1, version=mq.V5))
        until(lambda: "replication_failed" in told(node, "alarms"), "the alarm")
        other = RawClient(node.port, mq.V5, deadline=20.0).connect("other")
        other.send(mq.publish("t", b"refused", 1, 2, version=mq.V5))
        refused = other.receive()
        assert refused is not None and (refused.packet_id, refused.reason) == (2, 0x97)
        nats.start()
        kept = sender.receive()
        assert kept is not None and (kept.packet_id, kept.reason) == (1, 0)
        until(lambda: "replication_failed" not in told(node, "alarms"), "its end")
        sender.publish("t", b"again", qos=1)
        back = let_in(node, "reader")
        assert [back.message().payload for _ in range(2)] == [b"withheld", b"again"]
    finally:
        node.stop()
        nats.stop()


def test_who_publishes_at_another_node_is_refused_as_well(etcd: Etcd, tmp_path: Path) -> None:
    nats = start_nats(tmp_path / "nats", 1)
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, **settings(nats))
    refused: list[int] = []
    try:
        assert all(is_copied(each) for each in nodes.values())
        reader = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=1)
        reader.close()
        roamer = RawClient(nodes["b"].port, mq.V5, deadline=20.0)
        roamer.connect("roamer", clean=False, props=STAYS).close()
        sender = RawClient(nodes["b"].port, mq.V5, deadline=60.0).connect("sender")
        nats.stop()
        sender.send(mq.publish("t", b"withheld", 1, 1, version=mq.V5))
        until(lambda: "replication_failed" in told(nodes["a"], "alarms"), "the alarm")

        def is_refused() -> bool:
            """It may be too early for who is let in while b is told."""
            other = RawClient(nodes["b"].port, mq.V5, deadline=20.0).connect("other")
            other.send(mq.publish("t", b"refused", 1, 2, version=mq.V5))
            try:
                answer = other.receive(1.0)
            except TimeoutError:
                return False
            assert answer is not None
            refused.append(answer.reason)
            return True

        until(is_refused, "that publishers at b are told")
        assert refused == [0x97]
        older = RawClient(nodes["b"].port, mq.V311, deadline=20.0).connect("older")
        older.send(mq.publish("t", b"refused", 1, 3))
        assert older.receive() is None
        # A session that could not be kept here stays where it is.
        roamer = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        roamer.connect("roamer", clean=False, props=STAYS, reason=0x88).close()
        nats.start()
        kept = sender.receive()
        assert kept is not None and (kept.packet_id, kept.reason) == (1, 0)
        until(lambda: "replication_failed" not in told(nodes["a"], "alarms"), "its end")
        back = let_in(nodes["a"], "reader")
        assert back.message().payload == b"withheld"
        assert let_in(nodes["a"], "roamer").resumed
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
        nats.stop()


def test_17_servers_that_have_lost_what_they_had_acknowledged_get_it_again(
    etcd: Etcd, tmp_path: Path
) -> None:
    """As after `kill -9` of all of them: then they lack what they had not written yet."""
    nats = start_nats(tmp_path / "nats", 1)
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, **settings(nats))
    try:
        assert all(is_copied(each) for each in nodes.values())
        reader = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=2)
        reader.close()
        sender = RawClient(nodes["a"].port, mq.V5, deadline=60.0).connect("sender")
        sender.publish("t", b"one", qos=1)
        (server,) = nats.members
        nats.stop()
        shutil.copytree(server.folder / "store", tmp_path / "before")
        nats.start()
        for payload in (b"two", b"three"):
            sender.publish("t", payload, qos=2)
        nats.stop()
        shutil.rmtree(server.folder / "store")
        shutil.copytree(tmp_path / "before", server.folder / "store")
        nats.start()
        sender.publish("t", b"four", qos=1)
        assert nodes["a"].says("has lost what its servers had acknowledged")
        assert '"replication_streams_torn": 1' in told(nodes["a"], "--json", "metrics")
        nodes["a"].stop(hard=True)
        assert nodes["b"].says("1 sessions of node a are here now")
        back = let_in(nodes["b"], "reader")
        assert back.resumed
        assert back.payloads(4) == [b"one", b"two", b"three", b"four"]
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
        nats.stop()


def test_17_sessions_wait_for_their_node_where_there_is_no_whole_copy(
    etcd: Etcd, tmp_path: Path
) -> None:
    """Servers have lost their disks, and the node was killed: it has its own."""
    nats = start_nats(tmp_path / "nats", 1)
    of = settings(nats)
    nodes = start_nodes(tmp_path, etcd, {"a": {"keep_sessions": "60s"}, "b": {}}, **of)
    try:
        assert all(is_copied(each) for each in nodes.values())
        reader = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=2)
        reader.close()
        sender = RawClient(nodes["a"].port, mq.V5, deadline=60.0).connect("sender")
        sender.publish("t", b"one", qos=2)
        other = RawClient(nodes["b"].port, mq.V5, deadline=60.0).connect("other")
        nodes["a"].stop(hard=True)
        nats.stop()
        (server,) = nats.members
        shutil.rmtree(server.folder / "store")
        nats.start()
        assert nodes["b"].says("there is no whole copy of node a")
        assert nodes["b"].says("is copied to", 2)  # its own stream is made anew
        other.publish("t", b"two", qos=1)
        refused = RawClient(nodes["b"].port, mq.V5)
        refused.send(mq.connect("reader", mq.V5, clean=False, props=STAYS))
        answer = refused.receive()
        assert answer is not None and answer.reason == 0x88
        nodes["a"] = start_node(tmp_path, etcd, "a", **of)
        back = let_in(nodes["a"], "reader")
        assert back.resumed
        assert back.payloads(2) == [b"one", b"two"]
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
        nats.stop()


def test_a_delayed_will_comes_although_its_session_was_taken_over(
    etcd: Etcd, nats: NatsServers, tmp_path: Path
) -> None:
    """And a second heir has what the first had."""
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}, "c": {}}, **settings(nats))
    try:
        assert all(is_copied(each) for each in nodes.values())
        watchers = {}
        for name in "bc":
            watcher = RawClient(nodes[name].port, mq.V5, deadline=60.0)
            watchers[name] = watcher.connect(f"watcher {name}")
            watcher.subscribe("w/+", qos=1)
        will = mq.Will("w/gone", b"gone", 1, props=[(mq.WILL_DELAY, 8)])
        client = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        client.connect("reader", clean=False, props=STAYS, will=will)
        client.subscribe("t", qos=1)
        nodes["a"].stop(hard=True)
        text = "sessions of node a are here now"
        heirs = until(lambda: [name for name in "bc" if text in nodes[name].output], "an heir")
        (heir,) = heirs
        other = "c" if heir == "b" else "b"
        assert all(each.message().payload == b"gone" for each in watchers.values())
        watchers[other].publish("t", b"kept", qos=1)
        nodes[heir].stop(hard=True)
        again = let_in(nodes[other], "reader")
        assert again.resumed and again.message().payload == b"kept"
    finally:
        for node in nodes.values():
            node.stop()


def test_a_node_that_was_taken_over_acknowledges_nothing(
    etcd: Etcd, nats: NatsServers, tmp_path: Path
) -> None:
    """It was stopped for longer than its lease, and goes on: as a node without those sessions."""
    of = settings(nats)
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, **of)
    process = nodes["a"].process
    assert process is not None
    try:
        assert all(is_copied(each) for each in nodes.values())
        reader = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        reader.connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=1)
        reader.close()
        sender = RawClient(nodes["a"].port, mq.V5, deadline=60.0).connect("sender")
        sender.publish("t", b"before", qos=1)
        process.send_signal(signal.SIGSTOP)
        sender.send(mq.publish("t", b"while it stands still", 1, 9, version=mq.V5))
        assert nodes["b"].says("sessions of node a are here now")
        process.send_signal(signal.SIGCONT)
        while (said := sender.receive()) is not None:
            assert said.type == mq.DISCONNECT
        assert nodes["a"].says("has taken the sessions of this one over")
        back = let_in(nodes["b"], "reader")
        assert back.resumed and back.message().payload == b"before"
        until(lambda: nodes["a"].output.count("the store is copied to") == 2, "another stream")
        again = RawClient(nodes["a"].port, mq.V5, deadline=20.0).connect("sender")
        again.publish("t", b"after", qos=1)
        assert back.message().payload == b"after"
    finally:
        process.send_signal(signal.SIGCONT)
        for node in nodes.values():
            node.stop()
            print(node.output[-5000:])


def test_a_node_that_is_back_says_nothing_until_its_heir_has_all(
    etcd: Etcd, nats: NatsServers, tmp_path: Path
) -> None:
    """What it has is older: neither who has claimed it of that node, nor who comes to it, has that,
    and nobody has an empty session."""
    of = settings(nats)
    go = tmp_path / "go"
    waits = WAITS.format(path=str(go))
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "c": {}}, program=waits, **of)
    try:
        nodes["b"] = start_node(tmp_path, etcd, "b", program=KEEPS, **of)
        assert all(is_copied(each) for each in nodes.values())
        for name in ("reader", "stays"):
            client = RawClient(nodes["b"].port, mq.V5, deadline=20.0)
            client.connect(name, clean=False, props=STAYS)
            client.subscribe("t", qos=1)
            client.close()
        other = RawClient(nodes["c"].port, mq.V5, deadline=30.0).connect("other")
        claims = RawClient(nodes["c"].port, mq.V5, deadline=20.0)
        claims.send(mq.connect("reader", mq.V5, clean=False, props=STAYS))
        until(lambda: owner_of(etcd, "reader") == "c\0b", "that it is claimed")
        nodes["b"].stop(hard=True)
        assert nodes["c"].says("node b is gone")
        text = "taking over the sessions of node b"
        until(lambda: any(text in nodes[name].output for name in "ac"), "an heir")
        other.publish("t", b"meanwhile", qos=1)
        nodes["b"] = start_node(tmp_path, etcd, "b", **of)
        for name in "abc":
            refused = RawClient(nodes[name].port, mq.V5, deadline=20.0)
            refused.connect("stays", clean=False, props=STAYS, reason=0x88)
            refused.close()
        go.touch()
        for client_id in ("reader", "stays"):
            back = let_in(nodes["b" if client_id == "stays" else "c"], client_id)
            assert back.resumed
            assert back.message().payload == b"meanwhile"
        assert [owner_of(etcd, each)[0] for each in ("reader", "stays")] == ["c", "b"]
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-5000:]}")


def test_what_a_node_has_claimed_does_not_wait_for_the_end_of_the_taking_over(
    etcd: Etcd, nats: NatsServers, tmp_path: Path
) -> None:
    """The heir waited until what it had sent on was there, and who it went to for the heir."""
    of = settings(nats)
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "c": {}}, program=PATIENT, **of)
    try:
        nodes["b"] = start_node(tmp_path, etcd, "b", program=KEEPS, **of)
        assert all(is_copied(each) for each in nodes.values())
        other = RawClient(nodes["b"].port, mq.V5, deadline=20.0).connect("other")
        for name in "ac":  # one of these is the heir
            client = RawClient(nodes["b"].port, mq.V5, deadline=20.0)
            client.connect(f"of-{name}", clean=False, props=STAYS)
            client.subscribe("t", qos=1)
            client.close()
        other.publish("t", b"waits", qos=1)
        for name in "ac":
            claims = RawClient(nodes[name].port, mq.V5, deadline=20.0)
            claims.send(mq.connect(f"of-{name}", mq.V5, clean=False, props=STAYS))
            until(lambda n=name: owner_of(etcd, f"of-{n}") == f"{n}\0b", "that it is claimed")  # type: ignore[misc]
        nodes["b"].stop(hard=True)
        for name in "ac":
            back = let_in(nodes[name], f"of-{name}")
            assert back.resumed
            assert back.message().payload == b"waits"
        text = "sessions of node b are here now, 1 were sent on"
        until(lambda: any(text in nodes[name].output for name in "ac"), "the end of it")
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-5000:]}")
