"""What must not grow with size: python -m benchmarks.scale [--small]

    filters     publish, subscribe and unsubscribe with 10, 10,000 and 1,000,000 filters
    retained    publish with 0 and 1,000,000 retained topics
    sessions    pauses of the garbage collector with 200,000 sessions, Python's way and ours
    disconnects longest turn while 10,000 connections end at once

Inside one process, without sockets: bytes go into a channel and come out of another, so that the
figures are the broker's own. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence

from mqttd import compiled
from mqttd.access.chain import AccessControl
from mqttd.broker.broker import Broker
from mqttd.broker.ground.settings import settings_of
from mqttd.codec.packets import Connect, Publish, Subscribe, Subscription, Unsubscribe
from mqttd.codec.serializer import serialize
from mqttd.config.load import load
from mqttd.monitor.garbage import Garbage
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.channel.channel import Channel
from mqttd.transports.stream import StreamEdge

__all__ = ["main"]

ENVIRON = {
    "MQTTD__SESSION__MAX_SUBSCRIPTIONS": "10000000",
    "MQTTD__RETAINED__MAX_MESSAGES": "2000000",
}
BATCH = 64


class Sink:
    """A transport that takes everything."""

    def write(self, data: bytes) -> None:
        """Take it."""

    def pauseProducing(self) -> None:
        """Never paused."""

    resumeProducing = loseConnection = pauseProducing


class Node:
    """A broker without sockets, and clients for it."""

    def __init__(self) -> None:
        config = load(None, ENVIRON)
        self.broker = Broker(
            settings_of(config), AccessControl(config), Hooks(),
            clock=lambda: time.time_ns() // 1000, now=1000,
            soon=lambda later: None, log=lambda event, fields: None,
        )  # fmt: skip
        self.broker.access_changed()

    def connect(self, client_id: str, clean: bool = True) -> Channel:
        """A client whose CONNECT was accepted."""
        edge = StreamEdge(self.broker, Sink(), "127.0.0.1", 1)
        channel = Channel(self.broker, edge, -1, "scale")
        edge.channel = channel
        channel.feed(serialize(Connect(client_id, clean_start=clean), 4))
        self.broker.perform()
        return channel

    def subscribe(self, channel: Channel, filters: Sequence[str]) -> None:
        """Subscribe with QoS 0, a thousand filters a packet."""
        for start in range(0, len(filters), 1000):
            wanted = [Subscription(f, 0) for f in filters[start : start + 1000]]
            channel.feed(serialize(Subscribe(1, wanted), 4))
            self.broker.perform()


def filters_of(count: int) -> list[str]:
    """Half of them literal, half with wildcards, over many first levels."""
    return [
        f"site{i % 997}/line{i}/state" if i % 2 else f"site{i % 997}/line{i}/+/#"
        for i in range(count)
    ]


def publishing(node: Node, channel: Channel, topics: Sequence[str]) -> float:
    """Microseconds per QoS 0 PUBLISH, many topics in turn, 64 packets a chunk."""
    packets = [serialize(Publish(topic, b"x" * 64), 4) for topic in topics]
    chunks = [b"".join(packets[i : i + BATCH]) for i in range(0, len(packets), BATCH)]
    best = 1e9
    for _ in range(3):
        began = time.perf_counter()
        for chunk in chunks:
            channel.feed(chunk)
            node.broker.perform()
        best = min(best, time.perf_counter() - began)
    return best / len(topics) * 1e6


def by_filters(counts: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Publish and subscribe costs as the number of filters grows."""
    for count in counts:
        node = Node()
        receiver, sender = node.connect("receiver"), node.connect("sender")
        began = time.perf_counter()
        node.subscribe(receiver, filters_of(count))
        each = (time.perf_counter() - began) / count * 1e6
        once = publishing(node, sender, ["site1/line1/state"] * 20_000)
        many = publishing(node, sender, [f"site{i % 997}/line{i}/state" for i in range(20_000)])
        extra = [f"new{i % 50}/x/{i}/+/state" for i in range(2_000)]
        began = time.perf_counter()
        node.subscribe(receiver, extra)
        add = (time.perf_counter() - began) / len(extra) * 1e6
        began = time.perf_counter()
        for i in range(0, len(extra), 100):
            receiver.feed(serialize(Unsubscribe(2, extra[i : i + 100]), 4))
        remove = (time.perf_counter() - began) / len(extra) * 1e6
        yield (
            f"{count:,} filters",
            f"publish {once:.3f} us to one topic, {many:.2f} us to 20,000 topics in turn; "
            f"subscribe {add:.1f} us, unsubscribe {remove:.1f} us (loading: {each:.1f} us each)",
        )


def by_retained(counts: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Publish costs as the number of retained topics grows."""
    for count in counts:
        node = Node()
        receiver, sender = node.connect("receiver"), node.connect("sender")
        node.subscribe(receiver, ["site1/line1/state", "+/+/load"])
        began = time.perf_counter()
        for i in range(count):
            sender.feed(serialize(Publish(f"kept{i % 997}/d{i}/v", b"x" * 16, 0, True), 4))
        store = (time.perf_counter() - began) / max(count, 1) * 1e6
        once = publishing(node, sender, ["site1/line1/state"] * 20_000)
        many = publishing(node, sender, [f"site{i % 997}/line{i}/load" for i in range(20_000)])
        yield (
            f"{count:,} retained",
            f"publish {once:.3f} us to one topic, {many:.2f} us to 20,000 topics in turn"
            + (f" (storing: {store:.1f} us each)" if count else ""),
        )
        del node, receiver, sender


class Pauses:
    """The collector's pauses while it is watched."""

    def __init__(self) -> None:
        self.longest = self.total = self.began = 0.0
        gc.callbacks.append(self._timed)

    def _timed(self, phase: str, info: object) -> None:
        if phase == "start":
            self.began = time.perf_counter()
        else:
            took = time.perf_counter() - self.began
            self.total += took
            self.longest = max(self.longest, took)

    def close(self) -> str:
        """Stop watching; says what was seen."""
        gc.callbacks.remove(self._timed)
        return f"longest {self.longest * 1000:.1f} ms, {self.total * 1000:.0f} ms in all"


def by_sessions(count: int) -> Iterator[tuple[str, str]]:
    """Pauses while sessions are made, one connection in ten stays, and messages flow."""
    for name in ("python's way", "ours"):
        node = Node()
        garbage = Garbage() if name == "ours" else None
        if garbage is not None:
            garbage.start()
        pauses = Pauses()
        kept = []
        for i in range(count):
            channel = node.connect(f"device{i}", clean=False)
            node.subscribe(channel, [f"device/{i}/#"])
            if i % 10:
                channel.end("away")
                node.broker.perform()
            else:
                kept.append(channel)
            if garbage is not None and i % 1000 == 0:
                garbage.tick()
        for i in range(100_000):
            kept[i % len(kept)].feed(
                serialize(Publish(f"device/{i % count}/x", b"x", 1, packet_id=1), 4)
            )
            if i % 100 == 0:
                node.broker.perform()
            if garbage is not None and i % 5000 == 0:
                garbage.tick()
        said = pauses.close()
        began = time.perf_counter()
        gc.collect()
        full = (time.perf_counter() - began) * 1000
        if garbage is not None:
            garbage.stop()
        text = f"{said}; an explicit full collection then: {full:.0f} ms"
        yield f"{count:,} sessions, {name}", text
        del node, kept
        gc.collect()


def by_disconnects(count: int) -> Iterator[tuple[str, str]]:
    """The engine's turns while `count` connections end: 512 events each."""
    node = Node()
    channels = [node.connect(f"c{i}") for i in range(count)]
    for i, channel in enumerate(channels):
        node.subscribe(channel, [f"device/{i}/#", "all/#"])
    longest = total = 0.0
    for start in range(0, count, 512):
        began = time.perf_counter()
        for channel in channels[start : start + 512]:
            channel.end("closed by the client")
        node.broker.perform()
        took = time.perf_counter() - began
        total += took
        longest = max(longest, took)
    yield (
        f"{count:,} disconnects",
        f"longest turn {longest * 1000:.1f} ms, {total / count * 1e6:.1f} us each",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--small", action="store_true", help="a tenth or less of each size")
    small = parser.parse_args(arguments).small
    print(f"hot path {'compiled' if compiled() else 'pure Python'}", flush=True)
    garbage = Garbage()
    garbage.start()
    parts: list[Callable[[], Iterator[tuple[str, str]]]] = [
        lambda: by_filters([10, 10_000] if small else [10, 10_000, 1_000_000]),
        lambda: by_retained([0, 10_000] if small else [0, 1_000_000]),
        lambda: by_disconnects(1_000 if small else 10_000),
    ]
    for part in parts:
        for name, text in part():
            print(f"{name:28}  {text}", flush=True)
        garbage.collect()
    garbage.stop()
    for name, text in by_sessions(10_000 if small else 200_000):
        print(f"{name:28}  {text}", flush=True)


if __name__ == "__main__":
    main()
