"""Hook chains, and what a plugin holds of its subscriptions and timers.

Part of `mqttd.interfaces`, whose rules hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, Interface

from mqttd.types import (
    HookResult,
)

if TYPE_CHECKING:
    pass

__all__ = ["IHooks", "ISubscription", "IRepeating"]


class IHooks(Interface):
    """The hook chains of a broker; see `mqttd.broker.hooks.points` for the points."""

    def hook(
        point: str,
        callback: Callable[..., HookResult | None],
        init_args: Sequence[Any] = (),
        priority: int = 0,
        topic_filter: str | Sequence[str] | None = None,
        client: str | Sequence[str] | None = None,
    ) -> None:
        """Have ``callback(*args, acc, *init_args)`` called at `point`.

        :param priority: higher runs earlier; equal ones run in the order of registration.
        :param topic_filter: an MQTT topic filter, or some: only for messages on these topics, at
            the points that are told of a message (``message.*``, ``delivery.*``).
        :param client: a client id, or how one begins with ``*`` at the end (``"pump-*"``), or some
            of both: only for these clients.
        :raises HookError: (of `mqttd.types`) unknown point, hooked there already, a callback that
            cannot be called with these arguments, no valid filter, or a filter at a point that has
            nothing to compare it with.

        The callback returns `OK` (or None), ``OK(acc)``, `STOP` or ``STOP(acc)`` of
        `mqttd.types`, or a Deferred of one where the point waits (`client.connect`,
        `client.authenticate`), for 5 seconds at most.  It may keep the reactor for 20
        milliseconds, and is broken off then.  One that fails is counted and passed over, or
        refuses, as the policy of its plugin says; after ten the plugin is quarantined.
        """

    def unhook(point: str, callback: Callable[..., HookResult | None]) -> None:
        """Undo `hook`.

        :raises HookError: unknown point, or not hooked there.
        """

    def run_hooks(point: str, args: Sequence[Any], acc: Any = None) -> tuple[HookResult, Any]:
        """Run the chain: returns ``(OK, acc)`` or ``(STOP, acc)``.

        :raises HookError: unknown point.
        """

    def lookup(point: str) -> tuple[Any, ...]:
        """The tuple of `mqttd.plugins.calls.callback.Callback` at `point`, in the order they run.

        :raises HookError: unknown point.
        """


class ISubscription(Interface):
    """A subscription made with `IPluginHandle.subscribe`."""

    topic_filter = Attribute("str: what it subscribes to")

    def unsubscribe() -> None:
        """End it; what is under way may still arrive in this turn.  Twice is no error."""


class IRepeating(Interface):
    """A function called again and again: what `IPluginHandle.call_every` gives."""

    def stop() -> None:
        """Call it no more; twice is no error."""
