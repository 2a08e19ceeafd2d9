"""Finds plugins on the path, imports their code, and forgets it again so that it can be reloaded.

    every `mqttd_plugins` folder on sys.path  --+
    [plugins] dir                             --+--getPlugins--> Found(plugins, failed)
                                                                    |          `-- module, error
                                                                    `-- name -> declaration

Promise: only declarations are imported here, in the caller's thread; a module that cannot be
imported, whatever it raises, is an entry in `Found.failed`. What was installed after the broker
started is found too, an editable install included.
"""

from __future__ import annotations

import importlib
import linecache
import os
import re
import site
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from types import ModuleType
from typing import Any, Final

import twisted.plugin
from twisted.plugin import getPlugins, pluginPackagePaths
from twisted.python import log
from twisted.python.modules import getModule
from zope.interface import Invalid
from zope.interface.verify import verifyObject

import mqttd_plugins
from mqttd.hints import like
from mqttd.interfaces import API_VERSION, IMqttdPlugin
from mqttd.types import PluginError

__all__ = ["Failed", "Found", "Plugin", "discover", "forget", "resolve", "restore"]

#: A requirement of an extra, as the package's metadata have it.
_OF_EXTRA: Final = re.compile(r"""([A-Za-z0-9._-]+).*;\s*extra == ['"](\w+)['"]""")
_NOT_FOR_USE: Final = ("test", "dev", "fuzz", "docs")

_PACKAGE: Final = mqttd_plugins.__name__

#: Modules that declared nothing when they were looked at: the time of their file then.
_silent: Final[dict[str, float]] = {}


@dataclass(slots=True, frozen=True)
class Plugin:
    """A declaration that was found, and the module it stands in."""

    declaration: Any
    module: str
    file: str


@dataclass(slots=True, frozen=True)
class Failed:
    """A module that declares no plugin because it is at fault itself."""

    module: str
    file: str
    error: str

    @property
    def name(self) -> str:
        """The name it has in lists, for want of a declared one."""
        return self.module.rpartition(".")[2]


@dataclass(slots=True, frozen=True)
class Found:
    """All there is: plugins by name, and the modules that failed or declare none."""

    plugins: dict[str, Plugin] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)
    #: Modules that declare none, by their name: file.
    silent: dict[str, str] = field(default_factory=dict)

    def missing(self, name: str) -> PluginError:
        """What to tell somebody who asks for a plugin that is not there."""
        there = ", ".join(sorted(self.plugins)) or "none"
        parts = [f"plugin {name!r} was not found; found: {there}{like(name, self.plugins)}"]
        if name in self.silent:
            parts[0] = (
                f"{self.silent[name]} was found, but declares no plugin; add to it: from"
                f" mqttd.plugins.declare import MqttdPlugin; {name} = MqttdPlugin(name={name!r},"
                f" version='1.0', description='...', factory='{_PACKAGE}.{name}:CLASS')"
            )
        for failed in self.failed:
            if failed.name == name:
                return PluginError(f"plugin {name!r} cannot be had: {failed.file}: {failed.error}")
        parts += [f"failed: {failed.file}: {failed.error}" for failed in self.failed]
        return PluginError("; ".join(parts))


def discover(directory: str = "") -> Found:
    """Look for plugins in every place there is, `directory` among them.

    Raises PluginError if others than its owner may write to `directory`: they could run code
    as the broker.
    """
    _look_in(directory)
    importlib.invalidate_caches()
    _drop_edited()
    modules = _modules()
    errors = {name: error for name in modules if (error := _import_error(name)) is not None}
    found = Found()
    with _without_tracebacks():
        declared = list(getPlugins(IMqttdPlugin, mqttd_plugins))
    # A copy: threads import meanwhile, as that does which reaches an archive.
    where = {
        id(value): name
        for name, module in sys.modules.copy().items()
        if name.startswith(f"{_PACKAGE}.") and isinstance(module, ModuleType)
        for value in vars(module).values()
        if IMqttdPlugin.providedBy(value) and not (isinstance(value, type) or name.count(".") > 1)
    }
    for declaration in declared:
        module = where.get(id(declaration), "")
        error = _fault_of(declaration, found)
        if error is None:
            name = declaration.name
            found.plugins[name] = Plugin(declaration, module, _file_of(module))
        else:
            errors[module] = error
    _silent.clear()
    for module in modules:
        if module not in errors and module not in where.values():
            file = found.silent[module.rpartition(".")[2]] = _file_of(module)
            _silent[module] = _time_of(file)
    for module, error in sorted(errors.items()):
        found.failed.append(Failed(module, _file_of(module), error))
    return found


def resolve(dotted: str) -> Any:
    """What ``package.module:name`` names; raises PluginError if it cannot be had."""
    module, _, name = dotted.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        text = f"{dotted}: {type(error).__name__}: {error}"
        extra = extra_of(error.name or "") if isinstance(error, ModuleNotFoundError) else None
        if extra is not None:
            text += f"; pip install 'mqttd[{extra}]' brings it"
        raise PluginError(text) from error


def extra_of(module: str) -> str | None:
    """The extra of this package that brings a module, as its metadata say; None without one."""
    try:
        requirements = metadata.requires("mqttd") or ()
    except metadata.PackageNotFoundError:
        return None
    wanted = {"re2": "google-re2"}.get(module, module.partition(".")[0].replace("_", "-").lower())
    for requirement in requirements:
        found = _OF_EXTRA.match(requirement)
        if found and found[1].lower() == wanted and found[2] not in _NOT_FOR_USE:
            return found[2]
    return None


Modules = dict[str, ModuleType]


def forget(plugin: Plugin, others: Iterable[Plugin] = ()) -> Modules:
    """Take the plugin's modules out of Python, so that the next import reads their files anew.

    Returns them for `restore`. They are those of its declaration and of the top package of its
    factory and of its schema, unless one of the `others` has it too.
    """
    tops = _tops(plugin)
    for other in others:
        tops -= _tops(other)
    dropped: Modules = {}
    for name, module in list(sys.modules.items()):
        if any(name == top or name.startswith(f"{top}.") for top in tops):
            dropped[name] = sys.modules.pop(name)
            _drop(name, module)
    linecache.checkcache()
    importlib.invalidate_caches()
    return dropped


def restore(plugin: Plugin, modules: Modules, others: Iterable[Plugin] = ()) -> None:
    """Undo `forget`: the new code cannot be used."""
    forget(plugin, others)
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, module)


class _Log:
    """Twisted's log, but for errors."""

    @staticmethod
    def err(*args: object, **more: object) -> None:
        """Not told."""

    def __getattr__(self, name: str) -> Any:
        return getattr(log, name)


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """twistd's plugin system logs the traceback of each module that it cannot import, each time:
    here they are in `Found.failed`, and logged once.
    """
    module: Any = twisted.plugin
    before, module.log = module.log, _Log()
    try:
        yield
    finally:
        module.log = before


def _look_in(directory: str) -> None:
    """Have the folders searched that appeared on the path since `mqttd_plugins` was imported."""
    for path in _editable_installs():
        if path not in sys.path:
            sys.path.append(path)
    folders = list(pluginPackagePaths(_PACKAGE))
    if directory and os.path.isdir(directory):
        mode = os.stat(directory).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PluginError(
                f"plugins.dir = {directory!r} can be written to by others than its owner, who"
                " could run code as the broker; run: chmod go-w " + directory
            )
        folders.append(directory)
    for folder in folders:
        if folder not in mqttd_plugins.__path__ and os.path.isdir(folder):
            mqttd_plugins.__path__.append(folder)


def _editable_installs() -> Iterable[str]:
    """Project folders with plugins that path files name; Python reads those at its start only."""
    for packages in {*site.getsitepackages(), *(p for p in sys.path if p.endswith("-packages"))}:
        try:
            files = [entry for entry in os.listdir(packages) if entry.endswith(".pth")]
        except OSError:
            continue
        for file in files:
            with suppress(OSError, UnicodeDecodeError):
                with open(os.path.join(packages, file), encoding="utf-8") as lines:
                    for line in lines:
                        path = line.strip()
                        if os.path.isabs(path) and os.path.isdir(os.path.join(path, _PACKAGE)):
                            yield path


def _modules() -> list[str]:
    """Every module directly below `mqttd_plugins`, imported or not."""
    return sorted({module.name for module in getModule(_PACKAGE).iterModules()})


def _drop_edited() -> None:
    """Forget the modules that declared nothing and were edited since: they may declare it now."""
    for name, then in _silent.items():
        file = _file_of(name)
        if name in sys.modules and _time_of(file) != then:
            _drop(name, sys.modules.pop(name))


def _drop(name: str, module: ModuleType) -> None:
    """Forget what is left of a module that was taken out of Python."""
    # Its age in whole seconds and its size would not tell a quick correction apart.
    cached = getattr(module, "__cached__", None)
    if cached:
        with suppress(OSError):
            os.unlink(cached)
    parent, _, last = name.rpartition(".")
    if getattr(sys.modules.get(parent), last, None) is module:
        delattr(sys.modules[parent], last)


def _time_of(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _import_error(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
        return f"{type(error).__name__}: {error}"
    return None


def _fault_of(declaration: Any, found: Found) -> str | None:
    """Why a declaration cannot be taken; None if it can."""
    try:
        verifyObject(IMqttdPlugin, declaration)
    except Invalid as error:
        return str(error)
    if declaration.name in found.plugins:
        return f"plugin {declaration.name!r} is declared twice, also in " + (
            found.plugins[declaration.name].file
        )
    if declaration.api_version != API_VERSION:
        return (
            f"plugin {declaration.name!r} is written for version {declaration.api_version} of the"
            f" plugin interfaces, this mqttd has version {API_VERSION}"
        )
    return None


def _file_of(module: str) -> str:
    """Where a module's text is, also of one that cannot be imported."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return str(loaded)
    name = module.rpartition(".")[2]
    for folder in mqttd_plugins.__path__:
        for path in (f"{name}.py", os.path.join(name, "__init__.py")):
            if os.path.exists(os.path.join(folder, path)):
                return os.path.join(folder, path)
    return module


def _tops(plugin: Plugin) -> set[str]:
    """Where the modules of a plugin are."""
    declaration = plugin.declaration
    names = (plugin.module, declaration.factory, declaration.config_schema or "")
    return {_top(name) for name in names} - {"", "mqttd", _PACKAGE}


def _top(dotted: str) -> str:
    """The part of a dotted name that belongs to one plugin."""
    parts = dotted.partition(":")[0].split(".")
    return ".".join(parts[:2]) if parts[0] == _PACKAGE else parts[0]
