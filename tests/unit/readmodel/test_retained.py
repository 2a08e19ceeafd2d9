"""Pages of retained messages: what is kept while all are looked through is a page or two."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest
from twisted.internet.defer import Deferred

from mqttd.codec.packets import Publish
from mqttd.readmodel.retained import Forgotten, RetainedMessages, RetainedPage, _First
from mqttd.readmodel.slices import in_slices
from tests.support.memory import MemoryBroker

T = TypeVar("T")


def told(work: Deferred[T]) -> T:
    """What it comes to, at once."""
    found: list[T] = []
    work.addCallback(found.append)
    (one,) = found
    return one


def finish(work: object) -> Deferred[None]:
    """Work an iterator off at once."""
    for _ in work:  # type: ignore[attr-defined]
        pass
    return in_slices(iter(()))


@pytest.fixture
def node() -> MemoryBroker:
    node = MemoryBroker()
    client = node.connect("publisher", 5)
    topics = [f"t/{number:04}" for number in range(2500)]
    random.Random(1).shuffle(topics)
    for topic in topics:
        client.send(Publish(topic, b"x", 0, True))
    return node


@pytest.mark.parametrize("limit", [1, 7, 100, 999])
def test_11_pages_have_all_of_them_once_and_in_order(node: MemoryBroker, limit: int) -> None:
    messages = RetainedMessages(node.broker, finish)
    cursor: str | None = None
    seen: list[str] = []
    for _ in range(20):
        page: RetainedPage = told(messages.page("t/#", limit, cursor))
        seen += [one.topic for one in page.retained]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"t/{number:04}" for number in range(min(2500, 20 * limit))]


@pytest.mark.parametrize("dry_run", [True, False])
def test_11_a_deletion_names_the_first_thousand(node: MemoryBroker, dry_run: bool) -> None:
    messages = RetainedMessages(node.broker, finish)
    forgotten: Forgotten = told(messages.forget("t/#", dry_run))
    assert (forgotten.count, forgotten.deleted) == (2500, not dry_run)
    assert forgotten.topics == [f"t/{number:04}" for number in range(1000)]
    assert len(node.broker.retainer.topics) == (2500 if dry_run else 0)


def test_11_of_many_names_no_more_than_two_pages_are_kept() -> None:
    """490,000 that were sorted at the end held the loop for 0.6 s."""
    names = [f"{number:06}" for number in range(20_000)]
    random.Random(2).shuffle(names)
    first = _First(101, "000999")
    for name in names:
        first.add(name)
        assert len(first._names) <= 202
    assert first.all() == [f"{number:06}" for number in range(1000, 1101)]
