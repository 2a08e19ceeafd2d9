"""What a store has as a whole keeps its group open; who would keep it open next waits in line.

    fan of QoS 2, estate --enter--> the group is open --leave--> closed --> the first of the line
    PUBLISH of another fan --stops--> line

The acknowledgements of all others whose messages are kept wait for that group. Messages that
overlap would never let it close: 16 publishers of 15 bytes at a time to 20,000 groups had everybody
wait for 1.1 s. What waits has not been taken from what its publisher has sent, so nothing of it is
in the store, and nobody else waits for it.

Promise: of messages that have to be kept as a whole the next one begins in another group than the
one before; those of one publisher keep their order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.ground.ground import Ground
from mqttd.broker.ground.turns import Job
from mqttd.session.channel.channel import OPEN, Channel

__all__ = ["Gate"]

#: Those in line who are gone are looked for when it is so long, and twice as long again.
_LONG: Final = 1000


class Gate(Job):
    """That of one broker."""

    def __init__(self, broker: Ground) -> None:
        self.broker = broker
        #: How many things are under way of which the store has all or nothing.
        self.held: int = 0
        self.line: deque[Channel] = deque()
        #: Who has waited, and begins now.
        self.next: Channel | None = None
        #: It is going to be opened.
        self.soon: bool = False
        self.long: int = _LONG

    def enter(self) -> None:
        """What is told from now on belongs together, with what this turn has brought."""
        self.held += 1
        self.broker.journal.whole = True

    def leave(self) -> None:
        """All of one thing that belongs together is told."""
        self.held -= 1
        if self.held:
            return
        journal = self.broker.journal
        journal.end_whole()
        if self.line and not self.soon:
            self.soon = True
            journal.when_parted(self._parted)

    def stops(self, channel: Channel) -> bool:
        """Whether a message that would keep the group open waits, with all that is behind it."""
        if not (self.held and self.broker.journal.grouped):
            return False
        if channel is self.next:
            self.next = None
            return False
        if len(self.line) >= self.long:
            self.line = deque([one for one in self.line if one.state == OPEN])
            self.long = max(2 * len(self.line), _LONG)
        self.line.append(channel)
        channel.begin_work()
        self.broker.metrics.packets_received -= 1  # it is counted again when it goes on
        return True

    def _parted(self) -> None:
        self.broker.turns.add(self)

    def slice(self) -> bool:
        """See `Job.slice`: the first goes on, and the next one if the group is not open for it."""
        if self.held or not self.line:
            self.soon = False
            return False
        self.next = self.line.popleft()
        self.broker.end_work_later(self.next)
        return True
