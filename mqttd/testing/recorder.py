"""A hook recorder: what ran, with which arguments and accumulator, in which order.

    >>> seen = HookRecorder(node.hooks, "message.publish")
    >>> alice.publish("a", b"x")
    >>> seen.only("message.publish").acc.topic
    'a'

It hooks every point that it is given (all, without one), with the lowest priority, so that it sees
the accumulator after all others; it answers OK and changes nothing. A point where STOP came
before is not recorded: that is how a test sees STOP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqttd.broker.hooks.points import POINTS
from mqttd.interfaces import IHooks
from mqttd.types import HookResult

__all__ = ["HookCall", "HookRecorder"]


@dataclass(frozen=True)
class HookCall:
    """One call of a hook point: its arguments and the accumulator it came with."""

    point: str
    args: tuple[Any, ...]
    acc: Any


class HookRecorder:
    """Records the hook points of `hooks` until `stop`; a context manager, too."""

    def __init__(self, hooks: IHooks, *points: str, priority: int = -1_000_000) -> None:
        self.calls: list[HookCall] = []
        self._hooks = hooks
        self._callbacks: dict[str, _Note] = {}
        for point in points or tuple(POINTS):
            callback = _Note(point, self.calls)
            hooks.hook(point, callback, (), priority)
            self._callbacks[point] = callback

    def __enter__(self) -> HookRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[HookCall]:
        return iter(self.calls)

    @property
    def points(self) -> list[str]:
        """The points that ran, in order, as often as they ran."""
        return [call.point for call in self.calls]

    def at(self, point: str) -> list[HookCall]:
        """The calls of one point."""
        return [call for call in self.calls if call.point == point]

    def only(self, point: str) -> HookCall:
        """The one call of a point; AssertionError if it ran not once."""
        calls = self.at(point)
        assert len(calls) == 1, f"{point} ran {len(calls)} times; in all: {self.points}"
        return calls[0]

    def clear(self) -> None:
        """Forget what was recorded."""
        self.calls.clear()

    def stop(self) -> None:
        """Record no more; stopping twice is no error."""
        for point, callback in self._callbacks.items():
            self._hooks.unhook(point, callback)
        self._callbacks.clear()


class _Note:
    """The callback of one point."""

    def __init__(self, point: str, calls: list[HookCall]) -> None:
        self.point = point
        self.calls = calls

    def __call__(self, *args_and_acc: Any) -> HookResult | None:
        args: Sequence[Any] = args_and_acc[:-1]
        self.calls.append(HookCall(self.point, tuple(args), args_and_acc[-1]))
        return None
