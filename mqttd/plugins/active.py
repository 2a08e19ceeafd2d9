"""One plugin that is, or was to be, loaded: its state, its running part, its handle and limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final, cast

from msgspec import Struct

from mqttd.plugins.calls.budget import ACTIVE, CALL, Budget
from mqttd.plugins.handle.handle import PluginHandle
from mqttd.plugins.loader import Plugin, resolve
from mqttd.plugins.process import PER_CALL, IsolatedPlugin
from mqttd.plugins.settings import Limits, read_settings
from mqttd.types import PluginError

__all__ = ["ELSEWHERE", "FAILED", "LOADED", "LOADING", "UNLOADED", "UNLOADING", "Active"]

UNLOADED: Final = "unloaded"
LOADING: Final = "loading"
LOADED: Final = "loaded"
UNLOADING: Final = "unloading"
FAILED: Final = "failed"
#: In the first of several workers, and this is another one.
ELSEWHERE: Final = "elsewhere"
QUARANTINED: Final = "quarantined"


class Active:
    """A plugin that is, or was to be, loaded."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.state = LOADING
        self.error = ""
        self.loaded_at = 0.0
        self.instance: Any = None
        self.handle: PluginHandle | None = None
        self.limits = Limits()
        #: What it was loaded with, as it was read.
        self.settings: Any = None

    @property
    def isolation(self) -> str:
        """Where it runs: what the operator says, else what it declares."""
        return self.limits.isolation or str(self.plugin.declaration.isolation)

    @property
    def workers(self) -> str:
        """In which of several workers: what the operator says, else what it declares."""
        declared = getattr(self.plugin.declaration, "workers", "every")
        return self.limits.workers or str(declared)

    def factory(self) -> Callable[[], Any]:
        """What makes the running part: here, or in a process of its own."""
        dotted = self.plugin.declaration.factory
        if self.isolation == "process":
            return lambda: IsolatedPlugin(dotted)
        return cast(Callable[[], Any], resolve(dotted))

    def budget(self) -> Budget:
        """What it may use."""
        declaration = self.plugin.declaration
        per_call = PER_CALL if self.isolation == "process" else CALL
        return self.limits.budget(declaration.name, declaration.policy, per_call)

    def differs(self, path: str) -> bool:
        """Whether its file says something else now than what it was loaded with, or a mistake."""
        struct = type(self.settings) if isinstance(self.settings, Struct) else None
        try:
            return read_settings(path, struct) != (self.settings, self.limits)
        except PluginError:
            return True

    def begin(self, settings: Any) -> None:
        """It is loaded with these settings, which it may change: those that were read are kept."""
        self.settings = deepcopy(settings)

    def succeed(self) -> None:
        """It runs."""
        self.state = LOADED
        self.loaded_at = time.time()

    def fail(self, error: str) -> None:
        """It cannot run, for this reason."""
        self.state = FAILED
        self.error = error
        self.handle = self.instance = None

    def shown(self) -> tuple[str, str]:
        """The state and the error that operators see: those of its budget while it runs."""
        if self.handle is None or self.state != LOADED:
            return self.state, self.error
        budget = self.handle.budget
        return LOADED if budget.state == ACTIVE else QUARANTINED, budget.last_error
