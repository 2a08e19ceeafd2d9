"""Connections and sessions that are over together, and are more than a turn is for.

    connection ends ---closed--> its will, its session's end    as long as a turn has time for that
    away, deadline over --due------|
    CONNECT, clean start --follows-|
    a start, wills of before it ---|
                          '----> in line, in the order they came: some each turn, while there is
                                 room on the ways to other processes, nothing to be handed on, and
                                 the disk follows; what is more than a little waits for that, too

A network that breaks ends thousands of connections at once, each will may go to many, and what was
left in one moment expires in one. A connection in line is closed, and nothing is written to it;
whoever takes over or resumes a session that is in line has its will published first, and finds none
that has expired. A client whose CONNECT ends a session with much in it waits for that as well; one
that ends little does not.

Promise: `ENOUGH` units of work a turn, and the one will or session that passes it. A will for more
receivers than one turn is for is in the store before the next one begins.
MQTT 5.0, 3.1.2.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.turns import Job
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.publish.wills import Wills
from mqttd.broker.sessions.handing import burden
from mqttd.broker.sessions.registry import Registry
from mqttd.session.channel.channel import Channel
from mqttd.session.session import Session

__all__ = ["ENOUGH", "Partings"]

#: Units of work of a turn, a delivery or 8 KiB of one, a subscription that ends.
ENOUGH: Final = 512
#: The end of a session.
_END: Final = 8
#: Units of work for which nobody waits.
_LITTLE: Final = 32


class _Successor:
    """A client that begins afresh where a session was, which ends then."""

    def __init__(self, session: Session, then: Callable[[], None]) -> None:
        self.session = session
        self.then = then


class Partings(Job):
    """Those of one broker."""

    def __init__(self, broker: Publishing, wills: Wills, registry: Registry) -> None:
        self.broker = broker
        self.wills = wills
        self.registry = registry
        #: A client id: the will that was held of this client.
        self.line: deque[Channel | Session | _Successor | str] = deque()
        #: Those in line wait for something else than a turn.
        self.waits: bool = False
        #: What is kept as a whole has not come to the end of its turn.
        self.late: bool = False
        registry.handing.idle = self._go_on
        wills.line_up = self._held

    def puts_off(self, channel: Channel) -> bool:
        """Whether `channel`, which is closed, gets in line: then it is lost later."""
        session = channel.session
        if session is None or session.channel is not channel:
            return False
        work = burden(session) if session.expiry_interval == 0 else 0
        if session.will is None and work <= _LITTLE:
            return False
        if self._has_time(work):
            self.wills.work += work
            return False
        channel.blocked = True
        self.line.append(channel)
        return True

    def due(self, session: Session) -> None:
        """A deadline of a session that is away has passed: now, or in its turn."""
        if self._has_time(burden(session) if self.registry.has_expired(session) else 0):
            self._due(session)
        else:
            self.line.append(session)

    def _held(self, client_ids: list[str]) -> None:
        """Wills of these clients were held at the start, and are due."""
        for client_id in client_ids:
            if self._has_time(0):
                self.wills.first(client_id)
            else:
                self.line.append(client_id)

    def follows(self, session: Session, then: Callable[[], None]) -> bool:
        """Whether a client gets in line with whom `session` ends; `then` is called in its turn."""
        work = burden(session)
        if work <= _LITTLE:
            return False
        if self._has_time(work):
            self.wills.work += work
            return False
        self.line.append(_Successor(session, then))
        return True

    def _has_time(self, work: int) -> bool:
        """Whether nobody is in line for so much work; else, or where this turn had enough, or the
        disk cannot follow, the line goes on.
        """
        if not self.line:
            waits = work > _LITTLE and self.broker.congested
            if not waits and self.wills.spent() < ENOUGH and self._may_begin():
                return True
            self.waits = False
            self.broker.turns.add(self)
        return False

    def _is_held_up(self) -> bool:
        """Whether a way to another process is full, or something is still to be handed on."""
        return self.broker.clogged is not None or len(self.registry.handing.line) > 0

    def _may_begin(self) -> bool:
        """Whether a will may begin its way: what is to be kept as a whole comes to its end first.

        Else the store would have none of many wills for thousands before all had gone.
        """
        if self.broker.fans.gate.held:
            self.late = True
        return not self.late and not self._is_held_up()

    def slice(self) -> bool:
        """See `Job.slice`; what fills the way to another process waits for room there.

        Wills are messages of publishers: where the disk cannot follow they wait as others do.
        """
        broker = self.broker
        if self.line and broker.congested:
            self.waits = True
            broker.when_relieved(self._go_on)
            return False
        if self.late and not broker.fans.gate.held:
            self.late = False
            return len(self.line) > 0
        self._some()
        full = broker.clogged
        broker.clogged = None
        handing = len(self.registry.handing.line) > 0
        self.waits = len(self.line) > 0 and (full is not None or handing)
        if self.waits and full is not None:
            full.when_drained(self._go_on)
        return len(self.line) > 0 and not self.waits

    def _some(self) -> None:
        """As many as a turn has time for."""
        self.wills.work = 0
        self.broker.clogged = None
        while self.line and self.wills.work < ENOUGH and self._may_begin():
            self._next()

    def finish(self) -> None:
        """The process ends: all of them now. Who has not been let in yet is not any more."""
        while self.line:
            if isinstance(self.line[0], _Successor):
                self.line.popleft()
            else:
                self._next()

    def _next(self) -> None:
        first = self.line.popleft()
        if isinstance(first, str):
            self.wills.first(first)
            return
        if isinstance(first, Session):
            self._due(first)
            return
        if isinstance(first, _Successor):
            self.wills.work += 0 if first.session.ended else burden(first.session)
            first.then()
            return
        session = first.session
        if session is not None and session.channel is first and session.expiry_interval == 0:
            self.wills.work += burden(session)
        try:
            first.lost()
        except Exception as error:  # of one connection: those behind it go on
            self.broker.crashed(first, error)

    def _due(self, session: Session) -> None:
        self.wills.work += _END + (burden(session) if self.registry.has_expired(session) else 0)
        self.registry.due(session)

    def _go_on(self) -> None:
        """What was waited for is so."""
        if self.waits:
            self.waits = False
            if self.line:
                self.broker.turns.add(self)
