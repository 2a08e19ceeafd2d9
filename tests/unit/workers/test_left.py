"""What changes when the links have ended, as by wills at the end of the broker, is told later."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import Publish
from tests.unit.workers.test_ferry import Worker, joined, pump


def published(worker: Worker, payload: bytes) -> None:
    worker.node.connect("p", 5).send(Publish("t", payload, 0, True))


def kept(worker: Worker) -> bytes:
    """The retained message of the topic."""
    level = worker.node.broker.retainer.topics.get("t")
    return b"" if level is None else level.message.wire[-1:]  # type: ignore[union-attr]


def again(worker: Worker, payload: bytes) -> Worker:
    """The same with its store, in the next life of the broker."""
    begun = Worker(3 - worker.other, worker.drawers, 2)
    if payload:
        published(begun, payload)
    begun.mesh.changes.turn(0)
    begun.mesh.changes.turn(0)  # what the store has is long ago
    begun.mesh.recall(worker.drawer)
    return begun


@pytest.mark.parametrize("before", [b"", b"1"])
@pytest.mark.parametrize("last", [b"", b"2"])
@pytest.mark.parametrize("number", [1, 2])
def test_it_is_the_one_that_all_have(before: bytes, last: bytes, number: int) -> None:
    """Whoever gives his set to the other at the next start: the first."""
    workers = {n: Worker(n) for n in (1, 2)}
    joined(workers[1], workers[2])
    for worker in workers.values():
        worker.mesh.recall(worker.drawer)
    if before:
        published(workers[number], before)
        pump(workers[1], workers[2])
        assert kept(workers[1]) == kept(workers[2]) == before
    for worker in workers.values():
        worker.mesh.leave()
        worker.mesh.unlinked(worker.arriving.link)
    published(workers[number], last)
    begun = {n: again(worker, kept(worker)) for n, worker in workers.items()}
    assert not begun[number].drawer.keys("left ")
    begun[1].link()
    begun[2].link(takes=True)
    pump(begun[1], begun[2])
    assert kept(begun[1]) == kept(begun[2]) == last
