"""Builds one shape of what clients leave behind, and tells its weight and what it took.

    python -m tests.support.weights SHAPE MEBIBYTES

prints the kind of the account that it fills, what the account says, and by how many bytes the
process has grown. A process of its own for each shape: memory that was freed before would hide it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from mqttd.codec import properties as prop
from mqttd.codec.packets import Connect, Publish, Subscribe, Subscription, Will
from mqttd.codec.serializer import serialize
from mqttd.session.ground.settings import NEVER, Settings
from tests.support.memory import MemoryBroker, MemoryClient

__all__ = ["SHAPES", "main"]

LASTING = {prop.SESSION_EXPIRY_INTERVAL: NEVER}
#: As many user properties as fit into 60 KB.
PAIRS = [(f"k{i}", f"v{i}") for i in range(4500)]


def _settings() -> Settings:
    settings = Settings()
    settings.max_subscriptions = 1_000_000
    settings.mqueue_max_length = 0
    settings.mqueue_max_bytes = 0
    settings.max_inflight = 65535
    settings.receive_maximum = 65535
    settings.max_awaiting_rel = 65535
    settings.retained_max_bytes = 0
    settings.memory_per_session = 0
    settings.memory_unauthenticated = 0
    settings.topic_cache_bytes = 1 << 40
    return settings


class Stage:
    """A broker, and one client that does all."""

    def __init__(self) -> None:
        self.node = MemoryBroker(_settings())
        self.one = self.node.connect("one", 5)

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **more: object) -> None:
        packet = Publish(topic, payload, qos, packet_id=1 if qos else 0, **more)  # type: ignore[arg-type]
        self.one.feed(serialize(packet, 5))
        self.one.wire.read()

    def subscribe(self, client: MemoryClient, filters: list[str], qos: int = 1) -> None:
        asked = [Subscription(topic_filter, qos) for topic_filter in filters]
        client.feed(serialize(Subscribe(1, asked), client.version))
        self.node.run_soon()
        client.wire.read()

    def away(self, client_id: str, will: Will | None = None, username: str | None = None) -> None:
        """A session whose client has gone."""
        client = self.node.connect(
            client_id, 5, properties=dict(LASTING), will=will, username=username
        )
        client.drop()


def retained_properties(stage: Stage, i: int) -> None:
    stage.publish(f"r/{i}", b"x", retain=True, properties={prop.USER_PROPERTY: PAIRS})


def retained_small(stage: Stage, i: int) -> None:
    for j in range(100):
        stage.publish(f"plant/line{i}/machine{j}/temperature", b"21.5", retain=True)


def retained_levels(stage: Stage, i: int) -> None:
    stage.publish(f"{i}" + "/l" * 126, b"x", retain=True)


def retained_words(stage: Stage, i: int) -> None:
    stage.publish("/".join(f"word{i}-{j}" for j in range(100)), b"x", retain=True)


def retained_long(stage: Stage, i: int) -> None:
    stage.publish(f"{i:05}" + "t" * 65000, b"x", retain=True)


def aliases(stage: Stage, i: int) -> None:
    stage.publish(f"{i:05}" + "a" * 65000, b"x", properties={prop.TOPIC_ALIAS: i + 1})
    stage.node.broker.router.drop_cache()


def topics(stage: Stage, i: int) -> None:
    stage.publish(f"{i:05}" + "t" * 65000, b"x")


def topics_small(stage: Stage, i: int) -> None:
    for j in range(100):
        stage.publish(f"plant/line{i}/machine{j}/temperature", b"x")


def filters_levels(stage: Stage, i: int) -> None:
    stage.subscribe(stage.one, [f"{i}/{j}" + "/+" * 126 for j in range(20)])


def filters_words(stage: Stage, i: int) -> None:
    deep = "/".join(f"word{i}-{j}" for j in range(100))
    stage.subscribe(stage.one, [f"{deep}/+"])


def filters_literal(stage: Stage, i: int) -> None:
    stage.subscribe(stage.one, [f"plant/line{i}/machine{j}/temperature" for j in range(100)])


def groups(stage: Stage, i: int) -> None:
    stage.subscribe(stage.one, [f"$share/group{i}-{j}/plant/line{i}" for j in range(20)])


def filters_of_many(stage: Stage, i: int) -> None:
    client = stage.node.connect(f"c{i}", 5, properties=dict(LASTING))
    stage.subscribe(client, [f"plant/line{i}/+/temperature", f"commands/line{i}"])
    client.drop()


def queue_properties(stage: Stage, i: int) -> None:
    if not i:
        stage.away("sleeper")
        session = stage.node.broker.sessions["sleeper"]
        stage.node.broker.router.subscribe(session, "q", 1)
    stage.publish("q", b"x", 1, properties={prop.USER_PROPERTY: PAIRS})


def queue_looked_at(stage: Stage, i: int) -> None:
    """As before, and a hook looks at each."""
    if not i:
        stage.node.hooks.hook("message.publish", lambda message: message.properties and None)
        stage.node.hooks.hook("message.delivered", lambda client, message: None)
    queue_properties(stage, i)


def queue_parsed(stage: Stage, i: int) -> None:
    """As before, by the general way."""
    stage.node.broker.fast = False
    queue_properties(stage, i)


def queue_small(stage: Stage, i: int) -> None:
    if not i:
        stage.away("sleeper")
        session = stage.node.broker.sessions["sleeper"]
        stage.node.broker.router.subscribe(session, "q/#", 1)
    for j in range(200):
        stage.publish(f"q/{j}", b"21.5", 1)


def inflight(stage: Stage, i: int) -> None:
    client = stage.node.connect(f"c{i}", 5)
    session = client.session
    stage.node.broker.router.subscribe(session, f"q/{i}", 1)
    for _ in range(500):
        stage.publish(f"q/{i}", b"x" * 100, 1)
        client.wire.read()
    KEPT.append(client)


def awaiting(stage: Stage, i: int) -> None:
    client = stage.node.connect(f"c{i}", 5)
    for j in range(2000):
        client.feed(serialize(Publish("q", b"x", 2, packet_id=j + 1), 5))
    client.wire.read()
    KEPT.append(client)


def sessions(stage: Stage, i: int) -> None:
    for j in range(100):
        stage.away(f"client-{i}-{j}", username=f"user-{i}")


def wills(stage: Stage, i: int) -> None:
    will = Will("w", b"x" * 40000, 1, False, {prop.WILL_DELAY_INTERVAL: NEVER})
    stage.away(f"c{i}", will)


def wills_properties(stage: Stage, i: int) -> None:
    will = Will("w", b"x", 1, False, {prop.WILL_DELAY_INTERVAL: NEVER, prop.USER_PROPERTY: PAIRS})
    stage.away(f"c{i}", will)


def unfinished(stage: Stage, i: int) -> None:
    client = stage.node.connect(f"c{i}", 5)
    client.feed(b"\x30\x80\x80\x20" + b"x" * 200_000)
    KEPT.append(client)


def unfinished_connect(stage: Stage, i: int) -> None:
    client = stage.node.client(5)
    wire = serialize(Connect("c", version=5, username="u" * 60000), 5)
    client.feed(wire[:-1])
    KEPT.append(client)


def replays(stage: Stage, i: int) -> None:
    if not i:
        stage.publish("a", b"x", 1, retain=True)
        client = stage.node.connect("r", 5, properties={prop.RECEIVE_MAXIMUM: 1})
        KEPT.append(client)
    client = KEPT[0]
    stage.subscribe(client, [f"a/{i}/{j}/#" for j in range(50)] + ["+"])


#: What has to stay alive.
KEPT: list[MemoryClient] = []
#: Kind of the account -> shapes that fill it.
SHAPES: dict[str, Callable[[Stage, int], None]] = {
    shape.__name__: shape
    for shape in (
        retained_properties, retained_small, retained_levels, retained_words, retained_long,
        aliases, topics, topics_small, filters_levels, filters_words, filters_literal,
        filters_of_many, groups, queue_properties, queue_looked_at, queue_parsed, queue_small,
        inflight, awaiting, sessions, wills, wills_properties, unfinished, unfinished_connect,
    )
}  # fmt: skip


def _resident() -> int:
    gc.collect()
    words = Path("/proc/self/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def main(name: str, mebibytes: int) -> tuple[int, int]:
    """Fill with one shape until the account says so much; what it says, what the process took."""
    stage = Stage()
    shape = SHAPES[name]
    memory = stage.node.broker.memory
    shape(stage, 0)  # what is made once
    used, resident = memory.used(), _resident()
    i = 1
    while memory.used() - used < mebibytes << 20:
        shape(stage, i)
        stage.node.tasks.clear()
        i += 1
    return memory.used() - used, _resident() - resident


if __name__ == "__main__":
    if sys.argv[1] == "all":
        for one in SHAPES:
            os.system(f"{sys.executable} -m tests.support.weights {one} {sys.argv[2]}")
    else:
        said, took = main(sys.argv[1], int(sys.argv[2]))
        print(sys.argv[1], said, took, round(said / took, 2))
