"""A line between two programs that a test can cut: a TCP proxy of one thread a direction."""

from __future__ import annotations

import socket
import threading

__all__ = ["Line"]


class Line:
    """Leads from `port` to `target`, both on loopback."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        #: While it is not whole, connections end as soon as they begin.
        self.whole = True
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
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for each in (one, other):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
