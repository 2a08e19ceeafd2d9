"""A neighbour, as the tables of this one know it: a receiver that is handed bytes.

    Route --> Peer    what matches one of its filters, once whatever the number of its sessions
    Group --> Member  what no member of the group here can take
                |
              Ferry   counts what must arrive, keeps it until the other worker has taken it
                '--> Link

QoS 1 and 2 are *carried*: the publisher's acknowledgement is a promise that the other worker keeps
(`Ferry.wait`). When that worker dies, what it had not taken is kept here, and goes to it when it is
back; until then its part of the promise is kept by this worker, so that publishers go on. Above
`MOST` bytes they wait.

Promise: an append for each message; what is carried is forgotten when it is taken, in its order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.abroad import Taken
from mqttd.broker.routing.shared import Group
from mqttd.mesh.frames import ABOUT, FOLLOWS, MEMBER, frame, packed
from mqttd.mesh.link import Link
from mqttd.session.ground.message import Delivery
from mqttd.session.journal import Journal
from mqttd.session.promise import Promise
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import MOUNTED, Route

__all__ = ["MOST", "NEVER", "Choice", "Ferry", "Member", "Peer", "onward"]

#: The number of what has not been sent.
NEVER: Final = 1 << 60

#: Bytes that are kept for a worker that is away, before publishers wait for it.
MOST: Final = 64 << 20


class Ferry(Journal):
    """What must arrive at one other worker. A keeper of promises, like a store's journal."""

    __slots__ = (
        "before",
        "broker",
        "flag",
        "kept",
        "kept_bytes",
        "link",
        "own",
        "posted",
        "taken",
        "waiting",
        "way",
    )

    def __init__(self, broker: Publishing) -> None:
        super().__init__()
        self.broker = broker
        #: By which messages go, and what tells everything else: the same, but for a moment.
        self.link: Link | None = None
        self.way: Link | None = None
        #: Counted frames that were sent on this link, and how many of them are taken.
        self.posted: int = 0
        self.taken: int = 0
        #: Messages that are not taken, with their numbers.
        self.kept: deque[tuple[int, bytes]] = deque()
        self.kept_bytes: int = 0
        #: The numbers that the first of them had on the link before this one.
        self.before: deque[int] = deque()
        #: The next message had RETAIN set, if it is of this topic. It says so itself, since it may
        #: be sent again, or later, without what else was said of it.
        self.flag: bytes = b""
        #: Promises and others who wait, with the number that they wait for.
        self.waiting: deque[tuple[int, object]] = deque()
        #: What `Publishing.crossed` is where a message went here alone.
        self.own: tuple[object, ...] = (self,)

    def carry(self, data: bytes, once: bool) -> None:
        """A message of QoS 1 or 2, with what is said of it before; `once`: never twice."""
        self.keep(self.flagged(data))
        self.cross()

    def flagged(self, data: bytes) -> bytes:
        """A message with its flag, which is no other's."""
        if self.flag:
            data = frame(FOLLOWS, self.flag) + data
            self.flag = b""
        return data

    def carry_run(self, run: bytes, count: int, kind: int) -> bool:
        """See `Receiver.take_run`."""
        return False

    def keep(self, data: bytes) -> None:
        """A counted frame that must arrive."""
        link = self.link
        if link is None:
            self.kept.append((NEVER, data))
        else:
            self.posted += 1
            self.kept.append((self.posted, data))
            link.put(data)
        self.kept_bytes += len(data)

    def tell(self, data: bytes) -> None:
        """Another counted frame; it is not kept."""
        link = self.way
        if link is not None:
            self.posted += 1
            link.put(data)

    def cross(self) -> None:
        """The message that is handled now is acknowledged when what was sent is taken."""
        broker = self.broker
        broker.journal.touched = True
        crossed = broker.crossed
        if not crossed:
            broker.crossed = self.own
        elif self not in crossed:
            broker.crossed = (*crossed, self)

    # -- promises ------------------------------------------------------------------------------

    def wait(self, promise: object) -> None:
        """See `Journal.wait`: keep it when all that was sent so far is taken."""
        assert isinstance(promise, Promise)
        if self._settled():
            promise.keep(self)
        else:
            self.waiting.append((NEVER if self.link is None else self.posted, promise))

    def call(self, taken: Taken) -> bool:
        """Whether something is not taken yet; then `taken` is called when it is."""
        if self.way is None or self.taken >= self.posted:
            return False
        self.waiting.append((self.posted, taken))
        return True

    def _settled(self) -> bool:
        if self.link is None:
            return self.kept_bytes <= MOST
        return self.taken >= self.posted

    def acknowledge(self, count: int) -> None:
        """The other worker has taken so many counted frames; before the end of a turn."""
        if count > self.taken:
            self.taken = count
        kept = self.kept
        while kept and kept[0][0] <= count:
            self.kept_bytes -= len(kept.popleft()[1])
        self._release(count)

    def _release(self, count: int) -> bool:
        """Nobody waits for the frames up to this one any more; whether somebody has."""
        waiting = self.waiting
        if not waiting or waiting[0][0] > count:
            return False
        while waiting and waiting[0][0] <= count:
            _, waiter = waiting.popleft()
            if isinstance(waiter, Promise):
                waiter.keep(self)
            else:
                assert isinstance(waiter, Taken)
                waiter.taken()
        return True

    # -- the other worker comes and goes -------------------------------------------------------

    def up(self, link: Link) -> None:
        """It is there, and has been told everything else: what was kept goes to it."""
        self.link = link
        self.way = link
        kept = self.kept
        self.kept = deque()
        for _, data in kept:
            self.posted += 1
            self.kept.append((self.posted, data))
            link.put(data)
        # Who has waited for room waits for what was kept now.
        left = self.waiting
        self.waiting = deque()
        for _, waiter in left:
            self.waiting.append((self.posted, waiter))
        # Where it has all of it already, nothing is to be taken.
        if self._release(self.taken):
            self.broker.flush_later()

    def resume(self, count: int) -> None:
        """So many of the link before had been taken, which that end knows; before `up`."""
        before = self.before
        while before and before[0] <= count:
            before.popleft()
            self.kept_bytes -= len(self.kept.popleft()[1])
        before.clear()

    def drop(self) -> list[bytes]:
        """It does not come back: the messages that were kept for it, as they would have gone."""
        kept = [data for _, data in self.kept]
        self.kept = deque()
        self.before = deque()
        self.kept_bytes = 0
        if self._release(NEVER):
            self.broker.flush_later()
        return kept

    def down(self) -> None:
        """It is gone: what it has not taken is kept for it, and counts as promised."""
        self.link = None
        self.way = None
        self.taken = 0
        self.posted = 0
        kept = self.kept
        self.kept = deque()
        self.before = deque()
        for number, data in kept:
            self.before.append(number)
            self.kept.append((NEVER, data))
        left = self.waiting
        self.waiting = deque()
        later: deque[tuple[int, object]] = deque()
        for _, waiter in left:
            if self.kept_bytes <= MOST or isinstance(waiter, Taken):
                self.waiting.append((0, waiter))
            else:
                later.append((NEVER, waiter))
        self.waiting.extend(later)
        self.safe()

    def safe(self) -> None:
        """What is kept for it is safe: nobody waits any more for whom there was room."""
        if self._release(0):
            self.broker.flush_later()


class Choice:
    """How the members of shared groups are chosen in this process, for all of its peers."""

    __slots__ = ("arriving", "link")

    def __init__(self) -> None:
        #: The number of the neighbour whose bytes are taken now; 0: none, or nobody wants to know.
        self.link: int = 0
        #: For a message that another process has sent to a member here.
        self.arriving: bool = False


class Peer(Receiver):
    """A neighbour among the receivers of a route."""

    __slots__ = ("broker", "choice", "ferry", "filters", "fresh", "once", "place")

    def __init__(self, broker: Publishing, ferry: Ferry, once: Ferry, place: str) -> None:
        super().__init__("")
        self.choice = Choice()
        #: What operators call it (`mqttd.readmodel.routes`).
        self.place = place
        self.v5 = True
        self.broker = broker
        self.ferry = ferry
        #: What takes QoS 2: the same, or one of its own.
        self.once = once
        #: What it has subscribed to, and who stands for it there: itself or a `Member`.
        self.filters: dict[str, Receiver] = {}
        #: While it tells all of its filters: those it has told so far.
        self.fresh: set[str] | None = None

    def is_on(self, route: Route) -> bool:
        """Whether messages go here by this route, or may, to a member of a group."""
        if self in route.sessions:
            return True
        for group in route.groups or ():
            assert isinstance(group, Group)
            for member in group.far:
                if isinstance(member, Member) and member.peer is self:
                    return True
        return False

    def take(self, wire: bytes, packet_id: int, id_at: int) -> None:
        """See `Receiver.take`."""
        self._carry(wire, wire[0] >> 1 & 3, packet_id)

    def take_run(self, run: bytes, count: int, kind: int) -> bool:
        """See `Receiver.take_run`."""
        return self.ferry.carry_run(run, count, kind)

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """See `Receiver.deliver`."""
        self._carry(_wire(delivery, self.broker), delivery.qos, packet_id)

    def _carry(self, data: bytes, qos: int, packet_id: int) -> None:
        if qos == 2:
            # Of a publisher that has no session to come back to nothing is known again.
            fleeting = packet_id != 0 and packet_id == self.broker.journal.fleeting
            self.once.carry(data, not fleeting)
        else:
            ferry = self.ferry
            ferry.carry(data, self.broker.journal.once and ferry is self.once)

    def deliver_qos0(self, delivery: Delivery) -> None:
        """See `Receiver.deliver_qos0`."""
        _send(self, delivery, b"")

    def said(self, delivery: Delivery, head: bytes, packet_id: int) -> None:
        """A delivery for a member of a shared group, which `head` names."""
        if delivery.qos:
            self._carry(head + _wire(delivery, self.broker), delivery.qos, packet_id)
        else:
            _send(self, delivery, head)


def _send(peer: Peer, delivery: Delivery, head: bytes) -> None:
    metrics = peer.broker.metrics
    link = peer.ferry.way
    if link is None:
        metrics.dropped_worker_away += 1
        peer.dropped += 1
        peer.broker.lose_abroad(delivery, "worker_away", peer.place)
        return
    metrics.messages_sent += 1  # as for those that are forwarded as bytes
    link.put(head + _wire(delivery, peer.broker))


def _wire(delivery: Delivery, broker: Publishing) -> bytes:
    """The packet, and who has published it where somebody hears of that."""
    fresh = delivery.fresh(True, broker.now)
    message = delivery.message
    if message is None:
        return fresh.wire
    username = message.username
    trail = broker.trail
    followed = b"\1" if trail is not None and trail.is_followed(message.id) else b"\0"
    about = [
        message.client_id.encode(),
        followed if username is None else followed + b"\0" + username.encode(),
        message.id.to_bytes(16, "big"),
    ]
    return frame(ABOUT, packed(about)) + fresh.wire


class Member(Receiver):
    """The members that a shared group has at another worker.

    Not online while a member here is: the local ones come first, unless `mqtt.shared_prefer` is
    "any"; then they take turns with those here, and count as one.
    """

    __slots__ = ("full_filter", "group", "peer", "place")

    def __init__(self, peer: Peer, full_filter: str) -> None:
        super().__init__("")
        self.v5 = True
        self.bare = False
        self.peer = peer
        self.place = peer.place
        self.full_filter = full_filter
        self.group: Group | None = None

    def online(self) -> bool:
        """See `Receiver.online`."""
        group = self.group
        peer = self.peer
        if peer.channel is None or group is None:
            return False
        if peer.broker.settings.shared_prefer == "any" and not peer.choice.arriving:
            return True
        return not group.is_here()

    def says_when_back(self) -> bool:
        """See `Receiver.says_when_back`: it depends on others and on settings."""
        return False

    def take(self, wire: bytes, packet_id: int, id_at: int) -> None:
        """See `Receiver.take`; a shared message always comes as a `Delivery`."""
        raise NotImplementedError

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """See `Receiver.deliver`."""
        self.peer.said(delivery, self._head(delivery), packet_id)

    def deliver_qos0(self, delivery: Delivery) -> None:
        """See `Receiver.deliver_qos0`."""
        self.peer.said(delivery, self._head(delivery), 0)

    def _head(self, delivery: Delivery) -> bytes:
        return frame(MEMBER, packed([self.full_filter.encode(), delivery.source.encode()]))


def onward(group: Group, topic: str, came_by: int) -> Receiver | None:
    """Who gets a message that another worker sent for a member here, where none is online.

    Who is away comes before another worker, and any before the one it came from: that one has been
    told by now who has gone here, and chooses anew. Of members that a mountpoint hides the topic
    from it is not told, and would choose the same.
    """
    hidden = group.is_hidden(topic)
    chosen: Receiver | None = None
    for other in group.order:
        if not isinstance(other, Member):
            if not (hidden and group.options(other) & MOUNTED):
                return other
        elif not hidden:
            link = other.peer.ferry.link
            if chosen is None or link is None or link.number != came_by:
                chosen = other
    return chosen
