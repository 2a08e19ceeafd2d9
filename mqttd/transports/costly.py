"""Who costs much to read from: these connections come behind the others, user by user.

    a   b c d e f     each has sent a megabyte of user properties, whose reading takes 40 ms
    x                 the next: a, x, b, c, ...    and those who cost little do not stand here

A turn of the engine is bounded, but a user with 200 such connections filled 200 turns, and whoever
else was readable waited in the same line for 8 seconds. Of whom it is known stands in one line, for
ten seconds. When a turn has much work from others all the same, those of the same users go into a
second one, of *strangers*, which is given as much time: many do so once at the same moment.

Promise: where nobody costs much, nothing is called.
"""

from __future__ import annotations

from typing import Final

from mqttd.net.fair import FairQueue, house_of
from mqttd.session.channel.channel import Channel

__all__ = ["Costly"]

#: Milliseconds since a costly read for which it stands behind: a large packet comes in several.
_KNOWN: Final = 10_000
#: Users of whom it is remembered, until those whose time is over are forgotten.
_USERS: Final = 1024
#: More than there are descriptors: nobody is sent away.
_ALL: Final = 1 << 31


class Costly:
    """Connections that have cost much of late, and those of them that wait to be read."""

    def __init__(self) -> None:
        #: Descriptor -> whose turn it takes, and until when.
        self.known: dict[int, tuple[str, int]] = {}
        #: User -> until when its other connections are strangers. An address is one, too.
        self.users: dict[str, int] = {}
        self.line: FairQueue[int] = FairQueue(_ALL, _ALL)
        self.strangers: FairQueue[int] = FairQueue(_ALL, _ALL)
        #: Nanoseconds that the line took in the turn before.
        self.took: int = 0
        #: Strangers have cost much in the turn before: this one is the line's.
        self.turned: bool = False
        #: Who waits, and since when: whoever else stands in a line is gone.
        self.waiting: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, channel: Channel, now: int) -> None:
        """It has cost much."""
        house = house_of(channel.edge.peer(channel)[0])
        user = _user_of(channel) or house
        until = now + _KNOWN
        self.known[channel.fd] = (user, until)
        if len(self.users) >= _USERS:
            self.users = {name: end for name, end in self.users.items() if end >= now}
        self.users[user] = self.users[house] = until

    def join(self, fd: int, now: int) -> bool:
        """Have it wait where it is one that costs much; whether it waits now."""
        known = self.known.get(fd)
        if known is None:
            return False
        user, until = known
        if until < now:
            del self.known[fd]
            return False
        self._stand(self.line, user, fd, now)
        return True

    def estrange(self, channel: Channel, now: int) -> bool:
        """Have it wait where its user has others that cost much; whether it waits now."""
        if not self.users:
            return False
        user = _user_of(channel) or house_of(channel.edge.peer(channel)[0])
        if self.users.get(user, 0) < now:
            return False
        self._stand(self.strangers, user, channel.fd, now)
        return True

    def next(self, line: FairQueue[int], now: int) -> int:
        """Whose turn it is in one of the two, -1 if he is gone; there must be one.

        To have waited does not count.
        """
        fd = line.next()
        since = self.waiting.pop(fd, -1)
        if since < 0:
            return -1
        known = self.known.get(fd)
        if known is not None:
            self.known[fd] = (known[0], known[1] + now - since)
        return fd

    def gone(self, fd: int) -> None:
        """The descriptor is closed; the next that has its number is somebody else's."""
        self.known.pop(fd, None)
        if self.waiting.pop(fd, -1) >= 0 and not self.waiting:
            self.line = FairQueue(_ALL, _ALL)
            self.strangers = FairQueue(_ALL, _ALL)

    def _stand(self, line: FairQueue[int], user: str, fd: int, now: int) -> None:
        if fd not in self.waiting:
            self.waiting[fd] = now
            line.join(user, fd)


def _user_of(channel: Channel) -> str:
    """Who it says to be; no address looks like it."""
    session = channel.session
    name = None if session is None else session.username
    return "" if name is None else f"user {name}"
