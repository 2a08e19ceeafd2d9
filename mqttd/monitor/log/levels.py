"""How important a line must be to be written: a level for all, and for modules of their own.

    mqttd                info      [log] level
    mqttd.plugin.webhook debug     [log] modules, or `mqttd-ctl log level`: the longest name counts
    everything else      warn      libraries: what they do by the way is not the operator's business

Promise: a module that was asked for is asked for again at the price of one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["LEVELS", "Levels"]

LEVELS: Final[dict[str, int]] = {"debug": 10, "info": 20, "warn": 30, "error": 40, "critical": 50}

#: What is not ours and yet the operator's business: what somebody prints, twistd itself.
_OURS: Final = ("mqttd", "stdout", "stderr", "twistd")
#: Names remembered; plugins may make up as many as they like.
_KNOWN: Final = 4096


class Levels:
    """The levels of one log, which change while it is written."""

    def __init__(self, level: str = "info", modules: Mapping[str, str] | None = None) -> None:
        self.level = level
        self.modules: dict[str, str] = dict(modules or {})
        #: Of each module that was asked for; None where it has to be looked up again.
        self._known: dict[str, int | None] = {}

    def least(self, module: str) -> int:
        """The number of the least important level that is written of a module."""
        known = self._known.get(module)
        if known is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[module] = self._look_up(module)
        return known

    def admits(self, module: str, level: str) -> bool:
        """Whether a line of this module and level is written."""
        return LEVELS[level] >= self.least(module)

    def knows(self, module: str) -> bool:
        """Whether anything has been asked for of a module, or of one below it."""
        below = f"{module}."
        return any(name == module or name.startswith(below) for name in self._known)

    def set(self, module: str, level: str | None) -> None:
        """Give a module a level of its own ("" is all of them); None takes it back.

        Raises ValueError for a level that is none.
        """
        if level is not None and level not in LEVELS:
            raise ValueError(f"{level!r} is no level; there are {', '.join(LEVELS)}")
        if not module:
            if level is None:
                raise ValueError("there is always a level for all: name one, or `mqttd-ctl reload`")
            self.level = level
        elif level is None:
            self.modules.pop(module, None)
        else:
            self.modules[module] = level
        self._forget()

    def replace(self, level: str, modules: Mapping[str, str]) -> None:
        """Other levels altogether, those of a configuration."""
        self.level = level
        self.modules = dict(modules)
        self._forget()

    def _forget(self) -> None:
        """Look the levels up again, of modules that stay known."""
        self._known = dict.fromkeys(self._known)

    def _look_up(self, module: str) -> int:
        name = module
        while name:
            level = self.modules.get(name)
            if level is not None:
                return LEVELS[level]
            name = name.rpartition(".")[0]
        least = LEVELS[self.level]
        if module.partition(".")[0] in _OURS:
            return least
        return max(least, LEVELS["warn"])
