"""The log over HTTP: where it goes, what was dropped, and the levels of its modules.

    GET    /api/v1/log                                             levels, target, counts
    POST   /api/v1/log/level {"module": "mqttd.access", "level": "debug"}

An empty module is all of them; a level of null takes a module's own level back. It holds until a
reload or restart.
"""

from __future__ import annotations

from typing import Any, cast

from klein import Klein
from twisted.logger import Logger
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from mqttd.admin.requests import ApiError, answer, answer_faults, body_of

__all__ = ["LogApi"]


class LogApi:
    """The resource below ``/api/v1/log``; `log` is a `mqttd.monitor.log.service.Log`."""

    app = Klein()

    def __init__(self, log: Any) -> None:
        self.log = Logger(namespace="mqttd.admin")
        self.written = log

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/log``."""
        return cast(IResource, self.app.resource())

    @app.route("/", methods=["GET"], strict_slashes=False)
    def show(self, request: IRequest) -> bytes:
        """Levels, where it goes, and how much was written and dropped."""
        return answer(request, self.written.describe())

    @app.route("/level", methods=["POST"])
    def level(self, request: IRequest) -> bytes:
        """Give a module, or all, another level."""
        body = body_of(request)
        module, level = body.get("module", ""), body.get("level")
        if not isinstance(module, str) or len(module) > 200:
            raise ApiError(400, "bad_request", "module: expected a name such as mqttd.access")
        try:
            self.written.set_level(module, level)
        except (ValueError, TypeError) as error:
            raise ApiError(400, "bad_request", f"level: {error}") from None
        self.log.info(
            "log level of {module}: {wanted} by administrator",
            module=module or "all modules",
            wanted=level or "as for what is above it",
        )
        return answer(request, self.written.describe())

    answer_faults(app)
