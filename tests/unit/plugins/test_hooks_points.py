"""Every hook point of the broker: what a callback gets, what its answer does, what STOP means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.broker.hooks.points import POINTS
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from mqttd.plugins.calls.budget import Budget
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.types import (
    AUTH_IGNORE,
    OK,
    STOP,
    Action,
    AuthError,
    AuthIgnore,
    AuthOk,
    ClientInfo,
    HookResult,
    Verdict,
)
from tests.support.memory import MemoryBroker, MemoryClient

Node = MemoryBroker


def node() -> Node:
    settings = Settings()
    settings.mqueue_max_length = 2
    made = MemoryBroker(settings)
    made.hooks.clock = Clock()
    made.broker.access_changed()
    return made


# -- how each point comes about


def connects(node: Node) -> MemoryClient:
    return node.connect("alice", version=5, properties={prop.SESSION_EXPIRY_INTERVAL: 60})


def publishes(node: Node) -> None:
    connects(node).send(Publish("a/b", b"x", 1, packet_id=7))


def subscribes(node: Node) -> MemoryClient:
    alice = connects(node)
    alice.send(Subscribe(1, [Subscription("a/#", 2)]))
    alice.take()
    return alice


def unsubscribes(node: Node) -> None:
    subscribes(node).send(Unsubscribe(2, ["a/#"]))


def receives(node: Node, qos: int) -> MemoryClient:
    alice = subscribes(node)
    alice.send(Publish("a/b", b"x", qos, packet_id=9 if qos else 0))
    return alice


def acknowledges(node: Node) -> None:
    alice = receives(node, 1)
    alice.send(Puback(alice.published()[0].packet_id))


def refuses(node: Node) -> None:
    alice = receives(node, 1)
    alice.send(Puback(alice.published()[0].packet_id, 0x97))


def completes(node: Node) -> None:
    alice = receives(node, 2)
    packet_id = alice.published()[0].packet_id
    alice.send(Pubrec(packet_id))
    alice.send(Pubcomp(packet_id))


def overflows(node: Node) -> None:
    subscribes(node).drop()
    bob = node.connect("bob")
    for i in range(4):
        bob.send(Publish("a/b", b"x", 1, packet_id=i + 1))


def is_told(node: Node) -> MemoryClient:
    alice = connects(node)
    assert node.broker.send_info("alice", {"paid": True})
    node.run_soon()
    return alice


def is_denied(node: Node) -> None:
    node.hooks.hook("client.authorize", lambda *args: STOP(Verdict.DENY))
    publishes(node)


def fills_the_memory(node: Node) -> None:
    node.settings.memory_budget = 2600
    node.broker.settings_changed()
    subscribes(node)


HOW: dict[str, Callable[[Node], object]] = {
    "client.connect": connects,
    "client.connack": connects,
    "client.connected": connects,
    "client.disconnected": lambda node: connects(node).drop(),
    "client.authenticate": connects,
    "client.authorize": publishes,
    "client.denied": is_denied,
    "client.subscribe": subscribes,
    "client.subscribe.after": subscribes,
    "client.unsubscribe": unsubscribes,
    "client.handle_info": is_told,
    "session.created": connects,
    "session.subscribed": subscribes,
    "session.unsubscribed": unsubscribes,
    "session.resumed": lambda node: (connects(node).drop(), node.connect("alice", 5, clean=False)),
    "session.disconnected": lambda node: connects(node).drop(),
    "session.discarded": lambda node: (connects(node), connects(node)),
    "session.takenover": lambda node: (connects(node), connects(node)),
    "session.terminated": lambda node: node.connect("bob").drop(),
    "message.publish": publishes,
    "message.delivered": lambda node: receives(node, 1),
    "message.acked": acknowledges,
    "message.nack": refuses,
    "message.dropped": publishes,
    "delivery.completed": completes,
    "delivery.dropped": overflows,
    "memory.high_water": fills_the_memory,
}

TYPES: dict[str, Any] = {
    "ClientInfo": ClientInfo,
    "ClientInfo | None": (ClientInfo, type(None)),
    "Action": Action,
    "Subscription": Subscription,
    "bytes | None": (bytes, type(None)),
    "dict | None": (dict, type(None)),
    "int": int,
    "object": object,
    "str": str,
}

#: The first accumulator of each point that is not just told.
FIRST: dict[str, Any] = {
    "client.connect": (dict, type(None)),
    "client.connack": (dict, type(None)),
    "client.authenticate": AuthIgnore,
    "client.authorize": Verdict,
    "client.subscribe": list,
    "client.subscribe.after": list,
    "client.unsubscribe": list,
    "client.handle_info": list,
    **{name: Message for name in POINTS if name.startswith(("message.", "delivery."))},
}


@pytest.mark.parametrize("point", list(POINTS))
def test_each_point_is_called_with_the_arguments_it_documents(point: str) -> None:
    made, calls = node(), []
    made.hooks.hook(point, lambda *args: calls.append(args), init_args=("mine",))
    HOW[point](made)
    assert calls, f"{point} was not called"
    assert not made.hooks.errors
    expected = [annotation.partition(": ")[2] for annotation in POINTS[point].args]
    for *args, acc, mine in calls:
        assert mine == "mine"
        assert len(args) == len(expected)
        for value, annotation in zip(args, expected, strict=True):
            assert isinstance(value, TYPES[annotation]), annotation
        assert isinstance(acc, FIRST.get(point, type(None)))


@pytest.mark.parametrize("answer,goes_on", [(OK, True), (STOP, False)])
@pytest.mark.parametrize("point", list(POINTS))
def test_at_each_point_stop_keeps_later_callbacks_out_and_ok_hands_on(
    point: str, answer: HookResult, goes_on: bool
) -> None:
    made, ran, accs = node(), [], []

    def first(*args: Any) -> HookResult:
        ran.append("first")
        accs.append(args[-1])
        return answer(args[-1])

    def second(*args: Any) -> None:
        ran.append("second")
        assert args[-1] is accs[-1]

    made.hooks.hook(point, second)
    made.hooks.hook(point, first, priority=1)
    HOW[point](made)
    assert ran[:2] == ["first", "second"] if goes_on else set(ran) == {"first"}
    assert not made.hooks.errors


def test_no_point_is_left_out() -> None:
    assert set(HOW) == set(POINTS)


# -- what the accumulator does


def test_client_connect_may_change_what_the_client_asked_for() -> None:
    made = node()
    made.hooks.hook(
        "client.connect", lambda client, asked: OK({**asked, prop.SESSION_EXPIRY_INTERVAL: 5})
    )
    connects(made)
    session = made.session("alice")
    assert session is not None and session.expiry_interval == 5


def test_client_connect_may_refuse_before_anybody_is_asked_for_a_password() -> None:
    made, asked = node(), []
    made.hooks.hook("client.connect", lambda client, acc: STOP(AuthError("closed for today", 0x9F)))
    made.hooks.hook("client.authenticate", lambda *args: asked.append(args))
    assert connects(made).connack.reason_code == 0x9F  # type: ignore[union-attr]
    assert not asked
    (event,) = [fields for event, fields in made.events if event == "connect refused"]
    assert event["detail"] == "closed for today"


def test_a_reason_code_that_no_connack_has_becomes_not_authorized() -> None:
    made = node()
    made.hooks.hook("client.connect", lambda client, acc: STOP(AuthError("no", 0)))
    assert connects(made).connack.reason_code == 0x87  # type: ignore[union-attr]


def test_client_connack_writes_properties_of_acceptance_and_refusal() -> None:
    made, codes = node(), []

    def name(client: ClientInfo, code: int, properties: Any) -> HookResult:
        codes.append((client.client_id, code))
        return OK({**(properties or {}), prop.REASON_STRING: "hello"})

    made.hooks.hook("client.connack", name)
    assert connects(made).connack.properties[prop.REASON_STRING] == "hello"  # type: ignore
    made.hooks.hook("client.authenticate", lambda client, password, acc: STOP(AuthError("no")))
    refused = connects(made).connack
    assert refused is not None and refused.reason_code == 0x86
    assert refused.properties == {prop.REASON_STRING: "hello"}
    made.connect("carol", version=4)
    assert codes == [("alice", 0), ("alice", 0x86), ("carol", 0x86)]


def test_properties_that_cannot_be_written_are_not() -> None:
    made = node()
    made.hooks.hook("client.connack", lambda client, code, acc: OK({prop.REASON_STRING: 7}))
    connack = connects(made).connack
    assert connack is not None and prop.REASON_STRING not in connack.properties
    assert made.hooks.errors == {"client.connack": 1}


def test_client_authenticate_decides_or_leaves_it_to_the_chain() -> None:
    for verdict, code in ((AuthOk(True), 0), (AuthError("no", 0x8A), 0x8A), (AUTH_IGNORE, 0)):
        made = node()
        made.hooks.hook(
            "client.authenticate",
            lambda client, password, acc: STOP(verdict),  # noqa: B023
        )
        alice = connects(made)
        assert alice.connack is not None and alice.connack.reason_code == code
        if isinstance(verdict, AuthOk):
            assert made.broker.client_of(alice.session).superuser


@pytest.mark.parametrize(
    "verdict,code", [(Verdict.ALLOW, 0x10), (Verdict.DENY, 0x87), (Verdict.IGNORE, 0x10)]
)
def test_client_authorize_decides_or_leaves_it_to_the_chain(verdict: Verdict, code: int) -> None:
    made = node()
    made.access.denied = {"a/b"} if verdict is Verdict.ALLOW else set()
    made.hooks.hook("client.authorize", lambda client, action, topic, acc: STOP(verdict))
    alice = connects(made)
    alice.send(Publish("a/b", b"", 1, packet_id=1))
    assert [packet.reason_code for packet in alice.take()] == [code]  # type: ignore[union-attr]


def test_client_subscribe_may_change_filters_but_not_their_number() -> None:
    made = node()
    answers = [[Subscription("home/alice/a/#", 1)], [], ["a/#"], [Subscription("a/#/b", 0)], None]
    for i, answer in enumerate(answers):

        def change(client: ClientInfo, properties: Any, acc: Any) -> HookResult:
            return OK(answer)  # noqa: B023

        made.hooks.hook("client.subscribe", change)
        alice = subscribes(made)
        made.hooks.unhook("client.subscribe", change)
        held = alice.session.subscriptions
        assert list(held or ()) == (["home/alice/a/#"] if i == 0 else ["a/#"])
        alice.send(Disconnect(0, {prop.SESSION_EXPIRY_INTERVAL: 0}))
    assert made.hooks.errors == {"client.subscribe": 4}


def test_long_lists_of_filters_are_asked_about_bit_by_bit() -> None:
    """All at once were more than a call may take: ten such packets quarantined a plugin."""
    made = node()
    asked: dict[str, list[int]] = {"client.subscribe": [], "client.unsubscribe": []}

    def subscribing(client: ClientInfo, properties: Any, acc: Any) -> HookResult:
        asked["client.subscribe"].append(len(acc))
        return OK([Subscription(f"new/{each.topic_filter}", each.qos) for each in acc])

    def unsubscribing(client: ClientInfo, properties: Any, acc: Any) -> HookResult:
        asked["client.unsubscribe"].append(len(acc))
        return OK([f"new/{each}" for each in acc])

    made.hooks.hook("client.subscribe", subscribing)
    made.hooks.hook("client.unsubscribe", unsubscribing)
    alice = connects(made)
    filters = [f"{number}" for number in range(1001)]
    alice.send(Subscribe(1, [Subscription(each, 1) for each in filters]))
    made.run_soon()
    (suback,) = alice.take()
    assert isinstance(suback, Suback) and suback.reason_codes == [1] * 1001
    assert list(alice.session.subscriptions or ()) == [f"new/{each}" for each in filters]
    alice.send(Unsubscribe(2, filters))
    made.run_soon()
    assert not alice.session.subscriptions
    assert set(asked) == {"client.subscribe", "client.unsubscribe"}
    for counts in asked.values():
        assert sum(counts) == 1001 and max(counts) <= 200


def test_client_unsubscribe_may_change_the_filters() -> None:
    made = node()
    made.hooks.hook("client.unsubscribe", lambda client, properties, acc: OK(["b/#"]))
    unsubscribes(made)
    assert list(made.session("alice").subscriptions or ()) == ["a/#"]  # type: ignore[union-attr]


def test_client_handle_info_answers_with_messages_for_the_client() -> None:
    made = node()

    def answer(client: ClientInfo, info: object, messages: list[Message]) -> HookResult:
        return OK([*messages, Message(1, f"to/{client.client_id}", repr(info).encode(), 1)])

    made.hooks.hook("client.handle_info", answer)
    (got,) = is_told(made).published()
    assert (got.topic, got.payload, got.qos) == ("to/alice", b"{'paid': True}", 1)
    assert not made.broker.send_info("nobody", 1)


def test_only_messages_that_can_be_sent_are_taken_from_client_handle_info() -> None:
    made = node()
    bad = [Message(1, "a/#", b""), Message(1, "", b""), "text", None, Message(1, "good", b"")]
    made.hooks.hook("client.handle_info", lambda client, info, acc: OK(bad))
    assert [got.topic for got in is_told(made).published()] == ["good"]


def test_message_publish_may_change_and_drop() -> None:
    made = node()
    made.hooks.hook("message.publish", lambda message: OK(message.replace(topic="a/changed")))
    alice = receives(made, 0)
    assert [got.topic for got in alice.published()] == ["a/changed"]
    made.hooks.hook("message.publish", lambda message: STOP(None), priority=1)
    alice.send(Publish("a/b", b""))
    assert alice.published() == []
    assert made.broker.metrics.dropped_hook == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.replace(topic="a/#"),
        lambda message: message.replace(properties={prop.RESPONSE_TOPIC: 7}),
        lambda message: "no message",
    ],
)
def test_what_cannot_be_sent_is_dropped_and_charged_to_the_callback(change: Any) -> None:
    made = node()
    made.hooks.hook("message.publish", lambda message: OK(change(message)))
    alice = receives(made, 1)
    assert alice.published() == []
    assert not alice.closed
    assert made.hooks.errors == {"message.publish": 1}
    assert made.hooks.budgets()[0].errors == 1


def test_messages_of_the_api_go_through_message_publish_and_those_of_sys_do_not() -> None:
    made = node()
    made.hooks.hook("message.publish", lambda message: OK(message.replace(payload=b"changed")))
    alice = subscribes(made)
    made.broker.publish_text("a/b", b"x")
    assert [got.payload for got in alice.published()] == [b"changed"]
    alice.send(Subscribe(2, [Subscription("$SYS/#", 0)]))
    alice.take()
    made.broker.publish_text("$SYS/uptime", b"x")
    assert [got.payload for got in alice.published()] == [b"x"]


def test_a_negative_acknowledgement_is_no_acknowledgement() -> None:
    made, told = node(), []
    for point in ("message.acked", "message.nack", "delivery.completed"):
        made.hooks.hook(point, lambda *args, point=point: told.append((point, args[1:-1])))
    refuses(made)
    alice = receives(made, 2)
    alice.send(Pubrec(alice.published()[0].packet_id, 0x83))
    assert told == [("message.nack", (0x97,)), ("message.nack", (0x83,))]
    assert not alice.session.inflight


def test_publish_delivery_and_acknowledgement_are_tied_together_by_the_message_id() -> None:
    made, told = node(), []
    points = ("message.publish", "message.delivered", "message.acked", "delivery.completed")
    for point in points:
        made.hooks.hook(point, lambda *args, point=point: told.append((point, args[-1].id)))
    completes(made)
    assert [point for point, _ in told] == list(points)
    assert len({message_id for _, message_id in told}) == 1
    assert made.broker.completing == {}


@pytest.mark.parametrize(
    "point,how,reason",
    [
        ("message.dropped", publishes, "no_subscriber"),
        ("delivery.dropped", overflows, "queue_full"),
    ],
)
def test_what_is_dropped_says_why(point: str, how: Callable[[Node], object], reason: str) -> None:
    made, why = node(), []
    made.hooks.hook(point, lambda client, reason, message: why.append(reason))
    how(made)
    assert set(why) == {reason}


def test_a_publish_without_the_right_is_told_as_dropped() -> None:
    made, why = node(), []
    made.access.denied = {"a/b"}
    made.hooks.hook("message.dropped", lambda client, reason, message: why.append(reason))
    publishes(made)
    assert why == ["denied"]


def test_what_an_ending_session_still_held_is_told_as_dropped() -> None:
    made, why = node(), []
    made.hooks.hook("delivery.dropped", lambda client, reason, message: why.append(reason))
    overflows(made)
    made.advance(61_000)
    assert why.count("session_ended") == 2


# -- points that wait


@pytest.mark.parametrize("point", [name for name, point in POINTS.items() if point.waits])
def test_a_point_that_waits_holds_the_connection_until_the_deferred_fires(point: str) -> None:
    made, waiting = node(), Deferred()
    made.hooks.hook(point, lambda *args: waiting)
    alice = made.client(5)
    alice.send(
        Connect("alice", version=5), Subscribe(1, [Subscription("a/#", 0)])
    )  # what comes meanwhile is kept
    assert alice.take() == []
    waiting.callback(OK)
    connack, suback = alice.take()
    assert connack.reason_code == 0  # type: ignore[union-attr]
    assert isinstance(suback, Suback)
    assert not made.hooks.errors


@pytest.mark.parametrize("point", [name for name, point in POINTS.items() if point.waits])
@pytest.mark.parametrize("policy,code", [("ignore", 0), ("deny", 0x88)])
def test_a_deferred_that_never_fires_is_answered_by_the_policy(
    point: str, policy: Any, code: int
) -> None:
    made, owner = node(), Budget("silent", policy)
    made.hooks.hook(point, lambda *args: Deferred(), owner=owner)
    alice = made.client(5)
    alice.send(Connect("alice", version=5))
    made.hooks.clock.advance(owner.deadline - 0.1)
    assert alice.take() == []
    assert owner.waiting == 1
    made.hooks.clock.advance(0.2)
    (connack,) = alice.take()
    assert connack.reason_code == code  # type: ignore[union-attr]
    assert (owner.waiting, owner.faults) == (0, {"late": 1})


def test_a_client_that_leaves_while_hooks_wait_is_forgotten() -> None:
    made, waiting = node(), Deferred()
    made.hooks.hook("client.connect", lambda *args: waiting)
    alice = made.client(5)
    alice.send(Connect("alice", version=5))
    alice.drop()
    waiting.callback(OK)
    assert made.session("alice") is None


@pytest.mark.parametrize("point", [name for name, point in POINTS.items() if not point.waits])
def test_a_deferred_where_none_may_wait_is_an_error_of_the_callback(point: str) -> None:
    made, cancelled = node(), []
    made.hooks.hook(point, lambda *args: Deferred(cancelled.append))
    HOW[point](made)
    assert made.hooks.errors[point] == len(cancelled) > 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_has_the_id_of_its_publish_in_any_shape(version: int, qos: int) -> None:
    node = MemoryBroker()
    ids: dict[str, list[int]] = {"message.publish": [], "message.delivered": []}
    node.hooks.hook("message.publish", lambda message: ids["message.publish"].append(message.id))
    node.hooks.hook(
        "message.delivered", lambda client, message: ids["message.delivered"].append(message.id)
    )
    node.connect("p", version=5).send(Publish("t", b"x", 2, True, False, 1, None))
    for each, identifiers in (("a", None), ("b", {prop.SUBSCRIPTION_IDENTIFIER: 7})):
        client = node.connect(each, version=version)
        client.send(Subscribe(1, [Subscription("t", qos)], identifiers if version == 5 else None))
    assert ids["message.delivered"] == 2 * ids["message.publish"]
