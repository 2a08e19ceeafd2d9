"""Sessions, subscriptions, retained messages and topics, asked and ended over HTTP."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mqttd.broker.broker import Broker
from mqttd.codec.packets import Disconnect, Publish
from mqttd.session.channel.listener import Listener
from tests.unit.admin.node import MemoryClient, make_broker
from tests.unit.admin.test_api import Door


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return make_broker(tmp_path, '{deny, all, subscribe, ["secret"]}.\n{allow, all}.\n')


@pytest.fixture
def ask(broker: Broker) -> Door:
    return Door(broker)


def names(answer: Any) -> list[str]:
    return [client["client_id"] for client in answer["clients"]]


def test_clients_are_found_by_user_address_listener_and_state(ask: Door, broker: Broker) -> None:
    a, b = MemoryClient(broker, "a"), MemoryClient(broker, "b")
    broker.sessions["a"].purse = broker.account.purse("ann")
    b.send(Disconnect(0))
    del a
    for given, found in (
        ({"username": "ann"}, ["a"]),
        ({"username": "nobody"}, []),
        ({"state": "connected"}, ["a"]),
        ({"state": "away"}, ["b"]),
        ({"address": "127.0.0.1", "state": "connected"}, ["a"]),
        ({"address": "10.0.0.0/8"}, []),
        ({"listener": "default", "state": "connected"}, ["a"]),
        ({"listener": "other"}, []),
    ):
        assert names(ask("GET", "/clients", **given)[1]) == found, given


def test_where_the_names_of_a_client_are_is_told(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a")
    broker.listeners["default"] = Listener("default", mountpoint="dev/%c/")
    MemoryClient(broker, "b")
    clients = ask("GET", "/clients")[1]["clients"]
    assert {one["client_id"]: one["mountpoint"] for one in clients} == {"a": "", "b": "dev/b/"}


def test_what_a_client_sent_lost_and_left_for_is_told(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t", 1)
    client.send(Publish("u", b"1", 0))
    client.send(Publish("u", b"2", 0))
    shown = ask("GET", "/clients/a")[1]
    assert shown["messages_received"] == 2
    assert shown["bytes_sent"] == len(client.edge.written)
    assert shown["bytes_received"] > shown["messages_dropped"] == 0
    assert shown["clean_start"] is not None and shown["last_reason"] is None
    assert shown["connected_at"] > 1_600_000_000
    client.send(Disconnect(0))
    broker.settings.mqueue_store_qos0 = False
    broker.publish_text("t", b"nobody there", 0)
    shown = ask("GET", "/clients/a")[1]
    assert shown["last_reason"] == "client disconnected"
    assert (shown["connected_at"], shown["clean_start"]) == (None, None)
    assert (shown["bytes_received"], shown["messages_dropped"]) == (0, 1)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        *[("/clients", given) for given in (
            {"state": "gone"}, {"address": "nowhere"}, {"subscription": "a/#/b"},
            {"subscription": ""}, {"subscription": "$share/g"}, {"sort": "size"},
            {"sort": "--idle"}, {"limit": "0"}, {"limit": "1001"}, {"limit": "ten"}, {"limit": ""},
            {"cursor": "here"}, {"cursor": ""}, {"cursor": "WyIiXQ"}, {"size": "1"},
            {"listener": "tcp:other"},
        )],
        ("/sessions", {"subscription": "#/a"}),
        ("/subscriptions", {"topic_filter": "a+"}),
        ("/subscriptions", {"topic_filter": "a+", "client_id": "a"}),
        ("/subscriptions", {"client_id": "a", "cursor": "WyIiLCJhIl0"}),
        ("/subscriptions", {"cursor": "e30"}),
        ("/topics", {"cursor": "x"}),
        ("/routes", {"topic": "a/#"}),
        ("/routes", {"topic": ""}),
        ("/retained", {"filter": "a/#/b"}),
        ("/retained", {"filter": ""}),
        ("/retained", {"cursor": "x"}),
        ("/topics/busiest", {"topic_filter": "a#"}),
        ("/topics/busiest", {"seconds": "nan"}),
        ("/acl/who", {"topic": "+a", "access": "publish"}),
        ("/acl/who", {"topic": "a", "access": "write"}),
        ("/acl/explain", {"topic": "#", "action": "publish"}),
        ("/acl/explain", {"topic": "#a", "action": "subscribe"}),
        ("/acl/explain", {"topic": "a", "action": "publish", "peerhost": "nowhere"}),
        ("/acl/explain", {"topic": "a", "action": "publish", "listener": "tcp:other"}),
        ("/acl/rules", {"listener": "tcp:other"}),
        ("/acl/lint", {"listener": "tcp:other"}),
        ("/acl/shadow", {"listener": "tcp:other"}),
        ("/events", {"kinds": "clients,all"}),
        ("/audit", {"cursor": "new"}),
    ],
)  # fmt: skip
def test_a_wish_that_means_nothing_is_refused_by_its_name(
    ask: Door, broker: Broker, path: str, given: dict[str, str]
) -> None:
    """It is not taken for one that nothing fits."""
    client = MemoryClient(broker, "a")
    ask.parts.listeners = lambda: [{"id": "tcp:default"}]
    status, answer = ask("GET", path, **given)
    assert status == 400 and answer["code"] in ("bad_request", "bad_topic")
    assert any(name in answer["detail"] for name in given), answer["detail"]
    assert not client.edge.closed


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/subscriptions", {"client_id": "a", "topic_filter": "a#"}),
        ("/retained", {"filter": "#/a"}),
        ("/clients/a", {"reason_code": "0x01"}),
        ("/clients/a", {"discard": "maybe"}),
        ("/bans", {"kind": "ip", "value": "x"}),
    ],
)
def test_so_is_one_of_a_change(ask: Door, broker: Broker, path: str, given: dict[str, str]) -> None:
    client = MemoryClient(broker, "a")
    status, answer = ask("DELETE", path, **given)
    assert status == 400 and not client.edge.closed
    assert any(name in answer["detail"] for name in given), answer["detail"]


def test_a_session_ends_with_its_connection_and_what_waits(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t", 1)
    client.received()
    assert ask("DELETE", "/sessions/a") == (200, {"ended": "a"})
    assert isinstance(client.received()[-1], Disconnect) and client.edge.closed
    assert "a" not in broker.sessions
    assert ask("DELETE", "/sessions/a")[0] == 404


def test_a_session_that_is_away_ends_and_its_id_is_free(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("t", 1)
    client.send(Disconnect(0))
    broker.publish_text("t", b"waits", 1)
    assert broker.sessions["a"].mqueue is not None
    assert ask("DELETE", "/sessions/a")[0] == 200
    assert broker.stats()["subscriptions"] == 0
    assert not MemoryClient(broker, "a").received()[0].session_present  # type: ignore[union-attr]


def test_a_client_is_kicked_with_its_session(ask: Door, broker: Broker) -> None:
    MemoryClient(broker, "a").subscribe("t")
    status, _ = ask("DELETE", "/clients/a", discard="true", reason_code="0x87")
    assert status == 200 and "a" not in broker.sessions


def test_a_client_is_subscribed_by_its_rules_and_unsubscribed(ask: Door, broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.received()
    body = {"client_id": "a", "topic_filter": "t/#", "qos": 1}
    assert ask("POST", "/subscriptions", body) == (200, body)
    broker.publish_text("t/1", b"x")
    broker.perform()
    assert [type(packet) for packet in client.received()] == [Publish]
    assert ask("POST", "/subscriptions", {**body, "topic_filter": "secret"})[0] == 409
    assert ask("POST", "/subscriptions", {**body, "topic_filter": "a/#/b"})[0] == 400
    assert ask("POST", "/subscriptions", {**body, "client_id": "nobody"})[0] == 404
    assert ask("POST", "/subscriptions", {**body, "qos": 3})[0] == 400
    assert ask("DELETE", "/subscriptions", client_id="a", topic_filter="t/#")[0] == 200
    assert ask("DELETE", "/subscriptions", client_id="a", topic_filter="t/#")[0] == 404


def test_filters_are_listed_with_their_subscribers(ask: Door, broker: Broker) -> None:
    for name in "abc":
        MemoryClient(broker, name).subscribe("all/#")
    MemoryClient(broker, "d").subscribe("$share/g/one")
    _, first = ask("GET", "/topics", limit="1")
    assert first["topics"] == [{"topic_filter": "$share/g/one", "subscribers": 1}]
    _, second = ask("GET", "/topics", limit="1", cursor=first["cursor"])
    assert second == {"topics": [{"topic_filter": "all/#", "subscribers": 3}], "cursor": None}


def test_retained_messages_are_found_shown_and_forgotten(ask: Door, broker: Broker) -> None:
    for topic in ("a/1", "a/2", "b/ü?", "$SYS/x"):
        broker.publish_text(topic, topic.encode(), 1, True)
    _, found = ask("GET", "/retained")
    assert [one["topic"] for one in found["retained"]] == ["a/1", "a/2", "b/ü?"]
    _, page = ask("GET", "/retained", filter="a/+", limit="1")
    assert [one["topic"] for one in page["retained"]] == ["a/1"]
    _, page = ask("GET", "/retained", filter="a/+", limit="1", cursor=page["cursor"])
    assert ([one["topic"] for one in page["retained"]], page["cursor"]) == (["a/2"], None)
    _, shown = ask("GET", "/retained/" + quote("b/ü?", safe=""))
    assert base64.b64decode(shown["payload_base64"]).decode() == "b/ü?" and shown["qos"] == 1
    assert ask("GET", "/retained/none")[0] == 404
    _, dry = ask("DELETE", "/retained", filter="a/#", dry_run="true")
    assert dry == {"deleted": False, "count": 2, "topics": ["a/1", "a/2"]}
    assert ask("GET", "/retained/a/1")[0] == 200
    _, done = ask("DELETE", "/retained", filter="a/#")
    assert done["deleted"] and ask("GET", "/retained/a/1")[0] == 404
    assert ask("DELETE", "/retained", filter="a/#/b")[0] == 400
