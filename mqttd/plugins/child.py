"""The process of a plugin with ``isolation = "process"``: python -m mqttd.plugins.child FD

    the broker ==== Pipe ==== ChildHandle --- the plugin
                                 '-- a reactor of its own: timers, threads, services

The other half is `mqttd.plugins.process`. What belongs to the plugin alone (timers, threads,
services) runs here; the rest is asked of the broker. Not offered: modules of the access chains,
routes, listeners, and looking at the hooks of others.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import ILogObserver, Logger, LogLevel, formatEvent
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer
from zope.interface.verify import verifyObject

from mqttd.interfaces import (
    IPlugin,
    IPluginHandle,
    IPluginStore,
    IRepeating,
    ISubscription,
)
from mqttd.net.clock import day, steady
from mqttd.plugins.calls.filters import Patterns
from mqttd.plugins.calls.signatures import numbered, verify_callback, verify_function
from mqttd.plugins.handle.base import check_message
from mqttd.plugins.pipe import Pipe
from mqttd.types import Action, ClientInfo, HookResult, StoreFull

__all__ = ["ChildHandle", "main"]

#: Seconds to wait for the broker, which may be busy.
ANSWER = 10.0


@implementer(ISubscription)
class _Subscribed:
    def __init__(self, handle: ChildHandle, topic_filter: str, key: int) -> None:
        self.topic_filter = topic_filter
        self._handle: ChildHandle | None = handle
        self._key = key

    def unsubscribe(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.ask("unsubscribe", self._key)


@implementer(IRepeating)
class _Repeating:
    def __init__(self, loop: LoopingCall) -> None:
        self._loop = loop

    def stop(self) -> None:
        if self._loop.running:
            self._loop.stop()


@implementer(IPluginStore)
class _Store:
    """The plugin's store, which the broker has."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def _ask(self, what: str, *args: Any) -> Any:
        return self._pipe.call("store", what, *args, seconds=ANSWER)

    @property
    def used(self) -> int:
        """See `IPluginStore`."""
        return int(self._ask("used"))

    @property
    def most(self) -> int:
        """See `IPluginStore`."""
        return int(self._ask("most"))

    def get(self, key: str) -> Any:
        """See `IPluginStore.get`."""
        return self._ask("get", key)

    def put(self, key: str, value: Any) -> None:
        """See `IPluginStore.put`."""
        full = self._ask("put", key, value)
        if full:
            raise StoreFull(full)

    def delete(self, key: str) -> bool:
        """See `IPluginStore.delete`."""
        return bool(self._ask("delete", key))

    def keys(self, prefix: str = "") -> list[str]:
        """See `IPluginStore.keys`."""
        return list(self._ask("keys", prefix))

    def written(self) -> Deferred[None]:
        """See `IPluginStore.written`."""
        return self._pipe.ask("store", "written")


class ChildHandle:
    """The handle in the child: most of `IPluginHandle`."""

    def __init__(
        self,
        pipe: Pipe,
        name: str,
        node: str,
        worker: int,
        workers: int,
        data_dir: str,
        config_dir: str,
        clock: Any,
    ) -> None:
        self.pipe = pipe
        self.name = name
        self.node = node
        self.worker = worker
        self.workers = workers
        self.data_dir = data_dir
        self.config_dir = config_dir
        self.clock = clock
        self.store = _Store(pipe)
        self.log = Logger(namespace=f"mqttd.plugin.{name}", observer=_ToBroker(pipe))
        self.functions: dict[int, Callable[..., Any]] = {}
        self._hooked: dict[tuple[str, Any], int] = {}
        self._keys = count(1)
        self._services = MultiService()

    def ask(self, what: str, *args: Any) -> Any:
        """Ask the broker, and wait for it."""
        return self.pipe.call(what, *args, seconds=ANSWER)

    def _key(self, f: Callable[..., Any]) -> int:
        key = next(self._keys)
        self.functions[key] = f
        return key

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
        verify_callback(point, callback, init_args)
        if (point, callback) in self._hooked:
            raise ValueError(f"{callback!r} is hooked at {point} already")
        more = tuple(init_args)
        key = self._key(lambda *args: callback(*args, *more))
        self.ask("hook", point, key, priority, topic_filter, client)
        self._hooked[point, callback] = key

    def unhook(self, point: str, callback: Callable[..., HookResult | None]) -> None:
        """See `IHooks.unhook`."""
        key = self._hooked.pop((point, callback), 0)
        if not key:
            raise ValueError(f"{callback!r} is not hooked at {point}")
        self.ask("unhook", point, key)
        del self.functions[key]

    def __getattr__(self, name: str) -> Any:
        """What of the interface is not here is not offered, and says so."""
        if name in IPluginHandle.names(all=True):
            raise NotImplementedError(
                f"{name} is not offered to plugin {self.name}: it runs in a process of its own"
            )
        raise AttributeError(name)

    def time(self) -> float:
        """See `IPluginHandle.time`."""
        return day(self.clock)

    def call_later(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_later`."""
        return self.clock.callLater(seconds, self._guarded, "timer", f, args)

    def call_every(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_every`."""
        verify_function(f, numbered(args))
        loop = LoopingCall(self._guarded, "timer", f, args)
        loop.start(seconds, now=False)
        return _Repeating(loop)

    def in_thread(self, f: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """See `IPluginHandle.in_thread`."""
        return deferToThread(f, *args)

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[int, Any] | None = None,
    ) -> int:
        """See `IPluginHandle.publish`."""
        check_message(topic, payload)
        return int(self.ask("publish", topic, payload, qos, retain, properties))

    def holds(self, message: Any, until: str) -> None:
        """See `IPluginHandle.holds`."""
        self.ask("holds", message, until)

    def subscribe(self, topic_filter: str, callback: Callable[[Any], object], qos: int = 0) -> Any:
        """See `IPluginHandle.subscribe`."""
        verify_function(callback, ("message",))
        key = self._key(callback)
        self.ask("subscribe", topic_filter, key, qos)
        return _Subscribed(self, topic_filter, key)

    def arrived(self, client_id: str = "") -> Deferred[None]:
        """See `IPluginHandle.arrived`."""
        return self.pipe.ask("arrived", client_id)

    def ready(self) -> Deferred[None]:
        """See `IPluginHandle.ready`."""
        return self.pipe.ask("ready")

    def client(self, client_id: str) -> ClientInfo | None:
        """See `IPluginHandle.client`."""
        found: ClientInfo | None = self.ask("client", client_id)
        return found

    def clients(self) -> list[ClientInfo]:
        """See `IPluginHandle.clients`."""
        found: list[ClientInfo] = self.ask("clients")
        return found

    def subscribe_client(self, client_id: str, subscription: Any) -> int:
        """See `IPluginHandle.subscribe_client`."""
        return int(self.ask("subscribe_client", client_id, subscription))

    def disconnect(self, client_id: str, reason_code: int = 0x98) -> bool:
        """See `IPluginHandle.disconnect`."""
        return bool(self.ask("disconnect", client_id, reason_code))

    def send_info(self, client_id: str, info: Any) -> bool:
        """See `IPluginHandle.send_info`."""
        return bool(self.ask("send_info", client_id, info))

    def add_command(self, name: str, function: Callable[[list[str]], Any], help: str = "") -> None:
        """See `IPluginHandle.add_command`."""
        self.ask("add_command", name, self._key(function), help)

    def add_metric(self, name: str, help: str, read: Callable[[], float]) -> None:
        """See `IPluginHandle.add_metric`."""
        self.ask("add_metric", name, self._key(read), help)

    def add_sys_topic(self, suffix: str, read: Callable[[], Any]) -> None:
        """See `IPluginHandle.add_sys_topic`."""
        self.ask("add_sys_topic", suffix, self._key(read))

    def add_service(self, service: Any) -> None:
        """See `IPluginHandle.add_service`."""
        if not self._services.running:
            self._services.startService()
        service.setServiceParent(self._services)

    def alarm(self, name: str, text: str) -> None:
        """See `IPluginHandle.alarm`."""
        self.ask("alarm", name, text)

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """See `IPluginHandle.authorize`."""
        return bool(self.ask("authorize", client, action, topic))

    def beyond(self, action: Action, topic: str, size: int) -> str:
        """See `IPluginHandle.beyond`."""
        return str(self.ask("beyond", action, topic, size))

    def room(self, topics: Sequence[str], size: int) -> int:
        """See `IPluginHandle.room`."""
        return int(self.ask("room", list(topics), size))

    def figures(self) -> tuple[dict[str, int], dict[str, int]]:
        """See `IPluginHandle.figures`."""
        found: tuple[dict[str, int], dict[str, int]] = self.ask("figures")
        return found

    def counter(self, name: str) -> int:
        """See `IPluginHandle.counter`."""
        return int(self.ask("counter", name))

    def plugin_metrics(self) -> list[tuple[str, str, float]]:
        """See `IPluginHandle.plugin_metrics`."""
        found: list[tuple[str, str, float]] = self.ask("plugin_metrics")
        return found

    def budgets(self) -> list[dict[str, Any]]:
        """See `IPluginHandle.budgets`."""
        found: list[dict[str, Any]] = self.ask("budgets")
        return found

    def republish(self, message: Any, noted: bool = False, routed: bool = False) -> int:
        """See `IPluginHandle.republish`."""
        return int(self.ask("republish", message, noted, routed))

    def dump_message(self, message: Any) -> bytes:
        """See `IPluginHandle.dump_message`."""
        return bytes(self.ask("dump_message", message))

    def load_message(self, data: bytes) -> Any:
        """See `IPluginHandle.load_message`."""
        return self.ask("load_message", data)

    def clear_alarm(self, name: str) -> None:
        """See `IPluginHandle.clear_alarm`."""
        self.ask("clear_alarm", name)

    def stop(self) -> Any:
        """Stop its services."""
        return self._services.stopService() if self._services.running else None

    def _guarded(self, what: str, f: Callable[..., object], args: Sequence[Any]) -> object:
        """A failure is the plugin's: told to the broker, and no more."""
        try:
            result = f(*args)
        except Exception as error:
            self.failed(what, error)
            return None
        if isinstance(result, Deferred):
            result.addErrback(self._late, what)
        return result

    def _late(self, failure: Failure, what: str) -> None:
        self.failed(what, failure.value)

    def failed(self, what: str, error: BaseException | None) -> None:
        """Charge an error to the plugin."""
        traceback.print_exception(error)
        self.pipe.tell("failed", f"{what}: {type(error).__name__}: {error}")


@implementer(ILogObserver)
class _ToBroker:
    """What the plugin logs goes to the broker's log."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def __call__(self, event: Any) -> None:
        level = event.get("log_level", LogLevel.info)
        if not self.pipe.closed and level >= LogLevel.info:
            self.pipe.tell("log", level.name, formatEvent(event))


@implementer(IReadDescriptor)
class _Child:
    """The plugin's process: serves what the broker asks until it closes the socket."""

    def __init__(self, sock: socket.socket, reactor: Any) -> None:
        self.reactor = reactor
        self.pipe = Pipe(sock, self.serve)
        self.handle: ChildHandle | None = None
        self.plugin: Any = None

    def serve(self, what: str, args: tuple[Any, ...]) -> Any:
        """Answer the broker."""
        if what == "call":
            assert self.handle is not None
            function = self.handle.functions.get(args[0])
            return None if function is None else function(*args[1])
        if what == "load":
            return maybeDeferred(self.load, *args).addErrback(_shown)
        if what == "unload":
            return maybeDeferred(self.plugin.unload).addBoth(self.stopped)
        raise ValueError(what)

    def load(
        self,
        paths: list[str],
        factory: str,
        name: str,
        node: str,
        worker: int,
        workers: int,
        data_dir: str,
        config_dir: str,
        schema: str,
        config: Any,
    ) -> Any:
        """Make the plugin, and load it with its settings, of the class that `schema` names."""
        import mqttd_plugins
        from mqttd.plugins.loader import resolve

        mqttd_plugins.__path__[:] = paths
        self.plugin = resolve(factory)()
        verifyObject(IPlugin, self.plugin)
        self.handle = ChildHandle(
            self.pipe, name, node, worker, workers, data_dir, config_dir, self.reactor
        )
        directlyProvides(self.handle, IPluginHandle)
        if schema:
            config = msgspec.convert(config, resolve(schema))
        return maybeDeferred(self.plugin.load, self.handle, config).addCallback(lambda _: None)

    def stopped(self, result: Any) -> Any:
        """The plugin has let go; its services too."""
        assert self.handle is not None
        return maybeDeferred(self.handle.stop).addBoth(lambda _: None)

    def fileno(self) -> int:
        """The socket."""
        return -1 if self.pipe.closed else self.pipe.sock.fileno()

    def logPrefix(self) -> str:
        """For Twisted's log."""
        return "broker"

    def doRead(self) -> None:
        """The broker has said something."""
        try:
            self.pipe.pump()
        except Exception as error:
            if self.handle is None or self.pipe.closed:
                raise
            self.handle.failed("callback", error)
        if self.pipe.closed:
            self.end()

    def connectionLost(self, reason: Any) -> None:
        """The reactor has given the socket up."""
        self.end()

    def end(self) -> None:
        """The broker has gone: nothing is left to do, and no thread worth waiting for."""
        os._exit(0)


def _shown(failure: Failure) -> Failure:
    """The broker gets the text; the traceback is for the log."""
    failure.printTraceback()
    return failure


def main(argv: list[str]) -> None:
    """Run until the broker closes its end."""
    from twisted.internet import reactor as installed

    reactor: Any = installed
    steady(reactor)
    child = _Child(socket.socket(fileno=int(argv[1])), reactor)
    reactor.addReader(child)
    reactor.callLater(0, child.doRead)
    LoopingCall(child.pipe.flush).start(0.05)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv)
