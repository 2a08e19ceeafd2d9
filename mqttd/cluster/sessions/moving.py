"""How many sessions of a user come to this node at once, and how much of them a second.

    claimed of another node --> begin: a place among `AT_ONCE` of its user --> it comes --> end
                                  | all taken: it waits                    '--> charge: its weight
                                  '-- above the rate: refused, and nothing is claimed

What a session weighs is known when it is here, so that what is on its way is bounded by count. A
client without a user name is a user of its own. Sessions that nobody has claimed by a CONNECT (a
node is drained) are charged, and wait for nobody.

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

__all__ = ["AT_ONCE", "PATIENCE", "Moving"]

#: Sessions of one user that come at the same time, and seconds that another one waits for a place.
AT_ONCE: Final = 32
PATIENCE: Final = 4.0

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
        wait = self.pace.wait(user, self.reactor.seconds())
        if wait > 0:
            text = "its user's sessions are large, or many, and have moved too often: it may in"
            raise self._refused(f"{text} {wait:.1f} s")

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
        self.pace.charge(user, weight_of(state), self.reactor.seconds())


def _user(client_id: str, username: str | None) -> _User:
    return (None, client_id) if username is None else (username, "")


def _username(state: SessionState) -> str | None:
    try:
        return msgspec.json.decode(state.record, type=_Record).username
    except msgspec.MsgspecError:
        return None  # it cannot be read, and the registry says so
