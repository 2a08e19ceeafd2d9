"""What the store keeps of a session that has left this node, until another node has it.

    hand_over --> Remains --DONE, or it is here again--> ended in the journal
    a `Catcher` in its place tells the journal what it catches, under the same owner

So a node that is killed while a session is on its way has that in its store, and in its stream
where sessions are replicated: itself, begun anew, or its heir sends it to who has claimed it. What
was caught is promised as what any session has queued.
"""

from __future__ import annotations

from mqttd.session.session import Session

__all__ = ["Remains"]


class Remains:
    """Those of `session`, which tells the journal nothing from now on."""

    def __init__(self, session: Session) -> None:
        self.journal = session.server.journal
        self.owner = session.owner
        self._numbers: list[int] = []
        self.take(session)

    def take(self, session: Session) -> None:
        """What is kept of this one belongs to it, too: the end of that is no end of it."""
        numbers, mqueue = session.numbers, session.mqueue
        if numbers is not None:
            self._numbers.extend(numbers.inflight.values())
            self._numbers.extend((numbers.incoming or {}).values())
        if mqueue is not None:
            self._numbers.extend(mqueue.numbers())
            mqueue.unnumber()
        session.numbers = None
        session.owner = 0

    def end(self) -> None:
        """It is where it belongs: nothing of it need be kept here."""
        if self.owner:
            self.journal.ended(self.owner)
            for number in self._numbers:
                self.journal.lost(number)
        self.owner = 0
        self._numbers = []
