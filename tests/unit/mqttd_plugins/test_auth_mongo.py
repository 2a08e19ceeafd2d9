"""auth_mongo: what a client calls itself is a string in the filter, never an operator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import ServerSelectionTimeoutError

from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk
from mqttd_plugins.auth_mongo.plugin import AuthMongo, Filter, Settings
from tests.support.authenticating import Asked, comes_and_goes, configured

PLAIN = PasswordHash(algorithm="plain")
ALICE = {"password_hash": "secret", "is_superuser": True}


class Client:
    """Stands in for MongoClient: what it finds by collection."""

    def __init__(self, **found: list[dict[str, Any]]) -> None:
        self.found = found
        self.asked: list[tuple[str, Any]] = []
        self.error: Exception | None = None
        self.closed = False
        self.parameters: dict[str, Any] = {}

    def connect(self, **parameters: Any) -> Client:
        self.parameters = parameters
        return self

    def __getitem__(self, name: str) -> Collection:
        return Collection(self, name)

    def close(self) -> None:
        self.closed = True


class Collection:
    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name

    def __getitem__(self, name: str) -> Collection:
        return Collection(self.client, name)

    def find(self, wanted: Any, projection: Any) -> Collection:
        self.client.asked.append((self.name, wanted))
        if self.client.error is not None:
            raise self.client.error
        return self

    def limit(self, most: int) -> list[dict[str, Any]]:
        return self.client.found.get(self.name, [])[:most]


def asked(client: Client, **config: Any) -> Asked:
    return Asked(AuthMongo(client.connect), Settings(password_hash=PLAIN, **config))


def test_it_comes_and_goes_without_a_trace() -> None:
    client = Client()
    settings = Settings(password_hash=PLAIN)
    comes_and_goes(lambda: configured(AuthMongo(client.connect), settings))
    assert client.closed


def test_a_document_with_the_password_lets_its_user_in_with_rules() -> None:
    rules = [{"permission": "allow", "action": "publish", "topics": ["a", "b"]}]
    client = Client(mqtt_user=[ALICE], mqtt_acl=rules)
    asking = asked(client, acl_filter={"username": "${username}"})
    assert asking("alice") == AuthOk(True, '{allow, all, publish, ["a", "b"]}.')
    assert isinstance(asking("alice", b"wrong"), AuthError)
    assert [name for name, _ in client.asked] == ["mqtt_user", "mqtt_acl", "mqtt_user"]


def test_no_document_or_more_than_one_lets_nobody_in() -> None:
    assert isinstance(asked(Client())("alice"), AuthError)
    assert asked(Client(), unknown="ignore")("alice") is AUTH_IGNORE
    assert isinstance(asked(Client(mqtt_user=[ALICE, ALICE]))("alice"), AuthError)
    for hashed in (None, "", 5, {"$ne": 1}, ["secret"]):
        verdict = asked(Client(mqtt_user=[{"password_hash": hashed}]))("alice")
        assert isinstance(verdict, AuthError)


@given(st.text(max_size=100))
def test_a_name_is_a_string_whatever_is_in_it(name: str) -> None:
    client = Client()
    wanted = {"$or": [{"u": "${username}"}, {"n": {"$in": ["x:%u", 5, True]}}], "on": True}
    asked(client, filter=wanted)(name)
    ((_, found),) = client.asked
    assert found == {"$or": [{"u": name}, {"n": {"$in": [f"x:{name}", 5, True]}}], "on": True}


@pytest.mark.parametrize(
    "wanted",
    [
        {"${username}": 1},
        {"$where": "this.u == '${username}'"},
        {"$expr": {"$eq": ["$u", "${username}"]}},
        {"u": {"$regex": "^${username}$"}},
        {"$or": [{"u": {"$not": {"$regex": "%u"}}}]},
        {"u": "${name}"},
    ],
)
def test_a_placeholder_that_would_be_code_or_pattern_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="^filter"):
        Filter(wanted, "filter")


def test_a_filter_that_asks_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a placeholder"):
        asked(Client(), filter={"on": True})


def test_a_server_that_is_gone_is_a_failure() -> None:
    client = Client()
    client.error = ServerSelectionTimeoutError("gone")
    with pytest.raises(ServerSelectionTimeoutError):
        asked(client)("alice")


def test_a_server_elsewhere_is_encrypted_by_default() -> None:
    client = Client()
    asked(client, host="a.example,b.example:27018", replica_set="rs", user="u", password="p")
    assert client.parameters["host"] == ["a.example", "b.example:27018"]
    assert client.parameters["tls"] and client.parameters["replicaSet"] == "rs"
    assert (client.parameters["username"], client.parameters["password"]) == ("u", "p")
    asked(client, host="127.0.0.1:27018")
    assert not client.parameters["tls"]
    with pytest.raises(ValueError, match="unencrypted"):
        asked(client, host="a.example", tls=False)
