"""What attacks have in common: a thread that goes on until it is stopped, and its connections."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable

from benchmarks.hostile.wire import connect

__all__ = ["CROWD", "MOST", "Attack", "Refused"]

#: Where attacks come from.
CROWD = "127.0.0.66"
#: Bytes after which an attack only holds what it has: a peer without a budget shares the machine.
MOST = 2 << 30


class Refused(OSError):
    """The broker let an attacker's client in no longer."""


class Attack:
    """``step(attack)`` is called `rate` times a second, or as fast as it goes (0).

    It connects by `dial` or `login`; `keep` are the most connections that are held, the oldest go.
    A step that raises OSError, or misses a connection that is gone, has failed, and so did the
    connection that was made last.
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
        self._current: socket.socket | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> Attack:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> Attack:
        """End it, and close what it holds."""
        self._over.set()
        # Whoever waits for the broker wakes up.
        for sock in list(self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
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

    def login(self, said: bytes) -> socket.socket:
        """A connection that CONNECT `said` let in; raises Refused."""
        sock = self.dial(said)
        head = sock.recv(4)
        if len(head) < 4 or head[0] != 0x20 or head[3]:
            raise Refused(head.hex())
        return sock

    def client(self, client_id: bytes, **asked: int) -> socket.socket:
        """The connection of the steps before, or another one after it failed."""
        if self._current is None:
            self._current = self.login(connect(client_id, **asked))
        return self._current

    def last(self) -> socket.socket:
        """The connection that was made last."""
        if not self._socks:
            raise Refused("none is left")
        return self._socks[-1]

    def held(self) -> list[socket.socket]:
        """The connections that are there, the oldest first."""
        return list(self._socks)

    def some(self, number: int) -> socket.socket:
        """One of these."""
        if not self._socks:
            raise Refused("none is left")
        return self._socks[number % len(self._socks)]

    def say(self, sock: socket.socket, said: bytes) -> None:
        """Send something."""
        if said:
            sock.sendall(said)
            self.sent += len(said)

    def another(self) -> None:
        """The next `client` is another one; this one stays."""
        self._current = None

    def hang_up(self, sock: socket.socket) -> None:
        """Close one connection."""
        with contextlib.suppress(ValueError):
            self._socks.remove(sock)
        if self._current is sock:
            self._current = None
        sock.close()

    def swallow(self, most: int = 64) -> None:
        """Read away what has come on the connections, in at most so many reads."""
        poll = select.poll()
        here = {sock.fileno(): sock for sock in self._socks}
        for number in here:
            poll.register(number, select.POLLIN)
        while most > 0 and (ready := poll.poll(0)):
            for number, _ in ready:
                most -= 1
                sock = here[number]
                try:
                    gone = not sock.recv(1 << 18)
                except OSError:
                    gone = True
                if gone:
                    poll.unregister(number)
                    self.hang_up(sock)

    def _run(self) -> None:
        pause = 1 / self.rate if self.rate else 0.0
        while not self._over.wait(pause):
            if self.sent > MOST:
                self.swallow()
                self._over.wait(0.05)
                continue
            self.steps += 1
            try:
                self.step(self)
            except (OSError, IndexError):
                self.failed += 1
                self._current = None
                with contextlib.suppress(IndexError):
                    self._socks.pop().close()
                # Who is refused comes again, but not at once: that would be another attack.
                self._over.wait(0.02)
