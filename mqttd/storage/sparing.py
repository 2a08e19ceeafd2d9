"""The journal where little room is left: what more may be told, who is answered that it may not.

    measured by the writer, behind group G:   left   [ reserve ][ spare ]
    told since: group, group, the one that is gathered           '-- has_room: does this fit, too?

The disk is looked at now and then, but thousands of filters may come in one turn. So what rows and
records may take there is added up as they are told (`told`), and what is measured behind a group
says up to which sum more may come (`most`). Last words, which nobody can be refused, may have a
quarter of the reserve beyond that; what deletes is not asked.

Promise: sessions and subscriptions that are taken in leave the reserve alone, however many come at
once. A SUBACK that waits when the store fails goes out at once, as a refusal.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.ground.connection import Connection
from mqttd.session.journal import Doubt
from mqttd.storage.blocks import Group, row_cost
from mqttd.storage.ledger import Ledger
from mqttd.storage.releasing import Releasing, Waiting

__all__ = ["BEHIND", "UNLIMITED", "Sparing"]

#: Bytes that wait for the disk, with what writing them takes, beyond which nobody publishes.
BEHIND: Final = 16 << 20
#: Nobody knows of a limit.
UNLIMITED: Final = 1 << 62


class Sparing(Releasing):
    """A journal that knows how much more fits."""

    __slots__ = ("behind", "more", "most", "stuck", "told")

    def __init__(self, ledger: Ledger, since: int) -> None:
        super().__init__(ledger, since)
        #: The disk takes nothing.
        self.stuck: bool = False
        #: As `BEHIND`; less where the reserve is small.
        self.behind: int = BEHIND
        #: Bytes that groups which are closed may take on the disk, ever.
        self.told: int = 0
        #: How many that may become with what is told now, and how much more for last words.
        self.most: int = UNLIMITED
        self.more: int = 0

    def closed(self, group: Group) -> None:
        """A group is closed: what it has brought counts until the disk is looked at behind it."""
        group.spent = group.costs()
        self.told += group.spent
        group.told = self.told

    def has_room(self, size: int, last: bool = False) -> bool:
        """See `Journal.has_room`."""
        if last:
            most = self.most + self.more
        elif self.full:
            return False
        else:
            most = self.most
        return self.told + self.ledger.group.costs() + row_cost(size) <= most

    def takes(self, size: int) -> bool:
        """See `Journal.takes`."""
        return not (self.stuck or self.failing) and self.has_room(size)

    def hold_answer(self, channel: Connection, data: bytes, doubt: Doubt) -> None:
        """See `Journal.hold_answer`."""
        if self.failing:
            doubt.fail()
            return
        self.hold(channel, data)
        for waiting in self._unwritten():
            held = waiting.held
            if held and held[-1][1] is data:
                waiting.doubts.append((data, doubt))
                return

    def fail(self, failing: bool) -> None:
        """See `Releasing.fail`."""
        super().fail(failing)
        if failing:
            for waiting in self._unwritten():
                self._refuse_held(waiting)

    def _unwritten(self) -> list[Waiting]:
        """What waits for groups that are not written."""
        under_way = self._under_way is not None
        return [self._waiting, self._waiting_for] if under_way else [self._waiting]

    def _refuse_held(self, waiting: Waiting) -> None:
        """Answers that wait for a group that cannot be written are refusals, and go out now."""
        doubts, waiting.doubts = waiting.doubts, []
        if not doubts:
            return
        refused = {id(data) for data, _ in doubts}
        waiting.held = [entry for entry in waiting.held if id(entry[1]) not in refused]
        waiting.channels = {channel for channel, _ in waiting.held}
        self._see_held()
        for _, doubt in doubts:
            doubt.fail()
