"""A line between two programs that a test can cut, or that is long: a TCP proxy."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["Line"]

#: Pieces that may be on a long way.
_MOST = 1000


class Line:
    """Leads from `port` to `target`, both on loopback; bytes take `delay` seconds, each way."""

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self.target = target
        self.delay = delay
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        #: While it is not whole, connections end as soon as they begin.
        self.whole = True
        #: While it is mute, what comes at either end is lost, and connections are there.
        self.mute = False
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End the connections there are."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        self.cuts += len(sockets) // 2
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """No more."""
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self.listener.accept()
            except OSError:
                return
            if not self.whole:
                came.close()
                continue
            try:
                goes = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                came.close()
                continue
            with self._lock:
                self._sockets += [came, goes]
            for one, other in ((came, goes), (goes, came)):
                args = (one, other, self.delay, lambda: self.mute)
                threading.Thread(target=_pass_on, args=args, daemon=True).start()


def _pass_on(
    one: socket.socket, other: socket.socket, delay: float, is_mute: Callable[[], bool]
) -> None:
    late: queue.Queue[tuple[float, bytes]] = queue.Queue(_MOST)
    if delay:
        threading.Thread(target=_pass_late, args=(late, other), daemon=True).start()
    try:
        while data := one.recv(65536):
            if is_mute():
                continue
            if delay:
                late.put((time.monotonic() + delay, data))
            else:
                other.sendall(data)
    except OSError:
        pass
    if delay:
        late.put((0.0, b""))
    for each in (one, other):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _pass_late(late: queue.Queue[tuple[float, bytes]], other: socket.socket) -> None:
    try:
        while True:
            due, data = late.get()
            if not data:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            other.sendall(data)
    except OSError:
        pass
