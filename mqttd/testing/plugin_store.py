"""Conformance class for what plugins keep their keys and values in.

    class TestMyStore(PluginStoreConformance):
        def make(self, name="acme"):
            return self.place.store_of(name)

        def restart(self):
            self.place.close()
            self.place = MyPlace(self.directory)

It asks for what `mqttd.interfaces.IPluginStore` says, and for no more.
"""

from __future__ import annotations

from typing import Any

from mqttd.interfaces import IPluginStore
from mqttd.testing.provider import Conformance
from mqttd.testing.stores import raises
from mqttd.types import StoreFull

__all__ = ["PluginStoreConformance"]


class PluginStoreConformance(Conformance):
    """For an `IPluginStore`: override `make`, `restart` and, if one can be full, `most`."""

    interface = IPluginStore

    #: What one may weigh at most that `make` gives.
    most = 100_000

    def make(self, name: str = "acme") -> Any:
        """The store of the plugin of this name, over the place of this test."""
        raise NotImplementedError("override make(name): it gives the store of a plugin")

    def restart(self) -> None:
        """What a restart does: what `make` gave is closed, and gives anew what it has kept."""
        raise NotImplementedError("override restart(): stores are closed and opened again")

    def stored(self, store: Any) -> dict[str, bytes]:
        """Everything that is in it."""
        return {key: bytes(store.get(key)) for key in store.keys()}

    def test_a_new_one_is_empty(self) -> None:
        """No key, no value, no weight."""
        store = self.make()
        assert store.keys() == []
        assert store.get("nothing") is None
        assert not store.delete("nothing")
        assert store.used == 0
        assert store.most == self.most

    def test_what_was_put_is_there_byte_for_byte(self) -> None:
        """Any key, any bytes; at once, and after a restart."""
        store = self.make()
        keys = ["k", "a/b", "ü/☃", "\x00", "' OR 1=1", "x" * 1024]
        values = [b"", b"x", bytes(range(256)), b"\x00" * 10_000]
        expected = {key: values[at % len(values)] for at, key in enumerate(keys)}
        for key, value in expected.items():
            store.put(key, value)
            assert store.get(key) == value
        assert self.stored(store) == expected
        self.wait(store.written())
        self.restart()
        assert self.stored(self.make()) == expected

    def test_the_last_value_of_a_key_counts(self) -> None:
        """And none after `delete`, in one turn or in many."""
        store = self.make()
        for waits in (False, True):
            for number in range(20):
                store.put("again", b"%d" % number)
                store.put("gone", b"x")
                assert store.delete("gone")
                if waits:
                    self.wait(store.written())
            assert self.stored(store) == {"again": b"19"}
            self.wait(store.written())
            self.restart()
            store = self.make()
            assert self.stored(store) == {"again": b"19"}

    def test_keys_are_sorted_and_may_be_asked_for_by_their_beginning(self) -> None:
        """By code point."""
        store = self.make()
        for key in ("b", "a2", "a10", "ä", "a1", "A"):
            store.put(key, b"")
        assert store.keys() == ["A", "a1", "a10", "a2", "b", "ä"]
        assert store.keys("a1") == ["a1", "a10"]
        assert store.keys("x") == []

    def test_each_plugin_sees_its_own(self) -> None:
        """The same key in two of them, before and after a restart."""
        for name in ("acme", "acm", "acme2"):
            self.make(name).put("key", name.encode())
        assert self.make("acm").delete("key")
        self.wait(self.make().written())
        self.restart()
        assert self.stored(self.make("acme")) == {"key": b"acme"}
        assert self.stored(self.make("acm")) == {}
        assert self.stored(self.make("acme2")) == {"key": b"acme2"}

    def test_what_does_not_fit_is_refused_and_changes_nothing(self) -> None:
        """StoreFull; smaller values, other values and deleting go on."""
        store = self.make()
        store.put("half", bytes(self.most // 2))
        with raises(StoreFull):
            store.put("more", bytes(self.most // 2))
        with raises(StoreFull):
            store.put("half", bytes(self.most))
        assert store.get("more") is None
        assert store.get("half") == bytes(self.most // 2)
        store.put("half", b"small")
        store.put("more", bytes(self.most // 2))
        assert store.delete("more")
        assert store.delete("half")
        assert store.used == 0

    def test_many_small_ones_do_not_get_past_the_limit(self) -> None:
        """A key weighs something itself."""
        store = self.make()
        with raises(StoreFull):
            for number in range(self.most):
                store.put(f"{number}", b"")
        assert 0 < store.used <= self.most

    def test_what_is_no_key_or_value_is_refused(self) -> None:
        """Before anything is changed."""
        store = self.make()
        for text in ("", "x" * 1025, "ü" * 513, "\ud800"):
            with raises(ValueError):
                store.put(text, b"x")
        bad: list[tuple[Any, Any]] = [(b"key", b"x"), ("key", "x"), ("key", None), ("key", 3)]
        for key, value in bad:
            with raises(TypeError):
                store.put(key, value)
        assert store.keys() == []

    def test_what_was_put_is_a_copy(self) -> None:
        """The caller may go on with its buffer."""
        store = self.make()
        buffer = bytearray(b"before")
        store.put("key", buffer)
        buffer[:] = b"behind"
        assert store.get("key") == b"before"
