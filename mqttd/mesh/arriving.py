"""What another worker has forwarded, on its way to the sessions of this one.

    bytes --> frames --> PUBLISH --> Route --but its peers and groups--> the sessions here
                    '--> all else: to the mesh

The worker where a message came in has asked for its publisher's right, run the hooks and chosen the
members of shared groups; here it meets sessions only, so a message goes on only where the member
that was chosen has left nobody behind. What is counted is acknowledged at the end of what was read:
when the sessions have it, and where a store keeps something of it, when that has been written.

Promise: a PUBLISH costs what one of this worker's own does; a run of equal ones of QoS 0 is one
slice for each receiver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from mqttd.broker.broker import Broker
from mqttd.broker.ground.turns import Job
from mqttd.codec.frame import ONE_BYTE, body_at, cut_plain
from mqttd.codec.scan import ALIAS_SHIFT, END_MASK, EXPIRY_SHIFT, OFFSET_MASK, scan_publish
from mqttd.codec.spans import SPAN
from mqttd.mesh.frames import (
    ABOUT,
    ACK,
    COUNTED,
    FOLLOWS,
    MEMBER,
    OLDER,
    RUN1,
    STATE,
    TELL,
    frame,
    numbered,
    split,
    unpacked,
)
from mqttd.mesh.landing import Control, ends_of, even_ends, is_lasting, scanned
from mqttd.mesh.link import Link
from mqttd.mesh.peer import Choice, Member, onward
from mqttd.mesh.pouring import Pouring
from mqttd.session.channel.framing import ALLOWANCE
from mqttd.session.ground.connection import OPEN
from mqttd.session.publish.inbound import lift, lower, recast
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import HEARD, LIGHT1, QOS_MASK, Route

__all__ = ["Arriving"]


class Arriving(Pouring):
    """Takes what one link brings."""

    def __init__(self, broker: Broker, link: Link, control: Control, choice: Choice) -> None:
        super().__init__(broker, choice)
        self.link = link
        self.mesh = control
        #: Counted frames so far, and those that were acknowledged.
        self.count: int = 0
        self.acknowledged: int = 0
        #: The number of the last message of QoS 1 or 2 (`AT`).
        self.carried: int = 0
        #: What has not wholly come: pieces, and how many bytes.
        self.pieces: list[bytes] = []
        self.held: int = 0
        self.needed: int = 0
        #: A store keeps something of what came.
        self.touched: bool = False
        #: The packet that follows had RETAIN set, if it is of this topic.
        self.retained: bytes = b""
        #: What is for later turns; and who chose members when it came (`Choice.link`).
        self.later: bytes = b""
        self.chosen: int = 0
        #: The work from which on a turn has had enough.
        self._most: int = 0
        #: Bytes of 3.1.1 that are still to come (`OLDER`).
        self.older: int = 0
        #: Called when all of it is done, so that who reads the link goes on; with what is wrong.
        self.caught_up: Callable[[], object] | None = None
        self.faulty: Callable[[Exception], object] | None = None

    def busy(self) -> bool:
        """Whether what has come is more than its turn had: nothing more is to be read."""
        return len(self.later) > 0

    def take(self, data: bytes) -> None:
        """What was read: every whole frame in it, what is too much for a turn in later ones."""
        self.link.brought(len(data))
        if self.later:
            self.later += data
            return
        topics = self.broker.topics
        self._most = topics.work + ALLOWANCE
        pos = 0
        if self.pieces:
            self.held += len(data)
            if self.held < self.needed:
                self.pieces.append(data)
                return
            # What was begun is joined, what is behind it is left where it is.
            pos = len(data) - self.held + self.needed if self.needed else len(data)
            self.pieces.append(data[:pos])
            begun = b"".join(self.pieces)
            self.pieces = []
            self._frames(begun, 0)
        if not self.busy():
            self._frames(data, pos)
        elif pos < len(data):
            self.later += data[pos:]
        self._handled()

    def _frames(self, data: bytes, pos: int) -> None:
        topics = self.broker.topics
        most = self._most
        n = len(data)
        while n - pos >= 2:
            body, end = split(data, pos)
            if not end:
                break
            if topics.work > most:
                self.later = data[pos:]
                self.chosen = self.choice.link
                self.broker.turns.add(_Rest(self))
                pos = n
                break
            first = data[pos]
            count = self.count
            older = self.older
            rest = b""
            try:
                if first >> 4 == 3:
                    if older:
                        end = self._older(data, pos, body, end)
                    else:
                        end = self._publish(data, pos, body, end)
                elif first == OLDER:
                    self.older = int.from_bytes(data[body:end], "big")
                elif first == TELL:
                    self.link.handled.ask(n - end)
                elif first == RUN1:
                    rest = self._carried(data, body, end)
                else:
                    self._control(first, data[body:end])
            except Exception as error:  # a fault of ours, of one frame: those behind it go on
                if first == RUN1:
                    raise  # but this one is not what it says: how many to count is not known
                self._failed(error)
                counts = first & 6 if first >> 4 == 3 else first in COUNTED
                if counts and self.count == count:
                    self.count += 1
                    if first >> 4 == 3 or first == STATE:
                        self.carried += 1
            if older:
                self.older = older - (end - pos) if older > end - pos else 0
            pos = end
            if rest:
                data = rest + data[end:]
                pos = 0
                n = len(data)
        if pos < n:
            self._keep(data[pos:])

    def _handled(self) -> None:
        self.broker.clogged = None  # no client has filled another link by this
        self._acknowledge()
        self.link.leaves(len(self.later), self.held if self.pieces else 0)

    def go_on(self) -> None:
        """A turn's worth of what was put off."""
        data = self.later
        self.later = b""
        if self.link.state != OPEN:
            return  # who has sent it sends it again, as far as it was not acknowledged
        self.broker.topics.work = 0
        self._most = ALLOWANCE
        self.choice.link = self.chosen
        try:
            self._frames(data, 0)
            self._handled()
        except Exception as error:  # it must end this link only
            if self.faulty is None:
                raise
            self.faulty(error)
        finally:
            self.choice.link = 0
        if not self.later and self.caught_up is not None:
            self.caught_up()

    def _failed(self, error: Exception) -> None:
        self.forget()
        self.broker.metrics.crashes += 1
        told: dict[str, object] = {
            "worker": self.link.number,
            "error": repr(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        self.broker.log("internal error", told)

    def _keep(self, rest: bytes) -> None:
        self.pieces.append(rest)
        self.held = len(rest)
        self.needed = 0
        at = 1
        length = 0
        shift = 0
        while at < len(rest):
            length |= (rest[at] & 0x7F) << shift
            shift += 7
            at += 1
            if rest[at - 1] < 0x80:
                self.needed = at + length
                return

    def _acknowledge(self) -> None:
        """Say what is taken, as soon as the store has what it keeps of it."""
        if self.count == self.acknowledged:
            return
        self.acknowledged = self.count
        self.mesh.taken(self.carried, self.touched)
        link = self.link
        said = numbered(ACK, self.count)
        journal = self.broker.journal
        if self.touched or journal.holds(link):
            self.touched = False
            journal.hold(link, said)
        else:
            link.send(said)

    def _control(self, kind: int, body: bytes) -> None:
        if kind == ABOUT:
            source, username, message_id = unpacked(body)
            self.source = source.decode()
            self.followed = username[:1] == b"\1"
            self.username = username[2:].decode() if len(username) > 1 else None
            self.message_id = int.from_bytes(message_id, "big")
        elif kind == MEMBER:
            full_filter, source = unpacked(body)
            self.full_filter = full_filter.decode()
            self.source = source.decode()
        elif kind == FOLLOWS:
            self.retained = body
        else:
            journal = self.broker.journal
            journal.touched = False
            self.mesh.control(self.link, kind, body)
            if kind in COUNTED:
                self.count += 1
                if kind == STATE:
                    self.carried += 1
                if journal.touched and journal.promises("", ""):
                    self.touched = True

    # -- messages ------------------------------------------------------------------------------

    def _publish(self, data: bytes, pos: int, p: int, end: int) -> int:
        """One PUBLISH, or a run of them; the index behind it."""
        first = data[pos]
        topic_end = p + 2 + (data[p] << 8 | data[p + 1])
        at = topic_end + 2 if first & 6 else topic_end
        body = at + 1
        expiry = 0
        if data[at]:
            found = scan_publish(data, at, end)
            if found < 0 or found >> ALIAS_SHIFT & OFFSET_MASK:
                body, expiry = scanned(data, at, end)
            else:
                body = found & END_MASK
                expiry = found >> EXPIRY_SHIFT & OFFSET_MASK
                if expiry:
                    expiry += at
        route = self.broker.topics.at(data[p:topic_end])
        if self.full_filter:
            self._to_member(route, data, pos, p, topic_end, at, body, end, expiry)
            return end
        local = self.local(route)
        size = end - pos
        plain = local.is_plain(size) and not self.broker.settings.upgrade_qos
        if plain and not self.followed:
            self.retained = b""  # nobody here gets RETAIN as published: it is as any other
        if first & 6 == 0:
            if plain and not (self.source or self.followed):
                most = len(data)
                return self.together(
                    route, local, data, pos, p, topic_end, at, body, end, expiry, True, most
                )
            self.broker.metrics.messages_crossed += 1
        elif (
            plain
            and not (expiry or self.source or self.followed)
            and self._fits(local.route, data[at] == 0, first >> 1 & 3)
        ):
            self._begin()
            self._hand(local.route, data, pos, p, topic_end, end)
            self._end(first, route.topic)
            return end
        inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
        if self.retained:
            inbound.retain = self.retained == route.key
            self.retained = b""
        if route.gear & HEARD or self.followed:
            self.whole(inbound, route.topic)
        self._begin()
        self.fan(inbound, local.route, size)
        self._end(first, route.topic)
        return end

    def _older(self, data: bytes, pos: int, p: int, end: int) -> int:
        """One PUBLISH of 3.1.1 and QoS 0, or a run or span of them; the index behind it."""
        topic_end = p + 2 + (data[p] << 8 | data[p + 1])
        route = self.broker.topics.at(data[p:topic_end])
        local = self.local(route)
        size = end - pos
        if not local.is_plain(size) or self.broker.settings.upgrade_qos:
            one = recast(data, pos, p, topic_end, topic_end, end, size, False)
            body, whole = split(one, 0)
            self._publish(one, 0, body, whole)
            return end
        # What is of 5.0 again may look the same.
        most = min(pos + self.older, len(data))
        return self.together(
            route, local, data, pos, p, topic_end, topic_end, topic_end, end, 0, False, most
        )

    def _fits(self, route: Route, empty: bool, qos: int) -> bool:
        """Whether a packet, with properties unless `empty`, may go to all by its bytes alone."""
        for options in route.options:
            if options & QOS_MASK < qos:
                return False
        for receiver in route.sessions:
            if not (receiver.bare and (empty or receiver.v5)):
                return False
        return True

    def _hand(
        self, route: Route, data: bytes, pos: int, p: int, topic_end: int, end: int, v5: bool = True
    ) -> None:
        """Such a packet of QoS 1 or 2 to all."""
        same: bytes | None = None
        other: bytes | None = None
        self.broker.topics.send_on(end - pos, len(route.sessions), LIGHT1)
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        for receiver in route.sessions:
            if receiver.v5 == v5:
                if same is None:
                    same = cut_plain(data, pos, end)
                receiver.take(same, packet_id, topic_end - pos)
            elif v5:
                if other is None:
                    other = lower(data, pos, p, topic_end, end)
                receiver.take(other, packet_id, len(other) - (end - topic_end) + 1)
            else:
                if other is None:
                    other = lift(data, pos, p, topic_end, end)
                receiver.take(other, packet_id, len(other) - (end - topic_end) - 1)

    def _carried(self, data: bytes, pos: int, stop: int) -> bytes:
        """A run or a span of QoS 1; a fault of ours with one packet leaves the others alone.

        Returns the frame that is left where all of it is too much for a turn.
        """
        kind = data[pos]
        v5 = kind & ~SPAN == 5
        pos += 1
        ends = ends_of(data, pos, stop) if kind & SPAN else even_ends(data, pos, stop)
        before = self.count
        carried = self.carried
        p, end = split(data, pos)
        front = 2 + (data[p] << 8 | data[p + 1])
        route = self.broker.topics.at(data[p : p + front])
        local = self.local(route)
        plain = local.plain and not (self.broker.settings.upgrade_qos or self.retained)
        fits = plain and self._fits(local.route, True, 1)
        all_fit = fits and self._fits(local.route, False, 1)
        self._begin()
        topics = self.broker.topics
        done = 0
        rest = b""
        for end in ends:
            if topics.work > self._most:
                rest = frame(RUN1, ONE_BYTE[kind] + data[pos:stop])
                break
            done += 1
            try:
                p = body_at(data, pos)
                topic_end = p + front
                empty = not v5 or data[topic_end + 2] == 0
                at_once = fits and local.is_plain(end - pos)
                if at_once and (empty or (all_fit and is_lasting(data, topic_end + 2, end))):
                    self._hand(local.route, data, pos, p, topic_end, end, v5)
                elif v5:
                    self._publish(data, pos, p, end)
                else:
                    one = lift(data, pos, p, topic_end, end)
                    body, whole = split(one, 0)
                    self._publish(one, 0, body, whole)
            except Exception as error:
                self._failed(error)
            pos = end
        journal = self.broker.journal
        if fits and journal.touched and journal.promises(route.topic, ""):
            self.touched = True
        self.count = before + done
        self.carried = carried + done
        return rest

    def _begin(self) -> None:
        journal = self.broker.journal
        journal.touched = False
        journal.fleeting = 0

    def _end(self, first: int, topic: str) -> None:
        """It is with the sessions: see what that promises, and forget what was said of it."""
        if first & 6:
            self.count += 1
            self.carried += 1
            journal = self.broker.journal
            if journal.touched and journal.promises(topic, ""):
                self.touched = True
        self.forget()

    def _to_member(
        self,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> None:
        """A message for a member of a shared group: here, or where else one is."""
        first = data[pos]
        broker = self.broker
        broker.topics.work += 2
        if not first & 6:
            broker.metrics.messages_crossed += 1
        inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
        group = broker.router.groups.get(self.full_filter)
        self._begin()
        member: Receiver | None = None
        if group is not None:
            self.choice.arriving = True
            member = group.choose(self.source, route.topic)
            self.choice.arriving = False
            if isinstance(member, Member):
                member = onward(group, route.topic, self.link.number)
        if group is None or member is None:
            broker.metrics.dropped_session_ended += 1
        else:
            if route.gear & HEARD or self.followed:
                self.whole(inbound, route.topic)
            if broker.settings.upgrade_qos:
                made = self.message_of(inbound, route.topic)
                broker.pubsub.lend(group, member, made)
            else:
                inbound.lend(group, member, route.topic, None)
        self._end(first, route.topic)


class _Rest(Job):
    """What one link has brought, and its turn had no time for."""

    def __init__(self, arriving: Arriving) -> None:
        self.arriving = arriving

    def slice(self) -> bool:
        """See `Job.slice`; what is left has a job of its own."""
        self.arriving.go_on()
        return False
