"""Who listens at which hook point, worked out before it is needed, and telling them.

    hooks change  -->  points      a set: an unused point costs one look-up
                  -->  tap_...     flags that a channel reads for each message
                  -->  gears       what the messages of a topic need on their way

A client is told of as a `ClientInfo`, a message as a `Message`; both are made when somebody
listens, and not before. What hooks answer is judged where it is used.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.ground.ground import Given
from mqttd.broker.ground.reports import Reports
from mqttd.broker.ground.seams import HookChains, Trail
from mqttd.broker.hooks.deliveries import Deliveries, Keeping, run_of
from mqttd.broker.hooks.points import POINTS
from mqttd.codec import reasons
from mqttd.codec.packets import Publish
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.ground.runs import Run
from mqttd.session.publish.general import General
from mqttd.session.publish.notes import Notes
from mqttd.session.publish.publisher import Publisher
from mqttd.session.routes.route import HOOKED, MISSED, RECORDED, TOLD, UNHEARD
from mqttd.session.state import State
from mqttd.types import ClientInfo

__all__ = ["Taps"]

#: Points that hear of the deliveries of a message.
_TOLD: Final = (
    "message.delivered",
    "message.acked",
    "message.nack",
    "delivery.completed",
    "delivery.dropped",
)
_ACKNOWLEDGED: Final = frozenset(("message.acked", "message.nack"))
#: Hooks that hear of a client when its connection is gone.
_FAREWELLS: Final = frozenset(("client.disconnected", "session.terminated"))


class Taps(Reports):
    """Knows who listens, and tells them of clients and deliveries."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.hooks: HookChains = given.hooks
        given.hooks.alarms = self.alarms
        #: Who keeps what becomes of messages, if somebody does.
        self.trail: Trail | None = None
        #: QoS 2 deliveries between PUBREC and PUBCOMP, while delivery.completed is listened to.
        self.completing: dict[str, dict[int, Message]] = {}
        #: Deliveries, acknowledgements and losses that somebody keeps.
        self.deliveries = Deliveries(self, given.clock, self.client_of)
        #: Hooks hear of a delivery, of an acknowledgement, or of what one receiver misses.
        self.hooked_delivered: bool = False
        self.hooked_acked: bool = False
        self.hooked_missed: bool = False
        #: The topics about which client.authorize is asked; None: about all.
        self.asked_topics: list[str] | None = []
        #: The hook points somebody listens to.
        self.points: set[str] = {point for point in POINTS if given.hooks.listening(point)}
        self.hooks_changed("", False)

    def hooks_changed(self, point: str, listening: bool) -> None:
        """A hook point gained or lost its listeners: precompute what the hot path asks."""
        self.epoch += 1
        if listening:
            self.points.add(point)
        else:
            self.points.discard(point)
        self.asked_topics = self._wanted("client.authorize")
        self.tap_completed = "delivery.completed" in self.points
        kept = self.deliveries
        self.hooked_delivered = self.tap_completed or "message.delivered" in self.points
        self.hooked_acked = self.tap_completed or not self.points.isdisjoint(_ACKNOWLEDGED)
        self.tap_delivered = self.hooked_delivered or bool(kept.delivering)
        self.tap_acked = self.hooked_acked or bool(kept.acking)
        self.hooked_missed = "delivery.dropped" in self.points
        self.tap_missed = self.hooked_missed or bool(kept.missing)
        self.tap_denied = True
        self.tap_refused = bool(kept.denying) or bool(kept.unheard)
        self.tap_dropped = self.tap_missed or "message.dropped" in self.points or bool(kept.unheard)
        self.fast = self.settings.fast_path and not self.settings.upgrade_qos
        gears = self.router.gears
        changed = gears.ask("message.publish", HOOKED, self._wanted("message.publish"))
        for told in _TOLD:
            changed |= gears.ask(told, TOLD, self._wanted(told))
        changed |= gears.ask("message.dropped", UNHEARD, self._wanted("message.dropped"))
        #: Somebody wants to hear of every delivery, so also of those that remember no message.
        self.tell_all = any(
            point in self.points and self.hooks.topic_filters(point) is None for point in _TOLD
        ) or any(
            keeping.topics is None for keeping in (*kept.delivering, *kept.acking, *kept.missing)
        )
        if changed:
            self.router.all_changed()

    def _wanted(self, point: str) -> list[str] | None:
        """The topics that a hook point is for; None: all."""
        return self.hooks.topic_filters(point) if point in self.points else []

    def add_deliveries(
        self,
        notes: Notes,
        delivered: bool,
        acked: bool,
        topic_filters: list[str] | None = None,
        dropped: bool = False,
        unheard: bool = False,
    ) -> object:
        """Have `notes` told of deliveries, acknowledgements, what is lost, on these topics.

        None: on all. Returns what `remove_deliveries` takes.
        """
        keeping = Keeping(notes, topic_filters)
        if delivered:
            self.deliveries.delivering.append(keeping)
        if acked:
            self.deliveries.acking.append(keeping)
        if dropped:
            self.deliveries.missing.append(keeping)
        if unheard:
            self.deliveries.unheard.append(keeping)
        gears = self.router.gears
        changed = False
        if delivered or acked or dropped:
            changed = gears.ask(keeping.name, RECORDED, topic_filters)
        if unheard:
            changed |= gears.ask(f"{keeping.name} unheard", MISSED, topic_filters)
        if changed:
            self.router.all_changed()
        self.hooks_changed("", False)
        return keeping

    def remove_deliveries(self, token: object) -> None:
        """Tell one who keeps deliveries no more."""
        assert isinstance(token, Keeping)
        self.deliveries.end_turn()
        known = self.deliveries
        for kept in (known.delivering, known.acking, known.missing, known.unheard):
            if token in kept:
                kept.remove(token)
        gears = self.router.gears
        changed = gears.forget(token.name)
        if gears.forget(f"{token.name} unheard") or changed:
            self.router.all_changed()
        self.hooks_changed("", False)

    def add_denials(self, notes: Notes) -> object:
        """Have `notes` told of what clients may not do. Returns what `remove_denials` takes."""
        keeping = Keeping(notes, None)
        self.deliveries.denying.append(keeping)
        self.hooks_changed("", False)
        return keeping

    def remove_denials(self, token: object) -> None:
        """Tell one who keeps denials no more."""
        assert isinstance(token, Keeping)
        self.deliveries.end_turn()
        self.deliveries.denying.remove(token)
        self.hooks_changed("", False)

    def farewell(self, session: State, reason: str) -> None:
        """Hook client.disconnected, behind what its client was refused before."""
        self.deliveries.settle(session)
        self.tell("client.disconnected", session, reason)

    def tell(self, point: str, session: State, *args: object) -> None:
        """Tell a hook point about a client, when somebody listens."""
        if point in self.points:
            self.hooks.run_hooks(point, (self.client_of(session), *args))

    def remember(self, session: State, client: ClientInfo) -> None:
        """Keep of a client what cannot be found out again, where somebody will ask.

        The address goes with the connection: rules ask for it at a will and a return, hooks at
        the end.
        """
        if (
            session.expiry_interval
            or session.will is not None
            or not self.points.isdisjoint(_FAREWELLS)
            or client.superuser
            or client.attributes is not None
            or client.acl is not None
            or client.cert_subject is not None
            or client.mountpoint
        ):
            session.client = client
        else:
            session.client = None

    # -- told by channels and sessions ---------------------------------------------------------

    def denied(self, channel: General, packet: Publish, limit: str) -> None:
        """Hook message.dropped; the access layer has logged the rule, where it is no `limit`."""
        session = channel.session
        if limit and session is not None:
            self.log(
                "denied",
                {
                    "client_id": session.client_id,
                    "username": session.username,
                    "peer": channel.edge.peer(channel)[0],
                    "action": "publish",
                    "qos": packet.qos,
                    "topic": packet.topic[:256],
                    "rule": limit,
                },
            )
        if session is None:
            return
        wanted = self.trail is not None and self.trail.room("denied")
        hooked = "message.dropped" in self.points
        kept = self.deliveries
        message: Message | None = None
        if wanted or hooked or (limit and kept.unheard):
            message = Message(
                self.next_message_id(),
                packet.topic,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.properties,
                session.client_id,
                session.username,
            )
            if wanted and self.trail is not None:
                self.trail.lost(message, "denied", "", limit)
        if not limit and self.tap_refused:
            kept.refused_one(session, packet, message)
        elif message is not None:
            kept.unheard_message(message, "denied")
        if message is not None and hooked:
            self._hook_dropped(message, "denied")

    def note_refused(self, channel: Publisher, key: bytes, first: int, size: int) -> None:
        """See `Judge.note_refused`."""
        session = channel.session
        if session is not None:
            self.deliveries.refused(session, key, first, size)

    def delivered(self, session: State, delivery: Delivery) -> None:
        """Hooks message.delivered (and delivery.completed for QoS 0), and who keeps it."""
        run = delivery.run
        if run is not None:
            if self.deliveries.delivering:
                self.deliveries.add(False, session, run)
            if not self.hooked_delivered:
                return
        if delivery.message is None and not self.tell_all:
            return
        message = delivery.get_message(self.next_message_id())
        if self.tap_followed and self.trail is not None:
            self.trail.step(message, "sent", session.client_id, f"QoS {delivery.qos}")
        if run is None:
            self.deliveries.whole(False, session, message)
        if "message.delivered" in self.points:
            self.hooks.run_hooks("message.delivered", (self.client_of(session),), message)
        if delivery.qos == 0 and "delivery.completed" in self.points:
            self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def delivered_run(self, session: State, run: Run) -> None:
        """See `Keeper.delivered_run`: no hook hears of these."""
        if self.deliveries.delivering:
            self.deliveries.add(False, session, run)

    def acked(self, session: State, delivery: Delivery, packet_id: int) -> None:
        """Hooks message.acked, and delivery.completed, for QoS 2 when PUBCOMP comes."""
        run = delivery.run
        if run is not None:
            if self.deliveries.acking:
                self.deliveries.add(True, session, run)
            if not self.hooked_acked:
                return
        if delivery.message is None and not self.tell_all:
            return
        message = delivery.get_message(self.next_message_id())
        if self.tap_followed and self.trail is not None:
            self.trail.step(message, "acked", session.client_id, "")
        if run is None:
            self.deliveries.whole(True, session, message)
        if "message.acked" in self.points:
            self.hooks.run_hooks("message.acked", (self.client_of(session),), message)
        if self.tap_completed:
            if delivery.qos == 2:
                self.completing.setdefault(session.client_id, {})[packet_id] = message
            else:
                self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def completed(self, session: State, packet_id: int) -> None:
        """Hook delivery.completed: PUBCOMP has come."""
        held = self.completing.get(session.client_id)
        message = held.pop(packet_id, None) if held is not None else None
        if message is not None:
            if not held:
                self.completing.pop(session.client_id, None)
            self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def nacked(self, session: State, delivery: Delivery, code: int) -> None:
        """Hook message.nack: the client has answered with an error, and gets it no more."""
        if delivery.message is None and not self.tell_all:
            return
        message = delivery.get_message(self.next_message_id())
        if self.tap_followed and self.trail is not None:
            self.trail.step(message, "refused", session.client_id, reasons.name_of(code))
        if "message.nack" in self.points:
            self.hooks.run_hooks("message.nack", (self.client_of(session), code), message)

    def queued(self, session: State, delivery: Delivery) -> None:
        """See `Keeper.queued`."""
        if delivery.message is not None and self.trail is not None:
            self.trail.step(delivery.message, "queued", session.client_id, "")

    def lose(self, session: State, delivery: Delivery, reason: str, detail: str) -> None:
        """Keep why a delivery was lost, if there is room."""
        self._lose(session.client_id, delivery, reason, detail)

    def lose_abroad(self, delivery: Delivery, reason: str, place: str) -> None:
        """The same of one that was for sessions of another process."""
        self._lose("", delivery, reason, place)

    def _lose(self, client_id: str, delivery: Delivery, reason: str, detail: str) -> None:
        if self.trail is not None and self.trail.room(reason):
            message = delivery.message
            if message is None:
                message = delivery.copy().get_message(self.next_message_id())
            self.trail.lost(message, reason, client_id, detail)

    def missed(self, message: Message, reason: str, client_id: str) -> None:
        """See `Router.missed`."""
        if self.trail is not None and self.trail.room(reason):
            if not message.id:
                message.id = self.next_message_id()
            self.trail.lost(message, reason, client_id, "")

    def dropped_retained(self, kept: Delivery, why: str) -> None:
        """See `Keeper.dropped_retained`."""
        if self.trail is not None and self.trail.room("retained_full"):
            detail = "the memory budget is used up" if why else "the retained store has no room"
            message = kept.get_message(self.next_message_id())
            self.trail.lost(message, "retained_full", "", detail)

    def sample(self, channel: General) -> None:
        """See `Router.sample`."""
        session = channel.session
        if session is not None and self.trail is not None:
            self.trail.sample(session.client_id)
            channel.forget_rights()

    def dropped(self, session: State, delivery: Delivery, reason: str) -> None:
        """Hook delivery.dropped, and who keeps it."""
        if self.trail is not None:
            self.lose(session, delivery, reason, "")
        self.delivery_dropped(session, delivery, reason)

    def delivery_dropped(self, session: State, delivery: Delivery, reason: str) -> None:
        """The same without keeping why."""
        if not self.tap_missed:
            return
        run = delivery.run
        if run is not None:
            self.deliveries.missed(session, run, reason)
            if not self.hooked_missed:
                return
        if delivery.message is None and not self.tell_all:
            return
        message = delivery.get_message(self.next_message_id())
        if run is None:
            self.deliveries.missed(session, run_of(message), reason)
        if self.hooked_missed:
            self.hooks.run_hooks("delivery.dropped", (self.client_of(session), reason), message)

    def unheard(self, message: Message, reason: str) -> None:
        """Hook message.dropped: a message reached nobody."""
        if self.trail is not None and reason == "no_subscriber" and self.tap_unheard:
            self.missed(message, reason, "")
        if self.tap_dropped:
            self.message_dropped(message, reason)

    def unheard_run(self, channel: General, run: Run) -> None:
        """See `Router.unheard_run`."""
        session = channel.session
        if session is not None and self.deliveries.unheard:
            self.deliveries.unheard_run(session, run)

    def message_dropped(self, message: Message, reason: str) -> None:
        """Hook message.dropped, and who keeps it."""
        self.deliveries.unheard_message(message, reason)
        if "message.dropped" in self.points:
            self._hook_dropped(message, reason)

    def _hook_dropped(self, message: Message, reason: str) -> None:
        session = self.sessions.get(message.client_id)
        client = self.client_of(session) if session is not None else None
        self.hooks.run_hooks("message.dropped", (client, reason), message)
