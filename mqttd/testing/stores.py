"""Conformance classes for what keeps sessions and messages, and for who owns them.

    class TestMySessions(SessionStoreConformance):
        def make(self):
            return MySessions(self.directory / "sessions.db")

    class TestMyRegistry(RegistryConformance):
        def make(self):
            return MyRegistry("n1", self.directory)

        def make_peer(self):
            return MyRegistry("n2", self.directory)

As in `mqttd.testing.conformance`: `make` gives a new, unopened provider; called twice in one test
it gives a second one over the same place, which is how durability is tested (`durable = False` says
there is none). The classes ask for what `mqttd.interfaces` says, and for no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import SkipTest

from mqttd.interfaces import IRegistry, IRetainedStore, ISessionStore
from mqttd.testing.provider import HOSTILE, Conformance
from mqttd.types import Claim, Held, SessionState, StaleEpoch

__all__ = ["RegistryConformance", "RetainedStoreConformance", "SessionStoreConformance", "raises"]

RECORDS: Final = (b"", b"x", bytes(range(256)), b"\x00" * 70_000)
CLIENT_IDS: Final = ("alice", "", "bob's", "ü/#+$", "x" * 256, "../up", "\U0001f600", *HOSTILE[2:])


@contextmanager
def raises(expected: type[Exception]) -> Iterator[None]:
    """What is done here must raise that; no test runner is needed to say so."""
    try:
        yield
    except expected:
        return
    raise AssertionError(f"expected {expected.__name__}")


class _StoreConformance(Conformance):
    """What all stores share."""

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


class RetainedStoreConformance(_StoreConformance):
    """For an `IRetainedStore`: override `make`."""

    interface = IRetainedStore

    keys = ("a", "a/b", "/", "//", "$SYS/x", "ü/☃", "a" * 1000, "../up", "a/b/c" * 100, "A", "Key")

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

    def test_changes_that_nobody_waits_for_take_effect_in_their_order(self) -> None:
        """The last one stays; one that is made twice is as good as once."""
        store = self.make_ready()
        for number in range(20):
            store.put("kept", b"%d" % number)
            store.put("gone", b"x")
            store.delete("gone")
            store.delete("gone")
        last = store.put("kept", b"last")
        self.wait(store.put("kept", b"last"))
        self.wait(last)
        assert self.stored(store) == {"kept": b"last"}
        assert self.stored(self.reopened(store)) == {"kept": b"last"}

    def test_what_was_not_waited_for_is_stored_by_close(self) -> None:
        """`close` stores what is on its way."""
        store = self.make_ready()
        for number in range(50):
            store.put(f"key/{number}", b"%d" % number)
        assert len(self.stored(self.reopened(store))) == 50


class SessionStoreConformance(_StoreConformance):
    """For an `ISessionStore`: override `make`.

    Of a store whose `keeps` is False nothing is asked but that it says so of everything.
    """

    interface = ISessionStore

    def keeper(self) -> Any:
        """A store in use; the test is skipped where nothing is kept."""
        store = self.make_ready()
        if not store.keeps:
            raise SkipTest("it keeps nothing")
        return store

    def loaded(self, store: Any, client_id: str) -> tuple[bytes, tuple[bytes, ...]] | None:
        """Record and queue of a session."""
        state = self.wait(store.load(client_id))
        if state is None:
            return None
        assert isinstance(state, SessionState), f"load() gave {state!r}"
        return bytes(state.record), tuple(bytes(packet) for packet in state.queue)

    def recovered(self, store: Any) -> dict[str, tuple[bytes, tuple[bytes, ...]]]:
        """Everything that is in the store; each session once."""
        states = list(self.wait(store.recover()))
        found = {client_id: (state.record, tuple(state.queue)) for client_id, state in states}
        assert len(found) == len(states), "recover() gave a session twice"
        return found

    def test_what_keeps_nothing_has_nothing(self) -> None:
        """A new place, or a store that says that it keeps nothing."""
        store = self.make_ready()
        assert store.keeps in (False, True)
        assert self.loaded(store, "nobody") is None
        assert self.recovered(store) == {}
        if not store.keeps:
            self.wait(store.save("alice", 1, b"record"))
            self.wait(store.append("alice", 1, [b"packet"]))
            assert self.loaded(store, "alice") is None
            assert self.recovered(store) == {}
            self.wait(store.remove("alice", 1))

    def test_what_was_saved_is_there_byte_for_byte(self) -> None:
        """Any client id, any bytes, after a restart too; loading takes nothing away."""
        store = self.keeper()
        expected = {}
        for number, client_id in enumerate(CLIENT_IDS):
            record = RECORDS[number % len(RECORDS)]
            self.wait(store.save(client_id, 1, record))
            expected[client_id] = (record, ())
        for _ in range(2):
            for client_id in CLIENT_IDS:
                assert self.loaded(store, client_id) == expected[client_id]
            assert self.recovered(store) == expected
            store = self.reopened(store)

    def test_batches_come_back_in_order(self) -> None:
        """Packets in the order they were put, of each session its own."""
        store = self.keeper()
        for client_id in ("alice", "bob"):
            self.wait(store.save(client_id, 1, b"r"))
        first = [b"%d" % number for number in range(250)]
        self.wait(store.append("alice", 1, first))
        self.wait(store.append("bob", 1, RECORDS))
        self.wait(store.append("alice", 1, []))
        self.wait(store.append("alice", 1, [b"last"]))
        for _ in range(2):
            assert self.loaded(store, "alice") == (b"r", (*first, b"last"))
            assert self.loaded(store, "bob") == (b"r", RECORDS)
            store = self.reopened(store)

    def test_a_second_save_takes_the_place_of_record_and_queue(self) -> None:
        """There is one state of a session, the latest."""
        store = self.keeper()
        for number in range(20):
            self.wait(store.save("alice", 1, b"%d" % number))
            self.wait(store.append("alice", 1, [b"packet %d" % number]))
        for _ in range(2):
            assert self.loaded(store, "alice") == (b"19", (b"packet 19",))
            store = self.reopened(store)

    def test_what_was_removed_is_gone_with_its_queue(self) -> None:
        """After a restart too, and when it is saved anew; the others stay."""
        store = self.keeper()
        for client_id in ("alice", "bob"):
            self.wait(store.save(client_id, 1, b"r"))
            self.wait(store.append(client_id, 1, [b"p"]))
        self.wait(store.remove("alice", 1))
        self.wait(store.remove("alice", 1))
        self.wait(store.remove("nobody", 1))
        for _ in range(2):
            assert self.recovered(store) == {"bob": (b"r", (b"p",))}
            store = self.reopened(store)
        self.wait(store.save("alice", 1, b"anew"))
        assert self.loaded(store, "alice") == (b"anew", ())

    def test_nothing_is_queued_for_those_it_does_not_know(self) -> None:
        """KeyError, and no session."""
        store = self.keeper()
        with raises(KeyError):
            self.wait(store.append("nobody", 1, [b"x"]))
        assert self.recovered(store) == {}

    def test_an_older_owner_changes_nothing(self) -> None:
        """Each change with a lower epoch fails with StaleEpoch, after a restart too."""
        store = self.keeper()
        self.wait(store.save("alice", 3, b"r"))
        self.wait(store.append("alice", 3, [b"p"]))
        for _ in range(2):
            for change, *what in (
                (store.save, b"old"),
                (store.append, [b"old"]),
                (store.remove,),
            ):
                with raises(StaleEpoch):
                    self.wait(change("alice", 2, *what))
            assert self.loaded(store, "alice") == (b"r", (b"p",))
            assert self.wait(store.load("alice")).epoch == 3
            store = self.reopened(store)

    def test_a_newer_owner_goes_on(self) -> None:
        """A higher epoch is taken, and is the one from then on."""
        store = self.keeper()
        self.wait(store.save("alice", 1, b"r"))
        self.wait(store.append("alice", 4, [b"p"]))
        with raises(StaleEpoch):
            self.wait(store.save("alice", 3, b"old"))
        self.wait(store.save("alice", 5, b"new"))
        assert self.loaded(store, "alice") == (b"new", ())

    def test_changes_that_nobody_waits_for_take_effect_in_their_order(self) -> None:
        """Saved twice is as good as once, appended twice is there twice."""
        store = self.keeper()
        expected: list[bytes] = []
        store.save("alice", 1, b"old")
        store.append("alice", 1, [b"old"])
        store.save("alice", 1, b"r")
        store.save("alice", 1, b"r")
        for number in range(20):
            batch = [b"%d" % number, b"same"]
            expected += batch
            store.append("alice", 1, batch)
        store.save("bob", 1, b"r")
        self.wait(store.remove("bob", 1))
        for _ in range(2):
            assert self.recovered(store) == {"alice": (b"r", tuple(expected))}
            store = self.reopened(store)

    def test_a_change_that_is_refused_changes_nothing_and_the_store_serves_on(self) -> None:
        """Of a batch under an old epoch not even the first packet is there."""
        store = self.keeper()
        self.wait(store.save("alice", 5, b"r"))
        for _ in range(3):
            with raises(StaleEpoch):
                self.wait(store.append("alice", 4, [b"1", b"2"]))
            with raises(KeyError):
                self.wait(store.append("nobody", 4, [b"1", b"2"]))
        self.wait(store.append("alice", 5, [b"3"]))
        assert self.recovered(store) == {"alice": (b"r", (b"3",))}

    def test_what_was_not_waited_for_is_stored_by_close(self) -> None:
        """`close` stores what is on its way, in its order."""
        store = self.keeper()
        for number in range(50):
            store.save(f"client {number}", 1, b"%d" % number)
            store.append(f"client {number}", 1, [b"p"])
        assert len(self.recovered(self.reopened(store))) == 50


class RegistryConformance(Conformance):
    """For an `IRegistry`: override `make`, and `make_peer` if there can be more than one owner."""

    interface = IRegistry

    def make_peer(self) -> Any:
        """Another member of what `make` gave one of; None if it is always alone."""
        return None

    def pair(self) -> tuple[Any, Any]:
        """Two members; the test is skipped where there is one."""
        first, second = self.make_ready(), self.make_peer()
        if second is None:
            raise SkipTest("it is alone")
        return first, second

    def claimed(self, registry: Any, client_id: str, principal: str | None = "alice") -> Claim:
        """One claim."""
        claim = self.wait(
            self.promptly(lambda: registry.claim(client_id, principal, True), "claim")
        )
        assert isinstance(claim, Claim), f"claim() gave {claim!r}"
        assert claim.epoch >= 1
        assert isinstance(claim.held, Held)
        return claim

    def test_any_client_id_can_be_claimed(self) -> None:
        """Also those that look like something else; each is its own."""
        registry = self.make_ready()
        for client_id in CLIENT_IDS:
            claim = self.claimed(registry, client_id, None)
            assert claim.held in (Held.NOWHERE, Held.HERE)
            assert claim.state is None

    def test_claiming_again_is_the_same_ownership(self) -> None:
        """The same epoch; the same principal."""
        registry = self.make_ready()
        epochs = {self.claimed(registry, "alice").epoch for _ in range(3)}
        assert len(epochs) == 1

    def test_what_was_released_can_be_claimed_by_anybody(self) -> None:
        """Another principal too, and the epoch never goes down."""
        registry = self.make_ready()
        before = self.claimed(registry, "c", "alice").epoch
        self.wait(registry.release("c", before))
        assert self.claimed(registry, "c", "bob").epoch >= before

    def test_releasing_what_is_not_owned_is_no_error(self) -> None:
        """Nobody's, twice, with another epoch."""
        registry = self.make_ready()
        self.wait(registry.release("nobody", 1))
        epoch = self.claimed(registry, "c").epoch
        for released in (epoch + 7, epoch, epoch):
            self.wait(registry.release("c", released))

    def test_somebody_can_watch(self) -> None:
        """Nothing is taken from an owner by its own claims."""
        registry = self.make_ready()
        taken: list[str] = []
        registry.watch(lambda client_id, epoch: taken.append(client_id))
        for _ in range(2):
            self.claimed(registry, "c")
        assert taken == []

    def test_a_claim_takes_over_with_the_state(self) -> None:
        """The owner before hands over what it has; the new one has a higher epoch."""
        first, second = self.pair()
        state = SessionState(bytes(range(256)), RECORDS, 1)
        taken: list[tuple[str, int]] = []

        def hand_over(client_id: str, epoch: int) -> SessionState | None:
            taken.append((client_id, epoch))
            return state

        first.watch(hand_over)
        second.watch(lambda client_id, epoch: None)
        before = self.claimed(first, "c")
        claim = self.claimed(second, "c")
        assert claim.epoch > before.epoch
        assert claim.held in (Held.WORKER, Held.NODE)
        assert claim.peer
        assert claim.state is not None
        assert (claim.state.record, claim.state.queue) == (state.record, state.queue)
        assert taken == [("c", claim.epoch)]
        back = self.claimed(first, "c")
        assert back.epoch > claim.epoch
        assert back.state is None

    def test_another_principal_is_refused_and_takes_nothing(self) -> None:
        """PermissionError; the owner is not asked for anything."""
        first, second = self.pair()
        taken: list[str] = []
        first.watch(lambda client_id, epoch: taken.append(client_id))
        epoch = self.claimed(first, "c", "alice").epoch
        for principal in ("mallory", None):
            with raises(PermissionError):
                self.wait(second.claim("c", principal, True))
        assert taken == []
        assert self.claimed(first, "c", "alice").epoch == epoch

    def test_a_stale_release_takes_nothing_away(self) -> None:
        """Who owned it before cannot give back what is another's."""
        first, second = self.pair()
        before = self.claimed(first, "c").epoch
        epoch = self.claimed(second, "c").epoch
        self.wait(first.release("c", before))
        assert self.claimed(second, "c").epoch == epoch

    def test_the_last_of_many_claims_owns_it(self) -> None:
        """Claims by turns: every one has a higher epoch, and takes it from the other."""
        first, second = self.pair()
        epochs = [self.claimed(owner, "c").epoch for owner in (first, second) * 5]
        assert epochs == sorted(set(epochs))
