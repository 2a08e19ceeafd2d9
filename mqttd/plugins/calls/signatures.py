"""Whether a function can be called as it will be: asked where it is handed in.

    handle.hook("client.connected", f)   ->  verify_callback("client.connected", f)
                                             f(client, acc)?
    handle.subscribe("a/#", f)           ->  verify_function(f, ("message",))

Promise: what could be called is never refused; what does not tell what it takes (it is written in
C, say) is not asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mqttd.broker.hooks.points import POINTS
from mqttd.hints import like
from mqttd.plugins.calls.callback import name_of
from mqttd.types import HookError

__all__ = ["no_point", "numbered", "verify_callback", "verify_function"]


def no_point(point: str) -> str:
    """What to tell who has named a hook point that is not there."""
    return f"no hook point {point!r}{like(point, POINTS)}; there are: {', '.join(POINTS)}"


def verify_callback(
    point: str, callback: Callable[..., Any], init_args: Sequence[Any] = ()
) -> None:
    """Raise HookError where there is no such point, or it cannot call `callback`.

    >>> verify_callback("client.connected", lambda client, acc: None)
    """
    if point not in POINTS:
        raise HookError(no_point(point))
    names = (*POINTS[point].parameters, *numbered(init_args, "init_args"))
    if unfit := _unfit(callback, names):
        raise HookError(f"at {point}: {unfit}")


def verify_function(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Raise TypeError where `function` cannot be called with arguments of these names."""
    if unfit := _unfit(function, names):
        raise TypeError(unfit)


def numbered(args: Sequence[Any], name: str = "args") -> list[str]:
    """Names for arguments that have none."""
    return [f"{name}[{i}]" for i in range(len(args))]


def _unfit(function: object, names: Sequence[str]) -> str:
    """Why the function cannot be called with arguments of these names; empty if it can."""
    if not callable(function):
        return f"{function!r} cannot be called: expected a function"
    try:
        # What a decorator wraps may take other arguments than what the decorator returned.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*names)
    except TypeError:
        taken = ", ".join(signature.parameters)
        return f"{name_of(function)} takes ({taken}), and is called with ({', '.join(names)})"
    return ""
