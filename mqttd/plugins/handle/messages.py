"""The handle's messages: what the plugin publishes, and what it subscribes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.broker.publish import halfway, local
from mqttd.broker.publish.queues import Queues
from mqttd.broker.routing.abroad import Told
from mqttd.codec.reasons import MqttError
from mqttd.interfaces import ISubscription
from mqttd.plugins.calls.signatures import verify_function
from mqttd.plugins.handle.base import HandleBase, check_message

__all__ = ["MOST_NESTED", "Messages"]

#: How deep `publish` may be called within callbacks of `message.publish`.
MOST_NESTED: Final = 8


@implementer(ISubscription)
class _Subscribed:
    """What `subscribe` gives."""

    def __init__(self, handle: Messages, topic_filter: str, session: Any) -> None:
        self.topic_filter = topic_filter
        self._handle: Messages | None = handle
        self._session = session

    def unsubscribe(self) -> None:
        """End it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle._subscriptions.pop(self, None)
            self._session.close()


class Messages(HandleBase):
    """Publish and subscribe."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._subscriptions: dict[_Subscribed, None] = {}
        self._nested = 0
        self._queues: Queues | None = None
        self._at_end(self._unsubscribe_all)

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[int, Any] | None = None,
    ) -> int:
        """See `IPluginHandle.publish`."""
        self._check()
        check_message(topic, payload)
        broker = self._host.broker
        most = broker.settings.max_packet_size
        if len(payload) + len(topic.encode()) > most:
            raise ValueError(f"topic and payload are larger than mqtt.max_packet_size, {most}")
        if self._nested >= MOST_NESTED:
            raise RuntimeError(f"plugin {self.name} publishes in a circle, last to {topic!r}")
        self._nested += 1
        try:
            given = dict(properties) if properties is not None else None
            receivers = local.publish(broker, topic, payload, qos, retain, given)
        except MqttError as error:
            raise ValueError(f"topic {topic!r}: {error.detail}") from None
        finally:
            self._nested -= 1
        return max(receivers, 0)

    def republish(self, message: Any, noted: bool = False, routed: bool = False) -> int:
        """See `IPluginHandle.republish`."""
        self._check()
        broker = self._host.broker
        if noted or routed:
            return halfway.go_on(broker, message, noted, routed)
        return local.republish(broker, message)

    def room(self, topics: Sequence[str], size: int) -> int:
        """See `IPluginHandle.room`."""
        self._check()
        if self._queues is None:
            self._queues = Queues(self._host.broker)
        return self._queues.room(topics, size)

    def holds(self, message: Any, until: str) -> None:
        """See `IPluginHandle.holds`."""
        self._check()
        trail = self._host.broker.trail
        if trail is not None:
            trail.holds(message, f"plugin {self.name} {until}")

    def arrived(self, client_id: str = "") -> Deferred[None]:
        """See `IPluginHandle.arrived`."""
        self._check()
        broker = self._host.broker
        fired: Deferred[None] = Deferred()

        def told() -> None:
            if not self.revoked:
                self._guard("arrived", fired.callback, (None,))

        def delivered() -> None:
            abroad = broker.router.abroad
            if abroad is None or not abroad.arrives(Told(told)):
                told()

        broker.fans.after(client_id, delivered)
        return fired

    def subscribe(self, topic_filter: str, callback: Callable[[Any], object], qos: int = 0) -> Any:
        """See `IPluginHandle.subscribe`."""
        self._check()
        verify_function(callback, ("message",))

        def receive(message: object) -> None:
            if not self.revoked:
                self._guard("subscription", callback, (message,))

        try:
            session = local.subscribe(
                self._host.broker, f"$plugin/{self.name}", topic_filter, receive, qos
            )
        except MqttError as error:
            raise ValueError(f"topic filter {topic_filter!r}: {error.detail}") from None
        subscribed = _Subscribed(self, topic_filter, session)
        self._subscriptions[subscribed] = None
        return subscribed

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        topic_filters = [subscribed.topic_filter for subscribed in self._subscriptions]
        return {"subscriptions": topic_filters, **super().describe()}

    def _unsubscribe_all(self) -> None:
        for subscribed in list(self._subscriptions):
            self._quietly(subscribed.unsubscribe)
