"""What becomes of messages, for those who keep it: deliveries and acknowledgements by client.

    a delivery, an acknowledgement --> Trace of the session --turn's end--> joined to runs
                                                                                  |
                                                        Notes.note_deliveries(client, runs)

What reaches nobody, and what is refused, goes the same way, with the trace of who has published it
(`note_unheard`, `note_denied`).

Messages that go to a client one after another and differ in their payloads alone are one run, and
so are their acknowledgements, as long as the turn lasts, whatever others get in between. Each is
told with the time at which the turn ends: that is when deliveries are written. Clients that were
sent the same in a turn are told of with the same list.

Promise: a delivery costs one append, and its share of what is told at the turn's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.routing.trie import Trie
from mqttd.codec.packets import Publish
from mqttd.session.ground.connection import Ending
from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run, Trace, joined
from mqttd.session.publish.general import Router
from mqttd.session.publish.notes import Notes
from mqttd.session.state import State
from mqttd.types import Action, ClientInfo

__all__ = ["Deliveries", "Keeping", "run_of"]

#: Entries in the traces of a turn; with one more all are told. A topic counts as one for so many
#: bytes: by Topic Alias a client names a long one with few.
_MOST: Final = 4096
_TOPIC_SHIFT: Final = 10
_HALF: Final = (1 << 64) - 1
#: `Run.came` of messages that are given their ids at the turn's end, at most so many of a run.
_NAMELESS: Final = -1
_RUN: Final = 1 << 15


class Keeping:
    """One who keeps messages, or what becomes of them: of these topics, or (None) of all."""

    def __init__(self, notes: Notes, topic_filters: list[str] | None) -> None:
        #: Under which it has asked for its topics (`mqttd.broker.routing.gears`).
        self.name: str = f"notes {id(self)}"
        self.notes = notes
        self.topics: Trie | None = None
        if topic_filters is not None:
            self.topics = Trie()
            for topic_filter in topic_filters:
                self.topics.insert(topic_filter)

    def tell(self, acked: bool, at: int, session: State, runs: list[Run]) -> None:
        """Tell it of those of a session's runs that are on its topics."""
        runs = self._mine(runs)
        if runs:
            self.notes.note_deliveries(acked, at, session.client_id, session.username, runs)

    def tell_missed(self, at: int, session: State, run: Run, reason: str) -> None:
        """Tell it of a message that a session misses, if it is on its topics."""
        topics = self.topics
        if topics is None or topics.match(run.topic.decode()):
            self.notes.note_dropped(at, session.client_id, session.username, run, reason)

    def tell_unheard(
        self, at: int, client_id: str, username: str | None, runs: list[Run], reason: str
    ) -> None:
        """Tell it of those of a client's messages on its topics that have reached nobody."""
        runs = self._mine(runs)
        if runs:
            self.notes.note_unheard(at, client_id, username, runs, reason)

    def tell_denied(self, at: int, client: ClientInfo, runs: list[Run], kind: str) -> None:
        """Tell it of what a client may not do; topics are not asked for."""
        peer = (client.peerhost, client.peerport)
        self.notes.note_denied(at, client.client_id, client.username, peer, runs, kind)

    def _mine(self, runs: list[Run]) -> list[Run]:
        """Those of them that are on its topics."""
        topics = self.topics
        if topics is None:
            return runs
        return [run for run in runs if topics.match(run.topic.decode())]


class Deliveries(Ending):
    """Collects the traces of a turn.

    router: at the ends of whose turns they are told; clock: gives microseconds since 1970; who:
    the client of a session.
    """

    __slots__ = ("_clock", "_count", "_router", "_sessions", "_who", "acking", "delivering",
                 "denying", "missing", "unheard")  # fmt: skip

    def __init__(
        self, router: Router, clock: Callable[[], int], who: Callable[[State], ClientInfo]
    ) -> None:
        #: Who is noted deliveries, who acknowledgements, who what a receiver misses, who what
        #: reaches nobody, and who what clients may not do.
        self.delivering: list[Keeping] = []
        self.acking: list[Keeping] = []
        self.missing: list[Keeping] = []
        self.unheard: list[Keeping] = []
        self.denying: list[Keeping] = []
        self._router = router
        self._clock = clock
        self._who = who
        #: Those with a trace, and the entries in them.
        self._sessions: list[State] = []
        self._count: int = 0

    def whole(self, acked: bool, session: State, message: Message) -> None:
        """A message that is remembered as a whole was sent or acknowledged."""
        if self.acking if acked else self.delivering:
            self.add(acked, session, run_of(message))

    def add(self, acked: bool, session: State, run: Run) -> None:
        """These messages were sent or acknowledged."""
        trace = self._trace(session)
        if acked:
            trace.acked.append(run)
        else:
            trace.sent.append(run)
        self._weigh(run)

    def unheard_run(self, session: State, run: Run) -> None:
        """These messages of its client have reached nobody."""
        self._trace(session).unheard.append(run)
        self._weigh(run)

    def unheard_message(self, message: Message, reason: str) -> None:
        """One has reached nobody, for this reason; told without waiting for the turn."""
        if self.unheard:
            at = self._clock()
            runs = [run_of(message)]
            for keeping in self.unheard:
                keeping.tell_unheard(at, message.client_id, message.username, runs, reason)

    def refused(self, session: State, key: bytes, first: int, size: int) -> None:
        """A message of its client was refused; see `Judge.note_refused`."""
        trace = self._trace(session)
        if key is trace.key:
            last = trace.refused[-1]
            if last.size == size and last.first == first and last.count < _RUN:
                last.count += 1
                return
        self._refuse(trace, Run(_NAMELESS, 0, key[2:], first, size))
        trace.key = key

    def refused_one(self, session: State, packet: Publish, message: Message | None) -> None:
        """The same of a message that was parsed, or is there as a whole already."""
        if message is not None:
            run = run_of(message)
        else:
            first = packet.qos << 1 | (1 if packet.retain else 0)
            run = Run(_NAMELESS, 0, packet.topic.encode(), first, len(packet.payload))
        self._refuse(self._trace(session), run)

    def _refuse(self, trace: Trace, run: Run) -> None:
        trace.key = b""
        trace.refused.append(run)
        self._weigh(run)

    def denied(self, client: ClientInfo, action: Action, topic: str) -> None:
        """A client may not do something that is no message on its way; told at once."""
        if self.denying:
            at = self._clock()
            raw = topic.replace("\0", "\ufffd").encode("utf-8", "replace")
            runs = [Run(_NAMELESS, 0, raw, action.qos << 1 | (1 if action.retain else 0), 0)]
            for keeping in self.denying:
                keeping.tell_denied(at, client, runs, action.kind)

    def settle(self, session: State) -> None:
        """Its client goes: what it was refused in this turn is told before that."""
        trace = session.trace
        if trace is not None and trace.refused:
            self.end_turn()

    def _trace(self, session: State) -> Trace:
        trace = session.trace
        if trace is None:
            trace = Trace()
            session.trace = trace
            if not self._sessions:
                self._router.endings.append(self)
            self._sessions.append(session)
        return trace

    def _weigh(self, run: Run) -> None:
        self._count += 1 + (len(run.topic) >> _TOPIC_SHIFT)
        if self._count > _MOST:
            self.end_turn()

    def missed(self, session: State, run: Run, reason: str) -> None:
        """A session misses this message. That is rare, and told without waiting for the turn."""
        if self.missing:
            at = self._clock()
            for keeping in self.missing:
                keeping.tell_missed(at, session, run, reason)

    def end_turn(self) -> None:
        """See `Ending`: tell of all."""
        sessions = self._sessions
        if not sessions:
            return
        self._sessions = []
        self._count = 0
        at = self._clock()
        before: list[Run] = []
        runs: list[Run] = []
        for session in sessions:
            trace = session.trace
            if trace is not None and trace.sent:
                if trace.sent != before:
                    before = trace.sent
                    runs = joined(before)
                for keeping in self.delivering:
                    keeping.tell(False, at, session, runs)
        for session in sessions:
            trace = session.trace
            if trace is not None and trace.unheard:
                runs = joined(trace.unheard)
                for keeping in self.unheard:
                    keeping.tell_unheard(
                        at, session.client_id, session.username, runs, "no_subscriber"
                    )
            if trace is not None and trace.refused:
                self._tell_refused(at, session, trace.refused)
        for session in sessions:
            trace = session.trace
            session.trace = None
            if trace is not None and trace.acked:
                if trace.acked != before:
                    before = trace.acked
                    runs = joined(before)
                for keeping in self.acking:
                    keeping.tell(True, at, session, runs)

    def _tell_refused(self, at: int, session: State, runs: list[Run]) -> None:
        """What a client was refused in this turn; only here most of it is given ids."""
        guid = self._router.guid
        for run in runs:
            if run.came == _NAMELESS:
                run.number = guid.reserve(self._router.instant(), run.count)
                run.came = guid.timestamp
        runs = joined(runs)
        if self.denying:
            client = self._who(session)
            for keeping in self.denying:
                keeping.tell_denied(at, client, runs, "publish")
        for keeping in self.unheard:
            keeping.tell_unheard(at, session.client_id, session.username, runs, "denied")


def run_of(message: Message) -> Run:
    """What is kept of a message that is remembered as a whole."""
    first = message.qos << 1 | (1 if message.retain else 0)
    topic = message.topic.encode("utf-8", "replace")
    return Run(message.id >> 64, message.id & _HALF, topic, first, len(message.payload))
