"""Tells systemd how we are (`Type=notify`): ready, reloading, stopping, and alive.

    READY=1, RELOADING=1, STOPPING=1, WATCHDOG=1  --datagram-->  $NOTIFY_SOCKET

With ``WatchdogSec=`` a sign of life goes out twice in that time, from the reactor: a loop that is
stuck is restarted. Without ``$NOTIFY_SOCKET`` nothing happens. See sd_notify(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from twisted.internet.task import LoopingCall

__all__ = ["Supervisor"]


class Supervisor:
    """Tells what `environ` names; `clock` is the reactor."""

    def __init__(self, environ: Mapping[str, str], clock: Any) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._alive = LoopingCall(self.tell, "WATCHDOG=1")
        self._alive.clock = clock
        self._every = 0.0
        usec = environ.get("WATCHDOG_USEC", "")
        if usec.isdigit() and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self._every = int(usec) / 2_000_000

    def ready(self) -> None:
        """Clients are let in, or the configuration has been read again."""
        self.tell("READY=1")
        if self._address and self._every and not self._alive.running:
            self._alive.start(self._every)

    def reloading(self) -> None:
        """The configuration is read again; `ready` follows."""
        self.tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The end has begun."""
        if self._alive.running:
            self._alive.stop()
        self.tell("STOPPING=1")

    def tell(self, text: str) -> None:
        """Send one message; a supervisor that does not listen is none of our business."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(text.encode(), self._address)
        except OSError:
            pass
