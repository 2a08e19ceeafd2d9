"""Stands for a session while it is on its way from one node to another.

    publisher at X --before--> the old node    keeps what X has sent before its mark
                   --mark----> both
                   --behind--> the new node    keeps what X has sent behind its mark

Both nodes have the session's filters meanwhile, so that each message comes to one of them at least;
the mark of who sent it says which of the two keeps it (`mqttd.cluster.moves`). What a shared group
has given to one is for that one.

Promise: within the limits of a queue. What the old node keeps is told to its store, as part of what
that has of the session (`mqttd.cluster.remains`). MQTT 5.0, 4.1, 4.3.
"""

from __future__ import annotations

from mqttd.cluster.remains import Remains
from mqttd.mesh.peer import Choice
from mqttd.session.message import Delivery
from mqttd.session.session import Session
from mqttd.session.state import Keeper

__all__ = ["Catcher"]


class Catcher(Session):
    """Keeps what comes for `client_id`; `behind`: what comes behind the marks, else before them.

    `choice` knows the link that has brought what is handled now, 0 for what this node publishes.
    """

    __slots__ = ("behind", "choice", "marked", "remains")

    def __init__(
        self,
        server: Keeper,
        client_id: str,
        username: str | None,
        choice: Choice,
        behind: bool,
    ) -> None:
        super().__init__(server, client_id, username)
        self.choice = choice
        self.behind = behind
        #: Links whose marks have come.
        self.marked: set[int] = set()
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
        self.marked = set()

    def leave_journal(self) -> None:
        """Its end is not the end of what it belongs to."""
        if self.remains is not None:
            self.remains.take(self)
        super().leave_journal()

    def enqueue(self, entry: object) -> None:
        """Keep it if it is for here."""
        behind = self.choice.link in self.marked
        if behind is self.behind or (isinstance(entry, Delivery) and entry.group is not None):
            super().enqueue(entry)
