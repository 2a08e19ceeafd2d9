"""A node's store, copied to a stream of JetStream while it is written: one entry after the other.

    begin --> START, BLOCKS ..., groups between them --> WHOLE: who reads from that START has all
    group --> GROUP --quorum--> `copied`: what waits for the group goes out
    much more was said than there is --> START, BLOCKS ..., WHOLE again --> what is before is cut

    stream    .q  entries, in pieces of what a message may be      .m  WHOLE      .f  the end

Servers that lose power at once, or their disks, have lost what they had acknowledged. Who is given
a number that it had been given before, or finds another's entry under its last one, or no stream
any more, knows that, and copies everything to another stream; nothing is acknowledged until that is
whole. Who has nothing to say looks now and then.

Who takes the node's sessions over writes the end into its stream. All that the node was told is
there has a number; where one is missing between its own, it looks what that is: behind the end
nothing counts, whatever the clocks say, and nothing is acknowledged any more.

Promise: one entry is under way, so as many groups wait as a store has under way: one. After
`PATIENCE` of that there is a `fault`, but while all is copied for the first time. What is there is
at most four times what lives, and `_LEAST`.
"""

from __future__ import annotations

import random
import sqlite3
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.replication.waits import Waits
from mqttd.nats.client import NOT_YET, NatsError
from mqttd.nats.jetstream import JetStream, Missing, NoStream
from mqttd.storage.blocks import Group
from mqttd.storage.copies import pack_blocks, pack_group, pack_start
from mqttd.storage.store import Store

__all__ = ["PATIENCE", "Copying", "Head", "head_of", "whole_of"]

#: Seconds without an answer, or of waiting, after which what would have to be kept is refused: a
#: stream that has lost its leader has another after 4 to 9.
PATIENCE: Final = 15.0
_AGAIN: Final = 0.25
#: Seconds in which servers have to say that there is no stream, those that have begun anew, too;
#: and without anything to copy after which it is seen whether all is there.
_GONE: Final = 10.0
_LOOK: Final = 5.0
#: Bytes of blocks that are read at once, of a message beside its data, and pieces side by side.
_CHUNK: Final = 512 << 10
_ROOM: Final = 4 << 10
_WINDOW: Final = 8
#: Bytes and entries that may stand in a stream, whatever lives.
_LEAST: Final = 16 << 20
_FEW: Final = 4096

_HEAD: Final = struct.Struct(">4sQQII")
_WHOLE: Final = struct.Struct(">QQ")
_MAGIC: Final = b"mqr1"

#: Why something has waited for so long, where servers have not said so.
_ANEW: Final = "what they had lost is copied anew"
_SLOW: Final = f"it has waited for {PATIENCE:g} seconds"
#: Reasons that are worth a line, until it works again.
_REASONS: Final = 10


class _Torn(Exception):
    """The servers have lost what they had acknowledged."""


class Head(NamedTuple):
    """What stands before each piece: of which copy, which entry, which piece of how many."""

    copy: int
    entry: int
    piece: int
    pieces: int


def head_of(data: bytes) -> tuple[Head, bytes]:
    """A message as it was written. Raises ValueError."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise ValueError("no entry of a store")
    _, *head = _HEAD.unpack_from(data)
    return Head(*head), data[_HEAD.size :]


def whole_of(body: bytes) -> tuple[int, int]:
    """Where what is whole begins, and the one before it."""
    start, before = _WHOLE.unpack(body)
    return int(start), int(before)


class Copying:
    """Copies `store` to `stream`, of `subject`, kept by so many servers (`copies`).

    `announce` is awaited when the first copy is whole, before anything counts; `torn` is called
    when the stream has lost what was in it, and begins another.
    """

    def __init__(
        self,
        jetstream: JetStream,
        reactor: Any,
        store: Store,
        copies: int,
        announce: Callable[[str], Awaitable[None]],
        torn: Callable[[], None],
    ) -> None:
        self.jetstream = jetstream
        self.reactor = reactor
        self.store = store
        self.copies = copies
        self.announce = announce
        self.torn = torn
        self.log = Logger(namespace="mqttd.cluster")
        self.stream = self.subject = ""
        #: See `Copies`.
        self.fault = ""
        #: Nothing counts any more: another node has what was here.
        self.ended = False
        #: Everything until now is there, and others know.
        self.whole = False
        #: Entries and bytes that were sent; of them since the last START, and where that is.
        self.entries = 0
        self.bytes = 0
        self._since = self._bytes_since = 0
        self._start = self._before = 0
        self._active = False
        self._groups: deque[Group] = deque()
        self._done: set[Group] = set()
        self._waits = Waits(reactor, PATIENCE, self._is_late)
        self._wakes: Deferred[None] | None = None
        #: Which attempt this is; the number of the last entry, and in the stream.
        self._run = 0
        self._copy = 0
        self._entry = 0
        self._last = 0
        self._cuts = False
        #: Since when servers say that there is no stream.
        self._gone_since: float | None = None
        #: The entry that has the last number.
        self._at_last = 0
        self._failed_at = 0.0
        self._text = ""
        #: Why, as the log has it: of several servers each may have a reason of its own.
        self._told: dict[str, None] = {}
        self._left: list[int] | None = None
        self._from = 0

    # -- Copies --------------------------------------------------------------------------------

    def submit(self, group: Group) -> None:
        """See `Copies.submit`; before the first START, which has it, too."""
        if self._active:
            self._groups.append(group)
            self._waits.add(group)
            self._wake()
        else:
            self._done.add(group)

    def has(self, group: Group) -> bool:
        """See `Copies.has`."""
        if group not in self._done or (self._active and not self.whole):
            return False
        self._done.discard(group)
        return True

    # -- start and end -------------------------------------------------------------------------

    def begin(self, stream: str, subject: str) -> None:
        """Copy all that there is to a new stream, and what comes."""
        self.stop()
        self.stream, self.subject = stream, subject
        self.ended = self.whole = False
        self._gone_since = None
        self._active = True
        self._copy = random.getrandbits(63)
        self._entry = self._last = 0
        self._start = self._before = 0
        done = Deferred.fromCoroutine(self._copy_all(self._run))
        done.addErrback(lambda failure: self.log.failure("the store is not copied", failure))

    def stop(self) -> None:
        """Copy nothing any more."""
        self._run += 1
        self.whole = self._active = False
        self._left = None
        self._wake()

    def end(self) -> None:
        """The process ends: nothing is acknowledged any more."""
        self._run += 1
        self.whole = self._waits.hurried = False
        self._wake()

    def settle(self) -> None:
        """After `stop`: what was under way is nobody's, and counts as copied."""
        self._done.update(self._groups)
        self._groups.clear()
        self._waits.hurried = False
        # First who waits: what the store has heard of is in `_done` no more.
        self._waits.there(list(self._done), self._works)
        self.store.turn()

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, None
        if wakes is not None:
            wakes.callback(None)

    async def _copy_all(self, run: int) -> None:
        made = False
        while not made and run == self._run:
            try:
                await self.jetstream.make(self.stream, f"{self.subject}.*", self.copies)
                made = True
            except NatsError as error:
                self._fails(str(error))
                await deferLater(self.reactor, _AGAIN)
        await self._begin(run)
        turn = False
        while run == self._run:
            turn = not turn
            if self._groups and (turn or self._left is None):
                group = self._groups[0]
                await self._send(run, pack_group(group))
                if run == self._run:
                    self._groups.popleft()
                    self._done.add(group)
                    if self.whole:
                        self._are_there([group])
            elif self._left is not None:
                await self._go_on(run)
            elif self._is_much():
                await self._begin(run)
            elif not self._groups:
                await self._rest(run)

    async def _rest(self, run: int) -> None:
        """Until there is something to do; all is still there after `_LOOK` seconds without."""
        wakes: Deferred[None] = Deferred()
        self._wakes = wakes
        looks = self.reactor.callLater(_LOOK, self._wake)
        await wakes
        if looks.active():
            looks.cancel()
            return
        try:
            await self._look_behind()
            self._gone_since = None
        except NatsError:
            if await self._is_gone() and run == self._run:
                self._tear()
        except _Torn:
            if run == self._run:
                self._tear()

    def _tear(self) -> None:
        self.whole = False
        for group in self._done:
            self._waits.add(group)
        self.torn()

    def _is_much(self) -> bool:
        ledger = self.store.ledger
        if not self.whole or self._failed_at:
            return False
        return (
            self._bytes_since > 4 * ledger.bytes + _LEAST
            or self._since > 4 * len(ledger.blocks) + _FEW
        )

    async def _begin(self, run: int) -> None:
        """START, as of what was submitted before."""
        if run != self._run:
            return
        packed, blocks = await self.store.between(pack_start)
        if run != self._run:
            return
        self._since = self._bytes_since = 0
        self._from = 0
        first = await self._send(run, packed)
        if run != self._run:
            return
        self._from = first
        self._left = blocks

    async def _go_on(self, run: int) -> None:
        """Some more blocks; behind the last all is whole."""
        left = self._left
        assert left is not None
        if left:

            def some(base: sqlite3.Connection) -> bytes:
                return pack_blocks(base, left, _CHUNK)

            await self._send(run, await self.store.between(some))
            return
        self._left = None
        await self._send(run, _WHOLE.pack(self._from, self._start), "m")
        if run != self._run:
            return
        self._before, self._start = self._start, self._from
        if not self.whole:
            await self.announce(self.stream)
            if run != self._run:
                return
            self.whole = self._waits.hurried = True
            self.log.info("the store is copied to {stream}", stream=self.stream)
            self._are_there(list(self._done))
        if not self._cuts:
            self._cuts = True
            Deferred.fromCoroutine(self._cut(self.stream, self._start))

    async def _cut(self, stream: str, before: int) -> None:
        """Remove what nobody needs any more; what is left of it goes with the next."""
        try:
            await self.jetstream.cut(stream, before)
        except NatsError as error:
            self.log.warn("{stream} is not cut: {error}", stream=stream, error=str(error))
        finally:
            self._cuts = False

    # -- entries -------------------------------------------------------------------------------

    async def _send(self, run: int, body: bytes, kind: str = "q") -> int:
        """Write one entry, however often that has to be tried; the number of its first piece."""
        self._entry += 1
        size = self.jetstream.nats.most - _ROOM
        count = max(1, -(-len(body) // size))
        pieces = [
            _HEAD.pack(_MAGIC, self._copy, self._entry, at, count)
            + body[at * size : (at + 1) * size]
            for at in range(count)
        ]
        self.entries += 1
        self.bytes += len(body)
        self._since += 1
        self._bytes_since += len(body)
        entry, again, is_torn = self._entry, False, False
        numbers: list[int] = []
        while run == self._run:
            try:
                if not numbers and not self.ended:
                    numbers = await self._try(pieces, f"{self.subject}.{kind}")
                    if again:
                        await self._look_behind()
                if await self._is_ours(set(numbers)):
                    self._at_last = entry
                    self._works()
                    return min(numbers)
            except NatsError as error:
                self._fails(str(error))
                numbers, again = [], True
                is_torn = await self._is_gone()
            except _Torn:
                is_torn = True
            if is_torn and run == self._run:
                self._tear()
                break
            await deferLater(self.reactor, _AGAIN)
        return 0

    async def _try(self, pieces: list[bytes], subject: str) -> list[int]:
        """The number of each piece. Raises NatsError, also where some are there: they may be lost
        with the servers by which the others were not taken; and `_Torn`."""
        numbers: list[int] = []
        for at in range(0, len(pieces), _WINDOW):
            asked = [
                Deferred.fromCoroutine(self.jetstream.append(subject, each))
                for each in pieces[at : at + _WINDOW]
            ]
            came: list[tuple[bool, Any]] = await DeferredList(asked, consumeErrors=True)
            numbers += [number for is_there, number in came if is_there]
            if len(set(numbers)) < len(numbers) or any(each <= self._last for each in numbers):
                raise _Torn
            for is_there, failure in came:
                if not is_there:
                    failure.trap(NatsError)
                    raise NatsError(failure.getErrorMessage())
        return numbers

    async def _look_behind(self) -> None:
        """Raise `_Torn` where the last entry is not under its number any more.

        An answer that has not come may have been the one that gave that number anew.
        """
        if not self._last:
            return
        try:
            found, _ = head_of((await self.jetstream.get(self.stream, self._last)).data)
        except NoStream:
            raise
        except (Missing, ValueError):
            raise _Torn from None
        if (found.copy, found.entry) != (self._copy, self._at_last):
            raise _Torn

    async def _is_gone(self) -> bool:
        """Whether servers say for `_GONE` seconds that there is no such stream."""
        now = float(self.reactor.seconds())
        try:
            await self.jetstream.info(self.stream)
        except NoStream:
            if self._gone_since is None:
                self._gone_since = now
            return now - self._gone_since >= _GONE
        except NatsError:
            pass
        self._gone_since = None
        return False

    async def _is_ours(self, numbers: set[int]) -> bool:
        """Whether they are there and the end is not before them. Raises NatsError, `_Torn`."""
        if not numbers:
            return False
        for number in range(self._last + 1, max(numbers)):
            if number in numbers:
                continue
            try:
                found = await self.jetstream.get(self.stream, number)
            except NoStream:
                raise
            except Missing:
                raise _Torn from None
            if found.subject.endswith(".f"):
                self.ended = True
                self.whole = False
                self._fails("another node has taken over the sessions of this one")
                return False
        self._last = max(numbers)
        return True

    def _are_there(self, groups: list[Group]) -> None:
        self._waits.there(groups, self.store.turn)
        self._calm()

    def _is_late(self) -> None:
        self._say((self._text or _SLOW) if self.whole else _ANEW)

    def _fails(self, text: str) -> None:
        now = time.monotonic()
        if not self._failed_at:
            self._failed_at = now
            self.reactor.callLater(PATIENCE + _AGAIN, self._still_fails, self._failed_at)
        if text != NOT_YET and text not in self._told and len(self._told) < _REASONS:
            self._told[text] = None
            self.log.warn("the store cannot be copied now: {error}", error=text)
        # The last says least, as a rule: nobody serves what the servers have no room for.
        self._text = "; ".join(self._told) or text
        if self.fault or self.ended or now - self._failed_at > PATIENCE:
            self._say(self._text)

    def _still_fails(self, since: float) -> None:
        if self._failed_at == since:
            self._say(self._text)

    def _say(self, text: str) -> None:
        if not self.fault:
            self.fault = text
            self.store.turn()

    def _works(self) -> None:
        if self._failed_at:
            self._failed_at = 0.0
            self._text = ""
            if self._told:
                self._told.clear()
                self.log.info("the store is copied again")
        self._calm()

    def _calm(self) -> None:
        if self.fault and not self._failed_at and not self._waits.are_late():
            self.fault = ""
            self.store.turn()
