"""Follows each message through the broker, and shows every hook point there is.

    alice --PUBLISH--> message.publish --> message.delivered --> message.acked
                            |                    |                    |
                            '----- one 128-bit message id ties them --'
                                                 |
          "alice -> bob, sensors/1: delivered after 0.2 ms, acknowledged after 1.4 ms"

A callback is called with what happened, then the accumulator, and answers OK (go on), OK(new),
STOP (nobody after it is asked) or STOP(new); None is OK. It runs in the reactor thread: it must
not block. Delete what you do not need: each point that nobody hooks makes the broker faster.

Promise: at most `keep` messages and ways are remembered, whatever happens to them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.codec.packets import Subscription
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import OK, Action, AuthVerdict, ClientInfo, HookResult, Verdict

__all__ = ["Settings", "Template", "Way"]

Properties = dict[int, Any] | None


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``etc/plugins/template.conf`` may say."""

    #: Messages, and ways of messages, that are remembered.
    keep: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    #: Only messages whose topic begins with this are followed.
    prefix: str = ""


@dataclass(slots=True)
class Way:
    """One message on its way to one subscriber; times in seconds since it was published."""

    message_id: int
    topic: str
    publisher: str
    subscriber: str
    delivered: float
    acked: float | None = None

    def __str__(self) -> str:
        acked = f", acknowledged after {self.acked * 1000:.1f} ms" if self.acked is not None else ""
        return (
            f"{self.message_id:032x} {self.publisher} -> {self.subscriber}, {self.topic}:"
            f" delivered after {self.delivered * 1000:.1f} ms{acked}"
        )


@implementer(IPlugin)
class Template:
    """The running part, made anew for each load."""

    def __init__(self) -> None:
        #: Calls by hook point.
        self.calls: Counter[str] = Counter()
        #: When a message was published, by its id.
        self._published: OrderedDict[int, float] = OrderedDict()
        #: Ways whose acknowledgement is awaited, by message id and subscriber.
        self._open: OrderedDict[tuple[int, str], Way] = OrderedDict()

    # -- life ------------------------------------------------------------------------------------

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Hook everything; all of it ends by itself when the plugin is unloaded."""
        self.handle = handle
        self.config = config
        #: The last ways that came to their end.
        self.last: deque[Way] = deque(maxlen=config.keep)
        for point, callback in self.callbacks().items():
            handle.hook(point, callback)
        handle.add_command("last", self.show_last, "The last messages; an argument says how many.")
        handle.add_command("calls", self.show_calls, "How often each hook point has run.")
        handle.add_metric("followed_total", "Messages followed to their end.", self.followed)
        handle.add_sys_topic("followed", self.followed)
        self._followed = 0

    def unload(self) -> None:
        """Nothing to do: this plugin holds nothing but what it got from its handle."""

    def callbacks(self) -> dict[str, Any]:
        """Every hook point, and what is called there."""
        return {
            "client.connect": self.on_client_connect,
            "client.connack": self.on_client_connack,
            "client.connected": self.on_client_connected,
            "client.disconnected": self.on_client_disconnected,
            "client.authenticate": self.on_client_authenticate,
            "client.authorize": self.on_client_authorize,
            "client.denied": self.on_client_denied,
            "client.subscribe": self.on_client_subscribe,
            "client.subscribe.after": self.on_client_subscribe_after,
            "client.unsubscribe": self.on_client_unsubscribe,
            "client.handle_info": self.on_client_handle_info,
            "session.created": self.on_session_created,
            "session.subscribed": self.on_session_subscribed,
            "session.unsubscribed": self.on_session_unsubscribed,
            "session.resumed": self.on_session_resumed,
            "session.disconnected": self.on_session_disconnected,
            "session.discarded": self.on_session_discarded,
            "session.takenover": self.on_session_takenover,
            "session.terminated": self.on_session_terminated,
            "message.publish": self.on_message_publish,
            "message.delivered": self.on_message_delivered,
            "message.acked": self.on_message_acked,
            "message.nack": self.on_message_nack,
            "message.dropped": self.on_message_dropped,
            "delivery.completed": self.on_delivery_completed,
            "delivery.dropped": self.on_delivery_dropped,
            "memory.high_water": self.on_memory_high_water,
        }

    # -- for operators ---------------------------------------------------------------------------

    def show_last(self, argv: list[str]) -> str:
        """`mqttd-ctl template last [N]`"""
        count = int(argv[0]) if argv else 10
        return "\n".join(str(way) for way in list(self.last)[-count:]) or "nothing yet"

    def show_calls(self, argv: list[str]) -> str:
        """`mqttd-ctl template calls`"""
        return "\n".join(f"{point}: {count}" for point, count in self.calls.most_common())

    def followed(self) -> int:
        """Messages that were followed to their end."""
        return self._followed

    # -- messages: one id ties the three together ------------------------------------------------

    def on_message_publish(self, message: Any) -> HookResult:
        """A message comes in; OK(other) changes it, STOP(None) drops it."""
        self.calls["message.publish"] += 1
        if message.topic.startswith(self.config.prefix):
            self._published[message.id] = self.handle.clock.seconds()
            if len(self._published) > self.config.keep:
                self._published.popitem(last=False)
        return OK

    def on_message_delivered(self, client: ClientInfo, message: Any) -> None:
        """It is written to one subscriber."""
        self.calls["message.delivered"] += 1
        published = self._published.get(message.id)
        if published is None:
            return
        way = Way(
            message.id,
            message.topic,
            message.client_id or "the broker",
            client.client_id,
            self.handle.clock.seconds() - published,
        )
        self._open[message.id, client.client_id] = way
        if len(self._open) > self.config.keep:
            self._open.popitem(last=False)

    def on_message_acked(self, client: ClientInfo, message: Any) -> None:
        """The subscriber has acknowledged it."""
        self.calls["message.acked"] += 1
        way = self._open.get((message.id, client.client_id))
        published = self._published.get(message.id)
        if way is not None and published is not None:
            way.acked = self.handle.clock.seconds() - published

    def on_delivery_completed(self, client: ClientInfo, message: Any) -> None:
        """All is done for this subscriber: at once for QoS 0, after PUBACK or PUBCOMP."""
        self.calls["delivery.completed"] += 1
        way = self._open.pop((message.id, client.client_id), None)
        if way is not None:
            self._followed += 1
            self.last.append(way)
            self.handle.log.debug("{way}", way=way)

    def on_message_nack(self, client: ClientInfo, reason_code: int, message: Any) -> None:
        """A subscriber refused it."""
        self.calls["message.nack"] += 1
        self._open.pop((message.id, client.client_id), None)

    def on_message_dropped(self, client: ClientInfo | None, reason: str, message: Any) -> None:
        """It reached nobody; `client` published it."""
        self.calls["message.dropped"] += 1
        self._published.pop(message.id, None)

    def on_delivery_dropped(self, client: ClientInfo, reason: str, message: Any) -> None:
        """It did not reach this subscriber."""
        self.calls["delivery.dropped"] += 1
        self._open.pop((message.id, client.client_id), None)

    def on_memory_high_water(self, held: int, budget: int, acc: None) -> None:
        """So many bytes of the memory budget are held: time to give up what can be had again."""
        self.calls["memory.high_water"] += 1

    # -- clients: those with a verdict or a list may change it -----------------------------------

    def on_client_connect(self, client: ClientInfo, properties: Properties) -> HookResult:
        """CONNECT came; OK(AuthError(...)) refuses. A Deferred may be given back here."""
        self.calls["client.connect"] += 1
        return OK

    def on_client_authenticate(
        self, client: ClientInfo, password: bytes | None, verdict: AuthVerdict
    ) -> HookResult:
        """STOP(AUTH_OK) lets it in, STOP(AuthError(...)) does not, OK asks the chain."""
        self.calls["client.authenticate"] += 1
        return OK

    def on_client_connack(
        self, client: ClientInfo, reason_code: int, properties: Properties
    ) -> HookResult:
        """CONNACK goes out; OK({...}) gives it other properties."""
        self.calls["client.connack"] += 1
        return OK

    def on_client_connected(self, client: ClientInfo, acc: None) -> None:
        """It is connected: a good place to greet it, or to subscribe for it."""
        self.calls["client.connected"] += 1

    def on_client_disconnected(self, client: ClientInfo, reason: str, acc: None) -> None:
        """Its connection is over."""
        self.calls["client.disconnected"] += 1

    def on_client_authorize(
        self, client: ClientInfo, action: Action, topic: str, verdict: Verdict
    ) -> HookResult:
        """STOP(Verdict.ALLOW) or STOP(Verdict.DENY) decides, OK asks the rules."""
        self.calls["client.authorize"] += 1
        return OK

    def on_client_denied(self, client: ClientInfo, action: Action, topic: str, acc: None) -> None:
        """It may not; once per decision, not per message."""
        self.calls["client.denied"] += 1

    def on_client_subscribe(
        self, client: ClientInfo, properties: Properties, subscriptions: list[Subscription]
    ) -> HookResult:
        """SUBSCRIBE came; OK([...]), of the same length, subscribes to something else."""
        self.calls["client.subscribe"] += 1
        return OK

    def on_client_subscribe_after(
        self, client: ClientInfo, subscriptions: list[Subscription]
    ) -> None:
        """These were granted."""
        self.calls["client.subscribe.after"] += 1

    def on_client_unsubscribe(
        self, client: ClientInfo, properties: Properties, topic_filters: list[str]
    ) -> HookResult:
        """UNSUBSCRIBE came."""
        self.calls["client.unsubscribe"] += 1
        return OK

    def on_client_handle_info(
        self, client: ClientInfo, info: object, messages: list[Any]
    ) -> HookResult:
        """`handle.send_info(client_id, info)` was called; OK([...]) delivers messages to it."""
        self.calls["client.handle_info"] += 1
        return OK

    # -- sessions: they may outlive the connection -----------------------------------------------

    def on_session_created(self, client: ClientInfo, acc: None) -> None:
        """A new session."""
        self.calls["session.created"] += 1

    def on_session_resumed(self, client: ClientInfo, acc: None) -> None:
        """A client came back to its session."""
        self.calls["session.resumed"] += 1

    def on_session_subscribed(
        self, client: ClientInfo, subscription: Subscription, acc: None
    ) -> None:
        """A subscription was added or replaced."""
        self.calls["session.subscribed"] += 1

    def on_session_unsubscribed(self, client: ClientInfo, topic_filter: str, acc: None) -> None:
        """A subscription is gone."""
        self.calls["session.unsubscribed"] += 1

    def on_session_disconnected(self, client: ClientInfo, acc: None) -> None:
        """The session waits for its client."""
        self.calls["session.disconnected"] += 1

    def on_session_discarded(self, client: ClientInfo, acc: None) -> None:
        """A clean start threw it away."""
        self.calls["session.discarded"] += 1

    def on_session_takenover(self, client: ClientInfo, acc: None) -> None:
        """Another connection has it now."""
        self.calls["session.takenover"] += 1

    def on_session_terminated(self, client: ClientInfo, reason: str, acc: None) -> None:
        """It has ended, for good."""
        self.calls["session.terminated"] += 1
