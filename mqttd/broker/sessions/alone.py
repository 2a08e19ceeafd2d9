"""Who owns a client id and where sessions are kept, where there is one process and no disk.

    Alone      every client id is this process's own     `IRegistry`
    Forgets    nothing outlasts the process              `ISessionStore`

Promise: both answer at once, so that a CONNECT waits for nobody and makes no Deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from zope.interface import implementer

from mqttd.interfaces import IRegistry, ISessionStore
from mqttd.types import Claim, Held, SessionState

__all__ = ["Alone", "Forgets"]

#: The owner never changes, so the epoch does not either.
_HERE: Final = Claim(1, Held.HERE)
_NOWHERE: Final = Claim(1, Held.NOWHERE)


@implementer(IRegistry)
class Alone:
    """The owner of every client id; `sessions` are those that are there."""

    def __init__(self, sessions: Container[str] = ()) -> None:
        self.sessions = sessions

    def claim(self, client_id: str, principal: str | None, lasts: bool) -> Claim:
        """As `IRegistry.claim`."""
        return _HERE if client_id in self.sessions else _NOWHERE

    def release(self, client_id: str, epoch: int) -> None:
        """As `IRegistry.release`."""

    def watch(self, taken: Callable[[str, int], SessionState | None]) -> None:
        """As `IRegistry.watch`: there is nobody who could take anything over."""

    def description(self) -> str:
        """As `IRegistry.description`."""
        return "one process owns every client identifier"


@implementer(ISessionStore)
class Forgets:
    """Sessions live in the broker's memory and end with it: nothing is saved here."""

    keeps = False

    def open(self) -> None:
        """As `ISessionStore.open`."""

    def save(self, client_id: str, epoch: int, record: bytes) -> None:
        """As `ISessionStore.save`."""

    def append(self, client_id: str, epoch: int, packets: Sequence[bytes]) -> None:
        """As `ISessionStore.append`."""

    def load(self, client_id: str) -> SessionState | None:
        """As `ISessionStore.load`: nobody is known."""
        return None

    def remove(self, client_id: str, epoch: int) -> None:
        """As `ISessionStore.remove`."""

    def recover(self) -> Iterable[tuple[str, SessionState]]:
        """As `ISessionStore.recover`."""
        return ()

    def close(self) -> None:
        """As `ISessionStore.close`."""

    def description(self) -> str:
        """As `ISessionStore.description`."""
        return "sessions end with the process"
