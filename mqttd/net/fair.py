"""Who waits, by address: each address has its turn, however many of it stand in line.

    10.0.0.7   a b c d e f        the next: a, x, u, b, v, c, ...
    10.0.0.8   x                  full: the one who came last of the longest line is sent away
    unix       u v

A *house* is what one address stands for: an IPv4 address, the /64 of an IPv6 address (all of which
one host can have), one for all peers of Unix sockets.

Promise: to join, to be the next and to be sent away cost a few look-ups, whatever waits.
"""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from functools import lru_cache
from typing import Final, Generic, TypeVar

__all__ = ["UNIX", "FairQueue", "house_of"]

T = TypeVar("T")

#: The house of all peers of Unix sockets.
UNIX: Final = "unix"

_MAPPED: Final = bytes(10) + b"\xff\xff"


def house_of(host: str) -> str:
    """The house of an address; what is no address stands for itself."""
    if ":" not in host:
        return UNIX if host.startswith("/") else host
    return _house_of(host)


@lru_cache(maxsize=4096)
def _house_of(host: str) -> str:
    if host.startswith("unix:"):
        return UNIX
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except (OSError, ValueError):
        return host
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


class FairQueue(Generic[T]):
    """Those who wait, in lines by house; at most `most` in all, `each` of one house."""

    def __init__(self, most: int, each: int) -> None:
        self.most = most
        self.each = each
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        #: By length, the houses whose lines are so long; and the greatest length.
        self._by_length: dict[int, dict[str, None]] = {}
        self._longest = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, house: str) -> int:
        """How many of a house wait."""
        line = self._lines.get(house)
        return 0 if line is None else len(line)

    def join(self, house: str, item: T) -> T | None:
        """Stand in line; returns who has to go for it: `item` itself, or one of a longer line."""
        line = self._lines.get(house)
        length = 0 if line is None else len(line)
        if length >= self.each:
            return item
        gone: T | None = None
        if self._count >= self.most:
            if self._longest <= length + 1:
                return item
            longest = next(iter(self._by_length[self._longest]))
            gone = self._lines[longest].pop()
            self._moved(longest, self._longest, self._longest - 1)
        if line is None:
            line = self._lines[house] = deque()
        line.append(item)
        self._moved(house, length, length + 1)
        return gone

    def next(self) -> T:
        """Whose turn it is; raises IndexError where nobody waits."""
        if not self._lines:
            raise IndexError("nobody waits")
        house, line = next(iter(self._lines.items()))
        item = line.popleft()
        self._moved(house, len(line) + 1, len(line))
        if line:  # its house goes to the end of those that wait
            self._lines.move_to_end(house)
        else:
            del self._lines[house]
        return item

    def _moved(self, house: str, before: int, after: int) -> None:
        """A line is one longer or shorter than before."""
        self._count += after - before
        if before:
            houses = self._by_length[before]
            del houses[house]
            if not houses:
                del self._by_length[before]
        if after:
            self._by_length.setdefault(after, {})[house] = None
        if after > self._longest or (before == self._longest and before not in self._by_length):
            self._longest = after
