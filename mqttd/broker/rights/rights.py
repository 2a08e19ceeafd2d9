"""Who may do what, and until when an answer holds.

    authorize  hook client.authorize, then access control
    epoch      grows when rules, users, bans or hooks change: what was allowed before is asked again
    bans       client ids, users and addresses that must stay out

A retained message outlives its publisher's right: it carries the address it came from, and the
right is asked for again when the message goes to a new subscriber (CVE-2018-12546).
"""

from __future__ import annotations

from mqttd.broker.ground.actions import PUBLISHING, RETAINING
from mqttd.broker.ground.ground import Given
from mqttd.broker.ground.seams import Access
from mqttd.broker.hooks.taps import Taps
from mqttd.broker.retained.retained import Retained
from mqttd.broker.rights.bans import Bans
from mqttd.broker.rights.flapping import Flapping
from mqttd.codec.topic import overlap
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.message import Delivery
from mqttd.session.ground.refusal import Refusal
from mqttd.session.publish.publisher import Publisher
from mqttd.session.state import State
from mqttd.types import Action, ClientInfo, Verdict

__all__ = ["Rights", "brings_rights"]


class Rights(Taps):
    """Asks hooks and access control, and knows who must stay out."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.access: Access = given.access
        #: Who must stay out; the service puts those of its file here.
        self.bans: Bans = Bans()
        #: Told of the end of each connection, where flapping is looked for.
        self.flapping: Flapping | None = None
        #: Listener -> what differs from listener to listener; put here by what accepts connections.
        self.listeners: dict[str, Listener] = {}

    def connect_timeout(self, listener: str) -> int:
        """Milliseconds from an accepted connection to its CONNECT."""
        known = self.listeners.get(listener)
        if known is None or not known.connect_timeout:
            return self.settings.connect_timeout
        return known.connect_timeout

    def remember(self, session: State, client: ClientInfo) -> None:
        """As `Taps.remember`; where flapping is looked for, also whose address is asked for."""
        super().remember(session, client)
        known = self.listeners.get(client.listener)
        if known is not None and known.flapping is not None and client.username is None:
            session.client = client  # of a connection that was reset nobody can tell it

    def access_changed(self) -> None:
        """Rules, users or bans changed: rights and subscriptions are asked for again."""
        self.epoch += 1
        self.by_flags = bool(self.access.depends_on_qos_retain)

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """May `client` do this? Hook client.authorize first, then the chain."""
        if self._may(client, action, topic):
            return True
        self.deliveries.denied(client, action, topic)
        return False

    def _may(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """The same, not told to those who keep denials."""
        if "client.authorize" in self.points:
            _, verdict = self.hooks.run_hooks(
                "client.authorize", (client, action, topic), Verdict.IGNORE
            )
            if verdict is Verdict.ALLOW:
                return True
            if verdict is not Verdict.IGNORE:
                if verdict is not Verdict.DENY:
                    self.hooks.unusable("client.authorize", verdict)
                if self.trail is not None:
                    self.trail.because(f"{self.hooks.stopped_by()}, at client.authorize")
                self._tell_denied(client, action, topic)
                return False
        if self.access.authorize(client, action, topic):
            return True
        self._tell_denied(client, action, topic)
        return False

    def _tell_denied(self, client: ClientInfo, action: Action, topic: str) -> None:
        if "client.denied" in self.points:
            self.hooks.run_hooks("client.denied", (client, action, topic))

    # -- publishers ----------------------------------------------------------------------------

    def class_of(self, channel: Publisher) -> int:
        """See `Judge.class_of`."""
        session = channel.session
        if session is None or self.asked_topics is None:
            return -1
        # Nobody asks again for as long as the class holds: what was found out is not kept.
        client = self.client_of(session, False)
        if client.superuser or client.acl is not None:
            return -1
        return self.access.class_of(client)

    def is_free(self, number: int) -> bool:
        """See `Judge.is_free`."""
        for topic_filter in self.asked_topics or ():
            if not topic_filter.startswith("$"):
                return False
        return self.access.constant(number)

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> bool:
        """See `Judge.judge`."""
        for topic_filter in self.asked_topics or ():
            if overlap(topic_filter, topic):
                return False
        return self.access.judge(number, qos, retain, topic) == 1

    def may_publish(self, channel: Publisher, topic: str, qos: int, retain: bool) -> bool:
        """See `Judge.may_publish`."""
        session = channel.session
        assert session is not None
        action = (RETAINING if retain else PUBLISHING)[qos]
        return self._may(self.client_of(session), action, topic)

    def realms(self, channel: Publisher) -> list[bytes]:
        """See `Judge.realms`: none of them lies where the hook is asked about topics."""
        session = channel.session
        asked = self.asked_topics
        if session is None or asked is None:
            return []
        found: list[bytes] = []
        most = self.settings.max_topic_length
        for realm in self.access.realms(self.client_of(session)):
            if len(realm) > most:
                continue  # of a long name in it: no topic begins so, and it would be kept
            for topic_filter in asked:
                if overlap(topic_filter, realm + "#"):
                    break
            else:
                found.append(realm.encode())
        return found

    def refuses(self, channel: Publisher, topic: str, qos: int, retain: bool) -> Refusal | None:
        """See `Judge.refuses`."""
        session = channel.session
        asked = self.asked_topics
        if session is None or asked is None:
            return None
        for topic_filter in asked:
            if overlap(topic_filter, topic):
                return None
        action = (RETAINING if retain else PUBLISHING)[qos]
        return self.access.refusal(self.client_of(session), action, topic)

    def listening(self, client: ClientInfo) -> list[str]:
        """Beginnings of filters that a client may subscribe to; "": all but those with `$`.

        Some may be missing: of what begins with none of them `authorize` is asked.
        """
        return [] if "client.authorize" in self.points else self.access.listening(client)

    def nobody_hears(self) -> None:
        """The log has no room for another line about a refusal, for now: has anybody else?

        `tap_denied` says so until it is set again, a few times a second. Who keeps refusals as
        bytes is no matter: a message that is refused again is noted without being decided again.
        """
        trail = self.trail
        self.tap_denied = (
            "client.denied" in self.points
            or "message.dropped" in self.points
            or (trail is not None and trail.left("denied") > 0)
        )

    # -- publishers of retained messages -------------------------------------------------------

    def origin(self, client_id: str, username: str | None) -> tuple[str, str]:
        """Address and listener, if the right of a client to what it retains comes from them.

        "" where the right came with the authentication: that is not looked at again.
        """
        session = self.sessions.get(client_id)
        if session is None or session.username != username:
            return ("", "")
        client = self.client_of(session)
        return ("", "") if brings_rights(client) else (client.peerhost, client.listener)

    def may_still_publish(self, kept: Delivery) -> bool:
        """Whether the publisher of a retained message would be allowed to publish it now."""
        assert isinstance(kept, Retained)
        if not kept.peerhost or kept.checked == self.epoch:
            return True
        client = ClientInfo(kept.source, kept.username, kept.peerhost, 0, kept.listener, 5)
        if self.authorize(client, RETAINING[kept.qos], kept.topic()):
            kept.checked = self.epoch
            return True
        self.metrics.dropped_revoked += 1
        self.missed(kept.get_message(self.next_message_id()), "revoked", "")
        return False


def brings_rights(client: ClientInfo) -> bool:
    """Whether a client may have rights that came with its authentication, not by name, address."""
    if client.superuser or client.acl or client.attributes:
        return True
    return bool(client.cert_common_name)
