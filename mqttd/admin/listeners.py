"""Listeners over HTTP: see them, start, stop and restart one, read certificates again.

    GET    /api/v1/listeners                            every listener
    POST   /api/v1/listeners/{id}/start|stop|restart    one of them, `KIND:NAME`
    POST   /api/v1/listeners/certificates/reload        every certificate; which could not be

Promise: an operation answers when it is done, and touches no other listener; a fault is told in one
line with status 422.
"""

from __future__ import annotations

from typing import Any, cast

from klein import Klein
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from werkzeug.exceptions import HTTPException

from mqttd.admin.api import ApiError, answer, refusal

__all__ = ["ListenersApi"]


class ListenersApi:
    """The resource below ``/api/v1/listeners``; `doors` is a `mqttd.transports` `Listeners`."""

    app = Klein()

    def __init__(self, doors: Any) -> None:
        self.doors = doors
        self.log = Logger(namespace="mqttd")

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/listeners``."""
        return cast(IResource, self.app.resource())

    @app.route("/certificates/reload", methods=["POST"])
    def reload(self, request: IRequest) -> bytes:
        """Read every certificate again; those with a fault keep what they had."""
        self.log.info("certificates: reload by administrator")
        told = self.doors.reload_certificates()
        if faults := {name: fault for name, fault in told.items() if fault}:
            text = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
            raise ApiError(422, "reload_failed", f"the old certificates stay in use: {text}")
        return answer(request, {"reloaded": sorted(told)})

    @app.route("/<string:name>/<any(start, stop, restart):operation>", methods=["POST"])
    def change(self, request: IRequest, name: str, operation: str) -> Deferred[bytes]:
        """Start, stop or restart one listener; the answer is its state afterwards."""
        try:
            door = self.doors.find(name)
        except KeyError:
            known = ", ".join(entry["id"] for entry in self.doors.describe())
            text = f"no listener {name!r}; there are: {known}"
            raise ApiError(404, "not_found", text) from None
        self.log.info("listener {name}: {what} by administrator", name=door.id, what=operation)
        done = maybeDeferred(getattr(door, operation))
        return done.addCallback(lambda _: answer(request, door.describe()))

    # -- errors

    @app.handle_errors(ApiError)
    def refused(self, request: IRequest, failure: Failure) -> bytes:
        """A request we refuse."""
        error = cast(ApiError, failure.value)
        return refusal(request, error.status, error.code, error.message)

    @app.handle_errors(HTTPException)
    def no_route(self, request: IRequest, failure: Failure) -> bytes:
        """No such path, or a method it has not."""
        error = cast(HTTPException, failure.value)
        path = request.path.decode("ascii", "replace")
        code = "method_not_allowed" if error.code == 405 else "not_found"
        return refusal(request, error.code or 404, code, f"no {path}")

    @app.handle_errors(Exception)
    def failed(self, request: IRequest, failure: Failure) -> bytes:
        """The listener cannot be opened."""
        return refusal(request, 422, "listener_failed", failure.getErrorMessage())
