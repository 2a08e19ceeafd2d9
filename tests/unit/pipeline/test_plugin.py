"""The plugin in a broker in memory: which events reach the log, and what waits for them."""

from __future__ import annotations

import errno
import os
import queue
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from mqttd.broker.ground.alarms import Alarms
from mqttd.codec.packets import Puback, Publish, Pubrec, Pubrel, Subscription
from mqttd.pipeline.log.reader import LogReader
from mqttd.pipeline.log.schema import Event
from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.log.zstd import QUICK, zstd
from mqttd.session.routes.route import HOOKED, RECORDED, TOLD
from mqttd.testing import LoadedPlugin, MemoryBroker, NotConnected, PluginConformance
from mqttd.types import PluginError
from mqttd_plugins.spark import spark
from mqttd_plugins.spark.config import SparkConfig
from mqttd_plugins.spark.exporter import chosen_events
from mqttd_plugins.spark.plugin import left_nodes, log_node, log_path
from tests.unit.pipeline.logs import written
from tests.unit.pipeline.test_log import foreign

DEADLINE = 30.0


class Node(MemoryBroker):
    """A broker whose clock has what a reactor has for threads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.clock.callFromThread = self.calls.put

    def export(self, **config: Any) -> LoadedPlugin:
        config.setdefault("path", str(self.path))
        self.loaded = self.load(spark, config)
        return self.loaded

    @property
    def log(self) -> Any:
        return self.loaded.plugin.log

    def until(self, true: Callable[[], Any]) -> None:
        """Let the writing thread say what it has to, until something is so."""
        self.advance(0.25)
        while not true():
            self.calls.get(timeout=DEADLINE)()
            self.settle()

    def written(self) -> None:
        done: list[int] = []
        self.log.when_written(self.log.next, lambda: done.append(1))
        self.until(lambda: done)

    def exported(self) -> list[Event]:
        """Everything in the log, after a clean stop."""
        self.loaded.unload()
        reader = LogReader(str(self.path))
        (name,) = reader.bounds()
        assert name == "memory"
        return _events(reader, name)


def _events(reader: LogReader, node: str) -> list[Event]:
    from mqttd.pipeline.log.reader import events

    return list(events(reader, node, *reader.bounds()[node]))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    assert not made.faults


class TestSpark(PluginConformance):
    """What every plugin must do."""

    plugin = spark
    cycles = 3

    @pytest.fixture(autouse=True)
    def stopped(self, tmp_path: Path) -> Iterator[None]:
        """No thread outlives its test: it would write into a directory that is being removed."""
        self.made: list[LoadedPlugin] = []
        self.config = {"events": ["*"], "path": str(tmp_path)}
        yield
        for one in self.made:
            log = one.plugin.log
            if log is not None:
                one.plugin.unload()
                assert log.join(DEADLINE)

    def load(self, node: MemoryBroker) -> LoadedPlugin:
        loaded = super().load(node)
        self.made.append(loaded)
        return loaded


def test_damage_is_an_alarm_as_long_as_the_file_is_kept(node: Node, tmp_path: Path) -> None:
    written(tmp_path, 3, node="memory")
    (name,) = (tmp_path / "memory").glob("*.events")
    data = bytearray(name.read_bytes())
    data[300] ^= 1
    name.write_bytes(data)
    node.export()
    assert f"{name.name} is damaged, and kept as" in node.loaded.alarms["damage"]
    assert "1 damaged files are kept" in node.loaded.alarms["damage"]
    for one in (tmp_path / "memory").glob("*.damaged-*"):
        one.unlink()
    node.loaded.unload()
    node.export()
    assert "damage" not in node.loaded.alarms
    node.loaded.unload()


def test_the_zip_for_a_cluster_has_what_executors_need(node: Node) -> None:
    path = node.export().command("package").strip()
    names = zipfile.ZipFile(path).namelist()
    assert {"mqttd/__init__.py", "mqttd/pipeline/spark/source.py"} <= set(names)
    assert not [name for name in names if name.startswith(("mqttd/broker", "mqttd_plugins"))]
    node.loaded.unload()


def test_a_life_of_a_client_is_told_in_order(node: Node) -> None:
    node.export(events=["*"])
    alice = node.connect("alice", username="al")
    alice.subscribe(Subscription("a/#", 1))
    node.connect("bob").publish("a/b", b"hello", 1, properties={38: [("k", "v")], 3: "text"})
    alice.messages()
    alice.unsubscribe("a/#")
    alice.disconnect()
    found = [
        (one.event, one.client_id, one.topic, one.qos, one.payload, one.reason)
        for one in node.exported()
    ]
    assert found == [
        ("session.created", "alice", None, None, None, None),
        ("client.connected", "alice", None, None, None, None),
        ("client.subscribe", "alice", "a/#", 1, None, None),
        ("session.subscribed", "alice", "a/#", 1, None, None),
        ("session.created", "bob", None, None, None, None),
        ("client.connected", "bob", None, None, None, None),
        ("message.publish", "bob", "a/b", 1, b"hello", None),
        ("message.delivered", "alice", "a/b", 1, None, None),
        ("message.acked", "alice", "a/b", 1, None, None),
        ("client.unsubscribe", "alice", "a/#", None, None, None),
        ("session.unsubscribed", "alice", "a/#", None, None, None),
        ("client.disconnected", "alice", None, None, None, "client disconnected"),
        ("session.terminated", "alice", None, None, None, "client disconnected"),
    ]


def test_a_session_that_is_taken_up_again_is_told_too(node: Node) -> None:
    node.export(events=["session.*"])
    keep = {17: 60}  # Session Expiry Interval
    node.connect("alice", properties=keep).drop()
    node.connect("alice", clean_start=False, properties=keep)
    found = [(one.event, one.client_id) for one in node.exported()]
    assert found == [("session.created", "alice"), ("session.resumed", "alice")]


def test_a_message_has_one_id_from_publish_to_ack_and_its_own_time(node: Node) -> None:
    node.export(events=["message.*"])
    alice = node.connect("alice")
    alice.subscribe("a", qos=1)
    node.connect("bob").publish("a", b"x", 1, properties={38: [("k", "v")]})
    node.connect("bob2").publish("nobody", b"y", 1)
    found = node.exported()
    assert [one.event for one in found] == [
        "message.publish",
        "message.delivered",
        "message.acked",
        "message.publish",
        "message.dropped",
    ]
    assert len({one.message_id for one in found[:3]}) == 1
    assert found[0].message_id is not None
    assert int.from_bytes(found[0].message_id, "big") >> 64 == found[0].timestamp
    assert found[0].properties and not found[1].properties
    assert found[4].reason == "no_subscriber" and found[4].message_id == found[3].message_id


@pytest.mark.parametrize("events", [["message.publish", "delivery.dropped"], ["message.*"]])
def test_what_one_receiver_misses_is_told_with_the_reason(node: Node, events: list[str]) -> None:
    node.export(events=events)
    small = node.connect("small", properties={39: 60}, username="s")  # Maximum Packet Size
    away = node.connect("away", properties={17: 600})
    full = node.connect("full")
    for client in (small, away, full):
        client.subscribe("a", qos=1)
    away.drop()
    bob = node.connect("bob")
    bob.publish("a", b"x" * 100, 1)
    for _ in range(node.broker.settings.mqueue_max_length):
        bob.publish("a", b"y", 1)
    found = node.exported()
    lost = [one for one in found if one.event == "delivery.dropped"]
    if events == ["message.*"]:
        assert not lost
        return
    published = [one for one in found if one.event == "message.publish"]
    assert [(one.client_id, one.username, one.topic, one.qos, one.reason) for one in lost] == [
        ("small", "s", "a", 1, "too_large"),
        ("away", None, "a", 1, "queue_full"),
    ]
    assert lost[0].message_id == published[0].message_id
    assert (lost[0].payload, lost[0].payload_size) == (None, 100)
    assert lost[1].message_id in {one.message_id for one in published}


def test_every_event_there_is_leaves_messages_as_they_came(node: Node) -> None:
    # One object for each delivery was ten times the CPU of a message with QoS 0.
    node.export(events=["*"])
    assert node.broker.router.of("a").gear & (HOOKED | TOLD | RECORDED) == RECORDED


def test_messages_of_topics_that_are_not_exported_pay_nothing(node: Node) -> None:
    # Those that reached nobody went as objects, for a row that was left out then.
    node.export(events=["*"], topics=["a/+"])
    assert node.broker.router.of("b").gear == 0
    node.connect("bob").publish("a/1", qos=1)
    node.connect("eve").publish("b", qos=1)
    found = [(one.event, one.topic) for one in node.exported() if one.topic]
    assert found == [("message.publish", "a/1"), ("message.dropped", "a/1")]


def test_only_what_was_chosen_is_exported(node: Node) -> None:
    node.export(events=["message.publish", "client.connected"], topics=["a/+"], clients=["dev-*"])
    for name in ("dev-1", "other"):
        client = node.connect(name)
        for topic in ("a/b", "a/b/c"):
            client.publish(topic, b"x")
    found = [(one.event, one.client_id, one.topic) for one in node.exported()]
    assert found == [("client.connected", "dev-1", None), ("message.publish", "dev-1", "a/b")]
    assert node.broker.points == set()


def test_points_that_were_not_chosen_are_not_hooked(node: Node) -> None:
    node.export(events=["client.connected"], stage=False)
    assert node.broker.points == {"client.connected"}
    assert node.broker.fast


@pytest.mark.parametrize(
    ("config", "payload"),
    [
        ({}, b"x" * 100),
        ({"payload": False}, None),
        ({"payload_limit": 99}, None),
        ({"payload_limit": 100}, b"x" * 100),
        ({"redact": ["payload"]}, None),
    ],
)
def test_payloads_as_far_as_they_are_wanted_sizes_always(
    node: Node, config: dict[str, Any], payload: bytes | None
) -> None:
    node.export(events=["message.publish"], **config)
    node.connect("alice").publish("a", b"x" * 100)
    (event,) = node.exported()
    assert (event.payload, event.payload_size) == (payload, 100)


def test_redacted_columns_stay_empty(node: Node) -> None:
    node.export(
        events=["client.connected", "message.publish"],
        redact=["client_id", "username", "peer", "topic", "headers"],
    )
    alice = node.connect("alice", username="al")
    alice.publish("secret", b"x", properties={38: [("k", "v")]})
    for event in node.exported():
        assert (event.client_id, event.username, event.peer, event.topic) == (None,) * 4
        assert not event.properties


def test_a_sample_takes_delivered_and_acked_of_the_same_messages(node: Node) -> None:
    node.export(events=["message.*"], sample=0.3)
    alice = node.connect("alice")
    alice.subscribe("a", qos=1)
    bob = node.connect("bob")
    for i in range(300):
        node.clock.advance(0.000_137)
        bob.publish("a", b"%d" % i, 1)
    found = node.exported()
    ids = {
        name: [one.message_id for one in found if one.event == name]
        for name in ("message.publish", "message.delivered", "message.acked")
    }
    assert len(ids["message.publish"]) == 300
    assert ids["message.delivered"] == ids["message.acked"]
    assert 30 < len(ids["message.acked"]) < 180


def test_large_payloads_do_not_make_large_blocks(node: Node) -> None:
    node.export(events=["message.publish"])
    alice = node.connect("alice")
    for _ in range(5):
        alice.publish("a", b"x" * 100_000)
    node.loaded.unload()
    reader = LogReader(str(node.path))
    reader.bounds()
    assert [one.rows for one in reader.blocks("memory", 0, 5)] == [1] * 5


# -- acknowledgements


def full(node: Node, is_full: bool) -> None:
    """The disk is full, or has room again."""
    writer = node.log.writer
    node.log.retry_every = 0.02

    def write(blocks: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if is_full:
        writer.write = write
    else:
        del writer.write


def answers(client: Any) -> list[int]:
    return [one.packet_id for one in client.received if isinstance(one, Puback | Pubrec)]


def test_acked_means_logged(node: Node) -> None:
    node.export(events=["message.publish"], acked_means_logged=True)
    alice = node.connect("alice")
    full(node, True)
    asked = node.loaded.handle.budget.calls
    alice.send(*[Publish("a", b"%d" % i, 1, packet_id=i) for i in range(1, 4)])
    alice.send(Publish("a", b"4", 2, packet_id=4))
    node.until(lambda: node.log.failing)
    assert answers(alice) == []
    assert node.loaded.handle.budget.calls > asked  # it is asked on the budget
    full(node, False)
    node.until(lambda: len(answers(alice)) == 4)
    assert answers(alice) == [1, 2, 3, 4]
    alice.send(Publish("a", b"5", 0))
    assert [one.payload for one in node.exported()] == [b"1", b"2", b"3", b"4", b"5"]


def test_qos_2_that_is_sent_again_is_not_acknowledged_before_the_first_is_logged(
    node: Node,
) -> None:
    node.export(events=["message.publish"], acked_means_logged=True)
    alice = node.connect("alice", clean_start=False, properties={17: 100})
    full(node, True)
    alice.send(Publish("a", b"1", 2, packet_id=1))
    alice.drop()
    alice = node.connect("alice", clean_start=False, properties={17: 100})
    alice.send(Publish("a", b"1", 2, dup=True, packet_id=1))
    node.until(lambda: node.log.failing)
    assert answers(alice) == []
    full(node, False)
    node.until(lambda: answers(alice))
    assert answers(alice) == [1]
    assert [one.payload for one in node.exported()] == [b"1"]


@pytest.mark.parametrize("fast", [True, False])
def test_qos_2_that_only_the_store_has_kept_is_logged_when_it_is_sent_again(
    node: Node, fast: bool
) -> None:
    node.broker.settings.fast_path = fast
    node.export(events=["message.publish"], acked_means_logged=True)
    bob = node.connect("bob")
    bob.subscribe("#", qos=2)
    node.connect("alice", clean_start=False, properties={17: 100}).drop()
    # A broker was killed that had routed message 1, and not yet logged nor acknowledged it.
    node.broker.sessions["alice"].restore_received(1, 0)
    alice = node.connect("alice", clean_start=False, properties={17: 100})
    for _ in range(2):
        alice.send(Publish("a", b"1", 2, dup=True, packet_id=1))
    node.until(lambda: len(answers(alice)) == 2)
    alice.send(Pubrel(1), Publish("a", b"2", 2, packet_id=1))
    node.until(lambda: len(answers(alice)) == 3)
    assert [one.payload for one in bob.messages()] == [b"2"]
    assert [one.payload for one in node.exported()] == [b"1", b"2"]


@pytest.mark.parametrize("config", [{"overflow": "block"}, {"acked_means_logged": True}])
def test_on_a_full_disk_qos_1_is_refused_and_qos_0_flows(
    node: Node, config: dict[str, Any]
) -> None:
    node.export(events=["message.publish"], topics=["a/#"], **config)
    bob = node.connect("bob")
    bob.subscribe("#")
    alice = node.connect("alice")
    full(node, True)
    alice.publish("a/1", b"before")
    node.until(lambda: node.log.failing)
    assert "No space left" in node.loaded.alarms["disk"]
    alice.send(Publish("a/1", b"refused", 1, packet_id=7))
    node.advance(0.25)
    assert [(one.packet_id, one.reason_code) for one in alice.received[1:]] == [(7, 0x97)]
    alice.publish("a/1", b"qos 0")
    assert [one.payload for one in bob.messages()] == [b"before", b"qos 0"]
    # MQTT 3.1.1 has no word for it: no acknowledgement, but the end of the connection.
    old = node.connect("old", version=4)
    with pytest.raises((NotConnected, AssertionError)):
        old.publish("a/1", b"refused", 1)
    assert old.closed and not answers(old)
    full(node, False)
    node.until(lambda: not node.log.failing and "disk" not in node.loaded.alarms)
    node.until(lambda: not node.log.waiters)
    assert [one.reason_code for one in alice.received[1:]] == [0x97]
    alice.send(Publish("a/1", b"after", 1, packet_id=8))
    node.until(lambda: answers(alice)[-1:] == [8])
    assert [one.payload for one in node.exported()] == [b"before", b"qos 0", b"after"]


def test_a_refusal_waits_for_the_acknowledgements_of_its_client_and_for_no_others(
    node: Node,
) -> None:
    """MQTT-4.6.0-2: in the order of the messages."""
    node.export(events=["message.publish"], acked_means_logged=True)
    alice, bob = node.connect("alice"), node.connect("bob")
    full(node, True)
    alice.send(Publish("a/1", b"taken", 1, packet_id=7))
    node.until(lambda: node.log.failing)
    for number in (8, 9):
        alice.send(Publish("a/1", b"refused", 1, packet_id=number))
        bob.send(Publish("a/1", b"refused", 1, packet_id=number))
    node.advance(0.25)
    assert alice.received[1:] == []
    assert [(one.packet_id, one.reason_code) for one in bob.received[1:]] == [(8, 0x97), (9, 0x97)]
    full(node, False)
    node.until(lambda: not node.log.waiters)
    assert [(one.packet_id, one.reason_code) for one in alice.received[1:]] == [
        (7, 0x10),  # nobody subscribes to it
        (8, 0x97),
        (9, 0x97),
    ]
    assert [one.payload for one in node.exported()] == [b"taken"]


def test_on_a_full_disk_drop_goes_on_and_leaves_a_gap(node: Node) -> None:
    node.export(events=["message.publish"], queue_bytes=1 << 16)
    alice = node.connect("alice")
    full(node, True)
    for _ in range(3):
        for i in range(1000):
            alice.send(Publish("a", b"%200d" % i))
        node.advance(0.25)
    assert alice.publish("a", b"", 1) in (0, 0x10)
    node.until(lambda: node.log.failing)
    assert "events were lost" in node.loaded.alarms["overflow"]
    full(node, False)
    node.until(lambda: not node.log.failing and not node.log.losing)
    node.written()
    assert node.loaded.alarms == {}
    found = node.exported()
    gaps = [one for one in found if one.event == "log.gap"]
    assert gaps and len(found) - len(gaps) + sum(one.lost for one in gaps) == 3001
    assert node.loaded.plugin.log is None


def test_14_how_many_events_were_lost_is_named_exactly(node: Node) -> None:
    alarms = Alarms()
    node.hooks.alarms = alarms
    node.export(events=["message.publish"], queue_bytes=1 << 16)
    alice = node.connect("alice")
    total = 0
    for _ in range(2):
        before = node.log.dropped
        full(node, True)
        for _ in range(3):
            for i in range(1000):
                alice.send(Publish("a", b"%200d" % i))
            node.advance(0.25)
        node.until(lambda: node.log.failing)
        full(node, False)
        node.until(lambda: not node.log.failing and not node.log.losing)
        total += node.log.dropped - before
        assert node.log.dropped > before
        alarm = [one for one in alarms.past() if one.name == "plugin.spark.overflow"][-1]
        text = f"the disk does not follow: {node.log.dropped - before} events were lost"
        assert alarm.text == text + (f", {total} since the start" if before else "")
    assert len([one for one in alarms.past() if one.name == "plugin.spark.overflow"]) == 2
    node.written()
    assert sum(one.lost for one in node.exported() if one.event == "log.gap") == total


def test_block_stops_reading_from_publishers_until_there_is_room(node: Node) -> None:
    node.export(events=["message.publish"], overflow="block", queue_bytes=1 << 16)
    alice = node.connect("alice")
    full(node, True)
    while not node.log.congested:
        alice.feed(Publish_many)
    assert not alice.wire.reading or alice.channel.paused
    assert not node.log.dropped
    full(node, False)
    node.until(lambda: not node.log.congested and not alice.channel.paused)
    assert not node.log.dropped


def test_what_the_rules_deny_is_not_overtaken_by_a_refusal(node: Node) -> None:
    node.deny("secret/a")
    node.export(events=["message.publish"], acked_means_logged=True)
    alice, bob = node.connect("alice"), node.connect("bob")
    full(node, True)
    bob.send(Publish("a/1", b"taken", 1, packet_id=7))
    node.until(lambda: node.log.failing)
    alice.send(Publish("secret/a", b"denied", 1, packet_id=7))
    for packet_id in (8, 9):
        alice.send(Publish("a/1", b"refused", 1, packet_id=packet_id))
    full(node, False)
    node.until(lambda: not node.log.waiters)
    assert [(one.packet_id, one.reason_code) for one in alice.received[1:]] == [
        (7, 0x87),
        (8, 0x97),
        (9, 0x97),
    ]


def _many() -> bytes:
    from mqttd.codec.serializer import serialize

    return b"".join(serialize(Publish("a", b"%100d" % i), 5) for i in range(100))


Publish_many = _many()


def test_unload_sends_what_was_held(node: Node) -> None:
    node.export(events=["message.publish"], acked_means_logged=True)
    alice = node.connect("alice")
    alice.send(Publish("a", b"1", 1, packet_id=1))
    assert answers(alice) == []
    node.loaded.unload()
    node.until(lambda: answers(alice) == [1])
    assert alice.publish("a", b"2", 1) in (0, 0x10)  # nothing is held any more


def test_what_a_full_disk_has_not_taken_at_a_stop_is_told_and_a_gap_stands_for_it(
    node: Node, tmp_path: Path
) -> None:
    node.export(events=["message.publish"])
    alice = node.connect("alice")
    alice.publish("a", b"1")
    node.written()
    full(node, True)
    alice.publish("a", b"2")
    alice.publish("a", b"3")
    with capturedLogs() as told:
        node.loaded.unload()
    (line,) = [formatEvent(one) for one in told if one["log_level"] is LogLevel.critical]
    assert "2 events were not written before the stop: No space left on device" in line
    node.export(events=["message.publish"])
    assert [(one.payload, one.lost) for one in node.exported()] == [(b"1", 0), (None, 2)]


def test_a_second_broker_on_a_log_is_refused_in_one_line(node: Node, tmp_path: Path) -> None:
    writer = Writer(str(node.path), "memory")
    with pytest.raises(PluginError, match=r"^the event log: another process writes this event log"):
        node.export()
    writer.close()


def test_files_that_are_no_groups_are_named_at_most_once_a_minute(
    node: Node, tmp_path: Path
) -> None:
    node.export(events=["message.publish"])
    plugin, writer = node.loaded.plugin, node.log.writer
    (node.path / "groups").mkdir()
    lines = []
    for name in ("x.json", "y.json"):
        (node.path / "groups" / name).mkdir()
        for _ in range(2):
            writer.clean_up()
            with capturedLogs() as told:
                plugin._changed()
            lines += [formatEvent(one) for one in told]
    assert len(lines) == 1
    assert "1 files in groups/ are no group's, they keep nothing: 'x.json': not a reg" in lines[0]
    assert node.loaded.metrics()["skipped_group_files"] == 2
    node.advance(61)
    with capturedLogs() as told:
        plugin._changed()
    assert ["'y.json'" in formatEvent(one) for one in told] == [True]


# -- configuration


@pytest.mark.parametrize("compression", ["auto", "zstd", "none"])
def test_14_payloads_have_a_quicker_codec_where_columns_have_one(
    node: Node, compression: str
) -> None:
    node.export(compression=compression)
    found = node.log.codec, node.log.quick
    assert found == ((None, None) if compression == "none" else (zstd(), zstd(QUICK)))
    assert node.log.loose is (compression == "auto")


def test_events_that_are_none_are_told() -> None:
    with pytest.raises(ValueError, match="'message.published' is no event; there are: client.con"):
        chosen_events(("message.published",))
    assert chosen_events(("session.c*",)) == ["session.created"]


def test_a_log_of_a_newer_format_is_told_in_a_line(node: Node) -> None:
    """What is no PluginError is told with a traceback first."""
    written(node.path, 1, node="memory")
    (found,) = (node.path / "memory").glob("*.events")
    found.write_bytes(foreign(found.read_bytes()))
    with pytest.raises(PluginError, match=r"^the event log: .*: at byte 0 is a block of a format"):
        node.export()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"events": ["nope"]}, "'nope' is no event"),
        ({"overflow": "wait"}, "overflow"),
        ({"sample": 2.0}, "sample"),
        ({"redact": ["secret"]}, "redact"),
        ({"block_events": 0}, "block_events"),
        ({"evnts": []}, "evnts"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(
    node: Node, config: dict[str, Any], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        node.export(**config)


def test_the_log_goes_on_after_the_plugin_was_loaded_again(node: Node) -> None:
    for i in range(3):
        node.export(events=["message.publish"])
        node.connect("alice").publish("a", b"%d" % i)
        node.loaded.unload()
    reader = LogReader(str(node.path))
    assert [one.payload for one in _events(reader, "memory")] == [b"0", b"1", b"2"]


def test_figures_are_shown(node: Node) -> None:
    node.export(events=["message.publish"])
    node.connect("alice").publish("a", b"x")
    node.written()
    figures = node.loaded.metrics()
    assert figures["events_total"] == figures["written_total"] == 1
    assert figures["written_bytes_total"] > 64 and figures["dropped_total"] == 0


def test_who_and_what_was_refused_is_told(node: Node) -> None:
    from mqttd.types import STOP, AuthError

    node.export(events=["client.authenticate", "client.authorize"])
    node.deny("secret/a", "secret/#")
    alice = node.connect("alice")
    alice.publish("secret/a", b"x", 1)
    alice.publish("open", b"x", 1)
    alice.subscribe("secret/#", qos=1)
    node.hooks.hook("client.authenticate", lambda *args: STOP(AuthError("no")))
    with pytest.raises(NotConnected):
        node.connect("mallory").publish("a", b"x", 1)
    found = [(one.event, one.client_id, one.topic, one.qos, one.reason) for one in node.exported()]
    assert found == [
        ("client.authorize", "alice", "secret/a", 1, "publish"),
        ("client.authorize", "alice", "secret/#", 1, "subscribe"),
        ("client.authenticate", "mallory", None, None, "Bad User Name or Password"),
    ]


def test_what_cannot_be_exported_is_not_acknowledged(node: Node) -> None:
    node.export(events=["message.publish"], acked_means_logged=True)
    bob, alice = node.connect("bob"), node.connect("alice")
    columns = node.log.columns
    whole = columns.full

    def broken() -> None:
        raise ValueError("broken")

    columns.most, columns.full = 1, broken
    with pytest.raises(ValueError, match="broken"):  # the transport ends the connection
        bob.send(Publish("a", b"1", 1, packet_id=1))
    assert answers(bob) == []
    columns.most, columns.full = 256, whole
    budget = node.loaded.handle.budget
    for _ in range(budget.error_limit):
        budget.failed("raised", "a test", node.clock.seconds())
    assert budget.shut
    alice.send(Publish("a", b"2", 1, packet_id=2))
    node.advance(1.0)
    assert answers(alice) == [] and alice.closed
    budget.readmit()


def test_workers_write_one_log_each_its_own_part() -> None:
    config = SparkConfig()
    data = "/srv/data/worker-2/plugins/spark"
    assert log_path(config, "/etc/plugins", data, 2) == "/srv/data/events"
    assert log_path(config, "/etc/plugins", "/srv/data/plugins/spark", 0) == "/srv/data/events"
    assert log_path(SparkConfig(path="log"), "/etc/plugins", data, 2) == "/etc/plugins/log"
    assert log_node(config, "a", 0) == "a"
    assert log_node(config, "a", 2) == "a-worker-2"
    assert log_node(SparkConfig(node="b"), "a", 2) == "b-worker-2"


@pytest.mark.parametrize(
    ("workers", "left"),
    [
        (1, ["a-worker-1", "a-worker-2", "a-worker-3"]),
        (2, ["a", "a-worker-3"]),
        (3, ["a"]),
    ],
)
def test_parts_of_workers_that_are_there_no_longer_are_left(workers: int, left: list[str]) -> None:
    nodes = ["a", "a-worker-1", "a-worker-2", "a-worker-3", "a-worker-x", "ab", "b-worker-9"]
    assert left_nodes(nodes, "a", workers) == left


def test_the_archive_is_asked_in_a_thread_before_the_log_is_opened(node: Node) -> None:
    """Importing what reaches it takes a third of a second, in which everybody waited."""
    with pytest.raises(ValueError, match="archive = 'nowhere://x'"):
        node.export(archive="nowhere://x")
    assert not (node.path / "log.json").exists()
    node.export(archive=f"file://{node.path}-archive")
    assert (node.path / "log.json").exists()
    node.loaded.unload()
