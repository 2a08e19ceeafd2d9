"""Placeholders are values: nothing that a client calls itself is ever text of a query."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.plugins.backends.templates import Query, Template, values_of
from mqttd.testing.conformance import client_info

VALUES = {"username": "u", "clientid": "c", "peerhost": "192.0.2.1"}


@pytest.mark.parametrize(
    ("text", "becomes", "order"),
    [
        ("SELECT a WHERE n = ${username}", "SELECT a WHERE n = %s", ("username",)),
        ("WHERE n='%u' OR c = '${clientid}'", "WHERE n=%s OR c = %s", ("username", "clientid")),
        ("WHERE n = %u AND x % 2 = 1", "WHERE n = %s AND x %% 2 = 1", ("username",)),
        ("WHERE x LIKE 'dev%' AND n=%c", "WHERE x LIKE 'dev%%' AND n=%s", ("clientid",)),
        ("WHERE a = '%a' OR u = '$all'", "WHERE a = %s OR u = '$all'", ("peerhost",)),
        ("WHERE x = 'it''s' AND n = %u", "WHERE x = 'it''s' AND n = %s", ("username",)),
        ("SELECT '{\"a\": 1}'::json, $$x$$ -- all", "SELECT '{\"a\": 1}'::json, $$x$$ -- all", ()),
        ("WHERE cn = ${cert_common_name}", "WHERE cn = %s", ("cert_common_name",)),
    ],
)
def test_a_query_gets_parameters(text: str, becomes: str, order: tuple[str, ...]) -> None:
    query = Query(text, "query")
    assert (query.text, query.order) == (becomes, order)


@pytest.mark.parametrize(
    "text",
    [
        "WHERE n = 'x${username}'",
        "WHERE n = '%u%'",
        'WHERE n = "${username}"',
        "WHERE n = `%u`",
        "WHERE 1 -- n = ${username}",
        "WHERE 1 # n = ${username}",
        "WHERE 1 /* ${username} */",
        "WHERE n = $$ ${username} $$",
        "WHERE n = $q$ ${username} $q$",
        "WHERE n = 'open ${username}",
        r"WHERE n = 'a\' AND c = ${username} AND x = '",
        "WHERE n LIKE ${username}",
        "WHERE n ilike '%u'",
        "WHERE n ~* ${username}",
        "WHERE n REGEXP (${username})",
        "WHERE n = ${user}",
        "WHERE n = ${username",
    ],
)
def test_a_placeholder_that_would_be_text_or_pattern_is_refused_when_loaded(text: str) -> None:
    with pytest.raises(ValueError, match="^acl_query: "):
        Query(text, "acl_query")


@given(st.text())
def test_a_value_is_a_parameter_whatever_is_in_it(name: str) -> None:
    query = Query("SELECT x WHERE n = ${username} AND c = '%c'", "query")
    assert query.parameters({"username": name, "clientid": "c"}) == (name, "c")
    assert query.text == "SELECT x WHERE n = %s AND c = %s"


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_value_is_escaped_once_and_never_looked_at_again(name: str) -> None:
    template = Template("/users/${username}/x?c=%u", "url", short=False)
    made = template.fill({"username": name}, lambda value: quote(value, safe=""))
    assert made == f"/users/{quote(name, safe='')}/x?c=%u"


def test_a_value_with_a_placeholder_in_it_stays_as_it_is() -> None:
    assert Template("a:%u", "key").fill({"username": "${clientid}%c"}) == "a:${clientid}%c"


@pytest.mark.parametrize(
    ("text", "values", "ambiguous"),
    [
        ("k:${username}", {"username": "a:b"}, False),
        ("k:%u:%c", {"username": "a:b", "clientid": "c"}, True),
        ("k:%u:%c", {"username": "a", "clientid": "b:c"}, True),
        ("k:%u:%c", {"username": "a", "clientid": "b"}, False),
        ("k:%u::%c", {"username": "a:", "clientid": "b"}, True),
        ("k:%u%c", {"username": "a", "clientid": "b"}, True),
    ],
)
def test_a_key_that_can_be_read_in_two_ways_is_told(
    text: str, values: dict[str, str], ambiguous: bool
) -> None:
    assert Template(text, "key").is_ambiguous(values) is ambiguous


@given(
    st.tuples(st.text("ab:/", max_size=4), st.text("ab:/", max_size=4)),
    st.tuples(st.text("ab:/", max_size=4), st.text("ab:/", max_size=4)),
)
def test_two_clients_never_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    template = Template("k:%u:/%c", "key")
    keys = []
    for username, client_id in (one, other):
        values = {"username": username, "clientid": client_id}
        keys.append(None if template.is_ambiguous(values) else template.fill(values))
    assert one == other or None in keys or keys[0] != keys[1]


def test_a_client_without_a_value_has_none() -> None:
    assert values_of(client_info("c")) == {"clientid": "c", "peerhost": "192.0.2.1"}
    named = client_info("c", "u", cert_common_name="cn")
    assert values_of(named) == {**VALUES, "cert_common_name": "cn"}
