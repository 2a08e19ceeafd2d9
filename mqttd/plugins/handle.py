"""What a loaded plugin holds of the broker, and can be taken from it at once.

    plugin --- PluginHandle --+-- hooks, modules        (the broker's)
                              +-- timers, threads       (its own)
                              +-- subscriptions, routes, commands, metrics, topics, alarms
                              `-- services, listeners
    revoke(): all of it goes; a method called afterwards raises

Promise: after `revoke` nothing calls into the plugin any more and nothing of the broker refers to
it, whatever the plugin still holds. All that the broker calls runs on the plugin's `Budget`:
measured, broken off when it overstays, counted when it fails, and left out in quarantine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.web.resource import IResource
from zope.interface import directlyProvides, implementer, providedBy
from zope.interface.verify import verifyObject

from mqttd.broker import local
from mqttd.codec import reasons
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.interfaces import (
    IAccessControl,
    IAuthenticator,
    IEnhancedAuthenticator,
    IPluginHandle,
    IRepeating,
    ISubscription,
)
from mqttd.plugins.budget import Budget
from mqttd.plugins.callback import name_of
from mqttd.plugins.filters import Patterns
from mqttd.plugins.threads import Threads
from mqttd.types import Action, ClientInfo, HookResult

__all__ = ["MOST_NESTED", "Host", "PluginHandle"]

#: How deep `publish` may be called within callbacks of `message.publish`.
MOST_NESTED: Final = 8

#: Calls whose Deferred nobody but the handle looks at.
_WATCHED: Final = frozenset({"timer", "subscription"})

#: Routes below a plugin's name that are the broker's.
_RESERVED: Final = frozenset({"commands", "load", "reload", "unload"})

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COMMAND: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_METRIC: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Host:
    """What handles are made of: the broker's parts, given once by the service.

    `make_factory(name)` makes the Twisted factory of a listener that a plugin adds.
    """

    def __init__(
        self, broker: Any, reactor: Any, make_factory: Callable[[str], Any] | None = None
    ) -> None:
        self.broker = broker
        self.reactor = reactor
        self.make_factory = make_factory
        #: The metrics of all plugins; `Plugins` knows them.
        self.metrics: Callable[[], list[tuple[str, str, float]]] = list


class _GuardedModule:
    """A module of the access chains whose methods are called on the plugin's budget.

    One that fails raises, and the chain fails closed.
    """

    def __init__(self, handle: PluginHandle, what: str, module: Any) -> None:
        self._handle = handle
        self._what = what
        self._module = module
        directlyProvides(self, providedBy(module))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if not callable(value):
            return value

        def guarded(*args: Any) -> Any:
            budget = self._handle.budget
            before = sum(budget.faults.values()) + budget.skipped
            result = self._handle._guard(f"{self._what}.{name}", value, args)
            if result is None and sum(budget.faults.values()) + budget.skipped != before:
                raise RuntimeError(f"plugin {budget.name} is {budget.state}: {budget.last_error}")
            return result

        return guarded


@implementer(IResource)
class _GuardedResource:
    """A route of a plugin, called on its budget; one that fails answers 500."""

    def __init__(self, handle: PluginHandle, resource: Any) -> None:
        self._handle = handle
        self._resource = resource

    @property
    def isLeaf(self) -> bool:
        """Whether it looks at the rest of the path itself."""
        return bool(self._resource.isLeaf)

    def putChild(self, path: bytes, child: Any) -> None:
        """As the resource itself does."""
        self._resource.putChild(path, child)

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        """The child, guarded too."""
        child = self._call(self._resource.getChildWithDefault, name, request)
        return self if child is None else _GuardedResource(self._handle, child)

    def render(self, request: Any) -> Any:
        """What the resource answers."""
        answer = self._call(self._resource.render, request)
        if answer is None and not (request.finished or request.startedWriting):
            request.setResponseCode(500)
            request.setHeader(b"content-type", b"text/plain; charset=utf-8")
            budget = self._handle.budget
            return f"plugin {budget.name} is {budget.state}: {budget.last_error}\n".encode()
        return answer if answer is not None else b""

    def _call(self, f: Callable[..., Any], *args: Any) -> Any:
        return self._handle._guard("route", f, args)


class _Timer:
    """A call that is due: the plugin's own or one round of `call_every`."""

    __slots__ = ("args", "call", "f", "handle")

    def __init__(self, handle: PluginHandle, f: Callable[..., object], args: tuple[Any, ...]):
        self.handle = handle
        self.f = f
        self.args = args
        self.call: Any = None

    def __call__(self) -> None:
        self.handle._timers.pop(self, None)
        self.handle._guard("timer", self.f, self.args)


@implementer(IRepeating)
class _Repeating:
    """What `call_every` gives: waits for a Deferred, and skips what falls due meanwhile."""

    def __init__(
        self, handle: PluginHandle, seconds: float, f: Callable[..., object], args: tuple[Any, ...]
    ):
        self.handle: PluginHandle | None = handle
        self.seconds = seconds
        self.f: Callable[..., object] | None = f
        self.args = args
        self.next_at: float = handle.clock.seconds()
        self.call: Any = None
        self._again(None)

    def stop(self) -> None:
        """Call it no more."""
        handle, self.handle, self.f, self.args = self.handle, None, None, ()
        if handle is not None:
            handle._timers.pop(self, None)
        if self.call is not None and self.call.active():
            self.call.cancel()
        self.call = None

    def _run(self) -> None:
        if self.handle is None or self.f is None:
            return
        result = self.handle._guard("timer", self.f, self.args)
        if isinstance(result, Deferred):
            result.addBoth(self._again)
        else:
            self._again(None)

    def _again(self, result: object) -> None:
        if self.handle is None:
            return
        now = self.handle.clock.seconds()
        self.next_at += self.seconds
        if self.next_at <= now:
            missed = int((now - self.next_at) // self.seconds) + 1
            self.next_at += missed * self.seconds
        self.call = self.handle.clock.callLater(max(self.next_at - now, 0), self._run)


@implementer(ISubscription)
class _Subscribed:
    """What `subscribe` gives."""

    def __init__(self, handle: PluginHandle, topic_filter: str, session: Any) -> None:
        self.topic_filter = topic_filter
        self._handle: PluginHandle | None = handle
        self._session = session

    def unsubscribe(self) -> None:
        """End it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle._subscriptions.pop(self, None)
            self._session.close()


@implementer(IPluginHandle)
class PluginHandle:
    """The handle of one load of one plugin; see `IPluginHandle`."""

    def __init__(
        self, host: Host, name: str, data_dir: str, config_dir: str, budget: Budget
    ) -> None:
        self.name = name
        self.node: str = host.broker.name
        self.log = Logger(namespace=f"mqttd.plugin.{name}")
        self.clock = host.reactor
        self.config_dir = config_dir
        self.revoked = False
        self.budget = budget
        #: What others show or serve: path -> resource, name -> (function, help), name ->
        #: (help, read), suffix -> read, name -> text.
        self.routes: dict[str, Any] = {}
        self.commands: dict[str, tuple[Callable[[list[str]], Any], str]] = {}
        self.metrics: dict[str, tuple[str, Callable[[], float]]] = {}
        self.sys_topics: dict[str, Callable[[], Any]] = {}
        self.alarms: dict[str, str] = {}
        self._host = host
        self._data_dir = data_dir
        self._hooked: list[tuple[str, Callable[..., Any]]] = []
        self._mods: list[tuple[str, str]] = []
        self._timers: dict[Any, None] = {}
        self._sweep_at = 16
        self._subscriptions: dict[_Subscribed, None] = {}
        self._services = MultiService()
        self._ports: dict[str, Any] = {}
        self._threads: Threads | None = None
        self._nested = 0
        self._holds = self._pauses = False
        host.broker.hooks.adopt(budget)

    @property
    def data_dir(self) -> str:
        """The plugin's own directory, made when it is first asked for."""
        os.makedirs(self._data_dir, mode=0o700, exist_ok=True)
        return self._data_dir

    # -- hooks and modules -----------------------------------------------------------------------

    def hook(
        self,
        point: str,
        callback: Callable[..., HookResult | None],
        init_args: Sequence[Any] = (),
        priority: int = 0,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> None:
        """See `IHooks.hook`."""
        self._check()
        self._host.broker.hooks.hook(
            point, callback, init_args, priority, self.budget, topic_filter, client
        )
        self._hooked.append((point, callback))

    def unhook(self, point: str, callback: Callable[..., HookResult | None]) -> None:
        """See `IHooks.unhook`; only what this plugin has hooked."""
        if self.revoked:
            return
        if (point, callback) not in self._hooked:
            self._host.broker.hooks.lookup(point)
            raise ValueError(f"{callback!r} of plugin {self.name} is not hooked at {point}")
        self._hooked.remove((point, callback))
        self._host.broker.hooks.unhook(point, callback)

    def run_hooks(self, point: str, args: Sequence[Any], acc: Any = None) -> tuple[HookResult, Any]:
        """See `IHooks.run_hooks`."""
        self._check()
        result: tuple[HookResult, Any] = self._host.broker.hooks.run_hooks(point, args, acc)
        return result

    def lookup(self, point: str) -> tuple[Any, ...]:
        """See `IHooks.lookup`."""
        self._check()
        found: tuple[Any, ...] = self._host.broker.hooks.lookup(point)
        return found

    def register_mod(self, kind: str, name: str, module: Any, seq: int | None = None) -> None:
        """See `IPluginHandle.register_mod`."""
        self._check()
        if kind not in ("auth", "acl"):
            raise ValueError(f'kind = {kind!r}: expected "auth" or "acl"')
        if kind == "acl":
            verifyObject(IAccessControl, module)
        elif IAuthenticator.providedBy(module) or not IEnhancedAuthenticator.providedBy(module):
            verifyObject(IAuthenticator, module)
        guarded = _GuardedModule(self, f"{kind} {name}", module)
        self._host.broker.access.register_mod(kind, name, guarded, seq)
        self._mods.append((kind, name))
        self._host.broker.access_changed()

    def unregister_mod(self, kind: str, name: str) -> None:
        """See `IPluginHandle.unregister_mod`."""
        if self.revoked:
            return
        if (kind, name) not in self._mods:
            raise ValueError(f"plugin {self.name} has no {kind} module {name!r}")
        self._mods.remove((kind, name))
        self._host.broker.access.unregister_mod(kind, name)
        self._host.broker.access_changed()

    # -- time and threads ------------------------------------------------------------------------

    def call_later(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_later`."""
        self._check()
        timer = _Timer(self, f, args)
        timer.call = self.clock.callLater(seconds, timer)
        self._timers[timer] = None
        if len(self._timers) > self._sweep_at:  # now and then, forget those that were cancelled
            for other in [t for t in self._timers if t.call is not None and not t.call.active()]:
                self._timers.pop(other)
            self._sweep_at = 2 * len(self._timers) + 16
        return timer.call

    def call_every(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_every`."""
        self._check()
        if not seconds > 0:
            raise ValueError(f"seconds = {seconds!r}: expected more than 0")
        repeating = _Repeating(self, seconds, f, args)
        self._timers[repeating] = None
        return repeating

    def in_thread(self, f: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """See `IPluginHandle.in_thread`."""
        self._check()
        if self._threads is None:
            self._threads = Threads(
                f"plugin {self.name}", self._host.reactor, most_waiting=self.budget.queue
            )
        return self._threads.call(f, args)

    # -- messages --------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[int, Any] | None = None,
    ) -> int:
        """See `IPluginHandle.publish`."""
        self._check()
        broker = self._host.broker
        most = broker.settings.max_packet_size
        if len(payload) + len(topic.encode()) > most:
            raise ValueError(f"topic and payload are larger than mqtt.max_packet_size, {most}")
        if self._nested >= MOST_NESTED:
            raise RuntimeError(f"plugin {self.name} publishes in a circle, last to {topic!r}")
        self._nested += 1
        try:
            given = dict(properties) if properties is not None else None
            receivers = local.publish(broker, topic, payload, qos, retain, given)
        except MqttError as error:
            raise ValueError(f"topic {topic!r}: {error.detail}") from None
        finally:
            self._nested -= 1
        return max(receivers, 0)

    def republish(self, message: Any) -> int:
        """See `IPluginHandle.republish`."""
        self._check()
        return max(local.republish(self._host.broker, message), 0)

    def subscribe(self, topic_filter: str, callback: Callable[[Any], object], qos: int = 0) -> Any:
        """See `IPluginHandle.subscribe`."""
        self._check()

        def receive(message: object) -> None:
            if not self.revoked:
                self._guard("subscription", callback, (message,))

        try:
            session = local.subscribe(
                self._host.broker, f"$plugin/{self.name}", topic_filter, receive, qos
            )
        except MqttError as error:
            raise ValueError(f"topic filter {topic_filter!r}: {error.detail}") from None
        subscribed = _Subscribed(self, topic_filter, session)
        self._subscriptions[subscribed] = None
        return subscribed

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """See `IPluginHandle.authorize`."""
        self._check()
        return bool(self._host.broker.authorize(client, action, topic))

    def figures(self) -> tuple[dict[str, int], dict[str, int]]:
        """See `IPluginHandle.figures`."""
        self._check()
        return self._host.broker.metrics.snapshot(), self._host.broker.stats()

    def plugin_metrics(self) -> list[tuple[str, str, float]]:
        """See `IPluginHandle.plugin_metrics`."""
        self._check()
        return self._host.metrics()

    def budgets(self) -> list[dict[str, Any]]:
        """See `IPluginHandle.budgets`."""
        self._check()
        return [budget.describe() for budget in self._host.broker.hooks.budgets()]

    def hold_acknowledgements(
        self, hold: Callable[[Callable[[], None], str], object] | None
    ) -> None:
        """See `IPluginHandle.hold_acknowledgements`."""
        self._check()
        if self._host.broker.holding and not self._holds:
            raise RuntimeError("another plugin holds acknowledgements already")
        self._host.broker.hold_acknowledgements(hold)
        self._holds = hold is not None

    def pause_publishers(self, paused: bool) -> None:
        """See `IPluginHandle.pause_publishers`."""
        self._check()
        self._pauses = paused
        self._host.broker.set_congested(paused)

    # -- clients ---------------------------------------------------------------------------------

    def client(self, client_id: str) -> ClientInfo | None:
        """See `IPluginHandle.client`."""
        self._check()
        session = self._host.broker.sessions.get(client_id)
        if session is None or session.channel is None:
            return None
        found: ClientInfo = self._host.broker.client_of(session)
        return found

    def clients(self) -> list[ClientInfo]:
        """See `IPluginHandle.clients`."""
        self._check()
        broker = self._host.broker
        sessions = list(broker.sessions.values())
        return [broker.client_of(session) for session in sessions if session.channel is not None]

    def subscribe_client(self, client_id: str, subscription: Any) -> int:
        """See `IPluginHandle.subscribe_client`."""
        self._check()
        code: int = self._host.broker.subscribe_client(client_id, subscription)
        return code

    def disconnect(self, client_id: str, reason_code: int = 0x98) -> bool:
        """See `IPluginHandle.disconnect`."""
        self._check()
        ended: bool = self._host.broker.kick(client_id, reason_code)
        return ended

    def send_info(self, client_id: str, info: Any) -> bool:
        """See `IPluginHandle.send_info`."""
        self._check()
        told: bool = self._host.broker.send_info(client_id, info)
        return told

    # -- for operators ---------------------------------------------------------------------------

    def add_route(self, path: str, resource: Any) -> None:
        """See `IPluginHandle.add_route`."""
        self._new(path, self.routes, _SEGMENT, "path", "letters, digits and _ . -")
        if path in _RESERVED:
            raise ValueError(f"path = {path!r}: the broker serves that itself")
        verifyObject(IResource, resource)
        self.routes[path] = _GuardedResource(self, resource)

    def add_command(self, name: str, function: Callable[[list[str]], Any], help: str = "") -> None:
        """See `IPluginHandle.add_command`."""
        self._new(name, self.commands, _COMMAND, "name", "a-z, 0-9, _ and -, first a-z")
        self.commands[name] = (function, help)

    def add_metric(self, name: str, help: str, read: Callable[[], float]) -> None:
        """See `IPluginHandle.add_metric`."""
        self._new(name, self.metrics, _METRIC, "name", "a-z, 0-9 and _, first a-z")
        self.metrics[name] = (help, read)

    def add_sys_topic(self, suffix: str, read: Callable[[], Any]) -> None:
        """See `IPluginHandle.add_sys_topic`."""
        self._new(suffix, self.sys_topics, None, "suffix", "")
        try:
            validate_topic_name(suffix, 64)
        except MqttError as error:
            raise ValueError(f"suffix = {suffix!r}: {error.detail}") from None
        self.sys_topics[suffix] = read

    def alarm(self, name: str, text: str) -> None:
        """See `IPluginHandle.alarm`."""
        self._check()
        self.alarms[name] = text
        if self._host.broker.hooks.alarms is not None:
            self._host.broker.hooks.alarms.activate(f"plugin.{self.name}.{name}", text)

    def clear_alarm(self, name: str) -> None:
        """See `IPluginHandle.clear_alarm`."""
        alarms = self._host.broker.hooks.alarms
        if self.alarms.pop(name, None) is not None and alarms is not None:
            alarms.clear(f"plugin.{self.name}.{name}")

    # -- services and listeners ------------------------------------------------------------------

    def add_service(self, service: Any) -> None:
        """See `IPluginHandle.add_service`."""
        self._check()
        verifyObject(IService, service)
        if not self._services.running:
            self._services.startService()
        service.setServiceParent(self._services)

    def add_listener(self, endpoint: str, name: str) -> Deferred[Any]:
        """See `IPluginHandle.add_listener`."""
        self._new(name, self._ports, _SEGMENT, "name", "letters, digits and _ . -")
        if self._host.make_factory is None:
            raise RuntimeError("there are no listeners here")
        self._ports[name] = None
        factory = self._host.make_factory(f"{self.name}.{name}")
        opened = maybeDeferred(
            lambda: serverFromString(self._host.reactor, endpoint).listen(factory)
        )

        def listening(port: Any) -> Any:
            if self.revoked:
                port.stopListening()
                raise RuntimeError(f"plugin {self.name} was unloaded")
            self._ports[name] = port
            return port.getHost()

        def failed(failure: Any) -> Any:
            self._ports.pop(name, None)
            return failure

        return opened.addCallbacks(listening, failed)

    # -- the end ---------------------------------------------------------------------------------

    def revoke(self) -> Deferred[Any]:
        """Take everything back; fires when services and listeners have stopped."""
        if self.revoked:
            return succeed(None)
        self.revoked = True
        broker = self._host.broker
        for point, callback in self._hooked:
            self._quietly(broker.hooks.unhook, point, callback)
        for kind, name in self._mods:
            self._quietly(broker.access.unregister_mod, kind, name)
        if self._mods:
            broker.access_changed()
        if self._holds:
            broker.hold_acknowledgements(None)
        if self._pauses:
            broker.set_congested(False)
        for timer in list(self._timers):
            if isinstance(timer, _Repeating):
                timer.stop()
            elif timer.call is not None and timer.call.active():
                timer.call.cancel()
        for subscribed in list(self._subscriptions):
            self._quietly(subscribed.unsubscribe)
        if self._threads is not None:
            self._threads.stop()
        for suffix in self.sys_topics:
            topic = f"$SYS/broker/plugins/{self.name}/{suffix}"
            self._quietly(broker.publish_text, topic, b"", 0, True)
        for name in list(self.alarms):
            self.clear_alarm(name)
        broker.hooks.disown(self.budget)
        stopping = self._stop_ports()
        if self._services.running:
            stopping.append(maybeDeferred(self._services.stopService))
        for held in (self.routes, self.commands, self.metrics, self.sys_topics, self._timers):
            held.clear()
        self._hooked.clear()
        self._mods.clear()
        self._threads = None
        for waiting in stopping:
            waiting.addErrback(lambda failure: self.log.failure("cannot be stopped", failure))
        return DeferredList(stopping)

    def _stop_ports(self) -> list[Deferred[Any]]:
        """Stop listening, and end the connections that came through."""
        stopping = []
        broker = self._host.broker
        for name, port in self._ports.items():
            if port is not None:
                stopping.append(maybeDeferred(port.stopListening))
            listener = f"{self.name}.{name}"
            for session in list(broker.sessions.values()):
                channel = session.channel
                if channel is not None and channel.listener == listener:
                    channel.close(reasons.SERVER_SHUTTING_DOWN, f"listener {listener} ended")
        if self._ports:
            broker.perform_later()
        self._ports.clear()
        return stopping

    def describe(self) -> dict[str, Any]:
        """What is registered now, for `mqttd-ctl plugins info`."""
        hooks = [
            {
                "point": point,
                "callback": name_of(entry.callback),
                "priority": entry.priority,
                "topic_filter": list(entry.topic_filters),
                "client": list(entry.clients),
                "errors": entry.errors,
            }
            for point in sorted({point for point, _ in self._hooked})
            for entry in self._host.broker.hooks.lookup(point)
            if (point, entry.callback) in self._hooked
        ]
        timers = [timer for timer in self._timers if timer.call is not None and timer.call.active()]
        return {
            "hooks": hooks,
            "modules": [f"{kind} {name}" for kind, name in self._mods],
            "timers": len(timers),
            "threads": self._threads.threads if self._threads is not None else 0,
            "subscriptions": [subscribed.topic_filter for subscribed in self._subscriptions],
            "routes": sorted(self.routes),
            "commands": {name: help for name, (_, help) in self.commands.items()},
            "metrics": {name: self.read(name, read) for name, (_, read) in self.metrics.items()},
            "sys_topics": sorted(self.sys_topics),
            "services": len(list(self._services)),
            "listeners": sorted(self._ports),
            "alarms": dict(self.alarms),
        }

    def read(self, what: str, read: Callable[[], Any]) -> Any:
        """The value of a metric or a topic; None when it cannot be had."""
        return self._guard(what, read, ())

    def _guard(self, what: str, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call ``f(*args)`` on the budget; None when it failed, a Deferred never fails unseen."""
        if self.revoked:
            return None
        result = self._host.broker.hooks.call(self.budget, what, f, args)
        if isinstance(result, Coroutine):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred) and what in _WATCHED:
            result.addErrback(self._late, what)
        return result

    def _late(self, failure: Any, what: str) -> None:
        """A Deferred has failed that nobody else waits for."""
        if not self.revoked:
            text = f"{what}: {failure.type.__name__}: {failure.value}"
            self.log.failure("its {what} failed", failure, what=what)
            self.budget.failed("raised", text[:500], monotonic())

    def _quietly(self, f: Callable[..., Any], *args: Any) -> None:
        """One that fails must not keep the others."""
        try:
            f(*args)
        except Exception:
            self.log.failure("{f!r} failed while the plugin was unloaded", f=f)

    def _check(self) -> None:
        if self.revoked:
            raise RuntimeError(f"plugin {self.name} is unloaded: its handle is dead")

    def _new(
        self,
        name: str,
        held: Mapping[str, Any],
        pattern: re.Pattern[str] | None,
        what: str,
        of: str,
    ) -> None:
        self._check()
        if pattern is not None and not pattern.fullmatch(name):
            raise ValueError(f"{what} = {name!r}: expected up to 64 of {of}")
        if name in held:
            raise ValueError(f"{what} = {name!r} is in use")
