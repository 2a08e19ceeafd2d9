"""A mountpoint: what its clients name is below the prefix, and they never learn of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.mount import Mount, mountpoint
from mqttd.transports.stream import StreamEdge
from tests.support.memory import MemoryBroker, MemoryClient, Wire

VERSIONS = (4, 5)


class Door(MemoryBroker):
    """A broker with a listener `dev` whose clients live below `dev/%c/`."""

    def __init__(self, template: str = "dev/%c/") -> None:
        super().__init__()
        self.broker.listeners["dev"] = Listener("dev", mountpoint=template)

    def mounted(
        self,
        client_id: str,
        version: int = 4,
        username: str | None = None,
        clean: bool = True,
        will: Will | None = None,
        properties: dict[int, object] | None = None,
        room: int | None = None,
    ) -> MemoryClient:
        client = MemoryClient(self, version, room)
        client.wire = Wire(room)
        edge = StreamEdge(self.broker, client.wire, "127.0.0.1", 40000)
        client.wire.edge = edge
        client.channel = edge.channel = Channel(self.broker, edge, -1, "dev")
        connect = Connect(
            client_id,
            version=version,
            clean_start=clean,
            keep_alive=60,
            will=will,
            username=username,
            properties=properties,
        )
        client.send(connect)
        answer = client.take()[0]
        assert isinstance(answer, Connack)
        client.connack = answer
        return client


def subscribe(client: MemoryClient, *filters: str, qos: int = 0) -> list[int]:
    client.send(Subscribe(1, [Subscription(text, qos) for text in filters]))
    for packet in client.take():
        if isinstance(packet, Suback):
            return list(packet.reason_codes)
    raise AssertionError("no SUBACK")


def names(client: MemoryClient) -> list[tuple[str, bytes]]:
    return [(packet.topic, packet.payload) for packet in client.published()]


@pytest.mark.parametrize("qos", (0, 1, 2))
@pytest.mark.parametrize("version", VERSIONS)
def test_names_get_the_prefix_and_lose_it_again(version: int, qos: int) -> None:
    node = Door()
    watcher = node.connect("watcher", version)
    subscribe(watcher, "#", qos=2)
    lamp = node.mounted("lamp", version)
    assert subscribe(lamp, "#", qos=2) == [2]
    lamp.send(Publish("on", b"1", qos, packet_id=7 if qos else 0))
    assert names(watcher) == [("dev/lamp/on", b"1")]
    assert names(lamp) == [("on", b"1")]
    for _ in range(2):  # by the cached grant too
        lamp.send(Publish("on", b"2", 0))
    assert names(watcher) == [("dev/lamp/on", b"2")] * 2
    assert names(lamp) == [("on", b"2")] * 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
def test_messages_from_outside_arrive_with_the_short_name(version: int, other: int) -> None:
    node = Door()
    lamp = node.mounted("lamp", version)
    subscribe(lamp, "cmd/+", "$share/g/job", qos=1)
    boss = node.connect("boss", other)
    boss.send(Publish("dev/lamp/cmd/a", b"0", 0), Publish("dev/lamp/cmd/b", b"1", 1, packet_id=3))
    boss.send(Publish("dev/lamp/job", b"2", 1, packet_id=4), Publish("cmd/a", b"no", 0))
    boss.send(Publish("dev/other/cmd/a", b"no", 0), Publish("dev/lamp/cmd/a", b"r", 0, True))
    assert names(lamp) == [("cmd/a", b"0"), ("cmd/b", b"1"), ("job", b"2"), ("cmd/a", b"r")]


def test_retained_messages_and_unsubscribing_know_the_full_name() -> None:
    node = Door()
    lamp = node.mounted("lamp")
    lamp.send(Publish("state", b"on", 0, True))
    assert node.broker.retainer.get("dev/lamp/state") is not None
    subscribe(lamp, "state")
    lamp.send(Unsubscribe(2, ["state"]))
    assert any(isinstance(packet, Unsuback) for packet in lamp.take())
    lamp.send(Publish("state", b"off", 0))
    assert names(lamp) == []


def test_a_retained_message_comes_with_the_short_name() -> None:
    node = Door()
    node.connect("boss").send(Publish("dev/lamp/state", b"on", 0, True))
    lamp = node.mounted("lamp")
    lamp.send(Subscribe(1, [Subscription("#", 1)]))
    assert names(lamp) == [("state", b"on")]


def test_a_will_is_published_below_the_mountpoint() -> None:
    node = Door()
    watcher = node.connect("watcher")
    subscribe(watcher, "#")
    node.mounted("lamp", will=Will("gone", b"x", 0, False)).drop()
    assert names(watcher) == [("dev/lamp/gone", b"x")]


def test_a_response_topic_is_a_topic_name() -> None:
    node = Door("t/")
    boss = node.connect("boss", 5)
    subscribe(boss, "#")
    a, b = node.mounted("a", 5), node.mounted("b", 5)
    subscribe(b, "ask")
    for _ in range(2):
        a.send(Publish("ask", b"?", 0, properties={prop.RESPONSE_TOPIC: "answer/a"}))
        (asked,) = boss.published()
        assert (asked.topic, asked.properties) == ("t/ask", {prop.RESPONSE_TOPIC: "t/answer/a"})
        (asked,) = b.published()
        assert (asked.topic, asked.properties) == ("ask", {prop.RESPONSE_TOPIC: "answer/a"})


def test_topic_aliases_work_both_ways() -> None:
    node = Door()
    node.settings.outbound_topic_alias = True
    watcher = node.connect("watcher", 5)
    subscribe(watcher, "#")
    lamp = node.mounted("lamp", 5, properties={prop.TOPIC_ALIAS_MAXIMUM: 5})
    subscribe(lamp, "#", qos=1)
    lamp.send(Publish("on", b"1", 0, properties={prop.TOPIC_ALIAS: 1}))
    lamp.send(Publish("", b"2", 1, packet_id=9, properties={prop.TOPIC_ALIAS: 1}))
    assert names(watcher) == [("dev/lamp/on", b"1"), ("dev/lamp/on", b"2")]
    first, second = lamp.published()
    assert (first.topic, second.topic) == ("on", "")
    assert first.properties == second.properties == {prop.TOPIC_ALIAS: 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_waited_or_was_not_acknowledged_comes_with_the_short_name(version: int) -> None:
    node = Door()
    expiry: dict[int, object] | None = {prop.SESSION_EXPIRY_INTERVAL: 100} if version == 5 else None
    lamp = node.mounted("lamp", version, clean=False, properties=expiry)
    subscribe(lamp, "#", qos=1)
    boss = node.connect("boss")
    boss.send(Publish("dev/lamp/a", b"1", 1, packet_id=3))
    assert names(lamp) == [("a", b"1")]
    lamp.drop()
    boss.send(Publish("dev/lamp/b", b"2", 1, packet_id=3))
    lamp = MemoryClient(node, version)
    channel = Channel(node.broker, lamp.channel.edge, -1, "dev")
    lamp.channel = lamp.channel.edge.channel = channel  # type: ignore[attr-defined]
    lamp.send(Connect("lamp", version=version, clean_start=False, properties=expiry))
    packets = lamp.take()
    assert isinstance(packets[0], Connack) and packets[0].session_present
    sent = [packet for packet in packets if isinstance(packet, Publish)]
    assert [(packet.topic, packet.dup) for packet in sent] == [("a", True), ("b", False)]
    for packet in sent:
        lamp.send(Puback(packet.packet_id))
    assert not lamp.session.inflight


def test_rules_see_the_full_names() -> None:
    node = Door()
    node.access.denied |= {"dev/lamp/no", "dev/lamp/never"}
    lamp = node.mounted("lamp")
    assert subscribe(lamp, "no", "never", "yes") == [0x80, 0x80, 0]


def test_a_session_of_another_mountpoint_is_not_resumed() -> None:
    node = Door("t/")
    plain = node.connect("lamp", clean=False)
    subscribe(plain, "secret/#", qos=1)
    plain.drop()
    node.connect("boss").send(Publish("secret/x", b"", 1, packet_id=1))
    lamp = node.mounted("lamp", clean=False)
    assert lamp.connack is not None and not lamp.connack.session_present
    assert names(lamp) == []
    assert not lamp.session.subscriptions


def test_what_lies_outside_is_not_handed_over() -> None:
    node = Door()
    lamp = node.mounted("lamp")
    node.broker.subscribe_client("lamp", Subscription("outside/#", 1))
    boss = node.connect("boss")
    boss.send(Publish("outside/x", b"0", 0), Publish("outside/x", b"1", 1, packet_id=1))
    assert names(lamp) == []
    assert node.broker.metrics.dropped_denied == 2
    assert not lamp.session.inflight


@pytest.mark.parametrize("qos", (0, 1, 2))
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("own", ("#", "+/x", "$share/g/#", "$share/g/+/x"))
def test_a_wildcard_in_the_first_level_does_not_match_a_dollar(
    own: str, version: int, qos: int
) -> None:
    """As without a mountpoint [MQTT-4.7.2-1]; others see the whole tree, where it is not first."""
    node = Door()
    lamp = node.mounted("lamp", version)
    subscribe(lamp, own, qos=2)
    watcher = node.connect("watcher", version)
    subscribe(watcher, "dev/lamp/#", qos=2)
    boss = node.connect("boss", version)
    numbers = itertools.count(1)
    for publisher, prefix in ((lamp, ""), (boss, "dev/lamp/"), (boss, "dev/lamp/")):
        for topic in ("$x/x", "a/x"):
            number = next(numbers) if qos else 0
            publisher.send(Publish(prefix + topic, b"", qos, packet_id=number))
            assert names(watcher) == [(f"dev/lamp/{topic}", b"")]
        assert names(lamp) == [("a/x", b"")]
    assert node.broker.metrics.dropped_denied == 0
    subscribe(lamp, "$x/#")
    boss.send(Publish("dev/lamp/$x/x", b"", 0))
    assert names(lamp) == [("$x/x", b"")]


def test_nor_does_it_match_a_retained_message_that_begins_so() -> None:
    node = Door()
    boss = node.connect("boss")
    for topic in ("$x/x", "a/x", "$y/x"):
        boss.send(Publish(f"dev/lamp/{topic}", b"1", 0, True))
    for number, own in enumerate(("#", "+/x", "+/#")):
        lamp = node.mounted("lamp", 4 + number % 2)
        lamp.send(Subscribe(1, [Subscription(own, 1)]))
        assert [name for name, _ in names(lamp)] == ["a/x"]
    lamp.send(Subscribe(1, [Subscription("$x/#", 1)]))
    assert [name for name, _ in names(lamp)] == ["$x/x"]
    boss.send(Subscribe(1, [Subscription("dev/lamp/+/x", 0)]))
    assert len(names(boss)) == 3


@pytest.mark.parametrize("mounted_first", (True, False))
def test_a_group_gives_it_to_a_member_that_has_no_mountpoint(mounted_first: bool) -> None:
    node = Door()
    for mounted in (mounted_first, not mounted_first):
        if mounted:
            lamp = node.mounted("lamp", clean=False)
            subscribe(lamp, "$share/g/#", qos=1)
        else:
            plain = node.connect("plain", clean=False)
            subscribe(plain, "$share/g/dev/lamp/#", qos=1)
    boss = node.connect("boss")
    for _ in range(4):
        boss.send(Publish("dev/lamp/$x", b"", 1, packet_id=1))
        assert len(names(plain)) == 1
    plain.drop()
    boss.send(Publish("dev/lamp/$x", b"", 1, packet_id=1), Publish("dev/lamp/x", b"", 0))
    assert names(lamp) == [("x", b"")]
    back = node.connect("plain", clean=False)
    assert [packet.topic for packet in back.published() if not packet.dup] == ["dev/lamp/$x"]


@pytest.mark.parametrize("client_id", ("a/b", "+", "#", "x#"))
def test_a_value_that_would_widen_the_place_is_refused(client_id: str) -> None:
    node = Door()
    client = node.mounted(client_id, 5)
    assert client.connack is not None and client.connack.reason_code == 0x87
    assert client.closed


def test_a_user_name_that_is_asked_for_must_be_there() -> None:
    node = Door("%u/")
    refused = node.mounted("a", 5).connack
    assert refused is not None and refused.reason_code == 0x87
    taken = node.mounted("b", 5, username="anna").connack
    assert taken is not None and taken.reason_code == 0


def test_a_name_that_gets_too_long_is_refused() -> None:
    node = Door("x" * 100 + "/")
    lamp = node.mounted("lamp", 5)
    lamp.send(Publish("y" * 65500, b"", 0))
    assert lamp.closed


topics = st.text(st.characters(codec="utf-8", exclude_characters="+#\0"), min_size=1, max_size=200)


@given(topics, st.binary(max_size=300), st.sampled_from((0, 1, 2)), st.sampled_from(VERSIONS))
def test_leaving_undoes_entering(topic: str, payload: bytes, qos: int, version: int) -> None:
    mount = Mount("dev/ä/")
    properties = {prop.RESPONSE_TOPIC: "r/" + topic} if version == 5 and len(topic) % 2 else None
    short = Publish(topic, payload, qos, packet_id=5 if qos else 0, properties=properties)
    long = Publish(mount.enter(topic), payload, qos, packet_id=short.packet_id)
    if properties is not None:
        given_names = dict(properties)
        mount.enter_properties(given_names)
        long.properties = given_names
    found = Parser(version, role="client").feed(mount.leave(serialize(long, version), version == 5))
    packets: list[Packet] = [short]
    assert found == packets


def test_templates_take_the_client_id_and_the_user_name() -> None:
    assert mountpoint("t/%u/x-%c/", "c", "u") == "t/u/x-c/"
    assert mountpoint("t/", "c", None) == "t/"


@pytest.mark.parametrize("template", ["%c/", "%u/", "%c/x/%u/"])
@pytest.mark.parametrize("name", ["$share", "$queue", "$SYS", "$delayed"])
def test_a_value_does_not_make_the_prefix_one_that_means_something(
    template: str, name: str
) -> None:
    with pytest.raises(ValueError, match="begins with"):
        mountpoint(template, name, name)
    assert mountpoint(f"dev-{template}", name, name).startswith(f"dev-{name}/")
    client = Door(template).mounted(name, 5, username=name)
    assert client.connack is not None and client.connack.reason_code == 0x87
    assert client.closed
