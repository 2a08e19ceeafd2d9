"""The handle's hooks: callbacks at hook points, on the plugin's budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mqttd.plugins.calls.callback import name_of
from mqttd.plugins.calls.filters import Patterns
from mqttd.plugins.calls.signatures import verify_callback
from mqttd.plugins.handle.base import HandleBase
from mqttd.types import HookResult

__all__ = ["Hooking"]


class Hooking(HandleBase):
    """Hook and unhook, run and look up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._hooked: list[tuple[str, Callable[..., Any]]] = []
        self._at_end(self._unhook_all)

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
        verify_callback(point, callback, init_args)
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

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
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
        return {"hooks": hooks, **super().describe()}

    def _unhook_all(self) -> None:
        for point, callback in self._hooked:
            self._quietly(self._host.broker.hooks.unhook, point, callback)
        self._hooked.clear()
