"""Callbacks that their hook point cannot call are refused where they are handed in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from zope.interface import classImplements

from mqttd.broker.hooks.points import POINTS
from mqttd.interfaces import IPlugin
from mqttd.plugins.calls.signatures import verify_callback, verify_function
from mqttd.testing import MemoryBroker
from mqttd.types import HookError


@pytest.mark.parametrize(
    ("point", "callback", "init_args", "why"),
    [
        ("message.publish", lambda: None, (), "takes (), and is called with (message)"),
        (
            "client.connected",
            lambda client: None,
            (),
            "takes (client), and is called with (client, acc)",
        ),
        (
            "message.acked",
            lambda client, message: None,
            (1,),
            "takes (client, message), and is called with (client, message, init_args[0])",
        ),
        ("message.publish", lambda message, *, limit: None, (), "takes (message, limit)"),
        ("message.publish", None, (), "at message.publish: None cannot be called: expected a f"),
        ("message.publsh", print, (), "no hook point 'message.publsh'; did you mean message.pub"),
    ],
)
def test_what_cannot_be_called_so_is_refused(
    point: str, callback: Any, init_args: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(HookError) as refused:
        verify_callback(point, callback, init_args)
    assert why in str(refused.value)


def _wider(function: Any) -> Any:
    return functools.wraps(function)(lambda *args: function())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("callback", [lambda *args: None, print, _wider(lambda: None)])
def test_what_may_be_called_so_is_taken(point: str, callback: Any) -> None:
    verify_callback(point, callback)


def test_a_function_with_what_it_is_given_is_taken() -> None:
    verify_function(lambda a, b=1: None, ("message",))
    with pytest.raises(TypeError, match=r"takes \(a, b\), and is called with \(message\)"):
        verify_function(lambda a, b: None, ("message",))


@pytest.mark.parametrize(
    "call",
    [
        lambda handle: handle.hook("message.publish", lambda: None),
        lambda handle: handle.subscribe("a/#", lambda: None),
        lambda handle: handle.call_every(1, lambda: None, 1),
        lambda handle: handle.call_every(1, None),
    ],
)
def test_a_plugin_is_told_at_its_load(call: Callable[[Any], object]) -> None:
    class Deaf:
        def load(self, handle: Any, config: object) -> None:
            call(handle)

        def unload(self) -> None:
            pass

    classImplements(Deaf, IPlugin)
    with pytest.raises((HookError, TypeError), match="is called with|cannot be called"):
        MemoryBroker().load(Deaf)
