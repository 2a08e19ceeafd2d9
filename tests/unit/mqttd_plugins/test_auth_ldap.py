"""auth_ldap: names are escaped, empty passwords refused, and who binds is who the entry says."""

from __future__ import annotations

import ssl
from typing import Any

import ldap3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ldap3.core.exceptions import LDAPException, LDAPInvalidDnError, LDAPSocketOpenError
from ldap3.utils.dn import parse_dn

from mqttd.types import AUTH_IGNORE, AuthError, AuthOk
from mqttd_plugins.auth_ldap.plugin import (
    Attributes,
    AuthLdap,
    GroupRule,
    Groups,
    Search,
    Settings,
)
from tests.support.authenticating import Asked, comes_and_goes, configured

PEOPLE = "ou=people,dc=x"
ALICE = f"uid=alice,{PEOPLE}"
SEARCH = Search(base=PEOPLE)


class Directory:
    """Stands in for the server: passwords by DN, answers by filter."""

    def __init__(self, **answers: list[dict[str, Any]]) -> None:
        self.passwords = {"cn=mqttd": "searches", ALICE: "secret"}
        self.answers: dict[str, list[dict[str, Any]]] = {
            "(uid=alice)": [entry(ALICE, uid=["alice"])],
            "(objectClass=*)": [entry(ALICE, uid=["alice"])],
            **answers,
        }
        self.bound: list[tuple[str, str]] = []
        self.searched: list[tuple[str, str]] = []
        self.opened: list[Connection] = []
        self.starttls = True
        self.error: Exception | None = None
        self.bind_result: int | None = None
        self.server: dict[str, Any] = {}

    def connect(self, server: Any, **options: Any) -> Connection:
        self.opened.append(Connection(self, options))
        return self.opened[-1]

    def make_server(self, host: str, **options: Any) -> object:
        self.server = {"host": host, **options}
        return object()


class Connection:
    def __init__(self, directory: Directory, options: dict[str, Any]) -> None:
        self.directory = directory
        self.options = options
        self.user, self.password = options["user"], options["password"]
        self.closed = True
        self.encrypted = False
        self.result: dict[str, Any] = {"result": 0, "description": "success"}
        self.response: list[dict[str, Any]] = []

    def open(self) -> None:
        if self.directory.error is not None:
            raise self.directory.error
        self.closed = False

    def start_tls(self) -> bool:
        self.encrypted = self.directory.starttls
        return self.encrypted

    def bind(self) -> bool:
        assert not self.closed
        directory = self.directory
        if not self.user or not self.password:
            return True  # RFC 4513, 5.1: anonymous, and the trap
        directory.bound.append((self.user, self.password))
        fits = directory.passwords.get(self.user) == self.password
        code = directory.bind_result
        self.result = {"result": (0 if fits else 49) if code is None else code, "description": "x"}
        return self.result["result"] == 0

    def search(self, base: str, text: str, **options: Any) -> None:
        self.directory.searched.append((base, text))
        self.response = self.directory.answers.get(text, [])[: options["size_limit"]]
        self.result = {"result": 0, "description": "success"}

    def unbind(self) -> None:
        self.closed = True


def entry(dn: str, **attributes: list[str]) -> dict[str, Any]:
    raw = {name: [value.encode() for value in values] for name, values in attributes.items()}
    return {"type": "searchResEntry", "dn": dn, "raw_attributes": raw}


def asked(directory: Directory, **config: Any) -> Asked:
    if "search" not in config and "user_dn" not in config:
        config["search"] = SEARCH
    return Asked(AuthLdap(directory.connect, directory.make_server), Settings(**config))


def test_it_comes_and_goes_without_a_trace() -> None:
    directory = Directory()
    settings = Settings(search=SEARCH)
    comes_and_goes(lambda: configured(AuthLdap(directory.connect, directory.make_server), settings))
    assert all(connection.closed for connection in directory.opened)


@pytest.mark.parametrize("config", [{}, {"user_dn": f"uid=${{username}},{PEOPLE}"}])
def test_the_directory_checks_the_password(config: dict[str, Any]) -> None:
    asking = asked(Directory(), **config)
    assert asking("alice") == AuthOk(username="alice")
    assert isinstance(asking("alice", b"wrong"), AuthError)
    assert isinstance(asking("bob"), AuthError)


@pytest.mark.parametrize("password", [b"", None, b"\0", b"\0secret", b"\xff"])
def test_an_empty_password_is_refused_without_asking(password: bytes | None) -> None:
    directory = Directory()
    assert isinstance(asked(directory)("alice", password), AuthError)
    assert directory.bound == directory.searched == []


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_a_name_is_one_value_of_a_filter(name: str) -> None:
    directory = Directory()
    asked(directory)(name)
    ((_, text),) = directory.searched[:1]
    assert text.startswith("(uid=") and text.endswith(")")
    assert not set("()*\0") & set(text[5:-1])
    assert text[5:-1].count("\\") == sum(name.count(char) for char in "\\()*\0")


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_a_name_is_one_value_of_a_dn(name: str) -> None:
    directory = Directory()
    asked(directory, user_dn=f"uid=${{username}},{PEOPLE}")(name)
    for dn, _ in directory.bound:
        try:
            parts = parse_dn(dn)
        except LDAPInvalidDnError:
            continue  # refused by the library, and so by the plugin
        assert [part[0] for part in parts] == ["uid", "ou", "dc"]
        assert parts[1][1] == "people"


def test_a_name_that_is_found_twice_or_is_no_dn_is_unknown() -> None:
    both = [entry(ALICE, uid=["alice"]), entry("uid=b", uid=["b"])]
    directory = Directory(**{"(uid=alice)": both})
    assert asked(directory, unknown="ignore")("alice") is AUTH_IGNORE
    directory = Directory()
    directory.error = LDAPInvalidDnError("invalid")
    assert asked(directory, unknown="ignore")("alice") is AUTH_IGNORE


def test_the_client_goes_by_the_name_in_its_entry() -> None:
    found = [entry(ALICE, UID=["al", "alice"])]
    directory = Directory(**{"(uid=ALICE )": found, "(uid=mallory)": found})
    assert asked(directory)("ALICE ") == AuthOk(username="alice")
    verdict = asked(directory)("mallory")
    assert isinstance(verdict, AuthError) and "another name" in verdict.reason


def test_groups_give_rules_and_superusers() -> None:
    groups = Groups(
        base="ou=groups", superusers=("admins",), rules=(
            GroupRule(group="operators", topic="plant/%u/#", action="publish"),
            GroupRule(group="others", topic="#"),
        ),
    )  # fmt: skip
    member = f"(member={ALICE})"
    directory = Directory(**{member: [entry("cn=o", cn=["operators"])]})
    verdict = asked(directory, groups=groups)("alice")
    assert verdict == AuthOk(False, '{allow, all, publish, ["plant/%u/#"]}.', username="alice")
    directory = Directory(**{member: [entry("cn=a", cn=["admins"])]})
    assert asked(directory, groups=groups)("alice") == AuthOk(True, username="alice")
    required = Groups(base="ou=groups", required=("mqtt",))
    assert isinstance(asked(directory, groups=required)("alice"), AuthError)


def test_attributes_of_the_entry_give_rules() -> None:
    own = entry(ALICE, mqttPublishTopic=["a", "b/#"], isSuperuser=["TRUE"], uid=["alice"])
    directory = Directory(**{"(objectClass=*)": [own]})
    wanted = Attributes(publish="mqttpublishtopic", superuser="isSuperuser")
    text = '{allow, all, publish, ["a"]}.\n{allow, all, publish, ["b/#"]}.'
    assert asked(directory, attributes=wanted)("alice") == AuthOk(True, text, username="alice")


def test_connections_are_kept_and_passwords_tried_on_others_than_those_that_search() -> None:
    directory = Directory()
    asking = asked(directory, bind_dn="cn=mqttd", bind_password="searches")
    for _ in range(3):
        assert isinstance(asking("alice"), AuthOk)
    searching, binding = directory.opened
    assert (searching.user, binding.user) == ("cn=mqttd", ALICE)
    searching.closed = binding.closed = True  # the server has had enough
    assert isinstance(asking("alice"), AuthOk)
    assert len(directory.opened) == 4


def test_a_connection_knows_nothing_of_failures_of_others() -> None:
    directory = Directory()
    servers: list[object] = []
    connect = directory.connect

    def connected(server: object, **options: Any) -> Connection:
        servers.append(server)
        return connect(server, **options)

    directory.connect = connected  # type: ignore[method-assign]
    asking = asked(directory)
    directory.error = LDAPSocketOpenError("refused")
    with pytest.raises(LDAPSocketOpenError):
        asking("alice")
    directory.error = None
    assert isinstance(asking("alice"), AuthOk)
    # ldap3's server would pass by the address that has refused for five seconds more.
    assert len(set(map(id, servers))) == len(servers) >= 3


def test_nothing_is_sent_where_starttls_is_refused() -> None:
    directory = Directory()
    directory.starttls = False
    with pytest.raises(LDAPException, match="StartTLS"):
        asked(directory, starttls=True, bind_dn="cn=mqttd", bind_password="x")("alice")
    assert directory.bound == [] and directory.opened[0].closed


def test_a_server_that_cannot_answer_is_a_failure_and_no_wrong_password() -> None:
    directory = Directory()
    directory.bind_result = 51  # busy
    with pytest.raises(LDAPException):
        asked(directory)("alice")
    directory.error = LDAPSocketOpenError("refused")
    with pytest.raises(LDAPSocketOpenError):
        asked(directory)("alice")


def test_certificates_are_verified() -> None:
    directory = Directory()
    asked(directory, url="ldaps://ldap.example")("alice")
    server = directory.server
    assert (server["host"], server["port"], server["use_ssl"]) == ("ldap.example", 636, True)
    assert isinstance(server["tls"], ldap3.Tls) and server["tls"].validate is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"url": "ldap://ldap.example"}, "unencrypted"),
        ({"url": "http://ldap.example"}, "expected ldap://"),
        ({"url": "ldaps://x", "starttls": True}, "encrypted already"),
        ({"user_dn": "uid=${username}", "search": SEARCH}, "expected one of them"),
        ({"user_dn": "uid=alice"}, "expected a placeholder"),
        ({"search": Search(base="x", filter="(uid=${user})")}, r"search\.filter"),
        ({"bind_dn": "cn=x"}, "bind_password"),
        ({"groups": Groups(base="x", rules=(GroupRule(group="g", topic="a/#/b"),))}, "rule 1"),
    ],
)
def test_a_mistake_is_named_when_loaded(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        asked(Directory(), **config)
