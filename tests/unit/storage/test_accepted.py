"""What a session has subscribed to comes with it, whatever the limits say where it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.records import Record, record_of, restore
from mqttd.codec import properties as prop
from mqttd.codec.packets import Subscription
from mqttd.session.session import Session
from mqttd.testing import MemoryBroker
from mqttd.types import SessionState
from tests.unit.storage.test_workers import Worker

WANTED = [
    Subscription("a/#", 1, True, True),
    Subscription("b", 2, False, True),
    Subscription("$share/g/c", 0, False, False),
    Subscription("d/+/e", 1, False, False),
]


def memory(broker: Broker) -> None:
    broker.account.full = True


def number(broker: Broker) -> None:
    broker.settings.max_subscriptions = 1


def weight(broker: Broker) -> None:
    broker.account.per_session = 1000


def user(broker: Broker) -> None:
    broker.account.per_user = 1000


def offered(broker: Broker) -> None:
    broker.settings.wildcard_subscription = broker.settings.shared_subscription = False


def put(broker: Broker, session: Session) -> dict[str, int]:
    for identifier, wanted in enumerate(WANTED):
        assert broker.pubsub.subscribe(session, wanted, wanted.qos, identifier) == wanted.qos
    return dict(session.subscriptions or {})


def assert_reached(broker: Broker) -> None:
    """The router knows all of them."""
    of = broker.router.of
    assert [len(of(topic).sessions) for topic in ("a/x", "b", "d/x/e")] == [1, 1, 1]
    assert len(of("c").groups or ()) == 1


@pytest.mark.parametrize("limit", [memory, number, weight, user, offered])
def test_a_session_that_moves_takes_all_its_subscriptions_along(
    limit: Callable[[Broker], None],
) -> None:
    node, there = MemoryBroker(), MemoryBroker()
    session = Session(node.broker, "reader", "u")
    filters = put(node.broker, session)
    record = record_of(node.broker, session)

    limit(there.broker)
    again = restore(there.broker, "reader", SessionState(record, (), 1), Record(record))
    assert again.subscriptions == filters
    assert again.identifiers == session.identifiers
    # Who asks for more is still asked.
    assert there.broker.pubsub.subscribe(again, Subscription("more/#", 1), 1, 0) >= 0x80
    assert_reached(there.broker)


@pytest.mark.parametrize("limit", [memory, number, weight, offered])
def test_a_session_that_a_store_has_kept_has_all_its_subscriptions(
    tmp_path: Path, limit: Callable[[Broker], None]
) -> None:
    first = Worker(tmp_path)
    first.node.connect("reader", 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    first.settle()
    session = first.node.session("reader")
    assert session is not None
    filters = put(first.node.broker, session)
    first.settle()
    first.stop()

    again = Worker(tmp_path, limit)
    found = again.node.broker.sessions["reader"]
    assert found.subscriptions == filters
    assert_reached(again.node.broker)
    again.stop()
