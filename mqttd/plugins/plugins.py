"""The plugins of one broker: loaded, unloaded and reloaded while it runs.

                     load                        too many errors
       unloaded ------------> loading --> loaded <---------------> quarantined
          ^  ^                   |          |  ^                       |
          |  '--- failed <-------'          |  '-- reload: new code is imported first; with a
          |                                 |      mistake in it the old one stays
          '---------------------------------'------ unload ------------'

At start, what the configuration names (`[plugins] load`) and what `data/loaded_plugins` remembers
is loaded in that order, one after the other, before any client is let in; at stop, the other way
round. `data/loaded_plugins` holds what an operator loaded in the running broker.

Promise: an operation that fails leaves nothing of the plugin behind; unloading always ends, at the
latest `DEADLINE` seconds after what the plugin itself takes too long for. All methods are called in
the reactor thread; code is imported in a thread of its own while the broker runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Invalid
from zope.interface.verify import verifyObject

from mqttd.config.schema import Config
from mqttd.hints import like
from mqttd.interfaces import IPlugin
from mqttd.plugins.active import ELSEWHERE, FAILED, LOADED, LOADING, UNLOADED, UNLOADING, Active
from mqttd.plugins.edit import Editor
from mqttd.plugins.handle.handle import Host, PluginHandle
from mqttd.plugins.loader import Found, Plugin, discover, forget, resolve, restore
from mqttd.plugins.pipe import RemoteError
from mqttd.plugins.remembered import Remembered
from mqttd.plugins.settings import Limits, read_settings
from mqttd.plugins.steps import DEADLINE, DeadlineError, Steps, text_of
from mqttd.types import PluginError

__all__ = ["DEADLINE", "Plugins"]


# `Plugins.list` is a method, and would be taken for the type within its class.
Names = list[str]
Rows = list[dict[str, Any]]
Metrics = list[tuple[str, str, float]]


class Plugins:
    """Finds, loads and unloads plugins; `host` is what their handles are made of.

    Arguments: the configuration (its `plugins` table, its path and `node.data_dir`); `threaded`
    says whether code is imported in a thread (not before the reactor runs, nor in tests);
    `gone()` is called, in a turn of its own, when the code of a plugin is garbage; `first` is False
    in all workers of a broker but one.
    """

    def __init__(
        self,
        config: Config,
        host: Host,
        threaded: Callable[[], bool] = bool,
        gone: Callable[[], object] | None = None,
        first: bool = True,
    ) -> None:
        self.config = config
        self.first = first
        self.host = host
        host.metrics = self.metrics
        self.steps = Steps(host, threaded)
        self.gone = gone
        self.log = Logger(namespace="mqttd.plugins")
        base = os.path.dirname(config.path) if config.path else os.path.abspath("etc")
        self.config_dir = os.path.join(base, "plugins")
        self.data_dir = config.node.data_dir
        self.remembered = Remembered(os.path.join(self.data_dir, "loaded_plugins"))
        self._active: dict[str, Active] = {}
        #: Places in the chains of access control that are held for a plugin.
        self._places: dict[str, list[tuple[str, str]]] = {}
        #: File -> error of the modules that failed at the last look.
        self._told: dict[str, str] = {}
        #: The broker starts, or ends: what is not loaded may be soon.
        self._moves = True

    # -- start and stop --------------------------------------------------------------------------

    def check(self) -> None:
        """Make sure that every plugin the configuration names is there and has a sound one.

        Raises PluginError, with all that is wrong, the plugins found and the import errors.
        """
        if not self.config.plugins.load:
            return
        found = self._discover()
        mistakes: Names = []
        for name in self.config.plugins.load:
            try:
                self._settings(_get(found, name))
            except PluginError as error:
                mistakes.append(str(error))
        if mistakes:
            raise PluginError(f"{self.config.at('plugins.load')}: {'; '.join(mistakes)}")

    def load(self, name: str | None = None) -> Deferred[None]:
        """Load one plugin; without a name, all that are to be loaded at start.

        Fails with PluginError, which says why; nothing of the plugin is left then. Without a
        name, only a plugin that the configuration names makes it fail: one that merely was loaded
        when the broker stopped is logged and left out.
        """
        if name is None:
            return Deferred.fromCoroutine(self._load_all())
        return Deferred.fromCoroutine(self._load(name))

    def unload(self, name: str | None = None) -> Deferred[None]:
        """Unload one plugin; without a name all, the last loaded first, without forgetting them.

        Fails with PluginError if it is not loaded; a plugin's own failure is logged.
        """
        if name is None:
            return Deferred.fromCoroutine(self._unload_all())
        return Deferred.fromCoroutine(self._unload(name))

    def reload(self, name: str) -> Deferred[None]:
        """Unload a plugin and load it again, from what its files say now.

        Fails with PluginError; if the new code cannot be imported or its configuration is wrong,
        the old one was never unloaded; if the new one fails to load, the old one is loaded again.
        Where its modules stood in the chains of access control nobody is let through meanwhile, nor
        after both have failed.
        """
        return Deferred.fromCoroutine(self._reload(name))

    async def follow(self, config: Config) -> Names:
        """Load what another configuration names beyond ours; returns the names of these.

        That configuration is ours from then on; what it does not name any more stays loaded. Raises
        PluginError, and then everything is as it was.
        """
        before, self.config = self.config, config
        fresh: Names = []
        try:
            self.check()
            for name in config.plugins.load:
                if name not in self.loaded():
                    await self._load(name, remember=False)
                    fresh.append(name)
            self.host.broker.drawers.most = config.plugins.max_store_bytes
        except PluginError:
            for name in reversed(fresh):
                await self._unload(name)
            self.config = before
            raise
        return fresh

    # -- shown -----------------------------------------------------------------------------------

    def list(self) -> Rows:
        """Every plugin there is: name, version, state, description, error, file."""
        found = self._discover()
        listed = {name: self._describe(plugin) for name, plugin in found.plugins.items()}
        for name, active in self._active.items():
            listed.setdefault(name, self._describe(active.plugin))
        for failed in found.failed:
            listed.setdefault(failed.name, {
                "name": failed.name, "version": None, "state": FAILED, "description": "",
                "configured": failed.name in self.config.plugins.load, "error": failed.error,
                "file": failed.file,
            })  # fmt: skip
        return [listed[name] for name in sorted(listed)]

    def info(self, name: str) -> dict[str, Any]:
        """All about one plugin; PluginError if there is none."""
        active = self._active.get(name)
        plugin = active.plugin if active is not None else _get(self._discover(), name)
        declaration = plugin.declaration
        path = self._config_path(name)
        shown = self._describe(plugin) | {
            "api_version": declaration.api_version,
            "isolation": declaration.isolation,
            "policy": declaration.policy,
            "workers": getattr(declaration, "workers", "every"),
            "config_file": path,
            "config_file_exists": os.path.exists(path),
        }
        if active is not None:
            shown["workers"] = active.workers
        if active is not None and active.handle is not None:
            shown["isolation"], shown["policy"] = active.isolation, active.handle.budget.policy
            shown["loaded_at"] = active.loaded_at
            shown["config_file_differs"] = active.differs(path)
            shown["registered"] = active.handle.describe()
            shown["budget"] = active.handle.budget.describe()
        return shown

    def loaded(self) -> Names:
        """Names of the loaded plugins, in the order they were loaded."""
        return [name for name, active in self._active.items() if active.state == LOADED]

    def handle(self, name: str) -> PluginHandle:
        """The handle of a loaded plugin; PluginError if it is not loaded."""
        active = self._active.get(name)
        if active is None or active.handle is None or active.state != LOADED:
            raise self._not_loaded(name)
        return active.handle

    def comes(self, name: str) -> bool:
        """Whether one that is not loaded may be soon: the broker starts, or it is loaded again."""
        active = self._active.get(name)
        return self._moves if active is None else active.state in (LOADING, UNLOADING, UNLOADED)

    def _not_loaded(self, name: str) -> PluginError:
        """What to tell who wants something of a plugin that is not loaded, or is none."""
        found = self._discover()
        if name not in self._active and name not in found.plugins:
            return found.missing(name)
        return PluginError(f"plugin {name!r} is not loaded (mqttd-ctl plugins load {name})")

    def metrics(self) -> Metrics:
        """``(name, help, value)`` of each metric of the loaded plugins."""
        found = []
        for name in self.loaded():
            handle = self.handle(name)
            for metric, (text, read) in tuple(handle.metrics.items()):
                value = handle.read(f"metric {metric}", read)
                if isinstance(value, (int, float)):
                    found.append((f"plugin_{name}_{metric}", text, float(value)))
        return found

    def held(self) -> float:
        """What loaded plugins hold in memory for clients, as their metrics `held_bytes` say."""
        total = 0.0
        for name in self.loaded():
            handle = self.handle(name)
            told = handle.metrics.get("held_bytes")
            value = handle.read("metric held_bytes", told[1]) if told is not None else None
            if isinstance(value, (int, float)):
                total += value
        return total

    def sys_topics(self) -> dict[str, str]:
        """Topic below ``$SYS/broker/`` -> payload, of the loaded plugins."""
        found = {}
        for name in self.loaded():
            handle = self.handle(name)
            for suffix, read in tuple(handle.sys_topics.items()):
                value = handle.read(f"topic {suffix}", read)
                if value is not None:
                    found[f"plugins/{name}/{suffix}"] = str(value)
        return found

    def command(self, name: str, command: str, argv: Names) -> Deferred[str]:
        """Run a command of a loaded plugin; what it raises is for the operator's eyes."""
        handle = self.handle(name)
        if command not in handle.commands:
            there = ", ".join(sorted(handle.commands)) or "none"
            there += like(command, handle.commands)
            raise PluginError(f"plugin {name!r} has no command {command!r}; there are: {there}")
        function, _ = handle.commands[command]
        return Deferred.fromCoroutine(self._command(name, command, function, argv))

    async def _command(
        self, name: str, command: str, function: Callable[[Names], Any], argv: Names
    ) -> str:
        what = f"command {command}"
        try:
            return str(await self.steps.call(name, what, function, argv))
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(text_of(error, what)) from None

    # -- load ------------------------------------------------------------------------------------

    async def _load_all(self) -> None:
        self.check()
        names = dict.fromkeys((*self.config.plugins.load, *self.remembered.names()))
        for name in names:
            try:
                await self._load(name, remember=False)
            except PluginError as error:
                if name in self.config.plugins.load:
                    raise
                self.log.error("{error}", error=f"plugin {name} was not loaded: {error}")
        self._moves = False

    async def _load(self, name: str, remember: bool = True) -> None:
        known = self._active.get(name)
        if known is not None and known.state not in (FAILED, ELSEWHERE):
            raise PluginError(f"plugin {name!r} is {known.state} already")
        plugin = _get(self._discover(), name)
        if known is not None or remember:
            # What a look-out has imported since may be older than its file.
            forget(plugin, self._others(name))
            plugin = _get(self._discover(), name)
        active = self._active[name] = Active(plugin)
        try:
            settings, active.limits = await self.steps.imported(lambda: self._settings(plugin))
            factory = await self.steps.imported(active.factory)
        except PluginError as error:
            active.fail(str(error))
            raise
        if active.workers == "one" and not self.first:
            active.state = ELSEWHERE
        else:
            await self._start(active, factory, settings)
        self._give_up_places(name)
        if remember and name not in self.config.plugins.load:
            self.remembered.add(name)

    async def _start(self, active: Active, factory: Callable[[], Any], settings: Any) -> None:
        """Make the running part and have it load; takes everything back if it does not."""
        plugin = active.plugin
        name = plugin.declaration.name
        active.begin(settings)
        handle = PluginHandle(
            self.host,
            name,
            os.path.join(self.data_dir, "plugins", name),
            self.config_dir,
            active.budget(),
        )
        try:
            instance = await self.steps.call(name, "factory", factory)
            verifyObject(IPlugin, instance)
            active.handle, active.instance = handle, instance
            await self.steps.call(name, "load", instance.load, handle, settings)
        except (Exception, SystemExit) as error:
            failure = Failure()
            text = text_of(error, "load", self._config_path(name))
            if not isinstance(error, (Invalid, DeadlineError, PluginError, RemoteError)):
                self.log.failure("plugin {name} failed to load", failure, name=name)
            if active.instance is not None:
                await self._let_go(active)
            await handle.revoke()
            active.fail(text)
            raise PluginError(f"plugin {name!r} was not loaded: {text}") from None
        active.succeed()
        self.log.info(
            "plugin {name} {version} loaded", name=name, version=plugin.declaration.version
        )

    def editor(self, name: str) -> Editor:
        """What changes a plugin's file by its schema; PluginError if there is no such plugin."""
        active = self._active.get(name)
        plugin = active.plugin if active is not None else _get(self._discover(), name)
        return Editor(self._config_path(name), self._schema(plugin))

    def _settings(self, plugin: Plugin) -> tuple[Any, Limits]:
        """The plugin's configuration, checked against its schema, and its limits."""
        return read_settings(self._config_path(plugin.declaration.name), self._schema(plugin))

    def _schema(self, plugin: Plugin) -> type[msgspec.Struct] | None:
        schema = plugin.declaration.config_schema
        struct = resolve(schema) if schema is not None else None
        if struct is not None and not (
            isinstance(struct, type) and issubclass(struct, msgspec.Struct)
        ):
            raise PluginError(f"{schema}: expected a msgspec Struct")
        return struct

    # -- unload ----------------------------------------------------------------------------------

    async def _unload_all(self) -> None:
        self._moves = True
        for name in reversed(self.loaded()):
            await self._take_out(self._active[name])
        self._active.clear()

    async def _unload(self, name: str) -> None:
        active = self._active.get(name)
        if active is not None and active.state in (FAILED, ELSEWHERE):
            self._active.pop(name)
            self._give_up_places(name)
            self.remembered.remove(name)
            return
        if active is None:
            raise self._not_loaded(name)
        if active.state != LOADED:
            raise PluginError(f"plugin {name!r} is {active.state}")
        await self._take_out(active)
        self._active.pop(name, None)
        self.remembered.remove(name)
        forget(active.plugin, self._others(name))
        self.log.info("plugin {name} unloaded", name=name)

    async def _take_out(self, active: Active) -> None:
        active.state = UNLOADING
        await self._let_go(active)
        if active.handle is not None:
            await active.handle.revoke()
        active.handle = active.instance = None
        active.state = UNLOADED
        if self.gone is not None:
            self.host.reactor.callLater(0, self.gone)

    async def _let_go(self, active: Active) -> None:
        """Have the plugin's own `unload` called; a failure is logged."""
        name = active.plugin.declaration.name
        try:
            await self.steps.call(name, "unload", active.instance.unload)
        except (Exception, SystemExit) as error:
            self.log.error(
                "plugin {name} failed to unload: {error}",
                name=name,
                error=text_of(error, "unload"),
            )

    async def _reload(self, name: str) -> None:
        active = self._active.get(name)
        if active is None or active.state in (FAILED, ELSEWHERE):
            await self._load(name)
            return
        if active.state != LOADED:
            raise PluginError(f"plugin {name!r} is {active.state}")
        active.state = LOADING  # nobody else may start anything with it meanwhile
        old = active.plugin
        modules = forget(old, self._others(name))
        try:
            new = _get(self._discover(), name)
            fresh = Active(new)
            settings, fresh.limits = await self.steps.imported(lambda: self._settings(new))
            factory = await self.steps.imported(fresh.factory)
        except PluginError as error:
            restore(old, modules, self._others(name))
            active.state = LOADED
            raise PluginError(f"the old plugin {name!r} stays loaded: {error}") from None
        had = active.settings
        if active.handle is not None:
            self._places[name] = active.handle.keep_places()
        await self._take_out(active)
        self._active[name] = fresh
        try:
            await self._start(fresh, factory, settings)
            self._give_up_places(name)
        except PluginError as error:
            restore(old, modules, self._others(name))
            again = self._active[name] = Active(old)
            again.limits = active.limits
            await self._start(again, again.factory(), had)
            self._give_up_places(name)
            raise PluginError(f"the old plugin {name!r} is loaded again: {error}") from None

    def _give_up_places(self, name: str) -> None:
        """Places that were held for a plugin, and that it did not take, are nobody's."""
        for kind, module in self._places.pop(name, ()):
            self.host.broker.access.release_mod(kind, module)

    def _others(self, name: str) -> Iterator[Plugin]:
        """The loaded plugins but this one."""
        return (active.plugin for other, active in self._active.items() if other != name)

    # -- files -----------------------------------------------------------------------------------

    def _discover(self) -> Found:
        """All there is; what became unusable since the last look is logged."""
        found = discover(self.config.plugins.dir)
        failed = {each.file: each.error for each in found.failed}
        for file, error in failed.items():
            if self._told.get(file) != error:
                self.log.error("no plugin can be had from {file}: {error}", file=file, error=error)
        self._told = failed
        return found

    def _config_path(self, name: str) -> str:
        return os.path.join(self.config_dir, f"{name}.conf")

    def _describe(self, plugin: Plugin) -> dict[str, Any]:
        name = plugin.declaration.name
        active = self._active.get(name)
        state, error = active.shown() if active is not None else (UNLOADED, "")
        return {
            "name": name,
            "version": plugin.declaration.version,
            "state": state,
            "description": plugin.declaration.description,
            "configured": name in self.config.plugins.load,
            "error": error,
            "file": plugin.file,
            "commands": self._commands(active),
        }

    def _commands(self, active: Active | None) -> dict[str, str]:
        """What an operator may type behind the name of a loaded plugin, and what it does."""
        if active is None or active.handle is None:
            return {}
        return {name: text for name, (_, text) in active.handle.commands.items()}


def _get(found: Found, name: str) -> Plugin:
    plugin = found.plugins.get(name)
    if plugin is None:
        raise found.missing(name)
    return plugin
