"""The handle's hold on publishers: their acknowledgements wait, or they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttd.plugins.groups.base import HandleBase

__all__ = ["Promises"]


class Promises(HandleBase):
    """What keeps an acknowledgement, or all publishers, back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._holds = self._pauses = False
        self._at_end(self._let_go)

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

    def _let_go(self) -> None:
        if self._holds:
            self._host.broker.hold_acknowledgements(None)
        if self._pauses:
            self._host.broker.set_congested(False)
