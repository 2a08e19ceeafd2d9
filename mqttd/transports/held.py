"""Clients that are not read from for a while, whoever else is served.

a turn begins --holds?--> what is readable of clients stays in the kernel, nobody is accepted
"""

from __future__ import annotations

import select
from typing import Final, Protocol

from mqttd.transports.accepting import Accepting

__all__ = ["Holder", "but_clients"]

#: Seconds of rest in a turn meanwhile: what the kernel keeps it says in each.
_REST: Final = 0.001


class Holder(Protocol):
    """Says whether clients are to be read from."""

    def holds(self) -> bool:
        """Asked in each turn, before anything is read."""


def but_clients(engine: Accepting, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """These events without those of clients, and of who would be one."""
    channels = engine.channels.by_fd
    select.select((), (), (), _REST)  # time.sleep fails under libfaketime when late
    return [
        (fd, event)
        for fd, event in events
        if not (fd < len(channels) and channels[fd] is not None)
        and fd not in engine.layered
        and fd not in engine.ports
    ]
