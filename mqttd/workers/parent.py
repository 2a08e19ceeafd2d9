"""A broker that another process has started and keeps: it says how it is, and ends with its parent.

    MQTTD_PARENT=2 --> the second of several; its channel is a descriptor (`mqttd.workers.control`)
    ready, failed, once a second alive --> parent          the end of the channel --> our end
                                              '--> ways to the others (`mqttd.workers.machine`)

Promise: nothing of it is there in a process that nobody has started so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from mqttd.workers.control import Control, stop
from mqttd.workers.place import PARENT
from mqttd.workers.spare import CHANNEL

__all__ = ["Parent", "parent_of"]

#: Seconds between two signs of life.
_ALIVE: Final = 1.0


def parent_of(environ: Mapping[str, str], reactor: Any) -> Parent | None:
    """Who has started this process, as its variables say; None: nobody who waits for its word."""
    number = environ.get(PARENT)
    return None if number is None else Parent(int(number), CHANNEL, reactor)


class Parent:
    """The parent of this process, which is its child `number`; `channel` is a descriptor."""

    def __init__(self, number: int, channel: int, reactor: Any) -> None:
        self.number = number
        self.reactor = reactor
        #: Gets what it says, with descriptors.
        self.told: Callable[[dict[str, Any], list[int]], object] = lambda message, fds: None
        self.control = Control(
            socket.socket(fileno=channel), reactor,
            lambda message, fds: self.told(message, fds), self._orphaned,
        )  # fmt: skip
        self._told = 0.0

    def start(self) -> None:
        """The service starts."""
        self.control.start()

    def ready(self, told: dict[str, Any]) -> None:
        """Clients are let in."""
        self.control.send({"ready": told})

    def failed(self, text: str) -> None:
        """The start has failed for a reason that stays."""
        self.control.send({"failed": text})

    def tick(self) -> None:
        """A few times a second."""
        now = time.monotonic()
        if now - self._told >= _ALIVE:
            self._told = now
            self.control.send({"alive": True})

    def _orphaned(self) -> None:
        """Nobody would start us again, or know of us."""
        stop(self.reactor)
