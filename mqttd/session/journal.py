"""What a session tells of its changes: the seam between the state and whoever keeps it.

    Session --opened, subscribed, queued, ...--> Journal     (a store, a replica; nobody by default)
            <--owner, numbers of records--------

The session is the only writer of its state, and each change of the five kinds of state is told here
once, after it was made. Stores, replication and handover read this and not the fields. A journal is
told bytes: an entry of the inflight window or the queue is the PUBLISH as it goes out.

A journal that keeps a session answers `opened` with a number for it, its *owner*; a session without
one tells nothing, so where nobody keeps anything a change costs one comparison. What is kept of a
message has a number too, by which the session speaks of it from then on.

Promise: calls come in the order of the changes and never from another thread. What a journal raises
is a fault of the broker. MQTT 5.0, 4.1 (session state).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqttd.session.ground.connection import OPEN, Connection, Ending

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["PORTION", "Doubt", "Journal", "Numbers"]

#: Messages of a session that are read again at once.
PORTION: Final = 256


class Doubt:
    """Whoever has answered that something is kept, which it may not be."""

    def fail(self) -> None:
        """It is not: undo it, and say so."""
        raise NotImplementedError


class Journal(Ending):
    """Keeps nothing. Subclasses override what they want to know."""

    __slots__ = (
        "alone",
        "changes",
        "fleeting",
        "full",
        "grouped",
        "holding",
        "once",
        "portion",
        "reading",
        "receipt",
        "soon",
        "touched",
        "unwritten",
        "whole",
    )

    def __init__(self) -> None:
        #: Something was kept that an acknowledgement promises; whoever publishes sets it back.
        self.touched: bool = False
        #: The packet id of the QoS 2 message that is handled now, if its publisher's session ends
        #: with its connection: who sends it again later sends another message. Else 0.
        self.fleeting: int = 0
        #: Changes of sessions, subscriptions and wills that were told, ever.
        self.changes: int = 0
        #: There is no room for what would have to be kept, beside what is acknowledged by now.
        self.full: bool = False
        #: Bytes are held for some connection.
        self.holding: bool = False
        #: See `bind`.
        self.once: bool = False
        #: Bytes of memory that what is not written yet takes, as it was after the last turn.
        self.unwritten: int = 0
        #: How many messages are to be fetched at once: fewer where many sessions do.
        self.portion: int = PORTION
        #: Bytes that are being read again.
        self.reading: int = 0
        #: Itself, where nobody else keeps what a turn promises.
        self.alone: tuple[object, ...] = (self,)
        #: Something is being written, for which somebody may wait.
        self.soon: bool = False
        #: What is told belongs together over more than this turn: none of it is kept before all is.
        self.whole: bool = False
        #: What is told is kept in groups, of which `whole` keeps one open.
        self.grouped: bool = False
        #: For what was `queued` last (`mqttd.session.ground.message`); 0: it cannot be read again.
        self.receipt: i64 = 0

    def end_whole(self) -> None:
        """What belongs together was told."""
        self.whole = False

    # -- sessions ------------------------------------------------------------------------------

    def opened(self, owner: int, client_id: str, username: str | None, expiry_seconds: int) -> int:
        """A session that outlives its connection began (`owner` 0) or goes on.

        Returns its owner number; 0: it is not kept.
        """
        return owner

    def reserve(self) -> int:
        """An owner number whose session begins later, or never: `opened` with it, or `ended`.

        What is kept of it before that nobody has after a crash. 0: nobody keeps anything.
        """
        return 0

    def back(self, owner: int) -> None:
        """The client of a session is connected again, and nothing else of it has changed."""

    def dated(self, owner: int, created_at: int) -> None:
        """A session that came from elsewhere began then, in seconds since 1970."""

    def placed(self, owner: int, mountpoint: str) -> None:
        """The names of a session are below this mountpoint."""

    def left(self, owner: int) -> None:
        """The connection of a session is gone, the session is not."""

    def ended(self, owner: int) -> None:
        """A session is over; `lost` follows for each of its records."""

    def subscribed(self, owner: int, topic_filter: str, options: int, identifier: int) -> None:
        """A subscription was added or replaced; options as `mqttd.session.routes.route` packs
        them."""

    def unsubscribed(self, owner: int, topic_filter: str) -> None:
        """A subscription was removed."""

    def will(self, client_id: str, username: str | None, will: object | None, delay: int) -> None:
        """The will is this message (`mqttd.session.ground.message.Message`), or none any more."""

    # -- room ----------------------------------------------------------------------------------

    def has_room(self, size: int, last: bool = False) -> bool:
        """Whether so many bytes more can be kept; `last`: of last words, which nobody is refused.

        They may have some of what is left for what deletes.
        """
        return True

    def takes(self, size: int) -> bool:
        """Whether so many bytes more can be kept, and soon."""
        return True

    # -- records -------------------------------------------------------------------------------

    def queued(self, owner: int, entry: object, v5: bool) -> int:
        """An entry waits: the client is away, or its window is full. Returns its number."""
        return 0

    def sent(self, owner: int, packet_id: int, entry: object, v5: bool) -> int:
        """An entry is in flight under this packet id. Returns its number."""
        return 0

    def moved(self, number: int, packet_id: int) -> None:
        """What was queued is in flight under this packet id."""

    def released(self, owner: int, packet_id: int, number: int) -> int:
        """QoS 2: PUBREC came for record `number`, PUBREL goes out. Returns another number."""
        return 0

    def received(self, owner: int, packet_id: int) -> int:
        """QoS 2: a PUBLISH with this id came and awaits PUBREL. Returns its number."""
        return 0

    def forget(self, number: int) -> None:
        """This record is not needed any more: acknowledged, complete, dropped."""

    def lost(self, number: int) -> None:
        """This record went with its session."""

    # -- read again ----------------------------------------------------------------------------

    def fetch(
        self, reader: object, mqueue: object, numbers: list[int], receipts: list[int]
    ) -> None:
        """Read what was queued, then call `reader.fetched(mqueue, numbers, entries)`.

        reader: an `mqttd.session.kept.Kept`; nothing is forgotten by this.
        """

    def read_on(self, most: int) -> None:
        """Read for those who wait: so many though memory is scarce; 0: it is not any more."""

    def records(self) -> int:
        """How many records there were, ever: whether somebody has brought one."""
        return 0

    def recall(self, numbers: list[int], receipts: list[int], v5: bool) -> list[object]:
        """The same at once, for who cannot wait: entries of version `v5`, None for what is lost."""
        return [None] * len(numbers)

    def glance(self, number: int, receipt: int, v5: bool) -> object:
        """The same for one, if that needs no waiting; None: it does, or there is nothing."""
        return None

    # -- what waits for the store --------------------------------------------------------------

    def hold(self, channel: Connection, data: bytes) -> None:
        """Send bytes when everything told so far is kept; none: then the connection ends."""
        if channel.state == OPEN:
            channel.send(data)

    def hold_answer(self, channel: Connection, data: bytes, doubt: Doubt) -> None:
        """As `hold`, for what says that something is kept; where that fails `doubt` is told."""
        self.hold(channel, data)

    def bind(self, once: bool) -> None:
        """What is published from now on (True), or no more, is also of what the turn has told.

        A restart would publish it again, and nobody else: at QoS 1 and 2 it goes out when that
        is kept.
        """

    def holds(self, channel: Connection) -> bool:
        """Whether bytes are held for this connection: others go behind them."""
        return False

    def cork(self, channel: Connection) -> None:
        """Have nothing written to a connection, by `Connection.corked`, until all of it is kept."""

    def abandon(self, detail: str) -> None:
        """End what is corked, without a word: who has no CONNACK has been promised nothing."""

    def promises(self, topic: str, listener: str) -> bool:
        """Whether what was told last is promised to who has published there by this listener."""
        return False

    def wait(self, promise: object) -> None:
        """Keep this `Promise` when everything told so far is kept."""

    def gathers(self, promise: object) -> bool:
        """Whether a `Promise` that it alone was asked to keep is kept with what was told last."""
        return False

    def retained(self, message: object) -> int:
        """A retained message (`mqttd.broker.retained.retained.Retained`). Returns its number."""
        return 0

    # -- what plugins keep ---------------------------------------------------------------------

    def value(self, name: str, key: str, data: bytes | None) -> None:
        """A plugin (or the broker, under a name no plugin has) keeps this; None: no more."""

    def when_kept(self, told: Callable[[], None]) -> None:
        """Call `told` when everything told so far is kept, at once if it is."""
        told()

    def has_enough(self) -> bool:
        """Whether the group that is gathered has so much that who has more waits for another."""
        return False

    def when_parted(self, told: Callable[[], None]) -> None:
        """Call `told` when what is told then is kept in another group than what was told so far."""
        told()

    def end_turn(self) -> None:
        """See `Ending`."""


class Numbers:
    """A journal's numbers of what it keeps of one session; there while there are some."""

    __slots__ = ("incoming", "inflight", "moving", "restored")

    def __init__(self) -> None:
        #: By packet id: of what is in flight, of incoming QoS 2.
        self.inflight: dict[int, int] = {}
        self.incoming: dict[int, int] | None = None
        #: Those of incoming QoS 2 that a broker before this one has taken.
        self.restored: set[int] | None = None
        #: Of the entry that has just left the queue.
        self.moving: int = 0
