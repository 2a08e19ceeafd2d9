"""What plugins, and the broker itself, keep under keys: a drawer each, and what it may weigh.

    Drawers --open(name)--> Drawer   key -> bytes, in memory
       |                       '-- put, delete --> Journal.value   (a store; nobody by default)
       '-- name -> drawer, its contents there before its owner asks for it

A drawer outlives the load of its plugin, and where there is a store the process. What is put is
told to the journal in the turn it is put in, so it is in one transaction with whatever else that
turn brought, and PUBACK and PUBREC of the message that is being published wait for it.

Promise: reading costs a look-up, changing one and a row in the next group; a drawer never weighs
more than `most` bytes: its keys and values, and `OVERHEAD` for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from mqttd.session.journal import Journal
from mqttd.types import StoreFull

__all__ = ["MOST_KEY", "OVERHEAD", "Drawer", "Drawers"]

#: Bytes of a key at most.
MOST_KEY: Final = 1024
#: What a key and its value take beside their bytes.
OVERHEAD: Final = 200

Change = tuple[str, str, bytes | None]


class _Server(Protocol):
    """What this needs of the broker."""

    journal: Journal


class Drawers:
    """The drawers of one broker."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.drawers: dict[str, Drawer] = {}
        #: What each of them may weigh, where it was not told otherwise.
        self.most = 128 << 20
        #: The disk takes no more: nothing is put in until it does. And why, with what helps.
        self.stuck = False
        self.why = "the disk takes no more"
        #: Why nothing at all is written for now, what was changed before neither; empty: it is.
        self.halted = ""
        self._unsure: list[_Sure] = []
        #: What was changed before the journal listens, and who wants to know that it is kept.
        self._early: list[Change] | None = None
        self._told: list[Callable[[], None]] = []

    def open(self, name: str, limit: int | None = None) -> Drawer:
        """The drawer of this name, made when there is none; `limit`: what it may weigh itself."""
        drawer = self.drawers.get(name)
        if drawer is None:
            drawer = Drawer(self, name)
            self.drawers[name] = drawer
        if limit is not None:
            drawer.limit = limit
        return drawer

    def held(self) -> float:
        """Bytes in all of them."""
        return float(sum(drawer.bytes for drawer in self.drawers.values()))

    # -- the store -------------------------------------------------------------------------------

    def restore(self, rows: Iterable[tuple[str, str, bytes]]) -> None:
        """Take in what a store has kept; changes wait until `follow`."""
        for name, key, value in rows:
            self.open(name).take_in(key, value)
        self._early = []

    def follow(self) -> None:
        """The journal listens: tell it what was changed meanwhile."""
        early, self._early = self._early, None
        for change in early or ():
            self.server.journal.value(*change)
        told, self._told = self._told, []
        for each in told:
            self.server.journal.when_kept(each)

    def changed(self, name: str, key: str, value: bytes | None) -> None:
        """Tell the journal of a change."""
        if self._early is not None:
            self._early.append((name, key, value))
        else:
            self.server.journal.value(name, key, value)

    def when_kept(self, told: Callable[[], None]) -> None:
        """Call `told` when everything that was changed so far is kept."""
        if self._early is not None:
            self._told.append(told)
        else:
            self.server.journal.when_kept(told)

    def when_sure(self, told: Callable[[str], None]) -> None:
        """As `when_kept`, with ""; or with the reason as soon as nothing is written for now."""
        sure = _Sure(told)
        self.when_kept(sure)
        if self.halted:
            sure(self.halted)
        elif sure.told is not None:
            self._unsure = [each for each in self._unsure if each.told is not None]
            self._unsure.append(sure)

    def halt(self, why: str) -> None:
        """Nothing is written for now, for this reason; or (empty) it is again."""
        self.halted = why
        if why:
            unsure, self._unsure = self._unsure, []
            for each in unsure:
                each(why)


class _Sure:
    """Tells `told` once."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self.told: Callable[[str], None] | None = told

    def __call__(self, why: str = "") -> None:
        told, self.told = self.told, None
        if told is not None:
            told(why)


class Drawer:
    """What one owner keeps; see `IPluginStore` for what its methods promise."""

    def __init__(self, drawers: Drawers, name: str) -> None:
        self.name = name
        #: What it weighs, in bytes.
        self.bytes = 0
        #: What it may weigh, if that is its own.
        self.limit: int | None = None
        self._drawers = drawers
        self._values: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def most(self) -> int:
        """What it may weigh, in bytes."""
        return self._drawers.most if self.limit is None else self.limit

    def get(self, key: str) -> bytes | None:
        """See `IPluginStore.get`."""
        return self._values.get(key)

    def keys(self, prefix: str = "") -> list[str]:
        """See `IPluginStore.keys`."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def put(self, key: str, value: bytes) -> None:
        """See `IPluginStore.put`."""
        size = _size(key, value)
        before = self._values.get(key)
        more = size - (0 if before is None else _weight(key, before))
        if self._drawers.stuck:
            raise StoreFull(self._drawers.why)
        if self.bytes + more > self.most and more > 0:
            raise StoreFull(f"{self.bytes} bytes are kept, {self.most} may be: no room for {more}")
        self._values[key] = value = bytes(value)
        self.bytes += more
        self._drawers.changed(self.name, key, value)

    def delete(self, key: str) -> bool:
        """See `IPluginStore.delete`."""
        value = self._values.pop(key, None)
        if value is None:
            return False
        self.bytes -= _weight(key, value)
        self._drawers.changed(self.name, key, None)
        return True

    def when_kept(self, told: Callable[[], None]) -> None:
        """Call `told` when everything that was changed so far is kept."""
        self._drawers.when_kept(told)

    def when_sure(self, told: Callable[[str], None]) -> None:
        """See `Drawers.when_sure`."""
        self._drawers.when_sure(told)

    def take_in(self, key: str, value: bytes) -> None:
        """What a store has kept, which is not told again."""
        self._values[key] = value
        self.bytes += _weight(key, value)


def _weight(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value) + OVERHEAD


def _size(key: object, value: object) -> int:
    """The weight of what is to be put; raises what `IPluginStore.put` does."""
    if not isinstance(key, str) or not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("a key is str, a value bytes")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"key {key!r} has a lone surrogate") from None
    if not 0 < size <= MOST_KEY:
        raise ValueError(f"key of {size} bytes: expected 1 to {MOST_KEY}")
    return size + memoryview(value).nbytes + OVERHEAD
