"""The end that a client brings: it comes behind the answers to what it has sent before.

    SUBSCRIBE, DISCONNECT  -->  will and expiry as it says; it is not read from any more
                                [others take the filter] [promises] [bytes held for the store]
                           <--  SUBACK, then the end
    PUBLISH 1, a fault     <--  PUBACK 1, DISCONNECT with its reason code, the end
    PUBLISH 1, its half of the connection closed  <--  PUBACK 1, the end

A client may write a packet and DISCONNECT at once and wait for the answer, which a broker that
keeps nothing has written by then. What is published for it meanwhile goes out as well. So it does
for who is refused by the end of the connection, and for who says by closing its half that nothing
more comes; one that has gone altogether cannot be told from that before something is written.

Promise: nobody is waited for longer than `PATIENCE`; who is owed nothing ends at once. MQTT 5.0,
3.14.4, 4.13.
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
    """A connection that its client ends, by DISCONNECT, a fault or closing its half of it."""

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
        self.part(0, "client disconnected")

    def input_ended(self, detail: str) -> None:
        """See `Connection.input_ended`."""
        intake = self.intake
        if not self.leaving and (intake is None or not intake.ends(detail)):
            self.part(0, detail)

    def part(self, code: int, detail: str) -> None:
        """See `Connection.part`; we say so in a DISCONNECT where 5.0 has one."""
        if self.leaving or self.state != OPEN:
            self.close(code, detail)
            return
        router = self.router
        self.leaving = True
        self.reason_code = code
        self.close_reason = detail
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
            self.left()

    def left(self) -> None:
        """See `Connection.left`."""
        if self.reason_code:
            self.leaving = False
            self.close(self.reason_code, self.close_reason)
        else:
            self.end(self.close_reason)

    def end(self, detail: str) -> None:
        """See `Connection.end`; who leaves ends by what that was, whatever comes meanwhile."""
        super().end(self.close_reason if self.leaving else detail)
