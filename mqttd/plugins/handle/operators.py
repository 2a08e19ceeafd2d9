"""What a plugin shows operators, and reads of what they are shown.

route   /api/v1/plugins/NAME/path          metric   plugin_NAME_name
command mqttd-ctl NAME name                topic    $SYS/broker/plugins/NAME/suffix
alarm   plugin.NAME.name
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from twisted.web.resource import IResource
from zope.interface import implementer
from zope.interface.verify import verifyObject

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.plugins.handle.base import SEGMENT, HandleBase
from mqttd.session.ground.metrics import COUNTERS

__all__ = ["Operators"]

#: Routes below a plugin's name that are the broker's.
_RESERVED: Final = frozenset({"commands", "load", "reload", "unload"})

_COMMAND: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_METRIC: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@implementer(IResource)
class _GuardedResource:
    """A route of a plugin, called on its budget; one that fails answers 500."""

    def __init__(self, handle: HandleBase, resource: Any) -> None:
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


def _callable(name: str, given: object) -> None:
    """An argument that will be called; raises TypeError for one that cannot be."""
    if not callable(given):
        raise TypeError(f"{name} = {given!r}: expected a function")


class Operators(HandleBase):
    """Routes, commands, metrics, topics and alarms."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What others show or serve: path -> resource, name -> (function, help), name ->
        #: (help, read), suffix -> read, name -> text.
        self.routes: dict[str, Any] = {}
        #: Routes that all workers of a broker answer alike.
        self.alike: set[str] = set()
        self.commands: dict[str, tuple[Callable[[list[str]], Any], str]] = {}
        self.metrics: dict[str, tuple[str, Callable[[], float]]] = {}
        self.sys_topics: dict[str, Callable[[], Any]] = {}
        self.alarms: dict[str, str] = {}
        self._at_end(self._show_no_more)

    def figures(self) -> tuple[dict[str, int], dict[str, int]]:
        """See `IPluginHandle.figures`."""
        self._check()
        return self._host.broker.metrics.snapshot(), self._host.broker.stats()

    def counter(self, name: str) -> int:
        """See `IPluginHandle.counter`."""
        self._check()
        if name not in COUNTERS:
            raise KeyError(name)
        return int(getattr(self._host.broker.metrics, name))

    def plugin_metrics(self) -> list[tuple[str, str, float]]:
        """See `IPluginHandle.plugin_metrics`."""
        self._check()
        return self._host.metrics()

    def budgets(self) -> list[dict[str, Any]]:
        """See `IPluginHandle.budgets`."""
        self._check()
        return [budget.describe() for budget in self._host.broker.hooks.budgets()]

    def add_route(self, path: str, resource: Any, alike: bool = False) -> None:
        """See `IPluginHandle.add_route`."""
        self._new(path, self.routes, SEGMENT, "path", "letters, digits and _ . -")
        if path in _RESERVED:
            raise ValueError(f"path = {path!r}: the broker serves that itself")
        verifyObject(IResource, resource)
        self.routes[path] = _GuardedResource(self, resource)
        if alike:
            self.alike.add(path)

    def add_command(self, name: str, function: Callable[[list[str]], Any], help: str = "") -> None:
        """See `IPluginHandle.add_command`."""
        _callable("function", function)
        self._new(name, self.commands, _COMMAND, "name", "a-z, 0-9, _ and -, first a-z")
        self.commands[name] = (function, help)

    def add_metric(self, name: str, help: str, read: Callable[[], float]) -> None:
        """See `IPluginHandle.add_metric`."""
        _callable("read", read)
        self._new(name, self.metrics, _METRIC, "name", "a-z, 0-9 and _, first a-z")
        self.metrics[name] = (help, read)

    def add_sys_topic(self, suffix: str, read: Callable[[], Any]) -> None:
        """See `IPluginHandle.add_sys_topic`."""
        _callable("read", read)
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

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        return {
            "routes": sorted(self.routes),
            "alike": sorted(self.alike),
            "commands": {name: help for name, (_, help) in self.commands.items()},
            "metrics": {name: self.read(name, read) for name, (_, read) in self.metrics.items()},
            "sys_topics": sorted(self.sys_topics),
            "alarms": dict(self.alarms),
            **super().describe(),
        }

    def _show_no_more(self) -> None:
        for suffix in self.sys_topics:
            topic = f"$SYS/broker/plugins/{self.name}/{suffix}"
            self._quietly(self._host.broker.publish_text, topic, b"", 0, True)
        for name in list(self.alarms):
            self.clear_alarm(name)
        for held in (self.routes, self.alike, self.commands, self.metrics, self.sys_topics):
            held.clear()
