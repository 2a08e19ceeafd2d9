"""Of whom this node has claimed client ids, or may have: etcd has not said how that has ended.

    a claim is asked for --> noted, with what it was claimed on, and who had it before that node
        --> it is ours --> forgotten: what has come by now is asked of the same node
        --> no answer  --> it may be written, now or later, as long as nothing else was
            --> it is claimed again, of the same node --> who had it before is known still
            --> that node says that it has nothing of it --> so is who had it before
            --> another claims it of us --> the first who was asked before that is asked for it
            --> etcd says that another has it, of another, and that nobody has taken it from us
                since --> forgotten
            --> its session comes all the same --> forgotten

Promise: of several the first is asked: that has the session, or what has become of it comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["MOST", "Tried"]

#: Client ids that are known, the oldest go; and claims of one.
MOST: Final = 100_000
_CLAIMS: Final = 10


class _Claim(NamedTuple):
    """Of which node, behind which revision, and who had it before that node."""

    origin: str
    since: int
    before: str


class Tried:
    """That of one node."""

    def __init__(self) -> None:
        #: Client id -> the claims that may have been written.
        self._of: dict[str, list[_Claim]] = {}
        #: Asks a node for a session that was claimed of it behind one revision, in another at most,
        #: and who had it before if it has nothing.
        self.ask: Callable[[str, str, int, int, str], object] = lambda *_: None

    def __len__(self) -> int:
        return len(self._of)

    def has(self, client_id: str, origin: str) -> bool:
        """Whether it may have been claimed of this node."""
        return any(each.origin == origin for each in self._of.get(client_id, ()))

    def last(self, client_id: str, revision: int) -> str:
        """Of whom it was claimed last, if that may have been in this revision; empty: of nobody."""
        tried = self._of.get(client_id)
        return tried[-1].origin if tried and tried[-1].since < revision else ""

    def before(self, client_id: str, origin: str) -> str:
        """Who had it before this node, of which it was claimed last; empty: that is not known."""
        tried = self._of.get(client_id)
        return tried[-1].before if tried and tried[-1].origin == origin else ""

    def claims(self, client_id: str, origin: str, since: int, before: str = "") -> None:
        """It is about to be claimed of this node, if it has not changed since that revision."""
        if client_id not in self._of and len(self._of) >= MOST:
            del self._of[next(iter(self._of))]
        tried = self._of.setdefault(client_id, [])
        if not tried or (tried[-1].origin != origin and len(tried) < _CLAIMS):
            tried.append(_Claim(origin, since, before))

    def is_anothers(self, client_id: str, changed: int, taken: bool) -> None:
        """Another node has it since that revision, and not from us, unless it was taken before."""
        if not taken:
            self._forget(client_id, changed)

    def won(self, client_id: str, origin: str) -> None:
        """It is ours, and asked of this node; empty: nobody had it."""
        tried = self._of.get(client_id)
        if tried and tried[-1].origin == origin:
            tried.pop()
        if not origin or not tried:
            self._of.pop(client_id, None)

    def is_here(self, client_id: str, revision: int) -> None:
        """Its session is, by what was claimed in this revision, with an answer or without."""
        self._forget(client_id, revision)

    def taken(self, client_id: str, revision: int, is_here: bool, but: str = "") -> None:
        """Another has claimed it of us in this revision; `is_here`: and has its session from here.

        Else that is at the node of whom we may have claimed it before, `but` this one.
        """
        tried = [each for each in self._forget(client_id, revision) if each.origin != but]
        if tried and not is_here:
            first = tried[0]
            self.ask(client_id, first.origin, first.since, revision - 1, first.before)

    def _forget(self, client_id: str, revision: int) -> list[_Claim]:
        """What was claimed before this revision, if it was; how that ended is known."""
        tried = self._of.pop(client_id, [])
        later = [each for each in tried if each.since >= revision]
        if later:
            self._of[client_id] = later
        return [each for each in tried if each.since < revision]
