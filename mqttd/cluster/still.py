"""A node that has stood still for longer than its lease may last reads nothing from its clients.

    SIGSTOP, a virtual machine that is moved --> a turn begins, or a look: the lease may have ended,
        and nobody has looked for a while --> clients are not read from
            --> etcd answers: a member, or one anew, with tables and sessions as they are now
            --> it has not for a whole lease: this node is in a minority

What they have sent meanwhile would go by the tables of before, and be acknowledged, though sessions
have gone to where nobody had wanted it. A node that has looked all the time, and that etcd does not
answer, is in a minority as soon as its lease may have ended.

Promise: a turn costs a look at the clock; sees to the engine's clients, which are all but those of
listeners with `transport = "twisted"`.
"""

from __future__ import annotations

import time
from typing import Final

from twisted.logger import Logger

from mqttd.cluster.apart import MINORITY, Apart
from mqttd.cluster.etcd.membership import Membership

__all__ = ["Still"]

#: Seconds without a look after which a node has stood still.
_STILL: Final = 1.0


class Still:
    """Whether this node is to read from its clients; the engine's `Holder`."""

    def __init__(self, membership: Membership, apart: Apart) -> None:
        self.membership = membership
        self.apart = apart
        self.log = Logger(namespace="mqttd.cluster")
        #: Until then nobody needs to be asked; since when nothing is read, 0: it is.
        self.until = 0.0
        self.since = 0.0
        #: When it has gone on last.
        self.went_on = 0.0

    def holds(self) -> bool:
        """See `Holder.holds`."""
        if self.since:
            return not self.apart.state
        now = time.monotonic()
        return now >= self.until and self._stood(now)

    def _stood(self, now: float) -> bool:
        """Whether the lease may have ended while nobody has looked."""
        membership = self.membership
        self.until = membership.proved
        if now < self.until or not membership.epoch or self.apart.state:
            return False
        self._look(now)
        if self.until - membership.settings.lease >= self.went_on:
            return False  # etcd has answered since
        self.since = now
        self.log.warn("this node has stood still: its clients wait until etcd has answered")
        return True

    def _look(self, now: float) -> None:
        keeper = self.membership.keeper
        if now - keeper.heard >= _STILL:
            self.went_on = now
        keeper.heard = now

    def tick(self, now: float) -> None:
        """A few times a second: we are there; or in a minority, if etcd does not answer."""
        membership, apart = self.membership, self.apart
        if now >= membership.proved and not apart.state:
            stood = self.since or self._stood(now)
            if not stood or now - self.since >= membership.settings.lease:
                apart.begin(MINORITY)
        self._look(now)
        if apart.state:
            self.end()

    def end(self) -> None:
        """Clients are read from."""
        self.since = 0.0
