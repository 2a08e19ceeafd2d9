"""A session with the will of its client, which the journal keeps as far as there is room.

MQTT 5.0, 3.1.2.5.
"""

from __future__ import annotations

from mqttd.session.ground.account import ROW
from mqttd.session.ground.message import Message
from mqttd.session.state import State

__all__ = ["Willed"]


class Willed(State):
    """A session whose client may have a will."""

    __slots__ = ()

    def set_will(self, will: Message | None, delay_seconds: int) -> None:
        """What is published when the connection or the session ends, and how long after it.

        One for which the journal has no room is known here alone.
        """
        if will is not self.will:
            journal, size = self.server.journal, 0
            if will is not None and journal.has_room(will.weight(), True):
                size = ROW + will.weight()
            journal.will(self.client_id, self.username, will if size else None, delay_seconds)
            self.enter_rows(size - self.willed)
            self.willed = size
        self._weigh_will(will, self.will)
        self.will = will
        self.will_delay = delay_seconds
        if self.server.will_changed is not None:
            self.server.will_changed(self.client_id)

    def take_will(self) -> Message | None:
        """The will, which is gone then."""
        will = self.will
        if will is not None:
            self.set_will(None, 0)
        return will
