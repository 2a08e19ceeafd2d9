"""The state of a session: exactly five kinds, each changed here and nowhere else.

1. the subscriptions, with their granted QoS;
2. outgoing QoS 1 and 2 messages in flight: sent, not completely acknowledged;
3. incoming QoS 2 packet ids that await PUBREL;
4. QoS 1 and 2 messages pending, while the client is away or the window is full;
5. optionally, QoS 0 messages pending while it is away.

Beside them the will, which is published when the session or its connection ends. Each change of a
session that outlives its connection is told to the `Journal` (`mqttd.session.journal`), which knows
the session by its `owner` number and what it keeps of a message by a number of its own.

The inflight window is an insertion-ordered dict packet id -> entry, so redelivery keeps the old
order. An entry is a `Delivery` or, where nothing is remembered beside them, its bytes: they are
those of `v5`, the version of the last connection. What is kept is charged to the node's account,
and but for what is in flight to the session and its user (`mqttd.session.ground.account`). MQTT
5.0, 4.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttd.session.charged import flight_weight
from mqttd.session.filters import NEW, OTHER, SAME, Filters
from mqttd.session.ground.account import AWAITING, INFLIGHT, ROW, Account
from mqttd.session.ground.connection import Connection, Turn
from mqttd.session.ground.message import (
    RELEASED,
    Delivery,
    Message,
    entry_delivery,
)
from mqttd.session.ground.runs import Run, Trace
from mqttd.session.ground.settings import NEVER, Settings
from mqttd.session.journal import Journal, Numbers
from mqttd.session.mqueue import MQueue
from mqttd.session.routes.topics import Topics

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["Keeper", "State"]


class Keeper(Turn):
    """What sessions ask of who keeps them, the broker.

    The `tap_...` flags say which hook points somebody listens to, the journal who keeps state.
    """

    def __init__(self, settings: Settings, now: int, topics: Topics) -> None:
        super().__init__(settings, now)
        self.topics = topics
        self.journal: Journal = Journal()
        self.account = Account(settings.memory_per_session, settings.memory_per_user)
        #: Connections that have not been let in, oldest first.
        self.strangers: dict[Connection, None] = {}
        #: Sessions whose client is connected.
        self.attached: int = 0
        self.tap_delivered: bool = False
        self.tap_acked: bool = False
        self.tap_completed: bool = False
        self.tap_dropped: bool = False
        self.tap_missed: bool = False
        #: Some messages are followed on their way: those that deliveries remember are told.
        self.tap_followed: bool = False
        #: What a queue loses, slow readers miss, nobody hears is told while this second has room.
        self.tap_lost: bool = False
        self.tap_slow: bool = False
        self.tap_unheard: bool = False
        #: What is published is a will.
        self.last_words: bool = False
        #: Told of each client whose will is another now, or gone, where others are to know.
        self.will_changed: Callable[[str], object] | None = None

    def next_message_id(self) -> int:
        """A new 128-bit message id."""
        raise NotImplementedError

    def name_message(self, message: Message) -> None:
        """Give a message a new id, which costs less than to ask for one."""
        raise NotImplementedError

    def session_due(self, session: State) -> None:
        """A deadline of a session that is away has passed (will delay, expiry)."""
        raise NotImplementedError

    def resume_later(self, session: State) -> None:
        """Call `session.drain` in a later turn."""
        raise NotImplementedError

    def drain_later(self, session: State) -> None:
        """The same where many may be drained at once: a few of them a turn."""
        raise NotImplementedError

    def lose_later(self, numbers: list[int]) -> None:
        """What a session that is over had in the journal is lost, a part of it a turn."""
        raise NotImplementedError

    def stray(self, session: State, entry: object) -> None:
        """This has come for a session that is over: somebody else may be there for it."""
        raise NotImplementedError

    def may_still_publish(self, kept: Delivery) -> bool:
        """Whether the publisher of a retained message would be allowed to publish it now."""
        raise NotImplementedError

    def delivered(self, session: State, delivery: Delivery) -> None:
        """A delivery was written to a client (only with `tap_delivered`)."""
        raise NotImplementedError

    def delivered_run(self, session: State, run: Run) -> None:
        """The same of messages that are known by their run alone."""
        raise NotImplementedError

    def acked(self, session: State, delivery: Delivery, packet_id: int) -> None:
        """A client acknowledged a message: PUBACK, PUBREC (only with `tap_acked`)."""
        raise NotImplementedError

    def completed(self, session: State, packet_id: int) -> None:
        """PUBCOMP ended a QoS 2 delivery (only with `tap_completed`)."""
        raise NotImplementedError

    def nacked(self, session: State, delivery: Delivery, code: int) -> None:
        """A client answered with an error (only with `tap_acked`)."""
        raise NotImplementedError

    def dropped(self, session: State, delivery: Delivery, reason: str) -> None:
        """A delivery was dropped; `reason` is a key of `DROP_REASONS`."""
        raise NotImplementedError

    def dropped_retained(self, kept: Delivery, why: str) -> None:
        """A retained message was not kept (only with `tap_lost`)."""

    def queued(self, session: State, delivery: Delivery) -> None:
        """A delivery waits in a session's queue (only with `tap_followed`)."""


class State(Filters):
    """The state of one client id."""

    __slots__ = (
        "awaiting_rel",
        "away_since",
        "clean",
        "client",
        "created_at",
        "ended",
        "expiry_interval",
        "gone",
        "house",
        "last_reason",
        "mqueue",
        "numbers",
        "put_off",
        "server",
        "trace",
        "waiting",
        "will",
        "will_delay",
        "willed",
    )

    def __init__(self, server: Keeper, client_id: str, username: str | None) -> None:
        super().__init__(client_id, server.account, username)
        #: Ends with its connection.
        self.clean: bool = True
        #: It is over: what reaches it yet, until the router has forgotten it, is nobody's.
        self.ended: bool = False
        #: Something waits for room in the window: the queue, replays or what was not sent again.
        self.waiting: bool = False
        #: Goes on with retained messages in a later turn, and not before.
        self.put_off: bool = False
        self.server = server
        #: What access control must remember of the client (a ClientInfo), None for nothing.
        self.client: object | None = None
        #: Seconds the session lives after its connection; NEVER for ever.
        self.expiry_interval: int = 0
        self.created_at: int = server.now
        self.away_since: int = 0
        #: Why its last connection ended; empty before that.
        self.last_reason: str = ""
        #: From which house (`mqttd.net.fair`) that was; empty where it was of another process.
        self.house: str = ""
        #: Packet id -> when it came, in order of arrival.
        self.awaiting_rel: dict[int, int] | None = None
        self.mqueue: MQueue | None = None
        self.will: Message | None = None
        self.will_delay: int = 0
        #: Bytes of the will's row in the journal.
        self.willed: int = 0
        self.numbers: Numbers | None = None
        #: What it was sent and has acknowledged in this turn, where somebody keeps that.
        self.trace: Trace | None = None
        #: Messages that have left the window, ever: what is in it comes behind them, in order.
        self.gone: i64 = 0

    # -- life ----------------------------------------------------------------------------------

    def set_expiry(self, seconds: int) -> None:
        """How long the session lives after its connection; 0: it ends with it."""
        mqueue = self.mqueue
        if seconds and self.owner and seconds == self.expiry_interval:
            self.server.journal.back(self.owner)
        elif seconds or (self.owner and mqueue is not None and mqueue.held < mqueue.size):
            # What waits in the journal alone is still to be sent.
            if not self.owner:
                self.enter_rows(ROW + len(self.client_id))
            self.owner = self.server.journal.opened(
                self.owner, self.client_id, self.username, seconds
            )
        else:
            self.leave_journal()
        self.expiry_interval = seconds
        self.clean = seconds == 0

    def end_with_connection(self) -> None:
        """It is over when its connection is, which ends now; what is kept stays until then."""
        self.expiry_interval = 0
        self.clean = True

    def expires(self) -> bool:
        """Whether the session ends some time after its connection."""
        return self.expiry_interval != NEVER

    def leave(self) -> None:
        """The connection of a session that lives on is gone."""
        self.clean = False
        if self.owner:
            self.server.journal.left(self.owner)

    def forget(self) -> None:
        """The session ends: nothing is left of its messages."""
        self.leave_journal()
        self.fly(-self.flying())
        self.inflight = None
        if self.mqueue is not None:
            self._weigh_queue(0, self.mqueue.held)
        self.mqueue = None
        if self.awaiting_rel is not None:
            self.account.awaiting_rel -= AWAITING * len(self.awaiting_rel)
            self.charge(-AWAITING * len(self.awaiting_rel))
        self.awaiting_rel = None
        if self.will is not None and self.server.will_changed is not None:
            self.server.will_changed(self.client_id)
        self._weigh_will(None, self.will)
        self.will = None
        self._close_account()

    def leave_journal(self) -> None:
        """The journal has nothing more to do with this session."""
        if not self.owner:
            return
        self.server.journal.ended(self.owner)
        self.enter_rows(self.willed - self.rows)
        self.owner = 0
        lost: list[int] = []
        numbers = self.numbers
        if numbers is not None:
            lost.extend(numbers.inflight.values())
            if numbers.incoming is not None:
                lost.extend(numbers.incoming.values())
        self.numbers = None
        if self.mqueue is not None:
            lost.extend(self.mqueue.numbers())
            self.mqueue.unnumber()
        if lost:
            self.server.lose_later(lost)

    # -- subscriptions -------------------------------------------------------------------------

    def add_subscription(self, full_filter: str, options: int, identifier: int) -> int:
        """Add or replace a subscription: NEW, OTHER than before, or SAME, and nothing has changed.

        options: as packed by `mqttd.session.routes.route.options_of`; identifier: 0 for none.
        """
        before = self.options_of(full_filter)
        if before == options and identifier == self.identifier_of(full_filter):
            return SAME
        weight = 0 if before < 0 else -self._filter_weight(full_filter)
        self._put_filter(full_filter, options, before < 0)
        self._put_identifier(full_filter, identifier)
        weight += self._filter_weight(full_filter)
        self.account.subscriptions += weight
        self.charge(weight)
        if self.owner:
            if before < 0:
                self.enter_rows(ROW + len(full_filter))
            self.server.journal.subscribed(self.owner, full_filter, options, identifier)
        return NEW if before < 0 else OTHER

    def remove_subscription(self, full_filter: str) -> bool:
        """Remove a subscription; False if there was none."""
        if self.options_of(full_filter) < 0:
            return False
        weight = self._filter_weight(full_filter)
        self.account.subscriptions -= weight
        self.charge(-weight)
        self._take_filter(full_filter)
        self._forget_identifier(full_filter)
        if self.owner:
            self.enter_rows(-ROW - len(full_filter))
            self.server.journal.unsubscribed(self.owner, full_filter)
        return True

    # -- incoming QoS 2 ------------------------------------------------------------------------

    def await_release(self, packet_id: int, limit: int) -> int:
        """Note an incoming QoS 2 id: 1 if it is new, 0 if it is known, -1 beyond `limit` of them.

        4.3.3: it is noted before the message is routed.
        """
        awaiting = self.awaiting_rel
        if awaiting is None:
            awaiting = {}
            self.awaiting_rel = awaiting
        elif packet_id in awaiting:
            return 0
        if len(awaiting) >= limit:
            return -1
        awaiting[packet_id] = self.server.now
        self.account.awaiting_rel += AWAITING
        self.charge(AWAITING)
        if self.owner:
            self.number_received(packet_id, self.server.journal.received(self.owner, packet_id))
        return 1

    def complete(self, packet_id: int) -> bool:
        """PUBREL, or the message was refused: the id is free again. False for an unknown one."""
        awaiting = self.awaiting_rel
        if awaiting is None or packet_id not in awaiting:
            return False
        del awaiting[packet_id]
        if not awaiting:
            self.awaiting_rel = None
        self.account.awaiting_rel -= AWAITING
        self.charge(-AWAITING)
        numbers = self.numbers
        if numbers is not None and numbers.incoming is not None:
            number = numbers.incoming.pop(packet_id, 0)
            if number:
                self.server.journal.forget(number)
            if numbers.restored is not None:
                numbers.restored.discard(packet_id)
            self._rest_numbers(numbers)
        return True

    def taken_before(self, packet_id: int) -> bool:
        """Whether a broker before this one took an incoming QoS 2 id; True once.

        What it knew of its client is kept, but whoever else keeps messages may not have this one.
        """
        numbers = self.numbers
        if numbers is None or numbers.restored is None or packet_id not in numbers.restored:
            return False
        numbers.restored.discard(packet_id)
        return True

    def expire_awaiting(self, oldest: int) -> None:
        """Forget the ids that came before `oldest`."""
        awaiting = self.awaiting_rel
        if awaiting is None:
            return
        for packet_id in list(awaiting):
            if awaiting[packet_id] > oldest:
                break
            self.complete(packet_id)

    # -- in flight -----------------------------------------------------------------------------

    def put_inflight(self, packet_id: int, entry: object) -> None:
        """An entry goes out under this packet id, or under it again in another shape."""
        inflight = self.inflight
        if inflight is not None:
            before = inflight.get(packet_id)
            if before is not None:
                self.fly(-flight_weight(before))
        self.add_inflight(packet_id, entry)

    def add_inflight(self, packet_id: int, entry: object) -> None:
        """The same under an id that is free."""
        inflight = self.inflight
        if inflight is None:
            inflight = {}
            self.inflight = inflight
        inflight[packet_id] = entry
        self.fly(flight_weight(entry))
        if self.owner:
            self._number_inflight(packet_id, entry)

    def _number_inflight(self, packet_id: int, entry: object) -> None:
        """Have the journal keep what is in flight under this packet id."""
        numbers = self.have_numbers()
        number = numbers.moving
        if number:
            numbers.moving = 0
            self.server.journal.moved(number, packet_id)
        elif packet_id in numbers.inflight:
            return  # goes out again
        else:
            number = self.server.journal.sent(self.owner, packet_id, entry, self.v5)
        numbers.inflight[packet_id] = number

    def have_numbers(self) -> Numbers:
        """Where the journal's numbers are; kept while there are some."""
        numbers = self.numbers
        if numbers is None:
            numbers = Numbers()
            self.numbers = numbers
        return numbers

    def number_received(self, packet_id: int, number: int) -> None:
        """The journal keeps an incoming QoS 2 id by this number."""
        numbers = self.have_numbers()
        if numbers.incoming is None:
            numbers.incoming = {}
        numbers.incoming[packet_id] = number

    def _rest_numbers(self, numbers: Numbers) -> None:
        if not numbers.inflight and not numbers.incoming and not numbers.moving:
            self.numbers = None

    def pop_inflight(self, packet_id: int) -> object | None:
        """What was in flight under this packet id is done, or given up."""
        inflight = self.inflight
        if inflight is None:
            return None
        entry = inflight.get(packet_id)
        if entry is not None:
            self.done(inflight, packet_id, entry)
        return entry

    def done(self, inflight: dict[int, object], packet_id: int, entry: object) -> None:
        """As `pop_inflight`, where what is in flight under this id has been looked at."""
        del inflight[packet_id]
        self.gone += 1
        if isinstance(entry, bytes):
            self.fly(-INFLIGHT - len(entry))
        else:
            self.fly(-flight_weight(entry))
        if not inflight:
            self.inflight = None  # an empty one takes 224 bytes
        numbers = self.numbers
        if numbers is not None:
            number = numbers.inflight.pop(packet_id, 0)
            if number:
                self.server.journal.forget(number)
            self._rest_numbers(numbers)

    def release(self, packet_id: int) -> None:
        """QoS 2: PUBREC has come, PUBREL goes out and PUBCOMP is awaited."""
        inflight = self.inflight
        assert inflight is not None
        self.fly(INFLIGHT - flight_weight(inflight[packet_id]))
        inflight[packet_id] = RELEASED
        numbers = self.numbers
        if numbers is not None and packet_id in numbers.inflight:
            numbers.inflight[packet_id] = self.server.journal.released(
                self.owner, packet_id, numbers.inflight[packet_id]
            )

    def speak(self, v5: bool) -> None:
        """A connection of this version opened: entries that are bytes remember theirs."""
        if v5 != self.v5:
            inflight = self.inflight
            if inflight:
                self.fly(-self.flying())
                for packet_id in list(inflight):
                    inflight[packet_id] = entry_delivery(inflight[packet_id], self.v5)
                self.fly(self.flying())
            mqueue = self.mqueue
            if mqueue is not None:
                before = mqueue.held
                mqueue.remember(self.v5)
                self._weigh_queue(mqueue.held, before)
        self.v5 = v5

    def put_off_replays(self) -> None:
        """Go on with retained messages in a later turn, whatever is acknowledged meanwhile."""
        self.put_off = True
        self.server.drain_later(self)

    def drain(self) -> None:
        """Move what waits on, as far as there is room."""
        raise NotImplementedError

    def drop(self, delivery: Delivery, reason: str) -> None:
        """Count a delivery that is dropped, and tell the hooks; see `DROP_REASONS`."""
        self.dropped += 1
        self.server.metrics.drop(reason)
        self.server.dropped(self, delivery, reason)
