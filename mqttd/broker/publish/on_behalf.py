"""A subscription that an administrator or a plugin makes for a client.

    subscribed here --> [the other processes have the filter] --> told, and what is retained

What is retained follows as it does behind a SUBACK: the last message of before would be one too
early, where another may come that nobody sends here yet.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.abroad import Taken
from mqttd.codec.packets import Subscription
from mqttd.session.session import Session

__all__ = ["OnBehalf"]


class OnBehalf(Taken):
    """A subscription that its client has not asked for, until the other processes have it."""

    def __init__(
        self,
        broker: Publishing,
        session: Session,
        subscription: Subscription,
        told: Callable[[bool], object] | None,
    ) -> None:
        self.broker = broker
        self.session = session
        self.subscription = subscription
        self.told = told

    def taken(self) -> None:
        """See `Taken.taken`."""
        broker = self.broker
        session = self.session
        if broker.sessions.get(session.client_id) is session:
            broker.tell("session.subscribed", session, self.subscription)
            session.start_replays()
            broker.perform_later()
        if self.told is not None:
            self.told(True)

    def refused(self) -> None:
        """See `Taken.refused`."""
        topic_filter = self.subscription.topic_filter
        abroad = self.broker.router.abroad
        if abroad is None or not abroad.lacks(topic_filter):
            self.taken()
            return
        self.broker.pubsub.unsubscribe(self.session, topic_filter)
        if self.told is not None:
            self.told(False)

    def filters(self) -> list[str]:
        """See `Taken.filters`."""
        return [self.subscription.topic_filter]
