"""The hook points: where callbacks may look or change, what they get, and what STOP means.

The broker runs them, plugins hook them; `docs/reference/hooks.md` is written from this table. Who
runs the callbacks is behind `mqttd.broker.ground.seams.HookChain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["POINTS", "Point"]

CLIENT_CONNECT: Final = "client.connect"
CLIENT_CONNACK: Final = "client.connack"
CLIENT_CONNECTED: Final = "client.connected"
CLIENT_DISCONNECTED: Final = "client.disconnected"
CLIENT_AUTHENTICATE: Final = "client.authenticate"
CLIENT_AUTHORIZE: Final = "client.authorize"
CLIENT_DENIED: Final = "client.denied"
CLIENT_SUBSCRIBE: Final = "client.subscribe"
CLIENT_SUBSCRIBE_AFTER: Final = "client.subscribe.after"
CLIENT_UNSUBSCRIBE: Final = "client.unsubscribe"
CLIENT_HANDLE_INFO: Final = "client.handle_info"
SESSION_CREATED: Final = "session.created"
SESSION_SUBSCRIBED: Final = "session.subscribed"
SESSION_UNSUBSCRIBED: Final = "session.unsubscribed"
SESSION_RESUMED: Final = "session.resumed"
SESSION_DISCONNECTED: Final = "session.disconnected"
SESSION_DISCARDED: Final = "session.discarded"
SESSION_TAKENOVER: Final = "session.takenover"
SESSION_TERMINATED: Final = "session.terminated"
MESSAGE_PUBLISH: Final = "message.publish"
MESSAGE_DELIVERED: Final = "message.delivered"
MESSAGE_ACKED: Final = "message.acked"
MESSAGE_NACK: Final = "message.nack"
MESSAGE_DROPPED: Final = "message.dropped"
DELIVERY_COMPLETED: Final = "delivery.completed"
DELIVERY_DROPPED: Final = "delivery.dropped"
MEMORY_HIGH_WATER: Final = "memory.high_water"


@dataclass(slots=True, frozen=True)
class Point:
    """One hook point: when it runs, what a callback gets, and what STOP means."""

    name: str
    when: str
    args: tuple[str, ...]
    acc: str
    stop: str = "later callbacks are not told"
    #: A callback may answer with a Deferred, or be a coroutine.
    waits: bool = False

    @property
    def has_message(self) -> bool:
        """Whether the accumulator is a message."""
        return self.acc.partition(";")[0] == "Message"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a callback is called with, by name: the arguments, then the accumulator."""
        names = (arg.partition(":")[0] for arg in self.args)
        return (*names, "message" if self.has_message else "acc")

    @property
    def topic_at(self) -> int:
        """Which argument is the topic that the point is asked about; -1: there is none."""
        return self.args.index("topic: str") if "topic: str" in self.args else -1

    @property
    def has_topic(self) -> bool:
        """Whether a callback can be hooked for some topics."""
        return self.has_message or self.topic_at >= 0

    @property
    def has_client(self) -> bool:
        """Whether the first argument is the client."""
        return bool(self.args) and self.args[0].startswith("client:")


_CLIENT: Final = ("client: ClientInfo",)

POINTS: Final[dict[str, Point]] = {
    point.name: point
    for point in (
        Point(
            CLIENT_CONNECT,
            "a valid CONNECT has arrived, before authentication",
            _CLIENT,
            "properties of CONNECT: dict | None; an AuthError refuses the client",
            "the accumulator is what the client has asked for, or its refusal",
            waits=True,
        ),
        Point(
            CLIENT_CONNACK,
            "before CONNACK is sent, also one that refuses a client",
            (*_CLIENT, "reason_code: int"),
            "properties of CONNACK: dict | None; MQTT 5.0 sends them",
            "the accumulator is sent as it is",
        ),
        Point(CLIENT_CONNECTED, "after CONNACK with success", _CLIENT, "None"),
        Point(
            CLIENT_DISCONNECTED, "a connected client has gone", (*_CLIENT, "reason: str"), "None"
        ),
        Point(
            CLIENT_AUTHENTICATE,
            "before the authentication chain",
            (*_CLIENT, "password: bytes | None"),
            "AuthVerdict; AUTH_IGNORE asks the chain",
            "the accumulator is the verdict",
            waits=True,
        ),
        Point(
            CLIENT_AUTHORIZE,
            "before the access-control chain; the answer is kept for this client, action and topic"
            " until access rules or hooks change",
            (*_CLIENT, "action: Action", "topic: str"),
            "Verdict; IGNORE asks the chain",
            "the accumulator is the verdict",
        ),
        Point(
            CLIENT_DENIED,
            "client.authorize or the chain has said no; once per decision, not per message",
            (*_CLIENT, "action: Action", "topic: str"),
            "None",
        ),
        Point(
            CLIENT_SUBSCRIBE,
            "a SUBSCRIBE has arrived, before the access check; 200 filters at a time",
            (*_CLIENT, "properties: dict | None"),
            "list[Subscription]",
            "the accumulator is subscribed as it is",
        ),
        Point(
            CLIENT_SUBSCRIBE_AFTER,
            "after SUBACK is decided",
            _CLIENT,
            "list[Subscription] that were granted",
        ),
        Point(
            CLIENT_UNSUBSCRIBE,
            "an UNSUBSCRIBE has arrived; 200 filters at a time",
            (*_CLIENT, "properties: dict | None"),
            "topic filters: list[str]",
            "the accumulator is unsubscribed as it is",
        ),
        Point(
            CLIENT_HANDLE_INFO,
            "`send_info` of its channel, or of the broker, was called for a connected client",
            (*_CLIENT, "info: object"),
            "list[Message] to deliver",
            "the accumulator is delivered as it is",
        ),
        Point(SESSION_CREATED, "a new session exists", _CLIENT, "None"),
        Point(
            SESSION_SUBSCRIBED,
            "a subscription was added or replaced",
            (*_CLIENT, "subscription: Subscription"),
            "None",
        ),
        Point(
            SESSION_UNSUBSCRIBED,
            "a subscription was removed",
            (*_CLIENT, "topic_filter: str"),
            "None",
        ),
        Point(SESSION_RESUMED, "a client came back to its session", _CLIENT, "None"),
        Point(SESSION_DISCONNECTED, "the session stays, its client has gone", _CLIENT, "None"),
        Point(SESSION_DISCARDED, "a clean start threw the old session away", _CLIENT, "None"),
        Point(
            SESSION_TAKENOVER,
            "another connection took the session over, here or in another process",
            _CLIENT,
            "None",
        ),
        Point(SESSION_TERMINATED, "the session has ended", (*_CLIENT, "reason: str"), "None"),
        Point(
            MESSAGE_PUBLISH,
            "a message enters the broker, before retain and routing; all but the broker's own"
            " `$SYS/`",
            (),
            "Message; None drops it, a reason code from 0x80 refuses it",
            "the accumulator is routed as it is",
        ),
        Point(MESSAGE_DELIVERED, "a message is written to a subscriber", _CLIENT, "Message"),
        Point(
            MESSAGE_ACKED, "a subscriber acknowledged: PUBACK, for QoS 2 PUBREC", _CLIENT, "Message"
        ),
        Point(
            MESSAGE_NACK,
            "a subscriber answered PUBACK or PUBREC with a reason code of 0x80 or more",
            (*_CLIENT, "reason_code: int"),
            "Message",
        ),
        Point(
            MESSAGE_DROPPED,
            "a message reached nobody: no_subscriber, hook, denied, retained_full",
            ("client: ClientInfo | None", "reason: str"),
            "Message",
        ),
        Point(
            DELIVERY_COMPLETED,
            "all steps of one delivery are done: written (QoS 0), PUBACK (1), PUBCOMP (2)",
            _CLIENT,
            "Message",
        ),
        Point(
            DELIVERY_DROPPED,
            "a message was not delivered to one subscriber, for one of the reasons in metrics.md",
            (*_CLIENT, "reason: str"),
            "Message",
        ),
        Point(
            MEMORY_HIGH_WATER,
            "85 % of `memory.budget` are held; again once it was less",
            ("held: int", "budget: int"),
            "None",
        ),
    )
}
