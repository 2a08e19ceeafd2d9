"""Messages to more receivers than one step is for: in slices, with other clients served in between.

    message --> wide route --> Fan: a slice now, the others in later turns --> acknowledged
                                |
                                '-- what its publisher sends next waits: a client is not read from,
                                    messages of this process stand in line behind it

Who receives it is what the route was when it came; other processes come first, all in one slice,
and in place of a session that has moved meanwhile whoever stands for it (`Fans.instead`). A message
with many shapes (identifiers) is weighed by the bytes that are made of it, not by its receivers
alone.

A message that a store has as a whole keeps its group open, for which the acknowledgements of others
wait: the next one begins when the group of the one before is closed. Until then it is not taken
from what its publisher has sent (`mqttd.broker.publish.gate`).

Promise: a slice is at most `_SLICE` units of work, a delivery being one, and 2 KiB of output;
messages of one publisher reach each receiver in their order; an acknowledgement goes when the last
receiver has its message, and it is kept where that has to be. Of QoS 2, and of what another process
will not send again, a store has what all receivers have of it in one transaction, with its packet
id or number: a process that dies in the midst of it has routed it to all, or to nobody. Not where a
way to another process is full: that may be shut until the store has written. What is under way is
counted (`Fans.bytes`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.ground import Ground
from mqttd.broker.ground.turns import Job
from mqttd.broker.publish.gate import Gate
from mqttd.codec.reasons import MqttError
from mqttd.session.channel.channel import OPEN, Channel
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.message import Delivery, entry_delivery
from mqttd.session.publish.general import General, Later
from mqttd.session.publish.inbound import Inbound
from mqttd.session.routes.route import Route
from mqttd.session.state import State

__all__ = ["Fan", "Fans", "InboundFan"]

#: Units of work of a slice; those of a shared group, and bytes of a shape that are one.
_SLICE: Final = 4096
_GROUP: Final = 2
_COPIED: Final = 13
#: Deliveries between two looks at the work; fewer where each may make a shape of a large message.
_LOOK: Final = 64
_FEW: Final = 4
_LARGE: Final = 1 << 16
_HUGE: Final = 1 << 20
#: Bytes of output that are a unit, as a power of two: a slice has 8 MiB.
_POURED: Final = 11
#: Bytes of shapes that are remembered for further receivers.
_REMEMBERED: Final = 4 << 20


class Fan(Later):
    """One message on its way. weight: what it is counted with; size: of one shape, in bytes."""

    def __init__(self, source: str, route: Route, weight: int, size: int, qos: int) -> None:
        self.source = source
        self.qos = qos
        self.route = route.snapshot()
        self.weight = weight
        self.size = size
        self.at: int = 0
        self.group_at: int = 0
        #: Receivers so far.
        self.count: int = 0
        #: The link it has come by (`mqttd.mesh.peer.Choice`), 0: it is of this process; and what
        #: tells whether it, or a mark, came first: for one of this process, went to others.
        self.link: int = 0
        self.number: int = 0
        #: It may come once only: the store has all of it, or nothing.
        self.whole: bool = False
        #: Nor does it go out before that (`mqttd.session.journal.Journal.bind`).
        self.once: bool = False
        #: A journal keeps something of it.
        self.touched: bool = False
        #: Other processes that it went to, see `Ground.crossed`.
        self.crossed: tuple[object, ...] = ()
        #: A way to another process that has been filled by it, or cannot follow.
        self.full: Connection | None = None
        #: Who is to acknowledge it, and how.
        self.channel: Channel | None = None
        self.first: int = 0
        self.packet_id: int = 0
        self.gear: int = 0
        self.topic: str = ""

    def kept_by(self, broker: Ground) -> None:
        """What its acknowledgement and its publisher wait for, after a slice."""
        self.touched |= broker.journal.touched
        if broker.clogged is not None:
            self.full = broker.clogged
        for keeper in broker.crossed:
            if keeper not in self.crossed:
                self.crossed = (*self.crossed, keeper)
        broker.crossed = ()

    def made(self) -> int:
        """How many shapes are remembered."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remember no shapes."""
        raise NotImplementedError

    def sessions(self, at: int, end: int) -> int:
        """Deliver to these sessions of the route; returns to how many."""
        raise NotImplementedError

    def groups(self, at: int, end: int) -> int:
        """Deliver to these groups of the route."""
        raise NotImplementedError

    def then(self, channel: General, first: int, packet_id: int, gear: int, topic: str) -> None:
        """See `Later.then`."""
        assert isinstance(channel, Channel)
        self.channel = channel
        self.first = first
        self.packet_id = packet_id
        self.gear = gear
        self.topic = topic
        if channel.state == OPEN:
            channel.begin_work()

    def receivers(self) -> int:
        """At most so many get it."""
        groups = self.route.groups
        return len(self.route.sessions) + (0 if groups is None else len(groups))

    def others(self) -> int:
        """Other processes among the receivers, which stand before all sessions."""
        sessions = self.route.sessions
        count = 0
        while count < len(sessions) and not isinstance(sessions[count], State):
            count += 1
        return count

    def some(self, broker: Ground) -> bool:
        """A slice, as long as nothing that it fills is full; whether anything is left."""
        work = 0
        step = _LOOK
        if self.size > _LARGE:
            step = _FEW if self.size <= _HUGE else 1
        count = len(self.route.sessions)
        while self.at < count:
            if work >= _SLICE or broker.clogged is not None:
                return True
            end = self.at + step if self.at else max(step, self.others())
            if end > count:
                end = count
            work += end - self.at + self._made(True, self.at, end)
            self.at = end
        groups = self.route.groups
        count = 0 if groups is None else len(groups)
        while self.group_at < count:
            if work >= _SLICE or broker.clogged is not None:
                return True
            end = self.group_at + step if self.group_at + step < count else count
            work += _GROUP * (end - self.group_at) + self._made(False, self.group_at, end)
            self.group_at = end
        return False

    def _made(self, sessions: bool, at: int, end: int) -> int:
        """Deliver to these; the work that making shapes and output of it was."""
        before = self.made()
        self.count += self.sessions(at, end) if sessions else self.groups(at, end)
        shapes = self.made() - before
        if (before + shapes) * self.size > _REMEMBERED:
            self.forget()
        return shapes * (1 + (self.size >> _COPIED)) + ((end - at) * self.size >> _POURED)


class InboundFan(Fan):
    """A PUBLISH as it came."""

    def __init__(self, inbound: Inbound, route: Route) -> None:
        size = inbound.end - inbound.pos
        super().__init__(inbound.source, route, len(inbound.data), size, inbound.qos)
        self.inbound = inbound
        self.shapes: dict[int, Delivery] = {}

    def made(self) -> int:
        """See `Fan.made`."""
        return len(self.shapes)

    def forget(self) -> None:
        """See `Fan.forget`."""
        self.shapes.clear()

    def sessions(self, at: int, end: int) -> int:
        """See `Fan.sessions`."""
        return self.inbound.fan_sessions(self.route, self.shapes, at, end)

    def groups(self, at: int, end: int) -> int:
        """See `Fan.groups`."""
        return self.inbound.fan_groups(self.route, self.shapes, at, end)


class _Mark(Fan):
    """Stands in line behind messages, and says when they have gone."""

    def __init__(self, source: str, route: Route, told: Callable[[], None]) -> None:
        super().__init__(source, route, 0, 0, 0)
        self.told = told

    def some(self, broker: Ground) -> bool:
        """See `Fan.some`: it goes to nobody."""
        self.told()
        return False


class _Last:
    """Calls `told` when so many have come to their end."""

    def __init__(self, count: int, told: Callable[[], None]) -> None:
        self.count = count
        self.told = told

    def one(self) -> None:
        """One has."""
        self.count -= 1
        if not self.count:
            self.told()


class Fans:
    """All that are under way in one broker."""

    def __init__(self, broker: Ground) -> None:
        self.broker = broker
        #: Publisher -> the message under way and those behind it.
        self.lines: dict[str, deque[Fan]] = {}
        #: What they weigh.
        self.bytes: int = 0
        #: Publishers whose messages wait for room on the way to another process.
        self.clogged: set[str] = set()
        #: The number of the last one; and the one that is handed out now, in a later turn.
        self.number: int = 0
        self.current: Fan | None = None
        #: Receivers that are gone -> who has come in their place while something was under way.
        self.instead: dict[State, State] = {}
        #: What a store has as a whole.
        self.gate = Gate(broker)

    def busy_with(self, source: str) -> bool:
        """Whether a message of this publisher is under way."""
        return bool(self.lines) and source in self.lines

    def after(self, source: str, told: Callable[[], None]) -> None:
        """Call when what this publisher has under way now is delivered; at once if nothing is."""
        line = self.lines.get(source)
        if line is None:
            told()
        else:
            line.append(_Mark(source, line[-1].route, told))

    def after_all(self, told: Callable[[], None]) -> None:
        """Call when all that is under way now is delivered; at once if nothing is."""
        if not self.lines:
            told()
            return
        last = _Last(len(self.lines), told)
        for source in list(self.lines):
            self.after(source, last.one)

    def replace(self, gone: State, by: State) -> None:
        """What is under way to one now goes to another."""
        if self.lines:
            self.instead[gone] = by
            self.after_all(lambda: self._settled(gone))

    def _settled(self, gone: State) -> None:
        self.instead.pop(gone, None)

    def missed(self, session: State, entry: object) -> None:
        """This was for a session that is over."""
        heir = self.instead.get(session)
        while heir is not None and heir.ended:
            heir = self.instead.get(heir)
        if heir is None:
            return
        delivery = entry_delivery(entry, session.v5)
        if delivery.qos:
            heir.deliver(delivery, delivery.packet_id)
        else:
            heir.deliver_qos0(delivery)

    def run(self, fan: Fan) -> int:
        """Deliver it, some in later turns; how many receivers there are."""
        broker = self.broker
        line = self.lines.get(fan.source)
        self._number(fan)
        if line is None:
            before, self.current = self.current, None  # a receiver may have published it
            left = fan.some(broker)
            self.current = before
            if not left:
                return fan.count
            fan.kept_by(broker)
            line = deque([fan])
            self.lines[fan.source] = line
            broker.turns.add(_Slices(self, line))
        else:
            line.append(fan)
        self.bytes += fan.weight
        broker.later = fan
        fan.once = broker.journal.once
        if fan.once or fan.qos == 2:
            self.hold(fan)
        return fan.receivers()

    def _number(self, fan: Fan) -> None:
        self.number += 1
        fan.number = self.number

    def hold(self, fan: Fan) -> None:
        """Have all of it in one transaction of the store, with what its turn has brought."""
        if not fan.whole and fan.source not in self.clogged:
            fan.whole = True
            self.gate.enter()

    def let_go(self, fan: Fan) -> None:
        """All of it is told; or it waits for what may wait for the store."""
        if fan.whole:
            fan.whole = False
            self.gate.leave()

    def wait(self, line: deque[Fan]) -> None:
        """There is no room for these: their way may be shut until the store has written."""
        self.clogged.add(line[0].source)
        for fan in line:
            self.let_go(fan)

    def finish(self) -> None:
        """The process ends: what is to be kept as a whole is told now."""
        while self.gate.held and len(self.broker.turns):
            self.broker.turns.turn()

    def go_on(self, line: deque[Fan]) -> bool:
        """A slice of the first in line; whether anything is left."""
        fan = line[0]
        broker = self.broker
        journal = broker.journal
        journal.touched = False
        journal.fleeting = 0
        broker.clogged = None
        left = False
        if not (fan.link or fan.at or fan.group_at):
            self._number(fan)  # now it goes to other processes, and not when it came
        self.current = fan
        if fan.once:
            journal.bind(True)
        try:
            left = fan.some(broker)
            fan.kept_by(broker)
        except Exception as error:  # of one message: those behind it go on
            self._failed(fan, error)
        finally:
            self.current = None
            if fan.once:
                journal.bind(False)
        if left:
            return True
        line.popleft()
        self.bytes -= fan.weight
        self.let_go(fan)
        if not line:
            del self.lines[fan.source]
        self._done(fan)
        return bool(line)

    def _done(self, fan: Fan) -> None:
        """All have it: its publisher hears of it, and is read from again."""
        if self.broker.later is fan:
            self.broker.later = None
        channel = fan.channel
        if channel is None:
            return
        fan.channel = None
        if channel.state != OPEN:
            return
        broker = self.broker
        if fan.full is not None and fan.full.lets_wait():
            fan.full.hold_back(channel)
        broker.journal.touched = fan.touched
        broker.crossed = fan.crossed
        broker.later = None
        try:
            channel.published(fan.first, fan.packet_id, fan.count, fan.gear, fan.topic)
            channel.end_work()
        except MqttError as error:
            channel.fail(error, 3)
        except Exception as error:  # as in the edges: it must end this connection only
            broker.crashed(channel, error)

    def _failed(self, fan: Fan, error: Exception) -> None:
        if fan.channel is not None:
            self.broker.crashed(fan.channel, error)
        else:
            self.broker.metrics.crashes += 1
            self.broker.log("internal error", {"topic": fan.route.topic, "error": repr(error)})


class _Slices(Job):
    """The messages of one publisher, one after the other."""

    def __init__(self, fans: Fans, line: deque[Fan]) -> None:
        self.fans = fans
        self.line = line

    def slice(self) -> bool:
        """See `Job.slice`; what fills the way to another process waits for room there.

        Where that cannot follow, all have the message nevertheless, and its publisher waits.
        """
        more = self.fans.go_on(self.line)
        broker = self.fans.broker
        full = broker.clogged
        broker.clogged = None
        if more and full is not None and full.is_full():
            self.fans.wait(self.line)
            full.when_drained(self.go_on)
            return False
        return more

    def go_on(self) -> None:
        """There is room again."""
        self.fans.clogged.discard(self.line[0].source)
        self.fans.broker.turns.add(self)
