"""acl.conf: what its rules mean once read, and where a mistake in it is."""

from __future__ import annotations

import sys
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.access.acl.conf import (
    AclSyntaxError,
    parse_acl,
    read_acl,
)
from mqttd.access.acl.linear_re import LinearRe
from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Or,
    Rule,
    Topic,
    User,
    Who,
)

BOTH = frozenset({"publish", "subscribe"})
PUBLISH = frozenset({"publish"})
SUBSCRIBE = frozenset({"subscribe"})


def one(text: str) -> Rule:
    (rule,) = parse_acl(text)
    return rule


def test_the_rules_of_the_design_documents() -> None:
    rules = parse_acl(
        """
        %%% -type who() :: all | binary() |
        {allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.

        {allow, {ipaddr, "127.0.0.1"}, pubsub, ["$SYS/#", "#"]}.

        {deny, all, subscribe, ["$SYS/#", {eq, "#"}]}.

        {allow, all}.
        """
    )
    assert [(r.allow, r.who, r.kinds, r.topics, r.line) for r in rules] == [
        (True, User("dashboard"), SUBSCRIBE, (Topic("$SYS/#"),), 3),
        (True, IpAddr((ip_network("127.0.0.1"),)), BOTH, (Topic("$SYS/#"), Topic("#")), 5),
        (False, All(), SUBSCRIBE, (Topic("$SYS/#"), Topic("#", eq=True)), 7),
        (True, All(), BOTH, None, 9),
    ]


@pytest.mark.parametrize(
    "text,who",
    [
        ("all", All()),
        ('"dash board"', User("dash board")),
        ('<<"dashboard">>', User("dashboard")),
        ('{user, "u"}', User("u")),
        ('{username, "u"}', User("u")),
        ('{username, <<"u">>}', User("u")),
        ('{client, "c"}', Client("c")),
        ('{clientid, "c"}', Client("c")),
        ('{ipaddr, "10.1.2.3/8"}', IpAddr((ip_network("10.0.0.0/8"),))),
        ('{ipaddr, "::ffff:10.0.0.0/104"}', IpAddr((ip_network("10.0.0.0/8"),))),
        ('{ipaddrs, ["::1", "10.0.0.1"]}', IpAddr((ip_network("::1"), ip_network("10.0.0.1")))),
        ("""{'and', [{user, "u"}, {client, "c"}]}""", And((User("u"), Client("c")))),
        ("""{'or', [{user, "u"}, {'and', [all, all]}]}""", Or((User("u"), And((All(), All()))))),
    ],
)
def test_who_a_rule_is_about(text: str, who: Who) -> None:
    assert one(f'{{allow, {text}, publish, ["a"]}}.').who == who
    assert one(f"{{deny, {text}}}.").who == who


@pytest.mark.parametrize(
    "text,kinds,qos,retain",
    [
        ("subscribe", SUBSCRIBE, None, None),
        ("publish", PUBLISH, None, None),
        ("pubsub", BOTH, None, None),
        ("all", BOTH, None, None),
        ("{publish, [{qos, 1}, {retain, true}]}", PUBLISH, {1}, True),
        ("{publish, [{qos, [0, 1]}, {retain, false}]}", PUBLISH, {0, 1}, False),
        ("{publish, [{retain, all}]}", PUBLISH, None, None),
        ("{subscribe, [{qos, 2}]}", SUBSCRIBE, {2}, None),
        ("{all, [{qos, 0}]}", BOTH, {0}, None),
    ],
)
def test_what_a_rule_is_about(
    text: str, kinds: frozenset[str], qos: set[int] | None, retain: bool | None
) -> None:
    rule = one(f'{{allow, all, {text}, ["a"]}}.')
    assert (rule.kinds, rule.qos, rule.retain) == (kinds, qos, retain)
    assert one(f"{{allow, all, {text}}}.").topics is None
    assert one(f"{{allow, all, {text}, all}}.").topics is None


def test_placeholders_have_two_spellings() -> None:
    rule = one('{allow, all, publish, ["u/${username}/${clientid}", "u/%u/%c"]}.')
    assert rule.topics == (Topic("u/%u/%c"), Topic("u/%u/%c"))
    rule = one('{allow, all, publish, ["${cert_common_name}/${cn}/${client_attrs.site}"]}.')
    assert rule.topics == (Topic("${cn}/${cn}/${client_attrs.site}"),)


#: The rules that EMQX 5 ships, and each form its documentation names, written out from there.
EMQX_5 = """
%%-------------- Default ACL rules ----------------------------------------

{allow, {username, {re, "^dashboard$"}}, subscribe, ["$SYS/#"]}.

{allow, {ipaddr, "127.0.0.1"}, all, ["$SYS/#", "#"]}.

{deny, all, subscribe, ["$SYS/#", {eq, "#"}, {eq, "+/#"}]}.

{allow, all}.
%% NOTE! when deploy in production:
%% - Change the last rule to `{deny, all}.`
"""
EMQX_5_FORMS = """
{allow, {username, "Jan"}, publish, ["jan/#"]}.
{allow, {user, {re, "^sys"}}, subscribe, ["a"]}.
{allow, {clientid, {re, "^(dev|test)-[0-9]{4}$"}}, all, ["t/${clientid}"]}.
{allow, {client, "c"}, all, ["t"]}.
{deny, {ipaddrs, ["10.0.0.0/8", "192.168.0.1"]}, publish, ["t"]}.
{allow, {'and', [{ipaddr, "127.0.0.1"}, {clientid, "001"}]}, {publish, [{qos, 0}]}, ["t"]}.
{allow, {'or', [{username, "u1"}, {clientid, {re, "^c"}}]}, {subscribe, [{qos, [1, 2]}]}, ["t"]}.
{allow, all, {all, [{qos, 0}, {retain, all}]}, ["${username}/#"]}.
{allow, all, {publish, [{retain, false}]}, [{eq, "t/#"}]}.
{allow, all, publish, ["${cn}/up", "${client_attrs.group}/#"]}.
{deny, all}.
"""


def test_the_file_that_emqx_5_ships_works_unchanged() -> None:
    rules = parse_acl(EMQX_5)
    assert [(r.allow, r.who, r.kinds, r.topics, r.line) for r in rules] == [
        (True, User("dashboard"), SUBSCRIBE, (Topic("$SYS/#"),), 4),
        (True, IpAddr((ip_network("127.0.0.1"),)), BOTH, (Topic("$SYS/#"), Topic("#")), 6),
        (
            False,
            All(),
            SUBSCRIBE,
            (Topic("$SYS/#"), Topic("#", eq=True), Topic("+/#", eq=True)),
            8,
        ),
        (True, All(), BOTH, None, 10),
    ]


def test_every_form_that_emqx_5_documents_is_read() -> None:
    rules = parse_acl(EMQX_5_FORMS)
    assert len(rules) == 11
    assert rules[1].who == Match(LinearRe("^sys"))
    assert rules[2].who == Match(LinearRe("^(dev|test)-[0-9]{4}$"), client=True)
    assert (rules[6].kinds, rules[6].qos) == (SUBSCRIBE, {1, 2})


@pytest.mark.parametrize(
    "pattern,text",
    [("^dashboard$", "dashboard"), (r"^a\.b\-c$", "a.b-c"), ("^$", ""), ("^a b/c$", "a b/c")],
)
def test_an_expression_for_one_text_is_that_text_and_needs_no_engine(
    pattern: str, text: str
) -> None:
    assert LinearRe(pattern).literal == text
    assert LinearRe(pattern).search(text)
    assert not LinearRe(pattern).search(text + "x")
    assert not LinearRe(pattern).search(text + "\n")


def test_other_expressions_run_on_re2() -> None:
    regex = LinearRe("^dev-[0-9]+")
    assert regex.literal is None
    assert regex.search("dev-12x") and not regex.search("xdev-12")
    assert LinearRe("b").search("abc")


def test_without_re2_they_are_refused_and_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(AclSyntaxError, match=r"^acl.conf:1:21: .*pip install 'mqttd\[re2\]'"):
        parse_acl('{allow, {user, {re, "^dev-"}}}.')
    assert len(parse_acl(EMQX_5)) == 4


def test_GHSA_2hjf_7455_w946_an_expression_cannot_be_made_to_run_for_long() -> None:
    regex = LinearRe("^(a+)+$")
    assert not regex.search("a" * 60_000 + "!")  # a backtracking engine takes for ever at 40


def test_eq_keeps_its_text_as_it_is() -> None:
    assert one('{deny, all, subscribe, [{eq, "a/%u/#/+x"}]}.').topics == (
        Topic("a/%u/#/+x", eq=True),
    )


def test_texts_know_the_escapes_of_erlang() -> None:
    assert one(r'{allow, "a\"b\\c\x{e9}\x41\101\n\s"}.').who == User('a"b\\cé' + "AA\n ")
    assert one('{allow, "größe/温度"}.').who == User("größe/温度")


def test_a_percent_sign_in_a_text_starts_no_comment() -> None:
    assert one('{allow, "50%"}. % {deny, all}.').who == User("50%")


def test_one_rule_may_fill_many_lines_and_one_line_many_rules() -> None:
    rules = parse_acl('{allow,\n  all,\n\tpublish, ["a",\r\n "b"]\n}\n.{deny,all}.')
    assert [rule.line for rule in rules] == [1, 5 + 1]
    assert str(rules[0]) == 'acl.conf:1 {allow, all, publish, ["a", "b"] }'


@pytest.mark.parametrize("text", ["", "\n\n", "%% nothing", "\ufeff%% with a mark"])
def test_CVE_2018_12550_a_text_without_rules_allows_nothing(text: str) -> None:
    assert parse_acl(text) == []


@pytest.mark.parametrize(
    "text,place,fault",
    [
        ("{allow, all}", "1:13", "found end of file, expected '.' after the rule"),
        ("{allow, all}\n{deny, all}.", "1:13", "found end of line, expected '.' after the rule"),
        ("{allow,\n all} % yes\n\n{deny, all}.", "2:6", "found end of line, expected '.' after"),
        ("{allow, all}\n\n", "1:13", "found end of file, expected '.' after the rule"),
        ("{allow, all} {deny, all}.", "1:14", "found {, expected '.' after the rule"),
        ("{allow all}.", "1:8", "found all, expected ',' or '}'"),
        ("{allow, all].", "1:12", "found ], expected ',' or '}'"),
        ("{allow, }.", "1:9", "found }, expected a name, a text, '{' or '['"),
        ("allow all.", "1:7", "found all, expected '.' after the rule"),
        ("allow.", "1:1", "found allow, expected a rule like {allow, WHO, ACCESS, [TOPIC, ...]}"),
        ("{}.", "1:1", "found {}, expected a rule"),
        ("{allow}.", "1:1", "found {allow}, expected a rule"),
        ('{allow, all, publish, ["a"], x}.', "1:1", "expected a rule"),
        ("{permit, all}.", "1:2", "found permit, expected allow or deny"),
        ('{"allow", all}.', "1:2", 'found "allow", expected allow or deny'),
        ("{allow, All}.", "1:9", "found A, expected a rule like"),
        ("{allow, everyone}.", "1:9", "found everyone, expected all, {user"),
        ('{allow, {usr, "x"}}.', "1:10", "found usr, expected user, client, ipaddr"),
        ("{allow, {user, bob}}.", "1:16", "found bob, expected a user name as text"),
        ("{allow, {user, all}}.", "1:16", "everybody is: all"),
        ('{allow, {user, {re, "a("}}}.', "1:21", "expected a regular expression that RE2 knows"),
        (r'{allow, {user, {re, "(a)\\1"}}}.', "1:21", "expected a regular expression that RE2"),
        (
            "{allow, {user, {re, x}}}.",
            "1:21",
            'expected an expression as text, as in {re, "^dev-"}',
        ),
        ('{allow, all, publish, [{re, "^x"}]}.', "1:24", "expected a topic filter as text"),
        ('{allow, all, publish, ["${client_attrs.a b}"]}.', "1:24", "expected no placeholder but"),
        ('{allow, {ipaddr, "10.0.0.300"}}.', "1:18", 'found "10.0.0.300", expected an address'),
        ('{allow, {ipaddr, "10.0.0.0/33"}}.', "1:18", "expected an address or network"),
        ('{allow, {ipaddrs, "10.0.0.1"}}.', "1:19", "expected a list that is not empty"),
        ("{allow, {'and', []}}.", "1:17", "found [], expected a list that is not empty"),
        ("{allow, all, write}.", "1:14", "found write, expected subscribe, publish, pubsub"),
        ("{allow, all, {publish, [{qos, 3}]}}.", "1:31", "found 3, expected 0, 1, 2 or a list"),
        ("{allow, all, {publish, [{qos, []}]}}.", "1:31", "expected 0, 1, 2 or a list"),
        ("{allow, all, {publish, [{retain, 1}]}}.", "1:34", "expected true, false or all"),
        ("{allow, all, {publish, [retain]}}.", "1:25", "found retain, expected {qos, 0..2}"),
        ("{allow, all, {subscribe, [{retain, true}]}}.", "1:15", "has no retain flag"),
        ('{allow, all, publish, "a"}.', "1:23", 'found "a", expected a list of topics'),
        ("{allow, all, publish, []}.", "1:23", "found [], expected at least one topic"),
        ("{allow, all, publish, [a]}.", "1:24", "found a, expected a topic filter as text"),
        ('{allow, all, publish, ["a", "b/#/c"]}.', "1:29", "expected a topic filter: "),
        ('{allow, all, publish, ["a+"]}.', "1:24", "expected a topic filter: "),
        ('{allow, all, publish, [""]}.', "1:24", "expected a topic filter: "),
        ('{allow, all, publish, ["a/${host}"]}.', "1:24", "expected no placeholder but"),
        ('{allow, all, subscribe, ["$share/g/a"]}.', "1:26", "expected the real filter"),
        ("{allow, all, publish, [{eq, a}]}.", "1:29", "expected a text, as in {eq"),
        ('{allow, "bob}.\n{deny, all}.', "1:9", 'found text without an end, expected a closing "'),
        (r'{allow, "a\xzz"}.', "1:11", "expected an escape"),
        (r'{allow, "a\x{d800}"}.', "1:11", "expected the code of a character"),
        ('{allow, <<"a">}.', "1:14", "found >, expected"),
        ('{allow, <<"a"}.', "1:14", "found }, expected '>>'"),
        ("{allow, all, {publish, [{dup, true}]}}.", "1:26", "found dup, expected qos or retain"),
        ("-include(x).", "1:1", "found -, expected a rule like {allow, all}."),
        ("%% fine\n\n  {allow, ?}.", "3:11", "found ?, expected"),
        ("{" * 40, "1:18", "expected at most 16 nested terms"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_column(text: str, place: str, fault: str) -> None:
    with pytest.raises(AclSyntaxError) as caught:
        parse_acl(text, "etc/acl.conf")
    message = str(caught.value)
    assert message.startswith(f"etc/acl.conf:{place}: found ")
    assert fault in message
    assert "\n" not in message


def test_one_mistake_refuses_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "acl.conf"
    path.write_text("{allow, all}.\n{deny all}.\n")
    with pytest.raises(AclSyntaxError, match=r"acl\.conf:2:7: "):
        read_acl(path)


def test_all_mistakes_of_a_file_are_told_each_with_its_place() -> None:
    text = """\
# no comment here
{allow, {user, ann}, publish, ["a"]}.
{allow,
 {user, "bob"}, pub}.
{allow, all}
{alow, all}.
{deny, all, all, ["a/#/b", "c]}.
{deny, all}.
user ann
topic read a/#
"""
    with pytest.raises(AclSyntaxError) as caught:
        parse_acl(text)
    assert [mistake.partition(", expected")[0] for mistake in caught.value.mistakes] == [
        "acl.conf:1:1: found #",
        "acl.conf:2:16: found ann",
        "acl.conf:4:17: found pub",
        "acl.conf:5:13: found end of line",
        "acl.conf:6:2: found alow",
        "acl.conf:7:28: found text without an end",
        "acl.conf:9:1: found user ann",
    ]
    assert "begins with %" in caught.value.mistakes[0]
    assert "mqttd-ctl import" in caught.value.mistakes[-1]
    assert str(caught.value) == "; ".join(caught.value.mistakes)
    with pytest.raises(AclSyntaxError) as caught:
        parse_acl("{alow, all}.\n" * 30)
    assert len(caught.value.mistakes) == 21
    assert caught.value.mistakes[-1] == "acl.conf: 10 more mistakes"


def test_a_file_that_is_missing_or_no_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="acl.conf"):
        read_acl(tmp_path / "acl.conf")
    (tmp_path / "acl.conf").write_bytes(b"{allow, all}. \xff")
    with pytest.raises(AclSyntaxError, match=r"acl\.conf:1:1: expected UTF-8 text"):
        read_acl(tmp_path / "acl.conf")


@settings(deadline=None)
@given(st.text(alphabet="{}[],.\"'<>%\\ \nalowdenyuser/+#0129$ü", max_size=60))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    try:
        parse_acl(text)
    except AclSyntaxError:
        pass
