"""How a node asks another what an operator wants to know: a question, and an answer in pieces.

    ask(node, question) --ASK number, question--> serve(question, who asks)
         answer <--ANSWER number, piece ... last piece-- a piece a turn, while the link has room

What both are is their business who ask and serve (`mqttd.cluster.front`). Links are the mesh's, so
who asks is a node of this cluster, by its certificate. One that knows no questions would say
nothing, so it is not asked: its hello says its version.

Promise: who asks hears within `TIME` seconds, of an answer or why there is none. Of one node at
most `MOST` questions are under way, an answer has at most `LONGEST` bytes and all that have come in
pieces `HELD`; no more than `ROOM` bytes of answers wait on a link before messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.mesh.frames import ANSWER, ASK, number_of, numbered
from mqttd.mesh.link import Link

__all__ = ["HELD", "LONGEST", "MOST", "SINCE", "TIME", "Asking", "Unanswered"]

#: Seconds for an answer.
TIME: Final = 5.0
#: Questions of one node that are under way at another.
MOST: Final = 16
#: Bytes of an answer, and of all those that come.
LONGEST: Final = 8 << 20
HELD: Final = 64 << 20
#: Bytes of a piece, and those that may wait on a link before the next one goes.
PIECE: Final = 64 << 10
ROOM: Final = 256 << 10
#: Seconds before it is looked again whether there is room.
_AGAIN: Final = 0.02

#: The first version of the frames (`mqttd.cluster.links.hello`) whose nodes all answer questions.
SINCE: Final = 2

#: What a piece says: more follow, it is the last; or there is no answer.
_MORE: Final = 0
_LAST: Final = 1
_BUSY: Final = 2
_LONG: Final = 3
_FAULT: Final = 4

_WHY: Final = {
    _BUSY: "it is asked too much at once",
    _LONG: f"its answer has more than {LONGEST >> 20} MiB: ask for less, or ask it itself",
    _FAULT: "it has failed; see its log",
}


class Unanswered(Exception):
    """A node has not answered; the text says why."""


class _Question:
    """One that waits for its answer."""

    def __init__(self, call: Any) -> None:
        self.done: Deferred[bytes] = Deferred()
        self.call = call
        self.pieces: list[bytes] = []
        self.size = 0


class Asking:
    """The questions of this node to the others of `mesh`, and theirs.

    `serve` answers what another node, named, has asked. What gets no answer is counted, and logged.
    """

    def __init__(self, mesh: NodeMesh, reactor: Any) -> None:
        self.mesh = mesh
        self.reactor = reactor
        self.log = Logger(namespace="mqttd.cluster")
        self.serve: Callable[[bytes, str], Deferred[bytes]] | None = None
        #: Questions that had no answer.
        self.unanswered = 0
        self._number = 0
        #: By the number of a neighbour: our questions, and how many of its we work on.
        self._waiting: dict[int, dict[int, _Question]] = {}
        self._serving: dict[int, int] = {}
        self._coming = 0
        self._going = 0
        mesh.parted = self._parted

    def held(self) -> int:
        """Bytes of answers that have come in part, or not gone yet."""
        return self._coming + self._going

    # -- we ask --------------------------------------------------------------------------------

    def ask(self, node: Node, question: bytes) -> Deferred[bytes]:
        """What a node answers; fails with Unanswered."""
        link = node.link
        if link is None:
            return fail(self._unanswered(node.name, "there is no link to it"))
        if node.version < SINCE:
            return fail(self._unanswered(node.name, _OLD))
        waiting = self._waiting.setdefault(node.number, {})
        if len(waiting) >= MOST:
            return fail(self._unanswered(node.name, _WHY[_BUSY]))
        self._number += 1
        call = self.reactor.callLater(TIME, self._end, node, self._number, _LATE)
        asked = waiting[self._number] = _Question(call)
        link.send(numbered(ASK, self._number, question))
        self.mesh.broker.perform_later()
        return asked.done

    def _unanswered(self, name: str, why: str) -> Unanswered:
        self.unanswered += 1
        self.mesh.broker.log("node has not answered", {"node": name, "reason": why})
        return Unanswered(why)

    def _end(self, node: Node, number: int, why: str) -> None:
        """A question has its answer, or `why` there is none."""
        asked = self._waiting[node.number].pop(number)
        self._coming -= asked.size
        if asked.call.active():
            asked.call.cancel()
        if why:
            asked.done.errback(self._unanswered(node.name, why))
        else:
            asked.done.callback(b"".join(asked.pieces))

    def _answered(self, node: Node, body: bytes) -> None:
        number, said = number_of(body), body[8] if len(body) > 8 else _FAULT
        asked = self._waiting.get(node.number, {}).get(number)
        if asked is None:
            return  # it was late
        if said not in (_MORE, _LAST):
            self._end(node, number, _WHY.get(said, _WHY[_FAULT]))
            return
        piece = body[9:]
        asked.pieces.append(piece)
        asked.size += len(piece)
        self._coming += len(piece)
        if asked.size > LONGEST:
            self._end(node, number, _WHY[_LONG])
        elif self._coming > HELD:
            self._end(node, number, "too much is asked for at once")
        elif said == _LAST:
            self._end(node, number, "")

    # -- we are asked --------------------------------------------------------------------------

    def told(self, node: Node, kind: int, body: bytes) -> None:
        """A frame of another node, ASK or ANSWER."""
        if kind == ASK:
            self._asked(node, body)
        elif kind == ANSWER:
            self._answered(node, body)

    def _asked(self, node: Node, body: bytes) -> None:
        number, link = number_of(body), node.link
        serving = self._serving.get(node.number, 0)
        if link is None or self.serve is None:
            return
        if serving >= MOST:
            self._say(link, number, _BUSY)
            return
        self._serving[node.number] = serving + 1
        until = self.reactor.seconds() + TIME

        def refused(what: int) -> None:
            if node.link is link:
                self._say(link, number, what)
            self._served(node, 0)

        def failed(failure: Failure) -> None:
            self.log.failure("what node {node} has asked failed", failure, node=node.name)
            refused(_FAULT)

        def found(answer: bytes) -> None:
            if len(answer) > LONGEST:
                refused(_LONG)
            else:
                self._going += len(answer)
                self._send(node, link, number, answer, 0, until)

        self.serve(body[8:], node.name).addCallbacks(found, failed)

    def _send(
        self, node: Node, link: Link, number: int, answer: bytes, at: int, until: float
    ) -> None:
        """The piece of an answer that begins here, when there is room, and those behind it."""
        if node.link is not link or self.reactor.seconds() > until:
            self._served(node, len(answer))  # nobody waits for it
            return
        if link.out_bytes + link.shut_in > ROOM:
            self.reactor.callLater(_AGAIN, self._send, node, link, number, answer, at, until)
            return
        end = at + PIECE
        is_last = end >= len(answer)
        self._say(link, number, _LAST if is_last else _MORE, answer[at:end])
        if is_last:
            self._served(node, len(answer))
        else:
            self.reactor.callLater(0, self._send, node, link, number, answer, end, until)

    def _say(self, link: Link, number: int, what: int, piece: bytes = b"") -> None:
        link.send(numbered(ANSWER, number, bytes((what,)) + piece))
        self.mesh.broker.perform_later()

    def _served(self, node: Node, size: int) -> None:
        """One of its questions is done with."""
        self._going -= size
        left = self._serving.pop(node.number) - 1
        if left:
            self._serving[node.number] = left

    def _parted(self, node: Node) -> None:
        """There is no link to it any more."""
        for number in list(self._waiting.get(node.number, ())):
            self._end(node, number, "the link to it is gone")
        self._waiting.pop(node.number, None)


_OLD: Final = "it is of an older version, which answers no questions"
_LATE: Final = f"it has not answered in {TIME:g} s"
