"""A broker as the service builds it, with clients whose connections are lists of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from mqttd.access.chain import AccessControl
from mqttd.broker.broker import Broker
from mqttd.codec.packets import Connect, Packet, Subscribe, Subscription
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize
from mqttd.config.load import load
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.settings import Settings
from mqttd.transports.stream import StreamEdge


class Transport:
    """Keeps what is written, and whether the connection was closed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def loseConnection(self) -> None:
        self.closed = True

    def pauseProducing(self) -> None:
        pass

    def resumeProducing(self) -> None:
        pass


class MemoryClient:
    """A client of version 5 that is connected to `broker`."""

    def __init__(self, broker: Broker, client_id: str, username: str | None = None) -> None:
        self.broker = broker
        self.edge = Transport()
        stream = StreamEdge(broker, self.edge, "127.0.0.1", 54321)
        self.channel = Channel(broker, stream, -1, "default")
        stream.channel = self.channel
        self.parser = Parser(5, role="client")
        self.send(Connect(client_id, 5, username=username, properties={0x11: 60}))

    def send(self, packet: Packet) -> None:
        self.channel.feed(serialize(packet, 5))
        self.broker.perform()

    def subscribe(self, topic_filter: str, qos: int = 0, **options: bool) -> None:
        self.send(Subscribe(1, [Subscription(topic_filter, qos, **options)]))

    def received(self) -> list[Packet]:
        """The packets that came since the last call."""
        data, self.edge.written = bytes(self.edge.written), bytearray()
        return self.parser.feed(data)


def make_broker(tmp_path: Path, acl: str = "{allow, all}.\n") -> Broker:
    (tmp_path / "acl.conf").write_text(acl)
    file = tmp_path / "mqttd.conf"
    file.write_text("")
    access = AccessControl(load(str(file), {}))
    hooks = Hooks()
    ticks: Iterator[int] = count(1)
    broker = Broker(
        Settings(), access, hooks, clock=lambda: next(ticks), now=1000,
        soon=lambda later: None, log=lambda event, fields: None, name="test",
    )  # fmt: skip
    hooks.listeners_changed.append(broker.hooks_changed)
    broker.access_changed()
    return broker
