"""Has the connection forget blobs that are closed.

CPython keeps a weak reference to each `sqlite3.Blob` until its connection is closed, dead or not
(python/cpython#144424): 80 bytes for every block out of which a payload was read. They stand in a
list that nothing but the collector of garbage shows.

Promise: a connection keeps references to `MANY` closed blobs at most, however many were opened.
"""

from __future__ import annotations

import gc
import sqlite3
from typing import Final
from weakref import ReferenceType

__all__ = ["MANY", "forget_closed"]

#: So many may gather, for it is a walk through all of them.
MANY: Final = 1000


def forget_closed(base: sqlite3.Connection) -> None:
    """Let go of closed blobs, where many have gathered; nobody else uses `base` meanwhile."""
    for found in gc.get_referents(base):
        if isinstance(found, list) and len(found) > MANY:
            found[:] = [one for one in found if not _is_dead(one)]


def _is_dead(reference: object) -> bool:
    return isinstance(reference, ReferenceType) and reference() is None
