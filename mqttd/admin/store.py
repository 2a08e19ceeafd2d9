"""The store over HTTP, of a broker that runs.

    GET    /api/v1/store                          what and where it is, how much is in it
    POST   /api/v1/store/backup {"path": "..."}   a copy, in a new file of the broker's user
    POST   /api/v1/store/compact                  unused space goes back; answered when it has

Acknowledgements wait while the copy is made, messages of others do not; compacting goes in steps,
between those that are written for clients.
"""

from __future__ import annotations

import os
from typing import Any, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from mqttd.admin.requests import ApiError, answer, answer_faults, body_of

__all__ = ["StoreApi"]


class StoreApi:
    """The resource below ``/api/v1/store``; `store` is a `mqttd.storage.store.Store` or None."""

    app = Klein()

    def __init__(self, store: Any) -> None:
        self.log = Logger(namespace="mqttd.admin")
        self.store = store

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/store``."""
        return cast(IResource, self.app.resource())

    @app.route("/", methods=["GET"], strict_slashes=False)
    def show(self, request: IRequest) -> bytes:
        """Where it is and what is in it."""
        if self.store is None:
            return answer(request, {"kind": "memory"})
        return answer(request, {"kind": "sqlite", **self.store.describe()})

    @app.route("/backup", methods=["POST"])
    def backup(self, request: IRequest) -> Deferred[bytes]:
        """Copy it to a new file."""
        if self.store is None:
            raise ApiError(409, "no_store", "store.kind is memory: there is nothing to copy")
        path = body_of(request).get("path")
        if not isinstance(path, str) or not os.path.isabs(path):
            raise ApiError(400, "bad_request", "path: expected an absolute path")

        def failed(failure: Failure) -> bytes:
            raise ApiError(507, "not_copied", f"{path}: {failure.getErrorMessage()}")

        def copied(size: int) -> bytes:
            self.log.info("store copied to {path} by administrator", path=path)
            return answer(request, {"path": path, "bytes": size})

        asked: Deferred[int] = self.store.backup(path)
        return asked.addCallbacks(copied, failed)

    @app.route("/compact", methods=["POST"])
    def compact(self, request: IRequest) -> Deferred[bytes]:
        """Give unused space back."""
        if self.store is None:
            raise ApiError(409, "no_store", "store.kind is memory: there is nothing to compact")

        def failed(failure: Failure) -> bytes:
            raise ApiError(507, "not_compacted", failure.getErrorMessage())

        asked: Deferred[Any] = Deferred.fromCoroutine(self.store.compact())
        return asked.addCallbacks(lambda done: answer(request, done), failed)

    answer_faults(app)
