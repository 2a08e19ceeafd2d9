"""How much of what a link brings is handled, and when the other end is told: see `Flight`.

    bytes --> came --> [ left, of both lanes: what a turn had no time for ] --> handled --> TAKEN

Promise: it is told every `TOLD` bytes and after each turn that was too short for the work, but not
more often than every `gap` ms; and as soon as all before a question (`TELL`) is handled.
"""

from __future__ import annotations

from mqttd.mesh.flight import TOLD

__all__ = ["Handled"]


class Handled:
    """The bytes that one link has brought."""

    __slots__ = ("asked", "beside", "came", "gap", "left", "told", "told_at")

    def __init__(self) -> None:
        self.came: int = 0
        #: Those that are not handled: of the link, of its other lane (`mqttd.mesh.lane`).
        self.left: int = 0
        self.beside: int = 0
        #: Those that the other end knows to be handled, and wants to know of; 0: it has not asked.
        self.told: int = 0
        self.asked: int = 0
        #: When it was told last, and milliseconds for which it is not told again unasked.
        self.told_at: int = 0
        self.gap: int = 0

    def brought(self, size: int) -> None:
        """So many have come."""
        self.came += size
        self.left += size

    def ask(self, behind: int) -> None:
        """The other end asks; so many have come behind that."""
        self.asked = self.came - behind

    def due(self, busy: bool, now: int) -> int:
        """What to tell it now, 0: nothing; `busy`: what is left was too much for a turn."""
        handled = self.came - self.left - self.beside
        if not 0 < self.asked <= handled:
            if handled < self.told + (1 if busy else TOLD):
                return 0
            if now - self.told_at < self.gap:
                return 0
        if handled >= self.asked:
            self.asked = 0
        self.told = handled
        self.told_at = now
        return handled
