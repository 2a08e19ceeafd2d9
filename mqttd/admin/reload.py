"""The configuration over HTTP: what is in force and where it comes from, and reading it again.

    GET    /api/v1/config            every key: value in force, where it was set, what the file says
    POST   /api/v1/config/reload     {dry_run, confirmed}: the plan, and whether it was applied

Promise: a plan that would cut somebody off is applied when it was `confirmed` only.
"""

from __future__ import annotations

from typing import Any, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from mqttd.admin.requests import ApiError, answer, answer_faults, body_of

__all__ = ["ReloadApi"]


class ReloadApi:
    """The resource below ``/api/v1/config``; `reload` is a `mqttd.reload.Reload`."""

    app = Klein()

    def __init__(self, reload: Any) -> None:
        self.work = reload
        self.log = Logger(namespace="mqttd")

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/config/``."""
        return cast(IResource, self.app.resource())

    def show(self, request: IRequest) -> bytes:
        """The configuration in force."""
        return answer(request, self.work.describe())

    @app.route("/reload", methods=["POST"])
    def reload(self, request: IRequest) -> Deferred[bytes]:
        """Read the configuration again; the answer is the plan, and whether it was applied."""
        body = body_of(request)
        known = ("dry_run", "confirmed")
        for key, value in body.items():
            if key not in known or not isinstance(value, bool):
                raise ApiError(
                    400, "bad_request", f"{key!r}: expected dry_run and confirmed, true or false"
                )
        self.log.info("configuration: reload by administrator")
        work: Deferred[Any] = self.work.run(**body)
        return work.addCallbacks(lambda told: answer(request, told), self._failed)

    def _failed(self, failure: Failure) -> Any:
        code = getattr(failure.value, "code", "")
        if code not in ("reload_failed", "busy"):
            return failure
        raise ApiError(409 if code == "busy" else 422, code, str(failure.value))

    answer_faults(app)
