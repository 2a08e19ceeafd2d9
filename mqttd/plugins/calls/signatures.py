"""Whether a callback can be called as its hook point will: asked where it is handed in.

    handle.hook("client.connected", f)   ->  verify_callback("client.connected", f)
                                             f(client, acc)?

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

__all__ = ["no_point", "verify_callback"]


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
    if not callable(callback):
        raise HookError(f"{callback!r} cannot be hooked at {point}: expected a function")
    names = [*POINTS[point].parameters, *(f"init_args[{i}]" for i in range(len(init_args)))]
    try:
        # What a decorator wraps may take other arguments than what the decorator returned.
        signature = inspect.signature(callback, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise HookError(
            f"{name_of(callback)} cannot be hooked at {point}: it takes"
            f" ({', '.join(signature.parameters)}), and is called with ({', '.join(names)})"
        ) from None
