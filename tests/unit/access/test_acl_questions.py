"""What an operator asks the rules: why, who, what is suspicious, what would change."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.access.acl import reverse
from mqttd.access.acl.conf import AclSyntaxError
from mqttd.access.acl.filters import covers, meet
from mqttd.access.acl.lint import lint
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.shadow import MAX_PAIRS, SAMPLE_SECONDS, Shadow
from mqttd.access.authorization import Authorization, PromoteError
from mqttd.access.chain import AccessControl
from mqttd.access.child import Looking
from mqttd.access.diff import Difference, Held
from mqttd.access.process import RulesError, RulesProcess
from mqttd.access.questions import AclQuestions
from mqttd.codec.topic import match
from mqttd.config.schema import Acl, AclShadow, Auth, Config
from mqttd.types import Action, ClientInfo, Decision, Verdict

PUBLISH, SUBSCRIBE = Action("publish"), Action("subscribe")

RULES = """
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "10.9.0.0/16"}, publish, ["plant/#"]}.
{deny, all, publish, ["plant/secret"]}.
{allow, all, {publish, [{qos, [0, 1]}, {retain, false}]}, ["plant/%u/up", "a/${client_attrs.x}"]}.
{allow, {client, {re, "^dev-"}}, subscribe, ["plant/+/up", {eq, "x/#"}]}.
{deny, all}.
"""


def client(
    username: str | None = "bob", client_id: str = "c1", peer: str = "10.0.0.1"
) -> ClientInfo:
    return ClientInfo(client_id, username, peer, 1, "tcp:default", 5)


class Here:
    """As a `RulesProcess`, without a process."""

    def __init__(self) -> None:
        self.looking = Looking()

    def ask(self, do: str, **asked: Any) -> Any:
        asked = msgspec.json.decode(msgspec.json.encode({"do": do, **asked}))
        return msgspec.json.decode(msgspec.json.encode(self.looking.answer(asked)))


class Site:
    """Access control with its files in a directory."""

    def __init__(
        self, path: Path, rules: str = RULES, shadow: str | None = None, **more: Any
    ) -> None:
        self.live, self.candidate = path / "acl.conf", path / "new.conf"
        self.live.write_text(rules)
        if shadow is not None:
            self.candidate.write_text(shadow)
            more["shadow"] = AclShadow(file=str(self.candidate))
        self.events: list[tuple[str, dict[str, object]]] = []
        self.access = AccessControl(
            Config(acl=Acl(file=str(self.live), **more), auth=Auth(chain=())),
            on_event=lambda event, fields: self.events.append((event, fields)),
        )

    @property
    def ask(self) -> AclQuestions:
        return self.access.questions

    def diff(self, text: str, held: list[Held]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        process: Any = Here()
        self.ask.read(process, text, "new.conf", found)
        deque(self.ask.diff(held, self.ask.asked(process, held), found), 0)
        return found

    def explain(self, who: ClientInfo, action: Action, topic: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(json.dumps(self.ask.explain(who, action, topic)))
        assert told["allowed"] is (self.access.decide(who, action, topic).verdict is Verdict.ALLOW)
        assert told["rule"] == self.access.decide(who, action, topic).rule
        return told

    def why(self, who: ClientInfo, action: Action, topic: str) -> list[str]:
        return [step["reason"] for step in self.explain(who, action, topic)["steps"]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- explain


def test_explaining_names_the_rule_and_why_each_earlier_one_did_not_match(site: Site) -> None:
    told = site.explain(client(), Action("publish", 2), "plant/bob/up")
    assert not told["allowed"]
    assert told["rule"] == f"{site.live}:7 {{deny, all}}"
    assert [step["reason"] for step in told["steps"]] == [
        "is about subscribe only",
        "is about 10.9.0.0/16, not 10.0.0.1",
        '"plant/secret" does not match "plant/bob/up"',
        "is about QoS 0, 1, asked is QoS 2",
        "is about subscribe only",
        "",
    ]
    assert [step["matched"] for step in told["steps"]] == [False] * 5 + [True]


@pytest.mark.parametrize(
    "who,action,topic,number,text",
    [
        (client(), SUBSCRIBE, "$SYS/x", 0, 'is about user "dashboard", not "bob"'),
        (client(None), SUBSCRIBE, "$SYS/x", 0, "the client gave no user name"),
        (client("b", "dev-1"), SUBSCRIBE, "plant/#", 4, 'covers only a part of "plant/#"'),
        (client("dashboard"), SUBSCRIBE, "a", 0, '"$SYS/#" does not cover "a"'),
        (
            client(),
            PUBLISH,
            "plant/eve/up",
            3,
            '"plant/%u/up" (here "plant/bob/up") does not match',
        ),
        (client(), PUBLISH, "plant/eve/up", 3, "needs a value that this client does not have"),
        (client("a/b"), PUBLISH, "plant/a/b/up", 3, "must not stand in a topic"),
        (client(), Action("publish", 0, True), "plant/bob/up", 3, "messages without RETAIN"),
        (client(), SUBSCRIBE, "plant/1/up", 4, 'client identifier "c1" does not match ^dev-'),
        (client("b", "dev-1"), SUBSCRIBE, "x/+", 4, '"x/+" is not the text "x/#"'),
    ],
)
def test_the_reason_says_what_did_not_fit(
    site: Site, who: ClientInfo, action: Action, topic: str, number: int, text: str
) -> None:
    assert text in site.why(who, action, topic)[number]


def test_the_whole_chain_is_explained(tmp_path: Path) -> None:
    site = Site(tmp_path, '{allow, {user, "eve"}}.\n')
    told = site.explain(client(), PUBLISH, "a")
    assert told["steps"][-1]["rule"] == 'no rule matched: acl.nomatch = "deny"'
    boss = client()
    boss.superuser = True
    assert site.explain(boss, PUBLISH, "a")["steps"] == [
        {"module": "", "rule": "superuser", "matched": True, "reason": ""}
    ]
    own = client()
    own.acl = AclRules.from_text('{deny, all, publish, ["b"]}.\n{allow, all}.', "<rules from jwt>")
    told = site.explain(own, PUBLISH, "a")
    assert told["rule"] == "<rules from jwt>:2 {allow, all}"
    assert [step["module"] for step in told["steps"]] == ["client", "client"]


def test_explaining_counts_nothing(site: Site) -> None:
    before = site.access.describe()
    site.ask.explain(client(), PUBLISH, "a")
    assert site.access.describe() == before
    assert all(rule["hits"] == 0 for rule in site.ask.rules())
    site.access.decide(client(), PUBLISH, "a")
    assert [rule["hits"] for rule in site.ask.rules()] == [0, 0, 0, 0, 0, 1]


# -- who


def who(site: Site, topic: str, kind: str, *clients: ClientInfo) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in site.ask.who(topic, kind, clients, found):
        pass
    return found


def test_who_may_names_the_rules_and_the_clients(site: Site) -> None:
    near, far = client("eve", "near", "10.9.0.1"), client("bob", "far")
    stranger = client(None, "stranger")
    found = who(site, "plant/#", "publish", near, far, stranger)
    assert [(rule["rule"].split(":")[1][0], rule["parts"]) for rule in found["rules"]] == [
        ("3", ["plant/#"]),
        ("5", ["plant/%u/up"]),
    ]
    assert found["rules"][1]["but"] == []
    assert [(one["client_id"], one["parts"]) for one in found["clients"]] == [
        ("near", ["plant/#"]),
        ("far", ["plant/bob/up"]),
    ]
    assert who(site, "plant/secret", "publish", near)["count"] == 1
    assert who(site, "plant/secret", "publish", far)["clients"] == []
    assert who(site, "$SYS/#", "subscribe", near, client("dashboard"))["count"] == 1


def test_who_may_sees_denials_before_and_says_what_they_take(tmp_path: Path) -> None:
    site = Site(
        tmp_path,
        '{deny, all, subscribe, ["a/b/#"]}.\n{deny, {user, "eve"}, all, ["a/c"]}.\n'
        '{allow, all, subscribe, ["a/#", "a/b/x"]}.\n',
    )
    found = who(site, "a/+", "subscribe", client("bob"), client("eve"))
    assert [len(one["but"]) for one in found["clients"]] == [1, 2]
    assert who(site, "a/b/+", "subscribe", client("bob"))["clients"] == []
    assert who(site, "a/c", "subscribe", client("bob"), client("eve"))["count"] == 1


def test_each_step_compares_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rules there are; each that allows is compared with those before it."""
    count = 0

    def counted(compare: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        def compared(a: str, b: str) -> Any:
            nonlocal count
            count += 1
            return compare(a, b)

        return compared

    monkeypatch.setattr(reverse, "meet", counted(meet))
    monkeypatch.setattr(reverse, "covers", counted(covers))
    many = range(60)
    site = Site(
        tmp_path,
        "".join(f'{{deny, all, publish, ["a/{n}"]}}.\n' for n in many)
        + "".join(f'{{allow, {{user, "u{n}"}}, publish, ["a/#", "a/{n}"]}}.\n' for n in many),
    )
    found: dict[str, Any] = {}
    steps: list[int] = []
    for _ in site.ask.who("a/+", "publish", [client("u59"), client("nobody")], found):
        steps.append(count)
        count = 0
    assert sum(steps) > len(many) ** 2
    assert max(steps) < 300
    assert [len(each["but"]) for each in found["rules"]] == [len(many)] * len(many)
    assert [(one["client_id"], one["parts"]) for one in found["clients"]] == [("c1", ["a/+"])]


def test_rules_of_many_topics_are_compared_in_steps_and_some_that_deny_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def counted(a: str, b: str) -> bool:
        nonlocal count
        count += 1
        return covers(a, b)

    monkeypatch.setattr(reverse, "covers", counted)
    topics, denies = 300, reverse.MAX_BUT + 50
    some = ", ".join(f'"a/{n}"' for n in range(topics))
    others = ", ".join(f'"a/{n}/x"' for n in range(topics))
    site = Site(
        tmp_path,
        f"{{deny, all, publish, [{others}]}}.\n"
        + '{deny, {user, "x"}, publish, ["a/1"]}.\n' * denies
        + f"{{allow, all, publish, [{some}]}}.\n",
    )
    found: dict[str, Any] = {}
    steps: list[int] = []
    for _ in site.ask.who("a/#", "publish", [client()], found):
        steps.append(count)
        count = 0
    assert max(steps) <= 2 * topics < sum(steps)
    assert [len(each["but"]) for each in found["rules"]] == [reverse.MAX_BUT]
    assert len(found["clients"][0]["parts"]) == topics


def test_superusers_and_an_open_end_are_told_too(tmp_path: Path) -> None:
    site = Site(tmp_path, '{deny, {user, "eve"}}.\n', nomatch="allow")
    boss = client()
    boss.superuser = True
    found = who(site, "a", "publish", boss, client("eve"), client("x"))
    assert [one["rule"] for one in found["clients"]] == ["superuser", "no rule"]
    assert found["nomatch"] == "allow"


# -- filters

FILTERS = st.builds(
    lambda words, tail: "/".join([*words, *tail]) or "+",
    st.lists(st.sampled_from(["a", "b", "$x", "+"]), max_size=3),
    st.sampled_from([[], ["#"]]),
)
TOPICS = [
    "/".join(words) for n in (1, 2, 3, 4) for words in itertools.product(["a", "b", "$x"], repeat=n)
]


@settings(deadline=None)
@given(FILTERS, FILTERS)
def test_meeting_and_covering_mean_what_they_say_topic_by_topic(a: str, b: str) -> None:
    of_a = {topic for topic in TOPICS if match(topic, a)}
    of_b = {topic for topic in TOPICS if match(topic, b)}
    shared = meet(a, b)
    assert ({topic for topic in TOPICS if shared and match(topic, shared)}) == of_a & of_b
    if covers(a, b):
        assert of_b <= of_a


# -- lint


def kinds(text: str, nomatch: str = "deny") -> list[tuple[int, str]]:
    return [(f.rule.line, f.kind) for f in lint(AclRules.from_text(text), nomatch)]


@pytest.mark.parametrize(
    "text,found",
    [
        ('{allow, {user, "a"}, publish, ["x"]}.\n{deny, all}.', []),
        ('{allow, {user, "a"}}.\n{deny, {user, "a"}, publish, ["x"]}.', [(2, "shadowed")]),
        ('{deny, {user, "a"}, all, ["x/#"]}.\n{allow, {user, "a"}, all, ["x/y", "x"]}.',
         [(2, "shadowed")]),
        ('{deny, {user, "a"}, all, ["x/#"]}.\n{allow, {user, "a"}, all, ["x/y", "z"]}.', []),
        ('{deny, {user, "b"}, all, ["x/#"]}.\n{allow, {user, "a"}, all, ["x/y"]}.', []),
        ('{deny, all, all, ["x/#"]}.\n{deny, {user, "a"}, all, ["x/%u"]}.', [(2, "redundant")]),
        ('{deny, all, all, ["x/%u"]}.\n{deny, {user, "a"}, all, ["x/%u"]}.', [(2, "redundant")]),
        ('{deny, all, {publish, [{qos, 1}]}, ["x"]}.\n{allow, {user, "a"}, publish, ["x"]}.', []),
        ('{deny, {ipaddr, "10.0.0.0/8"}}.\n{allow, {ipaddr, "10.1.0.0/16"}, all, ["x"]}.',
         [(2, "shadowed")]),
        ('{deny, {ipaddr, "10.1.0.0/16"}}.\n{allow, {ipaddr, "10.0.0.0/8"}, all, ["x"]}.', []),
        ("""{deny, {user, "a"}}.\n{allow, {'and', [{user, "a"}, {client, "c"}]}, all, ["x"]}.""",
         [(2, "shadowed")]),
        # Wider filters than the allow rule covers still come to the deny rule.
        ('{allow, {user, "a"}, subscribe, ["p/#"]}.\n{deny, {user, "a"}, subscribe, ["p/s"]}.', []),
        ('{deny, all}.\n{allow, {user, "a"}}.', [(2, "unreachable")]),
        ('{allow, all, subscribe, ["#"]}.', [(1, "wide")]),
        ("{allow, all}.", [(1, "wide"), (1, "sys")]),
        ('{allow, all, subscribe, ["$SYS/#"]}.', [(1, "sys")]),
        ('{allow, {ipaddr, "0.0.0.0/0"}, subscribe, ["$SYS/broker/#"]}.', [(1, "sys")]),
        ('{allow, {client, "c"}, publish, ["x"]}.', [(1, "wide")]),
        ('{allow, "all", publish, ["x"]}.', [(1, "wide")]),
        ('{allow, {user, "a"}, publish, ["x/"]}.', [(1, "wide")]),
        ('{allow, {user, "a"}, publish, ["x/%d"]}.', [(1, "wide")]),
        ('{allow, {ipaddr, "10.0.0.7/8"}, publish, ["x"]}.', [(1, "wide")]),
        ('{deny, all, subscribe, [{eq, "#"}]}.\n{allow, all, subscribe, ["+/#"]}.',
         [(1, "wide"), (2, "wide")]),
        ('{deny, all, subscribe, [{eq, "#"}]}.\n{deny, all}.', []),
    ],
)  # fmt: skip
def test_lint_finds_what_never_decides_and_what_allows_too_much(
    text: str, found: list[tuple[int, str]]
) -> None:
    assert kinds(text) == found


def test_lint_tells_of_an_open_end() -> None:
    assert kinds('{deny, {user, "a"}}.', "allow") == [(1, "sys"), (1, "wide")]


def test_lint_finds_nothing_in_the_shipped_rules() -> None:
    shipped = Path(__file__).parents[3] / "etc" / "acl.conf"
    assert lint(AclRules.from_file(str(shipped))) == []


@pytest.mark.slow
def test_what_lint_calls_shadowed_decides_nothing_in_the_random_model() -> None:
    from tests.unit.access.test_acl_model import Dice

    dice, findings = Dice(7), 0
    for _ in range(60):
        rules = AclRules.from_text(dice.rules())
        never = {
            number
            for number, rule in enumerate(rules.rules)
            for finding in lint(rules)
            if finding.rule is rule and finding.kind in ("shadowed", "redundant", "unreachable")
        }
        findings += len(never)
        for _ in range(200):
            action, topic = dice.request()
            assert rules.first(dice.client(), action, topic) not in never
    assert findings > 20


# -- diff


def test_diff_names_what_clients_would_lose_and_gain(site: Site) -> None:
    new = RULES.replace('{deny, all, publish, ["plant/secret"]}.\n', "").replace(
        '["plant/+/up", {eq, "x/#"}]', '["other/#"]'
    )
    held = [
        (client("bob", "dev-1"), [("plant/+/up", 1), ("gone", 0)], ["plant/bob/up"]),
        (client("eve", "pc", "10.9.0.1"), [], []),
        (client("dashboard", "d"), [("$SYS/#", 0)], []),
    ]
    found = site.diff(new, held)
    changes = {
        (c["client_id"], c["change"], c["action"], c["topic"], c["held"]) for c in found["changes"]
    }
    assert changes == {
        ("dev-1", "loses", "subscribe", "plant/+/up", "subscribed"),
        ("dev-1", "loses", "subscribe", "x/#", ""),
        ("dev-1", "gains", "subscribe", "other/#", ""),
    }
    assert (found["clients"], found["clients_changed"], found["subscriptions_lost"]) == (3, 1, 1)
    assert (found["gains"], found["losses"]) == (1, 2)
    assert (found["rules_added"], found["rules_removed"]) == (1, 2)
    loss = next(c for c in found["changes"] if c["held"])
    assert loss["rule"] == "new.conf:6 {deny, all}"
    assert loss["old_rule"].startswith(f"{site.live}:6 ")


def test_diff_sees_that_the_order_has_changed(tmp_path: Path) -> None:
    first, second = '{deny, all, publish, ["a"]}.\n', "{allow, all}.\n"
    site = Site(tmp_path, first + second)
    found = site.diff(second + first, [(client(), [], [])])
    assert [(c["change"], c["action"], c["topic"]) for c in found["changes"]] == [
        ("gains", "publish", "a")
    ]


def test_diff_of_rules_with_a_mistake_names_it(site: Site) -> None:
    with pytest.raises(AclSyntaxError, match=r"^new\.conf:1:13: "):
        site.diff("{allow, all}", [])


def test_diff_of_many_rules_with_as_many_others_is_quick() -> None:
    """Each of those that differ was looked for among all that there were."""
    old = AclRules.from_text("".join(f'{{allow, all, publish, ["a/{n}"]}}.' for n in range(3000)))
    new = AclRules.from_text("".join(f'{{deny, all, publish, ["b/{n}"]}}.' for n in range(3000)))
    before = time.process_time()
    difference = Difference(old, new)
    assert (difference.removed, difference.added) == (3000, 3000)
    assert time.process_time() - before < 0.5


def test_who_waits_for_a_process_that_takes_too_long_is_told_what_to_do() -> None:
    process = RulesProcess(patience=0.05)
    with pytest.raises(RulesError, match=r"more than 0\.05 s.*mqttd-ctl acl lint FILE"):
        process.ask("lint", text="{allow, all}.\n" * 20_000, name="n", nomatch="deny")
    process.close()
    with pytest.raises(RulesError, match="stops"):
        process.ask("lint", text="", name="n", nomatch="deny")


def test_what_counts_is_the_time_of_a_core_for_one_question() -> None:
    """A machine that is busy answers later; what is made to take long is ended, others go on."""
    text = "".join(f'{{deny, all, subscribe, ["x%u{n}/#"]}}.' for n in range(30_000))
    process = RulesProcess(cpu=1)
    with pytest.raises(RulesError, match="more than 1 s of a core"):
        process.ask("lint", text=text, name="n", nomatch="deny")
    process.close()


def test_questions_that_are_closed_let_go_of_who_waits(site: Site) -> None:
    process = site.ask.process()
    assert process.ask("lint", text="{allow, all}.", name="n", nomatch="deny")["findings"]
    with pytest.raises(AclSyntaxError, match="^n:1:"):
        process.ask("lint", text="{", name="n", nomatch="deny")
    site.access.close()
    with pytest.raises(RulesError):
        process.ask("lint", text="", name="n", nomatch="deny")
    site.ask.end(process)


# -- shadow


def test_the_shadow_never_decides_and_its_differences_are_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, "{allow, all}.\n", '{deny, {user, "bob"}}.\n{allow, all}.\n')
    for _ in range(3):
        assert site.access.authorize(client(), PUBLISH, "a")
    assert site.access.authorize(client("eve"), PUBLISH, "a")
    told = site.ask.shadow()
    assert told is not None
    assert (told["compared"], told["would_deny"], told["would_allow"]) == (4, 3, 0)
    (pair,) = told["differences"]
    assert pair["count"] == 3 and pair["would"] == "deny"
    assert pair["rule"].endswith("acl.conf:1 {allow, all}")
    assert pair["shadow_rule"].endswith('new.conf:1 {deny, {user, "bob"}}')
    # One line in the log for the three of them.
    ((event, fields),) = site.events
    assert event == "acl shadow differs"
    assert fields["would"] == "deny" and fields["topic"] == "a" and fields["username"] == "bob"


def test_what_explains_and_counts_leaves_the_shadow_out(tmp_path: Path) -> None:
    site = Site(tmp_path, "{allow, all}.\n", "{deny, all}.\n")
    site.ask.explain(client(), PUBLISH, "a")
    assert site.ask.shadow()["compared"] == 0  # type: ignore[index]
    assert site.ask.rules()[0]["hits"] == 0


def test_a_shadow_that_asks_for_retain_makes_the_broker_tell_it() -> None:
    assert AclRules.from_text("{deny, all, {publish, [{retain, true}]}}.").depends_on_qos_retain


def test_flags_count_for_the_cache_if_the_shadow_alone_asks_for_them(tmp_path: Path) -> None:
    site = Site(tmp_path, "{allow, all}.\n", "{deny, all, {publish, [{retain, true}]}}.\n")
    assert site.access.depends_on_qos_retain


def test_a_candidate_with_a_mistake_stops_the_start_and_not_a_reload(tmp_path: Path) -> None:
    with pytest.raises(AclSyntaxError, match=r"new\.conf:1:7"):
        Site(tmp_path, RULES, "{deny all}.")
    site = Site(tmp_path, RULES, "{deny, all}.")
    site.candidate.write_text("{deny")
    with pytest.raises(Exception, match=r"shadow: .*new\.conf:1:6"):
        site.access.reload_acl()
    assert site.ask.shadow()["rules"] == 1  # type: ignore[index]


def test_samples_of_one_pair_come_once_a_minute_and_pairs_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "new.conf"
    path.write_text("{deny, all}.")
    now, told = [0.0], []
    shadow = Shadow(str(path), lambda: now[0], told.append)
    live, other = Decision(Verdict.ALLOW, "l"), Decision(Verdict.DENY, "s")
    for _ in range(100):
        shadow.compare(client(), PUBLISH, "a", live, other)
    assert len(told) == 1
    now[0] += SAMPLE_SECONDS
    shadow.compare(client(), PUBLISH, "a", live, other)
    assert [fields["count"] for fields in told] == [1, 101]
    for i in range(MAX_PAIRS + 50):
        shadow.compare(client(), PUBLISH, "a", Decision(Verdict.ALLOW, str(i)), other)
    assert len(shadow.pairs) == MAX_PAIRS
    assert shadow.would_deny == 101 + MAX_PAIRS + 50


# -- promote


def test_promoting_puts_the_candidate_into_force_and_keeps_the_old_rules(tmp_path: Path) -> None:
    site = Site(tmp_path, "{allow, all}.\n", "{deny, all}. % new\n")
    site.live.chmod(0o640)
    assert site.access.authorization.promote() == f"{site.live}.bak"
    assert not site.access.authorize(client(), PUBLISH, "a")
    assert site.live.read_text() == "{deny, all}. % new\n"
    assert Path(f"{site.live}.bak").read_text() == "{allow, all}.\n"
    assert site.live.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["acl.conf", "acl.conf.bak", "new.conf"]
    assert site.ask.shadow()["compared"] == 1  # type: ignore[index]


def test_what_was_not_tried_out_is_not_promoted(tmp_path: Path) -> None:
    site = Site(tmp_path, "{allow, all}.\n", "{deny, all}.\n")
    site.candidate.write_text('{deny, {user, "bob"}}.\n')
    with pytest.raises(PromoteError, match=r"new\.conf has changed since it was read"):
        site.access.authorization.promote()
    assert site.live.read_text() == "{allow, all}.\n"
    with pytest.raises(PromoteError, match=r"acl\.shadow\.file is not set"):
        Authorization(Acl(file="x")).promote()


def test_promoting_into_a_directory_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, "{allow, all}.\n", "{deny, all}.\n")

    def refused(*args: object, **more: object) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(PromoteError, match="the old rules stay in force: .*Permission denied"):
        site.access.authorization.promote()
    assert site.access.authorize(client(), PUBLISH, "a")
    assert site.live.read_text() == "{allow, all}.\n"
