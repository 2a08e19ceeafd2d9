"""Hooks: a chain of responsibility at each point where a plugin may look or change.

::

              --------  OK | OK(acc)    --------  OK | OK(acc)    --------
 (args, acc)->| fun1 | ---------------> | fun2 | ---------------> | fun3 | -> (OK|STOP, acc)
              --------                  --------                  --------
                 | STOP | STOP(acc)        | STOP | STOP(acc)        | STOP | STOP(acc)
                 `-----------------------> (STOP, acc) <-------------'

A callback is called as ``callback(*args, acc, *init_args)``, as in the design documents:
first what happened, then the accumulator, last what was given at registration.

Promise: order is priority (higher first), then registration.  A chain is an immutable tuple,
replaced on each change: a callback may hook and unhook while the chain runs, which the
running call does not see.  A point that nobody uses costs one dict look-up, or nothing to
a caller that keeps a flag up to date through `Hooks.listeners_changed`.  Callbacks run in the
reactor thread and must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mqttd.types import OK, STOP, HookResult

__all__ = ["POINTS", "Callback", "HookError", "Hooks", "Point"]

CLIENT_CONNECT: Final = "client.connect"
CLIENT_CONNACK: Final = "client.connack"
CLIENT_CONNECTED: Final = "client.connected"
CLIENT_DISCONNECTED: Final = "client.disconnected"
CLIENT_AUTHENTICATE: Final = "client.authenticate"
CLIENT_AUTHORIZE: Final = "client.authorize"
CLIENT_SUBSCRIBE: Final = "client.subscribe"
CLIENT_SUBSCRIBE_AFTER: Final = "client.subscribe.after"
CLIENT_UNSUBSCRIBE: Final = "client.unsubscribe"
CLIENT_HANDLE_INFO: Final = "client.handle_info"
SESSION_CREATED: Final = "session.created"
SESSION_SUBSCRIBED: Final = "session.subscribed"
SESSION_UNSUBSCRIBED: Final = "session.unsubscribed"
SESSION_RESUMED: Final = "session.resumed"
SESSION_DISCONNECTED: Final = "session.disconnected"
SESSION_DISCARDED: Final = "session.discarded"
SESSION_TAKENOVER: Final = "session.takenover"
SESSION_TERMINATED: Final = "session.terminated"
MESSAGE_PUBLISH: Final = "message.publish"
MESSAGE_DELIVERED: Final = "message.delivered"
MESSAGE_ACKED: Final = "message.acked"
MESSAGE_NACK: Final = "message.nack"
MESSAGE_DROPPED: Final = "message.dropped"
DELIVERY_COMPLETED: Final = "delivery.completed"
DELIVERY_DROPPED: Final = "delivery.dropped"


@dataclass(slots=True, frozen=True)
class Point:
    """One hook point: when it runs, what a callback gets, and what STOP means."""

    name: str
    when: str
    args: tuple[str, ...]
    acc: str
    stop: str = "later callbacks are not told"


_CLIENT: Final = ("client: ClientInfo",)

POINTS: Final[dict[str, Point]] = {
    point.name: point
    for point in (
        Point(
            CLIENT_CONNECT,
            "a valid CONNECT has arrived, before authentication",
            _CLIENT,
            "properties of CONNECT: dict | None",
        ),
        Point(
            CLIENT_CONNACK,
            "before CONNACK is sent",
            (*_CLIENT, "reason_code: int"),
            "properties of CONNACK: dict | None",
        ),
        Point(CLIENT_CONNECTED, "after CONNACK with success", _CLIENT, "None"),
        Point(
            CLIENT_DISCONNECTED, "a connected client has gone", (*_CLIENT, "reason: str"), "None"
        ),
        Point(
            CLIENT_AUTHENTICATE,
            "before the authentication chain",
            (*_CLIENT, "password: bytes | None"),
            "AuthVerdict; AUTH_IGNORE asks the chain",
            "the accumulator is the verdict",
        ),
        Point(
            CLIENT_AUTHORIZE,
            "before the access-control chain",
            (*_CLIENT, "action: Action", "topic: str"),
            "Verdict; IGNORE asks the chain",
            "the accumulator is the verdict",
        ),
        Point(
            CLIENT_SUBSCRIBE,
            "a SUBSCRIBE has arrived, before the access check",
            (*_CLIENT, "properties: dict | None"),
            "list[Subscription]",
            "the accumulator is subscribed as it is",
        ),
        Point(
            CLIENT_SUBSCRIBE_AFTER,
            "after SUBACK is decided",
            _CLIENT,
            "list[Subscription] that were granted",
        ),
        Point(
            CLIENT_UNSUBSCRIBE,
            "an UNSUBSCRIBE has arrived",
            (*_CLIENT, "properties: dict | None"),
            "topic filters: list[str]",
            "the accumulator is unsubscribed as it is",
        ),
        Point(
            CLIENT_HANDLE_INFO,
            "send_info(info) was called for a client",
            (*_CLIENT, "info: object"),
            "list[Message] to deliver",
            "the accumulator is delivered as it is",
        ),
        Point(SESSION_CREATED, "a new session exists", _CLIENT, "None"),
        Point(
            SESSION_SUBSCRIBED,
            "a subscription was added or replaced",
            (*_CLIENT, "subscription: Subscription"),
            "None",
        ),
        Point(
            SESSION_UNSUBSCRIBED,
            "a subscription was removed",
            (*_CLIENT, "topic_filter: str"),
            "None",
        ),
        Point(SESSION_RESUMED, "a client came back to its session", _CLIENT, "None"),
        Point(SESSION_DISCONNECTED, "the session stays, its client has gone", _CLIENT, "None"),
        Point(SESSION_DISCARDED, "a clean start threw the old session away", _CLIENT, "None"),
        Point(SESSION_TAKENOVER, "another connection took the session over", _CLIENT, "None"),
        Point(SESSION_TERMINATED, "the session has ended", (*_CLIENT, "reason: str"), "None"),
        Point(
            MESSAGE_PUBLISH,
            "a message enters the broker, before retain and routing",
            (),
            "Message; None drops it",
            "the accumulator is routed as it is",
        ),
        Point(MESSAGE_DELIVERED, "a message is written to a subscriber", _CLIENT, "Message"),
        Point(MESSAGE_ACKED, "a subscriber acknowledged (PUBACK, PUBCOMP)", _CLIENT, "Message"),
        Point(
            MESSAGE_NACK,
            "a subscriber answered with a reason code >= 0x80",
            (*_CLIENT, "reason_code: int"),
            "Message",
        ),
        Point(
            MESSAGE_DROPPED,
            "a message reached nobody",
            ("client: ClientInfo | None", "reason: str"),
            "Message",
        ),
        Point(DELIVERY_COMPLETED, "all steps of one delivery are done", _CLIENT, "Message"),
        Point(
            DELIVERY_DROPPED,
            "a message was not delivered to one subscriber",
            (*_CLIENT, "reason: str"),
            "Message",
        ),
    )
}


class HookError(ValueError):
    """An unknown point, a callback hooked twice, or one that was never hooked."""


HookCallable = Callable[..., "HookResult | None"]
OnError = Callable[[str, HookCallable, Exception], None]
ListenersChanged = Callable[[str, bool], None]


@dataclass(slots=True, frozen=True)
class Callback:
    """One registered callback; ``number`` is its place in the order of registration."""

    callback: HookCallable
    init_args: tuple[Any, ...]
    priority: int
    number: int


class Hooks:
    """The callbacks of every point.

    ``on_error(point, callback, exception)`` is told of each callback that raised or answered
    with something that is no hook result; the chain goes on with the accumulator as it was.
    """

    __slots__ = ("_chains", "_number", "errors", "listeners_changed", "on_error")

    def __init__(self, on_error: OnError | None = None) -> None:
        self._chains: dict[str, tuple[Callback, ...]] = {}
        self._number = 0
        self.on_error = on_error
        #: errors by point
        self.errors: dict[str, int] = {}
        #: called with (point, listening) after each change of a chain
        self.listeners_changed: list[ListenersChanged] = []

    def hook(
        self,
        point: str,
        callback: HookCallable,
        init_args: Sequence[Any] = (),
        priority: int = 0,
    ) -> None:
        """Call `callback` at `point`; `HookError` if it is hooked there already."""
        chain = self.lookup(point)
        if any(entry.callback == callback for entry in chain):
            raise HookError(f"{callback!r} is hooked at {point} already")
        self._number += 1
        entry = Callback(callback, tuple(init_args), priority, self._number)
        self._replace(point, (*chain, entry))

    def unhook(self, point: str, callback: HookCallable) -> None:
        """Call `callback` at `point` no longer; `HookError` if it is not hooked there."""
        chain = self.lookup(point)
        rest = tuple(entry for entry in chain if entry.callback != callback)
        if len(rest) == len(chain):
            raise HookError(f"{callback!r} is not hooked at {point}")
        self._replace(point, rest)

    def lookup(self, point: str) -> tuple[Callback, ...]:
        """The callbacks of `point` in the order they run; `HookError` if there is no such point."""
        if point not in POINTS:
            raise HookError(f"no hook point {point!r}; there are: {', '.join(POINTS)}")
        return self._chains.get(point, ())

    def listening(self, point: str) -> bool:
        """True if anything is hooked at `point`."""
        return bool(self.lookup(point))

    def run_hooks(self, point: str, args: Sequence[Any], acc: Any = None) -> tuple[HookResult, Any]:
        """Run the chain of `point`: ``(OK, acc)`` when it came to its end, else ``(STOP, acc)``.

        The first item is the very object `OK` or `STOP`.  Raises nothing but `HookError` for
        an unknown point.
        """
        chain = self._chains.get(point)
        if chain is None:
            if point not in POINTS:
                self.lookup(point)
            return OK, acc
        for entry in chain:
            try:
                result = entry.callback(*args, acc, *entry.init_args)
                if result is not None and not isinstance(result, HookResult):
                    raise TypeError(f"expected OK, STOP or None, got {result!r}")
            except Exception as error:  # a plugin's fault must never stop the broker
                self._failed(point, entry.callback, error)
                continue
            if result is not None:
                acc = result.accumulate(acc)
                if result.stop:
                    return STOP, acc
        return OK, acc

    def _replace(self, point: str, chain: tuple[Callback, ...]) -> None:
        if chain:
            self._chains[point] = tuple(
                sorted(chain, key=lambda entry: (-entry.priority, entry.number))
            )
        else:
            self._chains.pop(point, None)
        for changed in tuple(self.listeners_changed):
            changed(point, bool(chain))

    def _failed(self, point: str, callback: HookCallable, error: Exception) -> None:
        self.errors[point] = self.errors.get(point, 0) + 1
        if self.on_error is not None:
            with suppress(Exception):  # a fault in the report must not stop the broker either
                self.on_error(point, callback, error)
