"""Streams of JetStream, which servers keep on several machines: made, written, read, cut short.

    append --> the stream's leader --quorum--> the sequence number that it has there
    get(sequence), last(subject), cut(before), remove

Never asked for compare-and-set: with three copies several have won one race. A number that was
given is never given again, and what stands under it never changes.

Promise: an answer, or `NatsError`; what has failed may have been done, so a message that is sent
again may be there twice. https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, DeferredList

from mqttd.nats.client import TIMEOUT, Nats, NatsError

__all__ = ["JetStream", "Missing", "NoStream", "Stored"]

_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = (10037, 10043, 10057)
_IN_USE: Final = 10058
#: More copies than there are servers.
_TOO_MANY: Final = (10005, 10074)
#: Messages that are removed side by side.
_WINDOW: Final = 32
#: Seconds for a stream to be made, and its leader chosen.
_MAKE: Final = 10.0


class Missing(NatsError):
    """There is no such message in the stream, or none to look in."""


class NoStream(Missing):
    """There is no such stream, as far as servers know that have begun anew."""


class Stored(NamedTuple):
    """A message of a stream."""

    subject: str
    sequence: int
    data: bytes


class JetStream:
    """What `nats` reaches."""

    def __init__(self, nats: Nats) -> None:
        self.nats = nats

    async def ask(self, what: str, body: dict[str, Any], timeout: float = TIMEOUT) -> Any:
        """One request of its interface."""
        came = await self.nats.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout)
        return _checked(came.data)

    async def make(self, stream: str, subject: str, copies: int) -> None:
        """Make a stream of this subject, kept in files of so many servers; one may be there."""
        body = {
            "name": stream, "subjects": [subject], "retention": "limits", "storage": "file",
            "num_replicas": copies, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
            "max_age": 0, "discard": "new",
        }  # fmt: skip
        try:
            await self.ask(f"STREAM.CREATE.{stream}", body, _MAKE)
        except NatsError as error:
            if any(f"({code})" in str(error) for code in _TOO_MANY):
                raise NatsError(f"{error}: {copies} copies are asked for (replicas)") from None
            if f"({_IN_USE})" not in str(error):
                raise

    async def remove(self, stream: str) -> None:
        """Remove a stream, if there is one."""
        try:
            await self.ask(f"STREAM.DELETE.{stream}", {}, _MAKE)
        except Missing:
            pass

    async def append(self, subject: str, data: bytes, timeout: float = TIMEOUT) -> int:
        """Add a message: its number, once a quorum has it."""
        came = await self.nats.request(subject, data, timeout)
        return int(_checked(came.data)["seq"])

    async def get(self, stream: str, sequence: int) -> Stored:
        """The message of this number. Raises Missing."""
        return _stored(await self.ask(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))

    async def last(self, stream: str, subject: str) -> Stored:
        """The last message of a subject. Raises Missing."""
        return _stored(await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))

    async def cut(self, stream: str, before: int) -> None:
        """Remove what stands before this number, message by message.

        A purge with a number is one of everything to servers before 2.9.18 that begin anew: what
        came with it and was there is gone (https://github.com/nats-io/nats-server/issues/4196).
        """
        first = int((await self.info(stream))["state"]["first_seq"])
        for at in range(max(first, 1), before, _WINDOW):
            removed = [
                Deferred.fromCoroutine(self._remove_one(stream, number))
                for number in range(at, min(at + _WINDOW, before))
            ]
            came: list[tuple[bool, Any]] = await DeferredList(removed, consumeErrors=True)
            if failed := [why for is_done, why in came if not is_done]:
                raise NatsError(str(failed[0]))

    async def _remove_one(self, stream: str, number: int) -> None:
        try:
            await self.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": number, "no_erase": True})
        except Missing:
            pass

    async def info(self, stream: str) -> dict[str, Any]:
        """What the servers say of a stream. Raises Missing."""
        found: dict[str, Any] = await self.ask(f"STREAM.INFO.{stream}", {})
        return found


def _checked(data: bytes) -> Any:
    try:
        found = json.loads(data)
        error = found.get("error")
    except (ValueError, AttributeError):
        raise NatsError(f"an answer that makes no sense: {data[:100]!r}") from None
    if error is None:
        return found
    code = int(error.get("err_code", 0))
    text = f"{error.get('description')} ({code})"
    if code == _NO_STREAM:
        raise NoStream(text)
    if code in _NO_MESSAGE:
        raise Missing(text)
    raise NatsError(text)


def _stored(found: Any) -> Stored:
    message = found["message"]
    data = b64decode(message.get("data", ""))
    return Stored(str(message["subject"]), int(message["seq"]), data)
