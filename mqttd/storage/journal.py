"""The journal that keeps what it is told: records in groups, promises kept when they are written.

    turn: told, told, ... --end_turn--> nothing under way: the group goes to the writer
                                        else: the next turn's records join it
    written --> bytes held until then go out, promises are kept, the next group goes
                '-- as much as a turn may have (`release`), the rest in the next ones

A group is closed when the one before is written and who is answered had time to go on (`_pauses`);
where some megabytes wait, publishers are not read from until they are written. Never within a turn:
what one PUBLISH has brought (its QoS 2 id, the queues it is in) is in one transaction. Nor while a
message goes to thousands in more turns than one, if it may come once only (`whole`).

Promise: nothing is written here; being told costs the appends of `mqttd.storage.ledger`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.retained.retained import Retained
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.connection import OPEN, Connection, Turn
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.promise import Promise
from mqttd.storage.blocks import Block, Group
from mqttd.storage.database import (
    DATE_SESSION,
    KEEP,
    OPEN_SESSION,
    PLACE_SESSION,
    SUBSCRIBE,
    UNKEEP,
    UNSUBSCRIBE,
)
from mqttd.storage.durability import FSYNC, NONE, UNSAID, Durability
from mqttd.storage.entries import Dumps, dump_retained, dump_will
from mqttd.storage.ledger import (
    DELIVERY,
    MESSAGE3,
    MESSAGE5,
    QUIET,
    RECEIVED,
    RELEASED,
    RETAINED,
    Ledger,
    receipt_of,
)
from mqttd.storage.patience import PROMPT
from mqttd.storage.releasing import Waiting
from mqttd.storage.sparing import Sparing

__all__ = ["StoreJournal"]

#: Bytes of words of the blocks that are moved in a turn, unless one alone has more: a block that
#: is full, or many small ones. To read so many and let go of what is dead takes some milliseconds.
_MOVED: Final = 256 << 10


class StoreJournal(Sparing):
    """Keeps sessions and retained messages.

    turn: whose end of turn closes groups; submit: has a group written, `written` follows;
    seconds: since 1970; since: see `mqttd.storage.entries.dump`; durability: what is promised.
    """

    __slots__ = (
        "_dumps",
        "_found",
        "_last",
        "_noted",
        "durability",
        "groups",
        "listeners",
        "owners",
        "seconds",
        "submit",
        "turn",
    )

    def __init__(
        self,
        ledger: Ledger,
        turn: Turn,
        submit: Callable[[Group], None],
        seconds: Callable[[], int],
        since: int,
        durability: Durability,
    ) -> None:
        super().__init__(ledger, since)
        self.turn = turn
        self.submit = submit
        self.seconds = seconds
        self.durability = durability
        #: What listeners promise.
        self.listeners: dict[str, Listener] = {}
        #: The highest owner number that was given.
        self.owners: int = 0
        #: Groups that were written.
        self.groups: int = 0
        #: Blocks that were read again, to be moved.
        self._found: deque[tuple[int, bytes, bytes]] = deque()
        #: Something was told in this turn; its end has been put off once.
        self._noted: bool = False
        self._dumps = Dumps(since)
        self._last: bool = False

    # -- sessions ------------------------------------------------------------------------------

    def opened(self, owner: int, client_id: str, username: str | None, expiry_seconds: int) -> int:
        """See `Journal.opened`."""
        owner = owner or self.reserve()
        self.ledger.group.away.pop(owner, None)
        self._change().row(OPEN_SESSION, (owner, client_id, username, expiry_seconds))
        return owner

    def reserve(self) -> int:
        """See `Journal.reserve`."""
        self.owners += 1
        return self.owners

    def dated(self, owner: int, created_at: int) -> None:
        """See `Journal.dated`."""
        self._change().row(DATE_SESSION, (created_at, owner))

    def placed(self, owner: int, mountpoint: str) -> None:
        """See `Journal.placed`."""
        self._change().row(PLACE_SESSION, (mountpoint, owner))

    def back(self, owner: int) -> None:
        """See `Journal.back`."""
        self._change().leave(owner, 0)

    def left(self, owner: int) -> None:
        """See `Journal.left`."""
        self._change().leave(owner, self.seconds())

    def ended(self, owner: int) -> None:
        """See `Journal.ended`."""
        self._change().end(owner)

    def subscribed(self, owner: int, topic_filter: str, options: int, identifier: int) -> None:
        """See `Journal.subscribed`."""
        self._change().row(SUBSCRIBE, (owner, topic_filter, options, identifier))

    def unsubscribed(self, owner: int, topic_filter: str) -> None:
        """See `Journal.unsubscribed`."""
        self._change().row(UNSUBSCRIBE, (owner, topic_filter))

    def will(self, client_id: str, username: str | None, will: object | None, delay: int) -> None:
        """See `Journal.will`."""
        group = self._change()
        if will is None:
            group.will(client_id, None, 0)
            return
        assert isinstance(will, Message)
        packet = dump_will(will)
        group.will(client_id, (client_id, username, delay, will.expires_at, packet), len(packet))

    def _change(self) -> Group:
        """A session, a subscription or a will changes; returns where to note that."""
        self.changes += 1
        self._prompt()
        return self.ledger.group

    # -- records -------------------------------------------------------------------------------

    def queued(self, owner: int, entry: object, v5: bool) -> int:
        """See `Journal.queued`."""
        self._prompt()
        self.touched = True
        if isinstance(entry, bytes):
            kind = MESSAGE5 if v5 else MESSAGE3
            if not entry[0] & 6:
                kind |= QUIET
            self.receipt = receipt_of(len(entry), kind)
            return self.ledger.note(owner, kind, 0, entry)
        assert isinstance(entry, Delivery)
        kind, data = self._form(entry)
        if not entry.qos:
            kind |= QUIET
        self.receipt = receipt_of(len(data), kind)
        return self.ledger.note(owner, kind, 0, data)

    def sent(self, owner: int, packet_id: int, entry: object, v5: bool) -> int:
        """See `Journal.sent`."""
        self.patience.answered()
        if not self._noted:
            self._begin()
        self.touched = True
        if isinstance(entry, bytes):
            return self.ledger.note(owner, MESSAGE5 if v5 else MESSAGE3, packet_id, entry)
        assert isinstance(entry, Delivery)
        kind, data = self._form(entry)
        return self.ledger.note(owner, kind, packet_id, data)

    def _form(self, delivery: Delivery) -> tuple[int, bytes]:
        """The kind of a record and its bytes."""
        if delivery.bare() and not delivery.source:
            return MESSAGE5 if delivery.v5 else MESSAGE3, delivery.wire
        return DELIVERY, self._dumps.of(delivery)

    def moved(self, number: int, packet_id: int) -> None:
        """See `Journal.moved`."""
        self._prompt()
        self.ledger.send(number, packet_id)

    def released(self, owner: int, packet_id: int, number: int) -> int:
        """See `Journal.released`."""
        self._prompt()
        self.ledger.forget(number)
        return self.ledger.note(owner, RELEASED, packet_id, b"")

    def received(self, owner: int, packet_id: int) -> int:
        """See `Journal.received`."""
        self._prompt()
        self.touched = True
        return self.ledger.note(owner, RECEIVED, packet_id, b"")

    def retained(self, message: object) -> int:
        """See `Journal.retained`."""
        assert isinstance(message, Retained)
        self._prompt()
        self.touched = True
        return self.ledger.note(0, RETAINED, 0, dump_retained(message, self.since))

    def forget(self, number: int) -> None:
        """See `Journal.forget`."""
        if not self._noted:
            self._begin()
        self.ledger.forget(number)

    def lost(self, number: int) -> None:
        """See `Journal.lost`."""
        if not self._noted:
            self._begin()
        self.ledger.lose(number)

    # -- read again ---------------------------------------------------------------------------

    def data_of(self, block: Block) -> list[bytes] | None:
        """See `ReadingJournal.data_of`."""
        data = self.ledger.group.data_of(block)
        if data is None and self._under_way is not None:
            data = self._under_way.data_of(block)
        return data

    # -- what waits ----------------------------------------------------------------------------

    def promises(self, topic: str, listener: str) -> bool:
        """See `Journal.promises`."""
        level = self.durability.of(topic, self._said(listener))
        if level == FSYNC:
            self.ledger.group.fsync = True
        return level != NONE

    def _said(self, listener: str) -> int:
        """What a listener promises."""
        known = self.listeners.get(listener)
        return UNSAID if known is None else known.durability

    def _level(self, listener: str) -> int:
        """What is promised to the clients of a listener, whatever the topic."""
        said = self._said(listener)
        return self.durability.default if said == UNSAID else said

    def wait(self, promise: object) -> None:
        """See `Journal.wait`."""
        assert isinstance(promise, Promise)
        self.patience.answered()
        waiting = self._waiting
        waiting.promises.append(promise)
        promise.ticket = waiting
        if not self._noted:
            self._begin()

    def gathers(self, promise: object) -> bool:
        """See `Journal.gathers`: until its group is closed."""
        assert isinstance(promise, Promise)
        return promise.ticket is self._waiting

    def hold(self, channel: Connection, data: bytes) -> None:
        """See `Journal.hold`."""
        if self._noted or not self.ledger.group.empty() or self._waiting.held:
            self._prompt()
            waiting = self._waiting
            if self._level(channel.listener) == FSYNC:
                self.ledger.group.fsync = True
        elif self._under_way is not None:
            waiting = self._waiting_for
        elif self._releasing:
            waiting = self._releasing[-1]
        else:
            if channel.state == OPEN:
                channel.send(data)
            return
        waiting.held.append((channel, data))
        waiting.channels.add(channel)
        self.holding = True

    def cork(self, channel: Connection) -> None:
        """See `Journal.cork`; a disk that takes nothing keeps nobody out."""
        level = self._level(channel.listener)
        if level == NONE or self.failing:
            return
        if level == FSYNC:
            self.ledger.group.fsync = True
        self._prompt()
        channel.corked = True
        self._waiting.corked.append(channel)

    def abandon(self, detail: str) -> None:
        """See `Journal.abandon`; what is kept by now goes out."""
        self.release_all()
        for waiting in (self._waiting, self._waiting_for):
            corked, waiting.corked = waiting.corked, []
            for channel in corked:
                channel.abandon(detail)

    def bind(self, once: bool) -> None:
        """See `Journal.bind`; a disk that takes nothing holds nothing up."""
        self.once = once and not self.failing and self.durability.default != NONE
        if self.once:
            self.holding = True
        else:
            self._see_held()

    def holds(self, channel: Connection) -> bool:
        """See `Journal.holds`."""
        if channel in self._waiting.channels:
            return True
        if self._under_way is not None and channel in self._waiting_for.channels:
            return True
        for waiting in self._releasing:
            if channel in waiting.channels:
                return True
        return False

    # -- what plugins keep ---------------------------------------------------------------------

    def value(self, name: str, key: str, data: bytes | None) -> None:
        """See `Journal.value`."""
        self.touched = True
        row = (name, key)
        self._change().row(UNKEEP if data is None else KEEP, row if data is None else (*row, data))

    def when_kept(self, told: Callable[[], None]) -> None:
        """See `Journal.when_kept`."""
        if self.durability.default == NONE:
            told()
        elif self._noted or not self.ledger.group.empty():
            if self.durability.default == FSYNC:
                self.ledger.group.fsync = True
            self._prompt()
            self._waiting.told.append(told)
        elif self._under_way is not None:
            self._waiting_for.told.append(told)
        elif self._releasing:
            self._releasing[-1].told.append(told)
        else:
            told()

    def busy(self) -> bool:
        """Whether something is not written yet."""
        return self._under_way is not None or not self.ledger.group.empty()

    # -- groups --------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `ReadingJournal.begin`."""
        if not self._noted:
            self._begin()

    def is_scarce(self) -> bool:
        """See `ReadingJournal.is_scarce`."""
        return self.turn.scarce

    def end_whole(self) -> None:
        """See `Journal.end_whole`."""
        self.whole = False
        self.begin()

    def _prompt(self) -> None:
        """Something is told that is written as soon as may be."""
        self.patience.urge = PROMPT
        self.begin()

    def _begin(self) -> None:
        self._noted = True
        self.turn.endings.append(self)

    def end_turn(self) -> None:
        """Close the group, if none is under way; after everything else that ends the turn."""
        if not self._last:
            self._last = True
            self.turn.endings.append(self)
            return
        self._last = False
        self._noted = False
        self._dumps.forget()
        if self._under_way is None and not self.whole and not self._pauses():
            self._close()
        self.weigh()
        if self._fetches:
            self.serve()

    def _close(self) -> None:
        """Have what was gathered written; what it needs no writing for is kept at once."""
        ledger = self.ledger
        waiting = self._waiting
        self._part()
        if self.patience.closed(self._lives()) and self.unpause is not None:
            self.unpause()
        ledger.sweep()
        group = ledger.close()
        if group is None or group.empty():
            if waiting.promises or waiting.held or waiting.told or waiting.corked:
                self._waiting = Waiting()
                first = not self._releasing
                self._releasing.append(waiting)
                if first:
                    self.release_all()
            return
        self.closed(group)
        self._waiting = Waiting()
        self._under_way = group
        self._begin_to_wait(waiting)
        self.soon = not self.failing
        self.submit(group)

    def written(self, group: Group) -> None:
        """A group is written: `release` lets go of what waited, and the next goes to the writer."""
        if group is not self._under_way:
            return
        self._under_way = None
        self.soon = False
        self.groups += 1
        if group.reads:
            self._found.extend(group.found)
            self._move()
        self._rest()
        if self._fetches:
            self.serve()
        more = not self.ledger.group.empty() or len(self._waiting.promises) > 0
        if (more or self._parting) and not (self._noted or self.whole or self._pauses()):
            self._close()
        self.weigh()

    def move(self) -> None:
        """Go on to move what lives of blocks that were read again, in a turn of its own."""
        self._move()
        self._prompt()

    def _move(self) -> None:
        found = self._found
        some = [found.popleft()] if found else []
        words = len(some[0][1]) if some else 0
        while found and words + len(found[0][1]) <= _MOVED:
            words += len(found[0][1])
            some.append(found.popleft())
        self.ledger.rewrite(some, len(found) > 0)

    def moving(self) -> bool:
        """Whether blocks that were read again are still to be moved."""
        return len(self._found) > 0

    def weigh(self) -> None:
        """See how much waits: where the disk cannot follow, publishers have to wait for it."""
        weight = self.ledger.group.weight()
        under_way = self._under_way
        if under_way is not None:
            # Its bytes, those joined, and what SQLite is given of them.
            weight += 3 * under_way.weight()
        self.unwritten = weight
        # What is deleted takes no memory, but keeps the writer as long.
        weight += self.ledger.group.drops_size
        if under_way is not None:
            weight += 3 * under_way.drops_size
        turn = self.turn
        if self.stuck:
            weight = 0  # what would have to wait for it is refused
        if weight > self.behind:
            turn.congest("store", True)
        elif weight * 2 < self.behind and turn.congest("store", False):
            turn.perform_later()

    def nudge(self) -> None:
        """Have a group written though nothing was told: it is what compaction goes on with."""
        if self._under_way is None and not self._noted:
            self._close()

    def finish(self) -> None:
        """Have everything written that was told; nobody waits for it any more."""
        self.release_all()
        group = self.ledger.close()
        if group is not None and not group.empty():
            self.submit(group)
