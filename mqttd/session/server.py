"""What a channel asks of the server it lives on, and of the transport that carries it.

The session layer imports nothing above itself: it states here, as two abstract classes, what it
needs from above. `broker.Broker` is the server; the epoll engine and the Twisted protocol are edges.

    transport (Edge)  <->  Channel  <->  Session  <->  Server (Broker)

`dirty` and `closing` are the effects of a turn: channels with output to flush and channels to
close, performed by `perform` at the end of the turn. Nothing is written inside `feed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttd.codec.packets import Auth, Connect, Publish, Subscribe, Unsubscribe
from mqttd.codec.reasons import MqttError
from mqttd.session.message import Delivery, Message
from mqttd.session.metrics import Metrics
from mqttd.session.route import Grant
from mqttd.session.settings import Settings
from mqttd.session.wheel import Wheel

if TYPE_CHECKING:
    from mqttd.session.channel import Channel
    from mqttd.session.session import Session

__all__ = ["Edge", "Server"]


class Edge:
    """The transport of a channel: writes, closes, and stops or resumes reading."""

    def flush(self, channel: Channel) -> None:
        """Write `channel.out` as far as the peer takes it; the rest goes when it can."""
        raise NotImplementedError

    def shut(self, channel: Channel) -> None:
        """Close the connection after what was already flushed."""
        raise NotImplementedError

    def pause(self, channel: Channel) -> None:
        """Stop reading from the peer."""
        raise NotImplementedError

    def resume(self, channel: Channel) -> None:
        """Read again."""
        raise NotImplementedError

    def peer(self, channel: Channel) -> tuple[str, int]:
        """Address and port of the peer; ("", 0) when unknown."""
        raise NotImplementedError

    def drop(self, channel: Channel) -> None:
        """Give up what was written and not read, so that closing waits for nothing."""

    def identity(self, channel: Channel) -> object | None:
        """What the connection shows of the peer beyond its address: a `PeerIdentity`, or None."""
        return None


class Server:
    """The broker as its channels and sessions see it.

    `now` is monotonic milliseconds, set by the edges once per turn; `epoch` versions every cached
    grant; the `tap_…` flags say which hook points somebody listens to.
    """

    def __init__(self, settings: Settings, now: int) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.now: int = now
        self.wheel = Wheel(now)
        self.epoch: int = 0
        #: Bytes waiting in the output of all connections.
        self.backlog: int = 0
        self.dirty: list[Channel] = []
        self.closing: list[Channel] = []
        #: Channels whose output became empty while something waits for room.
        self.thirsty: list[Channel] = []
        #: Publishers that are not read from while the backlog is over its budget.
        self.stalled: list[Channel] = []
        #: Channels whose peer takes no more, and when it last took something; a look-out sweeps it
        #: (`mqttd.transports.stalled`), so it may hold some that go on by now.
        self.slow: dict[Channel, int] = {}
        #: Something behind the broker cannot follow: publishers are not read from.
        self.congested: bool = False
        #: Acknowledgements of PUBLISH go through `hold`.
        self.holding: bool = False
        #: Type of the packet that is being handled, for the log of a fault.
        self.packet_type: int = 0
        #: Grants are kept per QoS and RETAIN too, because a rule depends on them.
        self.grant_by_flags: bool = False
        self.tap_publish: bool = False
        self.tap_delivered: bool = False
        #: What the publisher of the message that `ask_publish` stopped last is told.
        self.refusal: int = 0
        self.tap_acked: bool = False
        self.tap_completed: bool = False
        self.tap_dropped: bool = False
        #: The fast path may be taken: no hook needs single messages, no switch is off.
        self.fast: bool = settings.fast_path

    def perform(self) -> None:
        """The end of a turn: flush dirty channels, refill those with room, close what ended.

        A channel that was emptied is refilled once per turn, so that one fast reader of many
        retained messages does not keep the others waiting.
        """
        self._flush_and_close()
        if self.thirsty:
            thirsty = self.thirsty
            self.thirsty = []
            for channel in thirsty:
                channel.drained()
            self._flush_and_close()
            if self.thirsty:
                self.perform_later()
        if self.stalled and not self.congested and self.backlog * 2 < self.settings.backlog:
            stalled = self.stalled
            self.stalled = []
            for channel in stalled:
                channel.resume()

    def _flush_and_close(self) -> None:
        while self.dirty:
            dirty = self.dirty
            self.dirty = []
            for channel in dirty:
                channel.dirty = False
                if channel.out is not None and not channel.blocked:
                    try:
                        channel.edge.flush(channel)
                    except Exception as error:  # those behind it must not wait for ever
                        self.crashed(channel, error)
            while self.closing:
                closing = self.closing
                self.closing = []
                for channel in closing:
                    try:
                        channel.edge.shut(channel)
                        channel.lost()
                    except Exception as error:
                        self.crashed(channel, error)

    def perform_later(self) -> None:
        """Call `perform` in a later turn."""
        raise NotImplementedError

    # -- asked by channels ---------------------------------------------------------------------

    def connect_timeout(self, listener: str) -> int:
        """Milliseconds from an accepted connection to its CONNECT."""
        return self.settings.connect_timeout

    def next_message_id(self) -> int:
        """A new 128-bit message id."""
        raise NotImplementedError

    def open(self, channel: Channel, connect: Connect) -> None:
        """A CONNECT came: authenticate, then `channel.accept` or `channel.refuse`."""
        raise NotImplementedError

    def auth(self, channel: Channel, packet: Auth) -> None:
        """An AUTH packet came: a step of an authentication, or a new one."""
        raise NotImplementedError

    def grant(self, channel: Channel, topic: str, qos: int, retain: bool) -> Grant:
        """May this channel publish to `topic` (valid already), and who receives it?"""
        raise NotImplementedError

    def publish(self, message: Message) -> int:
        """Route one message by the general path; returns the number of receivers.

        Stores it if it is retained, runs hooks, serves shared groups and other nodes.
        """
        raise NotImplementedError

    def may_still_publish(self, message: Message) -> bool:
        """Whether the publisher of a retained message would be allowed to publish it now."""
        raise NotImplementedError

    def ask_publish(self, message: Message) -> Message | None:
        """What the hooks of message.publish make of a message; None stops it, see `refusal`.

        `refusal` is then what `publish` would return.
        """
        raise NotImplementedError

    def route_message(self, message: Message) -> int:
        """`publish` without asking the hooks."""
        raise NotImplementedError

    def subscribe(self, channel: Channel, packet: Subscribe) -> None:
        """Serve a SUBSCRIBE: SUBACK and retained messages go to the channel's output."""
        raise NotImplementedError

    def unsubscribe(self, channel: Channel, packet: Unsubscribe) -> None:
        """Serve an UNSUBSCRIBE."""
        raise NotImplementedError

    def closed(self, channel: Channel) -> None:
        """The channel's connection is gone; its session ends, expires later or waits."""
        raise NotImplementedError

    def session_due(self, session: Session) -> None:
        """A deadline of a session that is away has passed (will delay, expiry)."""
        raise NotImplementedError

    def resume_later(self, session: Session) -> None:
        """Call `session.drain` in a later turn."""
        raise NotImplementedError

    def hold(self, channel: Channel, first: int, packet_id: int, code: int, topic: str) -> None:
        """Call `channel.release` when this acknowledgement may go (only with `holding`).

        `topic` is the one that the client has published to.
        """
        raise NotImplementedError

    # -- told by channels and sessions ---------------------------------------------------------

    def fault(self, channel: Channel, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: count and log it."""
        raise NotImplementedError

    def refused(self, channel: Channel, reason: str) -> None:
        """The layers below MQTT did not let the peer in: count and log it."""
        raise NotImplementedError

    def turned_away(self, listener: str, host: str, port: int) -> None:
        """An address may not connect to this listener: log it."""

    def accept_paused(self, listener: str, why: str, connections: int) -> None:
        """A listener accepts nobody for now, or ("") goes on."""

    def limited(self, channel: Channel) -> None:
        """A connection sends faster than it may: it is not read from for a while."""

    def crashed(self, channel: Channel, error: Exception) -> None:
        """Our own code failed while it served this channel: log it, end the connection."""
        raise NotImplementedError

    def denied(self, channel: Channel, packet: Publish) -> None:
        """A PUBLISH was not allowed."""
        raise NotImplementedError

    def delivered(self, session: Session, delivery: Delivery) -> None:
        """A message was written to a client (only with `tap_delivered`)."""
        raise NotImplementedError

    def acked(self, session: Session, delivery: Delivery, packet_id: int) -> None:
        """A client acknowledged a message: PUBACK, PUBREC (only with `tap_acked`)."""
        raise NotImplementedError

    def completed(self, session: Session, packet_id: int) -> None:
        """PUBCOMP ended a QoS 2 delivery (only with `tap_completed`)."""
        raise NotImplementedError

    def nacked(self, session: Session, delivery: Delivery, code: int) -> None:
        """A client answered with an error (only with `tap_acked`)."""
        raise NotImplementedError

    def handle_info(self, session: Session, info: object) -> None:
        """Somebody sent a client's channel a piece of information."""
        raise NotImplementedError

    def dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        """A delivery was dropped; `reason` is a key of `DROP_REASONS`."""
        raise NotImplementedError
