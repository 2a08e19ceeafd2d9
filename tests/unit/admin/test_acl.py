"""The access rules over HTTP, asked without sockets, and what `mqttd-ctl acl` prints of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl import acl as ctl_acl
from mqttd.admin.ctl import main as ctl
from mqttd.broker.broker import Broker
from mqttd.codec.packets import Publish
from tests.unit.admin.node import MemoryClient, make_broker
from tests.unit.admin.test_api import Door

RULES = """{deny, all, publish, ["plant/secret"]}.
{allow, {client, "pump"}, all, ["plant/#"]}.
{allow, all, subscribe, ["open/#"]}.
"""


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return make_broker(tmp_path, RULES)


@pytest.fixture
def ask(broker: Broker) -> Door:
    return Door(broker)


def test_a_decision_is_explained(ask: Door, tmp_path: Path) -> None:
    status, told = ask("GET", "/acl/explain", client_id="x", action="publish", topic="plant/1")
    assert status == 200
    assert (told["allowed"], told["rule"]) == (False, 'no rule matched: acl.nomatch = "deny"')
    assert [step["reason"] for step in told["steps"]] == [
        '"plant/secret" does not match "plant/1"',
        'is about client "pump", not "x"',
        "is about subscribe only",
        "",
    ]
    assert told["hooks"] == 0
    status, told = ask(
        "GET",
        "/acl/explain",
        client_id="pump",
        action="subscribe",
        topic="$share/g/plant/#",
        qos="1",
    )
    assert told["allowed"] and told["rule"].startswith(f"{tmp_path}/acl.conf:2 ")
    assert told["topic"] == "plant/#"


def test_a_connected_client_lends_what_is_not_said(broker: Broker, ask: Door) -> None:
    MemoryClient(broker, "pump", None)
    _, told = ask("GET", "/acl/explain", client_id="pump", action="publish", topic="plant/1")
    assert told["allowed"] and told["peerhost"] == "127.0.0.1"
    _, told = ask(
        "GET", "/acl/explain", client_id="pump", peerhost="10.0.0.1", username="eve",
        action="publish", topic="plant/1",
    )  # fmt: skip
    assert told["peerhost"] == "10.0.0.1" and told["username"] == "eve"


@pytest.mark.parametrize(
    "params,text",
    [
        ({"topic": "a"}, "missing required field `action`"),
        ({"action": "write", "topic": "a"}, "expected publish, subscribe"),
        ({"action": "publish"}, "missing required field `topic`"),
        ({"action": "publish", "topic": "a/#"}, "wildcard"),
        ({"action": "subscribe", "topic": "a/#/b"}, "#"),
        ({"action": "subscribe", "topic": "$share/g"}, "$share without"),
        ({"action": "publish", "topic": "a", "qos": "3"}, "qos: expected `int` <= 2"),
        ({"action": "publish", "topic": "a", "retain": "perhaps"}, "retain: expected `bool`"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    ask: Door, params: dict[str, str], text: str
) -> None:
    status, told = ask("GET", "/acl/explain", **params)
    assert status == 400
    assert text in told["detail"]


def test_who_may_lists_rules_and_clients(broker: Broker, ask: Door) -> None:
    MemoryClient(broker, "pump")
    MemoryClient(broker, "other")
    status, told = ask("GET", "/acl/who", topic="plant/#", access="publish")
    assert status == 200
    assert [one["client_id"] for one in told["clients"]] == ["pump"]
    assert len(told["rules"]) == 1 and len(told["rules"][0]["but"]) == 1
    _, told = ask("GET", "/acl/who", topic="open/x", access="subscribe")
    assert [one["client_id"] for one in told["clients"]] == ["other", "pump"]


def test_rules_are_listed_with_their_hits(broker: Broker, ask: Door) -> None:
    MemoryClient(broker, "pump").subscribe("plant/#")
    _, told = ask("GET", "/acl/rules")
    assert [(rule["line"], rule["hits"]) for rule in told["rules"]] == [(1, 0), (2, 1), (3, 0)]


def test_lint_takes_the_rules_in_force_or_others(ask: Door) -> None:
    _, told = ask("GET", "/acl/lint")
    assert [(one["line"], one["kind"]) for one in told["findings"]] == [(2, "wide")]
    _, told = ask("POST", "/acl/lint", {"text": "{deny, all}.\n{allow, all}.", "name": "n.conf"})
    assert [(one["file"], one["kind"]) for one in told["findings"]] == [("n.conf", "unreachable")]
    assert told["findings"][0]["other"] == "n.conf:1 {deny, all}"
    status, told = ask("POST", "/acl/lint", {"text": "{deny", "name": "n.conf"})
    assert status == 422 and told["detail"].startswith("n.conf:1:6: found end of file")
    assert ask("POST", "/acl/lint", {"name": "x"})[0] == 400


def test_diff_looks_at_the_clients_that_are_here(broker: Broker, ask: Door) -> None:
    pump = MemoryClient(broker, "pump")
    pump.subscribe("plant/a")
    pump.send(Publish("plant/b", b"x", 0, False))
    pump.subscribe("open/a")
    status, told = ask("POST", "/acl/diff", {"text": RULES.replace("pump", "pomp"), "name": "n"})
    assert status == 200
    assert {(one["action"], one["topic"], one["held"]) for one in told["changes"]} == {
        ("subscribe", "plant/a", "subscribed"),
        ("publish", "plant/b", "publishes"),
        ("subscribe", "plant/#", ""),
        ("publish", "plant/(any)", ""),
    }
    assert told["subscriptions_lost"] == 1
    # Asking has changed nothing.
    assert list(broker.sessions["pump"].subscriptions or ()) == ["plant/a", "open/a"]


def test_without_a_candidate_there_is_no_shadow(ask: Door) -> None:
    status, told = ask("GET", "/acl/shadow")
    assert (status, told["code"]) == (404, "no_shadow")
    status, told = ask("POST", "/acl/promote")
    assert (status, told["code"]) == (422, "promote_failed")
    assert "acl.shadow.file is not set" in told["detail"]


def test_a_mistake_at_reload_keeps_the_old_rules(ask: Door, tmp_path: Path) -> None:
    (tmp_path / "acl.conf").write_text("{allow all}.")
    status, told = ask("POST", "/acl/reload")
    assert status == 422
    assert told["detail"].startswith("the old rules stay in force: acl: ")
    assert "acl.conf:1:8: found all, expected ',' or '}'" in told["detail"]
    _, told = ask("GET", "/acl/rules")
    assert len(told["rules"]) == 3


def test_paths_and_methods_that_are_not_there(ask: Door) -> None:
    assert ask("GET", "/acl/nonsense")[0] == 404
    assert ask("DELETE", "/acl/rules")[0] == 405


# -- mqttd-ctl


def test_ctl_lints_a_file_without_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.conf"
    path.write_text("{deny, all}.\n{allow, all}.\n")
    assert ctl.main(["acl", "lint", str(path)]) == 1
    assert capsys.readouterr().out == (
        f"{path}:2: unreachable: never decides: everything is decided before it"
        f" ({path}:1 {{deny, all}})\n    {{allow, all}}\n"
    )
    path.write_text("{deny, all}.\n")
    assert ctl.main(["acl", "lint", str(path)]) == 0
    assert capsys.readouterr().out == "nothing suspicious\n"
    path.write_text("{deny, al}.\n")
    assert ctl.main(["acl", "lint", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"mqttd-ctl: {path}:1:8: found al, expected ")
    assert ctl.main(["acl", "lint", str(tmp_path / "missing")]) == 1
    assert "No such file" in capsys.readouterr().err


class FakeClient:
    """Answers what it was given."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def get(self, path: str, **query: object) -> dict[str, Any]:
        return json.loads(json.dumps(self.answer))  # type: ignore[no-any-return]


def test_ctl_prints_an_explanation(
    ask: Door, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = ask("GET", "/acl/explain", client_id="x", action="publish", topic="plant/1")
    monkeypatch.setattr(ctl_acl, "client_of", lambda options: FakeClient(told))
    assert ctl.main(["acl", "explain", "--client", "x", "publish", "plant/1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DENIED"
    assert lines[2].split() == ["wants", "to", "publish", "plant/1", "(QoS", "0)"]
    assert lines[3].split()[:4] == ["rule", "no", "rule", "matched:"]
    assert lines[-1].endswith("decides")
    assert "is about client" in lines[-3]
