"""Access rules: which one decides, and that it is the same one however it is looked up."""

from __future__ import annotations

import random
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.access.acl.conf import AclSyntaxError
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.who import parse_address
from mqttd.access.acl_module import AclFile
from mqttd.codec.topic import match
from mqttd.types import Action, ClientInfo, Verdict
from tests.unit.access import reference

ALLOW, DENY, IGNORE = Verdict.ALLOW, Verdict.DENY, Verdict.IGNORE
PUBLISH, SUBSCRIBE = Action("publish"), Action("subscribe")
SHIPPED = Path(__file__).parents[3] / "etc" / "acl.conf"


def client(
    username: str | None = "alice", client_id: str = "c1", peerhost: str = "10.0.0.1"
) -> ClientInfo:
    return ClientInfo(client_id, username, peerhost, 1, "tcp:default", 4)


def verdict(rules: str, action: Action, topic: str, who: ClientInfo | None = None) -> Verdict:
    return AclRules.from_text(rules).decide(who or client(), action, topic).verdict


# -- the rules of the design documents


DESIGN = """
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "127.0.0.1"}, pubsub, ["$SYS/#", "#"]}.
{deny, all, subscribe, ["$SYS/#", {eq, "#"}]}.
{allow, all}.
"""


@pytest.mark.parametrize(
    "who,action,topic,expected",
    [
        (client("dashboard"), SUBSCRIBE, "$SYS/#", ALLOW),
        (client("dashboard"), SUBSCRIBE, "$SYS/broker/+", ALLOW),
        (client("dashboard"), SUBSCRIBE, "#", DENY),
        (client(peerhost="127.0.0.1"), SUBSCRIBE, "#", ALLOW),
        (client(peerhost="127.0.0.1"), SUBSCRIBE, "$SYS/broker/#", ALLOW),
        (client(), SUBSCRIBE, "$SYS/broker/#", DENY),
        (client(), SUBSCRIBE, "$SYS", DENY),
        (client(), SUBSCRIBE, "$SYS/broker/uptime", DENY),
        (client(), SUBSCRIBE, "#", DENY),
        (client(), SUBSCRIBE, "+/#", DENY),
        (client(), SUBSCRIBE, "plant/+", ALLOW),
        (client(), SUBSCRIBE, "plant/#", ALLOW),
        (client(), SUBSCRIBE, "+/broker", ALLOW),
        (client(), PUBLISH, "$SYS/broker", ALLOW),
        (client(), PUBLISH, "plant/1", ALLOW),
    ],
)
def test_the_design_documents_rules_decide_as_they_read(
    who: ClientInfo, action: Action, topic: str, expected: Verdict
) -> None:
    assert verdict(DESIGN, action, topic, who) is expected


def test_the_shipped_file_serves_this_machine_and_denies_all_others() -> None:
    rules = AclRules.from_file(str(SHIPPED))
    for peerhost in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "unix"):
        local = client(None, peerhost=peerhost)
        for action in (PUBLISH, SUBSCRIBE):
            assert rules.decide(local, action, "a/b").verdict is ALLOW
        # What the broker says about itself, nobody says for it.
        assert rules.decide(local, SUBSCRIBE, "$SYS/broker/uptime").verdict is ALLOW
        for topic in ("$SYS/broker/uptime", "$SYS", "$SYS/"):
            assert rules.decide(local, PUBLISH, topic).verdict is DENY
        assert rules.decide(local, SUBSCRIBE, "#").verdict is ALLOW
        assert rules.decide(local, SUBSCRIBE, "$SYS/#").verdict is ALLOW
    for action, topic in product((PUBLISH, SUBSCRIBE), ("a/b", "$SYS/broker/uptime", "x")):
        assert rules.decide(client(), action, topic).verdict is DENY
    assert rules.rules[-1].text == "{deny, all}"
    assert not rules.depends_on_qos_retain


# -- who


@pytest.mark.parametrize(
    "who,matches",
    [
        ("all", True),
        ('"alice"', True),
        ('"c1"', False),
        ('{user, "alice"}', True),
        ('{user, "Alice"}', False),
        ('{client, "c1"}', True),
        ('{client, "alice"}', False),
        ('{ipaddr, "10.0.0.0/8"}', True),
        ('{ipaddr, "10.0.0.1"}', True),
        ('{ipaddr, "10.0.0.2"}', False),
        ('{ipaddr, "::/0"}', False),
        ('{ipaddrs, ["::1", "10.0.0.0/24"]}', True),
        ("""{'and', [{user, "alice"}, {client, "c1"}, {ipaddr, "10.0.0.1"}]}""", True),
        ("""{'and', [{user, "alice"}, {client, "c2"}]}""", False),
        ("""{'or', [{user, "bob"}, {client, "c1"}]}""", True),
        ("""{'or', [{user, "bob"}, {client, "c2"}]}""", False),
        ("""{'and', [all, {'or', [{user, "bob"}, {ipaddr, "10.0.0.0/30"}]}]}""", True),
    ],
)
def test_who_a_rule_matches(who: str, matches: bool) -> None:
    assert verdict(f"{{allow, {who}}}.", PUBLISH, "t") is (ALLOW if matches else IGNORE)


@pytest.mark.parametrize(
    "who,denied",
    [
        ('{ipaddr, "10.0.0.0/8"}', True),
        ('{ipaddrs, ["::1", "192.0.2.1"]}', True),
        ("""{'and', [{user, "alice"}, {ipaddr, "10.0.0.1"}]}""", True),
        ("""{'and', [{user, "bob"}, {ipaddr, "10.0.0.1"}]}""", False),
        ("""{'or', [{user, "bob"}, {ipaddr, "10.0.0.1"}]}""", True),
    ],
)
def test_a_client_whose_address_nobody_knows_any_more_may_be_anywhere(
    who: str, denied: bool
) -> None:
    """After a reset the kernel forgets the address: what was sent before gets past no denial."""
    reset = client(peerhost="")
    assert verdict(f"{{deny, {who}}}. {{allow, all}}.", PUBLISH, "t", reset) is (
        DENY if denied else ALLOW
    )
    assert verdict(f"{{allow, {who}}}.", PUBLISH, "t", reset) is IGNORE
    reset.listener = ""  # not connected: what was allowed stays allowed
    assert verdict(f"{{deny, {who}}}. {{allow, all}}.", PUBLISH, "t", reset) is ALLOW


def test_no_user_name_is_nobodys_user_name() -> None:
    for name in ("", "None", "undefined"):
        assert verdict(f'{{allow, {{user, "{name}"}}}}.', PUBLISH, "t", client(None)) is IGNORE


@pytest.mark.parametrize(
    "peerhost,address",
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("unix", "127.0.0.1"),
        ("/run/mqttd.sock", "127.0.0.1"),
        ("", None),
        ("example.org", None),
    ],
)
def test_the_address_that_rules_see(peerhost: str, address: str | None) -> None:
    found = parse_address(peerhost)
    assert (None if found is None else str(found)) == address


# -- what


def test_the_first_rule_that_matches_decides() -> None:
    rules = '{deny, all, publish, ["a/b"]}. {allow, all, publish, ["a/#"]}. {deny, all}.'
    assert verdict(rules, PUBLISH, "a/b") is DENY
    assert verdict(rules, PUBLISH, "a/c") is ALLOW
    assert verdict(rules, PUBLISH, "a") is ALLOW
    assert verdict(rules, PUBLISH, "b") is DENY
    assert verdict(rules, SUBSCRIBE, "a/c") is DENY


def test_a_filter_is_allowed_only_if_a_rule_covers_all_of_it() -> None:
    rules = '{allow, all, subscribe, ["plant/+/temp", "hall/#"]}.'
    for topic in ("plant/+/temp", "plant/1/temp", "hall", "hall/#", "hall/+", "hall/+/x/#"):
        assert verdict(rules, SUBSCRIBE, topic) is ALLOW, topic
    for topic in ("plant/#", "plant/+/+", "plant/+", "#", "+", "+/#", "hallway", "plant/+/temp/#"):
        assert verdict(rules, SUBSCRIBE, topic) is IGNORE, topic


def test_a_filter_is_denied_if_a_rule_touches_any_of_it() -> None:
    rules = '{deny, all, subscribe, ["plant/secret/#", "a/+/c"]}. {allow, all}.'
    for topic in (
        "plant/secret",
        "plant/#",
        "plant/+",
        "#",
        "+/+",
        "+/secret/x",
        "a/b/c",
        "a/#",
        "a/+/+",
        "+/b/c",
        "plant/secret/x/y",
    ):
        assert verdict(rules, SUBSCRIBE, topic) is DENY, topic
    for topic in ("plant", "plant/open/#", "+", "a/b/d", "a/+/d", "b/#", "a/+/c/d"):
        assert verdict(rules, SUBSCRIBE, topic) is ALLOW, topic


def test_eq_compares_the_text_and_nothing_else() -> None:
    rules = '{allow, all, pubsub, [{eq, "a/#"}, {eq, "b/c"}, {eq, "d/%u"}]}.'
    for topic in ("a/#", "b/c", "d/%u"):
        assert verdict(rules, SUBSCRIBE, topic) is ALLOW
    for topic in ("a/b", "a", "b/+", "d/alice", "#"):
        assert verdict(rules, SUBSCRIBE, topic) is IGNORE
    assert verdict(rules, PUBLISH, "b/c") is ALLOW
    assert verdict(rules, PUBLISH, "a/b") is IGNORE


def test_wildcards_in_the_first_level_say_nothing_about_dollar_topics() -> None:
    assert verdict('{allow, all, pubsub, ["#", "+/broker"]}.', PUBLISH, "$SYS/broker") is IGNORE
    assert verdict('{allow, all, pubsub, ["#"]}.', SUBSCRIBE, "$SYS/#") is IGNORE
    assert verdict('{deny, all, pubsub, ["$SYS/#"]}.', SUBSCRIBE, "#") is IGNORE
    assert verdict('{deny, all, pubsub, ["$SYS/x"]}.', SUBSCRIBE, "+/x") is IGNORE
    assert verdict("{deny, all}.", SUBSCRIBE, "$SYS/#") is DENY


def test_qos_and_retain_narrow_a_rule() -> None:
    text = '{allow, all, {publish, [{qos, [0, 1]}, {retain, false}]}, ["a"]}.'
    assert verdict(text, Action("publish", 0), "a") is ALLOW
    assert verdict(text, Action("publish", 1), "a") is ALLOW
    assert verdict(text, Action("publish", 2), "a") is IGNORE
    assert verdict(text, Action("publish", 1, True), "a") is IGNORE
    assert AclRules.from_text(text).depends_on_qos_retain
    assert not AclRules.from_text('{allow, all, publish, ["a"]}.').depends_on_qos_retain
    both = '{allow, all, {all, [{qos, 1}, {retain, true}]}, ["a"]}.'
    assert verdict(both, Action("subscribe", 1), "a") is ALLOW
    assert verdict(both, Action("subscribe", 2), "a") is IGNORE


# -- placeholders


def test_placeholders_stand_for_the_clients_own_name_and_identifier() -> None:
    rules = '{allow, all, pubsub, ["u/%u/#", "dev-%c/x", "%u/%c"]}.'
    for topic in ("u/alice", "u/alice/x", "dev-c1/x", "alice/c1"):
        assert verdict(rules, PUBLISH, topic) is ALLOW
        assert verdict(rules, SUBSCRIBE, topic) is ALLOW
    assert verdict(rules, SUBSCRIBE, "u/alice/#") is ALLOW
    for topic in ("u/bob", "dev-c2/x", "bob/c1", "u/%u", "dev-%c/x"):
        assert verdict(rules, PUBLISH, topic) is IGNORE
    for topic in ("u/+", "u/#", "+/x", "+/c1"):
        assert verdict(rules, SUBSCRIBE, topic) is IGNORE


@pytest.mark.parametrize("value", ["+", "#", "a/b", "a+", "/", "", "a#"])
def test_CVE_2017_7650_a_value_that_would_widen_an_allow_rule_matches_nothing(value: str) -> None:
    rules = '{allow, all, pubsub, ["u/%u/#", "d/x%c"]}.'
    who = client(value, value)
    for topic in ("u/x", f"u/{value}", "u/a/b", "u/alice/x", "d/x", f"d/x{value}", "d/xa/b"):
        assert verdict(rules, PUBLISH, topic, who) is IGNORE
        assert verdict(rules, SUBSCRIBE, topic, who) is IGNORE


@pytest.mark.parametrize("value", ["+", "#", "a/b", ""])
def test_a_value_that_would_blunt_a_deny_rule_is_denied_all_it_begins_as(value: str) -> None:
    rules = '{deny, all, pubsub, ["u/%u/x"]}. {allow, all}.'
    who = client(value)
    for topic in ("u/a", "u/a/b/x", "u/other/y"):
        assert verdict(rules, PUBLISH, topic, who) is DENY
    assert verdict(rules, PUBLISH, "v/a", who) is ALLOW


def test_a_client_without_a_user_name_has_no_topics_of_its_own() -> None:
    rules = '{deny, all, pubsub, ["u/%u"]}. {allow, all, pubsub, ["%u/#", "u/None"]}.'
    assert verdict(rules, PUBLISH, "u/None", client(None)) is ALLOW
    assert verdict(rules, PUBLISH, "None/x", client(None)) is IGNORE


def test_a_name_that_begins_with_a_dollar_sign_opens_no_broker_topics() -> None:
    rules = '{allow, all, pubsub, ["%u/#", "x/%u"]}.'
    who = client("$SYS")
    assert verdict(rules, PUBLISH, "$SYS/broker", who) is IGNORE
    assert verdict(rules, SUBSCRIBE, "$SYS/#", who) is IGNORE
    assert verdict(rules, PUBLISH, "x/$SYS", who) is ALLOW


def test_a_placeholder_in_a_name_is_not_filled_in_turn() -> None:
    rules = '{allow, all, publish, ["u/%u"]}.'
    assert verdict(rules, PUBLISH, "u/c1", client("%c")) is IGNORE
    assert verdict(rules, PUBLISH, "u/%c", client("%c")) is ALLOW


# -- explaining


def test_a_decision_names_its_rule_and_counts_it() -> None:
    rules = AclRules.from_text("{allow, all, publish}.\n{deny,\n all}.", "etc/acl.conf")
    decision = rules.decide(client(), SUBSCRIBE, "a")
    assert decision.rule == "etc/acl.conf:2 {deny, all}"
    rules.decide(client(), SUBSCRIBE, "b")
    rules.decide(client(), PUBLISH, "b")
    assert rules.hits == [1, 2]
    assert AclRules(()).decide(client(), PUBLISH, "a").rule == "no rule matched"


# -- the file


def test_CVE_2017_7652_a_reload_that_fails_keeps_the_rules_there_were(tmp_path: Path) -> None:
    path = tmp_path / "acl.conf"
    path.write_text('{allow, all, publish, ["a"]}.')
    module = AclFile()
    module.init({"file": str(path)})
    path.write_text("{allow, all}. {deny, all")
    with pytest.raises(AclSyntaxError):
        module.reload_acl()
    path.unlink()
    with pytest.raises(OSError):
        module.reload_acl()
    assert module.check_acl(client(), PUBLISH, "a") is ALLOW
    assert module.check_acl(client(), PUBLISH, "b") is IGNORE
    path.write_text("{deny, all}.")
    module.reload_acl()
    assert module.check_acl(client(), PUBLISH, "a") is DENY
    assert "1 rule in" in module.description()


# -- the same as one rule after the other

NAMES = ["alice", "bob", "c1", "$SYS", "+", "a/b"]
WHO = [
    "all",
    '"alice"',
    '{user, "bob"}',
    '{client, "c1"}',
    '{ipaddr, "10.0.0.0/8"}',
    '{ipaddr, "10.0.0.1"}',
    '{ipaddrs, ["10.0.0.0/24", "fe80::/10"]}',
    """{'and', [{user, "alice"}, {ipaddr, "10.0.0.0/8"}]}""",
    """{'or', [{user, "bob"}, {client, "c1"}]}""",
    """{'and', [{'or', [{user, "bob"}, {user, "alice"}]}, {client, "c1"}]}""",
]
ACCESS = [
    "subscribe",
    "publish",
    "pubsub",
    "{publish, [{qos, 1}, {retain, true}]}",
    "{all, [{qos, [0, 2]}]}",
]
WORDS = st.sampled_from(["a", "b", "", "$SYS", "alice", "c1"])
LEVELS = st.one_of(WORDS, st.just("+"))
OWN = st.sampled_from(["%u", "%c", "a%u", "%c%u", "$%u"])


def filters(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda levels, tail: "/".join([*levels, *tail]) or "+",
        st.lists(words, max_size=4),
        st.sampled_from([[], ["#"]]),
    )


TOPICS = st.lists(WORDS, min_size=1, max_size=5).map("/".join).map(lambda t: t or "a")
RULES = st.one_of(
    st.builds("{{{}, {}}}.".format, st.sampled_from(["allow", "deny"]), st.sampled_from(WHO)),
    st.builds(
        lambda verdict, who, access, topics: f"{{{verdict}, {who}, {access}, [{topics}]}}.",
        st.sampled_from(["allow", "deny"]),
        st.sampled_from(WHO),
        st.sampled_from(ACCESS),
        st.lists(
            st.one_of(
                filters(st.one_of(LEVELS, OWN)).map('"{}"'.format),
                filters(LEVELS).map('{{eq, "{}"}}'.format),
            ),
            min_size=1,
            max_size=3,
        ).map(", ".join),
    ),
)
CLIENTS = st.builds(
    client,
    st.sampled_from([*NAMES, None]),
    st.sampled_from(NAMES),
    st.sampled_from(["10.0.0.1", "10.0.1.1", "fe80::1", "192.168.0.1"]),
)
QUESTIONS = st.one_of(
    st.tuples(st.builds(Action, st.just("publish"), st.integers(0, 2), st.booleans()), TOPICS),
    st.tuples(st.builds(Action, st.just("subscribe"), st.integers(0, 2)), filters(LEVELS)),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(RULES, max_size=12), CLIENTS, st.lists(QUESTIONS, min_size=1, max_size=8))
@pytest.mark.slow
def test_the_index_finds_the_rule_that_a_scan_finds(
    texts: list[str], who: ClientInfo, questions: list[tuple[Action, str]]
) -> None:
    rules = AclRules.from_text("\n".join(texts))
    for action, topic in questions:
        number = reference.decide(list(rules.rules), who, action, topic)
        decision = rules.decide(who, action, topic)
        if number < 0:
            assert decision.verdict is IGNORE
        else:
            assert decision.rule == str(rules.rules[number]), (action, topic)


ALL_TOPICS = ["/".join(levels) for n in (1, 2, 3, 4) for levels in product("ab$", repeat=n)]


@settings(max_examples=300, deadline=None)
@given(filters(st.sampled_from("ab$+")), filters(st.sampled_from("ab$+")))
def test_covering_and_overlapping_mean_what_they_say_topic_by_topic(
    rule_filter: str, asked: str
) -> None:
    allowed = verdict(f'{{allow, all, subscribe, ["{rule_filter}"]}}.', SUBSCRIBE, asked) is ALLOW
    denied = verdict(f'{{deny, all, subscribe, ["{rule_filter}"]}}.', SUBSCRIBE, asked) is DENY
    asked_topics = [topic for topic in ALL_TOPICS if match(topic, asked)]
    both = [topic for topic in asked_topics if match(topic, rule_filter)]
    if allowed:
        assert both == asked_topics, "an allowed filter must match nothing that is not allowed"
    if both:
        assert denied, "a filter that matches a denied topic must be denied"


# -- cost


@pytest.mark.slow
def test_10000_rules_cost_a_decision_no_more_than_100_do() -> None:
    def cost(count: int) -> float:
        rules = AclRules.from_text(
            "\n".join(
                f'{{deny, {{user, "u{i}"}}, pubsub, ["plant/{i}/#"]}}.\n'
                f'{{allow, all, pubsub, ["plant/{i}/+/x"]}}.'
                for i in range(count // 2)
            )
        )
        dice = random.Random(count)
        asked = [
            (client(f"u{dice.randrange(count)}"), f"plant/{dice.randrange(count)}/a/x")
            for _ in range(500)
        ]
        best = float("inf")
        for _ in range(5):
            start = time.thread_time()
            for who, topic in asked:
                rules.decide(who, PUBLISH, topic)
            best = min(best, time.thread_time() - start)
        return best

    # A scan would cost 100 times as much; 10 leaves room for caches that others fill.
    assert cost(10_000) < 10 * cost(100)
