"""An etcd of several nodes in memory, whose answers to each of them may be lost or late."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress

from twisted.internet.task import Clock, deferLater

from mqttd.cluster.etcd.client import Etcd, EtcdError, Hangs, Json, Kv
from mqttd.cluster.etcd.keys import Keys

__all__ = ["KEYS", "Asked", "Store", "kv_of"]

KEYS = Keys("test")


class Store:
    """What etcd has: keys, their revisions, and what has changed below `all/`."""

    def __init__(self) -> None:
        self.revision = 10
        #: Value, revision in which it was created and changed, lease.
        self.kept: dict[str, tuple[str, int, int, int]] = {}
        self.log: list[tuple[int, list[tuple[Kv, bool]]]] = []
        self.leases: set[int] = set()
        self._granted = 0

    def grant(self) -> int:
        """A new lease."""
        self._granted += 1
        self.leases.add(self._granted)
        return self._granted

    def transact(self, body: Json) -> Json:
        """One transaction. Raises EtcdError."""
        before, revision = dict(self.kept), self.revision + 1
        try:
            said = self._transact(body, revision)
        except EtcdError:
            self.kept = before
            raise
        self._changed(before, revision)
        return {**said, "header": {"revision": self.revision}}

    def end(self, lease: int) -> None:
        """A lease has ended."""
        before = dict(self.kept)
        self.leases.discard(lease)
        self.kept = {key: kv for key, kv in before.items() if kv[3] != lease}
        self._changed(before, self.revision + 1)

    def _changed(self, before: dict[str, tuple[str, int, int, int]], revision: int) -> None:
        if self.kept == before:
            return
        self.revision = revision
        events = []
        for key in before.keys() | self.kept.keys():
            if before.get(key) != self.kept.get(key):
                gone = key not in self.kept
                events.append((kv_of(key, ("", 0, revision, 0) if gone else self.kept[key]), gone))
        events = [each for each in events if each[0].key.startswith(KEYS.all)]
        if events:
            self.log.append((revision, events))

    def all(self) -> list[Kv]:
        """What stands below `all/`."""
        found = sorted((b64decode(key), key) for key in self.kept)
        return [kv_of(key, self.kept[key]) for name, key in found if name.startswith(KEYS.all)]

    def _transact(self, body: Json, revision: int) -> Json:
        done = all(self._holds(each) for each in body.get("compare", ()))
        steps = body.get("success" if done else "failure", ())
        return {"succeeded": done, "responses": [self._step(each, revision) for each in steps]}

    def _holds(self, when: Json) -> bool:
        _, made, changed, _ = self.kept.get(when["key"], ("", 0, 0, 0))
        return int(when.get("mod_revision", changed)) == changed and (
            int(when.get("create_revision", made)) == made
        )

    def _step(self, step: Json, revision: int) -> Json:
        if "request_txn" in step:
            return {"response_txn": self._transact(step["request_txn"], revision)}
        if "request_put" in step:
            change = step["request_put"]
            if int(change["lease"]) not in self.leases | {0}:
                raise EtcdError("requested lease not found")
            made = self.kept.get(change["key"], ("", revision))[1]
            self.kept[change["key"]] = change["value"], made, revision, int(change["lease"])
            return {}
        if "request_delete_range" in step:
            self.kept.pop(step["request_delete_range"]["key"], None)
            return {}
        key = step["request_range"]["key"]
        if key not in self.kept:
            return {"response_range": {}}
        names = ("value", "create_revision", "mod_revision", "lease")
        kv = {"key": key, **dict(zip(names, self.kept[key], strict=True))}
        return {"response_range": {"kvs": [kv]}}


def kv_of(key: str, found: tuple[str, int, int, int]) -> Kv:
    value, made, changed, lease = found
    return Kv(b64decode(key), b64decode(value), made, changed, lease)


class Asked(Etcd):
    """The etcd that one node asks; `fate` says what becomes of a request."""

    def __init__(self, clock: Clock, store: Store, fate: Callable[[], tuple[str, float]]) -> None:
        super().__init__(clock, ["http://localhost"])
        self.store = store
        self.fate = fate

    async def ask(self, path: str, body: Json, patience: float = 2.0) -> Json:
        fate, seconds = self.fate()
        if fate == "gone":
            raise EtcdError("no connection")
        if fate == "held":
            self.reactor.callLater(seconds, self._late, body)
            await deferLater(self.reactor, 2.0)
            raise EtcdError("does not answer")
        said = self.store.transact(body)
        if fate == "lost":
            raise EtcdError("no answer")
        if fate == "hangs":
            raise Hangs("hangs")
        if fate == "late":
            await deferLater(self.reactor, min(seconds, 2.0))
            if seconds > 2.0:
                raise EtcdError("does not answer")
        return said

    def _late(self, body: Json) -> None:
        with suppress(EtcdError):
            self.store.transact(body)
