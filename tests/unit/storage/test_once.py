"""What goes to several queues is in the store once, whatever is remembered of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.properties import Properties
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from tests.unit.storage.test_journal import Kept, make

AWAY = 20
PAYLOAD = b"x" * 10_000


def everywhere(path: Path, qos: int, versions: tuple[int, ...]) -> Kept:
    """A broker with sessions of these versions that are away, all of one topic."""
    kept = make(path)
    kept.node.broker.settings.mqueue_store_qos0 = True
    for n in range(AWAY):
        version = versions[n % len(versions)]
        lasting: Properties | None = {prop.SESSION_EXPIRY_INTERVAL: 1000} if version == 5 else None
        client = kept.node.connect(f"away-{n}", version, False, properties=lasting)
        client.send(Subscribe(1, [Subscription("t", qos)]))
        kept.settle()
        client.drop()
    kept.settle()
    return kept


def gathered(kept: Kept) -> int:
    """Bytes of records that are not written yet."""
    return kept.ledger.group.size + sum(group.size for group in kept.waiting)


@pytest.mark.parametrize("subscribed", [0, 1])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("versions", [(5,), (4,), (5, 4)])
@pytest.mark.parametrize(
    "properties",
    [None, {prop.MESSAGE_EXPIRY_INTERVAL: 60}, {prop.USER_PROPERTY: [("a", "b")]}],
    ids=["plain", "expiry", "user properties"],
)
def test_13_a_message_to_many_queues_is_in_the_store_once_for_each_version(
    tmp_path: Path,
    properties: Properties | None,
    versions: tuple[int, ...],
    qos: int,
    subscribed: int,
) -> None:
    kept = everywhere(tmp_path, subscribed, versions)
    publisher = kept.client("publisher", kept=False)
    publisher.send(Publish("t", PAYLOAD, qos, False, False, qos, properties))
    # Of 3.1.1 the PUBLISH of 5.0 is kept beside it, where it has what 3.1.1 has not.
    most = 2 * len(versions) * len(PAYLOAD)
    assert len(PAYLOAD) < gathered(kept) < most + 4000
    kept.settle()
    records = read(kept.base, Ledger()).records
    assert sum(len(each) for each in records.values()) == AWAY
    for n in range(AWAY):
        version = versions[n % len(versions)]
        back = kept.node.connect(f"away-{n}", version, False, properties=None)
        kept.settle()
        (got,) = back.published()
        assert got.payload == PAYLOAD
    kept.base.close()


def test_13_messages_that_follow_one_another_are_each_there(tmp_path: Path) -> None:
    kept = everywhere(tmp_path, 0, (5, 4))
    publisher = kept.client("publisher", kept=False)
    for n in range(5):
        publisher.send(Publish("t", bytes([65 + n]) * 10_000, 0))
    assert gathered(kept) < 3 * 5 * 10_000
    kept.settle()
    for n in range(AWAY):
        version = 5 if n % 2 == 0 else 4
        back = kept.node.connect(f"away-{n}", version, False, properties=None)
        kept.settle()
        assert [packet.payload[:1] for packet in back.published()] == [b"A", b"B", b"C", b"D", b"E"]
    kept.base.close()
