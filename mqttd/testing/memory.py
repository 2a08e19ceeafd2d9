"""A broker in memory: the real one, on a clock turned by hand, with no socket and no reactor.

    MemoryBroker -- broker, hooks, access   (the real ones)
         |            ^
         |            +-- StreamEdge --> Wire <-- MemoryClient   (bytes of MQTT, both ways)
         +-- clock (`twisted.internet.task.Clock`)

    >>> node = MemoryBroker()
    >>> alice = node.connect("alice")
    >>> alice.subscribe("a/#", qos=1)
    [1]
    >>> node.connect("bob").publish("a/b", b"hello", qos=1)
    0
    >>> [message.payload for message in alice.messages()]
    [b'hello']
    >>> node.advance(30.0)

Promise: the same calls give the same result, every time. Nothing runs but inside a call of these
classes, each of which returns when the broker has come to rest; time passes in `advance` alone. The
clients speak real MQTT and acknowledge what they get, unless they are told not to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from mqttd.access.auth.guard import Gone, stays
from mqttd.access.chain import AccessControl
from mqttd.broker.broker import Broker
from mqttd.broker.publish import local
from mqttd.codec.packets import (
    Connect,
    Will,
)
from mqttd.codec.properties import Properties
from mqttd.config.load import load as load_config
from mqttd.interfaces import IAccessControl
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.calls.callback import HookCallable
from mqttd.plugins.calls.filters import Patterns
from mqttd.plugins.calls.hooks import Hooks
from mqttd.plugins.calls.signatures import verify_callback
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.session.session import Session
from mqttd.testing.client import MemoryClient, NotConnected
from mqttd.testing.plugin import LoadedPlugin
from mqttd.testing.plugin import load as load_plugin
from mqttd.testing.wire import Wire
from mqttd.types import Action, AuthResult, ClientInfo, Verdict

__all__ = ["MemoryBroker", "MemoryClient", "NotConnected", "Wire"]

#: The time at which a broker in memory starts, in seconds since the epoch.
START: Final = 1_700_000_000.0
#: Seconds between two ticks, as the service gives them.
TICK: Final = 0.25
#: Turns without an end: something puts itself off for ever.
MAX_TURNS: Final = 100_000


class _Clock(Clock):
    """Twisted's clock, which does not turn for ever when something puts itself off for ever."""

    turns = 0

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> Any:
        """As Clock's; raises AssertionError after `MAX_TURNS` calls without time passing."""
        if delay <= 0:
            self.turns += 1
            if self.turns > MAX_TURNS:
                raise AssertionError(f"the broker does not come to rest: {callable} for ever")
        return super().callLater(delay, callable, *args, **kw)


class MemoryBroker:
    """The broker with what the service normally gives it.

    settings: limits of the flow plane, the documented defaults otherwise. Everybody may connect
    and do everything, until a module is registered with `access.register_mod` or a hook says
    otherwise; `deny` forbids single topics.

    Attributes: `broker`, `hooks`, `access` (`mqttd.access.chain.AccessControl`), `clock`,
    `settings`, `events` (what was logged, as pairs of event and fields), `faults` (callbacks and
    modules that failed, as pairs of where and exception).
    """

    __test__ = False  # for pytest, which collects by name

    def __init__(self, settings: Settings | None = None, node_id: int = 0) -> None:
        self.clock: Any = _Clock()
        self.clock.rightNow = START
        self.settings = Settings() if settings is None else settings
        self.events: list[tuple[str, dict[str, object]]] = []
        self.faults: list[tuple[str, BaseException]] = []
        self.unread: dict[MemoryClient, None] = {}
        self.hooks = Hooks(on_error=self._hook_failed, clock=self.clock)
        self.config = _open_config()
        self.access = _Access(self.config, self.clock, on_error=self._module_failed)
        self._denied = _Denied()
        self.broker = Broker(
            self.settings,
            self.access,
            self.hooks,
            lambda: int(self.clock.seconds() * 1_000_000),
            self.now,
            lambda later: self.clock.callLater(0, later),
            lambda event, fields: self.events.append((event, fields)),
            node_id=node_id,
            name="memory",
        )
        self.hooks.listeners_changed.append(self.broker.hooks_changed)
        self.hooks.turn = self.broker.topics
        self.broker.access_changed()
        self._settling = False
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def now(self) -> int:
        """The broker's time in milliseconds."""
        return int(round(self.clock.seconds() * 1000))

    # -- clients -------------------------------------------------------------------------------

    def client(
        self,
        version: int = 5,
        room: int | None = None,
        peer: tuple[str, int] = ("127.0.0.1", 40000),
    ) -> MemoryClient:
        """A connection that has sent nothing yet.

        `room` is how many bytes its network takes while it does not read.
        """
        return MemoryClient(self, version, room, peer)

    def connect(
        self,
        client_id: str = "",
        version: int = 5,
        clean_start: bool = True,
        username: str | None = None,
        password: bytes | None = None,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        room: int | None = None,
        peer: tuple[str, int] = ("127.0.0.1", 40000),
    ) -> MemoryClient:
        """A connection that has sent CONNECT; its `connack` holds the answer.

        A refused one is returned too: `closed`, with the reason code in `connack`. With
        `properties={SESSION_EXPIRY_INTERVAL: 60}` the session outlives the connection.
        """
        client = self.client(version, room, peer)
        client.send(
            Connect(
                client_id,
                version,
                "MQIsdp" if version == 3 else "MQTT",
                clean_start,
                keep_alive,
                will,
                username,
                password,
                properties,
            )
        )
        return client

    # -- this process --------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish as the broker itself; returns the number of receivers."""
        receivers = local.publish(self.broker, topic, payload, qos, retain, properties)
        self.settle()
        return receivers

    def subscribe(self, topic_filter: str, qos: int = 2) -> list[Message]:
        """A list that grows by each `Message` on `topic_filter` from now on."""
        heard: list[Message] = []
        local.subscribe(self.broker, "test", topic_filter, heard.append, qos, 0, 0)
        self.settle()
        return heard

    def hook(
        self,
        point: str,
        callback: HookCallable,
        priority: int = 0,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> None:
        """As `hooks.hook` of a plugin's handle."""
        verify_callback(point, callback)
        self.hooks.hook(point, callback, (), priority, topic_filter=topic_filter, client=client)

    def session(self, client_id: str) -> Session | None:
        """The session of a client id, connected or not."""
        return self.broker.sessions.get(client_id)

    def deny(self, *topics: str) -> None:
        """From now on nobody may publish or subscribe to exactly these topics or filters."""
        if not self._denied.topics:
            self.access.register_mod("acl", "denied by the test", self._denied, 0)
        self._denied.topics.update(topics)
        self.broker.access_changed()

    # -- plugins -------------------------------------------------------------------------------

    def load(
        self,
        plugin: Any,
        config: Mapping[str, Any] | str = "",
        directory: str | None = None,
        budget: Budget | None = None,
    ) -> LoadedPlugin:
        """Load a plugin: its declaration, or what makes an `IPlugin`, or one.

        config: a mapping, or the text of its TOML file; directory: where its files are, a
        temporary one otherwise; budget: what it may use, as good as anything otherwise.

        Raises what a real load would: what `load` of the plugin raises, PluginError for a
        mistake in the text, `zope.interface.Invalid` for a plugin that is none.
        """
        if directory is None:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="mqttd-testing-")
            directory = self._directory.name
        return load_plugin(self.broker, self.clock, self.settle, plugin, config, directory, budget)

    # -- time ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything happens that is due now, until the broker rests.

        Raises AssertionError when that has no end.
        """
        if self._settling:
            return
        self._settling = True
        try:
            self.clock.turns = 0
            while True:
                while self.unread:
                    client = next(iter(self.unread))
                    del self.unread[client]
                    client.take()
                calls = self.clock.calls
                if not calls or calls[0].getTime() > self.clock.seconds():
                    return
                self.clock.advance(0)
        finally:
            self._settling = False

    def advance(self, seconds: float) -> None:
        """Time passes: timers of plugins and of the broker run, each at its own time."""
        end = self.clock.seconds() + seconds
        while True:
            left = end - self.clock.seconds()
            if left <= 1e-6:
                break
            self.clock.advance(min(TICK, left))
            self.broker.tick(self.now)
            self.hooks.tick()
            self.settle()

    # -- reports -------------------------------------------------------------------------------

    def _hook_failed(
        self, point: str, callback: HookCallable, error: BaseException, owner: Budget
    ) -> None:
        self.faults.append((point, error))

    def _module_failed(self, kind: str, name: str, error: Exception, then: str) -> None:
        self.faults.append((f"{kind} {name}", error))


class _Access(AccessControl):
    """The real one, which lets everybody in until there is a module to ask."""

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: Gone = stays
    ) -> AuthResult | Deferred[AuthResult]:
        """As `AccessControl.authenticate`."""
        if any(entry["kind"] == "auth" for entry in self.describe()):
            return super().authenticate(client, password, gone)
        return AuthResult(True)


@implementer(IAccessControl)
class _Denied:
    """Access control that forbids a set of topics."""

    depends_on_qos_retain = False

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def init(self, opts: Mapping[str, object]) -> None:
        """Take no options."""

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """Deny what is in the set."""
        return Verdict.DENY if topic in self.topics else Verdict.IGNORE

    def reload_acl(self) -> None:
        """There is no file."""

    def description(self) -> str:
        """One line."""
        return "forbids what the test forbids"


def _open_config() -> Any:
    """The default configuration, where everybody may do everything and nothing is on disk.

    Nor does anybody have to wait, or stay out, after failed log-ins.
    """
    config = load_config(None, {})
    replace = msgspec.structs.replace
    failures = replace(config.auth.failures, user_limit=0, address_limit=0, delay=0.0)
    return replace(
        config,
        auth=replace(config.auth, chain=(), failures=failures),
        acl=replace(config.acl, file=os.devnull, nomatch="allow"),
        sys=replace(config.sys, interval=0.0),
    )
