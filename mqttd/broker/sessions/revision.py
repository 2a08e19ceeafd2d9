"""What a client was allowed before stops when it is allowed no longer: rights looked at again.

::

    access_changed ──► epoch + 1       every right that is kept is asked for again
                  └──► Revision.start  all subscriptions, in slices, other work in between
                          │ no longer allowed
                          ├── the subscription ends, its replay of retained messages too
                          ├── what is queued for it is dropped (a shared one goes to the group)
                          └── acl.on_revoke = "disconnect": DISCONNECT 0x87

Looked at again as well: the subscriptions of a session that comes back as somebody else's equal
(another address, other rights), a will when it is published, and the publisher of a retained
message when it is delivered to a new subscriber (CVE-2018-12546).

Promise: one slice asks for `SLICE` rights, a few milliseconds, whatever the number of sessions; a
change during a revision starts it anew.  MQTT 5.0, 4.13 (0x87 Not authorized).
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.trie import Trie
from mqttd.codec import reasons
from mqttd.codec.topic import split_shared
from mqttd.session.ground.message import Delivery
from mqttd.session.routes.route import QOS_MASK
from mqttd.session.session import Session
from mqttd.types import Action, ClientInfo

__all__ = ["SLICE", "Revision"]

#: Rights asked for in one turn.
SLICE: Final = 50

_SUBSCRIBE: Final = "subscribe"


class Revision:
    """Looks at the rights of a broker's sessions again."""

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        #: revisions that have come to their end
        self.done: int = 0
        self._sessions: list[str] = []
        self._filters: list[str] = []
        self._revoked: list[str] = []
        self._session: Session | None = None
        self._scheduled = False
        self._closed = False

    @property
    def running(self) -> bool:
        """Some sessions have not been looked at since the last change."""
        return bool(self._sessions) or self._session is not None

    def close(self) -> None:
        """Look at none any more: the broker ends, and those who know the rights go before it.

        Sessions keep what they have; each is looked at when its client comes back.
        """
        self._closed = True
        self._sessions = []
        self._session = None

    def start(self) -> None:
        """Look at all sessions, from the next turn on."""
        if self._closed:
            return
        self._sessions = list(self.broker.sessions)
        self._session = None
        if self._sessions and not self._scheduled:
            self._scheduled = True
            self.broker.soon(self._slice)

    def _slice(self) -> None:
        self._scheduled = False
        left = SLICE
        while left > 0 and self.running:
            session = self._session
            if session is None:
                session = self.broker.sessions.get(self._sessions.pop())
                left -= 1
                if session is None or session.subscriptions is None or _is_unknown(session):
                    continue
                self._session = session
                self._filters = list(session.subscriptions)
                self._revoked = []
            at = max(len(self._filters) - max(left, 1), 0)
            now = self._filters[at:]
            del self._filters[at:]
            left -= len(now)
            self._revoked += self._no_longer(session, now, self.broker.client_of(session))
            if not self._filters:
                self._session = None
                self._end(session, self._revoked)
        if self.running:
            self._scheduled = True
            self.broker.soon(self._slice)
        else:
            self.done += 1
        self.broker.perform()

    # -- subscriptions -------------------------------------------------------------------------

    def revise(self, session: Session, client: ClientInfo) -> int:
        """Look at one session of `client` at once; returns how many subscriptions ended."""
        if session.subscriptions is None:
            return 0
        revoked = self._no_longer(session, list(session.subscriptions), client)
        self._end(session, revoked)
        return len(revoked)

    def resumed(self, session: Session, before: ClientInfo | None, client: ClientInfo) -> None:
        """A session is about to go on with `client`: look at it unless nothing can differ."""
        if (
            before is None
            or not before.peerhost
            or self.running
            or before.peerhost != client.peerhost
            or before.superuser != client.superuser
            or before.acl is not None
            or client.acl is not None
            or before.attributes != client.attributes
            or before.cert_common_name != client.cert_common_name
        ):
            self.revise(session, client)

    def _no_longer(self, session: Session, filters: list[str], client: ClientInfo) -> list[str]:
        """Those of these subscriptions that the client would not get now."""
        broker = self.broker
        revoked: list[str] = []
        for full_filter in filters:
            options = (session.subscriptions or {}).get(full_filter)
            if options is None:
                continue
            _, topic_filter = split_shared(full_filter)
            action = Action(_SUBSCRIBE, options & QOS_MASK)
            if not broker.authorize(client, action, topic_filter):
                revoked.append(full_filter)
        return revoked

    def _end(self, session: Session, revoked: list[str]) -> None:
        """End these subscriptions and what is on its way through them."""
        if not revoked:
            return
        broker = self.broker
        for full_filter in revoked:
            if not broker.pubsub.unsubscribe(session, full_filter):
                continue
            broker.metrics.subscriptions_revoked += 1
            broker.log(
                "subscription revoked",
                {
                    "client_id": session.client_id,
                    "username": session.username,
                    "topic_filter": full_filter,
                },
            )
            if "session.unsubscribed" in broker.points:
                told = (broker.client_of(session), full_filter)
                broker.hooks.run_hooks("session.unsubscribed", told)
        self._stop_replays(session, revoked)
        self._withdraw(session, revoked)
        channel = session.channel
        if channel is not None and broker.settings.revoke_disconnect:
            broker.end_channel(channel, reasons.NOT_AUTHORIZED, "a subscription was revoked")

    def _stop_replays(self, session: Session, revoked: list[str]) -> None:
        for full_filter in revoked:
            session.stop_replay(full_filter)

    def _withdraw(self, session: Session, revoked: list[str]) -> None:
        """Drop what is queued by these subscriptions and by no other that is left."""
        if not session.inflight and session.mqueue is None:
            return
        # What was sent once and not acknowledged is not sent again either.
        withdrawn = session.withdraw(_Revoked(revoked, list(session.subscriptions or ())))
        for delivery in withdrawn:
            self.broker.metrics.dropped_revoked += 1
            self.broker.dropped(session, delivery, "revoked")
            if delivery.group is not None and delivery.qos:
                self.broker.pubsub.redispatch(delivery)
        if withdrawn and session.channel is not None:
            session.drain()


def _is_unknown(session: Session) -> bool:
    """Whether a session has come from a store or another node, and its client not since then.

    Nobody knows its client's address, nor the rights that came with its authentication. Nothing
    goes to it before it is back, and then the session is looked at (`resumed`).
    """
    client = session.client
    return session.channel is None and not (isinstance(client, ClientInfo) and client.peerhost)


class _Revoked:
    """What came through subscriptions that are gone, and through none that is left."""

    def __init__(self, gone: list[str], left: list[str]) -> None:
        self._gone = _Filters(gone)
        self._left = _Filters(left)

    def __call__(self, delivery: Delivery) -> bool:
        """Whether this is one of them."""
        return self._gone.have(delivery) and not self._left.have(delivery)


class _Filters:
    """Subscriptions by what they match: a session's own, and each of its shared groups."""

    def __init__(self, full_filters: list[str]) -> None:
        self._own = Trie()
        self._groups: set[tuple[str, str]] = set()
        for full_filter in full_filters:
            group, topic_filter = split_shared(full_filter)
            if group is None:
                self._own.insert(topic_filter)
            else:
                self._groups.add((group, topic_filter))

    def have(self, delivery: Delivery) -> bool:
        """Whether `delivery` came, or could have come, through one of these."""
        group = delivery.group
        if group is None:
            return bool(self._own.match(delivery.topic()))
        return (group.name, group.topic_filter) in self._groups  # type: ignore[attr-defined]
