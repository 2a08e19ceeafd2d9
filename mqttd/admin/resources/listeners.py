"""Listeners: see them, start, stop and restart one, read limits, files and certificates again.

Promise: an operation answers when it is done, and touches no other listener; a fault is told in one
line with status 422.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, get, post

__all__ = ["Listeners"]


class ListenerList(Struct):
    """Every listener, running or not."""

    listeners: list[Json]


class Reloaded(Struct):
    """The listeners whose certificates were read again."""

    reloaded: list[str]


class Listeners:
    """Where clients connect."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/listeners", answer=ListenerList)
    def list(self, ask: Ask) -> ListenerList:
        """Every listener, running or not."""
        return ListenerList(self.parts.listeners())

    @get("/listeners/{name}")
    def one(self, ask: Ask) -> Json:
        """One listener, `KIND:NAME`."""
        return self._state(ask.path["name"])

    @post("/listeners/{name}/start", role=ADMINISTRATOR, errors=(422,))
    def start(self, ask: Ask) -> Deferred[Json]:
        """Open one listener, by the configuration and the files as they are now."""
        return self._do(ask, self._doors().start_one)

    @post("/listeners/{name}/stop", role=ADMINISTRATOR, errors=(422,))
    def stop(self, ask: Ask) -> Deferred[Json]:
        """Close one listener, which ends its connections."""
        return self._do(ask, self._doors().stop_one)

    @post("/listeners/{name}/restart", role=ADMINISTRATOR, errors=(422,))
    def restart(self, ask: Ask) -> Deferred[Json]:
        """Close and open one listener."""
        return self._do(ask, self._doors().restart_one)

    @post("/listeners/reload", role=ADMINISTRATOR, answer=ListenerList, errors=(422,))
    def reload(self, ask: Ask) -> ListenerList:
        """Give the listeners what the configuration says now, as far as connections can stay."""
        try:
            return ListenerList(self._doors().reload())
        except ValueError as error:
            raise ApiError(422, "reload_failed", str(error)) from None

    @post("/listeners/certificates/reload", role=ADMINISTRATOR, answer=Reloaded, errors=(422,))
    def certificates(self, ask: Ask) -> Reloaded:
        """Read every certificate again; those with a fault keep what they had."""
        told = self._doors().reload_certificates()
        if faults := {name: fault for name, fault in told.items() if fault}:
            text = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
            raise ApiError(422, "reload_failed", f"the old certificates stay in use: {text}")
        self.parts.files_taken()
        return Reloaded(sorted(told))

    def _doors(self) -> Any:
        return self.parts.need(self.parts.doors, "listeners are not managed")

    def _state(self, name: str) -> Json:
        known = self.parts.listeners()
        for entry in known:
            if entry.get("id") == name:
                return entry
        raise self._unknown(name)

    def _unknown(self, name: str) -> ApiError:
        known = ", ".join(str(entry.get("id")) for entry in self._doors().describe())
        return ApiError(404, "not_found", f"no listener {name!r}; there are: {known}")

    def _do(self, ask: Ask, work: Any) -> Deferred[Json]:
        name = ask.path["name"]

        def failed(failure: Failure) -> Any:
            if failure.check(KeyError):
                raise self._unknown(name)
            failure.trap(ValueError)
            raise ApiError(422, "listener_failed", failure.getErrorMessage())

        def done(door: Any) -> Json:
            told: Json = door.describe()
            ask.changed(None, {"state": told.get("state")})
            return told

        waiting: Deferred[Any] = maybeDeferred(work, name)
        return waiting.addCallbacks(done, failed)
