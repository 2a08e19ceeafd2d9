"""Clients that come and go all the time: found by counting, kept out by a ban.

    disconnect, disconnect, disconnect ... `count` of them within `window` --> ban for `ban`

Two programs with the same client id, a device that crashes on each start: each of their CONNECTs
costs authentication, session and log. Counted, and banned, is a client id in the hands of one user,
or of one house where there is no name: nobody gets another's client id banned. The ban ends by
itself, and is not written to the file of bans: what flaps after a restart is found again.

Promise: one dictionary entry per client that left within the window, at most `MOST` of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mqttd.broker.rights.bans import BanError, Bans, client_value
from mqttd.session.channel.listener import FlappingRule
from mqttd.session.ground.metrics import Metrics
from mqttd.types import ClientInfo

__all__ = ["MOST", "Flapping"]

#: Clients that are counted at the same time.
MOST: Final = 100_000


class Flapping:
    """Counts the disconnects of each client, by the rule of its listener."""

    def __init__(
        self,
        bans: Bans,
        metrics: Metrics,
        log: Callable[[str, dict[str, object]], None],
        seconds: Callable[[], float] = time.time,
    ) -> None:
        self.bans = bans
        self.metrics = metrics
        self.log = log
        self.seconds = seconds
        #: Client (`client_value`) -> disconnects, and when (milliseconds) their window ends; oldest
        #: first.
        self._seen: dict[str, tuple[int, int]] = {}

    def ended(self, rule: FlappingRule, client: ClientInfo, now: int) -> None:
        """A client of a listener with this rule has left or was taken over (`now` in ms)."""
        who = client_value(client.client_id, client.username, client.peerhost)
        count, until = self._seen.get(who, (0, 0))
        if now >= until:
            self._seen.pop(who, None)
            self._forget(now)
            count, until = 0, now + int(rule.window * 1000)
        count += 1
        if count < rule.count:
            self._seen[who] = (count, until)
            return
        self._seen.pop(who, None)
        reason = f"flapping: {count} disconnects in {rule.window:g} s"
        try:
            self.bans.add("client", who, reason, self.seconds() + rule.ban, stored=False)
        except BanError as error:
            reason = f"{reason}; not banned: {error}"
        else:
            self.metrics.clients_flapping += 1
        fields = {"listener": client.listener, "client_id": client.client_id, "reason": reason}
        self.log("flapping", {**fields, "username": client.username, "peerhost": client.peerhost})

    def _forget(self, now: int) -> None:
        """Make room: windows that are over, else the oldest."""
        seen = self._seen
        while seen:
            oldest = next(iter(seen))
            if now < seen[oldest][1] and len(seen) < MOST:
                return
            del seen[oldest]
