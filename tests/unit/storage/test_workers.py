"""Several stores in one process, as several workers have them: nothing of one is in another.

A worker has a directory, and the store in it; who owns a client id says whose session it is. A
session goes from one to another as one record and its queue.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqttd.broker.broker import Broker
from mqttd.codec import properties as prop
from mqttd.codec.packets import Properties, Subscription
from mqttd.storage.database import StoreError
from mqttd.storage.durability import OS, Durability
from mqttd.storage.place import alone
from mqttd.storage.providers import SqliteSessions
from mqttd.storage.store import Store
from mqttd.testing import MemoryBroker
from mqttd.types import StaleEpoch
from tests.support.waiting import until


class Reactor(Clock):
    """As much of one as a store needs: descriptors that are looked at when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self._from_threads: deque[Callable[[], object]] = deque()

    def callFromThread(self, call: Callable[..., object], *given: object) -> None:
        self._from_threads.append(lambda: call(*given))

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.remove(reader)

    def turn(self) -> bool:
        ready, _, _ = select.select(self.readers, [], [], 0.05)
        for reader in ready:
            reader.doRead()
        while self._from_threads:
            self._from_threads.popleft()()
        return bool(ready)


class Worker:
    """One broker with its store in its directory."""

    def __init__(
        self,
        directory: Path,
        prepare: Callable[[Broker], object] = lambda broker: None,
        min_free: int = 0,
        max_bytes: int = 0,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.reactor = Reactor()
        self.node = MemoryBroker()
        prepare(self.node.broker)
        self.store = Store(
            str(directory / "store.db"),
            self.reactor,
            Durability(OS, {}),
            lambda event, fields: None,
            max_bytes=max_bytes,
            min_free=min_free,
        )
        self.store.open(self.node.broker)
        self.store.recover(self.node.broker)

    def settle(self) -> None:
        self.node.broker.perform()
        journal = self.store.journal
        assert journal is not None

        def written() -> bool:
            self.reactor.turn()
            self.node.settle()
            return not journal.busy()

        until(written, "the writer")

    def away(self, client_id: str, topic: str, username: str | None = None) -> None:
        properties: Properties = {prop.SESSION_EXPIRY_INTERVAL: 1000}
        self.node.connect(client_id, 5, False, properties=properties, username=username)
        self.settle()
        session = self.node.session(client_id)
        assert session is not None
        self.node.broker.pubsub.subscribe(session, Subscription(topic, 1, False, False, 2), 1, 0)
        self.node.broker.kick(client_id)
        self.settle()

    def stop(self) -> None:
        self.store.stop()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"worker{number}" for number in range(2)]


def test_each_worker_keeps_its_own_sessions_and_values(folders: list[Path]) -> None:
    """The same owner numbers, keys and topics in both, at the same time."""
    workers = [Worker(folder) for folder in folders]
    for number, worker in enumerate(workers):
        worker.away(f"client{number}", "t")
        worker.node.broker.drawers.open("acme").put("key", b"%d" % number)
        worker.node.publish("t", b"of %d" % number, 1)
        worker.settle()
    for worker in workers:
        worker.stop()
    for number, folder in enumerate(folders):
        again = Worker(folder)
        assert list(again.node.broker.sessions) == [f"client{number}"]
        assert again.node.broker.drawers.open("acme").get("key") == b"%d" % number
        again.stop()


def test_no_two_have_the_same_file(folders: list[Path]) -> None:
    worker = Worker(folders[0])
    with pytest.raises(StoreError, match="locked"):
        Worker(folders[0])
    worker.stop()
    Worker(folders[0]).stop()
    with alone(str(folders[0] / "store.db")):
        pass


def test_a_session_that_moved_is_its_new_owners(tmp_path: Path) -> None:
    """Record and queue go over; the old worker's epoch changes nothing any more."""
    old, new = SqliteSessions(tmp_path / "old.db"), SqliteSessions(tmp_path / "new.db")
    for store in (old, new):
        store.open()
    old.save("alice", 1, b"record")
    old.append("alice", 1, [b"one", b"two"])
    state = old.load("alice")
    assert state is not None
    new.save("alice", 2, state.record)
    new.append("alice", 2, list(state.queue))
    old.remove("alice", 2)
    for store in (old, new):
        with pytest.raises(StaleEpoch):
            store.save("alice", 1, b"late")
    moved = new.load("alice")
    assert moved is not None and (moved.record, moved.queue) == (b"record", (b"one", b"two"))
    assert old.load("alice") is None
    for store in (old, new):
        store.close()
