"""Sessions that come back with another protocol version, and what the store has kept for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqttd.broker.publish import local
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription, Will
from mqttd.codec.properties import Properties
from tests.support.memory import MemoryClient
from tests.unit.storage.test_apart import drained, lay_apart, restarted
from tests.unit.storage.test_journal import Kept, make

#: All that goes on with a message.
SAID: Properties = {
    prop.PAYLOAD_FORMAT_INDICATOR: 1,
    prop.CONTENT_TYPE: "text/plain",
    prop.RESPONSE_TOPIC: "answers",
    prop.CORRELATION_DATA: b"\x01",
    prop.USER_PROPERTY: [("a", "b"), ("a", "c")],
}

Publisher = Callable[[Kept, int, Properties], None]


def older(kept: Kept, client_id: str, qos: int, *topic_filters: str) -> MemoryClient:
    """A client of MQTT 3.1.1 whose session outlives its connection."""
    client = kept.node.connect(client_id, 4, False)
    kept.settle()
    if topic_filters:
        client.send(Subscribe(1, [Subscription(each, qos) for each in topic_filters]))
    kept.settle()
    client.take()
    return client


def will(kept: Kept, qos: int, said: Properties) -> None:
    testator = kept.node.connect("testator", 5, will=Will("t/x", b"1", qos, False, dict(said)))
    kept.settle()
    testator.drop()
    kept.node.broker.perform()
    kept.settle()


def plugin(kept: Kept, qos: int, said: Properties) -> None:
    local.publish(kept.node.broker, "t/x", b"1", qos, properties=dict(said))
    kept.node.broker.perform()
    kept.settle()


def client(kept: Kept, qos: int, said: Properties) -> None:
    publisher = kept.client("publisher", kept=False)
    publisher.send(Publish("t/x", b"1", qos, packet_id=1 if qos else 0, properties=dict(said)))
    kept.settle()
    publisher.drop()


PUBLISHERS: list[Publisher] = [will, plugin, client]
EXPIRY: Properties = {prop.MESSAGE_EXPIRY_INTERVAL: 100_000}


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [{}, EXPIRY], ids=["stays", "expires"])
@pytest.mark.parametrize("killed", [False, True])
def test_properties_outlast_an_older_connection(
    tmp_path: Path, publisher: Publisher, qos: int, expiry: Properties, killed: bool
) -> None:
    """The session spoke MQTT 3.1.1 last; queued messages are for whatever it speaks next."""
    kept = make(tmp_path)
    asked = lay_apart(kept)
    older(kept, "away", 2, "t/#").drop()
    publisher(kept, qos, {**SAID, **expiry})
    if killed:
        kept, asked = restarted(kept, tmp_path / "store.db")
    (found,) = drained(kept, asked)
    assert (found.payload, found.qos) == (b"1", qos)
    assert found.properties == {**SAID, **expiry}
    kept.base.close()


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_properties_of_what_was_in_flight_outlast_an_older_connection(
    tmp_path: Path, publisher: Publisher
) -> None:
    kept = make(tmp_path)
    there = older(kept, "there", 1, "t/#")
    publisher(kept, 1, SAID)
    (sent,) = there.published()
    assert sent.properties is None
    kept, asked = restarted(kept, tmp_path / "store.db")
    (found,) = drained(kept, asked, "there")
    assert found.dup and found.properties == SAID
    kept.base.close()


@pytest.mark.parametrize("publisher", [plugin, client])
def test_properties_of_retained_messages_outlast_an_older_connection(
    tmp_path: Path, publisher: Publisher
) -> None:
    kept = make(tmp_path)
    if publisher is plugin:
        local.publish(kept.node.broker, "t/x", b"1", 1, True, dict(SAID))
        kept.node.broker.perform()
    else:
        sender = kept.client("publisher", kept=False)
        sender.send(Publish("t/x", b"1", 1, True, packet_id=1, properties=dict(SAID)))
    kept.settle()
    older(kept, "there", 1, "t/#")
    kept, asked = restarted(kept, tmp_path / "store.db")
    (found,) = drained(kept, asked, "there")
    assert found.dup and found.retain and found.properties == SAID
    kept.base.close()


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("said", [{}, {**SAID, **EXPIRY}], ids=["bare", "told"])
@pytest.mark.parametrize("killed", [False, True])
def test_identifiers_outlast_an_older_connection(
    tmp_path: Path, publisher: Publisher, qos: int, said: Properties, killed: bool
) -> None:
    """Its filter has one since the session spoke MQTT 5.0."""
    kept = make(tmp_path)
    asked = lay_apart(kept)
    identified(kept, "away").drop()
    publisher(kept, qos, said)
    if killed:
        kept, asked = restarted(kept, tmp_path / "store.db")
    (found,) = drained(kept, asked)
    assert (found.payload, found.qos) == (b"1", qos)
    assert found.properties == {**said, prop.SUBSCRIPTION_IDENTIFIER: [127]}
    kept.base.close()


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("said", [{}, SAID], ids=["bare", "told"])
def test_identifiers_of_what_was_in_flight_outlast_an_older_connection(
    tmp_path: Path, publisher: Publisher, said: Properties
) -> None:
    kept = make(tmp_path)
    there = identified(kept, "there")
    publisher(kept, 1, said)
    (sent,) = there.published()
    assert sent.properties is None
    kept, asked = restarted(kept, tmp_path / "store.db")
    (found,) = drained(kept, asked, "there")
    assert found.dup and found.properties == {**said, prop.SUBSCRIPTION_IDENTIFIER: [127]}
    kept.base.close()


def identified(kept: Kept, client_id: str) -> MemoryClient:
    """A client of MQTT 3.1.1 whose session has a filter with an identifier."""
    there = kept.client(client_id, kept=True)
    properties: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [127]}
    there.send(Subscribe(1, [Subscription("t/#", 2)], properties))
    kept.settle()
    there.drop()
    return older(kept, client_id, 2)
