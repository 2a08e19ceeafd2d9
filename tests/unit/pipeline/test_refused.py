"""What may not be published is in the log, each message of it: whichever way it was refused."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from mqttd.broker.broker import Broker
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscription
from mqttd.codec.serializer import serialize
from mqttd.pipeline.log import packed
from mqttd.pipeline.log.blocks import NO_ID
from mqttd.pipeline.log.columns import TEXT, Columns, peer_text
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import pack
from mqttd.pipeline.log.schema import Event
from mqttd.session.ground.message import Message
from mqttd.testing import MemoryBroker
from mqttd.types import Action, ClientInfo
from tests.unit.admin.node import make_broker
from tests.unit.broker.test_realms import OWN, Plain
from tests.unit.broker.test_refusals import Quiet, deaf

TOPICS = ("x", "x", "x", "dev/c/a", "dev/d", "x/1", "x/1", "ü/ä")


class Log:
    """A broker whose refusals are kept, as the event log keeps them."""

    def __init__(self, path: Path, heard: bool, **changed: Any) -> None:
        self.broker = make_broker(path, OWN)
        for name, value in changed.items():
            setattr(self.broker.settings, name, value)
        self.broker.hooks_changed("", False)
        self.heard = heard
        self.columns = Columns(100_000, lambda: None, lambda: None)
        self.broker.add_denials(self.columns)
        self.broker.add_deliveries(self.columns, False, False, None, False, True)

    def quiet(self) -> None:
        """The log of the broker has no room for lines, unless it is to be told of each."""
        if not self.heard:
            deaf(self.broker)
            assert not self.broker.tap_denied

    def taken(self) -> list[Event]:
        return events(self.columns)


def events(columns: Columns) -> list[Event]:
    """What was kept since the last call."""
    if not columns.count:
        return []
    return list(decode_block(pack(columns.take(), 0), "n"))


def told(found: list[Event]) -> list[tuple[object, ...]]:
    """All of what was refused that is not a time or an id, in order."""
    return [(one.event, *one[5:15]) for one in found if one.reason != "no_subscriber"]


def story(log: Log, version: int, qos: int) -> list[tuple[object, ...]]:
    """What is kept of clients that publish the same in each turn, and how often they may not."""
    dice = random.Random(7)
    clients = [Plain(log.broker, name, version) for name in ("c", "d")]
    found: list[tuple[object, ...]] = []
    ids: list[bytes] = []
    for turn in range(6):
        for client in clients:
            data = b""
            for at in range(12):
                payload = b"x" * dice.choice([3, 3, 3, 7])
                retain = dice.random() < 0.1
                topic = dice.choice(TOPICS)
                number = turn * 20 + at + 1 if qos else 0
                data += serialize(Publish(topic, payload, qos, retain, False, number), version)
            log.quiet()
            client.channel.feed(data)
        log.broker.perform()
        taken = log.taken()
        ids += [one.message_id for one in taken if one.message_id is not None]
        found += told(taken)
    refused = log.broker.metrics.publishes_denied
    assert refused > 80
    for event in ("client.authorize", "message.dropped"):
        assert len([one for one in found if one[0] == event]) == refused
    assert len(set(ids)) == len(ids)
    return found


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_bytes_and_parsed_packets_say_the_same(tmp_path: Path, version: int, qos: int) -> None:
    fast = story(Log(tmp_path, False), version, qos)
    assert fast == story(Log(tmp_path, True), version, qos)
    assert fast == story(Log(tmp_path, True, fast_path=False), version, qos)
    hooked = Log(tmp_path, True)
    heard: list[tuple[object, ...]] = []

    def denied(client: ClientInfo, action: Action, topic: str, acc: object) -> None:
        peer = peer_text(client.peerhost, client.peerport)
        heard.append(("client.authorize", client.client_id, client.username, peer, topic,
                      action.qos, action.retain, action.kind, None, None, b""))  # fmt: skip

    def dropped(client: ClientInfo, reason: str, message: Message) -> None:
        if reason != "no_subscriber":
            size = len(message.payload)
            heard.append(("message.dropped", client.client_id, client.username, None, message.topic,
                          message.qos, message.retain, reason, None, size, b""))  # fmt: skip

    hooked.broker.hooks.hook("client.denied", denied)
    hooked.broker.hooks.hook("message.dropped", dropped)
    assert fast == story(hooked, version, qos)
    for event in ("client.authorize", "message.dropped"):
        for name in ("c", "d"):
            mine = [one for one in heard if one[:2] == (event, name)]
            assert mine == [one for one in fast if one[:2] == (event, name)]


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_that_ends_its_connection_is_told_before_that(
    tmp_path: Path, fast_path: bool, version: int, qos: int
) -> None:
    log = Log(tmp_path, False, fast_path=fast_path, deny_disconnect=True)
    left: list[int] = []
    log.broker.hooks.hook("client.disconnected", lambda *args: left.append(log.columns.count))
    for _ in range(5):
        client = Plain(log.broker, "c", version)
        log.quiet()
        client.publish("dev/c/a", "x", "x", qos=qos)
        assert client.edge.closed and left.pop() == log.columns.count
        found = [(one.event, one.topic, one.reason) for one in log.taken()]
        assert [one for one in found if one[1] == "x"] == [
            ("client.authorize", "x", "publish"),
            ("message.dropped", "x", "denied"),
        ]


def test_the_trail_takes_nothing_from_the_log(tmp_path: Path) -> None:
    """With a trail that has room for none, and for each: as many events, under the same ids."""
    log = Log(tmp_path, True)
    log.broker.trail = Quiet()  # type: ignore[assignment]
    client = Plain(log.broker, "c")
    client.publish("x", "x", "x")
    assert len(log.taken()) == 6
    lost: list[bytes] = []

    class Room(Quiet):
        def room(self, reason: str) -> bool:
            return True

        def lost(self, message: Any, *args: object) -> None:
            lost.append(message.id.to_bytes(16, "big"))

    log.broker.trail = Room()  # type: ignore[assignment]
    client.publish("x", "x", "x")
    assert [one.message_id for one in log.taken() if one.event == "message.dropped"] == lost
    assert len(lost) == 3


def test_who_it_was_and_when_is_told(tmp_path: Path) -> None:
    log = Log(tmp_path, False)
    client = Plain(log.broker, "c")
    client.publish("x")
    log.taken()
    deaf(log.broker)
    client.publish("x", "x", qos=1)
    found = log.taken()
    assert [one.peer for one in found] == ["127.0.0.1:54321"] * 2 + [None] * 2
    assert [one.payload_size for one in found] == [None] * 2 + [20] * 2
    assert [one.qos for one in found] == [1] * 4
    first, second = (one.message_id for one in found[2:])
    assert found[0].message_id is found[1].message_id is None
    assert first is not None and second is not None
    assert int.from_bytes(second, "big") == int.from_bytes(first, "big") + 1


def test_spark_sees_ids_of_messages_and_of_no_denial(tmp_path: Path) -> None:
    """Also of denials in one run, where the ids of messages would follow one another."""
    columns_of = pytest.importorskip("mqttd.pipeline.spark.columns").columns_of
    log = Log(tmp_path, False)
    client = Plain(log.broker, "c")
    client.publish("x")
    log.taken()
    deaf(log.broker)
    client.publish(*["x"] * 5)
    block = pack(log.columns.take(), 0)
    assert packed.Columns(block)[packed.COUNTS] == array("I", [5, 5]).tobytes()
    found = [one.message_id or NO_ID for one in decode_block(block, "n")]
    assert found[:5] == [NO_ID] * 5 and len(set(found)) == 6
    assert columns_of([memoryview(block)]).ids().tobytes() == b"".join(found)


def test_a_topic_beyond_a_limit_is_dropped_and_no_denial(tmp_path: Path) -> None:
    log = Log(tmp_path, True, max_topic_levels=3)
    client = Plain(log.broker, "c")
    client.publish("dev/c/a/b/c/d", qos=1)
    (one,) = log.taken()
    assert (one.event, one.topic, one.reason) == ("message.dropped", "dev/c/a/b/c/d", "denied")


def test_only_those_that_are_wanted(tmp_path: Path) -> None:
    """Denials are of all topics; messages of those that were asked for."""
    broker = make_broker(tmp_path, OWN)
    columns = Columns(1000, lambda: None, lambda: None)
    denials = broker.add_denials(columns)
    messages = broker.add_deliveries(columns, False, False, ["x/#"], False, True)
    client = Plain(broker, "c")
    client.publish("x", "y", "x")
    deaf(broker)
    client.publish("x", "y", "x")
    found = [(one.event, one.topic) for one in events(columns)]
    assert found == [
        *(("client.authorize", topic) for topic in ("x", "y", "x")),
        ("message.dropped", "x"), ("message.dropped", "x"),
    ] * 2  # fmt: skip
    broker.remove_denials(denials)
    client.publish("x")
    deaf(broker)
    client.publish("x")
    assert [one.event for one in events(columns)] == ["message.dropped"] * 2
    broker.remove_deliveries(messages)
    client.publish("x")
    assert not columns.count and not broker.tap_refused


def test_long_topics_in_few_bytes_make_no_batch_that_is_too_large() -> None:
    """As `test_notes` has it: by Topic Alias a client names them with few."""
    node = MemoryBroker()
    node.settings.max_topic_alias = 2
    taken: list[Any] = []
    columns = Columns(1 << 20, lambda: None, lambda: taken.append(columns.take()))
    node.broker.add_denials(columns)
    node.broker.add_deliveries(columns, False, False, None, False, True)
    names = ["x" * 65_000, "y" * 65_000]
    node.deny(*names)
    client = node.connect("c")
    alias = prop.TOPIC_ALIAS
    client.feed(b"".join(
        serialize(Publish(name, b"", 0, False, False, 0, {alias: at + 1}), 5)
        for at, name in enumerate(names)))  # fmt: skip
    deaf(node.broker)
    client.feed(b"".join(
        serialize(Publish("", b"", 0, False, False, 0, {alias: at % 2 + 1}), 5)
        for at in range(500)))  # fmt: skip
    rows = columns.count
    for one in taken:
        assert sum(map(len, one.columns)) < TEXT + 4 * 2**17
        rows += one.rows
    assert rows == 2 * 502 and len(taken) > 10


def test_a_client_that_may_not_subscribe() -> None:
    node = MemoryBroker()
    node.deny("secret/#")
    columns = Columns(1000, lambda: None, lambda: None)
    node.broker.add_denials(columns)
    columns.hide_peer = True
    columns.wants = lambda client: client == "alice"
    for name in ("alice", "bob"):
        node.connect(name, username="u").subscribe(Subscription("secret/#", 1))
    (one,) = events(columns)
    assert one[2:3] + one[4:7] == ("client.authorize", None, "alice", "u")
    assert (one.peer, one.topic, one.qos, one.reason) == (None, "secret/#", 1, "subscribe")


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("::1", 5, "[::1]:5"), ("10.0.0.1", 5, "10.0.0.1:5"), ("unix", 0, "unix"), ("", 0, "")],
)
def test_an_address_and_a_port(host: str, port: int, text: str) -> None:
    assert peer_text(host, port) == text


def test_who_is_asked_about_by_a_plugin(tmp_path: Path) -> None:
    """`IPluginHandle.authorize` asks for whom it likes, and any text may be a topic there."""
    broker: Broker = make_broker(tmp_path, OWN)
    columns = Columns(1000, lambda: None, lambda: None)
    broker.add_denials(columns)
    client = ClientInfo("c", None, "::1", 1, "default", 5)
    assert not broker.authorize(client, Action("publish", 2, True), "a\0b\udcff")
    (one,) = events(columns)
    assert (one.topic, one.peer, one.qos, one.retain) == ("a\ufffdb?", "[::1]:1", 2, True)
