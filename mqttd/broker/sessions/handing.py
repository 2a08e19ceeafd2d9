"""What sessions that are over have left to their shared groups: to other members, in slices.

    session ends --> Estate --> as much as a slice is for: to other members, now
                        '-----> in line, behind those of before: the rest, in later turns

Members that are away hand on what another of them has left, so sessions that end one after the
other hand on a full queue each time. What waits here is charged to the session that has ended, and
stands in no queue: its group may have other members when its turn comes.

Promise: a slice is at most `HANDED` units of work, a delivery being one, and a KiB of it; what is
left is handed on in the order in which it came, and goes nowhere only if there is no other member.
Only what goes nowhere is counted and told as dropped. What is handed on is written again, so its
bytes are work of whoever ends a session. A store
has the end of a session and all that is handed on in one transaction: after a process that dies in
the midst of it the session is there with what it had. MQTT 5.0, 4.8.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.turns import Job
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.shared import Group
from mqttd.broker.sessions.endings import BURIED
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.message import Delivery
from mqttd.session.session import Session

__all__ = ["HANDED", "Estate", "Handing", "burden"]

#: Units of work of a slice; members that are looked at for the work of one message, as a power of
#: two.
HANDED: Final = 512
_SEARCH: Final = 6
#: Bytes that are a unit of work, as a power of two.
_WEIGHT: Final = 10


def burden(session: Session) -> int:
    """The work of a turn in which a session ends: what is removed and handed on at once."""
    mqueue, inflight = session.mqueue, session.inflight
    messages = 0 if mqueue is None else mqueue.length
    messages += 0 if inflight is None else len(inflight)
    if 0 < messages < HANDED:
        messages += _size(session.shared()) >> _WEIGHT
    return min(session.subscribed(), BURIED) + min(messages, HANDED)


def _size(deliveries: list[Delivery]) -> int:
    size = 0
    for delivery in deliveries:
        size += len(delivery.wire)
    return size


class Estate:
    """What one session has left. told: of each message that is lost it is kept why; reason: why it
    is over.
    """

    def __init__(self, session: Session, told: bool, reason: str) -> None:
        self.session = session
        self.told = told
        self.reason = reason
        self.shared: list[Delivery] = session.shared()
        self.at: int = 0
        #: What no other member could be given.
        self.alone: list[Delivery] = []


class Handing(Job):
    """Those of one broker."""

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        self.line: deque[Estate] = deque()
        #: Called when nobody is in line any more.
        self.idle: Callable[[], None] | None = None
        #: A way to another process that has been filled.
        self.full: Connection | None = None

    def take(self, estate: Estate, held: list[Delivery]) -> None:
        """Hand it on: now, if it fits a slice and nobody is before it.

        held: all that the session held, where somebody hears of what is lost.
        """
        self._drop_rest(estate, held)
        self.broker.topics.work += _size(estate.shared) >> _WEIGHT
        first = not self.line
        if first and not self._some(estate):
            self._done(estate)
            return
        self.line.append(estate)
        self.broker.fans.gate.enter()
        if first:
            self.broker.turns.add(self)

    def slice(self) -> bool:
        """See `Job.slice`."""
        if not self.line:
            return False
        broker = self.broker
        self._next(self.line[0])
        broker.crossed = ()
        if broker.clogged is not None:
            self.full = broker.clogged
            broker.clogged = None
        if self.line:
            return True
        self._rest()
        return False

    def _next(self, estate: Estate) -> None:
        """A slice of the first in line."""
        broker = self.broker
        broker.journal.fleeting = 0
        broker.clogged = None
        if not self._some(estate):
            self.line.popleft()
            self._done(estate)
            broker.fans.gate.leave()

    def finish(self) -> None:
        """The process ends: all of it now."""
        while self.line:
            self.slice()

    def _rest(self) -> None:
        """Nobody is in line: whoever waits for that goes on, when there is room for more."""
        full, self.full = self.full, None
        if self.idle is None:
            return
        if full is not None and full.is_full():
            full.when_drained(self.idle)
        else:
            self.idle()

    def _some(self, estate: Estate) -> bool:
        """Hand on as much as a slice is for; whether anything is left."""
        pubsub = self.broker.pubsub
        shared = estate.shared
        count = len(shared)
        work = 0
        while estate.at < count:
            if work >= HANDED:
                return True
            delivery = shared[estate.at]
            estate.at += 1
            group = delivery.group
            work += 1 + (len(group) >> _SEARCH if isinstance(group, Group) else 0)
            work += len(delivery.wire) >> _WEIGHT
            try:
                handed = pubsub.redispatch(delivery)
            except Exception as error:  # of one message: those behind it go on
                handed = True
                self.broker.metrics.crashes += 1
                self.broker.metrics.dropped_session_ended += 1
                self.broker.log("internal error", {"topic": delivery.topic(), "error": repr(error)})
            if not handed:
                estate.alone.append(delivery)
        return False

    def _drop_rest(self, estate: Estate, held: list[Delivery]) -> None:
        """What is not handed on is dropped now."""
        broker, session = self.broker, estate.session
        count = session.held() - len(estate.shared)
        broker.metrics.dropped_session_ended += count
        if count and not estate.told and broker.trail is not None:
            broker.trail.many("session_ended", session.client_id, count, estate.reason)
        shared = {id(delivery) for delivery in estate.shared}
        for delivery in held:
            if id(delivery) not in shared:
                if estate.told:
                    broker.lose(session, delivery, "session_ended", estate.reason)
                broker.delivery_dropped(session, delivery, "session_ended")

    def _done(self, estate: Estate) -> None:
        """All of it has gone where it could: the rest is dropped, and the session forgotten."""
        broker, session, alone = self.broker, estate.session, estate.alone
        broker.metrics.dropped_session_ended += len(alone)
        detail = f"{estate.reason}; its shared group has no other member"
        if alone and not estate.told and broker.trail is not None:
            broker.trail.many("member_gone", session.client_id, len(alone), detail)
        for delivery in alone:
            if estate.told:
                broker.lose(session, delivery, "member_gone", detail)
            broker.delivery_dropped(session, delivery, "session_ended")
        session.forget()
