"""What a client may and may not publish, remembered: the answers of the rules, walked each time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqttd.access.acl.rules import AclRules
from mqttd.broker.broker import Broker
from mqttd.codec.packets import Publish, Pubrel
from mqttd.codec.serializer import serialize
from mqttd.config.schema import Log
from mqttd.monitor.event_log import EventLog
from mqttd.reports import Reports
from mqttd.types import STOP, Action, ClientInfo, HookResult, Verdict
from tests.unit.access import reference
from tests.unit.access.test_acl_model import Dice
from tests.unit.access.test_acl_realms import beginning
from tests.unit.admin.node import make_broker
from tests.unit.broker.test_realms import OWN, Plain


def is_refused(code: int) -> bool:
    return code == 0x87


def deaf(broker: Broker) -> None:
    """As after a line about refusals for which there was no room."""
    broker.nobody_hears()


def hold_against_reference(path: Path, seed: int) -> tuple[int, int]:
    """Some clients and topics again and again: what is allowed, and what is refused."""
    dice = Dice(seed)
    text = dice.rules()
    for _ in range(3):
        who = dice.choice(["all", '"alice"'])
        text += f'\n{{allow, {who}, all, ["{beginning(dice)}/#"]}}.'
    rules = list(AclRules.from_text(text).rules)
    broker = make_broker(path, text)
    broker.settings.look_ahead = dice.choice([0, 1 << 30])
    broker.router.selective = dice.choice([0, 1 << 30])
    topics = ["/".join(dice.choice(dice.words) for _ in range(n)) or "a" for n in (1, 2, 3) * 8]
    topics += [f"{dice.choice(['a', 'alice', 'c1'])}/x{n}/y" for n in range(20)]
    allowed = refused = 0
    for name in ("alice", "c1", "dev-7"):
        one = Plain(broker, name)
        client = ClientInfo(name, None, "127.0.0.1", 54321, "default", 5)
        for _ in range(4):
            dice.random.shuffle(topics)
            if dice.chance(0.7):
                deaf(broker)
            codes = one.publish(*topics, qos=1)
            for topic, code in zip(topics, codes, strict=True):
                action = Action("publish", 1)
                found = reference.decide(rules, client, action, topic)
                may = found >= 0 and rules[found].allow
                assert is_refused(code) is not may, f"{text}\n{name} {topic!r} {code}"
                allowed += may
                refused += not may
    return allowed, refused


def test_answers_that_are_remembered_are_those_of_the_rules(tmp_path: Path) -> None:
    both = [hold_against_reference(tmp_path, seed) for seed in range(12)]
    assert sum(each[0] for each in both) > 300 and sum(each[1] for each in both) > 300


def test_a_refusal_that_nobody_hears_of_counts_as_one_that_is_told(tmp_path: Path) -> None:
    """The same messages, heard of and not: the same answers, the same counters."""
    dice = random.Random(1)
    names = [dice.choice(["dev/c/a", "dev/d/a", "x", "dev/c"]) for _ in range(60)]
    figures = []
    for heard in (True, False):
        broker = make_broker(tmp_path, OWN)
        client = Plain(broker, "c")
        codes = []
        for at, name in enumerate(names):
            if not heard:
                deaf(broker)
            codes += client.publish(name, qos=at % 2)
        metrics = broker.metrics
        figures.append(
            (
                codes,
                metrics.publishes_denied,
                metrics.dropped_denied,
                metrics.messages_received_qos0,
                metrics.messages_received_qos1,
                broker.access.denied,
                broker.access.describe()[-1]["deny"],
                broker.access.authorization.rules().hits[1],
            )
        )
        assert broker.untold == broker.unkept == 0 if heard else broker.unkept > 20
    assert figures[0] == figures[1]
    assert 0x87 in figures[0][0] and figures[0][1] > 20


def test_refusals_are_told_as_long_as_somebody_hears(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    told: list[str] = []
    broker.access.authorization.on_deny = lambda client, action, topic, rule: told.append(topic)
    client = Plain(broker, "c")
    client.publish("x", "x", "x")
    assert told == ["x"] * 3
    deaf(broker)
    client.publish("x", "x")
    assert told == ["x"] * 3 and broker.untold == 2
    broker.tap_denied = True  # the log has room again
    client.publish("x")
    assert told == ["x"] * 4


@pytest.mark.parametrize("point", ["client.denied", "message.dropped"])
def test_a_hook_hears_of_every_refusal(tmp_path: Path, point: str) -> None:
    broker = make_broker(tmp_path, OWN)
    client = Plain(broker, "c")
    client.publish("x", "x")
    told: list[object] = []
    deaf(broker)
    broker.hooks.hook(point, lambda *args: told.append(args))
    client.publish("x", "x")
    deaf(broker)
    client.publish("x")
    assert len(told) == 3


def test_a_hook_that_is_asked_is_asked_each_time(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    asked: list[str] = []

    def authorize(who: ClientInfo, action: Action, topic: str, verdict: Verdict) -> HookResult:
        asked.append(topic)
        return STOP(Verdict.DENY)

    client = Plain(broker, "c")
    client.publish(*(f"dev/c/{n}" for n in range(40)))  # so that its realm is known
    broker.hooks.hook("client.authorize", authorize, topic_filter="dev/c/own/#")
    for _ in range(3):
        deaf(broker)
        names = [f"dev/c/{n}" for n in range(40)]
        assert client.publish("dev/c/own/a", *names, qos=1)[0] == 0x87
    assert asked == ["dev/c/own/a"] * 3


def test_a_hook_that_is_asked_about_other_topics_is_in_no_way(tmp_path: Path) -> None:
    """As a plugin has it that hooks topics of its own: what is refused elsewhere is remembered."""
    broker = make_broker(tmp_path, OWN)
    broker.hooks.hook("client.authorize", lambda *args: None, topic_filter="$mqttd/#")
    client = Plain(broker, "c")
    client.publish("x")
    deaf(broker)
    client.publish("x", "x", "x")
    assert broker.metrics.rights_decided <= 2 and broker.untold == 3


def test_other_rules_are_obeyed_at_once(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, OWN)
    client = Plain(broker, "c")
    names = [f"dev/c/{n}" for n in range(40)]
    assert not any(map(is_refused, client.publish(*names, *names, qos=1)))
    deaf(broker)
    assert client.publish("x", "x", qos=1) == [0x87] * 2
    (tmp_path / "acl.conf").write_text('{allow, all, publish, ["x"]}.\n')
    broker.access.reload_acl()
    broker.access_changed()
    assert all(map(is_refused, client.publish(*names, qos=1)))
    assert not any(map(is_refused, client.publish("x", "x", qos=1)))


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_that_is_refused_is_acknowledged_whether_somebody_hears_or_not(
    tmp_path: Path, version: int
) -> None:
    answers = []
    for heard in (True, False):
        broker = make_broker(tmp_path, OWN)
        client = Plain(broker, "c", version)
        client.publish("x")
        if not heard:
            deaf(broker)
        for packet_id in (1, 2, 1):
            packet = Publish("x", b"x", 2, packet_id=packet_id)
            client.channel.feed(serialize(packet, version))
            client.channel.feed(serialize(Pubrel(packet_id), version))
        broker.perform()
        answers.append([(type(one), one.packet_id) for one in client.received()])
    assert answers[0] == answers[1] and answers[0]


class Quiet:
    """A trail that has no room for refusals."""

    def __init__(self) -> None:
        self.more = 0

    def left(self, reason: str) -> int:
        return 0

    def room(self, reason: str) -> bool:
        self.more += 1
        return False

    def because(self, rule: str) -> None: ...

    def passed_over(self, reason: str, count: int) -> None:
        assert reason == "denied"
        self.more += count


def test_log_and_trail_know_how_many_there_were(tmp_path: Path) -> None:
    now = [100.0]
    events = EventLog(lambda: now[0], Log(rate=3))
    lines: list[dict[str, object]] = []
    events._write = lambda event, fields, level="": lines.append(fields)  # type: ignore[method-assign]
    broker = make_broker(tmp_path, OWN)
    reports = Reports(events)
    reports.broker = broker
    trail = Quiet()
    broker.trail = reports.trail = trail  # type: ignore[assignment]
    broker.access.authorization.on_deny = reports.denied
    client = Plain(broker, "c")
    client.publish(*["x"] * 10)
    assert [line["topic"] for line in lines] == ["x"] * 3
    assert not broker.tap_denied and broker.untold == 6
    reports.look()
    assert broker.tap_denied and broker.untold == broker.unkept == 0
    assert trail.more == 10
    client.publish("x", "x")
    reports.look()
    now[0] += 1
    events.tick()
    assert lines[3:] == [{"more_in_one_second": 9}]
    client.publish("x")
    assert lines[-1]["topic"] == "x" and events.suppressed == 9


def test_those_that_nobody_heard_of_take_no_lines_of_the_next_second(tmp_path: Path) -> None:
    """Another line begins the second before they are counted; they are told of at its end."""
    now = [100.0]
    events = EventLog(lambda: now[0], Log(rate=2))
    lines: list[dict[str, object]] = []
    events._write = lambda event, fields, level="": lines.append(fields)  # type: ignore[method-assign]
    broker = make_broker(tmp_path, OWN)
    reports = Reports(events)
    reports.broker = broker
    broker.access.authorization.on_deny = reports.denied
    client = Plain(broker, "c")
    client.publish(*["x"] * 10)
    now[0] += 1
    events("connected", {})
    assert {"more_in_one_second": 1} in lines and broker.untold == 7
    reports.look()
    lines.clear()
    client.publish(*["x"] * 5)
    assert [line.get("topic") for line in lines] == ["x", "x"]
    now[0] += 1
    events.tick()
    reports.look()
    now[0] += 1
    events.tick()
    assert lines[2:] == [{"more_in_one_second": 8}, {"more_in_one_second": 2}]
    assert events.suppressed == 1 + 8 + 2
