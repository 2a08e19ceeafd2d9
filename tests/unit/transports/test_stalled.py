"""Slow consumers: what is dropped and told, what is kept, and when one is ended."""

from __future__ import annotations

from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.transports.stalled import Stalled
from mqttd.types import ClientInfo
from tests.support.memory import MemoryBroker, MemoryClient

ROOM = 1000  # bytes the peer's transport takes
WATERMARK = 8192


class Slow(MemoryBroker):
    """A broker with a look-out for peers that read nothing for ten seconds."""

    def __init__(self) -> None:
        settings = Settings()
        settings.high_watermark = WATERMARK
        settings.low_watermark = 1024
        super().__init__(settings)
        self.stalled = Stalled(self.broker, 10_000)

    def pass_time(self, seconds: int) -> None:
        for _ in range(4 * seconds):
            self.advance(250)
            self.stalled.tick(self.now)


def subscriber(node: Slow, qos: int = 0, clean: bool = True) -> MemoryClient:
    client = node.connect("slow", version=4, clean=clean, room=ROOM)
    client.send(Subscribe(1, [Subscription("t", qos)]))
    client.read()
    return client


def flood(node: Slow, count: int = 100, qos: int = 0) -> None:
    sender = node.connect("sender")
    for n in range(count):
        sender.send(Publish("t", b"x" * 500, qos, packet_id=n + 1 if qos else 0))


def test_qos_0_above_the_watermark_is_dropped_counted_and_told_with_its_reason() -> None:
    node = Slow()
    told: list[str] = []

    def dropped(client: ClientInfo, reason: str, message: Message) -> None:
        assert (client.client_id, message.topic) == ("slow", "t")
        told.append(reason)

    node.hooks.hook("delivery.dropped", dropped)
    client = subscriber(node)
    flood(node)
    assert client.channel.out_bytes <= WATERMARK
    assert len(told) > 50
    assert set(told) == {"slow_consumer"}
    assert node.broker.metrics.dropped_slow_consumer == len(told)


def test_qos_1_waits_in_the_session_within_its_limits() -> None:
    node = Slow()
    node.settings.mqueue_max_length = 50
    client = subscriber(node, qos=1, clean=False)
    flood(node, 150, qos=1)
    assert client.channel.out_bytes <= WATERMARK
    assert client.session.mqueue is not None
    assert client.session.mqueue.length == 50
    assert node.broker.metrics.dropped_queue_full > 0


def test_a_peer_that_reads_nothing_is_ended_in_time() -> None:
    node = Slow()
    client = subscriber(node, qos=1, clean=False)
    flood(node, qos=1)
    node.pass_time(9)
    assert not client.closed
    node.pass_time(4)
    assert client.closed
    assert node.broker.metrics.send_timeouts == 1
    (fields,) = [fields for event, fields in node.events if event == "disconnected"]
    assert fields["reason"] == "Quota exceeded"
    assert node.broker.slow == {}
    node.pass_time(2)
    assert node.stalled._queued == {}
    session = node.session("slow")
    assert session is not None
    assert session.pending()


def test_a_peer_that_reads_from_time_to_time_is_kept() -> None:
    node = Slow()
    client = subscriber(node)
    for _ in range(5):
        flood(node, 5)
        node.pass_time(8)
        client.read()
    assert not client.closed
    assert node.broker.metrics.send_timeouts == 0


def test_without_a_time_none_is_ended() -> None:
    node = Slow()
    node.stalled.timeout = 0
    client = subscriber(node)
    flood(node)
    node.pass_time(60)
    assert not client.closed


def test_publishers_wait_for_those_who_have_just_fallen_behind_and_not_for_ever() -> None:
    """One of them takes something now and then, so that it is never ended."""
    node = Slow()
    node.settings.backlog = WATERMARK // 2
    client = subscriber(node)
    flood(node)
    sender = node.connect("sender")
    other = node.connect("other")
    client.channel.account()  # as edges do that write to sockets
    sender.send(Publish("u", b"x"))  # it, and whoever publishes, waits
    other.send(Publish("u", b"x"))
    assert node.broker.backlog == node.broker.awaited() > node.settings.backlog
    assert sender.channel.paused and other.channel.paused
    node.pass_time(3)
    assert client.channel.blocked and node.broker.backlog > node.settings.backlog
    assert not node.broker.awaited()
    assert not (sender.channel.paused or other.channel.paused)
    other.send(Publish("u", b"x"))
    assert not other.channel.paused
    assert node.broker.overdue == node.broker.backlog
    while client.channel.out_bytes:
        client.read()
    client.channel.account()
    node.pass_time(2)
    assert not node.broker.overdue and not node.broker.backlog
