"""Sessions of a node that is gone wait for it: elsewhere nobody is given an empty one instead."""

from __future__ import annotations

import signal
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import READY
from tests.support.client import RawClient
from tests.support.ctl import told
from tests.support.cut import Line
from tests.support.etcd import Etcd
from tests.support.nodes import STAYS, asked, let_in, start_node, start_nodes
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


def field_of(etcd: Etcd, key: str, field: str) -> str:
    """What etcd has of a key of the cluster; empty: there is no such key."""
    body = {"key": b64encode(f"/mqttd/mqttd/v1/{key}".encode()).decode()}
    found = etcd.ask("/v3/kv/range", body).get("kvs", [])
    return str(found[0][field]) if found else ""


def lease_of(etcd: Etcd, key: str) -> str:
    """The lease of a key of the cluster; empty: there is no such key."""
    return field_of(etcd, key, "lease")


def test_a_session_waits_for_its_node_until_that_is_put_out(etcd: Etcd, tmp_path: Path) -> None:
    """Refused while it is killed, resumed with its queue when it is back; then given up."""
    store = {"kind": "sqlite"}
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store=store)
    try:
        other = RawClient(nodes["a"].port, mq.V5).connect("other")
        brief = RawClient(nodes["b"].port, mq.V5).connect("brief")
        for name in ("reader", "lost"):
            reader = RawClient(nodes["b"].port, mq.V5).connect(name, clean=False, props=STAYS)
            reader.subscribe("t", qos=1)
            reader.close()
        home = lease_of(etcd, "all/home/b")
        until(lambda: lease_of(etcd, "own/lost") == home, "that its session is to stay")
        other.publish("t", b"before", qos=1)
        nodes["b"].stop(hard=True)
        assert nodes["a"].says("node b is gone")
        brief.close()
        RawClient(nodes["a"].port, mq.V5).connect("brief").close()
        refused = RawClient(nodes["a"].port, mq.V5)
        refused.connect("reader", clean=False, props=STAYS, reason=0x88)
        nodes["b"] = start_node(tmp_path, etcd, "b", store=store)
        back = RawClient(nodes["a"].port, mq.V5, deadline=20.0)
        back.connect("reader", clean=False, props=STAYS)
        assert back.resumed
        back.message(payload=b"before")
        back.close()
        nodes["b"].stop(hard=True)
        told(nodes["a"], "cluster", "force-leave", "b")
        given_up = RawClient(nodes["a"].port, mq.V5)
        given_up.connect("lost", clean=False, props=STAYS)
        assert not given_up.resumed
    finally:
        for node in nodes.values():
            node.stop()


@pytest.mark.parametrize("at", ["a", "c"])
def test_a_session_that_its_new_node_had_not_kept_is_where_it_was_before(
    etcd: Etcd, tmp_path: Path, at: str
) -> None:
    """Killed before it has said that it has all of it, and back with nothing."""
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "c": {}})
    nothing = {"kind": "memory"}
    says_nothing = """
from mqttd.cluster.sessions.arrivals import Arrivals
Arrivals._done = lambda *_: None
"""
    try:
        nodes["b"] = start_node(tmp_path, etcd, "b", store=nothing, program=says_nothing)
        other = RawClient(nodes["c"].port, mq.V5).connect("other")
        for name in "ab":
            reader = RawClient(nodes[name].port, mq.V5, deadline=20.0)
            reader.connect("reader", clean=False, props=STAYS)
            if name == "a":
                reader.subscribe("t", qos=1)
            reader.close()
        assert reader.resumed
        nodes["b"].stop(hard=True)
        assert nodes["a"].says("node b is gone") and nodes["c"].says("node b is gone")
        other.publish("t", b"meanwhile", qos=1)
        nodes["b"] = start_node(tmp_path, etcd, "b", store=nothing)
        back = let_in(nodes[at], "reader")
        assert back.resumed
        back.message(payload=b"meanwhile")
    finally:
        for node in nodes.values():
            node.stop()


def test_what_a_killed_node_had_not_taken_is_sent_to_it_again(etcd: Etcd, tmp_path: Path) -> None:
    """On its way when the node was killed: QoS 2, too, comes once, and so does what was taken."""
    store = {"kind": "sqlite"}
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store=store)
    try:
        reader = RawClient(nodes["b"].port, mq.V5).connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=2)
        reader.close()
        other = RawClient(nodes["a"].port, mq.V5, deadline=30.0).connect("other")
        for qos in (1, 2):
            other.publish("t", b"taken %d" % qos, qos=qos)
        until(lambda: asked(nodes["b"], "clients", "show", "reader")["mqueue"] == 2)
        process = nodes["b"].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        for qos in (1, 2):
            other.send(mq.publish("t", b"late %d" % qos, qos, 100 + qos, version=mq.V5))
        other.ping()  # they have gone to the node, which takes nothing
        nodes["b"].stop(hard=True)
        other.wait_for(mq.PUBACK, packet_id=101)
        other.wait_for(mq.PUBREC, packet_id=102)
        nodes["b"] = start_node(tmp_path, etcd, "b", store=store)
        back = let_in(nodes["b"], "reader")
        other.publish("t", b"end", qos=1)
        came = [back.message().payload for _ in range(5)]
        assert came == [b"taken 1", b"taken 2", b"late 1", b"late 2", b"end"]
    finally:
        for node in nodes.values():
            node.stop()


def test_the_will_of_a_client_that_is_away_goes_along(etcd: Etcd, tmp_path: Path) -> None:
    """Its node hands its session over before the delay is over: published once, in time."""
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}})
    try:
        watcher = RawClient(nodes["a"].port, mq.V5, deadline=30.0).connect("watcher")
        watcher.subscribe("w/#", qos=1)
        for name, delay in (("due", 8), ("back", 8)):
            will = mq.Will(f"w/{name}", b"gone", qos=1, props=[(mq.WILL_DELAY, delay)])
            client = RawClient(nodes["b"].port, mq.V5)
            client.connect(name, clean=False, props=STAYS, will=will)
            client.close()
        told(nodes["b"], "cluster", "leave", "--rate", "100")
        process = nodes.pop("b").process
        assert process is not None
        process.wait(30)
        back = RawClient(nodes["a"].port, mq.V5).connect("back", clean=False, props=STAYS)
        assert back.resumed
        watcher.message(topic="w/due", payload=b"gone")
        watcher.publish("w/end", b"", qos=1)
        watcher.message(topic="w/end")
    finally:
        for node in nodes.values():
            node.stop()


def test_a_session_whose_node_is_killed_before_it_could_send_it_comes_when_that_is_back(
    etcd: Etcd, tmp_path: Path
) -> None:
    """Claimed while the link was away: with what was acknowledged for it after that, too."""
    store, port = {"kind": "sqlite"}, free_port()
    line = Line(port)
    there = {"bind": f"127.0.0.1:{port}", "advertise": f"127.0.0.1:{line.port}"}
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": there}, store=store)
    try:
        assert nodes["a"].says("node b is linked")
        reader = RawClient(nodes["a"].port, mq.V5).connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=1)
        reader.close()
        publisher = RawClient(nodes["a"].port, mq.V5).connect("publisher")
        publisher.publish("t", b"before", qos=1)
        line.whole = False
        line.cut()
        owned = field_of(etcd, "own/reader", "value")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(let_in, nodes["b"], "reader")
            until(lambda: field_of(etcd, "own/reader", "value") != owned, "that b has claimed it")
            until(lambda: told(nodes["a"], "clients", "list").find("reader") < 0, "that it leaves")
            publisher.publish("t", b"meanwhile", qos=1)
            nodes["a"].stop(hard=True)
            line.whole = True
            nodes["a"] = start_node(tmp_path, etcd, "a", store=store)
            back = waits.result()
        assert back.resumed
        assert back.payloads(2) == [b"before", b"meanwhile"]
        back.close()
    finally:
        for node in nodes.values():
            node.stop()
        line.close()


def test_a_session_whose_node_is_killed_while_it_sends_it_comes_whole_when_that_is_back(
    etcd: Etcd, tmp_path: Path
) -> None:
    """The other one had the session, and not what was caught for it since."""
    store = {"kind": "sqlite"}
    gives_no_mark = """
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.transit import MARK
from mqttd.mesh.frames import unpacked
told = Moves.told
Moves.told = lambda self, node, body: unpacked(body)[0] == MARK or told(self, node, body)
"""
    nodes = start_nodes(tmp_path, etcd, {"b": {}}, store=store)
    try:
        nodes["a"] = start_node(tmp_path, etcd, "a", store=store, program=gives_no_mark)
        assert nodes["a"].says("node b is linked")
        reader = RawClient(nodes["a"].port, mq.V5).connect("reader", clean=False, props=STAYS)
        reader.subscribe("t", qos=2)
        reader.close()
        publisher = RawClient(nodes["a"].port, mq.V5).connect("publisher")
        publisher.publish("t", b"before", qos=2)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(let_in, nodes["b"], "reader")
            wanted = {"topic_filter": "t", "node": "b"}
            until(
                lambda: wanted in asked(nodes["a"], "cluster", "routes", "b")["routes"],
                "that b has the session",
            )
            publisher.publish("t", b"meanwhile", qos=2)
            nodes["a"].stop(hard=True)
            nodes["a"] = start_node(tmp_path, etcd, "a", store=store)
            back = waits.result()
        assert back.resumed
        publisher = RawClient(nodes["a"].port, mq.V5).connect("publisher")
        publisher.publish("t", b"after", qos=2)
        assert back.payloads(3) == [b"before", b"meanwhile", b"after"]
        back.close()
    finally:
        for node in nodes.values():
            node.stop()


def test_17_who_publishes_much_for_a_node_that_is_away_takes_nothing_from_others(
    etcd: Etcd, tmp_path: Path
) -> None:
    """It waits; what others were acknowledged was given up with its own."""
    more = {"store": {"kind": "sqlite"}, "memory": {"budget": "512MiB"}}
    settings = {"keep_sessions": "60s"}
    nodes = start_nodes(tmp_path, etcd, {"a": settings, "b": settings}, **more)
    try:
        for name, topic in (("reader", "t"), ("greedy", "much")):
            reader = RawClient(nodes["b"].port, mq.V5).connect(name, clean=False, props=STAYS)
            reader.subscribe(topic, qos=1)
            reader.close()
        other = RawClient(nodes["a"].port, mq.V5).connect("other")
        nodes["b"].stop(hard=True)
        assert nodes["a"].says("mqttd.cluster node b is gone")
        for each in range(20):
            other.publish("t", b"%d" % each, qos=1)
        much = RawClient(nodes["a"].port, mq.V5, deadline=60.0).connect("much")
        waits = False
        for n in range(1, 100):
            much.send(mq.publish("much", bytes(1_000_000), 1, n, version=mq.V5))
            try:
                much.expect(mq.PUBACK, 5.0, packet_id=n)
            except TimeoutError:
                waits = True
                break
        assert waits and n > 40
        nodes["b"] = start_node(tmp_path, etcd, "b", cluster=settings, **more)
        back = let_in(nodes["b"], "reader")
        assert back.resumed
        assert back.payloads(20) == [b"%d" % each for each in range(20)]
        much.expect(mq.PUBACK, 30.0, packet_id=n)
        assert "messages for it are lost" not in nodes["a"].output
    finally:
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-3000:]}")


#: A node that claims nothing of what it has before there is this file.
LATER = """
import os
from twisted.internet import reactor
from twisted.internet.task import deferLater
from mqttd.cluster.cluster import Cluster
claim_all = Cluster._claim_all
async def later(self):
    while not os.path.exists({path!r}):
        await deferLater(reactor, 0.05)
    await claim_all(self)
Cluster._claim_all = later
"""


def test_a_session_that_leaves_a_node_which_has_just_begun_waits_for_where_it_is(
    etcd: Etcd, tmp_path: Path
) -> None:
    """All who had waited for a node come at once when it is back, to others too, and before it has
    claimed anew what it has: such a session was nobody's when its new node was restarted next."""
    store, go = {"kind": "sqlite"}, tmp_path / "go"
    nodes = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, store=store)
    try:
        assert nodes["a"].says("node b is linked")
        mine = let_in(nodes["a"], "mine")
        mine.subscribe("mine/#", qos=1)
        mine.close()
        nodes["a"].stop()
        program = LATER.format(path=str(go))
        nodes["a"] = start_node(tmp_path, etcd, "a", store=store, program=program, wait=False)
        moved = let_in(nodes["b"], "mine")
        assert moved.resumed
        moved.close()
        go.touch()
        assert nodes["a"].says("mqttd ready")
        nodes["a"].port = int(READY.findall(nodes["a"].output)[-1])
        nodes["b"].stop()
        assert nodes["a"].says("node b is gone")
        RawClient(nodes["a"].port, mq.V5).connect("mine", clean=False, props=STAYS, reason=0x88)
        RawClient(nodes["a"].port, mq.V5).connect("other").publish("mine/1", b"waits", qos=1)
        nodes["b"] = start_node(tmp_path, etcd, "b", store=store)
        assert let_in(nodes["a"], "mine").payloads(1) == [b"waits"]
    finally:
        go.touch()
        for node in nodes.values():
            node.stop()
