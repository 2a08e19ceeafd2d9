"""What attacks have in common: a thread that goes on until it is stopped, and its connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["CROWD", "Attack"]

#: Where attacks come from.
CROWD = "127.0.0.66"


class Attack:
    """``step(attack)`` is called `rate` times a second, or as fast as it goes (0).

    It connects by `dial`; `keep` are the most connections that are held, the oldest go.
    """

    def __init__(
        self, port: int, rate: float, step: Callable[[Attack], None], keep: int = 20_000
    ) -> None:
        self.port = port
        self.rate = rate
        self.step = step
        self.keep = keep
        #: Steps made, bytes sent, and steps that failed (refused, reset).
        self.steps = self.sent = self.failed = 0
        self._socks: deque[socket.socket] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> Attack:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> Attack:
        """End it, and close what it holds."""
        self._over.set()
        self._thread.join(10)
        while self._socks:
            self._socks.pop().close()
        return self

    def dial(self, said: bytes = b"") -> socket.socket:
        """A connection that stays open, and what it says at once."""
        sock = socket.create_connection(("127.0.0.1", self.port), 5, (CROWD, 0))
        self._socks.append(sock)
        if len(self._socks) > self.keep:
            self._socks.popleft().close()
        self.say(sock, said)
        return sock

    def say(self, sock: socket.socket, said: bytes) -> None:
        """Send something."""
        if said:
            sock.sendall(said)
            self.sent += len(said)

    def _run(self) -> None:
        pause = 1 / self.rate if self.rate else 0.0
        while not self._over.wait(pause):
            self.steps += 1
            try:
                self.step(self)
            except OSError:
                self.failed += 1
                with contextlib.suppress(IndexError):
                    self._socks.pop().close()
