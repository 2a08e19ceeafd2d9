"""Answers for classes of clients: one for all is right for each of them, whatever the rules."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zope.interface import implementer

from mqttd.access.acl.asked import Condition
from mqttd.access.acl.classes import ASK, MAX_CLASSES, MAX_CONDITIONS, Classes
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.topics import Side
from mqttd.access.acl_module import AclFile
from mqttd.access.authorization import Authorization
from mqttd.access.by_listener import AccessByListener
from mqttd.access.chain import AccessControl
from mqttd.config.schema import Acl, AclShadow
from mqttd.interfaces import IAccessControl
from mqttd.types import Action, ClientInfo, Verdict
from tests.unit.access.test_acl_model import NAMES, Dice
from tests.unit.access.test_acl_rules import client

FLAGS = [(qos, retain) for qos in (0, 1, 2) for retain in (False, True)]


@implementer(IAccessControl)
class Says:
    """A module that always says the same."""

    depends_on_qos_retain = False

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def init(self, opts: Any) -> None: ...

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        return self.verdict

    def reload_acl(self) -> None: ...

    def description(self) -> str:
        return "says the same"


def chain(text: str | None, nomatch: str = "deny", after: Verdict | None = None) -> Authorization:
    """The chain with these rules, and perhaps a module behind them."""
    made = Authorization(Acl(nomatch=nomatch))  # type: ignore[arg-type]
    if text is not None:
        module = AclFile()
        module.rules = AclRules.from_text(text)
        made.register("acl", module)
    if after is not None:
        made.register("after", Says(after))
    return made


def judged(text: str, topic: str, who: ClientInfo | None = None, **more: Any) -> int:
    made = chain(text, **more)
    return made.judge(made.class_of(who or client()), 0, False, topic)


# -- the property


def hold_against_decide(dice: Dice) -> int:
    """Whatever is answered for a class is what `decide` says of each of its clients."""
    text = dice.rules() if dice.chance(0.95) else None
    nomatch = dice.choice(["allow", "deny"])
    after = dice.choice([None, None, None, *Verdict])
    made = chain(text, nomatch, after)
    classes: dict[int, list[ClientInfo]] = {}
    for _ in range(25):
        who = dice.client()
        if dice.chance(0.1):
            who.peerhost = ""
        who.superuser = dice.chance(0.05)
        number = made.class_of(who)
        if number < 0:
            assert not made.constant(number)
            assert not made.judge(number, 0, False, "a")
        else:
            assert not who.superuser and who.peerhost
            classes.setdefault(number, []).append(who)
    allowed = 0
    for number, clients in classes.items():
        constant = made.constant(number)
        for _ in range(6):
            topic = "/".join(dice.choice(dice.words) for _ in range(dice.choice([1, 2, 3, 4])))
            for qos, retain in dice.random.sample(FLAGS, 2):
                verdict = made.judge(number, qos, retain, topic)
                assert verdict in (0, 1)
                assert verdict or not constant or topic.startswith("$")
                for who in clients if verdict else []:
                    decision = made.decide(who, Action("publish", qos, retain), topic)
                    about = (
                        f"{text}\n{nomatch} {after}\n{who}\n{topic!r} {qos} {retain}\n{decision}"
                    )
                    assert decision.verdict is Verdict.ALLOW, about
                    allowed += 1
    return allowed


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
@pytest.mark.slow
def test_what_all_clients_of_a_class_may_do_each_of_them_may_do(source: random.Random) -> None:
    dice = Dice(0)
    dice.random, dice.choice = source, source.choice
    hold_against_decide(dice)


def test_the_same_with_more_rules_and_it_is_no_empty_promise() -> None:
    assert sum(hold_against_decide(Dice(seed)) for seed in range(80)) > 3000


# -- what an answer for all covers


@pytest.mark.parametrize(
    "rules,topic,expected",
    [
        ("{allow, all}.", "a", 1),
        ("{deny, all}.", "a", 0),
        ("", "a", 0),
        ('{allow, all, publish, ["a/#"]}.', "a/b", 1),
        ('{allow, all, publish, ["a/#"]}.', "b", 0),
        ('{allow, all, subscribe, ["a/#"]}.', "a/b", 0),
        ('{deny, all, publish, ["a"]}.\n{allow, all}.', "a", 0),
        ('{deny, all, publish, ["a"]}.\n{allow, all}.', "b", 1),
        ('{deny, {user, "bob"}, publish, ["a"]}.\n{allow, all}.', "a", 1),
        ('{deny, {user, {re, "^bob$"}}}.\n{allow, all}.', "a", 1),
        ('{deny, {user, {re, "^ali"}}}.\n{allow, all}.', "a", 0),
        ("""{allow, {'and', [{user, "alice"}, {ipaddr, "10.0.0.0/8"}]}}.""", "a", 1),
        ("""{allow, {'and', [{user, "alice"}, {ipaddr, "::1"}]}}.""", "a", 0),
        # Placeholders: an allow rule is passed over, a deny rule taken for one that matches.
        ('{allow, all, publish, ["%u/#"]}.', "alice/a", 0),
        ('{allow, all, publish, ["%u/#"]}.\n{allow, all, publish, ["+/a"]}.', "alice/a", 1),
        ('{deny, all, publish, ["x/%c"]}.\n{allow, all}.', "x/y", 0),
        ('{deny, all, publish, ["x/%c"]}.\n{allow, all}.', "x", 1),
        ('{allow, all, publish, ["x/y"]}.\n{deny, all, publish, ["x/%c"]}.', "x/y", 1),
    ],
)
def test_a_topic_is_allowed_to_all_of_a_class(rules: str, topic: str, expected: int) -> None:
    assert judged(rules, topic) == expected


def test_flags_of_the_message_are_looked_at() -> None:
    made = chain("{allow, all, {publish, [{qos, [0, 1]}, {retain, false}]}}.")
    number = made.class_of(client())
    assert made.depends_on_qos_retain and not made.constant(number)
    assert [made.judge(number, qos, retain, "a") for qos, retain in FLAGS] == [1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "rules,who,constant",
    [
        ("{allow, all}.", client(), True),
        ("{deny, all}.", client(), False),
        ('{allow, {ipaddr, "10.0.0.0/8"}}.\n{deny, all}.', client(), True),
        ('{allow, {ipaddr, "10.0.0.0/8"}}.\n{deny, all}.', client(peerhost="::1"), False),
        ('{deny, all, subscribe, ["#"]}.\n{allow, all}.', client(), True),
        ('{deny, all, publish, ["a"]}.\n{allow, all}.', client(), False),
        ('{deny, all, publish, ["$SYS/#"]}.\n{allow, all}.', client(), True),
        ('{deny, all, publish, ["$SYS/#", "a"]}.\n{allow, all}.', client(), False),
        ('{deny, {user, "bob"}}.\n{allow, all}.', client(), True),
        ('{deny, {user, {re, "^b"}}}.\n{allow, all}.', client(), True),
        ('{deny, {user, {re, "^b"}}}.\n{allow, all}.', client("bob"), False),
        ("{allow, all, {publish, [{qos, 0}]}}.", client(), False),
        ('{allow, all, publish, ["#"]}.', client(), True),
        ('{allow, all, publish, ["$SYS/#", "+/#"]}.', client(), True),
        ('{allow, all, publish, [{eq, "#"}, "+"]}.', client(), False),
        ('{allow, all, {publish, [{retain, false}]}, ["#"]}.', client(), False),
        ('{deny, all, publish, ["${cn}/a"]}.\n{allow, all}.', client(), False),
    ],
)
def test_a_class_that_may_publish_anything_need_not_be_asked_for(
    rules: str, who: ClientInfo, constant: bool
) -> None:
    made = chain(rules)
    assert made.constant(made.class_of(who)) is constant


@pytest.mark.parametrize("nomatch,expected", [("allow", 1), ("deny", 0)])
def test_where_no_rule_matches_the_end_of_the_chain_decides(nomatch: str, expected: int) -> None:
    denies = '{deny, all, publish, ["a"]}.'
    assert judged(denies, "b", nomatch=nomatch) == expected
    assert judged(denies, "a", nomatch=nomatch) == 0
    for rules in (None, "", '{allow, all, publish, ["a"]}.'):
        made = chain(rules, nomatch)
        assert made.constant(made.class_of(client())) is (expected == 1)


def test_a_module_behind_the_rules_is_asked_where_they_say_nothing() -> None:
    rules = '{allow, all, publish, ["a"]}.'
    for verdict in Verdict:
        assert judged(rules, "a", nomatch="allow", after=verdict) == 1
        assert judged(rules, "b", nomatch="allow", after=verdict) == 0


def test_a_module_before_the_rules_is_asked_for_each_client() -> None:
    made = chain("{allow, all}.")
    made.register("first", Says(Verdict.IGNORE), 0)
    assert made.class_of(client()) == -1
    assert not made.constant(0) and not made.judge(0, 0, False, "a")
    assert made.unregister("first") and made.class_of(client()) == 0


def test_clients_with_rights_of_their_own_are_asked_for_by_themselves() -> None:
    made = chain("{allow, all}.")
    for name, value in (("superuser", True), ("acl", AclRules(())), ("peerhost", "")):
        who = client()
        setattr(who, name, value)
        assert made.class_of(who) == -1


def test_a_candidate_hears_of_every_decision(tmp_path: Path) -> None:
    (tmp_path / "new.conf").write_text("{deny, all}.\n")
    made = Authorization(Acl(shadow=AclShadow(file=str(tmp_path / "new.conf"))))
    assert made.class_of(client()) == -1
    assert made.judge(0, 0, False, "a") == 0


def test_nobody_may_do_anything_when_the_chain_is_closed() -> None:
    made = chain("{allow, all}.", "allow")
    number = made.class_of(client())
    made.close()
    assert not made.constant(number) and not made.judge(number, 0, False, "a")


# -- who is of one class


def test_only_rules_about_publishing_tell_clients_apart() -> None:
    made = chain(
        '{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.\n'
        '{allow, {user, "bob"}, publish, ["b"]}.\n'
        '{allow, {ipaddr, "::1"}, publish, ["i"]}.\n'
        '{allow, all, publish, ["%u/%c/#"]}.\n'
    )
    common = made.class_of(client())
    assert made.class_of(client("dashboard", "d", "10.9.9.9")) == common
    apart = [made.class_of(client("bob")), made.class_of(client(peerhost="::1"))]
    assert made.class_of(client("bob", "another")) == apart[0]
    assert len({common, *apart}) == 3


def test_many_conditions_and_many_classes_are_not_kept() -> None:
    rule = """{allow, {'and', [{user, "u"}, {client, "%d"}]}, publish, ["a"]}.\n"""
    some = chain("".join(rule % number for number in range(MAX_CONDITIONS)))
    many = chain("".join(rule % number for number in range(MAX_CONDITIONS + 1)))
    assert some.class_of(client("u")) >= 0
    assert many.class_of(client("u")) == -1 and many.class_of(client()) >= 0
    nothing: list[Condition | None] = []
    classes = Classes([], nothing)
    for number in range(MAX_CLASSES):
        assert classes.number([Side()], client()) == number
    assert classes.number([Side()], client()) == -1
    assert classes.everything(MAX_CLASSES) == classes.judge(-1, 0, False, "a") == ASK


# -- counters


def test_a_decision_for_a_class_is_counted_once() -> None:
    made = chain('{allow, all, publish, ["a"]}.\n{deny, all}.')
    number = made.class_of(client())
    assert made.judge(number, 0, False, "a") == 1
    assert made.judge(number, 0, False, "b") == 0
    assert made.rules().hits == [1, 0]
    (entry,) = made.describe()
    assert (entry["hit"], entry["ok"], entry["ignore"]) == (1, 1, 0)


def test_a_class_that_may_publish_anything_is_counted_with_its_client() -> None:
    made = chain("{allow, all}.")
    for _ in range(2):
        made.class_of(client())
    assert made.rules().hits == [2]
    silent = chain("", "allow")
    silent.class_of(client())
    assert silent.describe()[0]["ignore"] == 1


# -- listeners


def test_classes_of_listeners_have_numbers_of_their_own(tmp_path: Path) -> None:
    """Rules of a listener never answer for the clients of another."""
    from mqttd.config.load import load

    def access(text: str) -> AccessControl:
        path = tmp_path / f"{len(text)}.conf"
        path.write_text(text)
        config = load(None, {})
        return AccessControl(
            msgspec.structs.replace(config, acl=Acl(file=str(path), nomatch="deny"))
        )

    one = AccessByListener(access('{allow, all, publish, ["common"]}.'), {})
    who = {name: ClientInfo("c", "u", "10.0.0.1", 1, name, 5) for name in ("", "tcp:a", "ssl:b")}
    told: list[str] = []
    one.on_change = lambda: told.append("changed")
    assert {one.class_of(each) for each in who.values()} == {0}
    one.put("tcp:a", access('{allow, all, publish, ["a"]}.\n{deny, all}.'))
    one.put("ssl:b", access('{allow, {user, "u"}}.\n'))
    assert len(told) == 2  # the numbers there were hold no longer
    number = {name: one.class_of(each) for name, each in who.items()}
    assert len(set(number.values())) == 3 and min(number.values()) >= 0
    for name, topic in (("", "common"), ("tcp:a", "a"), ("ssl:b", "b")):
        for other, of in number.items():
            expected = int(other == name or other == "ssl:b")
            assert one.judge(of, 0, False, topic) == expected, (name, other)
    assert [one.constant(of) for of in number.values()] == [False, False, True]
    assert not one.constant(-1) and not one.judge(-1, 0, False, "common")


def test_names_of_the_dice_make_clients_of_several_classes() -> None:
    """The property above is about classes with more than one client."""
    made = chain('{allow, {user, "alice"}, publish, ["a"]}.\n{allow, all, publish, ["b"]}.')
    numbers = [made.class_of(client(name, each)) for name in NAMES for each in NAMES]
    assert sorted(set(numbers)) == [0, 1]


def test_a_hostile_name_behind_a_dollar_is_denied_everything_by_its_class_too() -> None:
    made = chain('{deny, all, all, ["$%u/b"]}.', "allow")
    who = ClientInfo("c", "a/b", "127.0.0.1", 1, "tcp:default", 5)
    action = Action("publish", 0)
    assert made.decide(who, action, "x").verdict is Verdict.DENY
    number = made.class_of(who)
    assert not made.constant(number) and not made.judge(number, 0, False, "x")
