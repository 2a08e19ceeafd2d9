"""Topics in a realm of their client: one comparison whatever follows, and nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.broker.broker import Broker
from mqttd.codec.packets import Connect, Puback, Publish
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.transports.stream import StreamEdge
from tests.unit.admin.node import MemoryClient, Transport, make_broker

OWN = '{allow, all, publish, ["dev/%c/#"]}.\n{allow, all, subscribe}.\n'


class Plain(MemoryClient):
    """A client that sends many packets at once."""

    def __init__(self, broker: Broker, client_id: str, version: int = 5) -> None:
        self.broker = broker
        self.version = version
        self.edge = Transport()
        stream = StreamEdge(broker, self.edge, "127.0.0.1", 54321)
        self.channel = Channel(broker, stream, -1, "default")
        stream.channel = self.channel
        self.parser = Parser(version, role="client")
        self.channel.feed(serialize(Connect(client_id, version), version))
        broker.perform()
        self.received()

    def publish(self, *names: str, qos: int = 0, payload: bytes = b"x" * 20) -> list[int]:
        """The codes of their acknowledgements, at QoS 1."""
        packets = [
            Publish(name, payload, qos, packet_id=at + 1 if qos else 0)
            for at, name in enumerate(names)
        ]
        self.channel.feed(b"".join(serialize(packet, self.version) for packet in packets))
        self.broker.perform()
        return [one.reason_code for one in self.received() if isinstance(one, Puback)]


def test_a_topic_that_came_once_among_many_is_not_remembered(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, '{allow, all, publish, ["+/%c"]}.\n')
    broker.router.selective = 0
    client = Plain(broker, "c")
    client.publish(*(f"{n}/c" for n in range(50)))
    warm = client.channel.warm
    assert warm is None or not warm.own
    for _ in range(2):
        client.publish("again/c")
    assert client.channel.warm is not None and len(client.channel.warm.own or ()) == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_topics_that_never_come_again_are_led_by_a_realm(tmp_path: Path, qos: int) -> None:
    """Each with receivers, and no decision once the realm is known."""
    broker = make_broker(tmp_path, OWN)
    broker.settings.look_ahead = 0
    broker.router.selective = 0
    reader = MemoryClient(broker, "r")
    reader.subscribe("#", 1)
    reader.received()
    client = Plain(broker, "c")
    client.publish(*(f"dev/c/{n}" for n in range(40)), qos=qos)
    reader.received()
    before = broker.metrics.rights_decided, broker.metrics.routes_built
    names = [f"dev/c/{n}/v" for n in range(40, 80)]
    client.publish(*names, qos=qos)
    assert [one.topic for one in reader.received() if isinstance(one, Publish)] == names
    assert broker.metrics.rights_decided == before[0]
    assert broker.metrics.routes_built <= before[1] + 1
    # What does not begin so is decided by the rules, though a stem could lead it.
    codes = client.publish("dev/c/a", "dev/d/a", "dev/c", "dev/cc/a", qos=1)
    assert [code == 0x87 for code in codes] == [False, True, False, True]


def test_a_realm_does_not_reach_beyond_the_topic(tmp_path: Path) -> None:
    """The payload may go on as a realm does."""
    broker = make_broker(tmp_path, OWN)
    broker.settings.look_ahead = 0
    reader = MemoryClient(broker, "r")
    reader.subscribe("#")
    client = Plain(broker, "c", 4)
    client.publish(*(f"dev/c/{n}" for n in range(40)))
    reader.received()
    client.publish("dev", "dev/c/a", "dev", payload=b"/c/" * 9)
    assert [one.topic for one in reader.received() if isinstance(one, Publish)] == ["dev/c/a"]


def test_a_name_that_no_topic_can_begin_with_is_not_kept(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, '{allow, all, publish, ["%c/%c/%c/%c/#", "+/#"]}.\n')
    broker.settings.max_topic_length = 200
    kept = {}
    for name in ("c" * 48, "c" * 50):
        client = Plain(broker, name)
        client.publish(*(f"{n}/a" for n in range(20)))
        kept[len(name)] = client.channel.judge.realms(client.channel)
    assert kept == {48: [b"/".join([b"c" * 48] * 4) + b"/"], 50: []}
