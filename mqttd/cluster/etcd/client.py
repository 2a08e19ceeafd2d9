"""A client of etcd, version 3, by the JSON it speaks over HTTP.

    user, password --> a token that goes along with everything; another when etcd takes it no more
    put, remove, equals, absent --> transaction --> Answer: done or not, revision, what was read
    range_of, lease_*                                '--next endpoint where one does not answer
                                                     '--another at once where one alone hangs

Promise: an answer or a failure (`EtcdError`) within `TIMEOUT`, in half a second (`Hangs`) where the
member that is asked hangs and another does not. A change that failed may have been made all the
same, so whoever asks again asks for what may be done twice. Keys and values are bytes.

etcd 3.4 and later: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.cluster.etcd.hanging import Hanging
from mqttd.cluster.etcd.past import forgotten
from mqttd.cluster.etcd.why import TIMEOUT, EtcdError, timed_out, why_of

__all__ = ["TIMEOUT", "Answer", "Etcd", "EtcdError", "Json", "Kv", "absent", "equals"]
__all__ += ["created", "end_of", "get", "kv_of", "nested", "put", "remove", "remove_below"]
__all__ += ["Hangs", "Watching", "late", "text_of"]

#: Seconds between two looks at whether members that are watched answer.
_LOOK: Final = 1.0

Json = dict[str, Any]


class Hangs(EtcdError):
    """The member that was asked does not answer, and others do: one of them is asked next."""


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


def text_of(data: bytes) -> str:
    """Bytes as etcd's JSON has them."""
    return b64encode(data).decode()


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which does not end with 0xFF."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def absent(key: bytes) -> Json:
    """A condition: there is no such key."""
    return {"key": text_of(key), "target": "CREATE", "create_revision": "0"}


def equals(key: bytes, changed: int) -> Json:
    """A condition: it has not changed since that revision."""
    return {"key": text_of(key), "target": "MOD", "mod_revision": str(changed)}


def created(key: bytes, revision: int) -> Json:
    """A condition: it is the one that was created in that revision."""
    return {"key": text_of(key), "target": "CREATE", "create_revision": str(revision)}


def put(key: bytes, value: bytes, lease: int = 0) -> Json:
    """A change: this is the value."""
    return {"request_put": {"key": text_of(key), "value": text_of(value), "lease": str(lease)}}


def remove(key: bytes) -> Json:
    """A change: it is gone."""
    return {"request_delete_range": {"key": text_of(key)}}


def remove_below(start: bytes, end: bytes) -> Json:
    """A change: all from `start` on and before `end` are gone."""
    return {"request_delete_range": {"key": text_of(start), "range_end": text_of(end)}}


def get(key: bytes) -> Json:
    """A question within a transaction."""
    return {"request_range": {"key": text_of(key)}}


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


class Watching(Protocol):
    """What hears of changes from one member."""

    endpoint: str

    def give_up(self, text: str) -> None:
        """That hangs."""


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
        #: Those that have answered once: they are what they are said to be.
        self.spoken: set[str] = set()
        #: Told what etcd has answered in place of what was asked for.
        self.refused: Callable[[str], object] = lambda text: None
        #: A key that may be read; told which member hangs.
        self.key = b"mqttd"
        self.hung: Callable[[str], object] = lambda text: None
        #: Its id, and the latest revision that it has told; why nothing is asked any more, and who
        #: is told.
        self.cluster = ""
        self.revision = 0
        self.older = ""
        self.is_older: Callable[[str], object] = lambda text: None
        #: How often one was found that does.
        self.hangs = 0
        self.hanging = Hanging(reactor, self.endpoints, self._read, self._hangs)
        #: What waits for an answer, and of whom.
        self.watches: set[Watching] = set()
        self._asked: dict[Deferred[Any], str] = {}
        self._next_look = 0.0
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
        if self.older:
            raise EtcdError(self.older)
        endpoint = self.endpoints[self.at]
        asked: Deferred[Any] = Deferred.fromCoroutine(self._post(endpoint + path, body))
        asked.addTimeout(patience, self.reactor, late)
        self.hanging.await_soon(endpoint, asked)
        self._asked[asked] = endpoint
        try:
            code, data = await asked
        except Exception as error:
            if asked not in self._asked:
                raise Hangs(_hanging(endpoint)) from None
            why = why_of(error, endpoint, endpoint in self.spoken)[:300]
            self._unanswered(endpoint, why)
            raise EtcdError(f"{endpoint}: {why}"[:300]) from None
        finally:
            self._asked.pop(asked, None)
        try:
            said: Json = msgspec.json.decode(data, type=dict)
        except ValueError:
            said = {}
        if code != 200 or not said.keys() & _SAYS:
            text = said.get("error") or data[:200].decode(errors="replace")
            if code == 200 or not said.get("error"):
                text = f"this is no answer of etcd: {text!r}"
            if code >= 500:
                self._unanswered(endpoint, f"{code}: {text}")
            self.refused(text)
            raise EtcdError(f"{endpoint}: {code}: {text}")
        self.errors.clear()
        self.spoken.add(endpoint)
        return said

    def _unanswered(self, endpoint: str, why: str) -> None:
        if not self.errors:
            self.silent_since = self.reactor.seconds()
        self.errors[endpoint] = why
        self.next_endpoint(endpoint)

    # -- a member that hangs -------------------------------------------------------------------

    def tick(self) -> None:
        """A few times a second: whether those that are watched answer."""
        now = self.reactor.seconds()
        if now >= self._next_look and len(self.endpoints) > 1:
            self._next_look = now + _LOOK
            for endpoint in {watch.endpoint for watch in self.watches}:
                self.hanging.look(endpoint)

    def _read(self, endpoint: str) -> Deferred[Any]:
        body = {"key": text_of(self.key), "keys_only": True}
        asked = Deferred.fromCoroutine(self._post(endpoint + "/v3/kv/range", body))
        asked.addTimeout(TIMEOUT, self.reactor, late)
        return asked.addCallback(_is_answer)

    def _hangs(self, endpoint: str, other: str) -> None:
        """What waits for it waits no more."""
        self.hangs += 1
        if self.endpoints[self.at] == endpoint:
            self.at = self.endpoints.index(other)
        self._unanswered(endpoint, _hanging(endpoint))
        self.hung(_hanging(endpoint))
        for asked, at in list(self._asked.items()):
            if at == endpoint:
                self._asked.pop(asked, None)
                asked.cancel()
        for watch in list(self.watches):
            if watch.endpoint == endpoint:
                watch.give_up(_HANGS)

    async def _post(self, url: str, body: Json) -> tuple[int, bytes]:
        data = msgspec.json.encode(body)
        # Who logs in shows no token: one that is none any more would be refused.
        headers = _HEADERS if url.endswith(_LOG_IN) else self.headers
        response = await self.client.post(url, data=data, headers=headers)
        parts: list[bytes] = []
        await self._collect(response, parts.append)
        return response.code, b"".join(parts)

    # -- keys ----------------------------------------------------------------------------------

    def _revision_of(self, said: Json, since: int) -> int:
        """That of an answer; `since`: what was known when it was asked for. Raises EtcdError.

        One that has forgotten what was claimed, and whose revisions are those of other things by
        now, is asked nothing any more.
        """
        header = said["header"]
        if not self.older and (why := forgotten(header, since, self.cluster)):
            self.older = why
            self.is_older(why)
        if self.older:
            raise EtcdError(self.older)
        self.cluster = self.cluster or str(header.get("cluster_id", ""))
        revision = int(header["revision"])
        self.revision = max(self.revision, revision)
        return revision

    async def transaction(
        self, when: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Answer:
        """All of `then` at once if all of `when` is so, else `otherwise`."""
        since = self.revision
        said = await self.ask(
            "/v3/kv/txn",
            {"compare": list(when), "success": list(then), "failure": list(otherwise)},
        )
        return _answer(said, self._revision_of(said, since))

    async def nested(self, some: Sequence[Json]) -> list[Answer]:
        """Transactions in one request, each by itself: compare, success, failure of each."""
        since, body = self.revision, {"success": [{"request_txn": each} for each in some]}
        said = await self._ask_again("/v3/kv/txn", body)
        revision = self._revision_of(said, since)
        return [_answer(each["response_txn"], revision) for each in said["responses"]]

    async def range_of(self, prefix: bytes, large: bytes = b"") -> Answer:
        """All that begin with this, by their keys, as they are in one revision.

        Read in pages, each in a turn of its own, so that neither etcd nor this node has all of it
        as one text; those that begin with `large`, too, are few in a page.
        """
        found: list[Kv] = []
        revision = 0
        last = end_of(prefix)
        spans = [(prefix, last, _MANY)]
        if large:
            behind = end_of(large)
            spans = [(prefix, large, _MANY), (large, behind, _FEW), (behind, last, _MANY)]
        for start, end, limit in spans:
            async for page in self.pages_of(start, end, limit, revision):
                found += page.found
                revision = page.revision
        return Answer(True, revision, tuple(found))

    async def pages_of(
        self, start: bytes, end: bytes, limit: int, revision: int = 0
    ) -> AsyncIterator[Answer]:
        """The keys from one to before another, as they are in this revision, so many at a time.

        0: the revision of the first page.
        """
        more = True
        while more:
            body = {
                "key": text_of(start), "range_end": text_of(end),
                "limit": str(limit), "revision": str(revision),
            }  # fmt: skip
            since = self.revision
            said = await self._ask_again("/v3/kv/range", body)
            found = tuple(kv_of(kv) for kv in said.get("kvs", ()))
            revision = self._revision_of(said, since) if not revision else revision
            more = bool(said.get("more"))
            if more:
                start = found[-1].key + b"\0"
            yield Answer(True, revision, found)

    async def _ask_again(self, path: str, body: Json) -> Json:
        """As `ask`, once more where the one that was asked hangs: another is asked then."""
        try:
            return await self.ask(path, body)
        except Hangs:
            return await self.ask(path, body)

    async def remove_all(self, prefix: bytes) -> None:
        """All that begin with this are gone."""
        body = {"key": text_of(prefix), "range_end": text_of(end_of(prefix))}
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
#: Keys in a page, and large ones.
_MANY: Final = 1000
_FEW: Final = 50


def _hanging(endpoint: str) -> str:
    return f"{endpoint}: {_HANGS}"


def _is_answer(answered: tuple[int, bytes]) -> None:
    """Raises EtcdError for what a member says that has no majority."""
    if answered[0] >= 500:
        raise EtcdError(str(answered[0]))


def late(result: Any, seconds: float) -> Any:
    """No answer in time. Who gives up is told of a connection that was closed: by us."""
    if isinstance(result, Failure):
        raise EtcdError(timed_out(seconds))
    return result


def _is_unknown(error: str) -> bool:
    """Whether etcd says that the token is none any more: it is of a while, or of before a start."""
    return any(text in error for text in _UNKNOWN)


#: One of these is in each of its answers.
_SAYS: Final = {"header", "result"}
_HANGS: Final = "hangs: others answer, one of them is asked now"
_LOG_IN: Final = "/v3/auth/authenticate"
_UNKNOWN: Final = ("invalid auth token", "user name is empty", "revision of auth store is old")
