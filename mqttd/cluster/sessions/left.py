"""Which sessions of our store are on their way elsewhere: to whom, and since which revision.

    it leaves --> goes --DONE, or it is here again--> over
    killed meanwhile --> the store puts it back as a session; by etcd it is
        ours, of nobody                --> so it is
        ours, of another               --> it was to come back: it leaves again, and is asked for
        another's, in that revision    --> it leaves again, to that one
        another's, of us, in a later   --> it was to come back before that: as if it was ours

What it was to come back with is later than what the store has, and who would send it does not know
that its taker was killed: `Amends.leave_again`.

Promise: a row in the group that says what becomes of the session; what there is no room for is not
noted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.drawers import Drawer
from mqttd.mesh.frames import number_of
from mqttd.types import StoreFull

__all__ = ["LEFT", "Left", "left_of"]

#: The drawer of it, by client ids; and what it may weigh.
LEFT: Final = "$left"
_WEIGHT: Final = 64 << 20


class Left:
    """Those of one node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _drawer(self) -> Drawer:
        return self._broker.drawers.open(LEFT, _WEIGHT)

    def goes(self, client_id: str, to: str, revision: int) -> None:
        """It is on its way to who has claimed it in this revision."""
        with suppress(StoreFull, ValueError):
            self._drawer().put(client_id, revision.to_bytes(8, "big") + to.encode())

    def over(self, client_id: str) -> None:
        """It is there, or here again."""
        if LEFT in self._broker.drawers.drawers:
            self._drawer().delete(client_id)

    def of(self, client_id: str) -> tuple[str, int] | None:
        """To whom, and since when."""
        found = self._drawer().get(client_id) if LEFT in self._broker.drawers.drawers else None
        return None if found is None else left_of(found)


def left_of(value: bytes) -> tuple[str, int]:
    """What is noted of one."""
    return value[8:].decode(), number_of(value)
