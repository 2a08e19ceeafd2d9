"""A client of etcd, version 3, by the JSON it speaks over HTTP.

    user, password --> a token that goes along with everything; another when etcd takes it no more
    put, remove, equals, absent --> transaction --> Answer: done or not, revision, what was read
    range_of, lease_*                                '--next endpoint where one does not answer
    Watch <-- events in the order of their revisions, from one on

Promise: an answer or a failure (`EtcdError`) within `TIMEOUT`; a change that failed may have been
made all the same, so whoever asks again asks for what may be done twice. Keys and values are bytes.

etcd 3.4 and later: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

__all__ = ["TIMEOUT", "Answer", "Etcd", "EtcdError", "Json", "Kv", "Watch", "absent", "equals"]
__all__ += ["created", "end_of", "get", "kv_of", "nested", "put", "remove", "remove_below"]
__all__ += ["timed_out"]

#: Seconds for an answer. A member that has no majority takes seven to say so.
TIMEOUT: Final = 2.0
#: Bytes of one response of a watch that has not wholly come.
_MOST: Final = 64 << 20

Json = dict[str, Any]


class EtcdError(Exception):
    """etcd has not answered, or has refused; the text says which."""

    def __repr__(self) -> str:
        """Its text: operators read it where a client is refused, and not always is it etcd."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Kv:
    """A key with its value, of the revisions in which it was created and changed last."""

    key: bytes
    value: bytes
    created: int
    changed: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked: whether it was done, in which revision, what was read; of `nested` changes
    which were made."""

    done: bool
    revision: int
    found: tuple[Kv, ...] = ()
    nested: tuple[bool, ...] = ()


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which does not end with 0xFF."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def absent(key: bytes) -> Json:
    """A condition: there is no such key."""
    return {"key": _text(key), "target": "CREATE", "create_revision": "0"}


def equals(key: bytes, changed: int) -> Json:
    """A condition: it has not changed since that revision."""
    return {"key": _text(key), "target": "MOD", "mod_revision": str(changed)}


def created(key: bytes, revision: int) -> Json:
    """A condition: it is the one that was created in that revision."""
    return {"key": _text(key), "target": "CREATE", "create_revision": str(revision)}


def put(key: bytes, value: bytes, lease: int = 0) -> Json:
    """A change: this is the value."""
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": str(lease)}}


def remove(key: bytes) -> Json:
    """A change: it is gone."""
    return {"request_delete_range": {"key": _text(key)}}


def remove_below(start: bytes, end: bytes) -> Json:
    """A change: all from `start` on and before `end` are gone."""
    return {"request_delete_range": {"key": _text(start), "range_end": _text(end)}}


def get(key: bytes) -> Json:
    """A question within a transaction."""
    return {"request_range": {"key": _text(key)}}


def nested(when: Json, then: Json) -> Json:
    """A change that is made if this is so, whatever becomes of others of its transaction."""
    return {"request_txn": {"compare": [when], "success": [then]}}


def kv_of(said: Json) -> Kv:
    """A key as etcd says it."""
    return Kv(
        b64decode(said["key"]),
        b64decode(said.get("value", "")),
        int(said.get("create_revision", 0)),
        int(said.get("mod_revision", 0)),
        int(said.get("lease", 0)),
    )


def _answer(said: Json, revision: int) -> Answer:
    found = []
    nested = []
    for each in said.get("responses", ()):
        for kv in each.get("response_range", {}).get("kvs", ()):
            found.append(kv_of(kv))
        if "response_txn" in each:
            nested.append(bool(each["response_txn"].get("succeeded")))
    return Answer(bool(said.get("succeeded")), revision, tuple(found), tuple(nested))


class Etcd:
    """The cluster of etcd at `endpoints`; `tls` is what `Agent` takes as context factory.

    login: user and password, where etcd asks for them.
    """

    def __init__(
        self,
        reactor: Any,
        endpoints: Sequence[str],
        tls: Any = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        import treq
        from twisted.web.client import Agent, HTTPConnectionPool

        self.reactor = reactor
        self.endpoints = tuple(endpoints)
        self.login = login
        #: What etcd knows us by; empty: it has to be asked for. The thread of `Keeper` reads it.
        self.token = ""
        #: The one that is asked.
        self.at = 0
        #: Those that have not answered since one last has, and why; since when that is so.
        self.errors: dict[str, str] = {}
        self.silent_since = 0.0
        #: Told what etcd has answered in place of what was asked for.
        self.refused: Callable[[str], object] = lambda text: None
        self.pool = HTTPConnectionPool(reactor, persistent=True)
        self.pool.maxPersistentPerHost = 16
        more = {} if tls is None else {"contextFactory": tls}
        agent = Agent(reactor, connectTimeout=TIMEOUT, pool=self.pool, **more)
        self.client: Any = treq.client.HTTPClient(agent)
        self._collect = treq.collect

    def close(self) -> Deferred[Any]:
        """Let go of the connections."""
        closed: Deferred[Any] = self.pool.closeCachedConnections()
        return closed

    def silence(self) -> tuple[float | None, dict[str, str]]:
        """Seconds for which none has answered, and why by endpoint; None: one has, last of all."""
        if not self.errors:
            return None, {}
        return self.reactor.seconds() - self.silent_since, self.errors

    def next_endpoint(self, endpoint: str) -> None:
        """This one does not answer."""
        if self.endpoints[self.at] == endpoint:
            self.at = (self.at + 1) % len(self.endpoints)

    async def ask(self, path: str, body: Json, patience: float = TIMEOUT) -> Json:
        """One request, answered in so many seconds; raises EtcdError."""
        if self.login is None:
            return await self._ask(path, body, patience)
        had = self.token
        try:
            if had:
                return await self._ask(path, body, patience)
        except EtcdError as error:
            if not _is_unknown(str(error)):
                raise
        if self.token == had:
            await self._log_in()
        return await self._ask(path, body, patience)

    async def _log_in(self) -> None:
        assert self.login is not None
        name, password = self.login
        said = await self._ask(_LOG_IN, {"name": name, "password": password})
        self.token = str(said["token"])

    @property
    def headers(self) -> dict[bytes, list[bytes]]:
        """Of each request."""
        return {**_HEADERS, b"Authorization": [self.token.encode()]} if self.token else _HEADERS

    async def _ask(self, path: str, body: Json, patience: float = TIMEOUT) -> Json:
        endpoint = self.endpoints[self.at]
        asked: Deferred[Any] = Deferred.fromCoroutine(self._post(endpoint + path, body))
        asked.addTimeout(patience, self.reactor, _late)
        try:
            code, data = await asked
        except Exception as error:
            why = _why(error, endpoint)[:300]
            self._unanswered(endpoint, why)
            raise EtcdError(f"{endpoint}: {why}"[:300]) from None
        try:
            said: Json = msgspec.json.decode(data)
        except ValueError:
            said = {}
        if code != 200:
            text = said.get("error") or data[:200].decode(errors="replace")
            if code >= 500:
                self._unanswered(endpoint, f"{code}: {text}")
            self.refused(text)
            raise EtcdError(f"{endpoint}: {code}: {text}")
        self.errors.clear()
        return said

    def _unanswered(self, endpoint: str, why: str) -> None:
        if not self.errors:
            self.silent_since = self.reactor.seconds()
        self.errors[endpoint] = why
        self.next_endpoint(endpoint)

    async def _post(self, url: str, body: Json) -> tuple[int, bytes]:
        data = msgspec.json.encode(body)
        # Who logs in shows no token: one that is none any more would be refused.
        headers = _HEADERS if url.endswith(_LOG_IN) else self.headers
        response = await self.client.post(url, data=data, headers=headers)
        parts: list[bytes] = []
        await self._collect(response, parts.append)
        return response.code, b"".join(parts)

    # -- keys ----------------------------------------------------------------------------------

    async def transaction(
        self, when: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Answer:
        """All of `then` at once if all of `when` is so, else `otherwise`."""
        said = await self.ask(
            "/v3/kv/txn",
            {"compare": list(when), "success": list(then), "failure": list(otherwise)},
        )
        return _answer(said, int(said["header"]["revision"]))

    async def nested(self, some: Sequence[Json]) -> list[Answer]:
        """Transactions in one request, each by itself: compare, success, failure of each."""
        said = await self.ask("/v3/kv/txn", {"success": [{"request_txn": each} for each in some]})
        revision = int(said["header"]["revision"])
        return [_answer(each["response_txn"], revision) for each in said["responses"]]

    async def range_of(self, prefix: bytes) -> Answer:
        """All that begin with this, by their keys."""
        body = {"key": _text(prefix), "range_end": _text(end_of(prefix))}
        said = await self.ask("/v3/kv/range", body)
        found = tuple(kv_of(kv) for kv in said.get("kvs", ()))
        return Answer(True, int(said["header"]["revision"]), found)

    async def remove_all(self, prefix: bytes) -> None:
        """All that begin with this are gone."""
        body = {"key": _text(prefix), "range_end": _text(end_of(prefix))}
        await self.ask("/v3/kv/deleterange", body)

    # -- what it keeps -------------------------------------------------------------------------

    async def status(self) -> Json:
        """What the member that is asked says of itself; `dbSizeInUse` (bytes), `errors`."""
        return await self.ask("/v3/maintenance/status", {})

    async def compact(self, revision: int) -> None:
        """Of before this revision only what still holds is kept: a watch from there on ends."""
        await self.ask("/v3/kv/compaction", {"revision": str(revision)})

    # -- leases --------------------------------------------------------------------------------

    async def lease_grant(self, seconds: int) -> int:
        """A new lease; its number."""
        return int((await self.ask("/v3/lease/grant", {"TTL": str(seconds)}))["ID"])

    async def lease_keep(self, lease: int, patience: float = TIMEOUT) -> bool:
        """Begin its time anew; False if it has ended."""
        said = await self.ask("/v3/lease/keepalive", {"ID": str(lease)}, patience)
        return int(said.get("result", {}).get("TTL", 0)) > 0

    async def lease_left(self, lease: int) -> int:
        """The whole seconds that it has left; below 0: it has ended."""
        return int((await self.ask("/v3/lease/timetolive", {"ID": str(lease)})).get("TTL", 0))

    async def lease_revoke(self, lease: int) -> None:
        """End it, and all that is under it."""
        await self.ask("/v3/lease/revoke", {"ID": str(lease)})


_HEADERS: Final = {b"Content-Type": [b"application/json"]}


def timed_out(seconds: float) -> str:
    """Why there is no answer of one that is silent for so long."""
    return f"does not answer (timed out after {seconds:g} s)"


def _late(result: Any, seconds: float) -> Any:
    """No answer in time. Who gives up is told of a connection that was closed: by us."""
    if isinstance(result, Failure):
        raise EtcdError(timed_out(seconds))
    return result


def _why(error: Any, endpoint: str) -> str:
    """What has gone wrong, and what may be the matter."""
    if isinstance(error, EtcdError):
        return str(error)
    if isinstance(error, ConnectTimeout):
        return timed_out(TIMEOUT)
    if type(error).__name__ == "ResponseNeverReceived" and endpoint.startswith("http:"):
        return "closed the connection without an answer; does it speak TLS (https)?"
    if reasons := getattr(error, "reasons", None):  # Twisted's, in which others are packed
        return f"{type(error).__name__}: {reasons[0].getErrorMessage()}"
    return f"{type(error).__name__}: {error}"


def _is_unknown(error: str) -> bool:
    """Whether etcd says that the token is none any more: it is of a while, or of before a start."""
    return any(text in error for text in _UNKNOWN)


_LOG_IN: Final = "/v3/auth/authenticate"
_UNKNOWN: Final = ("invalid auth token", "user name is empty", "revision of auth store is old")


class Watch(Protocol):
    """What changes below `prefix` from `revision` on.

    `told(revision, events)` gets those of one response, each a `Kv` and whether it was removed;
    `ended(text)` is called once, when no more come.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: bytes,
        revision: int,
        told: Callable[[int, list[tuple[Kv, bool]]], object],
        ended: Callable[[str], object],
    ) -> None:
        self.etcd = etcd
        self.told = told
        self.ended: Callable[[str], object] | None = ended
        self.endpoint = etcd.endpoints[etcd.at]
        self._rest = b""
        create = {
            "key": _text(prefix),
            "range_end": _text(end_of(prefix)),
            "start_revision": str(revision),
        }
        body = msgspec.json.encode({"create_request": create})
        asked: Deferred[Any] = etcd.client.post(
            self.endpoint + "/v3/watch", data=body, headers=etcd.headers, unbuffered=True
        )
        self._asked: Deferred[Any] | None = asked
        asked.addTimeout(TIMEOUT, etcd.reactor, _late)
        asked.addCallbacks(self._answered, self._failed)

    def _answered(self, response: Any) -> None:
        self._asked = None
        response.deliverBody(self)

    def _failed(self, failure: Failure) -> None:
        self._asked = None
        self._end(_why(failure.value, self.endpoint))

    def stop(self) -> None:
        """No more is wanted."""
        self.ended = None
        if self._asked is not None:
            self._asked.cancel()
        elif self.transport is not None:
            self.transport.loseConnection()

    def _end(self, text: str) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            self.etcd.next_endpoint(self.endpoint)
            if self.transport is not None:
                self.transport.loseConnection()
            ended(f"{self.endpoint}: {text}")

    # -- told by Twisted -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        """The response begins."""
        if self.ended is None and self.transport is not None:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """A response a line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.ended is None:
                return
            if line:
                try:
                    self._line(msgspec.json.decode(line))
                except (ValueError, KeyError, TypeError) as error:
                    self._end(f"cannot be understood: {error!r}")
        if len(self._rest) > _MOST:
            self._end("a response is too large")

    def _line(self, said: Json) -> None:
        result = said.get("result")
        if result is None or result.get("canceled"):
            why = said.get("error") or (result or {}).get("cancel_reason") or "compacted"
            self._end(str(why))
            return
        events = [
            (kv_of(event["kv"]), event.get("type") == "DELETE")
            for event in result.get("events", ())
        ]
        if events:
            self.told(int(result["header"]["revision"]), events)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """The response is over."""
        self._end("the watch has ended")
