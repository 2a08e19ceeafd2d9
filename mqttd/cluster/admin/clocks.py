"""Nodes whose clocks differ: what expires at one has long expired at another, or never does.

    another node's time of day, with its figures --> less the one here: how far it is ahead
        --> the latest of the last `OF`: what has waited on its way says less
        --> `FAR` seconds and more, either way --> the alarm `cluster_clock`, until less than `NEAR`

When a message in a queue, a retained message or a ban ends is a time of day, and goes along to
other nodes; so does when a retained message was changed, by which the later one stays.

Promise: one alarm for all of them, whose text changes with the nodes that it is about alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.alarms import Alarms

__all__ = ["ALARM", "FAR", "NEAR", "OF", "Clocks"]

ALARM: Final = "cluster_clock"
#: Seconds.
FAR: Final = 2.0
NEAR: Final = 1.0
OF: Final = 5


class Clocks:
    """Those of the nodes that `is_linked` says there are links to."""

    def __init__(
        self,
        alarms: Alarms,
        is_linked: Callable[[str], bool],
        seconds: Callable[[], float] = time.time,
    ) -> None:
        self.alarms = alarms
        self.is_linked = is_linked
        self.seconds = seconds
        self._ahead: dict[str, deque[float]] = {}
        #: Those that the alarm is about.
        self._off: set[str] = set()

    def told(self, node: str, clock: float) -> None:
        """A node has said its time of day, in seconds since 1970."""
        of_node = self._ahead.setdefault(node, deque(maxlen=OF))
        of_node.append(clock - self.seconds())
        if len(of_node) == OF:
            self._look()

    def tick(self) -> None:
        """Now and then: those that are gone count no more."""
        gone = [node for node in self._ahead if not self.is_linked(node)]
        for node in gone:
            del self._ahead[node]
        if not self._off.isdisjoint(gone):
            self._look()

    def _look(self) -> None:
        ahead = {node: max(some) for node, some in self._ahead.items() if len(some) == OF}
        bound = {True: NEAR, False: FAR}
        off = {node for node, by in ahead.items() if abs(by) >= bound[node in self._off]}
        if off == self._off:
            return
        self._off = off
        if not off:
            self.alarms.clear(ALARM)
            return
        said = ", ".join(
            f"{node} is {abs(ahead[node]):.0f} s {'ahead of' if ahead[node] > 0 else 'behind'} it"
            for node in sorted(off)
        )
        text = (
            f"clocks differ from the one of this node: {said}; sessions, messages and bans that"
            " expire do so too early or too late at another node: set the clocks (NTP)"
        )
        self.alarms.activate(ALARM, text)
