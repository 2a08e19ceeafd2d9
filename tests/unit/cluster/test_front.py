"""The HTTP interface of nodes that ask one another, without links: `test_asking.py` has those."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail

from mqttd.admin import lists
from mqttd.admin.api import Api
from mqttd.admin.http.parts import Desk
from mqttd.admin.http.requests import VIEWER
from mqttd.cluster.admin.answers import ANSWERS
from mqttd.cluster.admin.asking import Unanswered
from mqttd.cluster.admin.questions import NODE, key_of
from mqttd.cluster.front import RULES, NodeFront
from tests.unit.admin.node import MemoryClient, make_broker
from tests.unit.admin.test_api import Door, result


class Nodes(dict[str, "NodeDoor"]):
    """The nodes of a cluster by name; those in `silent` do not answer."""

    def __init__(self, folder: Path, names: str) -> None:
        super().__init__()
        self.silent: set[str] = set()
        self.homes: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []
        for name in names:
            (folder / name).mkdir()
            self[name] = NodeDoor(self, name, folder / name)


class NodeDoor(Door):
    """Asks one node."""

    def __init__(self, nodes: Nodes, name: str, folder: Path) -> None:
        self.nodes = nodes
        self.name = name
        super().__init__(make_broker(folder))

    def made(self) -> Api:
        nodes, name = self.nodes, self.name

        class Others(dict[str, Any]):
            def get(self, other: str, default: Any = None) -> Any:
                return SimpleNamespace(name=other) if other in nodes else default

        def ask(node: Any, question: bytes) -> Deferred[bytes]:
            nodes.asked.append((name, node.name))
            if node.name in nodes.silent:
                return fail(Unanswered("it has not answered in 5 s"))
            other = nodes[node.name].api
            assert isinstance(other, NodeFront)
            return other.asked(question, name)

        cluster: Any = SimpleNamespace(
            name=name,
            view=SimpleNamespace(members=nodes, homes=nodes.homes),
            mesh=SimpleNamespace(nodes=Others()),
            shown=SimpleNamespace(asking=SimpleNamespace(ask=ask, serve=None)),
            describe=lambda: {"nodes": []},
        )
        return NodeFront(cluster, self.parts, lambda: 0.0)

    def __call__(
        self, method: str, path: str, body: object = None, data: bytes = b"", **params: str
    ) -> tuple[int, Any]:
        status, told = super().__call__(method, path, body, data, **params)
        words = path.split("/")
        key = f"{method} /{words[1]}" + ("/{client_id}" if len(words) > 2 else "")
        if status == 200 and key in ANSWERS:
            msgspec.convert(told, ANSWERS[key])  # as the document says
        return status, told

    def client(self, client_id: str, *filters: str) -> MemoryClient:
        made = MemoryClient(self.parts.broker, client_id)
        for topic_filter in filters:
            made.subscribe(topic_filter)
        return made

    def raw(self, **changes: Any) -> Any:
        """What this node answers to a question of another, by the fields of both."""
        question = {"route": "GET /clients/{client_id}", "path": {"client_id": "x"}, "query": {},
                    "body": None, "name": "ann", "role": VIEWER}  # fmt: skip
        assert isinstance(self.api, NodeFront)
        data = msgspec.json.encode({**question, **changes})
        return json.loads(result(self.api.asked(data, "b")))


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, "abc")


def test_every_rule_is_of_a_route_and_has_somebody_who_answers(nodes: Nodes) -> None:
    assert set(RULES) <= {key_of(route) for route in nodes["a"].api.routes if not route.root}
    assert all(hasattr(NodeFront, rule) for rule in RULES.values())
    plain = {(route.method, route.full_path) for route in Api(Desk()).routes}
    assert plain == {(route.method, route.full_path) for route in nodes["a"].api.routes}


def test_the_document_has_the_parameter(nodes: Nodes) -> None:
    paths = json.loads(nodes["a"].api._document)["paths"]
    for key in RULES:
        method, path = key.split()
        names = [one["name"] for one in paths[f"/api/v1{path}"][method.lower()]["parameters"]]
        assert names.count(NODE) == 1
    assert set(ANSWERS) <= set(RULES)
    assert NODE not in json.dumps(paths["/api/v1/retained"])


def test_a_page_has_the_clients_of_all_nodes_in_one_order(nodes: Nodes) -> None:
    homes = {name: "abc"[n % 3] for n, name in enumerate("dgbfaec")}
    for name, home in homes.items():
        nodes[home].client(name, "t/#")
    for path in ("/clients", "/sessions"):
        seen = []
        more: dict[str, str] = {}
        while True:
            status, page = nodes["b"]("GET", path, limit="2", **more)
            assert status == 200 and page["missing"] == [] and "places" not in page
            seen += [(one["client_id"], one["node"]) for one in page["clients"]]
            if page["cursor"] is None:
                break
            more = {"cursor": page["cursor"]}
        assert seen == sorted(homes.items())
    _, found = nodes["a"]("GET", "/topics")
    topics = [{"topic_filter": "t/#", "subscribers": 7, "nodes": ["a", "b", "c"]}]
    assert found == {"topics": topics, "cursor": None, "missing": []}
    _, found = nodes["c"]("GET", "/routes", topic="t/x")
    assert [(one["node"], one["receivers"]) for one in found["routes"]] == [
        ("a", 3), ("b", 2), ("c", 2),
    ]  # fmt: skip
    _, found = nodes["a"]("GET", "/subscriptions", limit="3")
    assert [one["client_id"] for one in found["subscriptions"]] == ["a", "b", "c"]
    _, found = nodes["a"]("GET", "/clients", node="b")
    assert [one["client_id"] for one in found["clients"]] == sorted(
        name for name, home in homes.items() if home == "b"
    )


@pytest.mark.parametrize("sort", ["session_age", "-session_age", "idle", "-idle"])
def test_ages_are_in_one_order_whatever_the_clocks_of_the_nodes(nodes: Nodes, sort: str) -> None:
    for shift, door in enumerate(nodes.values()):
        door.parts.broker.now += shift * 500_000
        door.parts.model.clients.clock = 1_700_000_000_000 - shift * 500_000
    for n, name in enumerate("dbeacf"):
        nodes["abc"[n % 3]].client(name)
        for door in nodes.values():
            door.parts.broker.now += 1000
    seen = ""
    more: dict[str, str] = {}
    while True:
        _, page = nodes["b"]("GET", "/clients", sort=sort, limit="2", **more)
        seen += "".join(one["client_id"] for one in page["clients"])
        if page["cursor"] is None:
            break
        more = {"cursor": page["cursor"]}
    assert seen == ("dbeacf" if sort.startswith("-") else "fcaebd")


def test_nodes_that_do_not_answer_are_named(nodes: Nodes) -> None:
    for name in "abc":
        nodes[name].client(f"at-{name}")
    nodes.silent.add("c")
    nodes.homes["d"] = 1
    _, page = nodes["a"]("GET", "/clients")
    assert [one["client_id"] for one in page["clients"]] == ["at-a", "at-b"]
    assert page["missing"] == [
        {"node": "c", "reason": "it has not answered in 5 s"},
        {"node": "d", "reason": "it is away, and its sessions wait for it"},
    ]
    away = "node c: it has not answered in 5 s; node d: it is away, and its sessions wait for it"
    assert nodes["a"].note == f"this is without {away}".encode()
    assert nodes["a"]("GET", "/clients/at-b")[0] == 200 and nodes["a"].note is None
    status, refused = nodes["a"]("GET", "/clients/at-c")
    assert status == 503 and "node c: it has not answered in 5 s" in refused["detail"]
    for path in ("/clients", "/metrics", "/clients/at-a"):
        assert nodes["a"]("GET", path, node="c")[0] == 503
    status, refused = nodes["a"]("GET", "/clients", node="nowhere")
    assert (status, refused["detail"]) == (404, "'nowhere' is no node that is there")


def test_one_client_is_asked_of_the_node_that_has_it(nodes: Nodes) -> None:
    nodes["a"].client("here")
    there = nodes["c"].client("there/1", "x")
    assert nodes["a"]("GET", "/clients/here")[1]["node"] == "a" and not nodes.asked
    assert nodes["a"]("GET", "/clients/there%2F1")[1]["node"] == "c"
    _, found = nodes["a"]("GET", "/subscriptions", client_id="there/1")
    assert [(one["topic_filter"], one["node"]) for one in found["subscriptions"]] == [("x", "c")]
    body = {"client_id": "there/1", "topic_filter": "y", "qos": 2}
    assert nodes["b"]("POST", "/subscriptions", body) == (200, {**body, "node": "c"})
    gone = {"client_id": "there/1", "topic_filter": "y"}
    assert nodes["b"]("DELETE", "/subscriptions", **gone) == (200, {**gone, "node": "c"})
    for name in "bc":
        assert nodes[name]("GET", "/audit", limit="1")[1]["audit"][0]["before"] == gone
    status, refused = nodes["b"]("DELETE", "/subscriptions", **gone)
    assert status == 404 and "has not subscribed to 'y'" in refused["detail"]
    assert nodes["a"]("DELETE", "/clients/there%2F1", node="b")[0] == 404
    there.received()
    assert nodes["a"]("DELETE", "/clients/there%2F1", reason_code="0x87") == (
        200, {"kicked": "there/1", "node": "c"},
    )  # fmt: skip
    assert there.received()[-1].reason_code == 0x87  # type: ignore[attr-defined]
    assert nodes["a"]("GET", "/clients/nobody")[0] == 404
    assert nodes["a"]("GET", "/clients/x", sort="y")[0] == 400


def test_a_change_is_in_the_audit_of_both(nodes: Nodes) -> None:
    nodes["c"].client("pump")
    nodes["a"]("DELETE", "/sessions/pump")
    for name in "ac":
        (entry,) = nodes[name]("GET", "/audit")[1]["audit"]
        assert entry["method"] == "DELETE" and entry["path"] == "/api/v1/sessions/pump"
        assert entry["before"]["client_id"] == "pump"
        assert entry["peer"].startswith("node a" if name == "c" else "")
    assert nodes["b"]("GET", "/audit")[1]["audit"] == []
    nodes["c"]("DELETE", "/sessions/pump")
    assert len(nodes["c"]("GET", "/audit")[1]["audit"]) == 1  # a refusal has changed nothing


def test_a_node_holds_to_the_role_that_it_is_told(nodes: Nodes) -> None:
    nodes["a"].client("x")
    assert nodes["a"].raw()["body"]["client_id"] == "x"
    kick = {"route": "DELETE /clients/{client_id}"}
    assert nodes["a"].raw(**kick)["status"] == 403
    assert nodes["a"].raw(role="events")["status"] == 403
    assert nodes["a"].raw(role="root")["status"] == 403
    assert "x" in nodes["a"].parts.broker.sessions
    assert nodes["a"].raw(**kick, role="operator")["body"] == {"kicked": "x"}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"route": "POST /config/apply", "role": "administrator"}, 404),
        ({"route": "POST /users", "role": "administrator"}, 404),
        ({"path": {}}, 400),
        ({"path": {"client_id": "x", "more": "y"}}, 400),
        ({"path": {"client_id": 7}}, 400),
        ({"route": "GET /clients", "path": {}, "query": {"limit": 100_000}}, 400),
        ({"route": "GET /clients", "path": {}, "query": {"node": "b"}}, 400),
        ({"route": "GET /clients", "path": {}, "query": {"sort": "x"}}, 400),
        ({"route": "POST /subscriptions", "path": {}, "role": "operator"}, 400),
    ],
)
def test_what_a_node_is_not_asked_is_refused(
    nodes: Nodes, changes: dict[str, Any], status: int
) -> None:
    told = nodes["a"].raw(**changes)
    assert told["status"] == told["body"]["status"] == status
    assert not nodes.asked


def test_an_answer_that_makes_no_sense_is_as_none(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes["b"].api, "asked", lambda data, by: Deferred.fromCoroutine(_junk()))
    _, page = nodes["a"]("GET", "/clients")
    (missing,) = page["missing"]
    assert missing["node"] == "b" and "makes no sense" in missing["reason"]


async def _junk() -> bytes:
    return b'{"status": "fine"}'


def test_what_makes_no_sense_to_anybody_is_refused_in_their_words(nodes: Nodes) -> None:
    status, refused = nodes["a"]("GET", "/clients", sort="x")
    assert status == 400 and "sort = 'x'" in refused["detail"]
    status, refused = nodes["a"]("GET", "/topics", cursor="?")
    assert status == 400 and "cursor" in refused["detail"]


def test_status_has_a_line_for_each_node(nodes: Nodes) -> None:
    _, found = nodes["a"]("GET", "/status")
    assert [one["here"] for one in found["nodes"]] == [True]
    assert "nodes" not in nodes["a"]("GET", "/status", node="b")[1]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), st.sets(st.sampled_from("xyz"))))
def test_filters_name_their_nodes(held: dict[str, set[str]]) -> None:
    told = {
        node: {
            "topics": [
                {"topic_filter": name, "subscribers": 1}
                for name, homes in sorted(held.items())
                if node in homes
            ],
            "cursor": None,
        }
        for node in "xyz"
    }
    found = lists.filters_of(told, 100, NODE)["topics"]
    assert {one["topic_filter"]: set(one["nodes"]) for one in found} == {
        name: homes for name, homes in held.items() if homes
    }
    assert all(one["subscribers"] == len(one["nodes"]) for one in found)
