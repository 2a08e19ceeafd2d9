"""Three nodes as one broker: real clients, a real etcd, and nodes that are killed."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client
from mqttd.cluster.links.hello import Hello
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.cut import Line
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import LASTS, Nodes, asked, start_node, start_nodes
from tests.support.servers import free_port
from tests.support.waiting import until

NAMES = ("a", "b", "c")
LONG = os.environ.get("MQTTD_LONG") == "1"
pytestmark = pytest.mark.timeout(1800 if LONG else 120)
_serial = itertools.count()

Connect = Callable[..., RawClient]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def nodes(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("cluster")
    started = start_nodes(folder, etcd, {"a": {}, "b": {}, "c": {"minority": "refuse"}})
    for name, other in itertools.permutations(NAMES, 2):
        assert started[name].says(f"node {other} is linked")
    yield started
    for node in started.values():
        node.stop()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(name: str, client_id: str = "", version: int = mq.V5, **fields: Any) -> Any:
        client = RawClient(nodes[name].port, version)
        clients.append(client)
        return client.connect(client_id or f"c{next(_serial)}", **fields)

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_serial)}"


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_subscribers_on_all_nodes(
    connect: Connect, topic: str, qos: int, version: int
) -> None:
    filters = [topic + "/a", topic + "/+", topic + "/#"]
    subscribers = [connect(name, version=v) for name in NAMES for v in (mq.V311, mq.V5)]
    for subscriber, wanted in zip(subscribers, itertools.cycle(filters), strict=False):
        subscriber.subscribe(wanted, qos=2)
    publisher = connect("a", version=version)
    for n in range(20):
        publisher.publish(topic + "/a", b"%d" % n, qos=qos)
    for subscriber in subscribers:
        assert subscriber.payloads(20) == [b"%d" % n for n in range(20)]


def test_subscribe_then_publish_elsewhere_at_once_misses_nothing(
    connect: Connect, topic: str
) -> None:
    count = 5000 if LONG else 200
    publishers = [connect("a"), connect("c")]
    subscriber = connect("b")
    for n in range(count):
        subscriber.subscribe(f"{topic}/{n}")
        for publisher in publishers:
            publisher.publish(f"{topic}/{n}", b"%d" % n)
    found = subscriber.payloads(2 * count)
    assert sorted(found) == sorted([b"%d" % n for n in range(count)] * 2)


def test_unsubscribe_ends_it(connect: Connect, topic: str) -> None:
    publisher, subscriber = connect("a"), connect("b")
    subscriber.subscribe(topic)
    subscriber.unsubscribe(topic)
    subscriber.subscribe(topic + "/end")
    publisher.publish(topic, b"no")
    publisher.publish(topic + "/end", b"end")
    assert subscriber.payloads(1) == [b"end"]


def test_retained_messages_are_one_set(connect: Connect, topic: str) -> None:
    one, two = connect("a"), connect("b")
    one.publish(topic, b"first", qos=1, retain=True)
    two.publish(topic, b"second", qos=1, retain=True)
    for name in NAMES:
        late = connect(name)
        late.subscribe(topic)
        late.message(payload=b"second", retain=True)
    two.publish(topic, b"", qos=1, retain=True)
    for name in NAMES:
        late = connect(name)
        late.subscribe(topic, topic + "/end")
        one.publish(topic + "/end", b"end")
        late.message(payload=b"end")


def test_a_shared_group_spans_nodes_and_prefers_its_own(connect: Connect, topic: str) -> None:
    here, there = connect("a"), connect("b")
    for member in (here, there):
        member.subscribe(f"$share/g/{topic}", qos=1)
    publisher = connect("a")
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1)
    assert here.payloads(10) == [b"%d" % n for n in range(10)]
    here.unsubscribe(f"$share/g/{topic}")
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1)
    assert there.payloads(10) == [b"%d" % n for n in range(10)]


def test_a_will_is_heard_elsewhere(connect: Connect, topic: str) -> None:
    watcher = connect("b")
    watcher.subscribe(topic)
    connect("a", will=mq.Will(topic, b"gone")).drop()
    watcher.message(payload=b"gone")


def test_what_a_node_says_of_itself_stays_there(connect: Connect) -> None:
    for name in NAMES:
        client = connect(name)
        client.subscribe("$SYS/broker/version", "$SYS/broker/clients/connected")
        found = {client.message().topic for _ in range(2)}
        assert len(found) == 2
        client.expect_nothing()


def test_each_node_tells_how_much_all_of_them_have(connect: Connect, nodes: Nodes) -> None:
    for _ in range(3):
        connect("b")

    def shown(at: str) -> tuple[int, int]:
        """Connections and sessions of b."""
        path = nodes[at].directory
        assert path is not None
        found = Client(str(path / "data/mqttd.sock")).get("/nodes")["nodes"]
        (one,) = [node for node in found if node["name"] == "b"]
        return one["connections"], one["sessions"]

    until(lambda: shown("a") == shown("b") == shown("c"), "the nodes do not say the same")
    assert min(shown("a")) >= 3


def test_a_takeover_at_another_node_takes_the_session_along(connect: Connect, topic: str) -> None:
    name, expiry = f"moves-{next(_serial)}", [(mq.SESSION_EXPIRY, 600)]
    first = connect("a", name, clean=False, props=expiry)
    assert not first.resumed
    first.subscribe(topic, qos=2)
    publisher = connect("c")
    for at, other in enumerate("bcab" * (50 if LONG else 3), 1):
        second = connect(other, name, clean=False, props=expiry)
        assert second.resumed
        first.wait_for(mq.DISCONNECT, reason=0x8E)
        publisher.publish(topic, b"%d" % at, qos=2)
        second.message(payload=b"%d" % at)
        first = second
    first.drop()
    publisher.publish(topic, b"waits", qos=1)
    last = connect("c", name, clean=False, props=expiry)
    assert last.resumed
    last.message(payload=b"waits")
    last.disconnect(props=[(mq.SESSION_EXPIRY, 0)])


def test_what_was_not_acknowledged_moves_with_its_session(connect: Connect, topic: str) -> None:
    name, expiry = f"moves-{next(_serial)}", [(mq.SESSION_EXPIRY, 600)]
    first = connect("a", name, clean=False, props=expiry)
    first.subscribe(topic, qos=1)
    publisher = connect("b")
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=1)
        first.message(ack=False)
    second = connect("b", name, clean=False, props=expiry)
    assert second.resumed
    assert second.payloads(5) == [b"%d" % n for n in range(5)]


def test_of_many_that_claim_a_client_id_one_has_it(connect: Connect, nodes: Nodes) -> None:
    rounds = 200 if LONG else 20
    for _ in range(rounds):
        name = f"race-{next(_serial)}"
        clients = [RawClient(nodes[node].port, mq.V5) for node in NAMES]
        for client in clients:
            client.send(mq.connect(name, mq.V5))
        # Each is let in and then sent away, or refused, because another came after it; but one.
        until(lambda those=clients: sum(map(_is_out, those)) == len(NAMES) - 1, "one left")
        left = next(client for client in clients if not client.closed)
        left.ping()
        left.close()


def _is_out(client: RawClient) -> bool:
    """Whether the broker has closed this connection by now."""
    try:
        while client.receive(0.01) is not None:
            pass
    except TimeoutError:
        pass
    return client.closed


def test_a_node_that_joins_has_the_retained_messages_when_it_is_ready(
    connect: Connect, etcd: Etcd, tmp_path: Path, topic: str
) -> None:
    publisher = connect("a")
    for n in range(50):
        publisher.publish(f"{topic}/{n}", b"%d" % n, qos=1, retain=True)
    late = start_node(tmp_path, etcd, "late")
    try:
        client = RawClient(late.port, mq.V5).connect("late")
        client.subscribe(f"{topic}/#")
        assert {client.message().payload for _ in range(50)} == {b"%d" % n for n in range(50)}
        publisher.publish(f"{topic}/0", b"new", qos=1)
        client.message(payload=b"new")
        client.close()
    finally:
        late.stop()
    for n in range(50):
        publisher.publish(f"{topic}/{n}", b"", qos=1, retain=True)


def routes_of(etcd: Etcd, node: str) -> int:
    """How many chunks etcd has of a node."""
    from base64 import b64encode

    prefix = f"/mqttd/mqttd/v1/all/route/{node}/".encode()
    body = {
        "key": b64encode(prefix).decode(),
        "range_end": b64encode(prefix[:-1] + b"0").decode(),
        "count_only": True,
    }
    return int(etcd.ask("/v3/kv/range", body).get("count", 0))


def test_a_killed_node_is_gone_with_its_routes_and_comes_back(
    connect: Connect, nodes: Nodes, etcd: Etcd, tmp_path: Path, topic: str
) -> None:
    victim = start_node(tmp_path, etcd, "victim")
    assert nodes["a"].says("node victim is linked")
    name = f"orphan-{next(_serial)}"
    client = RawClient(victim.port, mq.V5).connect(name)
    client.subscribe(topic, qos=1)
    assert routes_of(etcd, "victim")
    publisher = connect("a")
    victim.stop(hard=True)
    again = connect("b", name)  # at once, whatever etcd still says of the dead node
    again.subscribe(topic, qos=1)
    publisher.publish(topic, b"here", qos=1)
    again.message(payload=b"here")
    assert nodes["a"].says("node victim is gone")
    until(lambda: not routes_of(etcd, "victim"), "no routes")
    linked = nodes["a"].output.count("node victim is linked")
    victim = start_node(tmp_path, etcd, "victim")
    try:
        back = RawClient(victim.port, mq.V5).connect("back")
        back.subscribe(topic)
        until(lambda: nodes["a"].output.count("node victim is linked") > linked, "linked again")
        publisher.publish(topic, b"both", qos=1)
        back.message(payload=b"both")
        again.message(payload=b"both")
        back.close()
    finally:
        victim.stop()


@pytest.mark.parametrize("qos", [1, 2] if LONG else [2])
def test_a_link_that_breaks_loses_and_repeats_nothing(etcd: Etcd, tmp_path: Path, qos: int) -> None:
    """One after the other, while what is under way is cut off again and again."""
    port, count = free_port(), 3000 if LONG else 300
    line = Line(port)
    there = {**LASTS, "name": f"cut{qos}", "bind": f"127.0.0.1:{port}",
             "advertise": f"127.0.0.1:{line.port}"}  # fmt: skip
    wanted = {"one": {"name": f"cut{qos}", **LASTS}, "two": there}
    nodes = list(start_nodes(tmp_path, etcd, wanted).values())
    try:
        assert nodes[0].says("node two is linked")
        publisher, subscriber = (RawClient(node.port, mq.V5).connect() for node in nodes)
        subscriber.subscribe("t", qos=qos)
        for begin in range(0, count, 30):
            sent = [b"%d" % n for n in range(begin, begin + 30)]
            for payload in sent:
                publisher.publish("t", payload, qos=qos)
            links = nodes[0].output.count("node two is linked")
            line.cut()
            for more in range(5):  # the link is away: this node has them in custody
                sent.append(b"%d-%d" % (begin, more))
                publisher.publish("t", sent[-1], qos=qos)
            until(lambda had=links: nodes[0].output.count("node two is linked") > had, "a link")
            assert subscriber.payloads(35) == sent
        subscriber.expect_nothing()
        assert line.cuts >= count // 30
        publisher.close()
        subscriber.close()
    finally:
        for node in nodes:
            node.stop()
        line.close()


def test_nodes_speak_tls_and_only_with_those_of_their_authority(etcd: Etcd, tmp_path: Path) -> None:
    ours, theirs = Authority(), Authority()
    settings = {}
    for name, authority in (("one", ours), ("two", ours), ("stranger", theirs)):
        folder = tmp_path / "tls" / name
        authority.write(folder)
        authority.node(name).write(folder, "node")
        settings[name] = {
            "name": "secret",
            "certificate": str(folder / "node.crt"),
            "private_key": str(folder / "node.key"),
            "ca_file": str(folder / "ca.crt"),
        }
    nodes = start_nodes(tmp_path, etcd, {name: settings[name] for name in ("one", "two")})
    try:
        assert nodes["two"].says("node one is linked")
        publisher, subscriber = (RawClient(node.port, mq.V5).connect() for node in nodes.values())
        subscriber.subscribe("t", qos=2)
        payload = os.urandom(300_000)
        for _ in range(20):
            publisher.publish("t", payload, qos=2)
        assert subscriber.payloads(20) == [payload] * 20
        status = asked(nodes["one"], "cluster", "status")
        assert status["state"] == "member"
        assert [each["linked"] for each in status["nodes"] if not each["here"]] == [True]
        routes = asked(nodes["one"], "cluster", "routes", "two")["routes"]
        assert routes == [{"topic_filter": "t", "node": "two"}]
        # One of the cluster's nodes that says it is another is none.
        one, two = status["nodes"]
        hello = Hello("secret", "one", one["epoch"], two["epoch"], 1, 0, 0).dump()
        port = int(two["address"].rpartition(":")[2])
        assert not _answers(port, settings["two"], settings["one"]["ca_file"], hello)
        assert nodes["two"].says("with a certificate of ['two']")
        for each in status["nodes"]:
            port = int(each["address"].rpartition(":")[2])
            assert not _answers(port, settings["stranger"], settings["one"]["ca_file"])
            assert not _answers(port, None, settings["one"]["ca_file"])
            assert not _answers(port, settings["one"], settings["one"]["ca_file"])
        publisher.publish("t", b"still", qos=2)
        assert subscriber.payloads(1) == [b"still"]
        publisher.close()
        subscriber.close()
        with pytest.raises(RuntimeError, match="it names 'two'; expected node.name"):
            start_node(tmp_path, etcd, "liar", cluster=settings["two"])
    finally:
        for node in nodes.values():
            node.stop()


def _answers(port: int, shown: dict[str, str] | None, authority: str, said: bytes = b"") -> bool:
    """Whether a node says anything to who shows this certificate, and says what no node does."""
    context = ssl.create_default_context(cafile=authority)
    context.check_hostname = False  # a certificate names a node, not where it is
    if shown is not None:
        context.load_cert_chain(shown["certificate"], shown["private_key"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
                stream.sendall(said or mq.connect("client", mq.V5))
                return stream.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.skipif(not LONG, reason="MQTTD_LONG=1: an etcd of three")
def test_a_member_of_etcd_may_die_and_a_minority_of_it_is_none(tmp_path: Path) -> None:
    """Three members: each is killed once, whoever leads; then two stand still."""
    etcd = start_etcd(tmp_path / "three", 3)
    wanted = {"one": {"minority": "serve"}, "two": {"minority": "refuse"}}
    nodes = start_nodes(tmp_path, etcd, wanted)
    try:
        assert nodes["one"].says("node two is linked")
        publisher, subscriber = (
            RawClient(node.port, mq.V5, deadline=15.0).connect() for node in nodes.values()
        )
        for member in range(3):
            etcd.stop(member)
            for n in range(20):
                assert subscriber.subscribe(f"{member}/{n}", qos=1) == [1]
                publisher.publish(f"{member}/{n}", b"%d" % n, qos=1)
                subscriber.message(payload=b"%d" % n)
            RawClient(nodes["one"].port, mq.V5, deadline=15.0).connect(f"m{member}").close()
            etcd.start(member)
        for stands in etcd.members[:2]:
            stands.process.send_signal(signal.SIGSTOP)
        for node in nodes.values():
            assert node.says("etcd has not answered for 2 s")
        subscriber.wait_for(mq.DISCONNECT, reason=0x9C)
        RawClient(nodes["two"].port, mq.V5).connect("away", reason=0x88).close()
        assert publisher.subscribe("0/0", qos=1) == [0x83]  # a filter that is new here
        assert [health(node)[0] for node in nodes.values()] == [200, 503]
        for name, node in nodes.items():
            own = next(each for each in asked(node, "cluster", "nodes")["nodes"] if each["here"])
            assert own["ready"] is (name == "one")
        for stands in etcd.members[:2]:
            stands.process.send_signal(signal.SIGCONT)
        for node in nodes.values():
            assert node.says("etcd answers again")
            until(lambda at=node: _lets_in(at), "clients let in")
            assert health(node)[0] == 200
        publisher.close()
        subscriber.close()
    finally:
        for node in nodes.values():
            node.stop()
        etcd.stop()


def health(broker: Broker) -> tuple[int, dict[str, Any]]:
    """What a load balancer would be told."""
    assert broker.directory is not None
    connection = http.client.HTTPConnection("mqttd")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(broker.directory / "data/mqttd.sock"))
    connection.request("GET", "/health/ready")
    try:
        answer = connection.getresponse()
        return answer.status, json.load(answer)
    finally:
        connection.close()


def alarm(broker: Broker, name: str) -> str:
    """The text of an alarm that is raised."""
    return next(each["text"] for each in asked(broker, "alarms")["alarms"] if each["name"] == name)


def test_etcd_killed_and_back(connect: Connect, nodes: Nodes, etcd: Etcd, topic: str) -> None:
    publisher, subscriber = connect("a"), connect("b")
    subscriber.subscribe(topic, qos=1)
    sent_away = connect("c")
    etcd.stop()
    for node in nodes.values():
        assert node.says("etcd has not answered for 2 s")
    note = "in a minority of its cluster, and serves (cluster.minority)"
    for name in ("a", "b"):
        assert health(nodes[name]) == (200, {"ready": True, "note": note})
    status, said = health(nodes["c"])
    assert (status, said["reason"]) == (503, "in a minority of its cluster")
    for name, noticed in (("a", "clients that are here stay"), ("c", "all its clients are sent")):
        assert noticed in alarm(nodes[name], "cluster_minority")
    sent_away.wait_for(mq.DISCONNECT, reason=0x9C)
    publisher.publish(topic, b"known routes work", qos=1)
    subscriber.message(payload=b"known routes work")
    subscriber.deadline = 10.0
    assert subscriber.subscribe(topic, topic + "/new", qos=1) == [1, 0x83]
    refused = RawClient(nodes["a"].port, mq.V5)
    refused.connect(f"new-{next(_serial)}", reason=0x88)
    etcd.start()
    for node in nodes.values():
        assert node.says("etcd answers again")
    until(lambda: _lets_in(nodes["a"]), "clients let in")
    assert subscriber.subscribe(topic + "/new", qos=1) == [1]
    publisher.publish(topic + "/new", b"all is well", qos=1)
    subscriber.message(payload=b"all is well")


def _lets_in(node: Broker) -> bool:
    client = RawClient(node.port, mq.V5)
    try:
        client.send(mq.connect(f"new-{next(_serial)}", mq.V5))
        return client.expect(mq.CONNACK).reason == 0
    finally:
        client.close()
