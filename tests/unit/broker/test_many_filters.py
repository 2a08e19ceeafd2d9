"""A SUBSCRIBE with many filters: the answers of the rules, whether asked for all or one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.access.acl.rules import AclRules
from mqttd.codec.packets import Publish, Suback, Subscribe, Subscription
from mqttd.types import STOP, Action, ClientInfo, Decision, HookResult, Verdict
from tests.unit.access import reference
from tests.unit.access.test_acl_model import Dice
from tests.unit.access.test_acl_realms import beginning
from tests.unit.admin.node import MemoryClient, make_broker

OWN = '{allow, all, subscribe, ["dev/%c/#"]}.\n'


def codes(client: MemoryClient, *filters: str, qos: int = 0) -> list[int]:
    """What a SUBSCRIBE of these is answered with."""
    client.received()
    client.send(Subscribe(1, [Subscription(one, qos) for one in filters]))
    (answer,) = (one for one in client.received() if isinstance(one, Suback))
    return list(answer.reason_codes)


def hold_against_reference(path: Path, seed: int) -> tuple[int, int]:
    """Many filters at once, some of them shared: how many were granted, and how many not."""
    dice = Dice(seed)
    text = dice.rules()
    for _ in range(3):
        text += f'\n{{allow, all, subscribe, ["{beginning(dice)}/#"]}}.'
    if dice.chance(0.3):
        text += "\n{allow, all}."
    rules = list(AclRules.from_text(text).rules)
    broker = make_broker(path, text)
    granted = refused = 0
    for name in ("alice", "c1"):
        client = MemoryClient(broker, name)
        who = ClientInfo(name, None, "127.0.0.1", 54321, "default", 5)
        filters = [dice.filter() or "a" for _ in range(30)]
        filters += [f"{name}/{dice.filter()}" for _ in range(10)]
        asked = [f"$share/g/{one}" if dice.chance(0.2) else one for one in filters]
        for qos in (0, 1):
            answers = codes(client, *asked, qos=qos)
            for one, code in zip(filters, answers, strict=True):
                found = reference.decide(rules, who, Action("subscribe", qos), one)
                may = found >= 0 and rules[found].allow
                assert (code == qos) is may, f"{text}\n{name} {one!r} {code}"
                granted += may
                refused += not may
    return granted, refused


def test_answers_are_those_of_the_rules(tmp_path: Path) -> None:
    both = [hold_against_reference(tmp_path, seed) for seed in range(20)]
    assert sum(each[0] for each in both) > 300 and sum(each[1] for each in both) > 300


def test_the_rules_are_asked_once_for_all_of_many_filters(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    client = MemoryClient(broker, "c")
    assert codes(client, *(f"dev/c/{n}/+" for n in range(50))) == [0] * 50
    assert broker.access.describe()[-1]["hit"] == 1
    # What does not begin so is asked about by itself, and so is each of a few.
    assert codes(client, "dev/d/#", *["dev/c/#"] * 9) == [0x87, *[0] * 9]
    assert broker.access.describe()[-1]["hit"] == 3
    assert codes(client, "dev/c/a", "dev/c/b") == [0, 0]
    assert broker.access.describe()[-1]["hit"] == 5


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("", 1),
        ('{deny, {user, "eve"}, all, ["#"]}.\n{deny, {clientid, {re, "^x"}}, all}.\n', 1),
        ('{allow, all, subscribe, ["dev/%c/#"]}.\n', 1),
        ('{deny, all, subscribe, ["dev/%c/secret/#"]}.\n', 50),
        ('{deny, all, subscribe, ["$SYS/#"]}.\n', 1),
    ],
)
def test_who_is_let_in_since_nothing_matches_is_asked_once(
    tmp_path: Path, text: str, hits: int
) -> None:
    broker = make_broker(tmp_path, text)
    broker.access.authorization.nomatch = Decision(Verdict.ALLOW, "nothing matched")
    client = MemoryClient(broker, "c")
    before = broker.router.work
    assert codes(client, *(f"dev/c/{n}/+" for n in range(50))) == [0] * 50
    assert broker.access.describe()[-1]["hit"] == hits
    asked_for_each = hits > 1
    assert codes(client, *["dev/c/secret/a"] * 10) == [0x87 if asked_for_each else 0] * 10
    assert codes(client, *["$SYS/a"] * 9) == [0x87 if "SYS" in text else 0] * 9
    assert broker.router.work - before <= 3000


def test_a_right_that_is_asked_for_is_work(tmp_path: Path) -> None:
    done: list[int] = []
    for text in ("{allow, all}.\n", '{deny, all, all, ["x/%c"]}.\n{allow, all}.\n'):
        broker = make_broker(tmp_path, text)
        client = MemoryClient(broker, "c")
        session = broker.sessions["c"]
        asked = Subscription("a/b", 0)
        before = broker.router.work
        for realms in (None, [""]):
            broker.subscribing.one(session, broker.client_of(session), asked, 0, True, realms)
            done.append(broker.router.work - before)
        assert not client.edge.closed
    assert done == [20, 20, 20, 20]


def test_other_rules_are_obeyed_by_the_next_one(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    client = MemoryClient(broker, "c")
    filters = [f"dev/c/{n}" for n in range(20)]
    assert codes(client, *filters) == [0] * 20
    (tmp_path / "acl.conf").write_text("{deny, all}.\n")
    broker.access.reload_acl()
    broker.access_changed()
    assert codes(client, *filters) == [0x87] * 20


def test_a_hook_that_is_asked_is_asked_about_each(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    asked: list[str] = []

    def authorize(who: ClientInfo, action: Action, topic: str, verdict: Verdict) -> HookResult:
        asked.append(topic)
        return STOP(Verdict.DENY)

    broker.hooks.hook("client.authorize", authorize, topic_filter="dev/#")
    client = MemoryClient(broker, "c")
    assert codes(client, *["dev/c/a"] * 10) == [0x87] * 10
    assert len(asked) == 10


def test_what_a_hook_has_made_of_a_filter_is_checked(tmp_path: Path) -> None:
    """In place, so that the list is the one that was parsed."""
    broker = make_broker(tmp_path)

    def change(who: object, properties: object, asked: list[Subscription]) -> None:
        asked[-1].topic_filter = "a/#/b"

    broker.hooks.hook("client.subscribe", change)
    client = MemoryClient(broker, "c")
    client.send(Subscribe(1, [Subscription(f"x/{n}", 0) for n in range(10)]))
    assert broker.router.subscriptions == 9 or client.edge.closed
    assert broker.router.trie.get("a/#/b") is None


@pytest.mark.parametrize("length,code", [(100, 0), (101, 0x8F)])
def test_the_longest_filter_is_counted_in_bytes(tmp_path: Path, length: int, code: int) -> None:
    broker = make_broker(tmp_path)
    broker.settings.max_topic_length = 100
    client = MemoryClient(broker, "c")
    assert codes(client, "ü" * (length // 2) + "a" * (length % 2)) == [code]
    client.send(Publish("a", b""))


def test_who_hears_of_a_refusal_may_change_the_rules_for_what_follows(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)

    def denied(*asked: object) -> None:
        (tmp_path / "acl.conf").write_text("{deny, all}.\n")
        broker.access.reload_acl()
        broker.access_changed()

    broker.hooks.hook("client.denied", denied)
    client = MemoryClient(broker, "c")
    filters = [f"dev/c/{n}" for n in range(10)]
    assert codes(client, *filters, "x", *filters) == [0] * 10 + [0x87] * 11
