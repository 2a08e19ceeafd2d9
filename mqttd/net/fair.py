"""Who waits, by address: each address has its turn, however many of it stand in line.

    10.0.0.7   a b c d e f        the next: a, x, u, b, v, c, ...
    10.0.0.8   x                  full: the one who came last of the longest line is sent away
    unix       u v

A *house* is what one address stands for: an IPv4 address, the /64 of an IPv6 address (all of which
one host can have), one for all peers of Unix sockets. Houses may stand in groups, such as their
networks: then the groups have their turns, in each of them its houses, and who came last of the
longest line of the largest group is sent away.

    10.0.x.x   10.0.0.7: a b   10.0.0.8: x        the next: a, u, x, b
    10.1.x.x   10.1.0.9: u

Promise: to join, to be the next and to be sent away cost a few look-ups for each size of group,
whatever waits.
"""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from functools import lru_cache
from typing import Final, Generic, TypeVar

__all__ = ["UNIX", "FairQueue", "house_of", "networks_of"]

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


@lru_cache(maxsize=4096)
def networks_of(house: str) -> tuple[str, str]:
    """The networks of a house, the larger one first: /16 and /24 of IPv4, /32 and /48 of IPv6.

    Who rents one machine may have a /48, or a /24, full of houses; a whole /16 or /32 seldom. What
    has no networks stands for itself.
    """
    if house.endswith("/64"):
        try:
            packed = socket.inet_pton(socket.AF_INET6, house[:-3])
        except (OSError, ValueError):
            return house, house
        large, small = (
            socket.inet_ntop(socket.AF_INET6, packed[:size] + bytes(16 - size)) for size in (4, 6)
        )
        return f"{large}/32", f"{small}/48"
    parts = house.split(".")
    if len(parts) != 4:
        return house, house
    return ".".join(parts[:2]), ".".join(parts[:3])


class FairQueue(Generic[T]):
    """Those who wait, in lines by house; at most `most` in all, `each` of one house.

    `within` are the groups that a house stands in, the largest first: all houses of a queue in as
    many.
    """

    def __init__(self, most: int, each: int) -> None:
        self.most = most
        self.each = each
        self._turns: _Turns[T] = _Turns()

    def __len__(self) -> int:
        return self._turns.count

    def of(self, house: str, within: tuple[str, ...] = ()) -> int:
        """How many of a house wait."""
        line: _Turns[T] | deque[T] | None = self._turns
        for name in (*within, house):
            if not isinstance(line, _Turns):
                break
            line = line.lines.get(name)
        return 0 if line is None else len(line)

    def join(self, house: str, item: T, within: tuple[str, ...] = ()) -> T | None:
        """Stand in line; returns who has to go for it: `item` itself, or one of a longer line."""
        if self.of(house, within) >= self.each:
            return item
        path = (*within, house)
        gone: T | None = None
        if self._turns.count >= self.most:
            gone = self._turns.make_room(path, 0)
            if gone is None:
                return item
        self._turns.add(path, 0, item)
        return gone

    def next(self) -> T:
        """Whose turn it is; raises IndexError where nobody waits."""
        if not self._turns.count:
            raise IndexError("nobody waits")
        return self._turns.popleft()


class _Turns(Generic[T]):
    """Lines that have their turns, and which of them is the longest; each may be such lines again.

    `path` names lines, from the outermost in; `at` is the place of those here.
    """

    __slots__ = ("by_length", "count", "lines", "longest")

    def __init__(self) -> None:
        self.count = 0
        self.lines: OrderedDict[str, deque[T] | _Turns[T]] = OrderedDict()
        #: By length, the lines that are so long; and the greatest length.
        self.by_length: dict[int, dict[str, None]] = {}
        self.longest = 0

    def __len__(self) -> int:
        return self.count

    def add(self, path: tuple[str, ...], at: int, item: T) -> None:
        """Stand in line."""
        name = path[at]
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = deque() if at == len(path) - 1 else _Turns()
        if isinstance(line, _Turns):
            line.add(path, at + 1, item)
        else:
            line.append(item)
        self._moved(name, len(line) - 1, len(line))

    def popleft(self) -> T:
        """Whose turn it is."""
        name, line = next(iter(self.lines.items()))
        item = line.popleft()
        self._moved(name, len(line) + 1, len(line))
        if line:  # it goes to the end of those that wait
            self.lines.move_to_end(name)
        return item

    def pop(self) -> T:
        """Who came last of the longest line; of those the one that became so long last."""
        name = next(reversed(self.by_length[self.longest]))
        line = self.lines[name]
        item = line.pop()
        self._moved(name, len(line) + 1, len(line))
        return item

    def make_room(self, path: tuple[str, ...], at: int) -> T | None:
        """Who has to go for one that would stand there; None where no line is so much longer."""
        name = path[at]
        line = self.lines.get(name)
        if self.longest > (0 if line is None else len(line)) + 1:
            return self.pop()
        if not isinstance(line, _Turns):
            return None
        gone = line.make_room(path, at + 1)
        if gone is not None:
            self._moved(name, len(line) + 1, len(line))
        return gone

    def _moved(self, name: str, before: int, after: int) -> None:
        """A line is one longer or shorter than before."""
        self.count += after - before
        if before:
            names = self.by_length[before]
            del names[name]
            if not names:
                del self.by_length[before]
        if after:
            self.by_length.setdefault(after, {})[name] = None
        else:
            del self.lines[name]
        if after > self.longest or (before == self.longest and before not in self.by_length):
            self.longest = after
