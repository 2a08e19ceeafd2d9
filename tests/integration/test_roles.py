"""Roles of a real broker: given, changed and taken while its clients are there."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told as say

STAYS = [(0x11, 3600)]
ACL = '{deny, all, publish, ["shut/#"]}.\n'
PLANT = '{allow, all, publish, ["plant/%u"]}.\n{allow, all, subscribe, ["plant/#"]}.\n'


def api(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data/mqttd.sock"))


def put(broker: Broker, path: str, **body: object) -> None:
    api(broker).request("POST", path, body)


def start(tmp_path: Path, **more: object) -> Broker:
    settings: dict[str, Any] = {
        "auth": {"chain": ["username"], "username": {"file": "users.conf"}},
        "files": {"users.conf": "".join(f"{name}:{proof()}\n" for name in ("ann", "bob", "eve"))},
        **more,
    }
    return start_broker(tmp_path, acl=ACL, **settings)


def proof() -> str:
    """What mosquitto_passwd makes of "x", with few rounds."""
    salt = b"0123456789ab"
    made = hashlib.pbkdf2_hmac("sha512", b"x", salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(made).decode()}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start(tmp_path)
    yield started
    started.stop()


def client(broker: Broker, username: str, **more: Any) -> RawClient:
    made = RawClient(broker.port, mq.V5)
    made.connect(f"c-{username}", username=username, password=b"x", **more)
    return made


def may_publish(who: RawClient, topic: str) -> bool:
    answer = who.publish(topic, b"", 1)
    assert answer is not None
    return bool(answer.reason < 0x80)


def test_a_role_lets_its_users_in_at_once_and_shuts_them_out_at_once(broker: Broker) -> None:
    ann, bob = client(broker, "ann"), client(broker, "bob")
    assert not may_publish(ann, "plant/ann")
    put(broker, "/roles", name="plant", rules=PLANT)
    put(broker, "/members", username="ann", roles=["plant"])
    assert may_publish(ann, "plant/ann")
    assert not may_publish(ann, "plant/bob") and not may_publish(bob, "plant/bob")
    assert ann.subscribe("plant/+") == [0]

    put(broker, "/groups", name="workers", roles=["plant"])
    put(broker, "/members", username="bob", groups=["workers"])
    assert may_publish(bob, "plant/bob")
    ann.message(topic="plant/bob")

    # Of a live client the right to publish goes, and the subscription.
    put(broker, "/roles", name="plant", rules='{allow, all, publish, ["plant/other"]}.')
    assert not may_publish(ann, "plant/ann")
    assert may_publish(bob, "plant/other")
    ann.ping()
    assert api(broker).get("/subscriptions", client_id="c-ann")["subscriptions"] == []
    api(broker).request("DELETE", "/groups/workers")
    assert not may_publish(bob, "plant/other")
    assert api(broker).get("/members/bob")["groups"] == []
    api(broker).request("DELETE", "/roles/plant")
    assert not may_publish(ann, "plant/other")
    with pytest.raises(CtlError, match="there is no role 'plant'"):
        put(broker, "/members", username="ann", roles=["plant"])
    with pytest.raises(CtlError, match="role x:1"):
        put(broker, "/roles", name="x", rules="{alow, all}.")
    ann.disconnect()
    bob.disconnect()


def test_an_explanation_and_why_name_the_role(broker: Broker) -> None:
    say(broker, "roles", "put", "plant", "--rule", '{deny, all, publish, ["plant/closed"]}',
        "--rule", '{allow, all, publish, ["plant/#"]}')  # fmt: skip
    say(broker, "roles", "give", "ann", "--role", "plant")
    told = say(broker, "acl", "explain", "--user", "ann", "publish", "plant/1")
    assert 'role plant:2 {allow, all, publish, ["plant/#"]}' in told
    assert "plant:1" in told and "does not match" in told
    ann = client(broker, "ann")
    assert not may_publish(ann, "plant/closed")
    assert "role plant:1" in say(broker, "why", "--topic", "plant/closed")
    assert "acl.conf:1" in say(broker, "acl", "explain", "--user", "ann", "publish", "shut/1")
    assert "plant/#" in say(broker, "roles", "list") and "ann" in say(broker, "roles", "users")
    changes = api(broker).get("/audit")["audit"]
    assert [one["path"] for one in changes[:2]] == ["/api/v1/members", "/api/v1/roles"]
    assert changes[0]["after"]["roles"] == ["plant"]
    ann.disconnect()


@pytest.mark.parametrize(("order", "may"), [("last", True), ("first", False)])
def test_acl_conf_is_asked_first_or_last(tmp_path: Path, order: str, may: bool) -> None:
    broker = start(tmp_path, environment={"MQTTD__ACL__ORDER": order})
    try:
        put(broker, "/roles", name="all", rules="{allow, all}.")
        put(broker, "/members", username="ann", roles=["all"])
        ann = client(broker, "ann")
        assert may_publish(ann, "shut/1") is may
        assert may_publish(ann, "open/1")
    finally:
        broker.stop()


def test_a_disabled_user_is_kept_out_and_a_disabled_role_gives_nothing(broker: Broker) -> None:
    put(broker, "/roles", name="all", rules="{allow, all}.")
    put(broker, "/members", username="ann", roles=["all"])
    ann = client(broker, "ann")
    assert may_publish(ann, "open/1")
    put(broker, "/roles", name="all", rules="{allow, all}.", enabled=False)
    assert not may_publish(ann, "open/1")
    say(broker, "roles", "give", "ann", "--role", "all", "--disabled")
    ann.expect_close(0x98)
    again = RawClient(broker.port, mq.V5)
    again.connect("c-ann", username="ann", password=b"x", reason=0x8A)
    say(broker, "roles", "take", "ann")
    client(broker, "ann").disconnect()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_roles_outlast_a_restart(tmp_path: Path, kind: str) -> None:
    broker = start(tmp_path, store={"kind": kind})
    put(broker, "/roles", name="plant", rules=PLANT)
    put(broker, "/members", username="ann", roles=["plant"])
    put(broker, "/members", username="eve", enabled=False)
    broker.stop()
    broker = start(tmp_path, store={"kind": "sqlite"})
    try:
        ann = client(broker, "ann")
        assert may_publish(ann, "plant/ann")
        RawClient(broker.port, mq.V5).connect("e", username="eve", password=b"x", reason=0x8A)
        assert api(broker).get("/roles/plant")["rules"] == PLANT
    finally:
        broker.stop()


def test_the_roles_of_mosquitto_are_taken_over(tmp_path: Path) -> None:
    """What mosquitto's plugin has kept: rules, groups, passwords, and what has no place here."""
    salt = b"0123456789ab"
    proof = hashlib.pbkdf2_hmac("sha512", b"secret", salt, 101)
    had = {
        "defaultACLAccess": {"publishClientSend": False, "publishClientReceive": True,
                             "subscribe": False, "unsubscribe": True},
        "clients": [{"username": "ann", "textname": "Ann", "clientid": "c1",
                     "password": base64.b64encode(proof).decode(), "iterations": 101,
                     "salt": base64.b64encode(salt).decode(),
                     "roles": [], "groups": [{"groupname": "staff", "priority": 1}]},
                    {"username": "old", "disabled": True, "roles": [{"rolename": "plant"}]}],
        "groups": [{"groupname": "staff", "roles": [{"rolename": "open", "priority": 1},
                                                     {"rolename": "plant", "priority": 5}]}],
        "roles": [
            {"rolename": "plant", "acls": [
                {"acltype": "publishClientSend", "topic": "plant/#", "priority": 1, "allow": True},
                {"acltype": "publishClientSend", "topic": "plant/shut", "priority": 9,
                 "allow": False},
                {"acltype": "subscribePattern", "topic": "plant/#", "allow": True},
                {"acltype": "publishClientReceive", "topic": "plant/#", "allow": True}]},
            {"rolename": "open", "acls": [
                {"acltype": "subscribeLiteral", "topic": "#", "allow": True}]},
        ],
    }  # fmt: skip
    broker = start(
        tmp_path,
        files={"users.conf": "", "dynamic-security.json": json.dumps(had)},
    )
    try:
        told = say(broker, "import", str(tmp_path / "etc/dynamic-security.json"))
        assert "took 2 roles, 1 groups, 2 users" in told and "1 passwords" in told
        for left in ("publishClientReceive plant/#", "clientid c1", "acl.nomatch", "client old"):
            assert left in told
        ann = RawClient(broker.port, mq.V5).connect("c1", username="ann", password=b"secret")
        assert may_publish(ann, "plant/1") and not may_publish(ann, "plant/shut")
        assert not may_publish(ann, "other")
        assert ann.subscribe("plant/+", "#", "other/#") == [0, 0, 0x87]
        assert not api(broker).get("/members/old")["enabled"]
    finally:
        broker.stop()


def test_a_member_page_costs_what_it_shows_and_goes_on_where_it_ended(broker: Broker) -> None:
    names = [f"user-{number:03d}" for number in range(25)]
    put(broker, "/roles/import", members=[{"username": name} for name in [*names, "other"]])
    found: list[str] = []
    cursor = None
    while True:
        page = api(broker).get("/members", limit=10, prefix="user-", cursor=cursor)
        found += [one["username"] for one in page["members"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == names
