"""Connections and sessions that are over together, and are more than a turn is for.

    connection ends ---closed--> its will, its session's end    as long as a turn has time for that
    away, deadline over --due------'
                          '----> in line, in the order they ended: some each turn, while there is
                                 room on the ways to other processes and the disk follows

A network that breaks ends thousands of connections at once, each will may go to many, and what was
left in one moment expires in one. A connection in line is closed, and nothing is written to it;
whoever takes over or resumes a session that is in line has its will published first, and finds none
that has expired.

Promise: `ENOUGH` units of work a turn, and the one will that passes it. MQTT 5.0, 3.1.2.5.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.endings import BURIED
from mqttd.broker.publishing import Publishing
from mqttd.broker.registry import Registry
from mqttd.broker.turns import Job
from mqttd.broker.wills import Wills
from mqttd.session.channel import Channel
from mqttd.session.session import Session

__all__ = ["ENOUGH", "Partings"]

#: Units of work of a turn, a delivery or 8 KiB of one each.
ENOUGH: Final = 512
#: The end of a session.
_END: Final = 8


class Partings(Job):
    """Those of one broker."""

    def __init__(self, broker: Publishing, wills: Wills, registry: Registry) -> None:
        self.broker = broker
        self.wills = wills
        self.registry = registry
        self.line: deque[Channel | Session] = deque()

    def puts_off(self, channel: Channel) -> bool:
        """Whether `channel`, which is closed, gets in line: then it is lost later."""
        session = channel.session
        if session is None or session.channel is not channel or session.will is None:
            return False
        if self._has_time():
            return False
        channel.blocked = True
        self.line.append(channel)
        return True

    def due(self, session: Session) -> None:
        """A deadline of a session that is away has passed: now, or in its turn."""
        if self._has_time():
            self._due(session)
        else:
            self.line.append(session)

    def _has_time(self) -> bool:
        """Whether nobody is in line; else, or where this turn had enough, the line goes on."""
        if not self.line:
            if self.wills.spent() < ENOUGH and self.broker.clogged is None:
                return True
            self.broker.turns.add(self)
        return False

    def slice(self) -> bool:
        """See `Job.slice`; what fills the way to another process waits for room there.

        Wills are messages of publishers: where the disk cannot follow they wait as others do.
        """
        broker = self.broker
        wills = self.wills
        wills.work = 0
        if self.line and broker.congested:
            broker.when_relieved(self._go_on)
            return False
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
        first = self.line.popleft()
        if isinstance(first, Session):
            self._due(first)
            return
        try:
            first.lost()
        except Exception as error:  # of one connection: those behind it go on
            self.broker.crashed(first, error)

    def _due(self, session: Session) -> None:
        filters = len(session.subscriptions or ())
        self.registry.due(session)
        self.wills.work += _END
        if session.ended:  # see `Burial`
            self.wills.work += filters if filters < BURIED else BURIED

    def _go_on(self) -> None:
        if self.line:
            self.broker.turns.add(self)
