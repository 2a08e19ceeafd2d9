"""A copy of the stores of all workers as one file: a store of one process.

    worker 1 --FILE.worker-1--.
    worker 2 --FILE.worker-2---+--lines--> FILE.making --whole--> FILE

Each copy is what its worker has kept at one moment; they are made at the same time, and not at the
same moment: a message that was going from one to another may be in neither. The broker that has it
put back (`mqttd-ctl restore`) starts with any number of workers.

Promise: FILE is there when it is whole, never in the place of another; what fails leaves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask
from mqttd.storage.database import StoreError
from mqttd.storage.place import remove
from mqttd.storage.transfer import import_lines
from mqttd.workers.asking import Answer, Asker, Json
from mqttd.workers.resharding import lines_of

__all__ = ["Copying"]


class Copying:
    """The rule about backups; `in_thread` of the desk copies."""

    def __init__(self, asker: Asker, in_thread: Callable[..., Deferred[Any]]) -> None:
        self.asker = asker
        self.in_thread = in_thread

    async def backup(self, ask: Ask) -> Json:
        """Copy all stores to one new file."""
        path: str = ask.body.path
        if os.path.lexists(path):
            raise ApiError(
                422, "not_copied", f"{path}: it is there already, and a copy replaces nothing"
            )
        numbers = self.asker.whole()
        asked = [self._copy(number, ask, f"{path}.worker-{number}") for number in numbers]
        copies = await DeferredList(asked)
        parts = [str(part) for done, part in copies if done]
        try:
            for done, found in copies:
                if not done:
                    cast(Failure, found).raiseException()
            size, damaged = await self.in_thread(_as_one, parts, path)
        except (StoreError, OSError) as error:
            raise ApiError(422, "not_copied", f"{path}: {error}") from None
        finally:
            for part in parts:
                remove(part)
        ask.changed(None, path)
        return {"path": path, "bytes": size, "damaged": damaged}

    def _copy(self, number: int, ask: Ask, path: str) -> Deferred[str]:
        """Have a worker copy its store; fires with the path."""
        body = json.dumps({"path": path}).encode()
        asked: Deferred[Answer] = self.asker.ask(number, ask, "", body)
        return asked.addCallback(lambda said: str(said.json()["path"]))


def _as_one(parts: list[str], path: str) -> tuple[int, int]:
    """Make one store of several; its size, and how much could not be read and is not in it."""
    left: list[str] = []
    import_lines(path, lines_of(parts, 1, 1, left=left))
    return os.path.getsize(path), len(left)
