"""auto_subscribe: every client gets the topics of its own, and no client more than that."""

from __future__ import annotations

import pytest

from mqttd.codec import properties as prop
from mqttd.testing import MemoryBroker, PluginConformance, client_info
from mqttd_plugins.auto_subscribe import auto_subscribe
from mqttd_plugins.auto_subscribe.plugin import fill

CONFIG = {"topics": [{"filter": "clients/%c/#", "qos": 1}, {"filter": "users/%u/+"}]}


class TestConformance(PluginConformance):
    plugin = auto_subscribe
    config = CONFIG


def test_clients_get_what_is_theirs() -> None:
    node = MemoryBroker()
    loaded = node.load(auto_subscribe, CONFIG)
    node.publish("clients/alice/hello", b"kept", retain=True)
    alice = node.connect("alice", username="al")
    bob = node.connect("bob", version=4)
    assert [message.payload for message in alice.messages()] == [b"kept"]
    node.publish("clients/alice/do", b"1", qos=1)
    node.publish("users/al/x", b"2", qos=1)
    node.publish("clients/bob/do", b"3", qos=1)
    got = [(message.payload, message.qos) for message in alice.messages()]
    assert got == [(b"1", 1), (b"2", 0)]
    assert [message.payload for message in bob.messages()] == [b"3"]
    assert loaded.metrics() == {"subscribed_total": 3.0, "refused_total": 1.0}


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a/#", "/", "x+y", "a\0"])
def test_no_name_widens_a_filter(name: str) -> None:
    assert fill("clients/%c/x", client_info(name)) is None
    assert fill("clients/%u/x", client_info("c", name)) is None
    node = MemoryBroker()
    node.load(auto_subscribe, CONFIG)
    if "\0" not in name:
        client = node.connect(name)
        assert not client.closed
        assert client.session.subscriptions is None


def test_marks_in_a_name_are_text() -> None:
    assert fill("%c/%u", client_info("%u", "%c")) == "%u/%c"


def test_the_rules_are_asked() -> None:
    node = MemoryBroker()
    node.deny("clients/alice/#")
    loaded = node.load(auto_subscribe, CONFIG)
    alice = node.connect("alice")
    assert alice.session.subscriptions is None and not alice.closed
    assert loaded.metrics()["refused_total"] == 2.0


def test_a_session_that_comes_back_has_it_still() -> None:
    node = MemoryBroker()
    node.load(auto_subscribe, {"topics": [{"filter": "c/%c", "qos": 1}]})
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 60}
    node.connect("alice", properties=dict(expiry)).drop()
    node.publish("c/alice", b"while away", qos=1)
    back = node.connect("alice", clean_start=False, properties=dict(expiry))
    assert [message.payload for message in back.messages()] == [b"while away"]


def test_what_is_no_filter_is_named_at_load() -> None:
    with pytest.raises(ValueError, match="filter = 'a/#/%c'"):
        MemoryBroker().load(auto_subscribe, {"topics": [{"filter": "a/#/%c"}]})
