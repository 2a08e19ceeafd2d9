"""One user does not fill the store that others need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Properties, Puback, Publish, Subscribe, Subscription
from mqttd.codec.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from mqttd.codec.reasons import QUOTA_EXCEEDED
from mqttd.storage.room import Room
from tests.unit.storage.test_workers import Worker

MIB = 1 << 20
#: Bytes of a message here, and of the store.
SIZE, MOST = 400_000, 16 * MIB


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path, max_bytes=MOST)
    made.node.broker.settings.mqueue_max_bytes = 4 * MIB
    yield made
    made.stop()


def kept(worker: Worker, *client_ids: str) -> int:
    """Bytes that wait for these."""
    total = 0
    for client_id in client_ids:
        session = worker.node.session(client_id)
        assert session is not None
        total += session.recorded()
    return total


def send(worker: Worker, topic: str, count: int = 1) -> None:
    for _ in range(count):
        packet = Publish(topic, os.urandom(SIZE), 1, packet_id=1)
        worker.node.connect("publisher").send(packet)
        worker.settle()
        worker.node.advance(1)
        worker.settle()


def fill(worker: Worker, username: str | None, sessions: int = 7) -> list[str]:
    """Sessions of a user that would fill it all; their client ids."""
    names = [f"{username} {at}" for at in range(sessions)]
    for name in names:  # who has as much as one may have no further session
        worker.away(name, f"for {name}", username)
    for name in names:
        send(worker, f"for {name}", 7)
    return names


@pytest.mark.parametrize(("greedy", "other"), [("eve", "bob"), (None, "bob"), ("eve", None)])
def test_one_user_leaves_room_for_the_next(
    worker: Worker, greedy: str | None, other: str | None
) -> None:
    """One filled `store.max_bytes`, and all others were refused 0x97 until somebody found out."""
    worker.away("first", "other", other)
    send(worker, "other")
    names = fill(worker, greedy)
    broker = worker.node.broker
    held = kept(worker, *names)
    assert MOST * 3 // 4 < held < MOST * 8 // 9
    assert not broker.stuck
    assert broker.metrics.dropped_store_share == 49 - held // SIZE
    worker.away("second", "other", other)
    send(worker, "other", 2)
    assert kept(worker, "first") > 3 * SIZE and kept(worker, "second") > 2 * SIZE
    assert not broker.stuck


def test_who_is_alone_may_have_all_of_it(worker: Worker) -> None:
    fill(worker, "eve")
    broker = worker.node.broker
    assert broker.stuck
    assert broker.metrics.dropped_store_share == 0


def test_who_takes_less_may_keep_again(worker: Worker) -> None:
    worker.away("first", "other", "bob")
    send(worker, "other")
    names = fill(worker, "eve")
    broker = worker.node.broker
    send(worker, f"for {names[-1]}")
    dropped = broker.metrics.dropped_store_share
    for name in names[:3]:
        broker.end_session(name)
    worker.settle()
    send(worker, "other", 3)  # a second, and what was theirs is out of the file
    send(worker, f"for {names[-1]}")
    assert broker.metrics.dropped_store_share == dropped


def test_what_is_in_flight_is_its_users_too(worker: Worker) -> None:
    """A window of a thousand messages is no way around it."""
    worker.away("first", "other", "bob")
    send(worker, "other")
    worker.node.broker.settings.max_inflight = 1000
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 1000, RECEIVE_MAXIMUM: 1000}
    client = worker.node.connect("eve", properties=properties, username="eve")
    client.acknowledge = False
    client.send(Subscribe(1, [Subscription("for eve", 1)]))
    worker.settle()
    send(worker, "for eve", 50)
    held = kept(worker, "eve")
    assert MOST * 3 // 4 < held < MOST * 8 // 9
    assert not worker.node.broker.stuck


def test_retained_messages_are_their_users_too(worker: Worker) -> None:
    worker.away("first", "other", "bob")
    send(worker, "other")
    broker = worker.node.broker
    client = worker.node.connect("eve", username="eve")
    for at in range(50):
        client.send(Publish(f"r/{at}", os.urandom(SIZE), 1, True, packet_id=at + 1))
        worker.settle()
        worker.node.advance(1)
    answers = [packet for packet in client.received if isinstance(packet, Puback)]
    assert len(answers) == 50
    refused = sum(packet.reason_code == QUOTA_EXCEEDED for packet in answers)
    assert 0 < refused < 40
    assert not broker.stuck


def test_what_is_left_is_of_the_limit_or_of_the_disk() -> None:
    room = Room("store.db", lambda event, fields: None)
    assert room.spare(10) is None
    room.left = room.reserve + 100
    assert room.spare(10) == 100
    room.max_bytes = 50
    assert room.spare(10) == 40
    assert room.spare(60) == 0
