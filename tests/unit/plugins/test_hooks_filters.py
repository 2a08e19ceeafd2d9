"""Filters of callbacks: which messages and clients they see, and what the broker is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from mqttd.broker.hooks.points import POINTS, Point
from mqttd.codec.topic import match
from mqttd.plugins.calls import hooks as module
from mqttd.plugins.calls.budget import QUARANTINED, Budget, Policy
from mqttd.plugins.calls.filters import HookFilter, hook_filter
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.ground.message import Message
from mqttd.testing import MemoryBroker
from mqttd.types import OK, STOP, Action, ClientInfo, HookError, Verdict
from tests.unit.codec.strategies import topic_filters, topic_names
from tests.unit.plugins.conftest import Node

PUBLISH = "message.publish"
WITH_A_MESSAGE = [name for name, point in POINTS.items() if point.has_message]
WITH_A_CLIENT = [name for name, point in POINTS.items() if point.has_client]


def client(client_id: str) -> ClientInfo:
    return ClientInfo(client_id, None, "127.0.0.1", 1, "tcp", 5)


def message(topic: str, client_id: str = "") -> Message:
    return Message(1, topic, b"", client_id=client_id)


def run(hooks: Hooks, point: str, acc: object, who: ClientInfo | None = None) -> Any:
    """Run a point with as many arguments as it has."""
    args: list[object] = [None] * len(POINTS[point].args)
    if args:
        args[0] = who
    if POINTS[point].waits:
        return hooks.ask_hooks(point, args, acc)
    return hooks.run_hooks(point, args, acc)


def test_the_points_that_carry_a_message_and_those_that_carry_a_client() -> None:
    assert WITH_A_MESSAGE == [
        "message.publish", "message.delivered", "message.acked", "message.nack",
        "message.dropped", "delivery.completed", "delivery.dropped",
    ]  # fmt: skip
    assert set(POINTS) - set(WITH_A_CLIENT) == {PUBLISH, "memory.high_water"}


@pytest.mark.parametrize("point", WITH_A_MESSAGE)
def test_a_topic_filter_chooses_messages_at_each_point_that_has_one(point: str) -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.hook(point, lambda *args: seen.append(args[-1].topic), topic_filter=["a/#", "b/+/c"])
    for topic in ("a", "a/b", "b/x/c", "b/c", "c", "$SYS/a"):
        assert run(hooks, point, message(topic), client("x"))[0] is OK
    assert seen == ["a", "a/b", "b/x/c"]


@pytest.mark.parametrize("point", WITH_A_CLIENT)
def test_a_client_filter_chooses_clients_at_each_point_that_has_one(point: str) -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.hook(point, lambda *args: seen.append(args[0].client_id), client=["pump-*", "valve"])
    for name in ("pump-", "pump-1", "pump", "valve", "valve2", "Valve"):
        run(hooks, point, message("a", "pump-of-the-publisher"), client(name))
    assert seen == ["pump-", "pump-1", "valve"]


@pytest.mark.parametrize("point", [PUBLISH, "message.dropped"])
def test_without_a_client_the_publisher_is_meant(point: str) -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.hook(point, lambda *args: seen.append(args[-1].client_id), client="pump-*")
    for name in ("pump-1", "valve", ""):
        run(hooks, point, message("a", name))
    assert seen == ["pump-1"]


def test_both_filters_must_fit() -> None:
    hooks, seen = Hooks(), list[tuple[str, str]]()
    hooks.hook(
        "message.delivered",
        lambda who, acc: seen.append((who.client_id, acc.topic)),
        topic_filter="a/#",
        client="x",
    )
    for name in ("x", "y"):
        for topic in ("a/1", "b/1"):
            run(hooks, "message.delivered", message(topic), client(name))
    assert seen == [("x", "a/1")]


def test_a_topic_is_taken_as_the_callback_before_has_left_it() -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.hook(PUBLISH, lambda acc: OK(acc.replace(topic="b/1")), topic_filter="a/+")
    hooks.hook(PUBLISH, lambda acc: seen.append(acc.topic), topic_filter="b/+")
    for topic in ("a/1", "b/2", "c/3"):
        hooks.run_hooks(PUBLISH, (), message(topic))
    assert seen == ["b/1", "b/2"]


@pytest.mark.parametrize("left", [None, 0x87, "a/1", object()])
def test_what_is_no_message_fits_no_filter(left: object) -> None:
    hooks, seen = Hooks(), list[object]()
    hooks.hook(PUBLISH, lambda acc: OK(left))
    hooks.hook(PUBLISH, seen.append, topic_filter="#")
    hooks.hook(PUBLISH, lambda acc: seen.append(acc), client="*")
    assert hooks.run_hooks(PUBLISH, (), message("a/1"))[1] is left
    assert hooks.run_hooks("client.connected", ()) == (OK, None)
    assert seen == []


def test_a_callback_that_is_passed_over_is_neither_called_nor_counted() -> None:
    hooks, owner = Hooks(), Budget("bad")
    hooks.hook(PUBLISH, lambda acc: 1 / 0, owner=owner, topic_filter="a/#")
    assert hooks.run_hooks(PUBLISH, (), "same") == (OK, "same")
    hooks.run_hooks(PUBLISH, (), message("b"))
    assert (owner.calls, owner.errors) == (0, 0)
    hooks.run_hooks(PUBLISH, (), message("a/b"))
    assert (owner.calls, owner.errors) == (1, 1)
    assert [entry.errors for entry in hooks.lookup(PUBLISH)] == [1]


def test_a_plugin_that_refuses_in_quarantine_refuses_its_own_corner() -> None:
    hooks, owner = Hooks(), Budget("bad", "deny", error_limit=1)
    hooks.hook(PUBLISH, lambda acc: 1 / 0, owner=owner, topic_filter="a/#")
    hooks.run_hooks(PUBLISH, (), message("a"))
    assert owner.state == QUARANTINED
    assert hooks.run_hooks(PUBLISH, (), message("a")) == (STOP, None)
    other = message("b")
    assert hooks.run_hooks(PUBLISH, (), other) == (OK, other)
    assert hooks.topic_filters(PUBLISH) == ["a/#"]


# -- what is refused


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a/#/b",
        "a+",
        "#a",
        "$share/g/a",
        "$queue/a",
        "a\0",
        [],
        ["a", "b/#/c"],
        [7],
    ],
)
def test_no_valid_topic_filter(topic_filter: Any) -> None:
    hooks = Hooks()
    with pytest.raises(HookError, match="topic_filter = "):
        hooks.hook(PUBLISH, print, topic_filter=topic_filter)
    assert not hooks.listening(PUBLISH) and hooks.budgets() == []


@pytest.mark.parametrize("pattern", ["", "*a", "a*b", "**", [], ["a", ""], [None]])
def test_no_valid_client(pattern: Any) -> None:
    with pytest.raises(HookError, match="client = "):
        Hooks().hook(PUBLISH, print, client=pattern)


@pytest.mark.parametrize("point", [name for name in POINTS if not POINTS[name].has_topic])
def test_a_topic_filter_where_there_is_no_message(point: str) -> None:
    with pytest.raises(HookError, match=f"topic_filter = 'a/#': {point} is told of no message"):
        Hooks().hook(point, print, topic_filter="a/#")


def test_a_point_that_has_neither() -> None:
    point = Point("broker.started", "it has started", (), "None")
    assert hook_filter(point, None, None) is None
    with pytest.raises(HookError, match=r"client = 'a': broker\.started is told of no client"):
        hook_filter(point, None, "a")


@given(names=topic_names(), filters=topic_filters(shared=False))
def test_it_matches_as_the_codec_does(names: str, filters: str) -> None:
    assert HookFilter((filters,), ()).takes((), message(names)) is match(names, filters)


# -- what the broker is told


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """`time.monotonic` of the hooks: its only item."""
    now = [1000.0]
    for name in ("mqttd.plugins.calls.account", "mqttd.plugins.calls.hooks"):
        monkeypatch.setattr(f"{name}.monotonic", lambda: now[0])
    return now


def watched(hooks: Hooks) -> list[tuple[str, bool, list[str] | None]]:
    told: list[tuple[str, bool, list[str] | None]] = []
    hooks.listeners_changed.append(
        lambda point, listening: told.append((point, listening, hooks.topic_filters(point)))
    )
    return told


def test_the_broker_is_told_of_each_change_of_the_filters() -> None:
    def second(acc: object) -> None: ...

    hooks = Hooks()
    told = watched(hooks)
    assert hooks.topic_filters(PUBLISH) == []
    hooks.hook(PUBLISH, print, topic_filter="a/#")
    hooks.hook(PUBLISH, second, topic_filter=["b", "a/#"])
    hooks.hook(PUBLISH, repr)
    hooks.unhook(PUBLISH, repr)
    hooks.unhook(PUBLISH, print)
    hooks.unhook(PUBLISH, second)
    assert [each[1:] for each in told] == [
        (True, ["a/#"]),
        (True, ["a/#", "b"]),
        (True, None),
        (True, ["a/#", "b"]),
        (True, ["b", "a/#"]),
        (False, []),
    ]
    with pytest.raises(HookError):
        hooks.topic_filters("message.published")


def test_who_is_for_some_clients_wants_every_topic() -> None:
    hooks = Hooks()
    hooks.hook(PUBLISH, print, client="pump-*")
    assert hooks.topic_filters(PUBLISH) is None


@pytest.mark.parametrize("policy,kept", [("ignore", []), ("deny", ["a/#"])])
def test_in_quarantine_it_wants_nothing_unless_it_refuses(
    time: list[float], policy: Policy, kept: list[str]
) -> None:
    hooks, owner = Hooks(), Budget("bad", policy, error_limit=1, retry_after=30)
    broken = [True]

    def callback(*args: object) -> None:
        if broken:
            raise KeyError("oops")

    for point in (PUBLISH, "message.delivered"):
        hooks.hook(point, callback, owner=owner, topic_filter="a/#")
    told = watched(hooks)
    hooks.run_hooks(PUBLISH, (), message("a/1"))
    assert owner.state == QUARANTINED
    assert hooks.topic_filters(PUBLISH) == kept
    assert hooks.topic_filters("message.delivered") == []  # there is nothing to refuse
    assert ("message.delivered", True, []) in told and len(told) == (1 if kept else 2)
    hooks.tick()
    assert hooks.topic_filters("message.delivered") == []
    time[0] += 30
    hooks.tick()
    assert hooks.topic_filters("message.delivered") == hooks.topic_filters(PUBLISH) == ["a/#"]
    hooks.run_hooks(PUBLISH, (), message("a/1"))  # the trial fails
    assert hooks.topic_filters("message.delivered") == []
    time[0] += 60
    hooks.tick()
    broken.clear()
    hooks.run_hooks(PUBLISH, (), message("a/1"))
    assert not owner.shut and hooks.topic_filters("message.delivered") == ["a/#"]
    assert told[-1] == ("message.delivered", True, ["a/#"])


def test_an_operator_ends_the_quarantine_and_unloading_does(time: list[float]) -> None:
    hooks, owner = Hooks(), Budget("bad", error_limit=1)

    def callback(acc: object) -> None:
        raise KeyError("oops")

    hooks.hook(PUBLISH, callback, owner=owner, topic_filter="a")
    hooks.run_hooks(PUBLISH, (), message("a"))
    assert hooks.topic_filters(PUBLISH) == []
    owner.readmit()
    assert hooks.topic_filters(PUBLISH) == ["a"]
    hooks.run_hooks(PUBLISH, (), message("a"))
    hooks.unhook(PUBLISH, callback)
    assert hooks._resting == set()
    assert module.monotonic() == time[0]


# -- in a broker


def test_a_hook_on_a_corner_of_the_tree_sees_that_corner(node: MemoryBroker) -> None:
    seen: list[tuple[str, ...]] = []
    node.hook(PUBLISH, lambda acc: seen.append(("in", acc.topic)), topic_filter="a/#")
    node.hook(
        "message.delivered",
        lambda who, acc: seen.append((who.client_id, acc.topic)),
        topic_filter="+/1",
        client="reader-*",
    )
    for name in ("reader-1", "other"):
        node.connect(name).subscribe("#", qos=1)
    writer = node.connect("writer")
    for qos in (0, 1, 2):
        seen.clear()
        for topic in ("a/1", "b/1", "b/2"):
            writer.publish(topic, b"x", qos)
        assert seen == [("in", "a/1"), ("reader-1", "a/1"), ("reader-1", "b/1")]


def test_a_plugins_filters_go_with_it(node: Node) -> None:
    node.write(
        "corner",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", self.publish, topic_filter=["a/#", "b"], client="x*")

            def publish(self, message):
                return STOP(None)

            def unload(self):
                pass
        """,
    )
    handle = node.load("corner")
    assert node.hooks.topic_filters(PUBLISH) == ["a/#", "b"]
    (hook,) = handle.describe()["hooks"]
    assert (hook["topic_filter"], hook["client"]) == (["a/#", "b"], ["x*"])
    handle.revoke()
    assert node.hooks.topic_filters(PUBLISH) == []


Answer = Callable[[Any], Any]


@pytest.mark.parametrize("answer", [lambda acc: OK, lambda acc: STOP(None)])
def test_a_filter_chooses_as_a_comparison_in_the_callback_does(answer: Answer) -> None:
    with_filter, without = Hooks(), Hooks()
    with_filter.hook(PUBLISH, answer, topic_filter="a/+")
    without.hook(PUBLISH, lambda acc: answer(acc) if match(acc.topic, "a/+") else None)
    for topic in ("a", "a/", "a/b", "a/b/c", "b/a"):
        given = message(topic)
        assert with_filter.run_hooks(PUBLISH, (), given) == without.run_hooks(PUBLISH, (), given)


@pytest.mark.parametrize("point", ["client.authorize", "client.denied"])
def test_where_a_right_is_asked_for_the_topic_is_the_one_in_question(point: str) -> None:
    hooks, seen = Hooks(), list[str]()
    hooks.hook(point, lambda who, action, topic, *acc: seen.append(topic), topic_filter="$own/#")
    for kind, topic in (
        ("publish", "$own/a"), ("publish", "own/a"), ("publish", "$own"), ("publish", "$owner"),
        ("subscribe", "$own/+/b"), ("subscribe", "#"), ("subscribe", "+/a"),
        ("subscribe", "$own/#"),
    ):  # fmt: skip
        hooks.run_hooks(point, (client("x"), Action(kind, 0, False), topic), Verdict.IGNORE)
    assert seen == ["$own/a", "$own", "$own/+/b", "$own/#"]
