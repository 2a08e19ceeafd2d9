"""What changes in etcd, told as it does.

    from a revision on --> Watch --> changes, in the order of their revisions
                                '--> ended: compacted, its member is gone, or hangs

Promise: after its end nothing more is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from mqttd.cluster.etcd.client import TIMEOUT, Etcd, Json, Kv, end_of, kv_of, late, text_of
from mqttd.cluster.etcd.why import why_of

__all__ = ["Watch"]

#: Bytes of one response that has not wholly come.
_MOST: Final = 64 << 20


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
            "key": text_of(prefix),
            "range_end": text_of(end_of(prefix)),
            "start_revision": str(revision),
        }
        body = msgspec.json.encode({"create_request": create})
        asked: Deferred[Any] = etcd.client.post(
            self.endpoint + "/v3/watch", data=body, headers=etcd.headers, unbuffered=True
        )
        self._asked: Deferred[Any] | None = asked
        asked.addTimeout(TIMEOUT, etcd.reactor, late)
        etcd.watches.add(self)
        asked.addCallbacks(self._answered, self._failed)

    def _answered(self, response: Any) -> None:
        self._asked = None
        response.deliverBody(self)

    def _failed(self, failure: Failure) -> None:
        self._asked = None
        self._end(why_of(failure.value, self.endpoint, self.endpoint in self.etcd.spoken))

    def stop(self) -> None:
        """No more is wanted."""
        self.ended = None
        self.etcd.watches.discard(self)
        if self._asked is not None:
            self._asked.cancel()
        elif self.transport is not None:
            self.transport.loseConnection()

    def give_up(self, text: str) -> None:
        """Its member hangs."""
        asked = self._asked
        self._end(text)
        if asked is not None:
            asked.cancel()

    def _end(self, text: str) -> None:
        self.etcd.watches.discard(self)
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
            revision = int(result["header"]["revision"])
            self.etcd.revision = max(self.etcd.revision, revision)
            self.told(revision, events)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """The response is over."""
        self._end("the watch has ended")
