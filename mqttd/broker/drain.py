"""A node is taken out of service: nobody comes any more, those who are there go at a rate.

    begin --> CONNECT is refused: 0x9C or 0x9D, with the Server Reference if there is one (3.x: 3)
     tick --> so many a second: 5.0 clients DISCONNECT 0x9C or 0x9D with it, others are closed
              nobody is left --> `done`; the door stays shut until `cancel`

What becomes of wills `session.wills_at_stop` says, as when the broker stops; sessions stay where
they are, in this broker's store.

Promise: no more than `rate` go in a second, after a pause of any length no more than half of that
at once.
MQTT 5.0, 4.11 (server redirection), 3.2.2.3.16, 3.14.2.2.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.endings import Overdue
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Disconnect
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.connection import OPEN

__all__ = ["LOOKED_AT", "Drain"]

#: Seconds whose worth of endings one tick may make up for.
_PAUSE: Final = 0.5
#: Sessions that one tick looks at: most clients may be away.
LOOKED_AT: Final = 10_000
_DETAIL: Final = "this node is being drained"


class Drain:
    """The draining of one broker; `done` is called once, when nobody is left.

    It goes on until it is cancelled: a node whose clients have gone lets nobody in, and says so.
    """

    def __init__(self, broker: Broker, done: Callable[[], None]) -> None:
        self.broker = broker
        self.done = done
        #: Told when it begins (True) and is cancelled; whether something is still to go.
        self.told: Callable[[bool], object] = lambda begins: None
        self.waits: Callable[[], bool] = lambda: False
        self.running = False
        #: Nobody is left, and `done` has been told.
        self.over = False
        #: Clients a second.
        self.rate = 0.0
        #: Where they are sent, "" for nowhere.
        self.reference = ""
        self.code = reasons.USE_ANOTHER_SERVER
        #: Clients that were sent away.
        self.ended = 0
        self._ids: list[str] = []
        self._overdue: Overdue | None = None
        self._due = 0.0
        self._at = self._looks = 0

    def begin(self, rate: float, reference: str = "", for_ever: bool = False) -> None:
        """Let nobody in, and send those who are there away; again: at another rate, elsewhere."""
        broker = self.broker
        if not self.running:
            self.ended = 0
            self._due = 0.0
            self._at = broker.now
        if self._overdue is not None:
            self._overdue.stop()
            self._overdue = None
        self.running = True
        self.over = False
        self.rate = rate
        self.reference = reference
        self.code = reasons.SERVER_MOVED if for_ever else reasons.USE_ANOTHER_SERVER
        broker.connecting.connacks.elsewhere = (self.code, reference)
        broker.registry.stopping = True
        broker.alarms.activate("drain", "this node is being drained: it lets nobody in")
        self.told(True)

    def cancel(self) -> bool:
        """Let clients in again; False if none were sent away."""
        if not self.running:
            return False
        self.running = False
        self._ids = []
        self.broker.connecting.connacks.elsewhere = None
        self.broker.registry.stopping = False
        self._overdue = Overdue(self.broker)
        self._overdue.run()
        self.broker.alarms.clear("drain")
        self.told(False)
        return True

    @property
    def left(self) -> int:
        """Clients that are still there."""
        return self.broker.channels

    def tick(self, now: int) -> None:
        """End as many as are due; `now` in milliseconds."""
        if not self.running:
            return
        passed = min((now - self._at) / 1000, _PAUSE)
        self._at = now
        self._due = min(self._due + passed * self.rate, max(1.0, _PAUSE * self.rate))
        self._looks = LOOKED_AT
        while self._due >= 1 and self._end_one():
            self._due -= 1
        self.broker.perform()
        if not self.broker.channels and not self.over and not self.waits():
            self.over = True
            self.done()

    def _end_one(self) -> bool:
        """Send one client away; False if there is none, or it is not found in this tick."""
        broker = self.broker
        again = True
        while self._looks > 0:
            if not self._ids:
                if not again or not broker.attached:
                    return False
                again = False
                self._ids = list(broker.sessions)
                self._ids.reverse()  # who was here first
            self._looks -= 1
            session = broker.sessions.get(self._ids.pop())
            channel = broker.channel_of(session) if session is not None else None
            if channel is not None and channel.state == OPEN:
                self._send_away(channel)
                self.ended += 1
                return True
        return False

    def _send_away(self, channel: Channel) -> None:
        if not channel.v5:
            channel.close(reasons.SERVER_SHUTTING_DOWN, _DETAIL)
            return
        packet = Disconnect(self.code, None)
        if self.reference:
            packet = Disconnect(self.code, {prop.SERVER_REFERENCE: self.reference})
        wire = serialize(packet, 5)
        if len(wire) > channel.takes():
            wire = serialize(Disconnect(self.code, None), 5)
        channel.reason_code = self.code
        channel.send(wire)
        channel.end(_DETAIL)
