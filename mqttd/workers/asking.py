"""How the supervisor asks its workers what it was asked.

    request, caller --> Asker --> data/worker-K/mqttd.sock --> Answer, or ApiError

A worker is told for whom it is asked, so that roles hold there too, and tells what it has changed.

Promise: what a worker refuses is refused in its words; of one that is being started again, or does
not answer, it is said which it is (503, 502). What shows something waits for no worker that gives
no sign of life, leaves it out, and says so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

from twisted.internet.defer import CancelledError, Deferred, gatherResults, maybeDeferred
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, FileBodyProducer, ResponseFailed, readBody
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from mqttd.admin.http.requests import CALLER, CHANGE, ApiError, Caller, note
from mqttd.admin.http.route import Ask
from mqttd.admin.lists import WORKER
from mqttd.config.schema import Config
from mqttd.workers.process import WorkerProcess

__all__ = [
    "Answer",
    "Asker",
    "Json",
    "NoAnswer",
    "Workers",
    "accepted",
    "away",
    "noted",
    "told_for",
]

Json = dict[str, Any]

#: Headers of a request that are for who serves it, and of an answer for who has asked.
_PASSED: Final = (b"idempotency-key",)
_WORKER: Final = b"http://worker"
#: Seconds between two looks whether a worker that is asked still gives signs of life.
_LOOK: Final = 0.5


class NoAnswer(ApiError):
    """A worker is being started, or does not answer: which, and why."""

    def __init__(self, status: int, code: str, message: str, worker: int, why: str) -> None:
        super().__init__(status, code, message)
        self.worker = worker
        self.why = why


class Workers(Protocol):
    """Who has the workers."""

    workers: list[WorkerProcess]
    config: Config
    count: int
    opened: bool
    #: Listeners that were stopped: a worker that is started again leaves them so.
    stopped: set[str]
    reactor: Any
    log: Logger

    def socket_of(self, number: int) -> str:
        """The admin socket of a worker."""


class Answer:
    """What a worker has answered."""

    def __init__(
        self, worker: int, status: int, change: str | None, body: bytes, media: str
    ) -> None:
        self.worker = worker
        self.media = media
        self.status = status
        self.change = change
        self.body = body

    def json(self) -> Json:
        """The object in it."""
        found: Json = json.loads(self.body)
        return found


@implementer(IAgentEndpointFactory)
class _Socket:
    """Connects to a worker's admin socket, whatever the address says."""

    def __init__(self, reactor: Any, path: str) -> None:
        self.reactor = reactor
        self.path = path

    def endpointForURI(self, uri: Any) -> UNIXClientEndpoint:
        """See `IAgentEndpointFactory`."""
        return UNIXClientEndpoint(self.reactor, self.path)


class Asker:
    """Asks the workers of `service`."""

    def __init__(self, service: Workers) -> None:
        self.service = service

    # -- who is there --------------------------------------------------------------------------

    def there(self) -> list[int]:
        """The workers that serve, by their numbers; raises ApiError if there are none."""
        found = [worker.number for worker in self.service.workers if worker.ready]
        if not found:
            raise away(1)
        return found

    def anyone(self) -> int:
        """One that serves, and answers if any does; raises ApiError if there is none."""
        there = self.there()
        running = (number for number in there if self._state(number) == "running")
        return next(running, there[0])

    def whole(self) -> list[int]:
        """All of them; raises ApiError while one is away."""
        for worker in self.service.workers:
            if not worker.ready:
                raise away(worker.number)
        return self.there()

    # -- asked ---------------------------------------------------------------------------------

    def request(
        self,
        number: int,
        method: str,
        target: str,
        body: bytes = b"",
        caller: Caller | None = None,
        headers: dict[bytes, bytes] | None = None,
    ) -> Deferred[Any]:
        """Begin a request to a worker; fires with Twisted's response. Raises ApiError."""
        sent = Headers({b"content-type": [b"application/json"]})
        for name, value in (headers or {}).items():
            sent.setRawHeaders(name, [value])
        if caller is not None:
            told_for(sent, caller)
        producer = FileBodyProducer(io.BytesIO(body)) if body else None
        return self.send(number, method.encode(), target, sent, producer)

    def send(
        self, number: int, method: bytes, target: str, headers: Headers, body: Any = None
    ) -> Deferred[Any]:
        """The same of a request as it is; `body` is an `IBodyProducer` or None."""
        service = self.service
        if not service.workers[number - 1].ready:
            raise away(number)
        reactor = service.reactor
        agent = Agent.usingEndpointFactory(reactor, _Socket(reactor, service.socket_of(number)))
        asked: Deferred[Any] = agent.request(method, _WORKER + target.encode(), headers, body)
        return asked

    def tell(
        self,
        number: int,
        method: str,
        target: str,
        body: bytes = b"",
        caller: Caller | None = None,
        headers: dict[bytes, bytes] | None = None,
    ) -> Deferred[Answer]:
        """What a worker answers, whatever that is."""

        def failed(failure: Failure) -> Any:
            raise self.unanswered(number, target, failure)

        def read(response: Any) -> Any:
            told = response.headers.getRawHeaders(CHANGE)
            change = told[0] if told else None
            media = (response.headers.getRawHeaders("content-type") or ["application/json"])[0]
            return readBody(response).addCallback(
                lambda data: Answer(number, response.code, change, data, media)
            )

        asked = self.request(number, method, target, body, caller, headers)
        asked.addCallback(read).addErrback(failed)
        return self._watched(asked, number) if method == "GET" else asked

    def _state(self, number: int) -> str:
        return self.service.workers[number - 1].state

    def unanswered(self, number: int, target: str, failure: Failure) -> ApiError:
        """What to say of a worker that has not answered, or has refused."""
        if isinstance(failure.value, ApiError):
            return failure.value
        log = self.service.log
        if failure.check(*_LOST):
            why = _why(failure)
            log.warn("worker {number} did not answer {target}: {why}", number=number,
                     target=target, why=why)  # fmt: skip
            text = f"worker {number} did not answer: {why}"
            return NoAnswer(502, "bad_gateway", text, number, why)
        log.failure("worker {number} did not answer {target}", failure, number=number,
                    target=target)  # fmt: skip
        return ApiError(502, "bad_gateway", f"worker {number} did not answer; see the log")

    def watch(self, number: int, give_up: Callable[[], object]) -> Callable[[], None]:
        """Give up what is waited for of a worker that gives no sign of life.

        Returns what ends the watch; calling it again does nothing.
        """

        def look() -> None:
            if self._state(number) == "silent":
                stop()
                give_up()

        def stop() -> None:
            if looking.running:
                looking.stop()

        looking = LoopingCall(look)
        looking.clock = self.service.reactor
        looking.start(_LOOK, now=False)
        return stop

    def _watched(self, asked: Deferred[Answer], number: int) -> Deferred[Answer]:
        """Give an answer up whose worker gives no sign of life; one may be long in coming."""
        stop = self.watch(number, asked.cancel)

        def answered(result: Any) -> Any:
            stop()
            return result

        return asked.addBoth(answered)

    def ask(
        self, number: int, ask: Ask, target: str = "", body: bytes | None = None, method: str = ""
    ) -> Any:
        """Ask a worker what was asked here, or `target`; fails with its refusal."""
        request = ask.request
        if not method:
            method = "GET" if request.method == b"HEAD" else request.method.decode("ascii")
        if body is None:
            request.content.seek(0)
            body = request.content.read()
        headers = {name: value for name in _PASSED if (value := request.getHeader(name))}
        where = target or request.uri.decode("ascii")
        asked = self.tell(number, method, where, body, ask.caller, headers)
        return asked.addCallback(accepted)

    def each(
        self, numbers: list[int], ask: Ask, target: str = "", body: bytes | None = None
    ) -> Deferred[list[Answer]]:
        """Ask these workers at the same time; a refusal of one is the refusal of all."""
        asked = [self.ask(number, ask, target, body) for number in numbers]
        return gatherResults(asked, consumeErrors=True).addErrback(_first)

    def shown(
        self, ask: Ask, target: str = "", body: bytes | None = None
    ) -> Deferred[list[Answer]]:
        """Ask all for what they show, at the same time; who does not answer is left out, and named.

        Fails with a refusal of one, and where none answers.
        """

        why: dict[int, str] = {}

        def left(failure: Failure) -> None:
            failure.trap(NoAnswer)
            error: Any = failure.value
            why[error.worker] = error.why

        def answered(found: list[Answer | None]) -> list[Answer]:
            answers = [each for each in found if each is not None]
            if not answers:
                raise away(1)
            self.leave_out(ask, {each.worker for each in answers}, why)
            return answers

        asked = [
            maybeDeferred(self.ask, number, ask, target, body).addErrback(left)
            for number in self.there()
        ]
        gathered: Deferred[list[Answer | None]] = gatherResults(asked, consumeErrors=True)
        return gathered.addErrback(_first).addCallback(answered)

    def leave_out(self, ask: Ask, told: Collection[int], why: Mapping[int, str]) -> None:
        """Say of an answer which workers' part is not in it; all others have `told` theirs."""
        numbers = [each.number for each in self.service.workers if each.number not in told]
        ask.missing = [{WORKER: each, "reason": why.get(each, _STARTED)} for each in numbers]
        if numbers:
            note(ask.request, _left_out(numbers))


def _left_out(missing: list[int]) -> str:
    """What is said of an answer without these workers."""
    if len(missing) == 1:
        return f"worker {missing[0]} does not answer, and is left out"
    return f"workers {', '.join(map(str, missing))} do not answer, and are left out"


def told_for(headers: Headers, caller: Caller) -> None:
    """Have a worker know for whom it is asked."""
    headers.setRawHeaders(CALLER, [f"{quote(caller.name)} {caller.role}".encode()])


#: Why one does not answer that is not there.
_STARTED: Final = "it is being started"


def away(number: int) -> NoAnswer:
    """A worker is being started again."""
    return NoAnswer(503, "unavailable", f"worker {number} is being started", number, _STARTED)


#: How a worker that ends, or is stuck, does not answer.
_LOST: Final = (ConnectError, ConnectionClosed, CancelledError, ResponseFailed)


def _why(failure: Failure) -> str:
    """Why there is no answer, in words; of several reasons the first."""
    error: Any = failure.value
    while isinstance(error, ResponseFailed) and error.reasons:
        failure = error.reasons[0]
        error = failure.value
    if failure.check(CancelledError):
        return "it gives no sign of life"
    return failure.getErrorMessage().rstrip(".")


def noted(ask: Ask, answers: list[Answer]) -> None:
    """What workers have changed, for the audit; nothing, if none of them has."""
    told = [each.change for each in answers if each.change is not None]
    if told:
        ask.changed(*json.loads(told[0]))
    else:
        ask.unchanged = True


def accepted(said: Answer) -> Answer:
    """An answer that is no refusal; raises ApiError for one."""
    if said.status < 400:
        return said
    try:
        told = said.json()
        raise ApiError(said.status, str(told["code"]), str(told["detail"]))
    except (ValueError, KeyError, TypeError):
        raise ApiError(502, "bad_gateway", f"worker {said.worker} has failed") from None


def _first(failure: Failure) -> Any:
    """The refusal, out of what tells that one of several has failed."""
    value: Any = failure.value
    return getattr(value, "subFailure", failure)
