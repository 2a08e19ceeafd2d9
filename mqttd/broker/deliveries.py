"""What becomes of messages, for those who keep it: deliveries and acknowledgements, run by run.

    a delivery, an acknowledgement --> run: this client, this topic, ids that follow --turn's end-->
                                                                  Notes.note_deliveries(run)

Messages that go to a client one after another and differ in their payloads alone are one run, and
so are their acknowledgements, as long as the turn lasts, whatever others get in between. Each is
told with the time at which the turn ends: that is when deliveries are written.

Promise: a delivery that goes on with a run costs some comparisons and an addition, any other one
look-up and one object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.trie import Trie
from mqttd.session.connection import Ending, Turn
from mqttd.session.message import Message
from mqttd.session.named import Named
from mqttd.session.notes import Notes
from mqttd.session.state import State

__all__ = ["Deliveries", "Keeping"]

#: Runs of a turn that are kept; with one more all are told.
_MOST: Final = 4096
_HALF: Final = (1 << 64) - 1


class Keeping:
    """One who keeps messages, or what becomes of them: of these topics, or (None) of all."""

    def __init__(self, notes: Notes, topic_filters: list[str] | None) -> None:
        #: Under which it has asked for its topics (`mqttd.broker.gears`).
        self.name: str = f"notes {id(self)}"
        self.notes = notes
        self.topics: Trie | None = None
        if topic_filters is not None:
            self.topics = Trie()
            for topic_filter in topic_filters:
                self.topics.insert(topic_filter)


class _Run:
    """Messages of one client that follow one another."""

    __slots__ = ("acked", "came", "count", "first", "next", "session", "size", "topic")

    def __init__(
        self,
        acked: bool,
        session: State,
        came: int,
        number: int,
        topic: str,
        first: int,
        size: int,
        count: int,
    ) -> None:
        self.acked = acked
        self.session = session
        self.came = came
        #: The number that the next message of this run would have.
        self.next: int = number + count
        self.topic = topic
        self.first = first
        self.size = size
        self.count = count


class Deliveries(Ending):
    """Collects the runs of a turn.

    turn: at whose ends they are told; clock: gives microseconds since 1970.
    """

    __slots__ = ("_acked", "_clock", "_last", "_runs", "_sent", "_turn", "acking", "delivering")

    def __init__(self, turn: Turn, clock: Callable[[], int]) -> None:
        #: Who is noted deliveries, and who acknowledgements.
        self.delivering: list[Keeping] = []
        self.acking: list[Keeping] = []
        self._turn = turn
        self._clock = clock
        self._runs: list[_Run] = []
        #: The last run of each session, and of all.
        self._sent: dict[State, _Run] = {}
        self._acked: dict[State, _Run] = {}
        self._last: _Run | None = None

    def named(self, acked: bool, session: State, delivery: Named) -> None:
        """A message that went as bytes was sent or acknowledged."""
        if self.acking if acked else self.delivering:
            self.add(
                acked,
                session,
                delivery.came,
                delivery.number,
                delivery.topic_name,
                delivery.qos << 1,
                delivery.size,
                1,
            )

    def whole(self, acked: bool, session: State, message: Message) -> None:
        """The same of one that is remembered as a whole."""
        if self.acking if acked else self.delivering:
            first = message.qos << 1 | (1 if message.retain else 0)
            number = message.id
            self.add(
                acked,
                session,
                number >> 64,
                number & _HALF,
                message.topic,
                first,
                len(message.payload),
                1,
            )

    def add(
        self,
        acked: bool,
        session: State,
        came: int,
        number: int,
        topic: str,
        first: int,
        size: int,
        count: int,
    ) -> None:
        """So many messages, see `Keeper.delivered_run`, were sent or acknowledged."""
        run = self._last
        if run is None or run.session is not session or run.acked != acked:
            run = (self._acked if acked else self._sent).get(session)
        if (
            run is not None
            and run.next == number
            and run.size == size
            and run.came == came
            and run.topic is topic
            and run.first == first
        ):
            run.next = number + count
            run.count += count
            self._last = run
            return
        runs = self._runs
        if not runs:
            self._turn.endings.append(self)
        run = _Run(acked, session, came, number, topic, first, size, count)
        runs.append(run)
        (self._acked if acked else self._sent)[session] = run
        self._last = run
        if len(runs) > _MOST:
            self.end_turn()

    def end_turn(self) -> None:
        """See `Ending`: tell of all."""
        runs = self._runs
        if not runs:
            return
        self._runs = []
        self._sent.clear()
        self._acked.clear()
        self._last = None
        at = self._clock()
        for run in runs:
            session = run.session
            topic = run.topic
            count = run.count
            for keeping in self.acking if run.acked else self.delivering:
                if keeping.topics is None or keeping.topics.match(topic):
                    keeping.notes.note_deliveries(
                        run.acked,
                        at,
                        run.came,
                        run.next - count,
                        topic,
                        session.client_id,
                        session.username,
                        run.first,
                        run.size,
                        count,
                    )
