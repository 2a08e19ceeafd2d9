"""A client's session: connections come and go, and what waits goes out when there is room.

    take / deliver --> window (inflight) --> channel        while it is connected and has room
                  `--> mqueue --drain-->                     else, and in this order

What a session keeps is in `mqttd.session.state`, how a message is sent in `mqttd.session.sending`;
this is when: again after a reconnection, from the queue, and retained ones for a new subscription.

Promise: nothing is allocated for an idle session, and what it needed while busy is given back
(`rest`). MQTT 5.0, 4.1, 4.4, 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.session.ground.account import REPLAY
from mqttd.session.ground.connection import OPEN, Connection
from mqttd.session.ground.message import RELEASED, Delivery, entry_delivery, entry_qos, entry_wire
from mqttd.session.ground.output import LARGE
from mqttd.session.replay import Replay
from mqttd.session.replays import Replays
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.session.routes.route import OWED
from mqttd.session.sending import Sending
from mqttd.session.state import Keeper

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["Session"]

#: The same for retained messages, or filters without any.
_REPLAYED: Final = 500
#: Places that a search looks at for the work of one message, as a power of two.
_SEARCH: Final = 6
#: Messages out of queues, or KiB of them, that a turn sends, sends again, or drops as expired: of
#: those that come back together none waits for all that the others are to get, nobody else for more
#: than some milliseconds, and memory is looked at before they have filled it.
DRAINED: Final = 256
_KIB: Final = 10


class Session(Sending):
    """The session of one client id."""

    __slots__ = ("retry_mark", "unsent")

    def __init__(self, server: Keeper, client_id: str, username: str | None) -> None:
        super().__init__(server, client_id, username)
        #: Packet ids in flight that this connection has not been sent yet (small window), the next
        #: one last.
        self.unsent: list[int] | None = None
        #: What is in flight up to here, counted with what has gone, was there at the last look.
        self.retry_mark: i64 = 0

    # -- connection ----------------------------------------------------------------------------

    def attach(self, channel: Connection, receive_maximum: int, max_packet: int) -> None:
        """A connection opened for this session; its limits hold until it closes."""
        if self.channel is None:
            self.server.attached += 1
        self.channel = channel
        if self.awaited_by is not None:
            self.come_back()
        self.speak(channel.v5)
        settings = self.server.settings
        window = settings.max_inflight
        if receive_maximum and receive_maximum < window:
            window = receive_maximum
        self.window = window
        self.max_packet = max_packet if 0 < max_packet < NO_LIMIT else NO_LIMIT
        self.server.wheel.cancel(self)
        self.retry_mark = 0
        if not self.v5 and settings.retry_interval:
            self.server.wheel.schedule(self, self.server.now + settings.retry_interval)

    def detach(self) -> None:
        """The connection is gone."""
        if self.channel is not None:
            self.server.attached -= 1
        self.channel = None
        self.unsent = None
        self.retry_mark = 0
        self.rest()

    def forget(self) -> None:
        """See `State.forget`."""
        if self.replays is not None:
            for topic_filter in list(self.replays.lines):
                self.stop_replay(topic_filter)
        super().forget()

    def rest(self) -> None:
        """Give back what only a busy session needs."""
        if self.inflight is not None and not self.inflight:
            self.inflight = None
        if self.awaiting_rel is not None and not self.awaiting_rel:
            self.awaiting_rel = None

    # -- redelivery ----------------------------------------------------------------------------

    def resend(self) -> None:
        """After a reconnection: everything unacknowledged again, in the old order (4.4)."""
        channel = self.channel
        inflight = self.inflight
        if channel is None:
            return
        if inflight:
            sent = 0
            unsent: list[int] = []
            for packet_id in list(inflight):
                entry = inflight[packet_id]
                if entry is RELEASED:
                    self.send_kept(channel, b"\x62\x02" + packet_id.to_bytes(2, "big"), 2)
                    sent += 1
                elif unsent or sent >= self.window or not self._fits(channel, entry):
                    unsent.append(packet_id)
                elif self._resend_one(channel, packet_id, entry):
                    sent += 1
            if unsent:
                unsent.reverse()
                self.unsent = unsent
                self.waiting = True
                if self.mqueue is None:
                    self.mqueue = self.new_queue()  # what is new goes behind them
        self.drain()
        if self.replays is not None or (self.mqueue is not None and self.mqueue.qos0):
            channel.special = True  # new QoS 0 messages go behind those that wait

    def _resend_one(self, channel: Connection, packet_id: int, entry: object) -> bool:
        """Send what is in flight under `packet_id` again, with DUP; False if it cannot go."""
        delivery = entry_delivery(entry, self.v5)
        server = self.server
        if delivery.expires_at or delivery.v5 != self.v5:
            changed = self.freshen(delivery)
            if changed is not delivery:
                delivery = changed
                self.put_inflight(packet_id, delivery)
        wire = delivery.packet(packet_id, True)
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            self.pop_inflight(packet_id)
            self.drop(delivery, "too_large" if wire else "denied")
            return False
        metrics = server.metrics
        metrics.messages_retransmitted += 1
        metrics.messages_sent += 1
        self.send_kept(channel, wire, delivery.qos)
        return True

    def _resend_more(self, channel: Connection) -> bool:
        """Go on with `unsent` as the window allows; True when all of it went."""
        unsent = self.unsent
        inflight = self.inflight
        if unsent is None or inflight is None:
            self.unsent = None
            return True
        while unsent:
            entry = inflight.get(unsent[-1])
            if entry is None or entry is RELEASED:
                unsent.pop()  # a client may acknowledge what this connection did not send yet
                continue
            if len(inflight) - len(unsent) >= self.window or not self._fits(channel, entry):
                return False
            self._resend_one(channel, unsent.pop(), entry)
        self.unsent = None
        return True

    def due(self, now: int) -> None:
        """The session's deadline: retry on a live 3.x connection, else will delay or expiry."""
        channel = self.channel
        if channel is None:
            self.server.session_due(self)
            return
        settings = self.server.settings
        retry = settings.retry_interval
        if self.v5 or not retry:
            return
        inflight = self.inflight
        if inflight:
            if not channel.blocked:
                self._send_older(channel, inflight)
            self.retry_mark = self.gone + len(inflight)
        else:
            self.retry_mark = 0
        self.expire_awaiting(now - settings.await_rel_timeout)
        self.server.wheel.schedule(self, now + retry)

    def _send_older(self, channel: Connection, inflight: dict[int, object]) -> None:
        """Send again what was in flight at the last look already: the first ones, in order."""
        older: int = self.retry_mark - self.gone
        for packet_id in list(inflight)[: max(0, older)]:
            entry = inflight[packet_id]
            if entry is not RELEASED and channel.out_bytes >= channel.limit:
                return  # it has not taken what it was sent before
            self.server.metrics.messages_retransmitted += 1
            if entry is RELEASED:
                channel.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
                continue
            wire = entry_delivery(entry, self.v5).packet(packet_id, True)
            if channel.mount is not None:
                wire = channel.mount.leave(wire, self.v5)
            channel.send(wire)

    # -- what waits ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Move what waits into the window, as far as window, output and this turn allow."""
        channel = self.channel
        if channel is None or channel.state != OPEN or self.put_off:
            return
        if self.unsent is not None and not self._resend_more(channel):
            return
        mqueue = self.mqueue
        if mqueue is not None:
            server = self.server
            now = server.now
            while True:
                entry = mqueue.peek()
                if entry is None:
                    if not mqueue.done():
                        self.fetch(mqueue)  # and then this goes on
                        return
                    self.mqueue = None
                    self.see_apart(channel)
                    break
                if isinstance(entry, Delivery) and entry.expires_at and entry.expires_at <= now:
                    if self._has_had_enough(0):
                        return
                    self.unqueue(mqueue)
                    self.unqueued()
                    self.drop(entry, "expired")
                    continue
                inflight = self.inflight
                if inflight is not None and len(inflight) >= self.window and entry_qos(entry):
                    return
                if not self._fits(channel, entry):
                    return
                self.unqueue(mqueue)
                self.send_queued(channel, entry)
                if self.numbers is not None:
                    self.unqueued()
        if self.replays is not None:
            self.replay()
        self.waiting = self.mqueue is not None or self.replays is not None

    def _fits(self, channel: Connection, entry: object) -> bool:
        """Whether output, turn and memory have room for an entry; if not, this goes on later."""
        size = len(entry_wire(entry))
        if channel.out_bytes + size > channel.limit and channel.over(size):
            channel.thirsty = True
            return False
        return not self._has_had_enough(size)

    def _has_had_enough(self, size: int) -> bool:
        """Whether this turn has no more room for what has waited: then a later one goes on."""
        server = self.server
        if server.drained >= DRAINED:
            self.put_off = True
            server.drain_later(self)
            return True
        if server.scarce and size >= LARGE:
            self._await_room()
            return True
        server.drained += 1 + (size >> _KIB)
        return False

    def _await_room(self) -> None:
        """Memory is scarce, and what comes next is large: it waits."""
        self.put_off = True
        self.server.await_room(self)

    def add_replay(self, replay: Replay) -> None:
        """Something is to be replayed once what waits already has gone.

        See `Replays.add`.
        """
        replays = self.replays
        if replays is None:
            replays = Replays()
            self.replays = replays
        dropped = replays.add(replay)
        if dropped is not None:
            self._weigh_replay(dropped, 0)
            dropped.close()
        self._weigh_replay(replay, REPLAY)
        self.waiting = True
        if self.channel is not None:
            self.channel.special = True  # what is new looks whether it goes behind

    def start_replays(self) -> None:
        """SUBACK is sent: what is retained by now follows."""
        replays = self.replays
        if replays is None:
            return
        fresh = replays.fresh
        replays.fresh = []
        for replay in fresh:
            replays.begin(replay)
        self.replay()
        if self.owner:
            for replay in fresh:
                if replay.qos and not (replay.noted or replay.done() or self._has_nothing(replay)):
                    self._note(replay, OWED)

    def _has_nothing(self, replay: Replay) -> bool:
        """Whether it comes to its end without a delivery, as far as this turn may look."""
        return self._peek(replay) < 0 and replay.done()

    def _peek(self, replay: Replay) -> int:
        server = self.server
        if server.drained >= _REPLAYED:
            return -1
        qos = replay.peek(self)
        server.drained += 1 + (replay.looked >> _SEARCH)
        return qos

    def all_replays(self) -> list[Replay]:
        """Those of each filter, one behind the other."""
        return [] if self.replays is None else self.replays.all()

    def owes(self, topic_filter: str) -> bool:
        """Whether the journal knows of a replay of this filter that is not at its end."""
        return any(replay.noted for replay in self._replays_of(topic_filter))

    def _replays_of(self, topic_filter: str) -> list[Replay]:
        return [] if self.replays is None else self.replays.line(topic_filter)

    def add_subscription(self, full_filter: str, options: int, identifier: int) -> int:
        """See `State.add_subscription`."""
        replays = self.replays
        if replays is not None and not self.has(full_filter, options, identifier):
            for replay in replays.line(full_filter):
                if replay.noted:
                    replay.noted = False  # what the journal knows of it is written anew
                    replays.fresh.append(replay)
        return super().add_subscription(full_filter, options, identifier)

    def _note(self, replay: Replay, owed: int) -> None:
        """Have the journal know whether it is at its end."""
        replay.noted = owed != 0
        topic_filter = replay.topic_filter
        options = self.options_of(topic_filter)
        if options >= 0:
            identifier = self.identifier_of(topic_filter)
            journal = self.server.journal
            journal.subscribed(self.owner, topic_filter, options | owed, identifier)

    def go_ahead(self, delivery: Delivery) -> None:
        """See `Sending.go_ahead` (MQTT-4.6.0-5, -6)."""
        replays = self.replays
        if replays is None:
            return
        topic = delivery.topic()
        if not replays.concerns(topic):
            return
        held = replays.held
        found = replays.ahead(self, topic)
        self._charge_replays(replays.held - held)
        for ahead in found:
            self._deliver_retained(ahead)

    def _deliver_retained(self, delivery: Delivery) -> None:
        self.replaying = True
        if delivery.qos:
            self.deliver(delivery, delivery.packet_id)
        else:
            self.deliver_qos0(delivery)
        self.replaying = False

    def stop_replay(self, topic_filter: str) -> None:
        """The replays of this filter, if there are any, are not wanted any more."""
        replays = self.replays
        if replays is not None:
            for replay in replays.line(topic_filter):
                self._weigh_replay(replay, 0)
                replay.close()
            replays.remove(topic_filter)
            if not len(replays):
                self._forget_replays(replays)

    def _forget_replays(self, replays: Replays) -> None:
        """None of them is left."""
        if self.replays is replays:
            self._charge_replays(-replays.held)
            self.replays = None

    def _weigh_replay(self, replay: Replay, weight: int) -> None:
        more = weight - replay.charged
        replay.charged = weight
        self._charge_replays(more)

    def _charge_replays(self, more: int) -> None:
        self.account.replays += more
        self.charge(more)

    def replay(self) -> None:
        """Go on with retained messages while the window and the output have room."""
        channel = self.channel
        replays = self.replays
        if channel is None or replays is None or self.put_off:
            return
        server = self.server
        settings = server.settings
        while len(replays) and self.channel is channel:
            if server.drained >= _REPLAYED:
                self.put_off_replays()
                return
            server.drained += 1
            if self.mqueue is not None:
                return  # goes on when the queue has drained
            replay = replays.first()
            replays.begin(replay)
            if replay.done():
                self._end_replay(replays, replay)
                continue
            inflight = self.inflight
            if replay.qos and inflight is not None and len(inflight) >= self.window:
                qos = self._peek(replay)
                if qos > 0:
                    return  # goes on with the next acknowledgement
                if qos < 0:
                    if replay.done():
                        continue
                    self.put_off_replays()
                    return
            if channel.out_bytes >= settings.low_watermark:
                if not channel.blocked:
                    channel.edge.flush(channel)
                if channel.out_bytes >= settings.low_watermark:
                    channel.thirsty = True
                    return
            delivery = replay.next(self)
            server.drained += replay.looked >> _SEARCH
            if delivery is None:
                if replay.done():
                    continue
                self.put_off_replays()
                return
            size = len(delivery.wire)
            server.drained += size >> _KIB
            self._deliver_retained(delivery)
            if server.scarce and size >= LARGE:
                self._await_room()
                return
        if not len(replays):
            self._forget_replays(replays)
            if self.channel is channel:
                self.see_apart(channel)

    def _end_replay(self, replays: Replays, replay: Replay) -> None:
        self._weigh_replay(replay, 0)
        behind = replays.end(replay)
        if replay.noted and self.owner and not (behind is not None and behind.noted):
            self._note(replay, 0)

    # -- acknowledgements ----------------------------------------------------------------------

    def acknowledge(self, packet_id: int) -> bool:
        """PUBACK or a failing PUBREC/PUBCOMP: the message is done. False for an unknown id."""
        if self.pop_inflight(packet_id) is None:
            return False
        self.server.metrics.messages_acked += 1
        if self.waiting:
            self.drain()
        return True
