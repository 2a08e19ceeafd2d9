"""Hook chains: order, accumulator, stopping, and faults of callbacks."""

from __future__ import annotations

from typing import Any

import pytest
from zope.interface import classImplements
from zope.interface.verify import verifyClass, verifyObject

from mqttd.broker.hooks import points
from mqttd.broker.hooks.points import POINTS
from mqttd.interfaces import IHooks
from mqttd.plugins.calls.hooks import Hooks
from mqttd.types import OK, STOP, HookError, HookResult

POINT = "message.publish"


def test_hooks_fulfil_their_interface() -> None:
    class Provider(Hooks):
        pass

    classImplements(Provider, IHooks)
    assert verifyClass(IHooks, Provider)
    assert verifyObject(IHooks, Provider())


def test_a_callback_gets_arguments_then_accumulator_then_what_it_was_registered_with() -> None:
    seen: list[tuple[Any, ...]] = []
    hooks = Hooks()
    hooks.hook("client.connack", lambda *args: seen.append(args), init_args=("env", 7))
    assert hooks.run_hooks("client.connack", ("client", 0), {"a": 1}) == (OK, {"a": 1})
    assert seen == [("client", 0, {"a": 1}, "env", 7)]


def test_higher_priority_runs_first_and_equals_run_as_they_were_registered() -> None:
    hooks = Hooks()
    for name, priority in (("a", 0), ("b", 10), ("c", 0), ("d", -1), ("e", 10)):
        hooks.hook(POINT, _append(name), priority=priority)
    assert hooks.run_hooks(POINT, (), "")[1] == "beacd"


@pytest.mark.parametrize(
    "answer,status,acc,later",
    [
        (None, OK, "0+", True),
        (OK, OK, "0+", True),
        (OK("new"), OK, "new+", True),
        (STOP, STOP, "0", False),
        (STOP("new"), STOP, "new", False),
        (OK(None), OK, "None+", True),
        (STOP(None), STOP, None, False),
    ],
)
def test_what_a_callback_answers_decides_what_follows(
    answer: HookResult | None, status: HookResult, acc: object, later: bool
) -> None:
    hooks = Hooks()
    hooks.hook(POINT, lambda acc: answer)
    ran: list[bool] = []

    def second(acc: object) -> HookResult:
        ran.append(True)
        return OK(f"{acc}+")

    hooks.hook(POINT, second)
    got_status, got_acc = hooks.run_hooks(POINT, (), "0")
    assert got_status is status
    assert got_acc == acc
    assert bool(ran) is later


def test_a_callback_that_raises_is_counted_reported_and_passed_over() -> None:
    faults: list[tuple[str, object, Exception]] = []
    hooks = Hooks(on_error=lambda *fault: faults.append(fault))

    def broken(acc: object) -> HookResult:
        raise KeyError("oops")

    hooks.hook(POINT, broken)
    hooks.hook(POINT, _append("x"))
    assert hooks.run_hooks(POINT, (), "") == (OK, "x")
    assert hooks.errors == {POINT: 1}
    assert faults[0][:2] == (POINT, broken)
    assert isinstance(faults[0][2], KeyError)


def test_a_report_that_raises_does_not_stop_the_broker_either() -> None:
    def report(*fault: object) -> None:
        raise RuntimeError("log is full")

    hooks = Hooks(on_error=report)
    hooks.hook(POINT, lambda acc: 1 / 0)
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")


@pytest.mark.parametrize("nonsense", [True, "ok", ("ok", 1), 0])
def test_an_answer_that_is_no_hook_result_is_an_error(nonsense: object) -> None:
    hooks = Hooks()
    hooks.hook(POINT, lambda acc: nonsense)  # type: ignore[arg-type,return-value]
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")
    assert hooks.errors == {POINT: 1}


def test_unhook_takes_a_callback_out() -> None:
    hooks = Hooks()
    first, second = _append("1"), _append("2")
    hooks.hook(POINT, first)
    hooks.hook(POINT, second)
    hooks.unhook(POINT, first)
    assert hooks.run_hooks(POINT, (), "") == (OK, "2")
    assert [entry.callback for entry in hooks.lookup(POINT)] == [second]


def test_bound_methods_can_be_unhooked() -> None:
    class Plugin:
        def on_message_publish(self, message: object) -> HookResult:
            return STOP

    hooks, plugin = Hooks(), Plugin()
    hooks.hook(POINT, plugin.on_message_publish)
    hooks.unhook(POINT, plugin.on_message_publish)
    assert not hooks.listening(POINT)


def test_mistakes_are_refused() -> None:
    hooks, callback = Hooks(), _append("1")
    hooks.hook(POINT, callback)
    with pytest.raises(HookError, match="hooked at message.publish already"):
        hooks.hook(POINT, callback)
    with pytest.raises(HookError, match="not hooked at client.connect"):
        hooks.unhook("client.connect", callback)
    for call in (
        lambda: hooks.hook("message.published", callback),
        lambda: hooks.unhook("message.published", callback),
        lambda: hooks.lookup("message.published"),
        lambda: hooks.run_hooks("message.published", ()),
        lambda: hooks.listening("message.published"),
    ):
        with pytest.raises(
            HookError,
            match="no hook point 'message.published'; did you mean message.publish.; there are: .*",
        ):
            call()


def test_listeners_are_told_so_that_an_unused_point_costs_one_flag() -> None:
    hooks, changes = Hooks(), []
    hooks.listeners_changed.append(lambda point, listening: changes.append((point, listening)))
    first, second = _append("1"), _append("2")
    hooks.hook(POINT, first)
    hooks.hook(POINT, second)
    hooks.unhook(POINT, first)
    hooks.unhook(POINT, second)
    assert changes == [(POINT, True), (POINT, True), (POINT, True), (POINT, False)]


def test_a_chain_may_change_while_it_runs() -> None:
    hooks = Hooks()
    second = _append("2")

    def first(acc: str) -> HookResult:
        hooks.unhook(POINT, second)
        return OK(acc + "1")

    hooks.hook(POINT, first)
    hooks.hook(POINT, second)
    assert hooks.run_hooks(POINT, (), "") == (OK, "12")
    assert [entry.callback for entry in hooks.lookup(POINT)] == [first]


def test_every_point_has_a_constant_and_a_description() -> None:
    constants = {
        value for name, value in vars(points).items() if name.isupper() and isinstance(value, str)
    }
    assert constants == set(POINTS)
    assert len(POINTS) == 27
    for name, point in POINTS.items():
        assert point.name == name
        assert point.when and point.acc and point.stop


def _append(text: str) -> Any:
    def callback(acc: str) -> HookResult:
        return OK(acc + text)

    return callback


def test_an_async_function_is_for_points_that_wait() -> None:
    """It was hooked, and failed with each message."""

    async def answer(*given: object) -> None: ...

    hooks = Hooks()
    with pytest.raises(HookError, match="answer is async, and message.publish waits for no answer"):
        hooks.hook("message.publish", answer)  # type: ignore[arg-type]
    assert not hooks.listening("message.publish")
    hooks.hook("client.connect", answer)  # type: ignore[arg-type]
