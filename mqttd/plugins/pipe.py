"""Calls between two processes over a pair of sockets, either way, also one inside the other.

    parent                                            child
      call(what, args)  -- ("call", id, what, args) -->  serve(what, args)
                        <-- ("call", 7, "publish", ...)      |  may call back meanwhile
      serve(...)        -- ("done", 7, True, value) -->      |
      value             <-- ("done", id, True, value) -------'
      tell(what, args)  -- ("tell", what, args) ------>  serve(what, args), nobody waits

Frames are a length and msgpack (`mqttd.plugins.calls.crossing`): what comes is data, nothing that
runs. An end that sends what cannot be read is closed.

Promise: `call` waits at most its `seconds`, and while it does only what the other end calls is
served; an answer that comes too late is thrown away. At most `MOST_WAITING` bytes wait to be
written, more is refused.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from time import monotonic
from typing import Any, Final

from twisted.internet.defer import Deferred, fail

from mqttd.plugins.calls.crossing import CrossingError, pack, unpack
from mqttd.types import QueueFull

__all__ = ["MOST_WAITING", "Pipe", "PipeClosed", "RemoteError"]

MOST_WAITING: Final = 4 << 20
_HEAD: Final = struct.Struct("!I")
#: Kind of a frame -> its parts.
_SIZES: Final = {"call": 4, "tell": 3, "done": 4}

Serve = Callable[[str, tuple[Any, ...]], Any]


class PipeClosed(Exception):
    """The other process has ended."""


class RemoteError(Exception):
    """What was called has raised; the text is its type and text."""


class Pipe:
    """One end. `serve(what, args)` answers what the other end calls; it may raise.

    Its owner calls `pump` when the socket can be read.
    """

    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        self.sock = sock
        self.serve = serve
        self.closed = False
        #: Calls given up that the other end has not answered: it is still busy with them.
        self.late: set[int] = set()
        self._ids = count(1)
        self._done: dict[int, tuple[bool, Any]] = {}
        self._asked: dict[int, Deferred[Any]] = {}
        self._told: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._in = bytearray()
        self._out = bytearray()
        self._depth = 0
        sock.setblocking(False)

    def call(self, what: str, *args: Any, seconds: float) -> Any:
        """Call `what` at the other end and wait for it.

        Raises RemoteError, TimeoutError, PipeClosed.
        """
        if self.late:
            raise TimeoutError("its process is still busy with an earlier call")
        number = next(self._ids)
        self._send(("call", number, what, args))
        until = monotonic() + seconds
        self._depth += 1
        try:
            while number not in self._done:
                left = until - monotonic()
                if left <= 0:
                    self.late.add(number)
                    raise TimeoutError(f"no answer from its process within {seconds:g} s")
                self._wait(left)
        finally:
            self._depth -= 1
        ok, value = self._done.pop(number)
        if not ok:
            raise RemoteError(value)
        return value

    def ask(self, what: str, *args: Any) -> Deferred[Any]:
        """As `call`, without waiting: a Deferred, which fails as `call` raises, never for time."""
        if self.late:
            return fail(TimeoutError("its process is still busy with an earlier call"))
        number = next(self._ids)

        def given_up(asked: Deferred[Any]) -> None:
            self._asked.pop(number, None)

        asked: Deferred[Any] = Deferred(given_up)
        try:
            self._send(("call", number, what, args))
        except Exception:
            return fail()
        self._asked[number] = asked
        return asked

    def tell(self, what: str, *args: Any) -> None:
        """Have `what` called at the other end; QueueFull when it does not keep up."""
        if len(self._out) > MOST_WAITING:
            raise QueueFull("its process does not keep up")
        self._send(("tell", what, args))

    def pump(self) -> None:
        """Take what has come, and serve it."""
        self._read()
        if not self._depth:
            while self._told:
                what, args = self._told.popleft()
                self.serve(what, args)

    def flush(self) -> bool:
        """Write what the socket takes; True if all is written."""
        while self._out and not self.closed:
            try:
                sent = self.sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self.close()
                return True
            del self._out[:sent]
        return True

    def close(self) -> None:
        """No more calls, either way; the socket is the owner's to close."""
        self.closed = True
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            waiting.errback(PipeClosed("its process has ended"))

    def _send(self, message: object) -> None:
        if self.closed:
            raise PipeClosed("its process has ended")
        data = pack(message)
        self._out += _HEAD.pack(len(data)) + data
        self.flush()

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        for _, event in poll.poll(max(seconds, 0) * 1000):
            if event & select.POLLOUT:
                self.flush()
            if event & ~select.POLLOUT:
                self._read()
        if self.closed:
            raise PipeClosed("its process has ended")

    def _read(self) -> None:
        while not self.closed:
            try:
                data = self.sock.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._in += data
        while len(self._in) >= 4:
            (size,) = _HEAD.unpack_from(self._in)
            if len(self._in) < 4 + size:
                break
            data = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            try:
                message = unpack(data)
            except CrossingError:
                self.close()
                return
            if not _is_frame(message):
                self.close()
                return
            self._take(message)

    def _take(self, message: Any) -> None:
        if message[0] == "tell":
            self._told.append((message[1], message[2]))
        elif message[0] == "done":
            _, number, ok, value = message
            asked = self._asked.pop(number, None)
            if asked is not None and ok:
                asked.callback(value)
            elif asked is not None:
                asked.errback(RemoteError(value))
            elif number in self.late:
                self.late.discard(number)
            elif self._depth:
                self._done[number] = (ok, value)
        else:
            _, number, what, args = message
            try:
                value = self.serve(what, args)
            except BaseException as error:
                self._answer(number, False, error)
                return
            if isinstance(value, Coroutine):
                value = Deferred.fromCoroutine(value)
            if isinstance(value, Deferred):
                value.addCallbacks(
                    lambda result: self._answer(number, True, result),
                    lambda failure: self._answer(number, False, failure.value),
                )
            else:
                self._answer(number, True, value)

    def _answer(self, number: int, ok: bool, value: Any) -> None:
        if self.closed:
            return
        if not ok:
            value = f"{type(value).__name__}: {value}"
        try:
            self._send(("done", number, ok, value))
        except PipeClosed:
            pass
        except Exception as error:  # what does not cross
            self._send(("done", number, False, f"{type(error).__name__}: {error}"))


def _is_frame(message: object) -> bool:
    """Whether what came is one of the three kinds of frames."""
    if not isinstance(message, tuple) or not message or not isinstance(message[0], str):
        return False
    return len(message) == _SIZES.get(message[0])
