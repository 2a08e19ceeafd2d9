"""DISCONNECT: what the client says with it holds at once, the end comes behind its answers.

    SUBSCRIBE, DISCONNECT  -->  will and expiry as it says; it is not read from any more
                                [others take the filter] [promises] [bytes held for the store]
                           <--  SUBACK, then the end

A client may write a packet and DISCONNECT at once and wait for the answer, which a broker that
keeps
nothing has written by then. What is published for it meanwhile goes out as well.

Promise: nobody is waited for longer than `PATIENCE`; who is owed nothing ends at once. MQTT 5.0,
3.14.4.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Disconnect
from mqttd.codec.reasons import ProtocolViolation
from mqttd.session.channel.framing import Framing
from mqttd.session.ground.connection import OPEN

__all__ = ["PATIENCE", "Leaving"]

#: Milliseconds in which answers have to be there.
PATIENCE: Final = 5_000


class Leaving(Framing):
    """A connection that its client ends."""

    __slots__ = ()

    def take_disconnect(self, packet: Disconnect) -> None:
        """The client is going: see to its session and its will, answer what it has asked, end."""
        session = self.session
        assert session is not None
        router = self.router
        if packet.properties is not None:
            expiry = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
            if isinstance(expiry, int):
                if session.expiry_interval == 0 and expiry != 0:
                    raise ProtocolViolation("session expiry raised from 0 at DISCONNECT")
                maximum = router.settings.max_expiry_interval_seconds
                if expiry:
                    session.set_expiry(expiry if expiry < maximum else maximum)
                else:
                    session.end_with_connection()
        if packet.reason_code == reasons.SUCCESS:
            session.set_will(None, 0)
        self.leaving = True
        self.close_reason = "client disconnected"
        self.leave()
        if self.state == OPEN:
            self.begin_work()  # for good: nothing behind it is read
            router.wheel.schedule(self, router.now + PATIENCE)

    def leave(self) -> None:
        """See `Connection.leave`."""
        journal = self.router.journal
        if self.state != OPEN or self.router.owes(self):
            return
        if self.promises is not None and len(self.promises):
            return
        if journal.holding and journal.holds(self):
            journal.hold(self, b"")
        else:
            self.end(self.close_reason)

    def end(self, detail: str) -> None:
        """See `Connection.end`; who has said DISCONNECT ends by that, whatever comes behind it."""
        super().end(self.close_reason if self.leaving else detail)
