"""What plugins keep under keys, where nobody keeps it any longer than the broker lives."""

from __future__ import annotations

from typing import Any

import pytest
from zope.interface import implementer

from mqttd.broker.ground.drawers import Drawers
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.testing import MemoryBroker, PluginStoreConformance
from mqttd.types import StoreFull


@implementer(IPlugin)
class Keeper:
    """A plugin that does nothing."""

    def load(self, handle: IPluginHandle, config: Any) -> None:
        self.store = handle.store

    def unload(self) -> None:
        pass


class TestStore(PluginStoreConformance):
    """What a plugin gets of a broker without a store; a restart is a reload."""

    def setup_method(self) -> None:
        super().setup_method()
        self.node = MemoryBroker()
        self.node.broker.drawers.most = self.most
        self.loaded: dict[str, Any] = {}

    def make(self, name: str = "acme") -> Any:
        if name not in self.loaded:
            loaded = self.node.load(Keeper)
            # A plugin without a declaration has one name: give it another's drawer.
            loaded.handle._store._drawer = self.node.broker.drawers.open(name)
            self.loaded[name] = loaded
        return self.loaded[name].handle.store

    def restart(self) -> None:
        for loaded in self.loaded.values():
            loaded.unload()
        self.loaded.clear()


def test_a_dead_handle_has_no_store() -> None:
    loaded = MemoryBroker().load(Keeper)
    store = loaded.handle.store
    waiting: list[None] = []
    store.written().addCallback(waiting.append)
    assert waiting == [None]
    loaded.unload()
    for use in (lambda: store.get("x"), lambda: store.put("x", b""), store.written, store.keys):
        with pytest.raises(RuntimeError, match="unloaded"):
            use()


def test_what_is_kept_counts_in_the_memory_budget() -> None:
    node = MemoryBroker()
    before = node.broker.memory.used()
    node.load(Keeper).handle.store.put("key", bytes(10_000))
    node.advance(1)
    assert 10_200 <= node.broker.memory.used() - before < 11_000


def test_while_the_disk_takes_nothing_nothing_is_put_in() -> None:
    drawers = Drawers(MemoryBroker().broker)
    drawer = drawers.open("acme")
    drawer.put("key", b"x")
    drawers.stuck = True
    with pytest.raises(StoreFull, match="disk"):
        drawer.put("key", b"y")
    assert drawer.get("key") == b"x"
    assert drawer.delete("key")


def test_what_changes_before_the_journal_listens_is_told_then() -> None:
    class Told:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def value(self, name: str, key: str, data: bytes | None) -> None:
            self.heard.append((name, key, data))

        def when_kept(self, told: Any) -> None:
            self.heard.append("when")
            told()

    class Server:
        journal: Any = Told()

    server = Server()
    drawers = Drawers(server)
    drawers.restore([("acme", "old", b"1"), ("acme", "gone", b"2"), ("other", "k", b"3")])
    drawer = drawers.open("acme")
    assert drawer.keys() == ["gone", "old"]
    called: list[int] = []
    drawer.put("new", b"4")
    drawer.delete("gone")
    drawer.when_kept(lambda: called.append(1))
    assert not server.journal.heard and not called
    drawers.follow()
    drawer.put("new", b"5")
    assert server.journal.heard == [
        ("acme", "new", b"4"),
        ("acme", "gone", None),
        "when",
        ("acme", "new", b"5"),
    ]
    assert called == [1]


class Later:
    """A journal that keeps nothing before it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def value(self, name: str, key: str, data: bytes | None) -> None:
        pass

    def when_kept(self, told: Any) -> None:
        self.waiting.append(told)

    def write(self) -> None:
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told()


def test_who_wants_to_be_sure_hears_once_that_it_is_kept_or_why_it_waits() -> None:
    class Server:
        journal: Any = Later()

    server = Server()
    drawers = Drawers(server)
    drawer = drawers.open("acme")
    heard: list[str] = []
    drawer.put("a", b"1")
    drawer.when_sure(lambda why: heard.append(f"a {why}"))
    assert not heard
    server.journal.write()
    assert heard == ["a "]
    drawer.put("b", b"2")
    drawer.when_sure(lambda why: heard.append(f"b {why}"))
    drawers.halt("no room")
    drawer.delete("a")
    drawer.when_sure(lambda why: heard.append(f"gone {why}"))
    assert heard == ["a ", "b no room", "gone no room"]
    drawers.halt("")
    drawer.put("c", b"3")
    drawer.when_sure(lambda why: heard.append(f"c {why}"))
    server.journal.write()
    assert heard == ["a ", "b no room", "gone no room", "c "]
