"""Messages of topics, counted from outside; alarms and changes of users as they are told."""

from __future__ import annotations

import json
import os
import pwd
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from mqttd.admin.http.api_users import add_token
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import run as ctl
from tests.support.ctl import told as say
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = start_broker(
        tmp_path_factory.mktemp("rates"), node={"name": "here"}, sys={"interval": "1h"}
    )
    yield started
    started.stop()


def api(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data/mqttd.sock"))


def test_messages_of_a_filter_are_counted(broker: Broker) -> None:
    say(broker, "topics", "count", "plant/#")
    publisher = RawClient(broker.port, mq.V5).connect("publisher")
    for number in range(5):
        publisher.publish(f"plant/{number}", b"four", number % 3)
        publisher.publish("other", b"four")
    publisher.send(*[mq.publish("plant/run", b"four", version=mq.V5)] * 10)
    publisher.ping()

    def counted() -> Any:
        (one,) = api(broker).get("/topic-metrics")["topics"]
        return one if one["messages"] == 15 and one["message_rate"] else None

    one = until(counted)
    assert (one["topic"], one["bytes"]) == ("plant/#", 60)
    assert "plant/#" in say(broker, "topics", "metrics")
    say(broker, "topics", "uncount", "plant/#")
    with pytest.raises(CtlError, match="not counted"):
        api(broker).request("DELETE", "/topic-metrics?topic_filter=plant/%23")
    publisher.disconnect()


def test_the_busiest_topics_are_found(broker: Broker) -> None:
    publisher = RawClient(broker.port, mq.V5).connect("publisher")
    found: list[dict[str, Any]] = []

    def ask() -> None:
        query = {"topic_filter": "busy/#", "seconds": 1}
        found.append(api(broker).get("/topics/busiest", **query))

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        publisher.publish("busy/much", b"x")
        publisher.publish("busy/much", b"x", 1)
        publisher.publish("busy/little", b"x", 1)
        publisher.publish("other", b"x")
    (answer,) = found
    assert [one["topic"] for one in answer["topics"]] == ["busy/much", "busy/little"]
    assert answer["others"] == 0 and answer["topics"][0]["message_rate"] > 0
    publisher.disconnect()


def test_an_alarm_is_a_message(broker: Broker) -> None:
    reader = RawClient(broker.port, mq.V5).connect("reader")
    reader.subscribe("$SYS/brokers/here/alarms/+")
    api(broker).request("POST", "/drain", {"rate": 0.001, "exit": False})
    told = reader.message(topic="$SYS/brokers/here/alarms/activate")
    assert json.loads(told.payload)["name"] == "drain"
    api(broker).request("DELETE", "/drain")
    reader.message(topic="$SYS/brokers/here/alarms/deactivate")
    reader.subscribe("$SYS/brokers/here/stats/sessions/count")
    assert reader.message().topic == "$SYS/brokers/here/stats/sessions/count"
    reader.disconnect()


def test_the_audit_names_who_has_used_mqttd_ctl(broker: Broker) -> None:
    """With the broker there, its file is the broker's to change: nothing is told twice."""
    me = pwd.getpwuid(os.getuid()).pw_name
    say(broker, "api-users", "add", "eva", "--role", "viewer", stdin="a good password\n")
    refused = ctl(broker, "api-users", "token", "eva")
    assert refused.returncode == 1 and "eva has a password" in refused.stderr
    token = say(broker, "api-users", "token", "dan", "--role", "operator", "--expires", "7d")
    assert token.startswith("mqttd_")
    assert "dan" in say(broker, "api-users", "list")
    say(broker, "api-users", "del", "dan")
    say(broker, "api-users", "del", "eva")
    found = [one for one in api(broker).get("/audit")["audit"] if "api-users" in one["path"]]
    assert [(one["who"], one["method"], one["path"]) for one in reversed(found)] == [
        (me, "POST", "/api/v1/api-users"),
        (me, "POST", "/api/v1/api-users"),
        (me, "DELETE", "/api/v1/api-users/dan"),
        (me, "DELETE", "/api/v1/api-users/eva"),
    ]
    for text in ("7", "7x", "never ever", "0d"):
        refused = ctl(broker, "api-users", "token", "dan", "--expires", text)
        assert refused.returncode == 1 and f"--expires {text}: expected a time" in refused.stderr


def test_users_that_are_changed_in_their_files_are_in_the_audit(tmp_path: Path) -> None:
    broker = start_broker(
        tmp_path,
        auth={"chain": ["username"], "username": {"file": "users.conf"}},
        files={"users.conf": ""},
    )

    def entry(path: str) -> Any:
        changes = api(broker).get("/audit")["audit"]
        return next((one for one in changes if one["path"] == path), None)

    try:
        say(broker, "users", "add", "ann", stdin="a good password\n")
        found = until(lambda: entry("users of username"))
        assert found["after"] == {"added": ["ann"]} and found["before"] is None
        assert broker.directory is not None
        path = str(broker.directory / "data/api-users.json")
        add_token(path, "robot", "viewer", None)
        found = until(lambda: entry("api-users.json"))
        assert found["after"]["robot"]["role"] == "viewer" and found["before"] is None
        add_token(path, "robot", "operator", None)
        until(lambda: (entry("api-users.json") or {})["before"])
        assert entry("api-users.json")["before"]["robot"]["role"] == "viewer"
        assert entry("api-users.json")["who"] == "file"
    finally:
        broker.stop()
