"""What both ends of a session's way need: to say something of it, to catch what comes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.endings import Burial
from mqttd.broker.sessions.records import Record, queue_of, subscribe_all
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.left import Left
from mqttd.cluster.sessions.packets import joined
from mqttd.codec.topic import is_shared
from mqttd.mesh.frames import STATE, packed, packed_frame, split
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = [
    "BACK",
    "DONE",
    "GIVE",
    "HEIR",
    "LANE_MARKED",
    "LOOK",
    "MARK",
    "MARKED",
    "MARKS",
    "MORE",
    "TAIL",
    "WANT",
    "WHOLE",
    "Transit",
    "cancel",
    "is_done",
    "sending_of",
    "with_sending",
]

#: What is said of a session: its state, more of its queue, a mark asked for and given, that of the
#: lane of QoS 2, what was caught, an end, an offer, a question for what was claimed, and that it is
#: not for who was sent it, who has nothing of it: etcd says whose it is.
WHOLE: Final = b"state"
MORE: Final = b"more"
MARK: Final = b"mark"
MARKED: Final = b"marked"
LANE_MARKED: Final = b"lane"
TAIL: Final = b"tail"
DONE: Final = b"done"
GIVE: Final = b"give"
WANT: Final = b"want"
LOOK: Final = b"look"
#: Seconds for the marks of nodes that are there, whatever keeps them: their links, etcd, or, in the
#: lane of QoS 2, a store whose copies are not there, which keeps nothing back for longer than
#: `mqttd.cluster.replication.copying.PATIENCE`. Whoever goes on without them may have twice what
#: comes then.
MARKS: Final = 30.0
#: Seconds from the end of a node's key to its next one, where its process has begun anew.
BACK: Final = 0.5
#: Seconds for an heir to hand out what a node had for others, QoS 2; it may wait for servers, too.
HEIR: Final = MARKS
#: How it ends, and so many bytes of it: eight in hexadecimal.
_SENDING: Final = b',"sending":"'
_DONE: Final = packed([DONE])
_SAID: Final = len(_SENDING) + 18


class Transit:
    """The means of `broker`, among the nodes of `mesh`."""

    def __init__(self, broker: Broker, mesh: NodeMesh, reactor: Any) -> None:
        self.broker = broker
        self.mesh = mesh
        self.reactor = reactor
        self.left = Left(broker)
        #: Whether what a node had for others is about to be handed out by its heir.
        self.is_taken_over: Callable[[str], bool] = lambda name: False
        #: Nodes that have just gone, and until when they may be back.
        self._gone: dict[str, float] = {}
        #: What is done, and is to be told to nodes that were not there then.
        self._untold: dict[str, list[tuple[str, int]]] = {}

    def say(self, to: Node, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
        """A frame, kept until that node has taken it."""
        start = [what, client_id.encode(), revision.to_bytes(8, "big")]
        to.ferry.keep(packed_frame(STATE, [*start, *fields]))

    def tell_done(self, to: str, client_id: str, revision: int) -> None:
        """What this node has sent is where it belongs; it may be gone for its lease alone."""
        node = self.mesh.nodes.get(to)
        if node is None:
            self._untold.setdefault(to, []).append((client_id, revision))
        else:
            self.say(node, DONE, client_id, revision)
            self.broker.perform_later()

    def tell_nothing(self, to: str, client_id: str, revision: int) -> None:
        """There is nothing here of what this node has claimed."""
        node = self.mesh.nodes.get(to)
        if node is not None:
            self.say(node, WHOLE, client_id, revision)
            self.broker.perform_later()

    def tell_look(self, to: str, client_id: str, revision: int, *of: str) -> None:
        """Have a node look at etcd: who it sends it to, or asks, has nothing by this revision.

        of: by whom it would have come there.
        """
        node = self.mesh.nodes.get(to)
        if node is not None:
            self.say(node, LOOK, client_id, revision, *(each.encode() for each in of))
            self.broker.perform_later()

    def joined(self, node: Node) -> None:
        """It is there, maybe again."""
        for client_id, revision in self._untold.pop(node.name, ()):
            self.say(node, DONE, client_id, revision)

    def given_up(self, name: str) -> None:
        """It is not awaited any more."""
        self._untold.pop(name, None)
        self.is_over(name)

    def mark(self, to: Node, client_id: str, revision: int, sending: bytes) -> None:
        """The same by the lane of QoS 2: what was sent there before this is before the mark."""
        if to.version < 2:
            return  # it has one lane
        start = [LANE_MARKED, client_id.encode(), revision.to_bytes(8, "big"), sending]
        to.once.keep(packed_frame(STATE, start))

    def catch(
        self, client_id: str, state: SessionState, behind: bool, *, groups: bool = True
    ) -> Catcher | None:
        """One that has the filters of a session, those of shared groups only if it is to be in
        these `groups`; None where its record cannot be read."""
        try:
            record = Record(state.record)
        except ValueError:
            return None  # the registry says so
        catcher = Catcher(
            self.broker, client_id, record.username, self.mesh.choice, self.broker.fans, behind
        )
        if not groups:
            record.subscriptions = [each for each in record.subscriptions if not is_shared(each[0])]
        subscribe_all(self.broker, catcher, record)
        return catcher

    def is_gone(self, name: str, wait: float, then: Callable[[], object]) -> None:
        """A node is gone, and may be back at once: who waits for its marks waits for that.

        What it had for others before is before those that it gives then, or its heir hands it out
        in this time, `wait` in seconds, be it back by then or not. `then` is called when that is
        over.
        """
        self._gone[name] = self.reactor.seconds() + wait
        self.reactor.callLater(wait, then)

    def is_over(self, name: str) -> None:
        """Its heir has handed out what it had."""
        self._gone.pop(name, None)

    def _may_be_back(self) -> bool:
        now = self.reactor.seconds()
        for name, until in list(self._gone.items()):
            is_back = name in self.mesh.nodes and not self.is_taken_over(name)
            if until <= now or is_back:
                del self._gone[name]
        return bool(self._gone)

    def has_all(self, catcher: Catcher) -> bool:
        """Whether all nodes that are there have given their marks, and this one has."""
        marked = catcher.marks.settled
        return (
            0 in marked
            and not self._may_be_back()
            and all(
                node.number in marked and -node.number in marked
                for node in self.mesh.nodes.values()
            )
        )

    def with_caught(self, state: SessionState, catcher: Catcher | None) -> SessionState:
        """A state with what was caught for it behind its queue; the catcher is done."""
        if catcher is None:
            return state
        caught = self.caught(catcher)
        self.bury(catcher)
        return SessionState(state.record, joined(state.queue, caught), state.epoch)

    def caught(self, catcher: Catcher) -> tuple[bytes, ...]:
        """What was caught so far."""
        return tuple(queue_of(self.broker, catcher, True))

    def replace(self, by: Session | None, *gone: Session | None) -> None:
        """What is under way to these is for `by`, if there is one."""
        for each in gone:
            if each is not None and by is not None:
                self.broker.fans.replace(each, by)

    def bury(self, catcher: Catcher) -> None:
        """Take its filters out of the router, if they are many bit by bit."""
        catcher.leave_journal()
        catcher.ended = True
        burial = Burial(self.broker, catcher)
        if burial.slice():
            self.broker.turns.add(burial)
        catcher.forget()


def with_sending(record: bytes, sending: bytes) -> bytes:
    """A record that says at its end which sending of its session this is; it may be long."""
    start = record[:-_SAID] if sending_of(record) else record[:-1]
    return start + _SENDING + sending.hex().encode() + b'"}'


def sending_of(record: bytes) -> bytes:
    """What is said so; empty: nothing."""
    said = record[-_SAID:]
    return bytes.fromhex(said[len(_SENDING) : -2].decode()) if said.startswith(_SENDING) else b""


def is_done(data: bytes) -> bool:
    """Whether this frame says that a session is where it belongs: so it is, whoever hears it."""
    return data[0] == STATE and data[split(data, 0)[0] :].startswith(_DONE)


def cancel(late: Any) -> None:
    """End a call that may be over, or was never made."""
    if late is not None and late.active():
        late.cancel()
