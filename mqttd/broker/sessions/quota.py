"""Whose a client id may be, and how many sessions a user and an address may have.

    CONNECT, proved --> id fits session.client_id?   no: 0x85
                    --> session there already?       it goes on, or is somebody else's: `Claims`
                    --> user, address below limits?  no: 0x97

An address is that of a *house* (`mqttd.net.fair`): whoever has a /64 of IPv6 may show all of it.

A client id is a name that any client may choose, and a session may outlive its client: without a
limit one stranger may take as many names as he likes, for as long as sessions last.

Promise: nothing is counted, and nothing kept, where there is no limit; else one entry per user,
address and session.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqttd.codec import reasons
from mqttd.net.fair import house_of
from mqttd.session.ground.settings import Settings
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["Quota", "fits"]


class Quota:
    """The counts of one broker's sessions, away ones included."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: There is a limit to hold to.
        self.counts: bool = False
        self._by_user: dict[str, int] = {}
        self._by_address: dict[str, int] = {}
        #: Client id -> by whom it was taken, and from which house.
        self._from: dict[str, tuple[str | None, str]] = {}

    def settings_changed(self, sessions: Iterable[Session]) -> None:
        """There may be limits now, or none any more: count what is there."""
        wanted = self.settings.max_sessions_per_user > 0
        wanted = wanted or self.settings.max_sessions_per_address > 0
        if wanted == self.counts:
            return
        self.counts = wanted
        self._by_user = {}
        self._by_address = {}
        self._from = {}
        if wanted:
            for session in sessions:
                self.began(session, "")

    def refusal(self, client: ClientInfo, there: bool) -> tuple[int, str] | None:
        """Reason code and text for a client that may not have its session; None if it may.

        `there`: the session exists, and is counted: for its own user it goes on.
        """
        settings = self.settings
        pattern = settings.client_id_pattern
        if pattern and not fits(pattern, client.client_id, client.username):
            return (
                reasons.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client id is not as session.client_id = {pattern!r} wants it",
            )
        if not self.counts:
            return None
        user = client.username
        house = house_of(client.peerhost)
        held = self._from.get(client.client_id)
        if there and (held is None or held[0] == user):
            return None
        most = settings.max_sessions_per_user
        if most and user is not None and self._by_user.get(user, 0) >= most:
            return (reasons.QUOTA_EXCEEDED, f"the user has {most} sessions")
        most = settings.max_sessions_per_address
        if held is not None and held[1] == house:
            return None  # another user's, whose place it takes
        if most and self._by_address.get(house, 0) >= most:
            return (reasons.QUOTA_EXCEEDED, f"clients from this address have {most} sessions")
        return None

    def began(self, session: Session, address: str) -> None:
        """A session is there; "" for an address that is told by whoever is connected."""
        if not self.counts:
            return
        client = session.client
        if not address and isinstance(client, ClientInfo):
            address = client.peerhost
        channel = session.channel
        if not address and channel is not None:
            address = channel.edge.peer(channel)[0]
        house = house_of(address)
        self.ended(session.client_id)
        user = session.username
        self._from[session.client_id] = (user, house)
        if user is not None:
            self._by_user[user] = self._by_user.get(user, 0) + 1
        if house:
            self._by_address[house] = self._by_address.get(house, 0) + 1

    def ended(self, client_id: str) -> None:
        """A session is gone."""
        held = self._from.pop(client_id, None)
        if held is None:
            return
        user, house = held
        if user is not None:
            _less(self._by_user, user)
        if house:
            _less(self._by_address, house)


def _less(counts: dict[str, int], name: str) -> None:
    left = counts.get(name, 0) - 1
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)


def fits(pattern: str, client_id: str, username: str | None) -> bool:
    """Whether a client id is as a pattern wants it: `%u` is the user name, `*` any text.

    A pattern with `%u` fits no client without a user name.

    >>> fits("%u-*", "alice-7", "alice")
    True
    >>> fits("%u-*", "bob-7", "alice")
    False
    """
    if "%u" in pattern and not username:
        return False
    parts = pattern.split("*")
    texts = [part.replace("%u", username) if username else part for part in parts]
    if len(texts) == 1:
        return client_id == texts[0]
    first, last = texts[0], texts[-1]
    if len(client_id) < len(first) + len(last):
        return False
    if not client_id.startswith(first) or not client_id.endswith(last):
        return False
    at = len(first)
    end = len(client_id) - len(last)
    for text in texts[1:-1]:
        found = client_id.find(text, at, end)
        if found < 0:
            return False
        at = found + len(text)
    return True
