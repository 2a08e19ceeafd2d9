"""Hook points: who listens, in which order, and what it costs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.route import Ask, get
from mqttd.broker.hooks.points import POINTS

__all__ = ["Hooks"]


class CallbackView(Struct, kw_only=True):
    """One callback."""

    callback: str
    priority: int
    owner: str
    state: str
    topic_filter: list[str]
    client: list[str]
    errors: int


class PointView(Struct):
    """One hook point, with its callbacks in the order they run."""

    point: str
    when: str
    errors: int
    callbacks: list[CallbackView]


class HookList(Struct):
    """Every hook point, and the budgets of those who listen."""

    hooks: list[PointView]
    budgets: list[Json]


class Hooks:
    """The hook points of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/hooks", answer=HookList)
    def list(self, ask: Ask) -> HookList:
        """Every hook point with its callbacks in the order they run."""
        hooks = self.parts.hooks
        points = [
            PointView(
                name,
                point.when,
                hooks.errors.get(name, 0),
                [
                    CallbackView(
                        callback=_name_of(entry.callback),
                        priority=entry.priority,
                        owner=entry.budget.name,
                        state=entry.budget.state,
                        topic_filter=[*entry.topic_filters],
                        client=[*entry.clients],
                        errors=entry.errors,
                    )
                    for entry in hooks.lookup(name)
                ],
            )
            for name, point in POINTS.items()
        ]
        return HookList(points, [budget.describe() for budget in hooks.budgets()])


def _name_of(callback: Any) -> str:
    """Where a callback is defined, `package.module.Class.method`."""
    name = getattr(callback, "__qualname__", None)
    if name is None:
        callback = type(callback)
        name = callback.__qualname__
    return f"{getattr(callback, '__module__', '?')}.{name}"
