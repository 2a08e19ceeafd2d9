"""presence: who came and who went, as EMQ tells it, below a level that is the client's own."""

from __future__ import annotations

import json

import pytest

from mqttd.codec import properties as prop
from mqttd.testing import MemoryBroker, PluginConformance
from mqttd_plugins.presence import presence
from mqttd_plugins.presence.plugin import RETAINED, level_of


class TestConformance(PluginConformance):
    plugin = presence


def test_connecting_and_leaving_is_told() -> None:
    node = MemoryBroker()
    loaded = node.load(presence)
    heard = node.subscribe("$SYS/brokers/+/clients/#")
    alice = node.connect("alice", username="al", keep_alive=30, peer=("192.0.2.1", 4711))
    node.advance(5)
    alice.disconnect()
    came, went = heard
    assert came.topic == "$SYS/brokers/memory/clients/alice/connected"
    assert went.topic == "$SYS/brokers/memory/clients/alice/disconnected"
    notice = json.loads(came.payload)
    assert notice["clientid"] == "alice"
    assert notice["username"] == "al"
    assert notice["ipaddress"] == "192.0.2.1"
    assert (notice["proto_name"], notice["proto_ver"], notice["keepalive"]) == ("MQTT", 5, 30)
    assert notice["connack"] == 0 and notice["clean_start"] is True
    gone = json.loads(went.payload)
    assert gone["disconnected_at"] - gone["connected_at"] == 5000
    assert gone["connected_at"] == notice["connected_at"] == notice["ts"]
    assert gone["reason"]
    assert loaded.metrics() == {"notices_total": 2.0}


def test_notices_can_be_kept_and_made_anonymous() -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True, "qos": 1, "identity": False})
    node.connect("alice", username="al")
    (notice,) = node.subscribe("$SYS/brokers/#")
    assert notice.retain and notice.qos == 1
    assert not {"username", "ipaddress"} & json.loads(notice.payload).keys()


@pytest.mark.parametrize(
    "client_id", ["a/connected", "../x", "+", "#", "a+b#c", "%2F", "ü☃", "x" * 200]
)
def test_no_client_id_leaves_its_level(client_id: str) -> None:
    node = MemoryBroker()
    node.load(presence)
    heard = node.subscribe("$SYS/brokers/+/clients/+/connected")
    assert node.connect(client_id).connack is not None
    (notice,) = heard
    assert notice.topic.count("/") == 5
    assert json.loads(notice.payload)["clientid"] == client_id
    assert not node.faults


def test_levels_are_one_to_one() -> None:
    names = ["a", "a/b", "a%2Fb", "a+b", "a#b", "%", ""]
    assert len({level_of(name) for name in names}) == len(names)


def test_a_takeover_ends_with_the_client_present() -> None:
    node = MemoryBroker()
    node.load(presence)
    heard = node.subscribe("$SYS/brokers/#")
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 60}
    node.connect("alice", properties=dict(expiry))
    node.connect("alice", clean_start=False, properties=dict(expiry)).disconnect()
    events = [message.topic.rpartition("/")[2] for message in heard]
    assert events[0] == "connected" and events[-1] == "disconnected"
    assert events.count("connected") == 2


def retained(node: MemoryBroker) -> list[str]:
    """Client and event of each notice that a new subscriber gets."""
    heard = node.connect("reader")
    heard.subscribe("$SYS/brokers/+/clients/#")
    topics = [message.topic.split("/", 4)[4] for message in heard.messages()]
    heard.disconnect()
    return sorted(topic for topic in topics if not topic.startswith("reader/"))


def test_a_client_that_has_gone_for_good_leaves_nothing_retained() -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True})
    heard = node.subscribe("$SYS/brokers/+/clients/c0/#")
    for number in range(100):
        node.connect(f"c{number}").disconnect()
    assert retained(node) == []
    assert len(node.broker.retainer) == 0
    told = [(message.topic.rpartition("/")[2], bool(message.payload)) for message in heard]
    assert told == [
        ("connected", True),
        ("disconnected", True),
        ("connected", False),
        ("disconnected", False),
    ]


def test_retained_notices_stay_as_long_as_the_session() -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True})
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 60}
    node.connect("alice", properties=dict(expiry)).disconnect()
    assert retained(node) == ["alice/connected", "alice/disconnected"]
    node.connect("alice", clean_start=False, properties=dict(expiry)).drop()
    assert retained(node) == ["alice/connected", "alice/disconnected"]
    node.advance(61)
    assert retained(node) == []


@pytest.mark.parametrize("clean_start", [False, True])
def test_retained_notices_after_a_takeover_are_of_the_client_present(clean_start: bool) -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True})
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 60}
    node.connect("alice", properties=dict(expiry))
    node.connect("alice", clean_start=clean_start, properties=dict(expiry))
    assert retained(node) == ["alice/connected"]


@pytest.mark.parametrize("away", [False, True])
def test_nothing_stays_of_a_session_that_goes_to_another_process(away: bool) -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True})
    alice = node.connect("alice", properties={prop.SESSION_EXPIRY_INTERVAL: 60})
    if away:
        alice.drop()
    assert node.broker.registry.hand_over("alice", 1_000) is not None
    node.settle()
    assert retained(node) == []


def test_a_long_name_is_told_but_not_retained() -> None:
    node = MemoryBroker()
    node.load(presence, {"retain": True})
    heard = node.subscribe("$SYS/brokers/+/clients/+/connected")
    node.connect("alice", username="x" * RETAINED)
    assert json.loads(heard[0].payload)["username"] == "x" * RETAINED
    assert retained(node) == []
