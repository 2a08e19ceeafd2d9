"""How fast somebody may have nodes and etcd do what others wait for, by what it weighs.

    done --> its weight is a debt, which `rate` bytes a second pay
    to be done again --> more debt than its burst (`BURST`): not now

Sessions that move, of a user: 9,000 filters take both nodes a tenth of a second each time, and
whose client went to and fro with them raised the p99 of all others from 1 to 120 ms. They are
refused, and nothing is claimed (`mqttd.cluster.sessions.moving`). Only those that come here are
counted, so a user has this once for each node. A will that is written to etcd: it waits, and the
last one of its client is written. Filters: see `mqttd.cluster.etcd.filling`.

Promise: sans-I/O. What is remembered is at most one number for each that is in debt; a session of
some filters is that for milliseconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["BURST", "Pace"]

#: Bytes that may be done at once.
BURST: Final = 16 << 20
#: Debts that are kept before those are looked for that are paid.
_MANY: Final = 1024


class Pace:
    """That of one node: `rate` bytes a second for each, 0 for no limit; `burst` at once."""

    def __init__(self, rate: int = 0, burst: int = BURST) -> None:
        self.rate = rate
        self.burst = burst
        self.refused = 0
        #: Who -> when the debt is paid, in seconds of the reactor.
        self._paid: dict[Hashable, float] = {}
        self._look = _MANY

    def charge(self, who: Hashable, weight: int, now: float) -> None:
        """Something of this weight was done."""
        if not self.rate:
            return
        paid = self._paid
        paid[who] = max(paid.get(who, now), now) + weight / self.rate
        if len(paid) > self._look:
            for each in [each for each, at in paid.items() if at <= now]:
                del paid[each]
            self._look = max(_MANY, 2 * len(paid))

    def wait(self, who: Hashable, now: float) -> float:
        """Seconds until more may be done; 0 for now."""
        if not self.rate:
            return 0.0
        return max(0.0, self._paid.get(who, now) - now - self.burst / self.rate)
