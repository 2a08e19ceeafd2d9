"""A registered callback, and what its answers are worth.

    Callback    what was hooked: the function, its order, whose budget it runs on
    FAILED      stands for the answer of a call that went wrong or was not made
    DENIED      what is answered then at a point with a verdict, if the owner's policy is `deny`

Promise: an answer that cannot be used is let go of without a trace in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.broker.hooks.points import (
    CLIENT_AUTHENTICATE,
    CLIENT_AUTHORIZE,
    CLIENT_CONNECT,
    MESSAGE_PUBLISH,
)
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.calls.filters import HookFilter
from mqttd.types import STOP, AuthError, HookResult, Verdict

__all__ = [
    "DENIED",
    "FAILED",
    "JUDGING",
    "Callback",
    "HookCallable",
    "meant",
    "name_of",
    "no_result",
]

HookCallable = Callable[..., "HookResult | Deferred[HookResult | None] | None"]

_SERVER_UNAVAILABLE: Final = 0x88


@dataclass(slots=True, eq=False, kw_only=True)
class Callback:
    """One registered callback; ``number`` is its place in the order of registration."""

    callback: Callable[..., Any]
    init_args: tuple[Any, ...] = ()
    priority: int = 0
    number: int = 0
    budget: Budget
    #: What is called: `callback`, or a Python function around one written in C.
    call: Callable[..., Any] = field(default=lambda *args: None, repr=False)
    #: The messages and clients it is called for, if not all.
    only: HookFilter | None = None
    #: How often it failed.
    errors: int = 0

    @property
    def topic_filters(self) -> tuple[str, ...]:
        """The topics of messages it is called for; empty for all."""
        return self.only.topic_filters if self.only is not None else ()

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients it is called for; empty for all."""
        return self.only.clients if self.only is not None else ()


#: What stands for the answer of a call that went wrong.
FAILED: Final = object()

#: What a point that gives a verdict answers for an owner whose policy is ``deny``.
DENIED: Final[dict[str, Callable[[Budget], Any]]] = {
    CLIENT_CONNECT: lambda owner: _unavailable(owner),
    CLIENT_AUTHENTICATE: lambda owner: _unavailable(owner),
    CLIENT_AUTHORIZE: lambda owner: Verdict.DENY,
    MESSAGE_PUBLISH: lambda owner: None,
}

#: Where one client is judged, by what it shows: an exception there is that client's failure.
JUDGING: Final = frozenset((CLIENT_CONNECT, CLIENT_AUTHENTICATE, CLIENT_AUTHORIZE))


def _unavailable(owner: Budget) -> AuthError:
    return AuthError(f"plugin {owner.name} is {owner.state} or has failed", _SERVER_UNAVAILABLE)


def name_of(callback: Callable[..., Any]) -> str:
    """What operators read: the module and the qualified name."""
    module = getattr(callback, "__module__", None) or type(callback).__module__
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    return f"{module}.{name}"


def meant(point: str, answer: object) -> HookResult | None:
    """What an answer that is no hook result must have meant: a refusal without its STOP is one."""
    if isinstance(answer, AuthError) and point in (CLIENT_CONNECT, CLIENT_AUTHENTICATE):
        return STOP(answer)
    if answer is Verdict.DENY and point == CLIENT_AUTHORIZE:
        return STOP(answer)
    return None


def no_result(result: object) -> BaseException:
    """The error of an answer that is none; what it is gets let go of."""
    if isinstance(result, Deferred):
        result.addErrback(lambda failure: None)
        result.cancel()
        return TypeError("this point does not wait: expected OK, STOP or None, got a Deferred")
    if isinstance(result, Coroutine):
        result.close()
        return TypeError("this point does not wait: expected OK, STOP or None, got a coroutine")
    return TypeError(f"expected OK, STOP or None, got {result!r}")
