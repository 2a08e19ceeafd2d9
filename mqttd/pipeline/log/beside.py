"""What stands beside the log's folder, and tells an older copy of it that was put back.

    data/events.reserved.json    {"log": ID, "nodes": {NODE: [reserved, inode, changed]}}
    data/events/NODE/born        the file that this is about; nobody ever writes to it

All that is in the folder is in a copy of it, too. A copy of `born` is another file, that was made
later: of one that has neither the inode nor the time that are noted, offsets may have been given
since it was copied, as far as they were reserved. It takes both: not everywhere is an inode's
number the same after the next mount, and many set the owner of all files anew at each start.

Promise: where this cannot be written, or is harmed or gone, the log is as good as without it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from mqttd.pipeline.log.files import Damaged, locked, read_json, write_json

__all__ = ["Beside"]

_BORN: Final = "born"


class Beside:
    """That of one node of the log `log` at `path`."""

    def __init__(self, path: str, node: str, log: str) -> None:
        self._path = path
        self._node = node
        self._log = log
        self._name = os.path.abspath(path) + ".reserved.json"
        self._born = os.path.join(path, node, _BORN)

    def given(self, reserved: int) -> int:
        """Up to which offset some may have been given, where this is an older copy; 0: it is none.

        reserved: what the folder itself says.
        """
        known = self._read().get(self._node)
        if known is None:
            return 0
        offset, inode, changed = known
        with contextlib.suppress(OSError):
            found = os.stat(self._born)
            if offset <= reserved and (found.st_ino == inode or found.st_ctime_ns == changed):
                return 0
        return int(offset)

    def note(self, reserved: int) -> None:
        """Offsets may be given up to this one."""
        with contextlib.suppress(OSError), locked(self._path):
            nodes = self._read()
            before = nodes.get(self._node, [0])[0]
            with open(self._born, "a") as file:
                found = os.fstat(file.fileno())
            nodes[self._node] = [max(before, reserved), found.st_ino, found.st_ctime_ns]
            write_json(self._name, {"log": self._log, "nodes": nodes})

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, Damaged):
            found = read_json(self._name)
            nodes = found.get("nodes")
            if found.get("log") == self._log and isinstance(nodes, dict):
                return {name: one for name, one in nodes.items() if _is_one(one)}
        return {}


def _is_one(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(each) is int for each in value)
