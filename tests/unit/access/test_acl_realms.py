"""Realms: what begins so is allowed, whatever follows; held against the plain walk of the rules."""

from __future__ import annotations

import pytest

from mqttd.access.acl.rules import AclRules
from mqttd.access.acl_module import AclFile
from mqttd.access.authorization import Authorization
from mqttd.config.schema import Acl, AclShadow
from mqttd.types import Action, ClientInfo, Verdict
from tests.unit.access import reference
from tests.unit.access.test_acl_classes import FLAGS, Says, chain
from tests.unit.access.test_acl_model import Dice
from tests.unit.access.test_acl_rules import client

EVERY = '{allow, all, all, ["dev/%c/#"]}.\n'


def beginning(dice: Dice) -> str:
    """Levels without wildcards, with placeholders among them."""
    words = [word for word in dice.filter(own=0.4).split("/") if word not in ("", "+", "#")]
    return "/".join(words) or "a"


def tails(dice: Dice, wild: bool) -> list[str]:
    """What may follow a realm: each level empty, a word of the rules, or a wildcard."""
    found = []
    for _ in range(8):
        words = [dice.choice(dice.words) for _ in range(dice.choice([1, 2, 3]))]
        if wild and dice.chance(0.5):
            words[0] = "+"
        if wild and dice.chance(0.5):
            words[-1] = "#"
        found.append("/".join(words))
    return found


def hold_against_reference(dice: Dice) -> int:
    """Every realm of some clients under some rules; returns how many questions were asked."""
    text = dice.rules()
    # Allow rules for whatever follows are rare among these: some more of them.
    for _ in range(dice.choice([0, 2, 4])):
        whom = dice.choice(["all", '"alice"', '{ipaddr, "10.0.0.0/8"}'])
        text += f'\n{{allow, {whom}, all, ["{beginning(dice)}/#"]}}.'
    rules = AclRules.from_text(text)
    listed = list(rules.rules)
    asked = 0
    for _ in range(12):
        who = dice.client()
        for publish in (True, False):
            for realm, number in rules.realms(who, publish):
                assert rules.rules[number].allow
                assert realm.endswith("/") if publish else realm.endswith("/") or not realm
                for tail in tails(dice, not publish):
                    topic = realm + tail
                    if not realm and topic.startswith("$"):
                        continue
                    for qos, retain in FLAGS:
                        action = Action("publish" if publish else "subscribe", qos, retain)
                        found = reference.decide(listed, who, action, topic)
                        about = f"{text}\n{who}\n{realm!r} {action} {topic!r}\nrule {found}"
                        assert found >= 0 and listed[found].allow, about
                        asked += 1
    return asked


@pytest.mark.parametrize("seed", range(8))
def test_who_is_left_free_is_denied_no_filter(seed: int) -> None:
    dice = Dice(seed)
    free = 0
    for _ in range(40):
        lines = dice.rules().splitlines()
        text = "\n".join(line for line in lines if line.startswith("{allow") or dice.chance(0.15))
        rules = AclRules.from_text(text)
        for who in [dice.client() for _ in range(6)]:
            if not rules.leaves_free(who):
                continue
            free += 1
            for topic in ["#", "+/#", "+", *tails(dice, True)]:
                if topic.startswith("$"):
                    continue
                for qos in (0, 2):
                    found = reference.decide(
                        list(rules.rules), who, Action("subscribe", qos), topic
                    )
                    assert found < 0 or rules.rules[found].allow, f"{text}\n{who}\n{topic!r}"
    assert free > 40


@pytest.mark.parametrize("seed", range(8))
def test_whatever_begins_as_a_realm_is_allowed(seed: int) -> None:
    dice = Dice(seed)
    assert sum(hold_against_reference(dice) for _ in range(6)) > 200


@pytest.mark.parametrize(
    "rules,realms",
    [
        (EVERY, ["dev/c1/"]),
        ('{allow, all, all, ["dev/%c/#", "u/%u/#", "s/#"]}.', ["dev/c1/", "u/alice/", "s/"]),
        ('{allow, all, all, ["$dev/%c/#"]}.', ["$dev/c1/"]),
        # Not whatever follows, or nobody knows.
        ('{allow, all, all, ["dev/%c", "dev/%c/+", "+/%c/#", "dev/${cn}/#", "#"]}.', []),
        ('{allow, all, {all, [{qos, 0}]}, ["dev/%c/#"]}.', []),
        ('{allow, all, {publish, [{retain, false}]}, ["dev/%c/#"]}.', []),
        ('{allow, all, publish, [{eq, "dev/%c/#"}]}.', []),
        ('{allow, {user, "bob"}, all, ["dev/%c/#"]}.', []),
        # A rule before it that denies anything of it, whatever that asks for.
        ('{deny, all, all, ["dev/+/secret"]}.\n' + EVERY, []),
        ('{deny, all, all, ["dev/c1/a/b/#"]}.\n' + EVERY, []),
        ('{deny, all, {publish, [{qos, 2}]}, ["dev/#"]}.\n' + EVERY, []),
        ('{deny, all, publish, [{eq, "elsewhere"}]}.\n' + EVERY, []),
        ('{deny, all, publish, ["%u/x"]}.\n' + EVERY, ["dev/c1/"]),
        ('{deny, {user, "bob"}}.\n' + EVERY, ["dev/c1/"]),
        ('{deny, all, publish, ["other/#", "$SYS/#"]}.\n' + EVERY, ["dev/c1/"]),
        ('{deny, all, subscribe, ["dev/#"]}.\n' + EVERY, ["dev/c1/"]),
        (EVERY + "{deny, all}.", ["dev/c1/"]),
    ],
)
def test_realms_to_publish_in(rules: str, realms: list[str]) -> None:
    assert [realm for realm, _ in AclRules.from_text(rules).realms(client(), True)] == realms


@pytest.mark.parametrize(
    "rules,realms",
    [
        ("{allow, all}.", [""]),
        ('{allow, all, subscribe, ["#"]}.', [""]),
        ('{deny, all, subscribe, ["$SYS/#"]}.\n{allow, all}.', [""]),
        ('{deny, all, subscribe, ["a/b"]}.\n{allow, all}.', []),
        ('{deny, all, subscribe, [{eq, "#"}]}.\n{allow, all}.', []),
        ('{allow, all, subscribe, ["+"]}.\n' + EVERY, ["dev/c1/"]),
    ],
)
def test_realms_to_subscribe_in(rules: str, realms: list[str]) -> None:
    assert [realm for realm, _ in AclRules.from_text(rules).realms(client(), False)] == realms


@pytest.mark.parametrize("name", ["a/b", "+", "#", "", "a+"])
def test_a_name_that_would_be_a_pattern_has_no_realm(name: str) -> None:
    assert AclRules.from_text(EVERY).realms(client(client_id=name), True) == []


def test_few_realms_are_looked_for() -> None:
    many = "".join(f'{{allow, all, all, ["s{n}/#"]}}.\n' for n in range(100))
    assert len(AclRules.from_text(many).realms(client(), True)) == 8


def test_whose_address_is_not_known_has_none() -> None:
    assert AclRules.from_text(EVERY).realms(client(peerhost=""), True) == []


# -- along the chain


def test_a_realm_is_counted_once() -> None:
    made = chain(EVERY)
    assert made.realms(client()) == ["dev/c1/"]
    assert made.rules().hits == [1]
    (entry,) = made.describe()
    assert (entry["hit"], entry["ok"]) == (1, 1)


def test_who_is_asked_before_the_rules_leaves_no_realms(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = chain(EVERY)
    for name, value in (("superuser", True), ("acl", AclRules(()))):
        who = client()
        setattr(who, name, value)
        assert made.realms(who) == made.listening(who) == []
    made.register("first", Says(Verdict.IGNORE), 0)
    assert made.realms(client()) == []
    (tmp_path / "new.conf").write_text("{deny, all}.\n")
    beside = Authorization(Acl(shadow=AclShadow(file=str(tmp_path / "new.conf"))))
    module = AclFile()
    module.rules = AclRules.from_text(EVERY)
    beside.register("acl", module)
    assert beside.realms(client()) == []


# -- refusals


def counted(made: Authorization) -> tuple[object, ...]:
    return made.denied, made.rules().hits, made.describe()


def test_a_refusal_is_counted_each_time_as_when_it_was_decided() -> None:
    for text in (EVERY, EVERY + '{deny, all, publish, ["x"]}.\n', ""):
        decided, met = chain(text), chain(text)
        action = Action("publish", 1)
        for made in (decided, met):
            assert not made.authorize(client(), action, "x")
        refusal = met.refusal(client(), action, "x")
        assert refusal is not None
        for _ in range(3):
            assert not decided.authorize(client(), action, "x")
            refusal.again()
        assert counted(met) == counted(decided)


def test_what_is_no_refusal_by_rules_is_decided_each_time() -> None:
    action = Action("publish", 1)
    assert chain(EVERY).refusal(client(), action, "dev/c1/a") is None
    assert chain("", "allow").refusal(client(), action, "x") is None
    assert chain(EVERY, after=Verdict.DENY).refusal(client(), action, "x") is None
    who = client()
    who.acl = AclRules.from_text("{deny, all}.")
    assert chain(EVERY).refusal(who, action, "x") is None


def test_random_refusals_are_those_of_decide() -> None:
    found = 0
    for seed in range(40):
        dice = Dice(seed)
        made = chain(dice.rules())
        for _ in range(20):
            who: ClientInfo = dice.client()
            action, topic = dice.request()
            refusal = made.refusal(who, action, topic)
            denied = made.decide(who, action, topic).verdict is Verdict.DENY
            assert (refusal is not None) is denied
            found += denied
    assert found > 100
