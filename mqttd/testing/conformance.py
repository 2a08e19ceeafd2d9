"""Conformance classes: what the broker expects of a provider of each interface, as inherited tests.

    class TestMyUsers(AuthenticatorConformance):
        def make(self):
            return MyUsers(self.directory / "users.db")

pytest then runs every ``test_`` method, each with `directory`, an empty directory of its own.
`make` gives a new, unopened provider; called twice in one test it gives a second one over the same
place. A provider whose Deferreds do not fire at once overrides `wait`.

The classes ask for what `mqttd.interfaces` says, hostile input included, and for no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from mqttd.interfaces import (
    IAccessControl,
    IAuthenticator,
    IPlugin,
)
from mqttd.testing.memory import MemoryBroker
from mqttd.testing.provider import HOSTILE, Conformance
from mqttd.testing.stores import (
    RegistryConformance,
    RetainedStoreConformance,
    SessionStoreConformance,
)
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
    "RegistryConformance",
    "RetainedStoreConformance",
    "SessionStoreConformance",
    "client_info",
]


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


# -- access


class AuthenticatorConformance(Conformance):
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


class AccessControlConformance(Conformance):
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


# -- plugins


class PluginConformance(Conformance):
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
