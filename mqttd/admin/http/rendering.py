"""Renders a request of the API: finds what serves it, and writes what that answers, now or later.

    request --path, method--> rule of the app --+-- bytes, or a Deferred of them --> written
                                                +-- a resource, a plugin's --> renders it itself
                                                '-- an exception --> who answers for its kind

klein's own resource does the same with functions that refer to one another and to the request: a
circle for each, which nobody frees once it has grown old (`mqttd.monitor.garbage`).

Promise: a request that is over, answered or left by its peer, is in no circle, and what it waited
for is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from klein import Klein
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource, getChildForRequest
from twisted.web.server import NOT_DONE_YET

from mqttd.admin.http.requests import refusal

__all__ = ["Answers", "Rendering"]

#: Exceptions of a kind, and what answers a request with one.
Answers = tuple[tuple[type[BaseException], Callable[[Any, Failure], bytes]], ...]

_log: Final = Logger(namespace="mqttd.admin")


class Rendering(Resource):
    """The resource of `app`; an exception is told by the first of `answers` for its kind.

    The last of them is for `BaseException`.
    """

    isLeaf = True

    def __init__(self, app: Klein, answers: Answers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.app = app
        self.answers = answers

    def render(self, request: Any) -> Any:
        """Answer a request."""
        try:
            path = b"/".join((*request.prepath, *request.postpath)).decode()
        except UnicodeDecodeError:
            return refusal(request, 400, "bad_request", "the path is not UTF-8")
        over: list[object] = []
        request.notifyFinish().addBoth(over.append)
        done = maybeDeferred(self._found, request, path)
        request.notifyFinish().addBoth(_cancel, done)
        done.addCallback(_rendered, request)
        done.addErrback(self._failed, request, over)
        done.addCallback(_written, request, over)
        done.addErrback(_untold)
        return NOT_DONE_YET

    def _found(self, request: Any, path: str) -> Any:
        method = request.method.decode("latin-1")
        rules = self.app.url_map.bind("localhost", path_info=f"/{path}", default_method=method)
        rule, values = rules.match(return_rule=True)
        serve: Any = self.app.endpoints[rule.endpoint]
        request.prepath.extend(request.postpath[: serve.segment_count])
        request.postpath = request.postpath[serve.segment_count :]
        return self.app.execute_endpoint(rule.endpoint, request, **values)

    def _failed(self, failure: Failure, request: Any, over: list[object]) -> bytes | None:
        if over:
            if not failure.check(CancelledError):
                _untold(failure)
            return None
        return next(
            answer(request, failure)
            for kind, answer in self.answers
            if isinstance(failure.value, kind)
        )


def _rendered(found: object, request: Any) -> object:
    """What is to be written; None where a resource does that."""
    if not IResource.providedBy(found):
        return found
    request.render(getChildForRequest(found, request))
    return None


def _written(found: Any, request: Any, over: list[object]) -> None:
    if found is not None and not over:
        request.write(found)
        request.finish()


def _cancel(_: object, done: Deferred[Any]) -> None:
    done.cancel()


def _untold(failure: Failure) -> None:
    """What came too late to be told to who has asked."""
    _log.failure("a request failed after its answer", failure)
