"""Listeners over HTTP: see them, start, stop and restart one, read files again.

    GET    /api/v1/listeners                            every listener
    POST   /api/v1/listeners/{id}/start|stop|restart    one of them, `KIND:NAME`
    POST   /api/v1/listeners/reload                     limits and files as configured now
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

from mqttd.admin.requests import ApiError, answer, answer_faults

__all__ = ["ListenersApi"]


class ListenersApi:
    """The resource below ``/api/v1/listeners``; `doors` is a `mqttd.transports` `Listeners`."""

    app = Klein()

    def __init__(self, doors: Any) -> None:
        self.doors = doors
        self.log = Logger(namespace="mqttd.admin")

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

    @app.route("/reload", methods=["POST"])
    def reload_settings(self, request: IRequest) -> bytes:
        """Give the listeners what the configuration says now, as far as connections can stay."""
        self.log.info("listeners: reload by administrator")
        try:
            return answer(request, {"listeners": self.doors.reload()})
        except ValueError as error:
            raise ApiError(422, "reload_failed", str(error)) from None

    @app.route("/<string:name>/<any(start, stop, restart):operation>", methods=["POST"])
    def change(self, request: IRequest, name: str, operation: str) -> Deferred[bytes]:
        """Start, stop or restart one listener; the answer is its state afterwards."""
        work = {
            "start": self.doors.start_one,
            "stop": self.doors.stop_one,
            "restart": self.doors.restart_one,
        }[operation]
        self.log.info("listener {name}: {what} by administrator", name=name, what=operation)
        done: Deferred[Any] = maybeDeferred(work, name)
        done.addErrback(self._fault, name)
        return done.addCallback(lambda door: answer(request, door.describe()))

    def _fault(self, failure: Failure, name: str) -> None:
        """There is no such listener, or it cannot be opened."""
        if failure.check(KeyError):
            known = ", ".join(entry["id"] for entry in self.doors.describe())
            raise ApiError(404, "not_found", f"no listener {name!r}; there are: {known}")
        failure.trap(ValueError)
        raise ApiError(422, "listener_failed", failure.getErrorMessage())

    answer_faults(app)
