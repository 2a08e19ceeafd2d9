"""The HTTP interface, asked without sockets."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from treq.testing import StubTreq
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.web.resource import Resource

from mqttd.admin.api import _ANY_TEXT, Api
from mqttd.admin.doors.server import LocalDoor
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.tags import matches
from mqttd.broker.broker import Broker
from mqttd.broker.ground.drawers import Drawers
from mqttd.broker.rights.bans import Bans
from mqttd.cluster.apart import MINORITY, PUT_OUT, Apart
from mqttd.codec.packets import Disconnect, Publish
from mqttd.config.schema import Cluster
from mqttd.config.schema import Log as LogSettings
from mqttd.monitor.log.service import Log
from mqttd.monitor.log.targets import StreamTarget
from mqttd.readmodel.model import Model
from mqttd.session.ground.metrics import COUNTERS
from mqttd.types import OK, STOP, PluginError
from tests.unit.admin.node import MemoryClient, make_broker

BASE = "http://localhost/api/v1"


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return make_broker(tmp_path)


def at_once(work: Iterator[None]) -> Deferred[Any]:
    deque(work, 0)
    return succeed(None)


class Door:
    """Asks the API of a broker; answers are (status, JSON)."""

    def __init__(self, broker: Broker) -> None:
        listeners: list[dict[str, Any]] = [{"name": "default", "port": 1883}]
        model = Model(broker, run=at_once)
        self.parts = Parts(broker, model, lambda: listeners, lambda: "anybody", maybeDeferred)
        self.api = self.made()
        self.stub = StubTreq(LocalDoor(self.api.resource()))
        self.headers: dict[str, str] = {}
        #: What was said beside the last answer.
        self.note: bytes | None = None

    def made(self) -> Api:
        """The interface to `parts`."""
        return Api(self.parts)

    def __call__(
        self, method: str, path: str, body: object = None, data: bytes = b"", **params: str
    ) -> tuple[int, Any]:
        if body is not None:
            data = json.dumps(body).encode()
        waiting = self.stub.request(
            method, BASE + path, params=params, data=data, headers=self.headers
        )
        self.stub.flush()
        response = result(waiting)
        self.note = response.headers.getRawHeaders(b"x-mqttd-note", [None])[0]
        told = self._told(method, path)
        if told is not None and response.code != 500:  # a fault of ours is in no document
            assert str(response.code) in told["responses"], (method, path, response.code)
        return response.code, json.loads(result(response.content()))

    def _told(self, method: str, path: str) -> Any:
        """The operation of a request in the document; None where there is none."""
        asked = f"/api/v1{path.partition('?')[0]}"
        paths = json.loads(self.api._document)["paths"]
        found = next((one for one in sorted(paths) if re.fullmatch(_pattern(one), asked)), asked)
        return paths.get(asked if asked in paths else found, {}).get(method.lower())


def _pattern(path: str) -> str:
    words = re.split(r"{(\w+)}", path)
    words[1::2] = [".+" if name in _ANY_TEXT else "[^/]+" for name in words[1::2]]
    return "".join(words)


def result(waiting: Deferred[Any]) -> Any:
    found: list[Any] = []
    waiting.addCallbacks(found.append, lambda failure: failure.raiseException())
    assert found, "no answer yet"
    return found[0]


@pytest.fixture
def ask(broker: Broker) -> Door:
    return Door(broker)


def test_status_says_who_and_where_the_broker_is(ask: Door) -> None:
    status, answer = ask("GET", "/status")
    assert status == 200
    assert answer["name"] == "test"
    assert answer["listeners"] == [{"name": "default", "port": 1883}]
    assert answer["who_may_connect"] == "anybody"
    assert answer["stats"]["clients_connected"] == 0
    assert {"version", "compiled", "python", "pid", "uptime"} <= answer.keys()


def test_who_publishes_pushes_nothing_out_of_the_audit(ask: Door, broker: Broker) -> None:
    audit = ask.parts.audit
    now = 1000.0
    audit._seconds = lambda: now
    lines: list[bytes] = []
    audit.write = lines.append
    ask("POST", "/bans", {"kind": "username", "value": "eve"})
    sent = ("o", "operator", "h", "POST", "/api/v1/publish", "Publish.", None)
    for number in range(1100):
        audit.put(*sent, {"topic": f"{number}"})
    _, answer = ask("GET", "/audit")
    gathered, ban = answer["audit"]
    assert ban["after"]["value"] == "eve" and ban["times"] == 1
    assert (gathered["times"], gathered["after"]) == (1100, {"topic": "0"})
    assert len(lines) == 2
    now += 60
    audit.put(*sent, None)
    assert [json.loads(line)["times"] for line in lines] == [1, 1, 1100, 1]
    audit.put(*sent, None)
    audit.finish()
    assert json.loads(lines[-1])["times"] == 2 and len(lines) == 5


def test_who_is_not_ready_says_why(ask: Door, broker: Broker) -> None:
    def ready() -> tuple[int, bytes]:
        waiting = ask.stub.request("GET", BASE.removesuffix("/api/v1") + "/health/ready")
        ask.stub.flush()
        response = result(waiting)
        return response.code, result(response.content())

    assert ready() == (200, b'{"ready": true}\n')
    broker.overloaded = True
    assert ready() == (503, b'{"ready": false, "reason": "overloaded"}\n')


@pytest.mark.parametrize(("minority", "status"), [("serve", 200), ("refuse", 503)])
def test_17_a_node_in_a_minority_is_ready_if_it_serves(
    ask: Door, broker: Broker, minority: Any, status: int
) -> None:
    def ready() -> tuple[int, Any]:
        waiting = ask.stub.request("GET", BASE.removesuffix("/api/v1") + "/health/ready")
        ask.stub.flush()
        response = result(waiting)
        return response.code, json.loads(result(response.content()))

    owners: Any = SimpleNamespace()
    apart = ask.parts.apart = Apart(Cluster(minority=minority), broker, owners)
    assert ready() == (200, {"ready": True})
    apart.begin(MINORITY)
    code, said = ready()
    assert code == status and said["ready"] is (status == 200)
    assert said["note" if said["ready"] else "reason"].startswith("in a minority of its cluster")
    apart.end()
    assert ready() == (200, {"ready": True})
    apart.alone = lambda: "no link to any other node"
    assert ready() == (503, {"ready": False, "reason": "no link to any other node"})
    ask.parts.is_ready = lambda: False
    assert ready()[1]["reason"] == "starting"
    apart.begin(PUT_OUT)
    assert ready()[1]["reason"] == "starting, put out of its cluster"


#: What the counters of authentication modules begin with, see AccessControl.counters.
MODULES = ("auth_username_", "auth_anonymous_")


def test_metrics_have_every_counter_and_gauge(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a")
    _, answer = ask("GET", "/metrics")
    counters = {name for name in answer["counters"] if not name.startswith(MODULES)}
    assert counters == {*COUNTERS, "messages_received", "dropped", "cpu_seconds"}
    assert answer["counters"]["auth_username_hits"] == 0
    assert "auth_anonymous_seconds_sum" in answer["counters"]
    held = {f"memory_held_{kind}_bytes": n for kind, n in broker.account.by_kind().items()}
    assert answer["gauges"] == {**broker.stats(), **held}
    assert answer["gauges"]["clients_connected"] == 1


def test_clients_come_in_pages_that_miss_and_repeat_nobody(ask: Door, broker: Broker) -> None:
    clients = {name: MemoryClient(broker, name) for name in ("d", "b", "e", "a", "c")}
    _, first = ask("GET", "/clients", limit="2")
    assert [client["client_id"] for client in first["clients"]] == ["a", "b"]
    clients["c"].send(Disconnect(0, {0x11: 0}))  # one goes while we turn the page
    _, second = ask("GET", "/clients", limit="2", cursor=first["cursor"])
    assert [client["client_id"] for client in second["clients"]] == ["d", "e"]
    assert second["cursor"] is None


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many", "²", "1" * 5000])
def test_a_limit_out_of_range_is_refused(ask: Door, limit: str) -> None:
    status, answer = ask("GET", "/clients", limit=limit)
    assert (status, answer["code"]) == (400, "bad_request")


@pytest.mark.parametrize("client_id", ["plain", "/lead", "a//b", "a b%2F?#", "käse", "..", "a/"])
def test_a_client_is_found_by_any_client_id(ask: Door, broker: Broker, client_id: str) -> None:
    MemoryClient(broker, client_id).subscribe("a/#")
    status, answer = ask("GET", "/clients/" + quote(client_id, safe=""))
    assert (status, answer.get("client_id")) == (200, client_id)
    assert answer["connected"] is True
    assert answer["peerhost"] == "127.0.0.1"
    assert answer["protocol_version"] == 5
    assert answer["subscriptions"] == 1
    assert answer["session_expiry_interval"] == 60


def test_a_kicked_client_is_told_why_and_its_session_stays(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.received()
    assert ask("DELETE", "/clients/a") == (200, {"kicked": "a"})
    (goodbye,) = client.received()
    assert isinstance(goodbye, Disconnect) and goodbye.reason_code == 0x98
    assert client.edge.closed
    _, answer = ask("GET", "/clients/a")
    assert answer["connected"] is False
    status, answer = ask("DELETE", "/clients/a")
    assert (status, answer["code"]) == (409, "not_connected")


def test_an_unknown_client_is_not_found(ask: Door) -> None:
    for method in ("GET", "DELETE"):
        status, answer = ask(method, "/clients/nobody")
        assert status == 404
        assert answer == {
            "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found",
            "detail": "no client 'nobody'",
        }  # fmt: skip


def test_subscriptions_show_their_options(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a").subscribe("x/#", 2, no_local=True)
    MemoryClient(broker, "b").subscribe("$share/g/y", 1)
    _, answer = ask("GET", "/subscriptions", client_id="a")
    assert answer["subscriptions"] == [
        {"client_id": "a", "topic_filter": "x/#", "qos": 2, "no_local": True,
         "retain_as_published": False, "subscription_identifier": None}
    ]  # fmt: skip
    status, _ = ask("GET", "/subscriptions", client_id="c")
    assert status == 404


def test_all_subscriptions_come_in_pages_of_whole_clients(ask: Door, broker: Broker) -> None:
    for name in ("a", "b", "c"):
        client = MemoryClient(broker, name)
        client.subscribe("x")
        client.subscribe("y")
    MemoryClient(broker, "silent")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(5):
        _, answer = ask("GET", "/subscriptions", limit="3", **cursor)
        seen += [found["client_id"] for found in answer["subscriptions"]]
        if answer["cursor"] is None:
            break
        cursor = {"cursor": answer["cursor"]}
    assert seen == ["a", "a", "b", "b", "c", "c"]


def test_auth_names_the_modules_in_order(ask: Door) -> None:
    _, answer = ask("GET", "/auth")
    assert [module["name"] for module in answer["modules"]] == ["username", "anonymous", "acl"]


def test_reloaded_rules_hold_for_connected_clients(
    ask: Door, broker: Broker, tmp_path: Path
) -> None:
    client = MemoryClient(broker, "a")
    client.send(Publish("t", b"1", 1, packet_id=1))
    (tmp_path / "acl.conf").write_text("{deny, all}.\n")
    assert ask("POST", "/acl/reload") == (200, {"reloaded": True})
    client.received()
    client.send(Publish("t", b"2", 1, packet_id=2))
    (answer,) = client.received()
    assert getattr(answer, "reason_code", None) == 0x87


def test_rules_with_a_mistake_are_refused_and_the_old_ones_stay(
    ask: Door, broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "acl.conf").write_text("{deny, all\n")
    status, answer = ask("POST", "/acl/reload")
    assert (status, answer["code"]) == (422, "reload_failed")
    assert "acl.conf:" in answer["detail"]
    client = MemoryClient(broker, "a")
    client.received()
    client.send(Publish("t", b"1", 1, packet_id=1))
    (answer,) = client.received()
    assert getattr(answer, "reason_code", None) in (0, 0x10)


def test_hooks_list_who_listens(ask: Door, broker: Broker) -> None:
    def on_connected(client: object, acc: object) -> Any:
        return OK

    broker.hooks.hook("client.connected", on_connected, priority=7, client="a*")
    _, answer = ask("GET", "/hooks")
    (point,) = [point for point in answer["hooks"] if point["callbacks"]]
    assert point["point"] == "client.connected"
    (callback,) = point["callbacks"]
    assert callback["priority"] == 7
    assert callback["callback"].endswith("on_connected")
    assert callback["owner"] == callback["callback"]
    assert callback["state"] == "active"
    assert (callback["topic_filter"], callback["client"]) == ([], ["a*"])
    assert callback["errors"] == 0
    assert [budget["name"] for budget in answer["budgets"]] == [callback["owner"]]


def test_a_publish_that_a_hook_refuses_says_so(ask: Door, broker: Broker) -> None:
    broker.hooks.hook("message.publish", lambda message: STOP(0x87))
    status, answer = ask("POST", "/publish", {"topic": "a"})
    assert (status, answer["code"]) == (409, "refused")


def test_alarms_are_listed_while_they_last_and_afterwards(ask: Door, broker: Broker) -> None:
    assert ask("GET", "/alarms") == (200, {"alarms": [], "past": []})
    broker.alarms.activate("quarantine.bad", "bad is quarantined")
    _, answer = ask("GET", "/alarms")
    (alarm,) = answer["alarms"]
    assert (alarm["name"], alarm["text"]) == ("quarantine.bad", "bad is quarantined")
    broker.alarms.clear("quarantine.bad")
    _, answer = ask("GET", "/alarms")
    assert not answer["alarms"] and answer["past"][0]["cleared_at"] >= alarm["raised_at"]


def test_levels_of_the_log_change_while_it_is_written(ask: Door) -> None:
    assert ask("GET", "/log")[0] == 404
    written = Log(LogSettings(), StreamTarget())
    ask.parts.logging = written
    status, told = ask("GET", "/log")
    assert status == 200 and (told["level"], told["modules"]) == ("info", {})
    assert {"to", "waiting_bytes", "lines", "dropped", "fault"} <= told.keys()
    status, told = ask("POST", "/log/level", {"module": "mqttd.access", "level": "debug"})
    assert status == 200 and told["modules"] == {"mqttd.access": "debug"}
    assert written.admits("mqttd.access.auth.jwt", "debug")
    for level in ("debug", None):
        status, told = ask("POST", "/log/level", {"module": "mqttd.acess", "level": level})
        assert status == 400 and told["detail"].endswith("; did you mean mqttd.access?")
    assert list(ask("GET", "/log")[1]["modules"]) == ["mqttd.access"]
    # Plugins write under names that are no modules.
    assert ask("POST", "/log/level", {"module": "mqttd.plugin.acme", "level": "warn"})[0] == 400
    written.admits("mqttd.plugin.acme", "info")
    assert ask("POST", "/log/level", {"module": "mqttd.plugin.acme", "level": "warn"})[0] == 200
    assert not written.admits("mqttd.plugin.acme", "info")
    assert ask("POST", "/log/level", {"module": "mqttd.plugin.acme"})[0] == 200
    assert written.admits("mqttd.plugin.acme", "info")
    assert ask("POST", "/log/level", {"level": "warn"})[1]["level"] == "warn"
    assert ask("POST", "/log/level", {"module": "mqttd.access"})[1]["modules"] == {}
    for body in ({"level": "loud"}, {}, {"module": 7, "level": "info"}, {"level": ["info"]}):
        assert ask("POST", "/log/level", body)[0] == 400


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        ({"payload": "grün"}, "grün".encode()),
        ({"payload_base64": "AP8="}, b"\x00\xff"),
        ({}, b""),
    ],
)
def test_a_published_message_reaches_subscribers(
    ask: Door, broker: Broker, body: dict[str, str], payload: bytes
) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t/#", 1)
    client.received()
    assert ask("POST", "/publish", {"topic": "t/x", "qos": 1, **body}) == (200, {"receivers": 1})
    (message,) = client.received()
    assert isinstance(message, Publish)
    assert (message.topic, message.payload, message.qos) == ("t/x", payload, 1)


def test_a_retained_message_is_there_for_later_subscribers(ask: Door, broker: Broker) -> None:
    ask("POST", "/publish", {"topic": "t", "payload": "x", "retain": True})
    client = MemoryClient(broker, "a")
    client.received()
    client.subscribe("t")
    assert [p.payload for p in client.received() if isinstance(p, Publish)] == [b"x"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"topic": "a/#"}, "bad_topic"),
        ({"topic": ""}, "bad_topic"),
        ({"topic": "a\0"}, "bad_topic"),
        ({"topic": "/".join("a" * 300)}, "bad_topic"),
        ({"topic": "a" * 70000}, "bad_topic"),
        ({"topic": "\ud800"}, "bad_request"),
        ({"topic": "a", "payload": "\ud800"}, "bad_request"),
        ({"topic": 1}, "bad_request"),
        ({}, "bad_request"),
        ([], "bad_request"),
        ({"topic": "a", "qos": 3}, "bad_request"),
        ({"topic": "a", "qos": True}, "bad_request"),
        ({"topic": "a", "retain": 1}, "bad_request"),
        ({"topic": "a", "payload": 1}, "bad_request"),
        ({"topic": "a", "payload_base64": "?"}, "bad_request"),
        ({"topic": "a", "payload_base64": 7}, "bad_request"),
        ({"topic": "a", "payload_base64": "ä"}, "bad_request"),
        ({"topic": "a", "payload": "x", "payload_base64": "eA=="}, "bad_request"),
        ({"topic": "a", "retian": True}, "bad_request"),
        ({"topic": "a", "payload": "x" * 1_048_576}, "too_large"),
    ],
)
def test_what_cannot_be_published_is_refused(ask: Door, body: object, code: str) -> None:
    status, answer = ask("POST", "/publish", body)
    assert (400 <= status < 500, answer["code"]) == (True, code)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 200_000])
def test_a_body_that_is_no_json_is_refused(ask: Door, data: bytes) -> None:
    status, answer = ask("POST", "/publish", data=data)
    assert (status, answer["code"]) == (400, "bad_request")


def test_unknown_paths_and_methods_are_errors_in_json(ask: Door) -> None:
    status, answer = ask("GET", "/nothing")
    assert (status, answer["code"]) == (404, "not_found")
    status, answer = ask("POST", "/status")
    assert (status, answer["code"]) == (405, "method_not_allowed")


class Doors:
    """The listeners as the API knows them."""

    def describe(self) -> list[dict[str, Any]]:
        return [{"id": "tcp:default"}, {"id": "ws:default"}]

    def start_one(self, name: str) -> Deferred[Any]:
        raise KeyError(name)

    def stop_one(self, name: str) -> Deferred[Any]:
        raise RuntimeError("secret detail")

    def restart_one(self, name: str) -> Deferred[Any]:
        raise ValueError("listener.tcp.default: cannot listen")

    reload_certificates = dict
    reload = list


def test_faults_of_listeners_are_worded_as_everywhere(broker: Broker) -> None:
    door = Door(broker)
    door.parts.doors = Doors()

    def refused(method: str, path: str) -> tuple[int, str, str]:
        status, answer = door(method, path)
        return status, answer["code"], answer["detail"]

    path = "/listeners/tcp:default"
    assert refused("GET", f"{path}/stop") == (
        405, "method_not_allowed", f"/api/v1{path}/stop has no method GET"
    )  # fmt: skip
    assert refused("POST", f"{path}/explode") == (404, "not_found", f"no /api/v1{path}/explode")
    assert refused("POST", f"{path}/start") == (
        404, "not_found", "no listener 'tcp:default'; there are: tcp:default, ws:default"
    )  # fmt: skip
    assert refused("POST", f"{path}/restart") == (
        422, "listener_failed", "listener.tcp.default: cannot listen"
    )  # fmt: skip
    assert "secret" not in refused("POST", f"{path}/stop")[2]
    assert door("POST", "/listeners/reload") == (200, {"listeners": []})


def test_a_fault_of_ours_shows_no_traceback(broker: Broker) -> None:
    def fail() -> list[dict[str, Any]]:
        raise RuntimeError("secret")

    ask = Door(broker)
    ask.parts.listeners = fail
    status, answer = ask("GET", "/status")
    assert (status, answer["code"]) == (500, "internal_error")
    assert "secret" not in answer["detail"]


def test_what_is_given_twice_or_means_nothing_is_refused(ask: Door, broker: Broker) -> None:
    """A filter that is not understood must not be taken for none: `DELETE` takes filters, too."""
    MemoryClient(broker, "a")
    for path in ("/clients?user=a", "/clients?state=null", "/clients?limit=1&limit=2",
                 "/clients?username=%ff", "/retained?filtre=x"):  # fmt: skip
        assert ask("GET", path)[0] == 400, path
    assert ask("DELETE", "/retained", dry_run="true")[0] == 400  # no filter


def test_a_key_makes_a_repeated_publish_harmless(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t")
    client.received()
    ask.headers = {"Idempotency-Key": "k1"}
    body = {"topic": "t", "payload": "x"}
    assert ask("POST", "/publish", body) == ask("POST", "/publish", body) == (200, {"receivers": 1})
    assert len([one for one in client.received() if isinstance(one, Publish)]) == 1
    status, answer = ask("POST", "/publish", {**body, "payload": "y"})
    assert (status, answer["code"]) == (422, "key_used")


def test_a_batch_says_what_became_of_each(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t")
    client.received()
    properties = {"content_type": "text/plain", "user_properties": [["a", "b"]],
                  "correlation_data_base64": "AAE=", "message_expiry_interval": 60}  # fmt: skip
    _, answer = ask(
        "POST",
        "/publish/batch",
        {"messages": [{"topic": "t", "properties": properties}, {"topic": "a/#"}, {"topic": "u"}]},
    )
    first, second, third = answer["results"]
    assert (first, third) == ({"receivers": 1}, {"receivers": 0}) and second["code"] == "bad_topic"
    (message,) = [one for one in client.received() if isinstance(one, Publish)]
    assert message.properties is not None
    assert message.properties[3] == "text/plain" and message.properties[9] == b"\x00\x01"
    assert message.properties[0x26] == [("a", "b")]
    assert ask("POST", "/publish/batch", {"messages": []})[0] == 400


def test_every_change_is_told_to_the_audit_with_who_and_what(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a")
    lines: list[bytes] = []
    ask.parts.audit.write = lines.append
    ask("DELETE", "/clients/a")
    ask("DELETE", "/clients/a")  # it is not connected any more: nothing was changed
    ask("DELETE", "/retained", filter="#", dry_run="true")
    ask("POST", "/acl/lint", {"text": "{allow, all}."})
    ask("POST", "/bans", {"kind": "username", "value": "eve"})
    _, answer = ask("GET", "/audit")
    second, first = answer["audit"]
    assert (first["who"], first["role"], first["path"]) == (
        "socket", "administrator", "/api/v1/clients/a"
    )  # fmt: skip
    assert first["before"]["connected"] is True and second["after"]["value"] == "eve"
    assert [json.loads(line) for line in lines] == [first, second]
    _, answer = ask("GET", "/audit", limit="1")
    assert answer["audit"] == [second] and answer["cursor"] == str(second["number"])
    _, answer = ask("GET", "/audit", cursor=answer["cursor"])
    assert answer == {"audit": [first], "cursor": None}


def test_routes_say_who_gets_a_message(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a").subscribe("plant/+/x")
    MemoryClient(broker, "b").subscribe("$share/g/plant/#")
    MemoryClient(broker, "c").subscribe("plant/1/x")
    _, answer = ask("GET", "/routes", topic="plant/1/x")
    assert answer["routes"] == [
        {"topic_filter": "plant/#", "group": "g", "receivers": 1, "clients": ["b"]},
        {"topic_filter": "plant/+/x", "group": None, "receivers": 1, "clients": ["a"]},
        {"topic_filter": "plant/1/x", "group": None, "receivers": 1, "clients": ["c"]},
    ]
    assert ask("GET", "/routes", topic="a/#")[0] == 400


def test_who_asks_too_often_waits_and_others_do_not(ask: Door) -> None:
    told = [ask.api.rate.wait("one") for _ in range(600)]
    assert told[:500] == [0.0] * 500 and told[-1] > 0
    assert ask.api.rate.wait("other") == 0.0


def test_nobody_is_served_of_whom_is_not_known_who_asks(broker: Broker) -> None:
    door = Door(broker)
    door.stub = StubTreq(door.api.resource())
    for path in ("/clients", "/nothing", "/plugins/x/y"):
        status, answer = door("GET", path)
        assert (status, answer["code"]) == (401, "unauthorized")


def test_the_document_tells_of_every_route(ask: Door) -> None:
    _, document = ask("GET", "/openapi.json")
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(route.method, route.full_path) for route in ask.api.routes}
    text = json.dumps(document)
    for name in set(re.findall(r"#/components/schemas/([\w.]+)", text)):
        assert name in document["components"]["schemas"]
    names = [route.name for route in ask.api.routes]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; Charset=UTF-8"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ],
)
def test_a_body_is_json_and_says_so(ask: Door, given: dict[str, str], status: int) -> None:
    ask.headers = given
    got, told = ask("POST", "/publish", {"topic": "t"})
    assert got == status, told
    assert status == 200 or told["code"] == "unsupported_media_type"
    assert ask("POST", "/acl/reload")[0] == 200  # without a body there is no type


@pytest.mark.parametrize(
    "path",
    ["/plugins/a%2Fb", "/plugins/spark%2Fload", "/plugins/spark%2fsettings", "/api-users/a%2Fb",
     "/listeners/tcp%2Fdefault", "%2Fclients", "/acl%2Frules"],
)  # fmt: skip
def test_a_slash_that_is_written_otherwise_is_no_other_path(ask: Door, path: str) -> None:
    status, told = ask("GET", path)
    assert (status, told["code"]) == (404, "not_found")


def test_a_client_id_may_have_a_slash(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a/b")
    assert ask("GET", "/clients/a%2Fb")[1]["client_id"] == "a/b"
    assert ask("GET", "/clients/a/b")[1]["client_id"] == "a/b"


@pytest.mark.parametrize(
    ("header", "weak", "strong"),
    [('"x"', True, True), ("*", True, True), (' "a" , W/"x"', True, False), ('W/"x"', True, False),
     ('"a", "x"', True, True), ('"X"', False, False), ("x", False, False), ("", False, False),
     ('W/"a", "b"', False, False), ('"a*"', False, False)],
)  # fmt: skip
def test_tags_are_compared_as_http_says(header: str, weak: bool, strong: bool) -> None:
    assert matches(header, '"x"', weak=True) is weak
    assert matches(header, '"x"', weak=False) is strong


def test_17_who_asks_workers_for_their_cluster_is_told_what_works(ask: Door) -> None:
    said = 'cluster.kind is "none" here: '
    status, answer = ask("GET", "/cluster")
    assert status == 404 and answer["detail"].startswith(said + "`mqttd-ctl cluster join URL`")
    ask.parts.behind = True
    status, answer = ask("GET", "/cluster")
    assert status == 404 and answer["detail"].endswith("a node of it, and of each of its workers")


def test_a_node_does_not_put_itself_out(ask: Door) -> None:
    def put_out(name: str, anyway: bool) -> Any:
        async def done() -> bool:
            return True

        return done()

    ask.parts.cluster = SimpleNamespace(name="a", leaves=SimpleNamespace(put_out=put_out))
    status, answer = ask("POST", "/cluster/nodes/a/force-leave", {"anyway": True})
    assert status == 409 and "`leave`" in answer["detail"]
    assert ask("POST", "/cluster/nodes/b/force-leave", {}) == (200, {"done": True})


def test_all_nodes_of_a_cluster_are_told(ask: Door) -> None:
    """What a node without a link has is not made up."""
    (node,) = ask("GET", "/nodes")[1]["nodes"]
    assert node["here"] and node["state"] == "running" and node["connections"] == 0

    class Cluster:
        def describe(self) -> dict[str, Any]:
            told = {"version": "1.2", "address": "h:1", "ready": True, "linked": True}
            some = {"uptime": 3, "connections": 4, "sessions": 5}
            none = dict.fromkeys(some)
            return {
                "nodes": [
                    {**told, **some, "node": "a", "here": True, "linked": False},
                    {**told, **some, "node": "b", "here": False},
                    {**told, **none, "node": "c", "here": False, "ready": False},
                    {**told, **none, "node": "d", "here": False, "linked": False},
                ]
            }

    ask.parts.cluster = Cluster()
    first, *others = ask("GET", "/nodes")[1]["nodes"]
    assert first == node
    assert [(one["name"], one["state"]) for one in others] == [
        ("b", "running"), ("c", "not ready"), ("d", "no link"),
    ]  # fmt: skip
    told = [(one["uptime"], one["connections"], one["sessions"]) for one in others]
    assert told == [(3, 4, 5), (None, None, None), (None, None, None)]


def test_what_is_below_its_path_is_a_plugins(ask: Door) -> None:
    class Leaf(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> bytes:
            return json.dumps({"at": request.uri.decode()}).encode()

    one = SimpleNamespace(routes={"files": Leaf()})  # type: ignore[no-untyped-call]
    ask.parts.plugins = SimpleNamespace(handle=lambda name: one)
    assert ask("GET", "/plugins/acme/files/a%2Fb")[1] == {"at": "/api/v1/plugins/acme/files/a%2Fb"}
    for path in ("/plugins/acme%2Ffiles/a", "/plugins/ac%2Fme/files", "/plugins/acme/files%2Fa"):
        assert ask("GET", path)[0] == 404, path


@pytest.mark.parametrize(("comes", "status"), [(True, 503), (False, 404)])
def test_a_plugin_that_is_not_loaded_yet_is_to_be_asked_again(
    ask: Door, comes: bool, status: int
) -> None:
    def handle(name: str) -> None:
        raise PluginError(f"plugin {name!r} is not loaded")

    ask.parts.plugins = SimpleNamespace(handle=handle, comes=lambda name: comes)
    told, problem = ask("GET", "/plugins/spark/log/bounds")
    assert told == status
    assert "plugin 'spark' is not loaded" in problem["detail"]


def test_a_backup_where_the_broker_may_not_write_says_who_writes_it(ask: Door) -> None:
    def refuses(error: OSError) -> Callable[[str], Deferred[int]]:
        return lambda path: fail(error)

    for error in (PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")):
        ask.parts.store = SimpleNamespace(path="/var/data/store.db", backup=refuses(error))
        status, answer = ask("POST", "/store/backup", {"path": "/var/bk/copy.db"})
        assert status == 422
        assert answer["detail"] == (
            f"/var/bk/copy.db: {error.strerror}: the broker writes it, as the user with the id"
            f" {os.geteuid()}; it may write to /var/data"
        )


def test_a_ban_that_cannot_be_stored_says_of_the_store_why(ask: Door, broker: Broker) -> None:
    waiting: list[Any] = []
    journal = SimpleNamespace(value=lambda *_: None, when_kept=lambda told: told())
    drawers = Drawers(SimpleNamespace(journal=journal))  # type: ignore[arg-type]
    broker.bans = Bans("data/bans.json", drawer=drawers.open("bans"))
    ban = {"kind": "username", "value": "eve"}
    assert ask("POST", "/bans", ban)[1]["unkept"] is None
    why = "store.db cannot be written, disk full: make room"
    journal.when_kept = waiting.append
    drawers.halt(why)
    assert ask("POST", "/bans", {**ban, "value": "mallory"})[1]["unkept"] == why
    status, answer = ask("DELETE", "/bans", **ban)
    assert (status, answer["unkept"]) == (200, why)
    drawers.stuck, drawers.why = True, why
    status, answer = ask("POST", "/bans", ban)
    assert status == 507
    text = f"the ban is not made, since it cannot be kept: {why}"
    assert answer["detail"] == text
    _, answer = ask("GET", "/audit")
    assert len(answer["audit"]) == 3, "what holds was changed"
