"""Conformance classes of the stores: what was stored is there, in order, after a restart too."""

from __future__ import annotations

from typing import Any, Final

from mqttd.interfaces import IQueueStore, IRetainedStore, ISessionStore
from mqttd.testing.provider import Conformance

__all__ = ["QueueStoreConformance", "RetainedStoreConformance", "SessionStoreConformance"]


class _StoreConformance(Conformance):
    #: What was stored is there after `close` and a new start.
    durable = True

    def make_ready(self) -> Any:
        """After `open`."""
        store = self.make()
        self.wait(store.open())
        return store

    def reopened(self, store: Any) -> Any:
        """The store after a restart: another one if it is durable, the same otherwise."""
        if not self.durable:
            return store
        self.wait(store.close())
        return self.make_ready()

    def test_it_can_be_opened_and_closed_again_and_again(self) -> None:
        """As restarts do."""
        for _ in range(3):
            self.wait(self.make_ready().close())


RECORDS: Final = (b"", b"x", bytes(range(256)), b"\x00" * 70_000)


class _RecordsConformance(_StoreConformance):
    """`ISessionStore` and `IRetainedStore` store the same way, under different names."""

    keys: tuple[str, ...] = ()

    def stored(self, store: Any) -> dict[str, bytes]:
        """Everything that is in the store; each key once."""
        records = [(key, bytes(record)) for key, record in self.wait(store.load())]
        found = dict(records)
        assert len(found) == len(records), "load() gave a key twice"
        return found

    def test_an_empty_store_has_nothing(self) -> None:
        """A new place."""
        assert self.stored(self.make_ready()) == {}

    def test_what_was_put_is_there_byte_for_byte(self) -> None:
        """Any key, any bytes, after a restart too."""
        store = self.make_ready()
        expected = {}
        for number, key in enumerate(self.keys):
            expected[key] = RECORDS[number % len(RECORDS)]
            self.wait(store.put(key, expected[key]))
        assert self.stored(store) == expected
        assert self.stored(self.reopened(store)) == expected

    def test_a_second_put_replaces_the_first(self) -> None:
        """There is one record for a key, the latest."""
        store = self.make_ready()
        for number in range(100):
            self.wait(store.put("key", b"%d" % number))
        assert self.stored(store) == {"key": b"99"}
        assert self.stored(self.reopened(store)) == {"key": b"99"}

    def test_what_was_deleted_is_gone(self) -> None:
        """After a restart too; the others stay."""
        store = self.make_ready()
        for key in self.keys:
            self.wait(store.put(key, b"x"))
        for key in self.keys[1:]:
            self.wait(store.delete(key))
        assert self.stored(store) == {self.keys[0]: b"x"}
        assert self.stored(self.reopened(store)) == {self.keys[0]: b"x"}

    def test_deleting_what_is_not_there_is_no_error(self) -> None:
        """Once, twice."""
        store = self.make_ready()
        self.wait(store.delete("nobody"))
        self.wait(store.put("key", b"x"))
        self.wait(store.delete("key"))
        self.wait(store.delete("key"))
        assert self.stored(store) == {}

    def test_what_was_not_waited_for_is_stored_by_close(self) -> None:
        """`close` stores what is on its way."""
        store = self.make_ready()
        for number in range(50):
            store.put(f"key/{number}", b"%d" % number)
        assert len(self.stored(self.reopened(store))) == 50


class SessionStoreConformance(_RecordsConformance):
    """For an `ISessionStore`: override `make`."""

    interface = ISessionStore
    keys = ("alice", "", "bob's", "ü/#+$", "x" * 256, "../up", "NUL is not allowed", "\U0001f600")


class RetainedStoreConformance(_RecordsConformance):
    """For an `IRetainedStore`: override `make`."""

    interface = IRetainedStore
    keys = ("a", "a/b", "/", "//", "$SYS/x", "ü/☃", "a" * 1000, "../up", "a/b/c" * 100, "A", "Key")


class QueueStoreConformance(_StoreConformance):
    """For an `IQueueStore`: override `make`."""

    interface = IQueueStore

    def queue(self, store: Any, client_id: str, **more: int) -> list[tuple[int, bytes]]:
        """What waits for a client."""
        waiting = self.wait(store.read(client_id, **more))
        return [(message_id, bytes(message)) for message_id, message in waiting]

    def test_messages_come_back_in_order(self) -> None:
        """Oldest first, byte for byte, 128-bit ids whole; after a restart too."""
        store = self.make_ready()
        expected = [((1 << 100) + number, RECORDS[number % 4]) for number in range(20)]
        for message_id, message in expected:
            self.wait(store.append(["alice"], message_id, message))
        assert self.queue(store, "alice") == expected
        assert self.queue(self.reopened(store), "alice") == expected

    def test_reading_goes_on_where_it_ended(self) -> None:
        """`after` and `limit` make pages; reading takes nothing away."""
        store = self.make_ready()
        for number in range(1, 8):
            self.wait(store.append(["alice"], number, b"%d" % number))
        assert [message_id for message_id, _ in self.queue(store, "alice", limit=3)] == [1, 2, 3]
        page = self.queue(store, "alice", after=3, limit=3)
        assert [message_id for message_id, _ in page] == [4, 5, 6]
        assert [message_id for message_id, _ in self.queue(store, "alice", after=6)] == [7]
        assert self.queue(store, "alice", after=7) == []
        assert len(self.queue(store, "alice")) == 7

    def test_a_message_for_many_is_one_for_each(self) -> None:
        """Each of them is done with it on its own."""
        store = self.make_ready()
        many = [f"client {number}" for number in range(50)]
        self.wait(store.append(many, 1, b"to all"))
        self.wait(store.append(["client 7"], 2, b"to one"))
        self.wait(store.delete("client 7", 1))
        assert self.queue(store, "client 7") == [(2, b"to one")]
        for client_id in many[8:]:
            assert self.queue(store, client_id) == [(1, b"to all")]
        store = self.reopened(store)
        assert self.queue(store, "client 7") == [(2, b"to one")]
        assert self.queue(store, "client 8") == [(1, b"to all")]

    def test_a_session_that_ended_has_no_queue(self) -> None:
        """`clear` drops its messages and nobody else's."""
        store = self.make_ready()
        for number in range(1, 4):
            self.wait(store.append(["alice", "bob"], number, b"x"))
        self.wait(store.clear("alice"))
        self.wait(store.clear("nobody"))
        assert self.queue(store, "alice") == []
        assert len(self.queue(store, "bob")) == 3
        store = self.reopened(store)
        assert (self.queue(store, "alice"), len(self.queue(store, "bob"))) == ([], 3)

    def test_nothing_waits_for_those_it_does_not_know(self) -> None:
        """No error: the broker asks for every session."""
        store = self.make_ready()
        assert self.queue(store, "nobody") == []
        self.wait(store.delete("nobody", 1))
        self.wait(store.append([], 1, b"for nobody"))

    def test_what_was_not_waited_for_is_stored_by_close(self) -> None:
        """`close` stores what is on its way."""
        store = self.make_ready()
        for number in range(1, 51):
            store.append(["alice"], number, b"%d" % number)
        assert len(self.queue(self.reopened(store), "alice")) == 50
