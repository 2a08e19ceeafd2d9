"""An answer to a change of what all nodes have: it waits until the change is kept, and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from mqttd.admin.http.requests import ApiError

__all__ = ["once_told"]


def once_told(changed: Any, answer: Any, unkept: Callable[[str], None]) -> Deferred[Any]:
    """`answer`, once what was changed outlasts the process and other nodes can hear of it.

    Or cannot for now: its `untold` says why they cannot. `changed` has `when_kept` and `when_told`;
    `unkept(why)` is called where it does not outlast the process yet, and may raise ApiError, with
    which the Deferred fails.
    """
    done: Deferred[Any] = Deferred()

    def kept(why: str) -> None:
        try:
            if why:
                unkept(why)
        except ApiError as error:
            done.errback(error)
        else:
            changed.when_told(told)

    def told(why: str) -> None:
        answer.untold = why or None
        done.callback(answer)

    changed.when_kept(kept)
    return done
