"""Three nodes as operators see them from one: tables of all, clients wherever they are."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.chromium import Chromium
from tests.support.client import RawClient
from tests.support.ctl import run
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import Nodes, asked, start_nodes
from tests.support.waiting import until

NAMES = ("a", "b", "c")
PASSWORD = "correct horse"
pytestmark = pytest.mark.timeout(180)
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
    # A node that stands still is a member for longer than an answer is waited for.
    started = start_nodes(
        folder, etcd, {name: {"lease": "60s"} for name in NAMES},
        admin={"page": {"enabled": True, "bind": "127.0.0.1:0"}},
    )  # fmt: skip
    for name, other in itertools.permutations(NAMES, 2):
        assert started[name].says(f"node {other} is linked")
    yield started
    for node in started.values():
        node.stop()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(name: str, client_id: str, **fields: Any) -> RawClient:
        client = RawClient(nodes[name].port, mq.V5)
        clients.append(client)
        return client.connect(client_id, **fields)

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def prefix() -> str:
    return f"t{next(_serial)}-"


def client_at(broker: Broker, **more: Any) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data/mqttd.sock"), **more)


def test_tables_are_those_of_all_nodes(connect: Connect, nodes: Nodes, prefix: str) -> None:
    homes = {f"{prefix}{n}": NAMES[n % 3] for n in range(12)}
    for client_id, home in homes.items():
        client = connect(home, client_id)
        client.subscribe(f"{prefix}all/+", f"{prefix}{home}/{client_id}", qos=1)
    for at in NAMES:
        client = client_at(nodes[at])
        for path, key in (("/clients", "clients"), ("/sessions", "clients")):
            page, seen = client.get(path, prefix=prefix, limit=5), []
            while True:
                assert page["missing"] == [] and len(page[key]) <= 5
                seen += [(one["client_id"], one["node"]) for one in page[key]]
                assert "places" not in page
                if page["cursor"] is None:
                    break
                page = client.get(path, prefix=prefix, limit=5, cursor=page["cursor"])
            assert seen == sorted(homes.items())
        held = client.pages("/subscriptions", "subscriptions", topic_filter=f"{prefix}all/+")
        assert [(one["client_id"], one["node"]) for one in held] == sorted(homes.items())
        filters = {one["topic_filter"]: one for one in client.pages("/topics", "topics")}
        assert filters[f"{prefix}all/+"]["subscribers"] == 12
        assert filters[f"{prefix}all/+"]["nodes"] == list(NAMES)
        assert filters[f"{prefix}b/{prefix}1"]["nodes"] == ["b"]
        routes = client.get("/routes", topic=f"{prefix}all/x")["routes"]
        assert [(one["node"], one["receivers"]) for one in routes] == [(name, 4) for name in NAMES]
        for other in NAMES:
            mine = client_at(nodes[at], node=other).pages("/clients", "clients", prefix=prefix)
            assert [one["client_id"] for one in mine] == sorted(
                client_id for client_id, home in homes.items() if home == other
            )


def test_pages_by_age_are_one_order(connect: Connect, nodes: Nodes, prefix: str) -> None:
    names = [f"{prefix}{letter}" for letter in "dbeacf"]
    for n, client_id in enumerate(names):
        connect(NAMES[n % 3], client_id)
    client = client_at(nodes["c"])
    seen: list[str] = []
    cursor: str | None = None
    while True:
        wish = {"prefix": prefix, "sort": "-session_age", "limit": 2}
        page = client.get("/clients", cursor=cursor, **wish)
        seen += [one["client_id"] for one in page["clients"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == names


def test_a_client_is_shown_and_sent_away_wherever_it_is(
    connect: Connect, nodes: Nodes, prefix: str
) -> None:
    client_id, expiry = f"{prefix}a/b", [(mq.SESSION_EXPIRY, 600)]
    client = connect("b", client_id, clean=False, props=expiry)
    client.subscribe(f"{prefix}x", qos=1)
    quoted = client_id.replace("/", "%2F")
    for at in NAMES:
        asking = client_at(nodes[at])
        for path in (f"/clients/{quoted}", f"/sessions/{quoted}"):
            found = asking.get(path)
            assert (found["client_id"], found["node"]) == (client_id, "b")
        (held,) = asking.get("/subscriptions", client_id=client_id)["subscriptions"]
        assert (held["topic_filter"], held["node"]) == (f"{prefix}x", "b")
    elsewhere = client_at(nodes["c"])
    body = {"client_id": client_id, "topic_filter": f"{prefix}y", "qos": 1}
    assert elsewhere.request("POST", "/subscriptions", body)["node"] == "b"
    connect("a", f"{prefix}publisher").publish(f"{prefix}y", b"it is")
    client.message(payload=b"it is")
    gone = f"/subscriptions?client_id={quoted}&topic_filter={prefix}y"
    assert elsewhere.request("DELETE", gone)["node"] == "b"
    with pytest.raises(CtlError, match="has not subscribed"):
        elsewhere.request("DELETE", gone)
    kicked = elsewhere.request("DELETE", f"/clients/{quoted}?reason_code=0x87")
    assert kicked == {"kicked": client_id, "node": "b"}
    client.wait_for(mq.DISCONNECT, reason=0x87)
    until(lambda: not elsewhere.get(f"/clients/{quoted}")["connected"], "it is still there")
    with pytest.raises(CtlError, match="not connected"):
        elsewhere.request("DELETE", f"/clients/{quoted}")
    assert elsewhere.request("DELETE", f"/sessions/{quoted}") == {"ended": client_id, "node": "b"}
    for at in NAMES:
        with pytest.raises(CtlError, match="no client"):
            client_at(nodes[at]).get(f"/clients/{quoted}")
    # Both have it in their audit: who was asked, and who has done it.
    for at, peer in (("c", "socket"), ("b", "node c")):
        entries = client_at(nodes[at]).get("/audit")["audit"]
        mine = [one for one in entries if quoted in one["path"]]
        assert {(one["method"], one["peer"]) for one in mine} >= {("DELETE", peer)}
        assert mine[0]["before"]["client_id"] == client_id


def test_each_node_is_asked_by_its_name(connect: Connect, nodes: Nodes, prefix: str) -> None:
    connect("c", f"{prefix}1")
    here = client_at(nodes["a"])
    status = here.get("/status")
    assert status["name"] == "a"
    assert {one["name"]: one["here"] for one in status["nodes"]} == {
        "a": True, "b": False, "c": False,
    }  # fmt: skip
    for name in NAMES:
        there = client_at(nodes["a"], node=name)
        own = client_at(nodes[name]).get("/status")
        found = there.get("/status")
        assert (found["name"], found["pid"]) == (name, own["pid"]) and "nodes" not in found
        assert there.get("/metrics")["gauges"]["connections"] >= 1 - (name != "c")
        for path, key in (("/memory", "kinds"), ("/slow", "slow"), ("/alarms", "alarms"),
                          ("/listeners", "listeners"), ("/store", "kind"), ("/hooks", "hooks"),
                          ("/plugins", "plugins")):  # fmt: skip
            assert key in there.get(path)
    with pytest.raises(CtlError, match="'d' is no node that is there"):
        client_at(nodes["a"], node="d").get("/status")
    with pytest.raises(CtlError, match="sort = 'x'"):
        here.get("/clients", sort="x")
    with pytest.raises(CtlError, match="cursor"):
        here.get("/topics", cursor="?")


def test_ctl_shows_the_cluster_or_one_node(connect: Connect, nodes: Nodes, prefix: str) -> None:
    for name in NAMES:
        connect(name, f"{prefix}{name}").subscribe(f"{prefix}t")
    found = {
        one["client_id"]: one["node"] for one in asked(nodes["a"], "clients", "list")["clients"]
    }
    assert {found[f"{prefix}{name}"] for name in NAMES} == set(NAMES)
    lines = run(nodes["a"], "sessions", "list", "--node", "b").stdout.splitlines()
    assert any(line.startswith(f"{prefix}b ") and line.endswith(" b") for line in lines)
    assert not any(line.startswith(f"{prefix}a ") for line in lines)
    table = run(nodes["b"], "routes", "show", f"{prefix}t").stdout
    assert all(f"{prefix}{name}" in table for name in NAMES)
    assert "a, b, c" in run(nodes["b"], "topics", "list").stdout
    assert "running" in run(nodes["b"], "status").stdout
    assert asked(nodes["a"], "status", "--node", "c")["name"] == "c"
    done = run(nodes["a"], "clients", "kick", f"{prefix}c")
    assert done.returncode == 0 and f"ended the connection of {prefix}c" in done.stdout


def test_a_message_is_followed_from_node_to_node(
    connect: Connect, nodes: Nodes, prefix: str
) -> None:
    subscriber, publisher = connect("b", f"{prefix}s"), connect("a", f"{prefix}p")
    subscriber.subscribe(f"{prefix}t/+", qos=1)
    # Who publishes is at a, and c is asked.
    run(nodes["c"], "trace", "topic", f"{prefix}t/#", "--node", "a")
    listed = client_at(nodes["a"]).get("/trace")["traced"]
    assert f"{prefix}t/#" in [one["value"] for one in listed]
    publisher.publish(f"{prefix}t/x", b"followed", qos=1)
    subscriber.message(payload=b"followed")

    def life() -> Any:
        found = client_at(nodes["c"]).get("/why", topic=f"{prefix}t/#")["messages"]
        return found[0] if found else {"steps": []}

    until(lambda: any(step["what"] == "acked" for step in life()["steps"]), "acknowledged")
    found = life()
    steps = [(step["what"], step["node"]) for step in found["steps"]]
    assert steps[0] == ("published", "a") and ("crossed", "b") in steps and ("acked", "b") in steps
    whole = client_at(nodes["c"]).get(f"/why/{found['id']}")
    assert whole["steps"] == found["steps"] and whole["missing"] == []
    assert "came to node b" in run(nodes["c"], "why", found["id"]).stdout
    with pytest.raises(CtlError, match="nothing is kept of a message"):
        client_at(nodes["c"]).get(f"/why/{'0' * 32}")
    with pytest.raises(CtlError, match="nothing is kept of a message"):
        client_at(nodes["a"], node="c").get(f"/why/{found['id']}")
    run(nodes["c"], "trace", "stop", "topic", f"{prefix}t/#", "--node", "a")
    assert f"{prefix}t/#" not in json.dumps(client_at(nodes["a"]).get("/trace"))


def page_of(broker: Broker) -> str:
    (url,) = re.findall(r"dashboard on port \d+: (\S+)", broker.output)
    return str(url)


def test_who_may_not_change_anything_may_not_do_it_elsewhere(
    connect: Connect, nodes: Nodes, prefix: str
) -> None:
    client = connect("b", f"{prefix}pump")
    for role, status in (("viewer", 403), ("operator", 200)):
        token = asked(nodes["a"], "api-users", "token", role, "--role", role)["token"]
        at_a = Client(page_of(nodes["a"]).rstrip("/"), token=token)
        assert at_a.get(f"/clients/{prefix}pump")["node"] == "b"
        assert [one["node"] for one in at_a.get("/clients", prefix=prefix)["clients"]] == ["b"]
        if status == 403:
            with pytest.raises(CtlError, match="this takes the role operator, viewer has viewer"):
                at_a.request("DELETE", f"/clients/{prefix}pump")
            continue
        assert at_a.request("DELETE", f"/clients/{prefix}pump")["node"] == "b"
    client.wait_for(mq.DISCONNECT, reason=0x98)
    entry = client_at(nodes["b"]).get("/audit", limit=1)["audit"][0]
    assert (entry["who"], entry["role"], entry["peer"]) == ("operator", "operator", "node a")


def test_the_page_shows_the_clients_of_all_nodes(
    connect: Connect, nodes: Nodes, prefix: str
) -> None:
    for name in NAMES:
        connect(name, f"{prefix}{name}").subscribe(f"{prefix}t")
    run(nodes["a"], "api-users", "add", "ann", stdin=PASSWORD + "\n")
    with Chromium() as browser:
        page = browser.open(page_of(nodes["a"]))
        page.wait("!!document.querySelector('input[name=password]')")
        page.evaluate(
            "document.querySelector('input[name=username]').value = 'ann';"
            f"document.querySelector('input[name=password]').value = {json.dumps(PASSWORD)};"
            "document.querySelector('form').requestSubmit()"
        )
        page.wait("document.querySelectorAll('live-chart canvas').length === 6")
        browser.console.clear()
        cells = "[...document.querySelectorAll('td[data-label=Node]')].map(one => one.textContent)"
        for name in ("clients", "subscriptions"):
            page.evaluate(f"location.hash = '{name}'")
            page.wait(f"['a', 'b', 'c'].every(one => {cells}.includes(one))")
        for name in ("topics", "nodes", "why", f"clients/{prefix}c"):
            page.evaluate(f"location.hash = '{name}'")
            page.wait("!!document.querySelector('main h1')")
        page.wait("!!document.getElementById('kick')")
        assert browser.console == []


def test_a_node_that_does_not_answer_is_named(connect: Connect, nodes: Nodes, prefix: str) -> None:
    for name in NAMES:
        connect(name, f"{prefix}{name}")
    pid = nodes["c"].process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(3) as pool:
            table = pool.submit(client_at(nodes["a"]).get, "/clients", prefix=prefix)
            one = pool.submit(client_at(nodes["a"]).get, f"/clients/{prefix}c")
            ctl = pool.submit(run, nodes["b"], "--json", "topics", "list")
        page = table.result()
        assert [each["node"] for each in page["clients"]] == ["a", "b"]
        (missing,) = page["missing"]
        assert missing == {"node": "c", "reason": "it has not answered in 5 s"}
        with pytest.raises(CtlError, match="no client .* answered; node c: it has not"):
            one.result()
        done = ctl.result()
        assert done.returncode == 0 and "this is without node c: it has not" in done.stderr
        assert json.loads(done.stdout)["missing"] == [missing]
        # Who is there is found without waiting for who is not.
        assert client_at(nodes["a"]).get(f"/clients/{prefix}b")["node"] == "b"
    finally:
        os.kill(pid, signal.SIGCONT)
    until(
        lambda: client_at(nodes["a"]).get("/clients", prefix=prefix)["missing"] == [],
        "node c does not answer again",
    )
    assert client_at(nodes["a"]).get("/metrics")["gauges"]["cluster_unanswered"] >= 2
