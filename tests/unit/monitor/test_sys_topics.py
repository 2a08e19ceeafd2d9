"""What a subscriber of `$SYS/#` sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from mqttd.broker.broker import Broker
from mqttd.codec.packets import Publish
from mqttd.config.schema import Log as Settings
from mqttd.monitor.event_log import EventLog
from mqttd.monitor.log.service import Log
from mqttd.monitor.log.targets import StreamTarget
from mqttd.monitor.sys_topics import SysTopics
from mqttd.session.ground.metrics import COUNTERS, DROP_REASONS
from tests.unit.admin.node import MemoryClient, make_broker

DOCS = Path(__file__).parents[3] / "docs/reference"


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return make_broker(tmp_path)


def seen(client: MemoryClient) -> dict[str, str]:
    return {
        packet.topic: packet.payload.decode()
        for packet in client.received()
        if isinstance(packet, Publish)
    }


def test_a_later_subscriber_has_all_figures_at_once(broker: Broker) -> None:
    topics = SysTopics(broker, 60.0, Clock(), wall=lambda: 1_700_000_000.0)
    topics.start()
    client = MemoryClient(broker, "a")
    client.received()
    client.subscribe("$SYS/#")
    found = seen(client)
    assert found.keys() == topics.topics().keys()
    assert found["$SYS/broker/version"].startswith("mqttd ")
    assert found["$SYS/broker/uptime"] == "0 seconds"
    assert found["$SYS/broker/datetime"] == "2023-11-14T22:13:20+00:00"
    assert found["$SYS/broker/compiled"] in ("true", "false")
    topics.stop()


def test_figures_are_published_in_every_interval_until_stopped(broker: Broker) -> None:
    clock = Clock()
    topics = SysTopics(broker, 10.0, clock)
    topics.start()
    client = MemoryClient(broker, "a")
    client.subscribe("$SYS/broker/clients/connected")
    assert seen(client) == {"$SYS/broker/clients/connected": "0"}
    clock.advance(9)
    assert seen(client) == {}
    clock.advance(1)
    assert seen(client) == {"$SYS/broker/clients/connected": "1"}
    topics.stop()
    clock.advance(100)
    assert seen(client) == {}


def test_interval_0_publishes_nothing(broker: Broker) -> None:
    clock = Clock()
    SysTopics(broker, 0, clock).start()
    assert not clock.getDelayedCalls()
    assert len(broker.retainer) == 0


def test_who_leaves_the_topics_to_another_worker_tells_of_it_alone(broker: Broker) -> None:
    clock = Clock()
    topics = SysTopics(broker, 10.0, clock, wall=lambda: 1_700_000_000.0)
    topics.silent = True
    topics.told_if_silent = frozenset(("worker_down",))
    client = MemoryClient(broker, "a")
    client.subscribe("$SYS/brokers/+/alarms/#")
    down: dict[str, object] = {"alarm": "worker_down", "text": "worker 1 has ended"}
    topics.alarm("alarm raised", down)
    clock.advance(0)
    assert seen(client) == {}  # not started yet
    topics.start()
    topics.alarm("alarm raised", {"alarm": "dashboard", "text": "none"})
    topics.alarm("alarm raised", down)
    clock.advance(0)
    ((topic, payload),) = seen(client).items()
    assert topic.endswith("/alarms/activate")
    assert '"worker_down"' in payload
    topics.alarm("alarm cleared", down)
    clock.advance(0)
    assert [topic.rpartition("/")[2] for topic in seen(client)] == ["deactivate"]
    topics.take_over(0)
    topics.alarm("alarm raised", down)
    clock.advance(0)
    assert seen(client) == {}
    topics.take_over(10.0)
    topics.alarm("alarm raised", down)
    clock.advance(0)
    assert len(seen(client)) == 1
    topics.stop()
    topics.alarm("alarm raised", down)
    clock.advance(0)
    assert seen(client) == {}


def test_hash_does_not_see_the_brokers_own_topics(broker: Broker) -> None:
    client = MemoryClient(broker, "a")
    client.subscribe("#")
    client.received()
    SysTopics(broker, 10.0, Clock()).publish()
    assert seen(client) == {}


def test_clients_and_drops_are_counted(broker: Broker) -> None:
    topics = SysTopics(broker, 10.0, Clock())
    MemoryClient(broker, "a").send(Publish("t", b"", 0))
    away = MemoryClient(broker, "b")
    topics.publish()
    broker.kick("b")
    assert away.edge.closed
    broker.metrics.dropped_queue_full += 3
    broker.metrics.dropped_expired += 1
    figures = {name.removeprefix("$SYS/broker/"): value for name, value in topics.topics().items()}
    assert figures["clients/total"] == "2"
    assert figures["clients/connected"] == "1"
    assert figures["clients/disconnected"] == "1"
    assert figures["clients/maximum"] == "2"
    assert figures["publish/messages/received"] == "1"
    assert figures["publish/messages/dropped"] == "4"
    assert figures["publish/messages/dropped/queue_full"] == "3"
    assert {f"publish/messages/dropped/{reason}" for reason in DROP_REASONS} <= figures.keys()


def test_every_topic_is_in_the_reference(broker: Broker) -> None:
    page = (DOCS / "sys-topics.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(\$SYS/[^`]+)`", page, re.MULTILINE))
    own = f"$SYS/brokers/{broker.name}/"
    topics = SysTopics(broker, 10.0, Clock()).topics()
    assert documented == {topic.replace(own, "$SYS/brokers/NODE/") for topic in topics}


def test_every_counter_and_gauge_is_in_the_reference(broker: Broker) -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `([a-z0-9_]+)`", page, re.MULTILINE))
    events = EventLog(lambda: 0.0)
    events.write_to(Log(Settings(), StreamTarget()))
    counted = {*COUNTERS, "messages_received", "dropped", *broker.stats(), *events.counters()}
    # A cluster, and who has workers, count beside the broker; the names are those in their sources.
    beside = {"cluster_": "cluster/admin/shown", "replication_": "cluster/replication/replication",
              "workers_": "workers/views"}  # fmt: skip
    for prefix, file in beside.items():
        source = (DOCS.parents[1] / f"mqttd/{file}.py").read_text("utf-8")
        own = set(re.findall(rf'"({prefix}[a-z_]+)"', source))
        assert own and not {name for name in own if f"`{name}`" not in page}
    assert {name for name in documented if not name.startswith(tuple(beside))} == {
        *counted,
        "cpu_seconds",
    }
    kinds = re.search(r"^\| `memory_held_KIND_bytes` \| .*: (.*) \|$", page, re.MULTILINE)
    assert kinds is not None and kinds[1].split(", ") == list(broker.account.by_kind())
