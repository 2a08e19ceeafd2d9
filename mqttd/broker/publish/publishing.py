"""A message on its way in: hooks around it, retained store and dispatch, its acknowledgement.

    publish --> message.publish --> stamp --> retainer --> route --> sessions
                   | stopped, refused, unusable
                   '--> dropped: counted, told to message.dropped

What a channel does for every message is a method of this class, and nothing stands between.

MQTT 5.0: 3.3 (PUBLISH), 4.3 (QoS: when an acknowledgement may go).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.ground.ground import Given
from mqttd.broker.ground.seams import Trail
from mqttd.broker.hooks.deliveries import Keeping
from mqttd.broker.hooks.holders import Asking, Hold, Holder, Holders
from mqttd.broker.publish.fans import Fans, InboundFan
from mqttd.broker.publish.pubsub import PubSub
from mqttd.broker.retained.retained import Retained, RetainedMessages
from mqttd.broker.retained.retainer import RetainedLevel
from mqttd.broker.rights.rights import Rights
from mqttd.broker.routing.shared import Group
from mqttd.codec import reasons
from mqttd.codec.properties import encode_properties
from mqttd.codec.topic import validate_topic_name
from mqttd.session.channel.channel import Channel
from mqttd.session.gathering import Gathering
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.ground.runs import Run
from mqttd.session.promise import Asker
from mqttd.session.publish.general import General
from mqttd.session.publish.inbound import Inbound
from mqttd.session.publish.notes import Notes
from mqttd.session.routes.route import HELD, NOTED, STUCK, Route
from mqttd.session.session import Session
from mqttd.session.state import State

__all__ = ["Publishing"]

#: What a message out of nothing is compared with: nothing of it is taken for checked.
_NO_MESSAGE: Final = Message(0, "", b"", 0, False, {})


class Publishing(Rights):
    """Takes messages from channels and from this process."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        settings = self.settings
        self.retainer = RetainedMessages(
            self,
            settings.retained_max_messages,
            settings.retained_max_bytes,
            settings.retained_max_payload,
        )
        self.retainer.max_per_user = settings.retained_max_per_user
        self.retainer.max_bytes_per_user = settings.retained_max_bytes_per_user
        #: Messages on their way to very many receivers.
        self.fans = Fans(self)
        self.pubsub = PubSub(self, self.router, self.retainer, self.fans)
        #: Who holds acknowledgements, and which.
        self.holders = Holders(self.flush_later)
        #: Who is noted messages, and of which topics.
        self.noting: list[Keeping] = []
        #: Acknowledgements were released in this turn.
        self.released: bool = False
        #: The store takes nothing.
        self.stuck: bool = False
        #: What goes on when nothing behind the broker is behind any more.
        self._relieved: list[Callable[[], None]] = []

    def publish(self, message: Message) -> int:
        """Hooks, retained store, dispatch. Returns receivers, or minus a reason code."""
        if self.tap_followed:
            trail = self.trail
            if trail is not None and trail.follows(message.topic, message.client_id):
                return self._followed(trail, message)
        if "message.publish" in self.points:
            changed = self.ask_publish(message)
            if changed is None:
                return self.refusal
            message = changed
        return self.route_message(message)

    def _followed(self, trail: Trail, message: Message) -> int:
        """`publish` for a message that is followed from hand to hand."""
        trail.published(message)
        if "message.publish" in self.points:
            told: list[tuple[str, str]] = []
            result: Any = self.hooks.tell_hooks("message.publish", (), message, told)
            trail.asked(message, told)
            changed = self._asked(message, result[1])
            if changed is None:
                return self.refusal
            message = changed
        receivers = self.route_message(message)
        trail.routed(message, receivers)
        return receivers

    def ask_publish(self, message: Message) -> Message | None:
        """Hook message.publish: None stops the message, and `refusal` is what `publish` returns."""
        return self._asked(message, self.hooks.ask_publish(message))

    def _asked(self, message: Message, changed: object) -> Message | None:
        """What the chain of message.publish has made of a message, as `ask_publish`."""
        if changed is message:
            return message
        self.refusal = 0
        if isinstance(changed, int) and 0x80 <= changed <= 0xFF:
            self.refusal = -self._refused_by_hook(message, changed)
            return None
        if not self._usable(changed, message):
            self._stopped_by_hook(message, "")
            return None
        assert isinstance(changed, Message)
        return changed

    def route_message(self, message: Message) -> int:
        """`publish` without asking the hooks."""
        if self.noting and self.router.of(message.topic).gear & NOTED:
            self.note_message(message)
        origin = ("", "")
        if message.retain and message.client_id:
            origin = self.origin(message.client_id, message.username)
        receivers = self.pubsub.publish(message, origin, self.epoch, self.last_words)
        if receivers <= 0:
            self.unheard(message, "retained_full" if receivers else "no_subscriber")
        return receivers

    def retain(self, channel: General, inbound: Inbound, route: Route) -> int:
        """Keep a retained message as it came, or delete one; 0, or a reason code."""
        size = inbound.end - inbound.body
        if not size:
            self.retainer.delete(route.topic, inbound.qos)
            route.level = None
            return 0
        kept = Retained.of_inbound(inbound)
        warm = channel.warm
        origin = None if warm is None else warm.origin
        if origin is None:
            origin = self.origin(inbound.source, inbound.username)
            warm = channel.warm
            if warm is not None and warm.known is not None:
                warm.origin = origin
        known = route.level
        level = known if isinstance(known, RetainedLevel) else None
        code = self.pubsub.retain(route.topic, kept, size, origin, self.epoch, level)
        if level is None or not level.stored:
            route.level = self.retainer.topics.get(route.topic)
        return code

    def fan_out(self, inbound: Inbound, route: Route) -> int:
        """See `Router.fan_out`."""
        return self.fans.run(InboundFan(inbound, route))

    def queues(self, channel: General, route: Route, size: int) -> bool:
        """See `Router.queues`."""
        assert isinstance(channel, Channel)
        return route.is_wide(size) and self.fans.gate.stops(channel)

    def publish_text(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> int:
        """Publish a message of the broker's own (`$SYS`, API) and flush it.

        Hooks see it, but for `$SYS/`: a plugin in quarantine must not hide the broker's figures.
        """
        message = Message(self.next_message_id(), topic, payload, qos, retain)
        if topic.startswith("$SYS/"):
            receivers = self.pubsub.publish(message)
        else:
            receivers = self.publish(message)
        self.perform()
        return receivers

    def _refused_by_hook(self, message: Message, code: int) -> int:
        """A hook refuses a message with a reason code; before MQTT 5.0 no packet can say so."""
        self._stopped_by_hook(message, f"refused with {reasons.name_of(code)}")
        session = self.sessions.get(message.client_id)
        channel = self.channel_of(session) if session is not None else None
        if message.qos and channel is not None and not channel.v5:
            channel.part(code, "message refused by a plugin")
        return code

    def _stopped_by_hook(self, message: Message, detail: str) -> None:
        """A hook has stopped a message: count it, keep whose it was."""
        self.metrics.dropped_hook += 1
        if self.trail is not None and self.trail.room("hook"):
            who = self.hooks.stopped_by()
            told = f"{who} {detail}" if detail else f"{who} stopped it"
            self.trail.lost(message, "hook", "", told)
        self.message_dropped(message, "hook")

    def _usable(self, changed: object, message: Message) -> bool:
        """May this go on in place of `message`? What cannot be sent is no message either."""
        if changed is None:
            return False
        try:
            if not isinstance(changed, Message):
                raise TypeError("no Message")
            if changed.topic != message.topic or not changed.topic:
                validate_topic_name(changed.topic, self.settings.max_topic_levels)
            if changed.qos not in (0, 1, 2) or not isinstance(changed.payload, bytes):
                raise TypeError("QoS or payload")
            if changed.properties is not message.properties:
                encode_properties(changed.properties)
        except Exception:
            self.hooks.unusable("message.publish", changed)
            return False
        return True

    # -- who keeps messages --------------------------------------------------------------------

    def add_notes(self, notes: Notes, topic_filters: list[str] | None = None) -> object:
        """Have `notes` told of each message on these topics (None: all) that is routed.

        Not of those in `$SYS/`. Returns what `remove_notes` takes.
        """
        keeping = Keeping(notes, topic_filters)
        self.noting.append(keeping)
        if self.router.gears.ask(keeping.name, NOTED, topic_filters):
            self.router.all_changed()
        return keeping

    def remove_notes(self, token: object) -> None:
        """Tell one who keeps messages no more."""
        assert isinstance(token, Keeping)
        self.noting.remove(token)
        if self.router.gears.forget(token.name):
            self.router.all_changed()

    def note(
        self,
        channel: General,
        topic: bytes,
        data: bytes,
        pos: int,
        at: int,
        body: int,
        end: int,
        size: int,
        count: int,
    ) -> Run:
        """See `Router.note`."""
        session = channel.session
        assert session is not None
        guid = self.guid
        number = guid.reserve(self.instant(), count)
        run = Run(guid.timestamp, number, topic, data[pos] & 7, end - body, count)
        block = data[at:body] if channel.v5 and data[at] else b""
        for keeping in self.noting:
            if keeping.topics is None or keeping.topics.match(topic.decode()):
                keeping.notes.note(
                    run, session.client_id, session.username, data, block, body, end, size
                )
        return run

    def note_message(self, message: Message) -> None:
        """See `General.note_message`."""
        for keeping in self.noting:
            if keeping.topics is None or keeping.topics.match(message.topic):
                keeping.notes.note_message(message, self.now)

    # -- acknowledgements ----------------------------------------------------------------------

    def add_holder(
        self,
        hold: Hold,
        topic_filters: list[str] | None = None,
        required: bool = False,
        gathering: Gathering | None = None,
    ) -> object:
        """Have ``hold(release, client_id)`` called for what a client has published in a turn.

        With `topic_filters` only for messages that a client has published to these topics. Their
        acknowledgements go when all who were asked have called their `release`, and those behind
        them wait for them; with `gathering` they wait there instead. Returns what `remove_holder`
        takes.
        """
        holder = self.holders.add(hold, topic_filters, required, gathering)
        if self.router.gears.ask(holder.name, HELD, topic_filters):
            self.router.all_changed()
        return holder

    @property
    def holding(self) -> bool:
        """Whether somebody holds acknowledgements."""
        return bool(self.holders.holders)

    def remove_holder(self, token: object, gone: bool = False) -> None:
        """Ask one who holds acknowledgements no more; what it holds stays held.

        With `gone` it will release nothing: what it holds is acknowledged, or if the holder is
        `required` the connections end that wait for it.
        """
        assert isinstance(token, Holder)
        for session in list(self.sessions.values()):
            channel = self.channel_of(session)
            if channel is None or channel.promises is None:
                continue
            if not gone:
                channel.promises.forget(token)
            elif token.required and channel.promises.waits_for(token):
                detail = "a plugin is gone that had to keep what was sent"
                self.end_channel(channel, reasons.ADMINISTRATIVE_ACTION, detail)
            else:
                channel.promises.release(token)
        self.holders.remove(token)
        self.flush_later()
        if self.router.gears.forget(token.name):
            self.router.all_changed()

    def keepers(self, topic: str) -> tuple[object, ...]:
        """See `Router.keepers`."""
        return self.holders.of(topic)

    def with_journal(
        self, keepers: tuple[object, ...] | None, topic: str, listener: str
    ) -> tuple[object, ...] | None:
        """See `Router.with_journal`."""
        if self.journal.promises(topic, listener):
            journal = self.journal
            keepers = (journal, *keepers) if keepers else journal.alone
        crossed = self.crossed
        if crossed:
            self.crossed = ()
            return (*keepers, *crossed) if keepers else crossed
        return keepers

    def set_stuck(self, stuck: bool) -> None:
        """What has to be kept cannot be: refuse it at QoS 1 and 2, or take it again."""
        self.stuck = stuck
        self.refuse("store", stuck)

    def refuse(self, who: str, some: bool) -> None:
        """Ask of each message of QoS 1 and 2 whether it can be kept, for `who`, or no more."""
        gears = self.router.gears
        changed = gears.ask(who, STUCK, None) if some else gears.forget(who)
        if changed:
            self.router.all_changed()

    def cannot_keep(self, route: Route, first: int, kept: bool) -> bool:
        """See `Router.cannot_keep`."""
        if self.stuck and (first & 1 or (first & 4 and kept) or route.is_kept()):
            return True
        abroad = self.router.abroad
        return abroad is not None and abroad.cannot_keep(route, first)

    def asker(self, client_id: str) -> Asker:
        """See `Router.asker`."""
        return Asking(self.holders, client_id)

    def flush_later(self) -> None:
        """Acknowledgements were released: write them, many in one turn together."""
        if not self.released:
            self.released = True
            self.soon(self.flush_released)

    def flush_released(self) -> None:
        """Write the acknowledgements that were released."""
        self.released = False
        self.perform()

    def congest(self, who: str, on: bool) -> bool:
        """See `Turn.congest`; what other processes send here waits as well."""
        before = self.congested
        changed = super().congest(who, on)
        abroad = self.router.abroad
        if self.congested != before:
            if abroad is not None:
                abroad.congested(self.congested)
            if before:
                self.soon(self._relieve)
        return changed

    def when_relieved(self, then: Callable[[], None]) -> None:
        """Have `then` called when `congested` is over, once."""
        self._relieved.append(then)

    def _relieve(self) -> None:
        relieved, self._relieved = self._relieved, []
        for then in relieved:
            then()

    def set_congested(self, congested: bool, who: str = "") -> None:
        """Stop reading from publishers for `who`, or go on unless others still cannot follow."""
        if self.congest(who, congested) and not self.congested:
            self.perform_later()

    # -- messages for one client ---------------------------------------------------------------

    def stray(self, session: State, entry: object) -> None:
        """This has come for a session that is over: another member of the shared group that has
        chosen it gets it, or whoever is there in its place.
        """
        assert isinstance(session, Session)
        group = entry.group if isinstance(entry, Delivery) else None
        if group is None:
            if self.fans.instead:
                self.fans.missed(session, entry)
        elif isinstance(group, Group):
            assert isinstance(entry, Delivery)
            # All that are over at once: each choice of another one of them costs a copy.
            for member in list(group.order):
                if isinstance(member, Session) and member.ended:
                    group.remove(member)
            self.pubsub.redispatch(entry)

    def send_info(self, client_id: str, info: object) -> bool:
        """Tell a client's channel something: hook client.handle_info says what it is sent for it.

        False if the client is not connected.
        """
        session = self.sessions.get(client_id)
        channel = self.channel_of(session) if session is not None else None
        if channel is None:
            return False
        channel.send_info(info)
        return True

    def handle_info(self, session: Session, info: object) -> None:
        """Hook client.handle_info, and deliver the messages it answers with."""
        if "client.handle_info" not in self.points:
            return
        _, messages = self.hooks.run_hooks(
            "client.handle_info", (self.client_of(session), info), []
        )
        if not isinstance(messages, list):
            self.hooks.unusable("client.handle_info", messages)
            return
        quiet = not self.dirty
        for message in messages:
            if self._usable(message, _NO_MESSAGE):
                self.pubsub.deliver_to(session, message)
        if quiet and self.dirty:
            self.perform_later()
