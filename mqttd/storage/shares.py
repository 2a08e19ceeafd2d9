"""How much of a store one user may fill, so that the others find room in it.

    what is left  --x 8-->  the most that one user may keep, while more than half is taken
    sessions  --walk, some a turn-->  what each user keeps: queues, messages in flight

A threshold that follows what is left needs no figure of its own: one user alone against it comes
to 8/9 of the store, two to 8/17 each, and always there is something left for the next (A. K.
Choudhury, E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
Messages for sessions of whoever has more are dropped (`store_share`), and nobody is refused for
them; while sessions are one user's, that one may have all of it. Clients without a user name are
one user.

Promise: nothing is counted while half of the store is free; else a walk a second, beside which a
message costs a comparison and an addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.turns import Job

__all__ = ["Shares"]

#: What is left, times this, is the most that one user may keep.
_TIMES: Final = 8
#: Milliseconds from one walk to the next; sessions that one slice looks at.
_EVERY: Final = 1000
_LOOKED_AT: Final = 1000


class Shares:
    """What the users of one broker may keep in its store; log(event, fields): one event."""

    def __init__(self, broker: Broker, log: Callable[[str, dict[str, object]], None]) -> None:
        self.broker = broker
        self.log = log
        self._walk: _Walk | None = None
        self._next = 0

    def see(self, size: int, left: int | None) -> None:
        """The store has so many bytes, and room for so many more; None: nobody knows."""
        account = self.broker.account
        if left is None or left > size:
            account.most_kept = -1
            return
        if self._walk is None and self.broker.now >= self._next:
            self._walk = _Walk(self)
            self.broker.turns.add(self._walk)
        if len(account.purses) + (account.nobody.kept > 0) < 2:
            account.most_kept = -1
            return
        if account.most_kept < 0:
            self.log("store is shared out", {"bytes": size, "left": left})
        account.most_kept = left * _TIMES

    def walked(self) -> None:
        """What each user keeps has been counted."""
        self._walk = None
        self._next = self.broker.now + _EVERY


class _Walk(Job):
    """Counts what the sessions of each user keep."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self.broker = shares.broker
        self.left: list[str] = list(self.broker.sessions)
        self.kept: dict[str | None, int] = {}

    def slice(self) -> bool:
        """Look at some."""
        sessions, kept = self.broker.sessions, self.kept
        for client_id in self.left[-_LOOKED_AT:]:
            session = sessions.get(client_id)
            if session is None or not session.owner:
                continue
            user = session.username
            kept[user] = kept.get(user, 0) + session.recorded()
        del self.left[-_LOOKED_AT:]
        if self.left:
            return True
        account = self.broker.account
        for name, purse in account.purses.items():
            purse.kept = kept.get(name, 0)
        account.nobody.kept = kept.get(None, 0)
        self.shares.walked()
        return False
