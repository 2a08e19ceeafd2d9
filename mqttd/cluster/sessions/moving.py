"""How many sessions of a user come to this node at once, and how much of them a second.

    claimed of another node --> begin: a place among `AT_ONCE` of its user --> it comes --> end
                                  | all taken: it waits                    '--> charge: its weight
                                  '-- above the rate: refused, and nothing is claimed

What a session weighs is known when it is here, so that what is on its way is bounded by count. Its
user is charged what it weighs beyond `LIGHT`: a fleet of devices with one user name comes from a
node that is restarted as fast as its places allow. Its client is charged all of it, so that none
goes to and fro. A client without a user name is a user of its own. Sessions that nobody has claimed
by a CONNECT (a node is drained) are charged, and wait for nobody.

Promise: a user waits for itself alone, `PATIENCE` seconds at most.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from twisted.internet.defer import DeferredSemaphore, TimeoutError

from mqttd.cluster.etcd.client import EtcdError
from mqttd.cluster.etcd.pace import Pace
from mqttd.cluster.sessions.packets import weight_of
from mqttd.types import SessionState

__all__ = ["AT_ONCE", "LIGHT", "PATIENCE", "Moving"]

#: Sessions of one user that come at the same time, and seconds that another one waits for a place.
AT_ONCE: Final = 32
PATIENCE: Final = 4.0
#: What a session may weigh that its user is not charged: some thirty filters, or as many messages
#: of two kilobytes.
LIGHT: Final = 64 << 10

#: The name of a user, or None and the client id of somebody who has none.
_User = tuple[str | None, str]


class _Record(msgspec.Struct):
    """What of a session's record says whose it is."""

    username: str | None = None


class Moving:
    """Those of one node."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.pace = Pace()
        #: Client ids that have a place, and of which user; the places of those who have some.
        self._begun: dict[str, _User] = {}
        self._places: dict[_User, DeferredSemaphore] = {}

    async def begin(self, client_id: str, username: str | None) -> None:
        """A session is about to be claimed for this user; raises EtcdError where it may not be."""
        if not self.pace.rate or client_id in self._begun:
            return
        user = _user(client_id, username)
        places = self._places.setdefault(user, DeferredSemaphore(AT_ONCE))
        try:
            await places.acquire().addTimeout(PATIENCE, self.reactor)
        except TimeoutError:
            raise self._refused(f"{AT_ONCE} sessions of its user are on their way here") from None
        self._begun[client_id] = user
        now = self.reactor.seconds()
        wait = self.pace.wait(_user(client_id, None), now)
        if wait > 0:
            text = "its session is large and has moved too often"
            raise self._refused(f"{text}: it may in {wait:.1f} s")
        wait = self.pace.wait(user, now)
        if wait > 0:
            text = "its user has many large sessions that have moved"
            raise self._refused(f"{text}: it may in {wait:.1f} s")

    def _refused(self, why: str) -> EtcdError:
        self.pace.refused += 1
        return EtcdError(why)

    def end(self, client_id: str) -> None:
        """It has come, or is waited for no longer."""
        user = self._begun.pop(client_id, None)
        if user is None:
            return
        places = self._places[user]
        places.release()
        if places.tokens == AT_ONCE:
            del self._places[user]

    def charge(self, client_id: str, state: SessionState) -> None:
        """It has come."""
        user = self._begun.get(client_id) or _user(client_id, _username(state))
        weight, now = weight_of(state), self.reactor.seconds()
        client = _user(client_id, None)
        self.pace.charge(client, weight, now)
        if user != client:
            self.pace.charge(user, max(weight - LIGHT, 0), now)


def _user(client_id: str, username: str | None) -> _User:
    return (None, client_id) if username is None else (username, "")


def _username(state: SessionState) -> str | None:
    try:
        return msgspec.json.decode(state.record, type=_Record).username
    except msgspec.MsgspecError:
        return None  # it cannot be read, and the registry says so
