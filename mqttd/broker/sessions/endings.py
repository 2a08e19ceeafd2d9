"""What ends for many at once, in slices: sessions with many subscriptions, clients of ours to go.

    session ends --> Burial    its subscriptions leave the router; it takes nothing meanwhile
    bans, users  --> Sweep     all sessions are looked at, and connections that may not stay end
    a time comes --> Expiry    retained messages that expired are forgotten
    no stop now  --> Overdue   wills that were kept for the next start are due in their time again

Promise: a session or a sweep that fits one slice is done at once, as if there were none.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.ground.turns import Job
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.login import module_of
from mqttd.codec import reasons
from mqttd.session.channel.channel import Channel
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["BURIED", "LOOKED_AT", "Banned", "Burial", "Expiry", "Overdue", "Revoked", "Sweep"]

#: Subscriptions of a session that has ended which one slice removes.
BURIED: Final = 500
#: Sessions that one slice of a sweep looks at, and connections that it ends.
LOOKED_AT: Final = 1000
_ENDED: Final = 200


class Burial(Job):
    """The subscriptions of a session that has ended."""

    def __init__(self, broker: Publishing, session: Session) -> None:
        self.broker = broker
        self.session = session
        self.filters: list[str] = list(session.subscriptions or ())

    def slice(self) -> bool:
        """Remove some."""
        filters = self.filters
        at = len(filters) - BURIED if len(filters) > BURIED else 0
        now = filters[at:]
        del filters[at:]
        for full_filter in now:
            self.broker.pubsub.unsubscribe(self.session, full_filter)
        if filters:
            return True
        purse = self.session.purse
        if purse is not None:
            self.broker.account.close(purse)
        return False


class Expiry(Job):
    """Retained messages whose time is over."""

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        self.goes_on: bool = False

    def run(self) -> None:
        """Forget some now, unless that is under way, and the others in later turns."""
        if not self.goes_on and self.slice():
            self.broker.turns.add(self)

    def slice(self) -> bool:
        """Forget some."""
        broker = self.broker
        broker.retainer.expire(broker.now)
        self.goes_on = broker.retainer.is_due(broker.now)
        return self.goes_on


class Overdue(Job):
    """The sessions that are there when it begins: those that are away, and have a will.

    The broker was to stop, and had kept these (`session.wills_at_stop`); it goes on.
    """

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        self.left: list[str] = list(broker.sessions)
        self.left.reverse()  # who was here first

    def run(self) -> None:
        """The first slice now, the others in later turns."""
        if self.slice():
            self.broker.turns.add(self)
        self.broker.perform()

    def stop(self) -> None:
        """Wills are kept again: the others are looked at when they are no more."""
        self.left.clear()

    def slice(self) -> bool:
        """Look at some."""
        broker = self.broker
        looks = LOOKED_AT
        while self.left and looks > 0:
            looks -= 1
            session = broker.sessions.get(self.left.pop())
            if session is not None and session.channel is None and session.will is not None:
                session.due(broker.now)
        return len(self.left) > 0


class Sweep(Job):
    """All sessions that were there when it began; those whose client has to go lose it."""

    def __init__(self, broker: Publishing, reason_code: int, detail: str) -> None:
        self.broker = broker
        self.reason_code = reason_code
        self.detail = detail
        self.left: list[str] = list(broker.sessions)
        self.ended: int = 0

    def must_go(self, session: Session, channel: Channel) -> bool:
        """Whether this client may not stay."""
        raise NotImplementedError

    def count(self) -> None:
        """One more connection is ended."""
        raise NotImplementedError

    def run(self) -> int:
        """The first slice now, the others in later turns; how many were ended so far."""
        if self.slice():
            self.broker.turns.add(self)
        self.broker.perform()
        return self.ended

    def slice(self) -> bool:
        """Look at some."""
        broker = self.broker
        looks = LOOKED_AT
        ends = _ENDED
        while self.left and looks > 0 and ends > 0:
            looks -= 1
            session = broker.sessions.get(self.left.pop())
            channel = broker.channel_of(session) if session is not None else None
            if session is not None and channel is not None and self.must_go(session, channel):
                ends -= 1
                self.ended += 1
                self.count()
                broker.end_channel(channel, self.reason_code, self.detail)
        return bool(self.left)


class Revoked(Sweep):
    """Users that are gone or have new passwords; with `by_client_id` the names are client ids."""

    def __init__(
        self, broker: Publishing, module: str, names: frozenset[str], by_client_id: bool
    ) -> None:
        super().__init__(broker, reasons.NOT_AUTHORIZED, "the user is gone or has a new password")
        self.module = module
        self.names = names
        self.by_client_id = by_client_id

    def must_go(self, session: Session, channel: Channel) -> bool:
        """Whether `module` let this one in by such a name."""
        if module_of(channel.auth) != self.module:
            return False
        return (session.client_id if self.by_client_id else session.username) in self.names

    def stays(self, client: ClientInfo, module: str) -> bool:
        """Whether a client that `module` lets in has no such name."""
        name = client.client_id if self.by_client_id else client.username
        return module != self.module or name not in self.names

    def count(self) -> None:
        """See `auth_revoked`."""
        self.broker.metrics.auth_revoked += 1


class Banned(Sweep):
    """Clients that are banned."""

    def __init__(self, broker: Publishing) -> None:
        super().__init__(broker, reasons.ADMINISTRATIVE_ACTION, "banned")

    def must_go(self, session: Session, channel: Channel) -> bool:
        """Whether there is a ban of this client."""
        host, _ = channel.edge.peer(channel)
        ban = self.broker.bans.match(session.client_id, session.username, host)
        return ban is not None

    def count(self) -> None:
        """See `clients_kicked`."""
        self.broker.metrics.clients_kicked += 1
