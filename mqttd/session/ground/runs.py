"""What was sent to a client in a turn, and what it has acknowledged: for those who keep it.

    Run    messages of one topic that follow one another: id, topic, size; one for all receivers
    Trace  of one session: the runs it was sent, those it has acknowledged, those of its own that
           reached nobody or were refused; until the turn ends

Promise: a delivery that is noted, or its acknowledgement, is one list append.
"""

from __future__ import annotations

from mqttd.codec.native import mypyc_attr

__all__ = ["Run", "Trace", "goes_on", "joined"]


@mypyc_attr(acyclic=True, free_list_len=1)
class Run:
    """`count` messages whose ids are ``came << 64 | number`` (`mqttd.session.ground.guid`) and
    following.

    `topic` is UTF-8, `first` has QoS and RETAIN as published where a PUBLISH has them, `size` is
    that of each payload in bytes.
    """

    __slots__ = ("came", "count", "first", "number", "size", "topic")

    def __init__(
        self, came: int, number: int, topic: bytes, first: int, size: int, count: int = 1
    ) -> None:
        self.came = came
        self.number = number
        self.topic = topic
        self.first = first
        self.size = size
        self.count = count

    def with_more(self, count: int) -> Run:
        """The same, and as many that follow it."""
        return Run(self.came, self.number, self.topic, self.first, self.size, self.count + count)


class Trace:
    """The runs of one session in this turn."""

    __slots__ = ("acked", "key", "refused", "sent", "unheard")

    def __init__(self) -> None:
        self.sent: list[Run] = []
        self.acked: list[Run] = []
        self.unheard: list[Run] = []
        self.refused: list[Run] = []
        #: The key of the route that refused last, if its run may go on.
        self.key: bytes = b""


def joined(runs: list[Run]) -> list[Run]:
    """The same messages in as few runs as they make: the same list where that is as many."""
    last = runs[0]
    for at in range(1, len(runs)):
        run = runs[at]
        if goes_on(last, run):
            return _joined(runs, at)
        last = run
    return runs


def _joined(runs: list[Run], first: int) -> list[Run]:
    """The same, where the run at `first` is the first that goes on with the one before."""
    made = runs[:first]
    last = made[-1]
    own = False
    for at in range(first, len(runs)):
        run = runs[at]
        if not goes_on(last, run):
            made.append(run)
            last = run
            own = False
        elif own:
            last.count += run.count
        else:
            last = last.with_more(run.count)
            made[-1] = last
            own = True
    return made


def goes_on(last: Run, run: Run) -> bool:
    """Whether `run` follows `last` and differs from it in payloads alone."""
    return (
        run.number == last.number + last.count
        and run.size == last.size
        and run.first == last.first
        and run.came == last.came
        and (run.topic is last.topic or run.topic == last.topic)
    )
