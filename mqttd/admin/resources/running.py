"""The process: its log, its store, and its configuration.

A plan says what a configuration would change, and whom it would cut off; `apply` does it, all of it
or nothing. An ``If-Match`` with the ETag of ``GET /config`` has it done only if nobody else has
changed the configuration meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import sys
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.admin.http.first import without_token
from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.requests import ADMINISTRATOR, VIEWER, ApiError
from mqttd.admin.http.route import Ask, get, post
from mqttd.admin.http.tags import matches
from mqttd.hints import like

__all__ = ["Configuration", "Logging", "Store"]

#: What a directory says in which the broker may not write.
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class LevelBody(Struct, forbid_unknown_fields=True):
    """Another level for a module ("" is all of them); None takes its own level back."""

    module: Annotated[str, Meta(max_length=200)] = ""
    level: Literal["debug", "info", "warn", "error", "critical"] | None = None


class After(Struct, forbid_unknown_fields=True):
    """From where on."""

    after: Annotated[int, Meta(ge=0, description="the `last` of the answer before")] = 0


class LogLines(Struct):
    """Lines of the log, and the number of the last one."""

    last: int
    lines: list[str]


class Logging:
    """The log: where it goes, what was dropped, the levels of its modules."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/log")
    def show(self, ask: Ask) -> Json:
        """Levels, where it goes, and how much was written and dropped."""
        told: Json = self._log().describe()
        return told

    @get("/log/lines", query=After, answer=LogLines)
    def lines(self, ask: Ask) -> LogLines:
        """The last lines: up to 1000 of them, or 256 KiB, or those behind `after`."""
        last, lines = self._log().tail.after(ask.query.after)
        if not ask.caller.may(ADMINISTRATOR):
            lines = [without_token(line) for line in lines]
        return LogLines(last, lines)

    @post("/log/level", body=LevelBody)
    def level(self, ask: Ask) -> Json:
        """Give a module, or all, another level until a reload or restart."""
        log, module = self._log(), ask.body.module
        before = log.describe()
        if module and not self._is_there(module):
            hint = like(module, sys.modules)
            # A level of a name that is wrong would say nothing for ever.
            raise ApiError(400, "bad_request", f"module = {module!r}: there is none{hint}")
        try:
            log.set_level(module, ask.body.level)
        except (ValueError, TypeError) as error:
            raise ApiError(400, "bad_request", f"level: {error}") from None
        ask.changed({"level": before["level"], "modules": before["modules"]}, ask.body)
        told: Json = log.describe()
        return told

    def _is_there(self, module: str) -> bool:
        """Whether a module can write lines, or has a level that can be taken back."""
        levels = self._log().levels
        if module in sys.modules or module in levels.modules or levels.knows(module):
            return True
        place, _, name = module.rpartition(".")
        plugins = getattr(self.parts, "plugins", None)
        if place != "mqttd.plugin" or plugins is None:
            return False
        return any(one["name"] == name for one in plugins.list())

    def _log(self) -> Any:
        return self.parts.need(self.parts.logging, "the log is not the broker's own")


class Copy(Struct, forbid_unknown_fields=True):
    """Where a copy goes."""

    path: Annotated[str, Meta(description="an absolute path of a new file", max_length=4000)]


class Copied(Struct):
    """A copy that was made."""

    path: str
    bytes: int
    #: Rows that cannot be read, and are not restored.
    damaged: int


class Store:
    """What outlasts the process."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/store")
    def show(self, ask: Ask) -> Json:
        """Where it is and what is in it."""
        if not self.parts.has_store:
            raise ApiError(404, "not_found", "the store is not managed here")
        store = self.parts.store
        return {"kind": "memory"} if store is None else {"kind": "sqlite", **store.describe()}

    @post("/store/backup", role=ADMINISTRATOR, body=Copy, answer=Copied, errors=(409, 422, 507))
    def backup(self, ask: Ask) -> Deferred[Copied]:
        """Copy it to a new file of the broker's user; clients go on meanwhile."""
        store, path = self.parts.store, ask.body.path
        if store is None:
            raise ApiError(409, "no_store", "store.kind is memory: there is nothing to copy")
        if not os.path.isabs(path) or "\0" in path:
            raise ApiError(400, "bad_request", "path: expected an absolute path")

        def failed(failure: Failure) -> Any:
            # A place that cannot be is the caller's mistake, a full disk is not.
            value = failure.value
            full = getattr(value, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            full = full or getattr(value, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            text = value.strerror if isinstance(value, OSError) else str(value)
            if getattr(value, "errno", None) in _FORBIDDEN:
                text = (
                    f"{text}: the broker writes it, as the user with the id {os.geteuid()}; it may"
                    f" write to {os.path.dirname(store.path)}"
                )
            raise ApiError(507 if full else 422, "not_copied", f"{path}: {text}")

        def copied(found: tuple[int, int]) -> Copied:
            ask.changed(None, path)
            return Copied(path, *found)

        asked: Deferred[tuple[int, int]] = store.backup(path)
        return asked.addCallbacks(copied, failed)

    @post("/store/compact", role=ADMINISTRATOR, errors=(409, 507))
    def compact(self, ask: Ask) -> Deferred[Json]:
        """Give unused space back, in steps between what is written for clients."""
        store = self.parts.store
        if store is None:
            raise ApiError(409, "no_store", "store.kind is memory: there is nothing to compact")

        def failed(failure: Failure) -> Any:
            raise ApiError(507, "not_compacted", failure.getErrorMessage())

        def done(told: Json) -> Json:
            ask.changed(None, told)
            return told

        asked: Deferred[Any] = Deferred.fromCoroutine(store.compact())
        return asked.addCallbacks(done, failed)


class Text(Struct, forbid_unknown_fields=True):
    """A configuration, as the file has it."""

    text: Annotated[str, Meta(max_length=250_000)]


class Nothing(Struct, forbid_unknown_fields=True):
    """Nothing: what the file says is looked at."""


class Apply(Struct, forbid_unknown_fields=True):
    """Whether a plan that would cut somebody off is meant."""

    confirmed: bool = False


class Mistakes(Struct):
    """What is wrong with a configuration; nothing, if it can be used."""

    mistakes: list[str]


class Configuration:
    """What is in force, where it comes from, and what the file would change."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/config", errors=(304,), headers=("If-None-Match",))
    def show(self, ask: Ask) -> Any:
        """Every key: value in force, where it was set, what the file says; with an ETag."""
        told = self._reload().describe()
        tag = _tag(told)
        ask.request.setHeader(b"etag", tag.encode())
        if matches(ask.header("if-none-match") or "", tag, weak=True):
            ask.status = 304
            return None
        return told

    @post("/config/validate", role=VIEWER, audited=False, body=Text, answer=Mistakes, errors=(503,))
    def validate(self, ask: Ask) -> Deferred[Mistakes]:
        """The mistakes in a configuration that is sent along."""
        work = self.parts.in_turn(self._reload().mistakes, ask.body.text)
        return work.addCallback(Mistakes)

    @post("/config/plan", role=VIEWER, audited=False, body=Nothing, errors=(409, 422))
    def plan(self, ask: Ask) -> Deferred[Json]:
        """What the configuration file would change now, and whom it would cut off."""
        return self._run(ask, dry_run=True)

    @post(
        "/config/apply",
        role=ADMINISTRATOR,
        body=Apply,
        errors=(409, 412, 422),
        headers=("If-Match",),
    )
    def apply(self, ask: Ask) -> Deferred[Json]:
        """Read the configuration again and apply it, if nobody is cut off or it is `confirmed`."""
        wanted = ask.header("if-match")
        if wanted is not None and not matches(wanted, _tag(self._reload().describe()), weak=False):
            raise ApiError(412, "changed", "the configuration has changed since it was looked at")
        return self._run(ask, confirmed=ask.body.confirmed)

    def _run(self, ask: Ask, **how: bool) -> Deferred[Json]:
        def done(told: Json) -> Json:
            ask.unchanged = not told["applied"]
            ask.changed(
                {change["key"]: change["before"] for change in told["changes"]},
                {change["key"]: change["after"] for change in told["changes"]},
            )
            return told

        def failed(failure: Failure) -> Any:
            code = getattr(failure.value, "code", "")
            if code not in ("reload_failed", "busy"):
                return failure
            raise ApiError(409 if code == "busy" else 422, code, str(failure.value))

        work: Deferred[Any] = self._reload().run(**how)
        return work.addCallbacks(done, failed)

    def _reload(self) -> Any:
        return self.parts.need(self.parts.reload, "this broker's configuration is not managed")


def _tag(told: Json) -> str:
    data = msgspec.json.encode(told, enc_hook=str)
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'
