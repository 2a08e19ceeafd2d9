"""Conformance classes: what the broker expects of a provider of each interface, as inherited tests.

    class TestMyStore(QueueStoreConformance):
        def make(self):
            return MyStore(self.directory / "queue.db")

pytest then runs every ``test_`` method, each with `directory`, an empty directory of its own.
`make` gives a new, unopened provider; called twice in one test it gives a second one over the same
place, which is how durability is tested (`durable = False` says there is none). A provider whose
Deferreds do not fire at once overrides `wait`.

The classes ask for what `mqttd.interfaces` says, hostile input included, and for no more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from zope.interface import Interface
from zope.interface.verify import verifyObject

from mqttd.interfaces import (
    IAccessControl,
    IAuthenticator,
    IPlugin,
    IQueueStore,
    IRetainedStore,
    ISessionStore,
)
from mqttd.testing.memory import MemoryBroker
from mqttd.testing.plugin import result_of
from mqttd.types import (
    ACTION_PUBLISH,
    ACTION_SUBSCRIBE,
    Action,
    AuthError,
    AuthIgnore,
    AuthOk,
    ClientInfo,
    Verdict,
)

__all__ = [
    "AccessControlConformance",
    "AuthenticatorConformance",
    "PluginConformance",
    "QueueStoreConformance",
    "RetainedStoreConformance",
    "SessionStoreConformance",
    "client_info",
]

T = TypeVar("T")

#: Seconds the reactor thread may be held by one call: much more than is good, for slow machines.
PROMPT: Final = 1.0

#: Names that clients have tried on brokers.
HOSTILE: Final = (
    "",
    "x" * 65535,
    "+",
    "#",
    "$SYS/#",
    "a/../../etc/passwd",
    "a' OR '1'='1",
    "*)(uid=*",
    "%c/%u",
    "{}{0}%s%n",
    "\n{allow, all}.",
    "\x7f\u202e\ufeff\U0010ffff",
)


def client_info(client_id: str = "alice", username: str | None = None, **more: Any) -> ClientInfo:
    """A `ClientInfo` for tests; `more` are its other fields."""
    fields: dict[str, Any] = {
        "peerhost": "192.0.2.1",
        "peerport": 40000,
        "listener": "default",
        "protocol_version": 5,
        **more,
    }
    return ClientInfo(client_id, username, **fields)


class _Conformance:
    """What all of them share."""

    #: The interface that the provider claims.
    interface: type[Interface]
    #: An empty directory of this test's own.
    directory: Path

    def make(self) -> Any:
        """A new provider, as the broker would get it. To be overridden."""
        raise NotImplementedError("override make(): it gives a new provider")

    def wait(self, answer: Any) -> Any:
        """The value of an answer that may be a Deferred; override it to turn a clock."""
        return result_of(answer)

    def setup_method(self) -> None:
        """pytest calls it before each test."""
        self._temporary = tempfile.TemporaryDirectory(prefix="mqttd-conformance-")
        self.directory = Path(self._temporary.name)

    def teardown_method(self) -> None:
        """pytest calls it after each test."""
        self._temporary.cleanup()

    def test_it_provides_its_interface(self) -> None:
        """zope.interface.verify finds every method, with the right arguments."""
        verifyObject(self.interface, self.make())

    def test_it_describes_itself_in_one_line(self) -> None:
        """For operators' lists."""
        if "description" not in self.interface:
            return
        text = self.make_ready().description()
        assert isinstance(text, str) and text, f"description() gave {text!r}"
        assert "\n" not in text, f"description() has more than one line: {text!r}"

    def make_ready(self) -> Any:
        """A provider in use."""
        return self.make()

    def promptly(self, call: Callable[[], T], what: str) -> T:
        """Call, and see that the reactor thread was not held."""
        begin = time.perf_counter()
        answer = call()
        took = time.perf_counter() - begin
        assert took < PROMPT, f"{what} held the reactor thread for {took:.1f} s"
        return answer


# -- access


class AuthenticatorConformance(_Conformance):
    """For an `IAuthenticator`.

    Override `make`, and say in `options` what `init` gets, in `accepted` and `refused` pairs of
    username and password that get AuthOk, and AuthError (or AUTH_IGNORE).
    """

    interface = IAuthenticator
    options: dict[str, object] = {}
    accepted: tuple[tuple[str | None, bytes | None], ...] = ()
    refused: tuple[tuple[str | None, bytes | None], ...] = ()

    def make_ready(self) -> Any:
        """After `init`."""
        made = self.make()
        made.init(self.options)
        return made

    def check(self, module: Any, client: ClientInfo, password: bytes | None) -> Any:
        """One verdict."""
        return self.wait(self.promptly(lambda: module.check(client, password), "check"))

    def test_those_it_knows_are_accepted(self) -> None:
        """`accepted`, again and again."""
        module = self.make_ready()
        for username, password in self.accepted * 2:
            verdict = self.check(module, client_info(username=username), password)
            assert isinstance(verdict, AuthOk), f"{username}: {verdict}"

    def test_those_it_does_not_know_are_not(self) -> None:
        """`refused`, and the accepted ones with another password."""
        module = self.make_ready()
        wrong = [(username, b"\x00 certainly not this") for username, password in self.accepted
                 if password is not None]  # fmt: skip
        for username, password in (*self.refused, *wrong):
            verdict = self.check(module, client_info(username=username), password)
            assert isinstance(verdict, AuthError | AuthIgnore), f"{username}: {verdict}"

    def test_hostile_credentials_get_a_verdict_and_no_entry(self) -> None:
        """Nothing a client sends makes it raise, block, or say yes."""
        module = self.make_ready()
        for text in HOSTILE:
            for username, password in ((text, None), (text, b"\xff\xfe"), (None, text.encode())):
                if (username, password) in self.accepted:
                    continue
                verdict = self.check(module, client_info(text, username), password)
                assert isinstance(verdict, AuthOk | AuthIgnore | AuthError), f"gave {verdict!r}"
                if self.accepted:
                    assert not isinstance(verdict, AuthOk), f"let {username!r} in"

    def test_it_tells_no_password(self) -> None:
        """Neither in a reason, which is logged, nor in its description."""
        module = self.make_ready()
        secret = b"correct horse battery staple"
        for username in (None, "alice", *(username for username, _ in self.accepted)):
            verdict = self.check(module, client_info(username=username), secret)
            assert secret.decode() not in repr(verdict), "the password is in the verdict"
        assert secret.decode() not in module.description()

    def test_wrong_options_are_refused_with_a_text(self) -> None:
        """ValueError (or what opening a file raises), never a silent start."""
        try:
            self.make().init({**self.options, "no_such_option": object()})
        except (ValueError, TypeError, OSError) as error:
            assert str(error), "an error without a text"


class AccessControlConformance(_Conformance):
    """For an `IAccessControl`.

    Override `make`, and say in `options` what `init` gets, in `cases` what is decided:
    ``(client, action, topic, verdict)``.
    """

    interface = IAccessControl
    options: dict[str, object] = {}
    cases: tuple[tuple[ClientInfo, Action, str, Verdict], ...] = ()

    def make_ready(self) -> Any:
        """After `init`."""
        made = self.make()
        made.init(self.options)
        return made

    def _actions(self) -> Iterator[Action]:
        for qos in (0, 1, 2):
            yield Action(ACTION_SUBSCRIBE, qos)
            for retain in (False, True):
                yield Action(ACTION_PUBLISH, qos, retain)

    def test_it_decides_as_it_should(self) -> None:
        """`cases`, twice, and after a reload."""
        module = self.make_ready()
        for reload in (False, False, True):
            if reload:
                module.reload_acl()
            for client, action, topic, expected in self.cases:
                verdict = module.check_acl(client, action, topic)
                assert verdict is expected, f"{client.client_id} {action} {topic}: {verdict}"

    def test_every_question_gets_a_verdict_at_once(self) -> None:
        """A Verdict, never None or a Deferred: the broker caches it."""
        module = self.make_ready()
        for text in HOSTILE:
            client = client_info(text, text)
            for action in self._actions():
                for topic in (text, f"a/{text}", "a/b"):
                    if not topic:
                        continue
                    ask = partial(module.check_acl, client, action, topic)
                    verdict = self.promptly(ask, "check_acl")
                    assert isinstance(verdict, Verdict), f"check_acl gave {verdict!r}"

    def test_the_same_question_gets_the_same_verdict(self) -> None:
        """Until the rules change."""
        module = self.make_ready()
        for action in self._actions():
            first = module.check_acl(client_info(), action, "a/b")
            assert module.check_acl(client_info(), action, "a/b") is first

    def test_it_says_truly_whether_qos_and_retain_matter(self) -> None:
        """`depends_on_qos_retain = False` lets the broker ask once for all of them."""
        module = self.make_ready()
        if getattr(module, "depends_on_qos_retain", True):
            return
        asked = [(client, action.kind, topic) for client, action, topic, _ in self.cases]
        for client, kind, topic in [*asked, (client_info(), ACTION_PUBLISH, "a/b")]:
            verdicts = {
                module.check_acl(client, action, topic)
                for action in self._actions()
                if action.kind == kind
            }
            assert len(verdicts) == 1, f"{kind} {topic}: {verdicts} for different QoS or RETAIN"


# -- stores


class _StoreConformance(_Conformance):
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


# -- plugins


class PluginConformance(_Conformance):
    """For a plugin: override `make`, or name the declaration in `plugin`.

    `config` is what its configuration file would say.
    """

    interface = IPlugin
    #: The `MqttdPlugin` of the plugin.
    plugin: Any = None
    config: dict[str, Any] = {}
    #: Load/unload cycles of the leak test.
    cycles = 50

    def make(self) -> Any:
        """The running part, from the declaration's factory."""
        assert self.plugin is not None, "name the declaration in `plugin`, or override make()"
        return _named(self.plugin.factory)()

    def load(self, node: MemoryBroker) -> Any:
        """Load the plugin into a broker in memory; returns what `MemoryBroker.load` does."""
        return node.load(self.plugin or self.make, self.config, str(self.directory))

    def test_its_declaration_is_complete(self) -> None:
        """Name, version, description, and a configuration that can be written."""
        if self.plugin is None:
            return
        plugin = self.plugin
        assert plugin.name and plugin.version and plugin.description
        assert "\n" not in plugin.description
        if plugin.config_schema is not None:
            schema = _named(plugin.config_schema)
            assert issubclass(schema, msgspec.Struct), f"{schema} is no msgspec.Struct"

    def test_it_loads_and_works_beside_clients(self) -> None:
        """Messages pass as without it, or as it says; no callback fails."""
        node = MemoryBroker()
        self.load(node)
        alice = node.connect("alice")
        alice.subscribe("conformance/#", qos=1)
        for qos in (0, 1, 2):
            alice.publish("conformance/t", b"x", qos)
        node.advance(5.0)
        alice.disconnect()
        assert not node.faults, f"callbacks failed: {node.faults}"

    def test_it_leaves_nothing_behind(self) -> None:
        """No hook, timer, subscription or module after unload; nothing grows."""
        node = MemoryBroker()
        before = _held(node)
        for cycle in range(self.cycles):
            loaded = self.load(node)
            client = node.connect("alice")
            client.publish("conformance/t", b"x", 1)
            client.disconnect()
            loaded.unload()
            node.settle()
            assert _held(node) == before, f"after cycle {cycle + 1}: {_held(node)}, not {before}"

    def test_it_can_be_unloaded_with_clients_there(self) -> None:
        """Their connections go on."""
        node = MemoryBroker()
        alice = node.connect("alice")
        loaded = self.load(node)
        bob = node.connect("bob")
        loaded.unload()
        for client in (alice, bob):
            assert not client.closed
            client.publish("conformance/t", b"x", 1)
        assert not node.faults, f"callbacks failed: {node.faults}"


def _held(node: MemoryBroker) -> dict[str, object]:
    """What a plugin could have left in a broker."""
    return {
        "hooks": set(node.broker.points),
        "timers": len(node.clock.getDelayedCalls()),
        "subscriptions": node.broker.stats()["subscriptions"],
        "modules": [(entry["kind"], entry["name"]) for entry in node.access.describe()],
    }


def _named(dotted: str) -> Any:
    """What ``package.module:name`` names."""
    from importlib import import_module

    module, _, name = dotted.partition(":")
    return getattr(import_module(module), name)
