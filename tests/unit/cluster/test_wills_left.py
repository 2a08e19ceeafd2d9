"""The wills of a node that is gone are read, and published, some at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Answer, EtcdError, Kv
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.wills.heirs import Heirs
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.session.ground.message import Message
from mqttd.storage.entries import dump_will
from tests.support.memory import MemoryBroker

KEYS = Keys("t")
COUNT = 100


class Left:
    """An etcd with the wills of node b, that answers a change when it is told to."""

    def __init__(self) -> None:
        self.kept: dict[bytes, Kv] = {}
        for number in range(COUNT):
            will = Message(0, "w", b"%d" % number, 1, False, None, f"c{number}", None, 0)
            value = msgspec.msgpack.encode([None, 0, 0, dump_will(will)])
            key = KEYS.will("b", 7, f"c{number:03}")
            self.kept[key] = Kv(key, value, 1, 1)
        self.asked: list[tuple[bytes, Deferred[Answer]]] = []
        self.pages: list[int] = []

    async def pages_of(self, start: bytes, end: bytes, limit: int) -> AsyncIterator[Answer]:
        """See `Etcd.pages_of`."""
        left = sorted(key for key in self.kept if start <= key < end)
        while left:
            page, left = left[:limit], left[limit:]
            self.pages.append(len(page))
            yield Answer(True, 1, tuple(self.kept[key] for key in page))

    def transaction(self, when: Any, then: Any) -> Deferred[Answer]:
        """See `Etcd.transaction`."""
        done: Deferred[Answer] = Deferred()
        (change,) = (step for step in then if "request_delete_range" in step)
        self.asked.append((change["request_delete_range"]["key"], done))
        return done


def test_wills_of_a_node_that_is_gone_go_page_by_page() -> None:
    etcd, clock, node = Left(), Clock(), MemoryBroker()
    node.settings.max_inflight = 1000
    hears = node.connect("hears")
    hears.send(Subscribe(1, [Subscription("w", 1)]))
    hears.take()
    heirs = Heirs(etcd, KEYS, "a", clock, lambda *_: False, lambda: 0, lambda name: False)  # type: ignore[arg-type]
    heirs.serve(node.broker)
    heirs.begin(1, 0)
    node.broker.wills.release(published=True)
    heirs.left("b", 7)
    clock.advance(1.0)
    failed = False
    heard: list[bytes] = []
    while etcd.asked:
        assert len(etcd.asked) <= 32 and sum(etcd.pages) - len(heard) <= 33
        asked, etcd.asked = etcd.asked, []
        for at, (_, done) in enumerate(asked):
            if at == 5 and not failed:
                failed = True  # that one is tried again
                done.errback(EtcdError("away"))
            else:
                done.callback(Answer(True, 1, ()))
        node.broker.perform()
        heard += [packet.payload for packet in hears.take() if isinstance(packet, Publish)]
        clock.advance(0.0)
    clock.advance(10.0)
    for _, done in etcd.asked:
        done.callback(Answer(True, 1, ()))
    node.broker.perform()
    heard += [packet.payload for packet in hears.take() if isinstance(packet, Publish)]
    assert sorted(heard) == sorted(b"%d" % number for number in range(COUNT))
    assert etcd.pages == [32, 32, 32, 4] and heirs.published == COUNT
