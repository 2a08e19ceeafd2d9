"""Plugin template: its tests, in a broker in memory, without a socket and without waiting."""

from __future__ import annotations

import pytest

from mqttd.testing import MemoryBroker, PluginConformance
from mqttd_plugins.template import template


class TestTemplateFulfilsItsInterface(PluginConformance):
    """What every plugin must do: load, work beside clients, leave nothing behind."""

    plugin = template


def test_a_message_is_followed_to_its_acknowledgement() -> None:
    node = MemoryBroker()
    plugin = node.load(template)
    bob = node.connect("bob")
    bob.subscribe("sensors/#", qos=1)
    node.connect("alice").publish("sensors/1", b"21.5", qos=1)
    (way,) = plugin.plugin.last
    assert (way.publisher, way.subscriber, way.topic) == ("alice", "bob", "sensors/1")
    assert way.message_id.bit_length() > 64
    assert way.acked is not None and way.acked >= way.delivered >= 0
    assert "alice -> bob, sensors/1: delivered after" in plugin.command("last")
    assert plugin.metrics() == {"followed_total": 1.0}


def test_a_message_of_qos_0_ends_with_its_delivery() -> None:
    node = MemoryBroker()
    plugin = node.load(template)
    node.connect("bob").subscribe("a")
    node.connect("alice").publish("a", b"x", qos=0)
    assert "acknowledged" not in plugin.command("last")
    assert plugin.plugin.last[0].acked is None


def test_only_topics_with_the_prefix_are_followed() -> None:
    node = MemoryBroker()
    plugin = node.load(template, {"prefix": "sensors/"})
    node.connect("bob").subscribe("#", qos=1)
    alice = node.connect("alice")
    alice.publish("other", b"x", qos=1)
    alice.publish("sensors/1", b"x", qos=1)
    assert [way.topic for way in plugin.plugin.last] == ["sensors/1"]


def test_no_more_is_remembered_than_the_configuration_says() -> None:
    node = MemoryBroker()
    plugin = node.load(template, {"keep": 10})
    node.connect("bob").subscribe("a", qos=1)
    alice = node.connect("alice")
    for _ in range(50):
        alice.publish("a", b"x", qos=1)
    assert len(plugin.command("last", "1000").splitlines()) == 10
    assert plugin.metrics() == {"followed_total": 50.0}


def test_a_mistake_in_the_configuration_is_refused() -> None:
    with pytest.raises(Exception, match="keep"):
        MemoryBroker().load(template, {"keep": 0})
