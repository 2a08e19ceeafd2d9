"""Loads a plugin into a broker in memory, with the handle it gets in a running one.

    >>> loaded = node.load(acme, {"limit": 10})     # a declaration, a factory or an IPlugin
    >>> loaded.command("list")                      # what `mqttd-ctl acme list` prints
    >>> loaded.metrics()
    {'seen_total': 3.0}
    >>> loaded.unload()

Promise: configuration is checked as at a real load, the provider with zope.interface.verify, and
`unload` takes everything back. Two things differ, so that a test is the same on a slow machine: the
budget is generous (give a `budget` to test it), and `in_thread` calls its function in this thread,
in a turn of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from zope.interface.verify import verifyObject

from mqttd.interfaces import IMqttdPlugin, IPlugin
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.handle.handle import Host, PluginHandle
from mqttd.plugins.loader import resolve
from mqttd.plugins.settings import read_settings

__all__ = ["LoadedPlugin", "load", "patient", "result_of"]

T = TypeVar("T")


def result_of(answer: T | Deferred[T]) -> T:
    """An answer, or what its Deferred fired with; raises what it failed with.

    AssertionError for a Deferred that has not fired.
    """
    if not isinstance(answer, Deferred):
        return answer
    fired: list[T] = []
    failed: list[Any] = []
    answer.addCallbacks(fired.append, failed.append)
    if failed:
        failed[0].raiseException()
    assert fired, "the Deferred has not fired; if it needs a clock or a thread, override `wait`"
    return fired[0]


def patient(name: str) -> Budget:
    """A budget that a slow machine does not use up."""
    return Budget(name, per_call=60.0, per_second=1000.0)


class LoadedPlugin:
    """A plugin at work: `plugin` (its IPlugin), `handle`, `config`; made by `MemoryBroker.load`."""

    def __init__(self, plugin: Any, handle: Any, config: Any, settle: Callable[[], None]) -> None:
        self.plugin = plugin
        self.handle = handle
        self.config = config
        self._settle = settle

    def unload(self) -> None:
        """As `mqttd-ctl plugins unload`; raises what the plugin's `unload` does."""
        try:
            self._wait(self.plugin.unload(), "unload")
        finally:
            self.handle.revoke()
            self._settle()

    def command(self, name: str, *argv: str) -> str:
        """What `mqttd-ctl PLUGIN name argv...` prints; raises KeyError, and what it raises."""
        function, _ = self.handle.commands[name]
        return str(self._wait(function(list(argv)), f"command {name}"))

    def metrics(self) -> dict[str, float]:
        """The plugin's metrics by the name it gave them."""
        return {name: float(read()) for name, (_, read) in self.handle.metrics.items()}

    def sys_topics(self) -> dict[str, str]:
        """The payloads of the plugin's topics by suffix."""
        return {suffix: str(read()) for suffix, read in self.handle.sys_topics.items()}

    @property
    def alarms(self) -> dict[str, str]:
        """The alarms it has raised, by name."""
        return dict(self.handle.alarms)

    def _wait(self, answer: Any, what: str) -> Any:
        return _wait(answer, what, self._settle)


class _Handle(PluginHandle):
    """The real one, but for threads."""

    def in_thread(self, f: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Call it in a turn of its own."""
        self._check()
        return deferLater(self.clock, 0, f, *args)


def load(
    broker: Any,
    clock: Any,
    settle: Callable[[], None],
    plugin: Any,
    config: Mapping[str, Any] | str,
    directory: str,
    budget: Budget | None = None,
) -> LoadedPlugin:
    """See `MemoryBroker.load`."""
    name, schema, instance = "test", None, plugin
    if IMqttdPlugin.providedBy(plugin):
        name = plugin.name
        schema = resolve(plugin.config_schema) if plugin.config_schema is not None else None
        instance = resolve(plugin.factory)()
    elif not IPlugin.providedBy(plugin) and callable(plugin):
        instance = plugin()
    verifyObject(IPlugin, instance)
    settings = _settings(config, schema, directory, name)
    handle = _Handle(
        Host(broker, clock),
        name,
        os.path.join(directory, "data", name),
        directory,
        patient(name) if budget is None else budget,
    )
    loaded = LoadedPlugin(instance, handle, settings, settle)
    try:
        _wait(instance.load(handle, settings), "load", settle)
    except BaseException:
        loaded.unload()
        raise
    settle()
    return loaded


def _settings(
    config: Mapping[str, Any] | str, schema: type[msgspec.Struct] | None, directory: str, name: str
) -> Any:
    """A text is a configuration file; a mapping is what stands in one."""
    if isinstance(config, str):
        path = os.path.join(directory, f"{name}.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        return read_settings(path, schema)[0]
    if schema is None:
        return dict(config)
    unknown = set(config) - {field.encode_name for field in msgspec.structs.fields(schema)}
    if unknown:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}")
    return msgspec.convert(dict(config), schema)


def _wait(answer: Any, what: str, settle: Callable[[], None]) -> Any:
    """The value of an answer, after the broker has come to rest."""
    if isinstance(answer, Deferred):
        settle()
        try:
            return result_of(answer)
        except AssertionError:
            raise AssertionError(f"the Deferred of {what} has not fired") from None
    return answer
