"""A chain whose callbacks may wait: each answers at once, or with a Deferred or a coroutine.

    callback 1 -- OK --> callback 2 -- Deferred ... fires -- OK --> callback 3 --> (OK, acc)
                                           '-- late, failed, one too many: as an error of its owner

Promise: what `Asking.run` returns fires always, and never fails.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.plugins.calls.account import Account
from mqttd.plugins.calls.callback import DENIED, FAILED, Callback, meant, no_result
from mqttd.types import OK, STOP, HookResult

__all__ = ["Asking", "Ended"]

Ended = tuple[HookResult, Any]


class Asking:
    """One run of `chain`; `clock` is for the deadlines, without one no callback may wait."""

    def __init__(
        self,
        account: Account,
        clock: Any,
        point: str,
        chain: tuple[Callback, ...],
        args: tuple[Any, ...],
    ) -> None:
        self.account = account
        self.clock = clock
        self.point = point
        self.chain = chain
        self.args = args

    def run(self, acc: Any, start: int = 0) -> Ended | Deferred[Ended]:
        """Go on with the callback at `start`."""
        for i in range(start, len(self.chain)):
            entry = self.chain[i]
            if entry.only is not None and not entry.only.takes(self.args, acc):
                continue
            if entry.budget.admits(monotonic()):
                args = (*self.args, acc, *entry.init_args)
                answer = self.account.perform(self.point, entry, args, True)
                if isinstance(answer, Deferred):
                    return self._wait(i, acc, answer)
            else:
                answer = FAILED
            ended = self._answered(entry, answer, acc)
            if ended[0] is STOP:
                return ended
            acc = ended[1]
        return OK, acc

    def _wait(self, i: int, acc: Any, waiting: Deferred[Any]) -> Ended | Deferred[Ended]:
        account, point, entry = self.account, self.point, self.chain[i]
        budget = entry.budget
        if self.clock is None or budget.waiting >= budget.queue:
            why = "needs a reactor" if self.clock is None else "is one too many that wait"
            waiting.addErrback(lambda failure: None)
            waiting.cancel()
            account.returned(point, entry, RuntimeError(f"its Deferred {why}"), 0.0)
            ended = self._answered(entry, FAILED, acc)
            return ended if ended[0] is STOP else self.run(ended[1], i + 1)
        budget.waiting += 1
        done: Deferred[Ended] = Deferred()
        late = self.clock.callLater(budget.deadline, waiting.cancel)

        def fired(answer: Any) -> None:
            budget.waiting -= 1
            error: BaseException | None = None
            if isinstance(answer, Failure):
                error = answer.value
                if not late.active():
                    error = TimeoutError(f"no answer within {budget.deadline:g} s")
            elif answer is not None and not isinstance(answer, HookResult):
                error = no_result(answer)
            if late.active():
                late.cancel()
            if error is not None:
                account.returned(point, entry, error, 0.0)
                said = meant(point, answer)
                answer = FAILED if said is None else said
            else:
                budget.succeeded()
            ended = self._answered(entry, answer, acc)
            if ended[0] is not STOP:
                rest = self.run(ended[1], i + 1)
                if isinstance(rest, Deferred):
                    rest.addCallback(done.callback)
                    return
                ended = rest
            done.callback(ended)

        waiting.addBoth(fired)
        return done

    def _answered(self, entry: Callback, answer: Any, acc: Any) -> Ended:
        """What an answer makes of the accumulator; FAILED is answered by the owner's policy."""
        if answer is FAILED:
            if entry.budget.policy == "deny" and self.point in DENIED:
                entry.budget.denied += 1
                return STOP, DENIED[self.point](entry.budget)
            return OK, acc
        if answer is None:
            return OK, acc
        return (STOP if answer.stop else OK), answer.accumulate(acc)
