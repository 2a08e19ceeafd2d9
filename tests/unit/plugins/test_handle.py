"""The handle: everything a plugin gets, how it is charged, and that all of it goes at unload."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from zope.interface import Invalid, implementer
from zope.interface.verify import verifyClass, verifyObject

from mqttd.broker.ground.alarms import Alarms
from mqttd.codec.packets import Puback, Publish, Subscription
from mqttd.interfaces import IAuthenticator, IPluginHandle, IRepeating, ISubscription
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.handle.handle import Host, PluginHandle
from mqttd.testing import MemoryBroker, MemoryClient
from mqttd.types import AUTH_OK, OK, AuthVerdict, ClientInfo, HookError
from tests.unit.plugins.conftest import Node


@pytest.fixture
def handle(node: Node) -> PluginHandle:
    return new_handle(node)


def new_handle(node: MemoryBroker) -> PluginHandle:
    directory = node.directory  # type: ignore[attr-defined]
    host = Host(node.broker, node.clock)
    return PluginHandle(host, "acme", f"{directory}/data/plugins/acme", "/etc", Budget("acme"))


def test_it_fulfils_its_interface(handle: PluginHandle) -> None:
    assert verifyObject(IPluginHandle, handle)
    assert verifyClass(IPluginHandle, PluginHandle)
    assert verifyObject(IRepeating, handle.call_every(1, print))
    assert verifyObject(ISubscription, handle.subscribe("a", print))


def test_a_hook_sees_messages_until_it_is_revoked(node: Node, handle: PluginHandle) -> None:
    seen: list[str] = []
    handle.hook("message.publish", lambda message: seen.append(message.topic))
    node.publish("one")
    handle.revoke()
    node.publish("two")
    assert seen == ["one"]
    assert node.hooks.lookup("message.publish") == ()
    assert handle.budget.calls == 1


def test_only_what_is_its_own_can_be_unhooked(node: Node, handle: PluginHandle) -> None:
    def other(*seen: object) -> None: ...

    node.hooks.hook("message.publish", other)
    with pytest.raises(ValueError, match="plugin acme is not hooked"):
        handle.unhook("message.publish", other)
    with pytest.raises(HookError, match="no hook point"):
        handle.unhook("message.publsh", other)
    handle.hook("message.acked", other)
    handle.unhook("message.acked", other)
    assert not node.hooks.lookup("message.acked")
    assert node.hooks.lookup("message.publish")


def test_the_time_of_day_may_be_set_and_that_of_timers_may_not(
    node: Node, handle: PluginHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert handle.time() == node.clock.seconds()

    class Steady:
        """A reactor, which is no test's clock."""

        def seconds(self) -> float:
            return 1000.0

    handle.clock = Steady()
    monkeypatch.setattr(time, "time", lambda: 2000.0)
    assert (handle.clock.seconds(), handle.time()) == (1000.0, 2000.0)


def test_timers_run_on_time_and_end_with_the_plugin(node: Node, handle: PluginHandle) -> None:
    ran: list[str] = []
    handle.call_later(1, ran.append, "later")
    every = handle.call_every(2, ran.append, "every")
    node.advance(5)
    assert ran == ["later", "every", "every"]
    every.stop()
    every.stop()
    handle.call_every(2, ran.append, "never")
    handle.call_later(1, ran.append, "never")
    handle.revoke()
    node.advance(10)
    assert ran == ["later", "every", "every"]
    assert not node.clock.getDelayedCalls()


def test_a_timer_that_raises_is_charged_and_goes_on(node: Node, handle: PluginHandle) -> None:
    def fail() -> None:
        raise RuntimeError("no luck")

    handle.call_every(1, fail)
    node.advance(3)
    assert handle.budget.faults == {"raised": 3}
    assert "timer: RuntimeError: no luck" in handle.budget.last_error


def test_a_timer_waits_for_its_deferred_and_skips_meanwhile(
    node: Node, handle: PluginHandle
) -> None:
    waiting: list[Deferred[None]] = []

    def work() -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    handle.call_every(1, work)
    node.advance(5.5)
    assert len(waiting) == 1
    waiting[0].errback(RuntimeError("it failed"))
    node.advance(1)
    assert len(waiting) == 2
    assert "it failed" in handle.budget.last_error


def test_cancelled_timers_are_not_kept(node: Node, handle: PluginHandle) -> None:
    for _ in range(1000):
        handle.call_later(1000, print).cancel()
    assert len(handle._timers) < 50


def test_it_publishes_and_subscribes(node: Node, handle: PluginHandle) -> None:
    heard: list[tuple[str, bytes]] = []
    subscription = handle.subscribe("a/#", lambda message: heard.append(
        (message.topic, message.payload)))  # fmt: skip
    alice = node.connect("alice")
    alice.subscribe("a/b")
    assert handle.publish("a/b", b"x") == 2
    node.settle()
    assert heard == [("a/b", b"x")]
    assert [message.payload for message in alice.messages()] == [b"x"]
    subscription.unsubscribe()
    subscription.unsubscribe()
    assert handle.publish("a/b", b"y") == 1
    node.settle()
    assert len(heard) == 1


@pytest.mark.parametrize("topic", ["a/#", "", "a\0b"])
def test_a_topic_name_that_is_none_is_told(handle: PluginHandle, topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        handle.publish(topic, b"")
    with pytest.raises(ValueError, match="topic filter"):
        handle.subscribe("a/#/b", print)


def test_text_as_a_payload_is_refused_at_the_line_that_publishes_it(
    node: Node, handle: PluginHandle
) -> None:
    def publish(message: Any) -> None:
        payload: Any = "text"
        handle.publish("copy", payload)

    handle.hook("message.publish", publish)
    node.publish("a")
    line = publish.__code__.co_firstlineno + 2
    assert handle.budget.last_error.endswith(
        "TypeError: payload: expected bytes, got str; text becomes bytes with payload.encode()"
        f" ({__file__}:{line})"
    )
    wrong: Any
    for wrong in (17, None):
        with pytest.raises(TypeError, match=r"^payload: expected bytes, got (int|NoneType)$"):
            handle.publish("a", wrong)
    wrong = b"a"
    with pytest.raises(TypeError, match=r"^topic b'a': expected text, got bytes$"):
        handle.publish(wrong, b"")


def test_publishing_in_a_circle_ends(node: Node, handle: PluginHandle) -> None:
    def again(message: Any) -> None:
        handle.publish("copy/" + message.topic, b"")

    handle.hook("message.publish", again)
    node.publish("a")
    assert "publishes in a circle" in handle.budget.last_error


def test_it_sees_subscribes_and_disconnects_clients(node: Node, handle: PluginHandle) -> None:
    alice = node.connect("alice")
    client = handle.client("alice")
    assert client is not None and client.client_id == "alice"
    assert [client.client_id for client in handle.clients()] == ["alice"]
    assert handle.subscribe_client("alice", Subscription("news", 1)) == 1
    node.publish("news", b"hello")
    assert [message.topic for message in alice.messages()] == ["news"]
    with pytest.raises(KeyError):
        handle.subscribe_client("nobody", Subscription("news", 1))
    assert handle.disconnect("alice") is True
    node.settle()
    assert alice.closed and alice.disconnect_packet is not None
    assert alice.disconnect_packet.reason_code == 0x98
    assert handle.disconnect("alice") is False
    assert handle.client("alice") is None and handle.clients() == []


@implementer(IAuthenticator)
class Friends:
    def __init__(self, check: Callable[[], AuthVerdict]) -> None:
        self.answer = check

    def init(self, opts: Any) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        return self.answer()

    def description(self) -> str:
        return "friends"


def names(node: Node) -> list[object]:
    return [entry["name"] for entry in node.access.describe() if entry["kind"] == "auth"]


def test_its_modules_join_the_chains_and_leave_them(node: Node, handle: PluginHandle) -> None:
    handle.register_mod("auth", "friends", Friends(lambda: AUTH_OK), seq=0)
    assert names(node)[0] == "friends"
    node.connect("alice")
    assert handle.budget.faults == {}
    with pytest.raises(ValueError, match="has no auth module 'anonymous'"):
        handle.unregister_mod("auth", "anonymous")
    handle.revoke()
    assert "friends" not in names(node)


def test_a_module_that_raises_refuses_and_is_charged(node: Node, handle: PluginHandle) -> None:
    def fail() -> AuthVerdict:
        raise RuntimeError("no database")

    handle.register_mod("auth", "friends", Friends(fail), seq=0)
    alice = node.connect("alice")
    assert alice.connack is not None and alice.connack.reason_code >= 0x80
    assert "no database" in handle.budget.last_error


def test_a_module_that_lacks_a_method_is_refused_by_name(handle: PluginHandle) -> None:
    @implementer(IAuthenticator)
    class Half:
        def init(self, opts: Any) -> None: ...

    with pytest.raises(Invalid, match="check"):
        handle.register_mod("auth", "half", Half())
    with pytest.raises(ValueError, match='expected "auth" or "acl"'):
        handle.register_mod("auht", "half", Half())


@pytest.mark.parametrize(
    ("add", "held"),
    [
        (lambda handle, name: handle.add_route(name, Resource()), "routes"),
        (lambda handle, name: handle.add_command(name, lambda argv: "", "help"), "commands"),
        (lambda handle, name: handle.add_metric(name, "help", lambda: 1.0), "metrics"),
        (lambda handle, name: handle.add_sys_topic(name, lambda: 1), "sys_topics"),
    ],
)
def test_what_operators_see_is_named_once_and_goes(
    handle: PluginHandle, add: Callable[[PluginHandle, str], None], held: str
) -> None:
    add(handle, "one")
    assert list(getattr(handle, held)) == ["one"]
    with pytest.raises(ValueError, match="in use"):
        add(handle, "one")
    for name in ("", "a/#" if held == "sys_topics" else "a/b"):
        with pytest.raises(ValueError, match="="):
            add(handle, name)
    handle.revoke()
    assert not getattr(handle, held)


def test_what_operators_see_is_a_function(handle: PluginHandle) -> None:
    """`add_metric` takes its text before its function, `add_command` behind it."""
    with pytest.raises(TypeError, match="read = 'Messages seen.': expected a function"):
        handle.add_metric("seen_total", lambda: 1.0, "Messages seen.")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function = 'help': expected a function"):
        handle.add_command("c", "help", lambda argv: "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="read = 7: expected a function"):
        handle.add_sys_topic("seen", 7)  # type: ignore[arg-type]
    assert not handle.metrics and not handle.commands and not handle.sys_topics


def test_a_sys_topic_is_no_longer_retained_afterwards(node: Node, handle: PluginHandle) -> None:
    handle.add_sys_topic("count", lambda: 1)
    node.broker.publish_text("$SYS/broker/plugins/acme/count", b"1", 0, True)
    assert len(node.broker.retainer) == 1
    handle.revoke()
    assert len(node.broker.retainer) == 0


def test_alarms_end_with_the_plugin(node: Node, handle: PluginHandle) -> None:
    alarms = node.hooks.alarms = Alarms()
    handle.alarm("database", "is away")
    handle.alarm("database", "is still away")
    handle.alarm("disk", "is full")
    assert [(alarm.name, alarm.text) for alarm in alarms.active()] == [
        ("plugin.acme.database", "is still away"),
        ("plugin.acme.disk", "is full"),
    ]
    handle.clear_alarm("disk")
    handle.clear_alarm("disk")
    handle.revoke()
    assert not alarms.active()


def test_services_run_as_long_as_the_plugin(handle: PluginHandle) -> None:
    class Counting(Service):
        stopped: Deferred[None] = Deferred()

        def stopService(self) -> Any:
            super().stopService()  # type: ignore[no-untyped-call]
            return self.stopped

    service = Counting()
    handle.add_service(service)
    assert service.running
    gone: list[object] = []
    handle.revoke().addCallback(gone.append)
    assert not service.running and not gone
    service.stopped.callback(None)
    assert gone


def test_work_in_a_thread_comes_back(handle: PluginHandle) -> None:
    # A test's clock has no threads: it is done at once.
    results: list[object] = []
    handle.in_thread(lambda a, b: a + b, 1, 2).addCallback(results.append)
    handle.in_thread(lambda: 1 / 0).addErrback(lambda failure: results.append(failure.type))
    assert results == [3, ZeroDivisionError]


def test_the_data_directory_is_its_own(handle: PluginHandle, node: Node) -> None:
    assert handle.data_dir == str(node.directory / "data/plugins/acme")
    assert (node.directory / "data/plugins/acme").is_dir()


def test_a_dead_handle_does_nothing_and_says_so(node: Node, handle: PluginHandle) -> None:
    handle.revoke()
    handle.revoke()
    for use in (
        lambda: handle.hook("message.publish", print),
        lambda: handle.publish("a", b""),
        lambda: handle.subscribe("a", print),
        lambda: handle.call_later(1, print),
        lambda: handle.call_every(1, print),
        lambda: handle.in_thread(print),
        lambda: handle.add_command("a", lambda argv: ""),
        lambda: handle.clients(),
        lambda: handle.alarm("a", "b"),
    ):
        with pytest.raises(RuntimeError, match="acme is unloaded"):
            use()
    handle.unhook("message.publish", print)
    handle.unregister_mod("auth", "x")
    handle.clear_alarm("a")


@pytest.mark.slow
def test_a_thousand_handles_leave_nothing(node: Node) -> None:
    node.connect("alice")

    def cycle() -> None:
        handle = new_handle(node)
        handle.hook("message.publish", lambda message: OK)
        handle.hook("client.connected", lambda client, acc: OK)
        handle.register_mod("auth", "friends", Friends(lambda: AUTH_OK))
        handle.call_later(60, print)
        handle.call_every(60, print)
        handle.subscribe("a/#", print)
        handle.add_route("r", Resource())
        handle.add_command("c", lambda argv: "")
        handle.add_metric("m", "", lambda: 0.0)
        handle.add_sys_topic("s", lambda: 0)
        handle.add_service(Service())
        handle.alarm("a", "text")
        handle.in_thread(lambda: None)
        handle.revoke()
        node.settle()

    def held() -> tuple[object, ...]:
        gc.collect()
        return (
            len(gc.get_objects()),
            len(node.clock.getDelayedCalls()),
            threading.active_count(),
            node.broker.stats()["subscriptions"],
            len(node.hooks.budgets()),
            set(node.broker.points),
        )

    node.hooks.alarms = Alarms()
    for _ in range(150):  # the history of alarms has filled up
        cycle()
    before = held()
    for _ in range(1000):
        cycle()
    after = held()
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 50  # type: ignore[operator]


def test_several_plugins_hold_one_acknowledgement(node: Node, handle: PluginHandle) -> None:
    held: dict[str, list[Callable[[], None]]] = {"acme": [], "other": []}
    other = new_handle(node)
    handle.hold_acknowledgements(lambda release, client_id: held["acme"].append(release))
    other.hold_acknowledgements(
        lambda release, client_id: held["other"].append(release), topic_filter=["a/#", "b"]
    )
    assert handle.describe()["acknowledgements"] == ["#"]
    assert other.describe()["acknowledgements"] == ["a/#", "b"]
    client = node.connect("x")
    client.send(Publish("a/1", b"", 1, packet_id=1), Publish("c", b"", 1, packet_id=2))
    assert (len(held["acme"]), len(held["other"])) == (2, 1)
    for release in held["acme"]:
        release()
    node.settle()
    assert acked(client) == []
    held["other"][0]()
    node.settle()
    assert acked(client) == [1, 2]


def test_a_plugin_holds_once_and_no_more_when_it_is_unloaded(
    node: Node, handle: PluginHandle
) -> None:
    held: list[str] = []
    handle.hold_acknowledgements(lambda release, client_id: held.append("old"))
    handle.hold_acknowledgements(lambda release, client_id: held.append("new"), "a")
    client = node.connect("x")
    client.send(Publish("a", b"", 1, packet_id=1))
    assert held == ["new"] and acked(client) == []
    handle.hold_acknowledgements(None)
    assert not node.broker.holding and handle.describe()["acknowledgements"] == []
    handle.hold_acknowledgements(lambda release, client_id: held.append("last"))
    handle.revoke()
    assert not node.broker.holding
    client.send(Publish("a", b"", 1, packet_id=2))
    assert held == ["new"] and acked(client) == [2]


@pytest.mark.parametrize("required", [False, True])
def test_nobody_waits_for_a_plugin_that_is_unloaded(
    node: Node, handle: PluginHandle, required: bool
) -> None:
    """What it held is acknowledged, or where it had to keep it the client has to send it again."""
    handle.hold_acknowledgements(lambda release, client_id: None, required=required)
    client = node.connect("x")
    client.send(Publish("a", b"", 1, packet_id=1), Publish("b", b"", 1, packet_id=2))
    assert acked(client) == []
    handle.revoke()
    node.settle()
    assert acked(client) == ([] if required else [1, 2])
    assert client.closed is required


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "$share/g/a", []])
def test_what_is_held_is_a_topic_filter(
    node: Node, handle: PluginHandle, topic_filter: str | list[str]
) -> None:
    with pytest.raises(ValueError, match="topic_filter = "):
        handle.hold_acknowledgements(lambda release, client_id: None, topic_filter)
    assert not node.broker.holding


def acked(client: MemoryClient) -> list[int]:
    return [packet.packet_id for packet in client.received if isinstance(packet, Puback)]
