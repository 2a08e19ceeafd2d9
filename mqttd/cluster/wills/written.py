"""Which wills of a node etcd has, and how many bytes of them it may have.

    will changed --> change --> True: write it; False: remove it; None: etcd has it, or has none
                       '-- too much of a node's, of a user's, too large: left out, not written

A user's share (that of an address, where there are no names) is half of a node's, so that one who
makes wills without end leaves room for others. Each removed lets one that was left out try again.

Promise: sans-I/O; what a change costs does not depend on how many wills there are.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeAlias

__all__ = ["LARGEST", "MOST", "Whose", "Written"]

#: Bytes of a node's wills in etcd, which has 2 GiB for all nodes unless it was given more.
MOST: Final = 256 << 20
#: Bytes of one will: payload and topic have 64 KiB each; etcd takes 1.5 MiB in a request.
LARGEST: Final = 256 << 10

#: The user of a client, or `None` and the house of its address.
Whose: TypeAlias = "tuple[str | None, str]"


class Written:
    """The wills of one node, by client id, of at most `most` bytes."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        #: Bytes in etcd.
        self.held = 0
        self._of: dict[str, tuple[bytes, int, Whose]] = {}
        self._held_by: dict[Whose, int] = {}
        #: Clients with wills that are not written, who has tried longest ago first.
        self.left_out: dict[str, None] = {}

    def clear(self) -> None:
        """etcd has none of them."""
        self.held = 0
        self._of.clear()
        self._held_by.clear()
        self.left_out.clear()

    def has(self, client_id: str, value: bytes) -> bool:
        """Whether etcd has this will."""
        known = self._of.get(client_id)
        return known is not None and known[0] == _digest(value)

    def knows(self, client_id: str) -> bool:
        """Whether etcd has a will of this client."""
        return client_id in self._of

    def change(self, client_id: str, value: bytes, whose: Whose) -> bool | None:
        """What to do with a client's will, which is empty if there is none; that counts as done."""
        self.left_out.pop(client_id, None)
        digest = _digest(value)
        before = self._of.get(client_id)
        if before is not None and value and before[0] == digest:
            return None
        if before is not None:
            self._drop(client_id)
        size = len(client_id) + len(value)
        if value and not self._fits(size, whose):
            self.left_out[client_id] = None
        elif value:
            self._of[client_id] = (digest, size, whose)
            self.held += size
            self._held_by[whose] = self._held_by.get(whose, 0) + size
            return True
        return None if before is None else False

    def again(self) -> str | None:
        """A client whose will was left out, and may fit now."""
        return next(iter(self.left_out), None)

    def _fits(self, size: int, whose: Whose) -> bool:
        if size > LARGEST or self.held + size > self.most:
            return False
        return self._held_by.get(whose, 0) + size <= self.most // 2

    def _drop(self, client_id: str) -> None:
        _, size, whose = self._of.pop(client_id)
        self.held -= size
        self._held_by[whose] -= size
        if not self._held_by[whose]:
            del self._held_by[whose]


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()
