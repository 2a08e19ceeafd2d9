"""What plugins keep under keys, in SQLite: told to the journal, written with its groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqttd.codec.packets import Puback, Publish
from mqttd.plugins.handle.storing import PluginStore
from mqttd.storage.blocks import Group
from mqttd.storage.database import connect
from mqttd.storage.durability import FSYNC, NONE, OS, Durability
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.writer import write
from mqttd.testing import MemoryBroker, PluginStoreConformance, result_of
from mqttd.types import OK


class _Handle:
    """As much of a handle as a store needs."""

    revoked = False

    def _check(self) -> None:
        pass


class Place:
    """A broker over a file; a group is written when the test says so."""

    def __init__(self, path: Path, level: int = OS) -> None:
        self.base = connect(str(path))
        self.node = MemoryBroker()
        self.waiting: list[Group] = []
        self.fsyncs: list[bool] = []
        broker = self.node.broker
        drawers = broker.drawers
        drawers.restore(self.base.execute("SELECT plugin, key, value FROM kept"))
        self.journal = StoreJournal(
            Ledger(), broker, self.waiting.append, lambda: 1000, 0, Durability(level, {})
        )
        broker.journal = self.journal
        drawers.follow()

    def store(self, name: str = "acme") -> PluginStore:
        handle: Any = _Handle()
        return PluginStore(handle, self.node.broker.drawers.open(name))

    def write(self) -> None:
        self.node.broker.perform()
        while self.waiting:
            group = self.waiting.pop(0)
            self.fsyncs.append(group.fsync)
            write(self.base, group)
            self.journal.written(group)
            self.journal.release_all()
            self.node.broker.perform()

    def kill(self) -> None:
        """What is in no group that was written is lost."""
        self.base.close()


class TestStore(PluginStoreConformance):
    def setup_method(self) -> None:
        super().setup_method()
        self.open()

    def open(self) -> None:
        self.place = Place(self.directory / "store.db")
        self.place.node.broker.drawers.most = self.most

    def teardown_method(self) -> None:
        self.place.kill()
        super().teardown_method()

    def make(self, name: str = "acme") -> Any:
        return self.place.store(name)

    def restart(self) -> None:
        self.place.kill()
        self.open()

    def wait(self, answer: Any) -> Any:
        self.place.write()
        return result_of(answer)


def test_what_was_not_written_is_lost_and_what_was_is_not(tmp_path: Path) -> None:
    place = Place(tmp_path / "store.db")
    store = place.store()
    store.put("one", b"1")
    place.write()
    store.put("two", b"2")
    fired: list[None] = []
    store.written().addCallback(fired.append)
    place.node.broker.perform()
    assert not fired
    place.kill()
    assert Place(tmp_path / "store.db").store().keys() == ["one"]


@pytest.mark.parametrize("level", [NONE, OS, FSYNC])
def test_written_means_what_durability_says(tmp_path: Path, level: int) -> None:
    place = Place(tmp_path / "store.db", level)
    store = place.store()
    fired: list[int] = []
    store.written().addCallback(lambda _: fired.append(0))
    assert fired == [0], "nothing was changed"
    store.put("key", b"x")
    store.written().addCallback(lambda _: fired.append(1))
    place.node.broker.perform()
    assert fired == ([0, 1] if level == NONE else [0])
    store.written().addCallback(lambda _: fired.append(2))  # under way, nothing new
    place.write()
    assert fired == [0, 1, 2]
    assert place.fsyncs == [level == FSYNC]


def test_a_message_taken_by_a_hook_is_acknowledged_when_it_is_kept(tmp_path: Path) -> None:
    place = Place(tmp_path / "store.db")
    store = place.store()

    def take(message: Any) -> Any:
        store.put("message", message.payload)
        return OK

    place.node.hook("message.publish", take)
    alice = place.node.connect("alice")
    alice.send(Publish("t", b"x", 1, False, False, 7))
    assert len(place.waiting) == 1
    assert not any(isinstance(packet, Puback) for packet in alice.received)
    place.write()
    place.node.settle()
    assert isinstance(alice.received[-1], Puback)
    assert store.get("message") == b"x"
