"""The part of the engine that reads: what a connection has sent, to its channel.

    small packets         | PPPPPPPPPPPPPP |               one read of up to 64 KiB
    some KiB each         | P  P  P  P | P  P  P | P  P    a few such reads, while each is full
    larger than a read    | P ................... |        one, to the buffer that it stays in

What a turn costs whatever it brings (the poll, a write of what goes on and one of what is answered,
the peers that are woken) is much beside a few large packets, little beside hundreds of small ones:
with one read a turn packets of 20 KB cost twice as much (docs/design/transports.md).

Promise: in a turn a connection has one read, or some more with so few packets that nobody waits for
long. What they cost is counted (`taken`, `worked`).
"""

from __future__ import annotations

import os
import select
from typing import Final

from mqttd.session.channel.channel import NEW, OPEN, Channel, Server
from mqttd.session.ground.unfinished import READ, Unfinished
from mqttd.transports.accepting import MUCH, Accepting, Later
from mqttd.transports.layered_edge import os_reason, read_from
from mqttd.transports.lobby import House
from mqttd.transports.ports import Carrier

__all__ = ["Reading"]

#: Bytes that a unit of work counts for in `taken`, as a power of two: a turn has 65,536 units.
_WORK: Final = 6
#: And bytes that it puts into outputs: a turn has 64 MiB.
_POURED: Final = 4
#: Bytes that a connection's ordinary reads have of a turn, no more than a write takes with what was
#: unfinished (`GATHER`); and packets, from which on there is no other read.
_IN_A_TURN: Final = 3 * READ
_FEW: Final = 64


class Reading(Accepting):
    """The part of the engine that reads."""

    def __init__(self, server: Server, epoll: select.epoll, later: Later | None) -> None:
        super().__init__(server, epoll, later)
        #: Bytes that aliases had stood for when the last read began: they count as read.
        self.named: int = 0

    def let_work(self, edge: Carrier, fd: int, event: int) -> None:
        """What the poll has found for one with layers."""
        self._begin()
        edge.ready(event)
        self._weigh(edge.channel, fd)

    def read(self, channel: Channel, fd: int, most: int = READ) -> None:
        """Feed the channel what has come, up to `most` bytes a read but for large packets."""
        rest = channel.rest
        if rest is not None and rest.direct():
            self._read_into(channel, fd, rest)
            return
        new = channel.state == NEW
        metrics = self.server.metrics
        enough = metrics.packets_received + _FEW
        much = self.worked + MUCH
        asked = channel.at_once if channel.at_once else most
        left = _IN_A_TURN if most == READ else most
        while True:
            data = read_from(channel, fd, asked)
            if len(data) < asked:
                channel.at_once = 0  # it sends other packets, or more slowly
            if not data:
                return
            self.taken += len(data)
            self._begin()
            try:
                channel.feed(data)
            except Exception as error:  # a fault of ours must end this connection only
                self.server.crashed(channel, error)
            self._weigh(channel, fd)
            if new:
                new = False
                house = channel.io
                if isinstance(house, House):
                    house.lobby.heard(channel, house, self.server.now)
            left -= asked
            if len(data) < asked or left < asked or metrics.packets_received >= enough:
                return
            if channel.state != OPEN or channel.paused or self.worked >= much:
                return
            rest = channel.rest
            if rest is not None and rest.direct():
                return

    def _read_into(self, channel: Channel, fd: int, rest: Unfinished) -> None:
        """One read of a large packet, to where its bytes stay."""
        size = rest.size
        room = rest.room()
        self.taken += rest.size - size
        try:
            count = os.readv(fd, (room,))
        except BlockingIOError:
            return
        except OSError as error:
            channel.end(os_reason(error))
            return
        finally:
            room.release()
        if not count:
            channel.input_ended("closed by the client")
            return
        self.taken += count
        self._begin()
        try:
            channel.came(count)
        except Exception as error:  # as above
            self.server.crashed(channel, error)
        self._weigh(channel, fd)

    def _begin(self) -> None:
        """Count the work of one read from here."""
        topics = self.server.topics
        topics.work = 0
        topics.poured = 0
        self.named = topics.named

    def _weigh(self, channel: Channel, fd: int) -> None:
        """What it counts for as bytes that were read, and whether it is much."""
        topics = self.server.topics
        self.taken += topics.named - self.named
        work = (topics.work << _WORK) + (topics.poured >> _POURED)
        self.worked += work
        if work >= MUCH and channel.fd == fd:
            self.costly.add(channel, self.server.now)
