"""auth_pgsql, auth_mysql: a row becomes a verdict, and no name becomes a query."""

from __future__ import annotations

import ssl
from typing import Any

import psycopg
import pymysql
import pytest

from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk
from mqttd_plugins.auth_mysql import plugin as mysql
from mqttd_plugins.auth_pgsql import plugin as pgsql
from tests.support.authenticating import Asked, comes_and_goes, configured

PLAIN = PasswordHash(algorithm="plain")
ROW = {"username": "alice", "password_hash": "secret", "salt": None, "is_superuser": 0}


class Database:
    """Stands in for a driver: answers each query with what it has for it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.parameters: dict[str, Any] = {}
        self.open = True
        self.broken = False
        self.connections = 0

    def connect(self, **parameters: Any) -> Database:
        self.parameters = parameters
        self.connections += 1
        return self

    def cursor(self) -> Database:
        return self

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def execute(self, query: str, parameters: tuple[Any, ...]) -> None:
        self.asked.append((query, parameters))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        self.rows = answer
        self.description = [(name, None) for name in (answer[0] if answer else ())]

    def fetchmany(self, most: int) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.rows[:most]]

    def close(self) -> None:
        self.open = False


def asked(database: Database, **config: Any) -> Asked:
    return Asked(mysql.AuthMysql(database.connect), mysql.Settings(password_hash=PLAIN, **config))


def test_they_come_and_go_without_a_trace() -> None:
    settings = pgsql.Settings(password_hash=PLAIN)
    comes_and_goes(lambda: configured(pgsql.AuthPgsql(Database().connect), settings))
    other = mysql.Settings(password_hash=PLAIN)
    comes_and_goes(lambda: configured(mysql.AuthMysql(Database().connect), other))


def test_a_row_with_the_password_lets_its_user_in() -> None:
    database = Database([ROW])
    assert asked(database)("alice") == AuthOk(username="alice")
    assert database.asked == [
        (
            "SELECT username, password_hash, salt, is_superuser FROM mqtt_user WHERE username = %s",
            ("alice",),
        )
    ]


@pytest.mark.parametrize("name", ["' OR 1=1 -- ", "%s", "%(x)s", "\\", "${username}"])
def test_a_name_is_a_parameter(name: str) -> None:
    database = Database()
    assert isinstance(asked(database)(name), AuthError)
    ((query, parameters),) = database.asked
    assert parameters == (name,) and name not in query.replace("%s", "", 1)


def test_rules_come_with_the_verdict_once_the_password_was_right() -> None:
    rules = [{"permission": "allow", "action": "publish", "topic": 'a/"%u"'}]
    config = {"acl_query": "SELECT * FROM acl WHERE u = ${username} AND cn = ${cert_common_name}"}
    database = Database([ROW | {"username": "Alice", "is_superuser": 1}], rules)
    verdict = asked(database, **config)("alice")
    assert verdict == AuthOk(
        True, '{allow, all, publish, ["a/\\x{22}%u\\x{22}"]}.', username="Alice"
    )
    assert database.asked[1][1] == ("Alice", None)
    database = Database([ROW], rules)
    assert isinstance(asked(database, **config)("alice", b"wrong"), AuthError)
    assert len(database.asked) == 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([ROW, ROW], "more than one row"),
        ([ROW | {"password_hash": None}], "no password hash"),
        ([{"id": 1}], "no password hash"),
        ([ROW | {"password_hash": "other"}], "bad user name"),
    ],
)
def test_a_row_that_does_not_do_refuses(rows: Any, reason: str) -> None:
    verdict = asked(Database(rows))("alice")
    assert isinstance(verdict, AuthError) and reason in verdict.reason


def test_rules_that_are_not_understood_refuse_the_client_and_nobody_else() -> None:
    bad = [{"permission": "deny", "action": "publish", "topic": "a/#/b"}]
    verdict = asked(Database([ROW], bad), acl_query="SELECT 1")("alice")
    assert isinstance(verdict, AuthError) and "rule 1: topic" in verdict.reason


def test_a_name_that_the_data_base_cannot_take_is_one_that_it_does_not_know() -> None:
    verdict = asked(Database(pymysql.DataError("'x' is no number")))("x")
    assert isinstance(verdict, AuthError)
    assert asked(Database(), unknown="ignore")("nobody") is AUTH_IGNORE


def test_a_data_base_that_is_gone_is_a_failure_and_the_next_question_connects_again() -> None:
    database = Database(pymysql.OperationalError(2013, "gone"), [ROW], [ROW])
    asking = asked(database)
    with pytest.raises(pymysql.OperationalError):
        asking("alice")
    assert asking("alice") == asking("alice") == AuthOk(username="alice")
    assert database.connections == 2


def test_a_client_without_what_the_query_asks_for_is_not_its_business() -> None:
    database = Database()
    asking = asked(database, query="SELECT 1 WHERE cn = ${cert_common_name} AND u = %u")
    assert asking("alice") is AUTH_IGNORE
    assert asking(None, cert_common_name="x") is AUTH_IGNORE
    assert isinstance(asking("alice", None, cert_common_name="x"), AuthError)
    assert isinstance(asking("a" * 5000, cert_common_name="x"), AuthError)
    assert database.asked == []
    asking("alice", cert_common_name="x")
    assert database.asked[0][1] == ("x", "alice")


def test_a_server_elsewhere_is_encrypted_and_verified_by_default() -> None:
    database = Database()
    asked(database, host="db.example")("alice")
    context = database.parameters["ssl"]
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    asked(database, host="127.0.0.1")("alice")
    assert database.parameters["ssl_disabled"]
    database = Database()
    for host, mode in (("db.example", "verify-full"), ("127.0.0.1", "prefer"), ("/run", "prefer")):
        Asked(pgsql.AuthPgsql(database.connect), pgsql.Settings(host=host, password_hash=PLAIN))(
            "alice"
        )
        assert database.parameters["sslmode"] == mode
    with pytest.raises(ValueError, match=r"'db\.example': .* unencrypted"):
        asked(database, host="db.example", tls=False)
    asked(database, host="db.example", tls=False, plaintext=True)


def test_a_password_may_stand_in_a_file(tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("hush\n")
    database = Database()
    asked(database, password_file=str(tmp_path / "secret"))("alice")
    assert database.parameters["password"] == "hush"
    with pytest.raises(ValueError, match="password_file = .*cannot be read"):
        asked(database, password_file=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="expected one of them") as caught:
        asked(database, password="hush", password_file=str(tmp_path / "secret"))
    assert "hush" not in str(caught.value)


def test_connections_only_read_and_give_up() -> None:
    database = Database()
    Asked(pgsql.AuthPgsql(database.connect), pgsql.Settings(timeout=1.5, password_hash=PLAIN))(
        "alice"
    )
    assert "statement_timeout=1500" in database.parameters["options"]
    assert "default_transaction_read_only=on" in database.parameters["options"]
    assert database.patience == 1.5  # type: ignore[attr-defined]
    assert issubclass(psycopg.errors.InvalidTextRepresentation, psycopg.DataError)
