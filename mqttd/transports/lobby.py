"""Those who have connected to one listener, by house; and who has to go when there are too many.

    accept --> admits? --> enter --> heard, heard --> CONNECT is whole --> left
                 | no: the house has its connections     |
                 v                                       '-- until then a stranger
              refused, unless a stranger of its own makes room

A *house* is an address, or the /64 of one; all peers of a Unix socket are one (`mqttd.net.fair`).
Behind a proxy it is the address that the PROXY header names, and none before that has come.

A stranger that has said nothing for `SILENT` milliseconds makes room: of its house when that has
too many strangers or connections, of any when the listener is full. Whoever waits for us, or has
sent what we have not read, is not silent. So a storm of clients that all speak loses nobody. A
proxy sends its header at once: without one it is silent much sooner (`UNNAMED`).

Promise: to enter, to be heard and to leave cost a few look-ups; who makes room is found by looking
at no more than `_LOOKED_AT` strangers, those heard longest ago first.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Final

from mqttd.net.fair import house_of
from mqttd.session.channel.channel import CLOSED, NEW, Channel

__all__ = ["SILENT", "UNNAMED", "House", "Lobby"]

#: Milliseconds without a byte after which a stranger makes room for somebody else.
SILENT: Final = 1000
#: The same for a proxy that has not said for whom it comes.
UNNAMED: Final = 100

_LOOKED_AT: Final = 64


class House:
    """Whom one address has connected: `strangers` of them have sent no whole CONNECT yet."""

    __slots__ = ("connections", "handshakes", "lobby", "name", "strangers")

    def __init__(self, lobby: Lobby, name: str) -> None:
        self.lobby = lobby
        self.name = name
        self.connections: int = 0
        self.strangers: int = 0
        #: Places of TLS handshakes that it holds.
        self.handshakes: int = 0


class Lobby:
    """The houses of one listener, and its strangers.

    `each` is the most connections of a house, `strangers_each` of those the most strangers (0: no
    limit). The house called "" has no limits: that of proxies who have not said for whom they come.
    """

    __slots__ = ("each", "houses", "strangers", "strangers_each")

    def __init__(self, each: int = 0, strangers_each: int = 0) -> None:
        self.each = each
        self.strangers_each = strangers_each
        self.houses: dict[str, House] = {}
        #: When each of them was heard last (milliseconds), of the longest ago first; and its house.
        self.strangers: dict[Channel, tuple[int, House]] = {}

    def admits(self, host: str, now: int) -> bool:
        """Whether one more of this address may connect; somebody silent may have gone for it."""
        if not self.each and not self.strangers_each:
            return True
        name = house_of(host)
        house = self.houses.get(name)
        if house is None or not name:
            return True
        if self.each and house.connections >= self.each:
            return self.make_room(name, now)
        if self.strangers_each and house.strangers >= self.strangers_each:
            # Where nobody is silent this is no attack: the time that CONNECT may take is the bound.
            self.make_room(name, now)
        return True

    def enter(self, channel: Channel, host: str, now: int) -> House:
        """A connection of this address is there."""
        house = self._house(house_of(host))
        house.connections += 1
        house.strangers += 1
        self.strangers[channel] = (now, house)
        return house

    def heard(self, channel: Channel, house: House, now: int) -> None:
        """A stranger has sent something; perhaps all of its CONNECT."""
        strangers = self.strangers
        if channel not in strangers:
            return
        del strangers[channel]
        if channel.state == NEW:
            strangers[channel] = (now, house)
        else:
            house.strangers -= 1

    def move(self, channel: Channel, house: House, host: str, now: int) -> House | None:
        """A proxy has told the address: the house it belongs to; None if that is full."""
        if not self.admits(host, now):
            return None
        self.left(channel, house)
        return self.enter(channel, host, now)

    def left(self, channel: Channel, house: House) -> None:
        """A connection is gone."""
        if channel in self.strangers:
            del self.strangers[channel]
            house.strangers -= 1
        house.connections -= 1
        if house.connections <= 0 and not house.handshakes:
            self.houses.pop(house.name, None)

    def make_room(self, name: str, now: int) -> bool:
        """End the stranger of a house ("": of any) that is silent for longest, if one is."""
        silent = self._silent(name, now)
        if silent is None:
            return False
        since, house = self.strangers.pop(silent)
        house.strangers -= 1
        server = silent.server
        server.metrics.strangers_ended += 1
        seconds = (now - since) // 1000
        server.refused(silent, f"silent for {seconds} s, and others want to connect")
        # Its descriptor goes at the end of the turn: nobody is to look at it again.
        silent.end("made room for others")
        return True

    def _silent(self, name: str, now: int) -> Channel | None:
        """Who is silent for longest; who is found to have spoken is not looked at again so soon."""
        found: Channel | None = None
        spoken: list[tuple[Channel, House]] = []
        looked = 0
        for channel, (since, house) in self.strangers.items():
            looked += 1
            silent = now - since
            if silent < UNNAMED or looked > _LOOKED_AT:
                break
            if silent < SILENT and house.name:
                continue
            if channel.state == CLOSED or (name and house.name != name):
                continue
            if channel.state == NEW and not channel.paused:
                if not _has_sent(channel.fd):
                    found = channel
                    break
                spoken.append((channel, house))
        for channel, house in spoken:
            self.heard(channel, house, now)
        return found

    def can_make_room(self, now: int) -> bool:
        """Whether a stranger is silent."""
        looked = 0
        for since, house in self.strangers.values():
            looked += 1
            silent = now - since
            if silent >= SILENT or (silent >= UNNAMED and not house.name):
                return True
            if silent < UNNAMED or looked > _LOOKED_AT:
                return False
        return False

    def _house(self, name: str) -> House:
        house = self.houses.get(name)
        if house is None:
            house = self.houses[name] = House(self, name)
        return house


def _has_sent(fd: int) -> bool:
    """Whether the kernel has bytes of this peer that nobody has read."""
    if fd < 0:
        return False
    try:
        told = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return False
    return int(struct.unpack("i", told)[0]) > 0
