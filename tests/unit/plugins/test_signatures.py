"""Callbacks that their hook point cannot call are refused where they are handed in."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from zope.interface import classImplements

from mqttd.broker.hooks.points import POINTS
from mqttd.interfaces import IPlugin
from mqttd.plugins.calls.signatures import verify_callback
from mqttd.testing import MemoryBroker
from mqttd.types import HookError


@pytest.mark.parametrize(
    ("point", "callback", "init_args", "why"),
    [
        ("message.publish", lambda: None, (), "it takes (), and is called with (message)"),
        (
            "client.connected",
            lambda client: None,
            (),
            "it takes (client), and is called with (client, acc)",
        ),
        (
            "message.acked",
            lambda client, message: None,
            (1,),
            "it takes (client, message), and is called with (client, message, init_args[0])",
        ),
        ("message.publish", lambda message, *, limit: None, (), "it takes (message, limit)"),
        ("message.publish", None, (), "None cannot be hooked at message.publish: expected a"),
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


def test_a_plugin_is_told_at_its_load() -> None:
    class Deaf:
        def load(self, handle: Any, config: object) -> None:
            handle.hook("message.publish", lambda: None)

        def unload(self) -> None:
            pass

    classImplements(Deaf, IPlugin)
    with pytest.raises(HookError, match=r"is called with \(message\)"):
        MemoryBroker().load(Deaf)
