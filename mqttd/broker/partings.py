"""Connections that are over together, and whose wills are more than a turn is for.

    connection ends --closed--> its will, its session's end     as long as a turn has time for that
                       '------> in line, in the order they ended: some each turn, while there is
                                room on the ways to other processes

A network that breaks ends thousands of connections at once, and each will may go to many. Who is in
line is closed, and nothing is written to it; whoever takes its session over has its will published
first.

Promise: `ENOUGH` units of work a turn, and the one will that passes it. MQTT 5.0, 3.1.2.5.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.publishing import Publishing
from mqttd.broker.turns import Job
from mqttd.broker.wills import Wills
from mqttd.session.channel import Channel

__all__ = ["ENOUGH", "Partings"]

#: Units of work of a turn, a delivery or 8 KiB of one each.
ENOUGH: Final = 512


class Partings(Job):
    """Those of one broker."""

    def __init__(self, broker: Publishing, wills: Wills) -> None:
        self.broker = broker
        self.wills = wills
        self.line: deque[Channel] = deque()

    def puts_off(self, channel: Channel) -> bool:
        """Whether `channel`, which is closed, gets in line: then it is lost later."""
        session = channel.session
        if session is None or session.channel is not channel or session.will is None:
            return False
        if not self.line:
            if self.wills.spent() < ENOUGH and self.broker.clogged is None:
                return False
            self.broker.turns.add(self)
        channel.blocked = True
        self.line.append(channel)
        return True

    def slice(self) -> bool:
        """See `Job.slice`; what fills the way to another process waits for room there."""
        broker = self.broker
        wills = self.wills
        wills.work = 0
        while self.line:
            self._next()
            if wills.work >= ENOUGH or broker.clogged is not None:
                break
        full = broker.clogged
        broker.clogged = None
        if self.line and full is not None:
            full.when_drained(self._go_on)
            return False
        return len(self.line) > 0

    def finish(self) -> None:
        """The process ends: all of them now."""
        while self.line:
            self._next()

    def _next(self) -> None:
        channel = self.line.popleft()
        try:
            channel.lost()
        except Exception as error:  # of one connection: those behind it go on
            self.broker.crashed(channel, error)

    def _go_on(self) -> None:
        if self.line:
            self.broker.turns.add(self)
