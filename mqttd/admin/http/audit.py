"""Who has changed what: one line for each change that was made over the HTTP interface.

    changing request, done --> Audit.put --> the last `KEPT` in memory, the file data/audit.jsonl
                                         '-> one line in the log

`mqttd-ctl` speaks to the same interface, so that its changes are here too. A refused request
changes nothing and is not here; wrong tokens are in the log.

A caller that publishes is one entry a minute, with how many times: messages by the thousand would
push out what else was changed. The file has its line twice, the second with all of them.

Promise: at most `KEPT` entries and `MOST` characters of each are kept in memory; writing the file
is for a thread (`mqttd.service`), whose losses it counts.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from msgspec import Struct, to_builtins
from twisted.logger import Logger

__all__ = ["KEPT", "Audit", "AuditEntry", "shortened"]

KEPT: Final = 1000
MOST: Final = 2000
#: What is gathered, for how many seconds, of how many callers.
_PUBLISHING: Final = frozenset(("/api/v1/publish", "/api/v1/publish/batch"))
_GATHERED: Final = 60.0
_CALLERS: Final = 1000


class AuditEntry(Struct, kw_only=True):
    """One change."""

    #: Of this process, in order.
    number: int
    #: Seconds since 1970.
    at: float
    who: str
    role: str
    peer: str
    method: str
    path: str
    #: What the request was for, in a sentence.
    what: str
    before: Any
    after: Any
    #: How often within a minute; `after` is of the first one.
    times: int = 1


class Audit:
    """The changes of one process; ``write(line)`` keeps a line of JSON for longer."""

    def __init__(self, seconds: Callable[[], float] = time.time) -> None:
        self.write: Callable[[bytes], None] = lambda line: None
        self._seconds = seconds
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._number = 0
        #: Who publishes where -> the entry that gathers it, the oldest first.
        self._gathering: OrderedDict[tuple[str, str], AuditEntry] = OrderedDict()
        self._log = Logger(namespace="mqttd.admin")

    def put(
        self, who: str, role: str, peer: str, method: str, path: str, what: str,
        before: Any, after: Any,
    ) -> None:  # fmt: skip
        """A change was made."""
        if path in _PUBLISHING:
            gathered = self._gathering.get((who, path))
            if gathered is not None and self._seconds() - gathered.at < _GATHERED:
                gathered.times += 1
                return
            self._let_go((who, path))
        self._number += 1
        entry = AuditEntry(
            number=self._number,
            at=round(self._seconds(), 3),
            who=who,
            role=role,
            peer=peer,
            method=method,
            path=path[:MOST],
            what=what,
            before=shortened(before),
            after=shortened(after),
        )
        self._entries.append(entry)
        if path in _PUBLISHING:
            self._gathering[who, path] = entry
            if len(self._gathering) > _CALLERS:
                self._let_go(next(iter(self._gathering)))
        self._log.info(
            "audit: {method} {path} by {who} ({role}, {peer})",
            method=method, path=path[:200], who=who, role=role, peer=peer,
        )  # fmt: skip
        self._keep(entry)

    def finish(self) -> None:
        """Nothing more comes: the file has all of what was gathered."""
        for key in list(self._gathering):
            self._let_go(key)

    def _let_go(self, key: tuple[str, str]) -> None:
        gathered = self._gathering.pop(key, None)
        if gathered is not None and gathered.times > 1:
            self._keep(gathered)

    def _keep(self, entry: AuditEntry) -> None:
        self.write(json.dumps(to_builtins(entry), ensure_ascii=True).encode() + b"\n")

    def page(self, limit: int, before: int | None) -> tuple[list[AuditEntry], int | None]:
        """The last entries, or those before a number; the newest first, and where to go on."""
        found = (one for one in reversed(self._entries) if before is None or one.number < before)
        page = list(islice(found, limit))
        more = page and page[-1].number > self._entries[0].number
        return page, page[-1].number if more else None


def shortened(value: Any) -> Any:
    """A value as it is kept: itself while it is small, else the beginning of its text."""
    if value is None:
        return None
    value = to_builtins(value, enc_hook=str)
    text = json.dumps(value, default=str)
    return value if len(text) <= MOST else text[:MOST] + "..."
