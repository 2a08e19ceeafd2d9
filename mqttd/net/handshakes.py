"""TLS on Twisted's transports: so many steps of handshakes a turn, house by house.

    bytes before the end of a handshake --> fewer than `TURN` steps in this turn? --> OpenSSL
                                              '-- no: not read from, until it is its house's turn

A step is about a millisecond of CPU in the loop that serves MQTT, and hundreds of hellos may come
in one turn. Who waits and says nothing more is ended like any other, by who has the door.

Promise: a turn takes `TURN` steps however many come; a house that stands in line keeps no other
waiting longer than one step of its own for each of theirs.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.protocol import connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from mqttd.net.fair import FairQueue, house_of
from mqttd.net.records import Records

__all__ = ["TURN", "Handshakes"]

#: Steps in a turn.
TURN: Final = 4


class Handshakes(TLSMemoryBIOFactory):
    """TLS with `options` for a factory that lets in `most` connections at most."""

    noisy = False

    def __init__(self, options: Any, wrapped: Any, reactor: Any, most: int) -> None:
        make: Any = super().__init__
        make(options, False, wrapped, reactor)
        self.protocol = _Records
        self.reactor = reactor
        self._waiting: FairQueue[_Records] = FairQueue(most, most)
        #: In this turn.
        self._steps = 0

    def may_step(self, records: _Records) -> bool:
        """Whether a step may be made at once; if not, `records` goes on in a later turn."""
        if self._steps < TURN and not len(self._waiting):
            self._count()
            return True
        gone = self._waiting.join(house_of(records.transport.getPeer().host), records)
        if gone is not None:
            gone.abortConnection()  # type: ignore[no-untyped-call]
        return False

    def _count(self) -> None:
        if not self._steps:
            self.reactor.callLater(0, self._next_turn)
        self._steps += 1

    def _next_turn(self) -> None:
        self._steps = 0
        while self._steps < TURN and len(self._waiting):
            following = self._waiting.next()
            if following.connected:
                self._count()
                following.step()


class _Records(Records):
    """One connection."""

    #: What came, while it is not its turn.
    held = b""
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        """Bytes of the peer."""
        factory: Any = self.factory
        if self.held:
            self.held += data
        elif self._handshakeDone or factory.may_step(self):
            super().dataReceived(data)  # type: ignore[no-untyped-call]
        else:
            self.held = data
            self.transport.pauseProducing()

    def step(self) -> None:
        """It is its turn."""
        held, self.held = self.held, b""
        self.transport.resumeProducing()
        super().dataReceived(held)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """It is gone; who waits in line then has no turn."""
        self.held = b""
        super().connectionLost(reason)
