"""rewrite: topics become others by rule, and never mean more than the rule says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Will
from mqttd.codec.topic import validate_topic_name
from mqttd.testing import MemoryBroker, PluginConformance
from mqttd.types import OK, STOP, Action, ClientInfo, HookResult, Verdict
from mqttd_plugins.delayed import delayed
from mqttd_plugins.rewrite import rewrite
from mqttd_plugins.rewrite.plugin import Rule, Rules

RULES = {
    "rules": [
        {"from": "old/+/data/#", "to": "new/$2/of/$1"},
        {"from": "mine/#", "to": "users/%u/%c/$1", "action": "publish"},
        {"from": "news", "to": "news/all", "action": "subscribe"},
    ]
}


class TestConformance(PluginConformance):
    plugin = rewrite
    config = RULES


@pytest.fixture
def node() -> MemoryBroker:
    node = MemoryBroker()
    node.load(rewrite, RULES)
    return node


def rule(source: str, to: str) -> Rules:
    return Rules((Rule(from_filter=source, to=to),), "publish")


@pytest.mark.parametrize(
    ("source", "to", "topic", "becomes"),
    [
        ("a", "b", "a", "b"),
        ("a", "b", "a/b", "a/b"),
        ("a/+", "b/$1", "a/x", "b/x"),
        ("a/+", "b/$1", "a/", "b/"),
        ("a/+", "b/$1", "a/x/y", "a/x/y"),
        ("a/#", "b/$1", "a/x/y", "b/x/y"),
        ("a/#", "b/$1", "a", "b/"),
        ("+/+/#", "$3/$2/$1", "x/y/z/w", "z/w/y/x"),
        ("a/+/+", "$2", "a/1/$2", "a/1/$2"),  # the captured text would begin with $
        ("#", "all/$1", "$SYS/x", "$SYS/x"),
        ("+/x", "all/$1", "$SYS/x", "$SYS/x"),
        ("a/#", "$SYS/a/$1", "a/b", "$SYS/a/b"),  # the operator said so
        ("a/+", "$1", "a/$SYS", "a/$SYS"),
        ("a/+", "x/%c", "a/b", "x/alice"),
        ("a/+", "x/%u", "a/b", "a/b"),  # no user name
    ],
)
def test_rules(source: str, to: str, topic: str, becomes: str) -> None:
    assert rule(source, to).rewrite(topic, "alice", None, False) == becomes


@pytest.mark.parametrize("name", ["a/b", "+", "#", "x+", "", "a\0b"])
def test_names_that_mean_something_in_topics_are_not_put_in(name: str) -> None:
    rules = rule("a", "clients/%c/x")
    assert rules.rewrite("a", name, None, False) == "a"
    assert rules.skipped == 1


def test_marks_in_a_name_are_not_filled_again() -> None:
    assert rule("a/+", "x/%c/$1").rewrite("a/%u", "$1%u", "bob", False) == "x/$1%u/%u"


@pytest.mark.parametrize(
    ("source", "to", "why"),
    [
        ("a/#/b", "x", "from = 'a/#/b'"),
        ("a/+", "$2", r"\$2, but from has 1 wildcards"),
        ("a", "b/#", "without"),
    ],
)
def test_a_rule_that_cannot_be_is_named(source: str, to: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rule(source, to)
    with pytest.raises(ValueError, match=why):
        MemoryBroker().load(rewrite, {"rules": [{"from": source, "to": to}]})


levels = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(levels, min_size=1, max_size=6).map("/".join), levels, levels)
def test_what_comes_out_is_a_topic_below_the_template(topic: str, client: str, user: str) -> None:
    rules = rule("+/#", "safe/%c/$2/%u/$1")
    made = rules.rewrite(topic, client, user or None, False)
    if made != topic:
        validate_topic_name(made)
        assert made.startswith(f"safe/{client}/")


def test_messages_and_subscriptions_meet_under_the_new_name(node: MemoryBroker) -> None:
    alice = node.connect("alice", username="al")
    assert alice.subscribe("new/#", qos=1) == [1]
    alice.publish("old/7/data/x/y", b"1", 1)
    alice.publish("mine/box", b"2", retain=True)
    (message,) = alice.messages()
    assert message.topic == "new/x/y/of/7"
    (kept,) = node.subscribe("users/#")
    assert kept.topic == "users/al/alice/box"


def test_a_subscription_is_rewritten_and_can_be_ended(node: MemoryBroker) -> None:
    alice = node.connect("alice")
    assert alice.subscribe("news", "$share/g/news", "old/+/data/x", qos=0) == [0, 0, 0]
    assert alice.session.subscriptions is not None
    subscribed = {"news/all", "$share/g/news/all", "new/x/of/+"}
    assert set(alice.session.subscriptions) == subscribed
    assert alice.unsubscribe("news", "$share/g/news", "old/+/data/x") == [0, 0, 0]
    assert alice.session.subscriptions is None


def test_what_is_counted(node: MemoryBroker) -> None:
    loaded = node.load(rewrite, {"rules": [{"from": "x/#", "to": "y/%u"}]})
    node.connect("alice", username="al").publish("x/1", b"")
    node.connect("bob").publish("x/1", b"")
    assert loaded.metrics() == {"denied_total": 0.0, "rewritten_total": 1.0, "skipped_total": 1.0}


def test_the_right_to_the_new_topic_is_asked_for_as_well() -> None:
    node = MemoryBroker()
    loaded = node.load(rewrite, {"rules": [{"from": "mine/#", "to": "others/$1"}]})
    heard = node.subscribe("#")
    node.deny("others/secret")
    for version in (4, 5):
        client = node.connect(f"c{version}", version)
        for qos in (0, 1, 2):
            client.publish("mine/secret", b"x", qos)
            client.publish("mine/open", b"x", qos)
        assert not client.closed
    node.publish("mine/secret", b"the operator's own")
    assert [message.topic for message in heard] == ["others/open"] * 6 + ["others/secret"]
    assert loaded.metrics()["denied_total"] == 6.0


def test_a_will_is_held_to_it_too() -> None:
    node = MemoryBroker()
    node.load(rewrite, {"rules": [{"from": "mine/#", "to": "others/$1"}]})
    heard = node.subscribe("#")
    node.deny("others/secret")
    for topic in ("mine/secret", "mine/open"):
        node.connect(topic, will=Will(topic, b"gone")).drop()
    assert [message.topic for message in heard] == ["others/open"]


INSIDE, OUTSIDE = ("10.0.0.7", 4711), ("192.0.2.7", 4711)


def only_from_inside(node: MemoryBroker) -> None:
    """Rules as of an `acl.conf`: from 10.0.0.7 anything, from elsewhere not below others/."""

    def judge(client: ClientInfo, action: Action, topic: str, verdict: Verdict) -> HookResult:
        outside = client.peerhost != INSIDE[0] and topic.startswith("others/")
        return STOP(Verdict.DENY) if outside else OK

    node.hook("client.authorize", judge)


@pytest.mark.parametrize("lasts", [False, True])
def test_a_will_is_asked_about_with_the_address_it_came_from(lasts: bool) -> None:
    node = MemoryBroker()
    loaded = node.load(rewrite, {"rules": [{"from": "mine/#", "to": "others/$1"}]})
    only_from_inside(node)
    heard = node.subscribe("#")
    more = {prop.SESSION_EXPIRY_INTERVAL: 60} if lasts else {}
    for peer in (INSIDE, OUTSIDE):
        will = Will("mine/x", peer[0].encode())
        node.connect(peer[0], username="al", will=will, properties=more, peer=peer).drop()
    assert [message.payload for message in heard] == [INSIDE[0].encode()]
    assert loaded.metrics()["denied_total"] == 1.0


def test_what_was_delayed_is_asked_about_with_its_address_too() -> None:
    node = MemoryBroker()
    node.load(delayed)
    node.load(rewrite, {"rules": [{"from": "mine/#", "to": "others/$1"}]})
    only_from_inside(node)
    heard = node.subscribe("#")
    for peer in (INSIDE, OUTSIDE):
        client = node.connect(peer[0], peer=peer)
        client.publish("$delayed/5/mine/x", peer[0].encode(), 1)
        client.disconnect()
    node.advance(6)
    assert [message.payload for message in heard] == [INSIDE[0].encode()]
