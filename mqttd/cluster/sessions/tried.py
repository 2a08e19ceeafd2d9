"""Of whom this node has claimed client ids, or may have: etcd has not said how that has ended.

    a claim is asked for --> noted, with what it was claimed on
        --> it is ours --> forgotten: what has come by now is asked of the same node
        --> no answer  --> it may be written, now or later, as long as nothing else was
            --> another claims it of us --> the first who was asked before that is asked for it
            --> etcd says that another has it, of another, and that nobody has taken it from us
                since --> forgotten

Promise: of several the first is asked: that has the session, or what has become of it comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.cluster.etcd.client import Json, get
from mqttd.cluster.etcd.keys import Keys

__all__ = ["MOST", "Tried"]

#: Client ids that are known, the oldest go; and claims of one.
MOST: Final = 100_000
_CLAIMS: Final = 10


class Tried:
    """That of the node `name`."""

    def __init__(self, keys: Keys, name: str) -> None:
        self.keys = keys
        self.name = name
        #: Client id -> the nodes, and behind which revision it was claimed of each, if it was.
        self._of: dict[str, list[tuple[str, int]]] = {}
        #: Asks a node for a session that was claimed of it behind one revision, in another at most.
        self.ask: Callable[[str, str, int, int], object] = lambda *_: None

    def __len__(self) -> int:
        return len(self._of)

    def has(self, client_id: str, origin: str) -> bool:
        """Whether it may have been claimed of this node."""
        return any(each == origin for each, _ in self._of.get(client_id, ()))

    def claims(self, client_id: str, origin: str, since: int) -> None:
        """It is about to be claimed of this node, if it has not changed since that revision."""
        if client_id not in self._of and len(self._of) >= MOST:
            del self._of[next(iter(self._of))]
        tried = self._of.setdefault(client_id, [])
        if not tried or (tried[-1][0] != origin and len(tried) < _CLAIMS):
            tried.append((origin, since))

    def reads(self, client_id: str) -> list[Json]:
        """What is to be read with who has it: whether somebody has taken it from us."""
        return [get(self.keys.taken(self.name, client_id))] if client_id in self._of else []

    def is_anothers(self, client_id: str, changed: int, taken: bool) -> None:
        """Another node has it since that revision, and not from us, unless it was taken before."""
        if not taken:
            self._forget(client_id, changed)

    def won(self, client_id: str, origin: str) -> None:
        """It is ours, and asked of this node; empty: nobody had it."""
        tried = self._of.get(client_id)
        if tried and tried[-1][0] == origin:
            tried.pop()
        if not origin or not tried:
            self._of.pop(client_id, None)

    def taken(self, client_id: str, revision: int, is_here: bool) -> None:
        """Another has claimed it of us in this revision; `is_here`: and has its session from here.

        Else that is at the node of whom we may have claimed it before.
        """
        tried = self._forget(client_id, revision)
        if tried and not is_here:
            self.ask(client_id, *tried[0], revision - 1)

    def _forget(self, client_id: str, revision: int) -> list[tuple[str, int]]:
        """What was claimed before this revision, if it was; how that ended is known."""
        tried = self._of.pop(client_id, [])
        later = [each for each in tried if each[1] >= revision]
        if later:
            self._of[client_id] = later
        return [each for each in tried if each[1] < revision]
