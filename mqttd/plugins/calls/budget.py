"""What a plugin may use of the broker, and what happens when it uses more.

                    error_limit errors in error_window
       active ------------------------------------------> quarantined <--+
         ^                                                     |          | one more error,
         |  the one call went well                             | back-off | twice the back-off
         +------------------------ half-open <-----------------+          |
                                       |                                  |
                                       +----------------------------------+

An error is a callback that raised, answered nonsense, was broken off because it blocked the
reactor, whose Deferred did not fire in time, or a second in which the plugin used more than its
share. Where one client is judged, what is raised or answered amiss is counted, and no step towards
quarantine: a few CONNECTs must not lock everybody out. While a budget is not active its callbacks
are not called: with the policy ``ignore`` they are passed over, with ``deny`` the points that give
a verdict refuse (`hooks.Point.denied`); a single call that fails is answered by the same policy.

Promise: every call is timed, but of an owner with more than `OFTEN` calls a second one in 16, which
stands for the others. It never raises, and knows no reactor: the time is handed in, in seconds of
`time.monotonic`. Short calls at hooks are charged to the clients they are made for, as work of
their turn, and are no part of the plugin's share: one that sends much would lock others out of it.
All calls together leave a tenth of a second to everybody else (`_ALL`), or the plugin is too slow
for what comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

__all__ = ["ACTIVE", "CALL", "HALF_OPEN", "QUARANTINED", "UNBOUNDED", "Budget", "Policy"]

ACTIVE: Final = "active"
QUARANTINED: Final = "quarantined"
HALF_OPEN: Final = "half-open"

#: Seconds one call may take, unless somebody says otherwise.
CALL: Final = 0.02
#: Calls a second above which only some are timed.
OFTEN: Final = 2000
#: The mask of those: one in 16.
_SELDOM: Final = 15
#: What all calls may take of a second, those included that clients are charged with.
_ALL: Final = 0.9

#: The `error_limit` of who is never quarantined.
UNBOUNDED: Final = 1 << 60

Policy = Literal["ignore", "deny"]


class Budget:
    """The limits and the account of one owner of callbacks: usually one plugin.

    :param name: what logs, alarms and the API call it.
    :param policy: what its callbacks count as while they fail: ``ignore`` or ``deny``.
    :param per_call: seconds one call may take before it is broken off.
    :param per_second: seconds of reactor time that all its calls may take in one second.
    :param error_limit: errors within `error_window` seconds that lead to quarantine.
    :param deadline: seconds a Deferred may take, where a point allows one.
    :param queue: Deferreds that may wait at the same time.
    :param retry_after: seconds of the first quarantine; each one that fails again doubles it, up
        to `retry_most`.
    :raises ValueError: an unknown policy, or a limit that is not positive.
    """

    __slots__ = (
        "_admitted",
        "_second",
        "_second_calls",
        "_second_short",
        "_second_time",
        "_since",
        "_wait",
        "calls",
        "changed",
        "deadline",
        "denied",
        "error_limit",
        "error_window",
        "errors",
        "faults",
        "last_error",
        "longest",
        "mask",
        "name",
        "passed_on",
        "per_call",
        "per_second",
        "policy",
        "quarantines",
        "queue",
        "retry_after",
        "retry_at",
        "retry_most",
        "shut",
        "skipped",
        "state",
        "time",
        "waiting",
    )

    def __init__(
        self,
        name: str,
        policy: Policy = "ignore",
        *,
        per_call: float = CALL,
        per_second: float = 0.5,
        error_limit: int = 10,
        error_window: float = 600.0,
        deadline: float = 5.0,
        queue: int = 1000,
        retry_after: float = 30.0,
        retry_most: float = 3600.0,
    ) -> None:
        if policy not in ("ignore", "deny"):
            raise ValueError(f"policy = {policy!r}: expected 'ignore' or 'deny'")
        limits = (per_call, per_second, error_limit, error_window, deadline, queue, retry_after)
        if not min(limits) > 0:
            raise ValueError(f"the limits of {name} must be positive")
        self.name = name
        self.policy: Policy = policy
        self.per_call = per_call
        self.per_second = per_second
        self.error_limit = error_limit
        self.error_window = error_window
        self.deadline = deadline
        self.queue = queue
        self.retry_after = retry_after
        self.retry_most = retry_most
        self.state: str = ACTIVE
        #: Not active: ask `admits` before a call.
        self.shut: bool = False
        #: Calls made, and the seconds they took.
        self.calls: int = 0
        #: A call is timed if its number has none of these bits.
        self.mask: int = 0
        self.time: float = 0.0
        #: Of these seconds, those that clients were charged with: no part of the plugin's share.
        self.passed_on: float = 0.0
        #: Seconds of the longest call that overstayed or failed; 0 if none did.
        self.longest: float = 0.0
        #: All errors ever, by kind, and those that count towards quarantine.
        self.faults: dict[str, int] = {}
        self.errors: int = 0
        self.last_error: str = ""
        #: Calls that were not made, and verdicts that were given in their place.
        self.skipped: int = 0
        self.denied: int = 0
        #: Deferreds that have not fired.
        self.waiting: int = 0
        self.quarantines: int = 0
        self.retry_at: float = 0.0
        #: Told of each change of `state`: ``changed(budget)``.
        self.changed: list[Callable[[Budget], None]] = []
        self._since: float = 0.0
        self._wait: float = retry_after
        self._admitted: float = 0.0
        self._second: float = 0.0
        self._second_time: float = 0.0
        self._second_short: float = 0.0
        self._second_calls: int = 0

    # -- asked before and told after a call ------------------------------------------------------

    def admits(self, now: float) -> bool:
        """May a call be made though the budget is shut? After the back-off one is, as a trial."""
        if not self.shut:
            return True
        late = self.state == HALF_OPEN and now - self._admitted > self.deadline + self.per_call
        if late or (self.state == QUARANTINED and now >= self.retry_at):
            self._admitted = now
            self._enter(HALF_OPEN)
            return True
        self.skipped += 1
        return False

    def succeeded(self) -> None:
        """The call on trial went well: the owner is back."""
        if self.state == HALF_OPEN:
            self.errors = 0
            self._wait = self.retry_after
            self._enter(ACTIVE)

    def failed(self, kind: str, text: str, now: float) -> None:
        """A call went wrong: `kind` is a word for the counters, `text` tells what happened."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.last_error = text
        if self.state == HALF_OPEN:
            self._wait = min(self._wait * 2, self.retry_most)
            self._quarantine(now)
            return
        if self.errors == 0 or now - self._since > self.error_window:
            self.errors = 0
            self._since = now
        self.errors += 1
        if self.errors >= self.error_limit and self.state == ACTIVE:
            self._quarantine(now)

    def noted(self, kind: str, text: str, now: float = 0.0) -> None:
        """A call for one client went wrong: counted and shown, but no step towards quarantine."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.last_error = text
        if self.state == HALF_OPEN and now:
            self._quarantine(now)

    def hurry(self) -> None:
        """Time it seldom before the second is over, which may be told late, if calls are many."""
        if self.calls - self._second_calls > 2 * OFTEN:
            self.mask = _SELDOM

    def tick(self, now: float) -> float:
        """Close the account of a second, about once in each.

        Returns the share of that time that was used (0 to 1) if it was too much, else 0.
        """
        passed = now - self._second
        if passed < 1.0:
            return 0.0
        used = self.time - self._second_time
        short = self.passed_on - self._second_short
        began = self._second > 0.0
        self._second = now
        self.mask = _SELDOM if self.calls - self._second_calls > OFTEN * passed else 0
        self._second_calls = self.calls
        self._second_time = self.time
        self._second_short = self.passed_on
        if not began:
            return 0.0
        for share, most in ((used - short, self.per_second), (used, max(self.per_second, _ALL))):
            if share > most * passed:
                return share / passed
        return 0.0

    def readmit(self) -> None:
        """Back to active at once: an operator says so, or the plugin was loaded anew."""
        self.errors = 0
        self._wait = self.retry_after
        if self.state != ACTIVE:
            self._enter(ACTIVE)

    # -- shown -----------------------------------------------------------------------------------

    def describe(self) -> dict[str, object]:
        """The limits and the account, for the API; times in seconds, None for no limit."""
        return {
            "name": self.name,
            "state": self.state,
            "policy": self.policy,
            "calls": self.calls,
            "time": round(self.time, 6),
            "longest": round(self.longest, 6),
            "errors": sum(self.faults.values()),
            "errors_by_kind": dict(self.faults),
            "errors_counted": self.errors,
            "last_error": self.last_error,
            "skipped": self.skipped,
            "denied": self.denied,
            "waiting": self.waiting,
            "quarantines": self.quarantines,
            "limits": {
                "per_call": self.per_call,
                "per_second": self.per_second,
                "error_limit": self.error_limit if self.error_limit < UNBOUNDED else None,
                "error_window": self.error_window,
                "deadline": self.deadline,
                "queue": self.queue,
                "retry_after": self.retry_after,
                "retry_most": self.retry_most,
            },
        }

    def __repr__(self) -> str:
        most = f"/{self.error_limit}" if self.error_limit < UNBOUNDED else ""
        return f"<Budget {self.name} {self.state} {self.errors}{most} errors>"

    def _quarantine(self, now: float) -> None:
        self.quarantines += 1
        self.retry_at = now + self._wait
        self._enter(QUARANTINED)

    def _enter(self, state: str) -> None:
        self.state = state
        self.shut = state != ACTIVE
        for changed in tuple(self.changed):
            changed(self)
