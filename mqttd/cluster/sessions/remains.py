"""What is kept of a session that leaves this node, until another node has it.

    hand_over --> Remains of our store --DONE, or it is here again--> ended in the journal
    a `Catcher` in its place tells the journal what it catches, under the same owner

So a node that is killed while a session is on its way has that in its store, and in its stream
where sessions are replicated: itself, begun anew, or its heir sends it to who has claimed it. What
was caught is promised as what any session has queued.

What goes on before it was entered here is kept by the node that it has come from: `end` tells that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqttd.cluster.sessions.left import Left
from mqttd.session.ground.message import Message
from mqttd.session.session import Session

__all__ = ["Remains"]


class Remains:
    """Kept by our journal as this `owner`, or elsewhere (0).

    ended: told once, when they need be kept no longer, with the journal's numbers of records.
    """

    def __init__(self, ended: Callable[[list[int]], object], owner: int = 0) -> None:
        self.owner = owner
        self._ended: Callable[[list[int]], object] | None = ended
        self._numbers: list[int] = []
        #: Tells the journal of the will of its client, and whether it has one.
        self._will: Callable[[Message | None, int], object] | None = None
        self._willed = False
        #: Has our store forget to whom it goes.
        self._left: Callable[[], object] = lambda: None

    @classmethod
    def of(cls, session: Session) -> Remains:
        """Those of a session that our journal keeps; it tells that nothing from now on."""
        server, owner = session.server, session.owner
        journal = server.journal
        client_id, username = session.client_id, session.username

        def ended(numbers: list[int]) -> None:
            journal.ended(owner)
            if numbers:
                server.lose_later(numbers)

        def will(will: Message | None, delay_seconds: int) -> None:
            journal.will(client_id, username, will, delay_seconds)

        made = cls(ended, owner)
        made._will = will
        made.take(session)
        return made

    def leaves_for(self, left: Left, client_id: str, to: str, revision: int) -> None:
        """It is on its way to who has claimed it in this revision: our store knows that."""
        if self.owner:
            left.goes(client_id, to, revision)
            self._left = partial(left.over, client_id)

    def keep(self, will: Message, delay_seconds: int) -> None:
        """The will of its client, which is away, goes along, and is kept as long."""
        if self._will is not None:
            self._will(will, delay_seconds)
            self._willed = True

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
        """It is where it belongs."""
        ended, self._ended = self._ended, None
        self.owner = 0
        if self._will is not None and self._willed:
            self._will(None, 0)
            self._willed = False
        if ended is not None:
            self._left()
            ended(self._numbers)
