"""The configuration of several workers as one: shown, planned, applied to all and to the doors.

    plan     every worker says whom it would cut off; what changes is the same for all
    apply    the first worker, which refuses what cannot be; the others; the supervisor's own doors

Promise: nothing is applied anywhere while one worker has a warning that is not confirmed, or is
away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from mqttd.access.rereading import summed
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask
from mqttd.admin.http.tags import matches
from mqttd.config.plan import option_of, values
from mqttd.config.schema import Config
from mqttd.workers.asking import Answer, Asker, Json, noted

__all__ = ["Configuring"]

#: What the supervisor tells its workers, and is not theirs.
_OURS: Final = ("node.data_dir", "admin.socket", "log.to", "log.format")
_CONFIG: Final = "/api/v1/config"
_PLAN: Final = "/api/v1/config/plan"


class Configuring:
    """The rules about configuration and log.

    Arguments: who asks; `config()` gives the supervisor's; `applied()` is called when all workers
    have applied another one, and returns what is to be said of it; `logging()` gives its log;
    `warned()` says what another one would do to the supervisor's doors.
    """

    def __init__(
        self,
        asker: Asker,
        config: Callable[[], Config],
        applied: Callable[[], list[str]],
        logging: Callable[[], Any],
        warned: Callable[[], list[str]],
    ) -> None:
        self.asker = asker
        self.config_now = config
        self.applied = applied
        self.logging = logging
        self.warned = warned

    async def config(self, ask: Ask) -> Json | None:
        """Every key in force."""
        told, tag = await self._described(ask)
        ask.request.setHeader(b"etag", tag.encode())
        if matches(ask.header("if-none-match") or "", tag, weak=True):
            ask.status = 304
            return None
        return told

    async def _described(self, ask: Ask) -> tuple[Json, str]:
        said: Answer = await self.asker.ask(self.asker.anyone(), ask, _CONFIG, b"", "GET")
        told = said.json()
        config = self.config_now()
        ours = dict(values(config))
        for entry in told["keys"]:
            key = entry["key"]
            if key in _OURS:
                entry["value"] = option_of(key).write(ours[key])
                entry["source"] = config.given.get(key, "default")
                entry["file"] = None
        data = json.dumps(told, sort_keys=True, default=str).encode()
        return told, f'"{hashlib.sha256(data).hexdigest()[:32]}"'

    async def plan(self, ask: Ask) -> Json:
        """What the file would change, and whom any worker would cut off."""
        answers: list[Answer] = await self.asker.each(self.asker.whole(), ask, _PLAN, b"{}")
        told = [each.json() for each in answers]
        warnings = dict.fromkeys(text for each in told for text in each["warnings"])
        warnings.update(dict.fromkeys(self.warned()))
        return {
            **told[0],
            "files": summed([each["files"] for each in told]),
            "warnings": [*warnings],
        }

    async def apply(self, ask: Ask) -> Json:
        """Apply it everywhere, if nobody is cut off or it is confirmed."""
        wanted = ask.header("if-match")
        if wanted and not matches(wanted, (await self._described(ask))[1], weak=False):
            raise ApiError(412, "changed", "the configuration has changed since it was looked at")
        planned = await self.plan(ask)
        if planned["warnings"] and not ask.body.confirmed:
            ask.unchanged = True
            return planned
        first, *others = self.asker.whole()
        body = b'{"confirmed": true}'
        answers: list[Answer] = [await self.asker.ask(first, ask, "", body)]
        for number in others:
            answers.append(await self.asker.ask(number, ask, "", body))
        noted(ask, answers)
        told = answers[0].json()
        notes = dict.fromkeys(note for each in answers for note in each.json()["notes"])
        told["notes"] = [*notes, *self.applied()]
        told["warnings"], told["files"] = planned["warnings"], planned["files"]
        return told

    async def level(self, ask: Ask) -> Json:
        """Another level of a module, in every process."""
        log, module = self.logging(), ask.body.module
        if log is None:
            raise ApiError(404, "not_found", "the log is not the broker's own here")
        answers: list[Answer] = []
        refused: ApiError | None = None
        for number in self.asker.whole():
            try:
                answers.append(await self.asker.ask(number, ask))
            except ApiError as error:
                refused = error  # a plugin may be in one worker alone
        if refused is not None and (not answers or refused.status != 400):
            raise refused
        log.set_level(module, ask.body.level)
        noted(ask, answers)
        told: Json = log.describe()
        return told
