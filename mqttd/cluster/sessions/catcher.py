"""Stands for a session while it is on its way from one node to another.

    publisher at X --before--> the old node    keeps what X has sent before its mark
                   --mark----> both
                   --behind--> the new node    keeps what X has sent behind its mark

Both nodes have the session's filters meanwhile, so that each message comes to one of them at least;
the mark of who sent it says which of the two keeps it (`mqttd.cluster.sessions.moves`). What a
shared group has given to one is for that one.

Promise: within the limits of a queue. What the old node keeps is told to its store, as part of what
that has of the session (`mqttd.cluster.sessions.remains`). MQTT 5.0, 4.1, 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.publish.fans import Fans
from mqttd.cluster.sessions.remains import Remains
from mqttd.mesh.peer import Choice
from mqttd.session.ground.message import Delivery
from mqttd.session.session import Session
from mqttd.session.state import Keeper

__all__ = ["Catcher"]


class Marks:
    """The marks that have come, by links.

    `choice` knows the link that has brought what is handled now, 0 for what this node publishes. A
    message to thousands, which is handed out in many turns (`fans`), is before a mark that comes
    meanwhile, and the mark counts when all have it.
    """

    def __init__(self, choice: Choice, fans: Fans) -> None:
        self.choice = choice
        self.fans = fans
        #: Links whose marks count.
        self.settled: set[int] = set()
        #: All that have come -> the last message to thousands before it.
        self._last: dict[int, int] = {}

    def add(self, link: int, then: Callable[[], object] = lambda: None) -> None:
        """One has come; `then` is called when it counts."""
        if link not in self._last:
            self._last[link] = self.fans.number
            self.fans.after_all(lambda: self._settle(link, then))
        elif link in self.settled:
            then()

    def _settle(self, link: int, then: Callable[[], object]) -> None:
        self.settled.add(link)
        then()

    def are_passed(self) -> bool:
        """Whether what is handled now is behind the mark of who has sent it."""
        fan = self.fans.current
        if fan is None:
            return self.choice.link in self._last
        return fan.number > self._last.get(fan.link, fan.number)


class Catcher(Session):
    """Keeps what comes for `client_id`; `behind`: what comes behind the marks, else before them."""

    __slots__ = ("behind", "marks", "remains")

    def __init__(
        self,
        server: Keeper,
        client_id: str,
        username: str | None,
        choice: Choice,
        fans: Fans,
        behind: bool,
    ) -> None:
        super().__init__(server, client_id, username)
        self.marks = Marks(choice, fans)
        self.behind = behind
        self.remains: Remains | None = None
        self.speak(True)

    def belongs_to(self, remains: Remains | None) -> None:
        """What it catches from now on is kept with these."""
        if remains is not None:
            self.remains = remains
            self.owner = remains.owner

    def keeps_all(self) -> None:
        """From now on marks part nothing."""
        self.behind = False
        self.marks = Marks(self.marks.choice, self.marks.fans)

    def leave_journal(self) -> None:
        """Its end is not the end of what it belongs to."""
        if self.remains is not None:
            self.remains.take(self)
        super().leave_journal()

    def enqueue(self, entry: object) -> None:
        """Keep it if it is for here; who has come in its place gets it once it is gone."""
        behind = self.marks.are_passed()
        if behind is self.behind or (isinstance(entry, Delivery) and entry.group is not None):
            super().enqueue(entry)
