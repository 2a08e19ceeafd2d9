"""The will: the right to publish it is asked for again when its time has come."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from mqttd.broker.drain import Drain
from mqttd.broker.sessions.endings import LOOKED_AT
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription, Will
from mqttd.codec.properties import Properties
from mqttd.session.ground.settings import NEVER
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.testing.stores import MemorySessions


def drop(node: MemoryBroker, client: MemoryClient) -> None:
    client.drop()


def take_over(node: MemoryBroker, client: MemoryClient) -> None:
    node.connect("c", client.version)


def wait(node: MemoryBroker, client: MemoryClient) -> None:
    client.drop()
    node.advance(12_000)


def expire(node: MemoryBroker, client: MemoryClient) -> None:
    client.drop()
    node.advance(6_000)


ENDS: dict[str, tuple[Callable[[MemoryBroker, MemoryClient], None], int, int]] = {
    # how the connection ends, session expiry, will delay
    "the connection breaks": (drop, 0, 0),
    "the session goes on": (drop, 100, 0),
    "taken over": (take_over, 0, 0),
    "the will delay passes": (wait, 100, 10),
    "the session expires": (expire, 5, 10),
}


@pytest.mark.parametrize("revoked", [False, True], ids=["allowed", "revoked"])
@pytest.mark.parametrize("end", ENDS)
def test_a_will_needs_the_right_when_it_is_published(end: str, revoked: bool) -> None:
    ended, expiry, delay = ENDS[end]
    node = MemoryBroker()
    watcher = node.connect("watcher")
    watcher.send(Subscribe(1, [Subscription("wills/#", 0)]))
    watcher.take()
    will = Will("wills/c", b"gone", 0, False, {prop.WILL_DELAY_INTERVAL: delay})
    client = node.connect("c", 5, will=will, properties={prop.SESSION_EXPIRY_INTERVAL: expiry})
    if revoked:
        node.access.denied.add("wills/c")
        node.broker.access_changed()
    ended(node, client)
    got = [p.payload for p in watcher.take() if isinstance(p, Publish)]
    assert got == ([] if revoked else [b"gone"])
    assert node.broker.metrics.publishes_denied == (1 if revoked else 0)
    assert node.broker.metrics.wills_published == (0 if revoked else 1)


@pytest.mark.parametrize("policy", ["publish", "keep", "drop"])
@pytest.mark.parametrize("stored", [False, True])
def test_what_becomes_of_wills_when_the_broker_is_stopped(policy: str, stored: bool) -> None:
    node = MemoryBroker(store=MemorySessions() if stored else None)
    node.settings.wills_at_stop = policy
    watcher = node.connect("watcher")
    watcher.send(Subscribe(1, [Subscription("wills/#", 0)]))
    watcher.take()
    will = Will("wills/c", b"gone", 0, False, {})
    stays = node.connect("stays", 5, will=will, properties={prop.SESSION_EXPIRY_INTERVAL: 100})
    ends = node.connect("ends", 5, will=will)
    node.broker.registry.stopping = True
    for client in (stays, ends):
        node.broker.kick(client.session.client_id)
    node.advance(500)  # it may take a while
    got = [p.payload for p in watcher.take() if isinstance(p, Publish)]
    wanted = {"publish": 2, "keep": 1 if stored else 2, "drop": 0}[policy]
    assert got == [b"gone"] * wanted
    kept = node.broker.sessions["stays"].will
    assert (kept is not None) is (policy == "keep" and stored)


def test_wills_that_a_drain_has_kept_go_out_when_it_is_cancelled() -> None:
    node = MemoryBroker(store=MemorySessions())
    node.settings.wills_at_stop = "keep"
    will = Will("wills/c", b"gone", 0, False, {})
    node.connect("stays", 5, will=will, properties={prop.SESSION_EXPIRY_INTERVAL: 100})
    drain = Drain(node.broker, lambda: None)
    drain.begin(100.0)
    for _ in range(4):
        node.advance(250)
        drain.tick(node.broker.now)
    assert drain.ended == 1 and node.broker.metrics.wills_published == 0
    assert drain.cancel()
    node.advance(500)
    assert node.broker.metrics.wills_published == 1


@pytest.mark.parametrize("again", [False, True], ids=["cancelled", "and begun again"])
def test_no_turn_looks_at_more_of_them_than_its_slice(again: bool) -> None:
    """With 100,000 sessions a cancelled drain held all others up."""
    node = MemoryBroker(store=MemorySessions())
    node.settings.wills_at_stop = "keep"
    node.settings.max_expiry_interval_seconds = NEVER
    count = 2 * LOOKED_AT + LOOKED_AT // 2
    will = Will("wills/c", b"gone", 0, False, {prop.WILL_DELAY_INTERVAL: 1000})
    for number in range(count):
        properties: Properties = {prop.SESSION_EXPIRY_INTERVAL: NEVER}
        node.connect(f"c{number}", 5, will=will, properties=properties)
    drain = Drain(node.broker, lambda: None)
    drain.begin(100_000.0)
    while drain.left:
        node.advance(250)
        drain.tick(node.broker.now)
    wheel = node.broker.wheel
    before = wheel.count  # a session whose deadline is known is in it
    assert drain.cancel()
    seen = [wheel.count - before]
    if again:
        drain.begin(100_000.0)
    while node.tasks:
        tasks, node.tasks = node.tasks, []
        for task in tasks:
            task()
        seen.append(wheel.count - before)
    assert all(0 <= later - one <= LOOKED_AT for one, later in pairwise([0, *seen]))
    assert seen[-1] <= LOOKED_AT if again else seen[-1] == count


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("full", ["memory", "retained"])
def test_a_will_that_cannot_be_retained_is_heard_all_the_same(qos: int, full: str) -> None:
    """Whoever publishes is told, but of a will nobody is: it reached nobody at QoS 1 and 2."""
    node = MemoryBroker()
    hears = node.connect("hears")
    hears.send(Subscribe(1, [Subscription("gone/#", 2)]))
    hears.take()
    client = node.connect("c", will=Will("gone/c", b"offline", qos, True))
    if full == "memory":
        node.broker.account.full = True
    else:
        node.broker.retainer.max_payload = 1
    client.drop()
    node.broker.perform()
    heard = [(p.topic, p.payload, p.qos, p.retain) for p in hears.published()]
    assert heard == [("gone/c", b"offline", qos, False)]
    assert not len(node.broker.retainer) and node.broker.metrics.dropped_retained_full == 1
    # The right to be heard ends with it: the broker's own messages are refused as before.
    assert node.broker.publish_text("gone/c", b"large", 1, True) < 0
    assert not hears.published()
