"""A packet of filters, SUBSCRIBE or UNSUBSCRIBE, and how it is seen to: some of them in each turn.

    filters of a slice --> change: hooks are asked --> one: each of them --> the next slice | answer

Promise: what the client sends behind it waits until it is answered, unless only other processes are
waited for. A store has filters of thousands in several groups, between which those of others go.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.ground.turns import Job
from mqttd.broker.publish.publishing import Publishing
from mqttd.codec.packet_types import UNSUBSCRIBE
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import MqttError
from mqttd.session.channel.channel import OPEN, Channel
from mqttd.session.session import Session

__all__ = ["SLICE", "Asked"]

#: Filters of one packet that are served in a turn, and the units of work of each.
SLICE: Final = 200
_FILTER: Final = 20


class Asked(Job):
    """A packet of filters: the first slice at once, what is left in later turns."""

    def __init__(
        self,
        broker: Publishing,
        channel: Channel,
        session: Session,
        packet_id: int,
        count: int,
    ) -> None:
        self.broker = broker
        self.channel = channel
        self.session = session
        self.packet_id = packet_id
        self.count = count
        #: Of the packet, for the log.
        self.packet_type: int = UNSUBSCRIBE
        self.at: int = 0
        self.codes: list[int] = []
        self.properties: Properties | None = None
        #: The client waits for this.
        self.working: bool = False

    def change(self, end: int) -> None:
        """Ask hooks about the filters from `at` to `end`: all of a packet are too many for a turn.

        One may change filters and QoS, never how many codes the client gets.
        """
        raise NotImplementedError

    def one(self) -> None:
        """See to the filter at `at`."""
        raise NotImplementedError

    def answer(self) -> None:
        """All have been seen to."""
        raise NotImplementedError

    def begin(self) -> None:
        """The packet has come; its client waits if not all of it is for this turn."""
        if not self._some():
            self.work()
            self._go_on()
        elif not self.waits():
            self.answer()

    def _go_on(self) -> None:
        self.broker.turns.add(self)

    def work(self) -> None:
        """Have the client wait until this is done."""
        if not self.working:
            self.working = True
            self.channel.begin_work()

    def _rest(self) -> None:
        if self.working:
            self.working = False
            self.channel.end_work()

    def waits(self) -> bool:
        """Whether the answer has to wait; it is `finish` that gives it then."""
        return False

    def finish(self) -> None:
        """The answer need not wait any longer."""
        channel = self.channel
        if channel.state != OPEN or channel.session is not self.session:
            return
        try:
            self.answer()
            self._rest()
        except MqttError as error:
            channel.fail(error, self.packet_type)
        except Exception as error:  # as in the edges: it must end this connection only
            self.broker.crashed(channel, error)

    def slice(self) -> bool:
        """Go on, as long as the client is there."""
        channel = self.channel
        if channel.state != OPEN or channel.session is not self.session:
            return False
        journal = self.broker.journal
        if self.session.owner and journal.has_enough():
            journal.when_parted(self._go_on)
            return False
        try:
            if not self._some():
                return True
            if not self.waits():
                self.finish()
        except MqttError as error:
            channel.fail(error, self.packet_type)
            return False
        except Exception as error:  # as in the edges: it must end this connection only
            self.broker.crashed(channel, error)
            return False
        return False

    def _some(self) -> bool:
        """See to as many as a slice has; whether all are seen to."""
        end = self.at + SLICE
        if end > self.count:
            end = self.count
        self.broker.router.work += _FILTER * (end - self.at)
        self.change(end)
        while self.at < end:
            self.one()
            self.at += 1
        return self.at == self.count
