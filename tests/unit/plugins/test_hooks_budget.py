"""Budgets: what counts as an error, when an owner is quarantined, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

import mqttd.plugins.calls.account
import mqttd.plugins.calls.hooks
import mqttd.plugins.calls.waiting
from mqttd.broker.ground.alarms import HISTORY, MOST, Alarms
from mqttd.broker.hooks.points import POINTS
from mqttd.plugins.calls.budget import ACTIVE, HALF_OPEN, OFTEN, QUARANTINED, Budget, Policy
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.ground.message import Message
from mqttd.types import AUTH_IGNORE, OK, STOP, AuthError, HookResult, Verdict

POINT = "message.publish"


class Time:
    """`time.monotonic` turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (
        mqttd.plugins.calls.account,
        mqttd.plugins.calls.hooks,
        mqttd.plugins.calls.waiting,
    ):
        monkeypatch.setattr(module, "monotonic", made)
    return made


def raises(*args: object) -> HookResult:
    raise KeyError("oops")


def quarantined(policy: Policy = "ignore") -> tuple[Hooks, Budget, Callable[..., Any]]:
    """Hooks with one callback in quarantine; it works again when `broken` is emptied."""
    hooks, owner, broken = Hooks(), Budget("bad", policy, retry_after=30), [True]
    hooks.alarms = Alarms()

    def callback(*args: Any) -> HookResult:
        if broken:
            raise KeyError("oops")
        return OK("new")

    for point in ("client.connect", "client.authenticate", "client.authorize", POINT):
        hooks.hook(point, callback, owner=owner)
    for _ in range(owner.error_limit):
        assert not owner.shut
        hooks.run_hooks(POINT, (), "same")
    assert (owner.state, owner.calls) == (QUARANTINED, 10)
    return hooks, owner, broken.clear


def test_after_ten_errors_an_owner_is_not_called_any_more_and_an_alarm_names_it(time: Time) -> None:
    hooks, owner, _ = quarantined()
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")
    assert (owner.calls, owner.skipped, owner.quarantines) == (10, 1, 1)
    (alarm,) = hooks.alarms.active()
    assert alarm.name == "quarantine.bad"
    assert "after 10 errors" in alarm.text and "KeyError" in alarm.text and __file__ in alarm.text


def test_callbacks_of_other_owners_go_on(time: Time) -> None:
    hooks, _, _ = quarantined("ignore")
    hooks.hook(POINT, lambda acc: OK(acc + "!"))
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same!")


@pytest.mark.parametrize(
    "point,acc", [(POINT, None), ("client.authorize", Verdict.DENY)], ids=lambda value: str(value)
)
def test_with_the_policy_deny_points_with_a_verdict_refuse(
    time: Time, point: str, acc: object
) -> None:
    hooks, owner, _ = quarantined("deny")
    assert hooks.run_hooks(point, (), "same") == (STOP, acc)
    assert owner.denied == 11


@pytest.mark.parametrize("point", ["client.authenticate", "client.connect"])
def test_with_the_policy_deny_nobody_connects(time: Time, point: str) -> None:
    hooks, _, _ = quarantined("deny")
    status, answer = hooks.ask_hooks(point, (), AUTH_IGNORE)  # type: ignore[misc]
    assert status is STOP
    assert isinstance(answer, AuthError) and answer.reason_code == 0x88


def test_a_single_failing_call_is_answered_by_the_policy_too() -> None:
    hooks = Hooks()
    hooks.hook(POINT, raises, owner=Budget("bad", "deny"))
    assert hooks.run_hooks(POINT, (), "same") == (STOP, None)
    hooks.hook("client.connected", raises, owner=Budget("bad", "deny"))
    assert hooks.run_hooks("client.connected", ()) == (OK, None)  # nothing to decide there


def test_after_a_while_one_call_is_let_through_and_its_success_ends_the_quarantine(
    time: Time,
) -> None:
    hooks, owner, mend = quarantined()
    mend()
    time.now += 29
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")
    time.now += 1
    assert hooks.run_hooks(POINT, (), "same") == (OK, "new")
    assert (owner.state, owner.errors) == (ACTIVE, 0)
    assert not hooks.alarms.active()
    assert [alarm.name for alarm in hooks.alarms.past()] == ["quarantine.bad"]


def test_a_trial_that_fails_doubles_the_wait(time: Time) -> None:
    hooks, owner, mend = quarantined()
    for wait in (30, 60, 120):
        time.now += wait - 1
        hooks.run_hooks(POINT, (), "same")
        calls = owner.calls
        time.now += 1
        hooks.run_hooks(POINT, (), "same")
        assert owner.calls == calls + 1
        assert owner.state == QUARANTINED
    mend()
    time.now += 240
    hooks.run_hooks(POINT, (), "same")
    assert owner.state == ACTIVE


def test_while_a_trial_waits_nobody_else_is_let_through(time: Time) -> None:
    hooks, owner, _ = quarantined()
    hooks.clock = Clock()
    waiting: list[Deferred[HookResult]] = []

    def slow(*args: object) -> Deferred[HookResult]:
        waiting.append(Deferred())
        return waiting[-1]

    hooks.hook("client.authenticate", slow, owner=owner, priority=1)
    time.now += 30
    asked = hooks.ask_hooks("client.authenticate", (), AUTH_IGNORE)
    assert owner.state == HALF_OPEN
    hooks.run_hooks(POINT, (), "same")
    assert owner.state == HALF_OPEN and len(waiting) == 1
    waiting[0].callback(STOP("in"))
    assert asked.result == (STOP, "in")  # type: ignore[union-attr]
    assert owner.state == ACTIVE


def test_errors_of_long_ago_are_forgotten(time: Time) -> None:
    hooks, owner = Hooks(), Budget("clumsy")
    hooks.hook(POINT, raises, owner=owner)
    for _ in range(5):
        for _ in range(9):
            hooks.run_hooks(POINT, ())
        time.now += owner.error_window + 1
    assert owner.state == ACTIVE
    assert owner.faults == {"raised": 45}


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit(), RecursionError(), MemoryError()])
def test_nothing_a_callback_raises_gets_out(error: BaseException) -> None:
    def callback(acc: object) -> HookResult:
        raise error

    hooks = Hooks()
    hooks.hook(POINT, callback)
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")
    assert hooks.errors == {POINT: 1}


def test_but_the_operators_interrupt_does() -> None:
    def callback(acc: object) -> HookResult:
        raise KeyboardInterrupt

    hooks = Hooks()
    hooks.hook(POINT, callback)
    with pytest.raises(KeyboardInterrupt):
        hooks.run_hooks(POINT, (), "same")


def test_time_is_charged_to_the_owner_and_not_to_whom_it_calls(time: Time) -> None:
    hooks, outer, inner = Hooks(), Budget("outer", per_call=9), Budget("inner", per_call=9)

    def calls_in(acc: object) -> None:
        time.now += 1
        hooks.run_hooks("client.connected", ())
        time.now += 2

    def called(acc: object) -> None:
        time.now += 4

    hooks.hook(POINT, calls_in, owner=outer)
    hooks.hook("client.connected", called, owner=inner)
    hooks.run_hooks(POINT, ())
    assert (outer.time, inner.time) == (3, 4)
    assert (outer.calls, inner.calls) == (1, 1)


def test_a_call_that_takes_far_too_long_is_an_error_even_when_nobody_could_break_it_off(
    time: Time,
) -> None:
    hooks, owner = Hooks(), Budget("slow")

    def slow(acc: object) -> HookResult:
        time.now += 0.15
        return OK("late")

    hooks.hook(POINT, slow, owner=owner)
    assert hooks.run_hooks(POINT, (), "same") == (OK, "late")
    assert owner.faults == {"blocked": 1}
    assert owner.longest == pytest.approx(0.15)


def test_a_moment_without_the_processor_is_not_held_against_a_callback(time: Time) -> None:
    hooks, owner = Hooks(), Budget("unlucky")

    def slow(acc: object) -> None:
        time.now += 0.05

    hooks.hook(POINT, slow, owner=owner)
    hooks.run_hooks(POINT, (), "same")
    assert owner.faults == {}


def test_more_than_its_share_of_a_second_is_one_error_a_second(time: Time) -> None:
    hooks, owner = Hooks(), Budget("greedy", per_call=9, per_second=0.5)

    def busy(acc: object) -> None:
        time.now += 0.6

    hooks.hook(POINT, busy, owner=owner)
    hooks.tick()
    for _ in range(10):
        hooks.run_hooks(POINT, ())
        time.now += 0.4
        hooks.tick()
    assert owner.faults == {"share": 10}
    assert owner.state == QUARANTINED


def test_a_share_within_the_limit_is_none(time: Time) -> None:
    hooks, owner = Hooks(), Budget("modest", per_call=9, per_second=0.5)

    def busy(acc: object) -> None:
        time.now += 0.4

    hooks.hook(POINT, busy, owner=owner)
    for _ in range(20):
        hooks.run_hooks(POINT, ())
        time.now += 0.6
        hooks.tick()
    assert owner.faults == {}


class Turn:
    """Whose work it is."""

    work = 0


def test_what_a_hook_takes_is_work_of_the_client_in_turn(time: Time) -> None:
    hooks, turn = Hooks(), Turn()
    hooks.turn = turn

    def thorough(acc: object) -> None:
        time.now += 0.002

    hooks.hook(POINT, thorough)
    hooks.run_hooks(POINT, ())
    assert turn.work == pytest.approx(2000, abs=1)  # microseconds


def test_a_call_in_sixteen_stands_for_the_others_in_the_work_of_a_turn_too(time: Time) -> None:
    hooks, owner, turn = Hooks(), Budget("busy"), Turn()
    hooks.turn = turn

    def brief(acc: object) -> None:
        time.now += 0.0001

    hooks.hook(POINT, brief, owner=owner)
    owner.mask = 15
    for _ in range(160):
        hooks.ask_publish(None)
    assert turn.work == pytest.approx(16_000, abs=20)


def test_who_becomes_busy_in_the_midst_of_a_second_is_timed_seldom_at_once(time: Time) -> None:
    hooks, owner = Hooks(), Budget("busy")

    def brief(acc: object) -> None:
        time.now += 0.0001

    hooks.hook(POINT, brief, owner=owner)
    for _ in range(2 * OFTEN):
        hooks.run_hooks(POINT, ())
    assert owner.mask == 0 and owner.time == pytest.approx(0.4)
    for _ in range(1600):
        hooks.run_hooks(POINT, ())
    assert owner.mask == 15 and owner.time == pytest.approx(0.56, abs=0.002)
    time.now += 1
    hooks.tick()  # begins to count
    time.now += 1
    hooks.tick()
    assert owner.mask == 0


def test_many_short_calls_are_the_matter_of_who_has_them_made(time: Time) -> None:
    hooks, owner = Hooks(), Budget("popular", per_second=0.5)

    def brief(acc: object) -> None:
        time.now += 0.0005

    hooks.hook(POINT, brief, owner=owner)
    for _ in range(20):
        for _ in range(1600):
            hooks.run_hooks(POINT, ())
        time.now += 0.2
        hooks.tick()
    assert (owner.faults, owner.state) == ({}, ACTIVE)
    assert owner.time == pytest.approx(16)


def test_short_calls_leave_a_tenth_of_a_second_to_everybody_else(time: Time) -> None:
    hooks, owner = Hooks(), Budget("slow", per_second=0.5)

    def brief(acc: object) -> None:
        time.now += 0.0009

    hooks.hook(POINT, brief, owner=owner)
    for _ in range(20):
        for _ in range(1060):
            hooks.run_hooks(POINT, ())
        time.now += 0.05
        hooks.tick()
    assert owner.state == QUARANTINED and owner.faults["share"] >= 10


def test_no_more_deferreds_wait_than_the_queue_takes() -> None:
    hooks, owner = Hooks(clock=Clock()), Budget("slow", "deny", queue=2)
    hooks.hook("client.connect", lambda *args: Deferred(), owner=owner)
    for waiting in (1, 2):
        assert isinstance(hooks.ask_hooks("client.connect", ()), Deferred)
        assert owner.waiting == waiting
    status, answer = hooks.ask_hooks("client.connect", ())  # type: ignore[misc]
    assert status is STOP and isinstance(answer, AuthError)
    assert (owner.waiting, owner.faults) == (2, {"raised": 1})


def test_a_chain_goes_on_where_a_deferred_left_it() -> None:
    hooks, waiting = Hooks(clock=Clock()), Deferred[HookResult]()
    hooks.hook("client.connect", lambda acc: OK(acc + "1"))
    hooks.hook("client.connect", lambda acc: waiting)
    hooks.hook("client.connect", lambda acc: succeed(OK(acc + "3")))
    hooks.hook("client.connect", lambda acc: OK(acc + "4"))
    asked = hooks.ask_hooks("client.connect", (), "")
    waiting.callback(OK("2"))
    assert asked.result == (OK, "234")  # type: ignore[union-attr]


def test_a_coroutine_may_wait_too() -> None:
    hooks, waiting = Hooks(clock=Clock()), Deferred[str]()

    async def callback(acc: str) -> HookResult:
        return STOP(acc + await waiting)

    hooks.hook("client.connect", callback)
    asked = hooks.ask_hooks("client.connect", (), "a")
    waiting.callback("b")
    assert asked.result == (STOP, "ab")  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [lambda: fail(KeyError("oops")), lambda: succeed("nonsense")])
def test_a_deferred_that_fails_or_answers_nonsense_is_an_error(answer: Any) -> None:
    hooks = Hooks(clock=Clock())
    hooks.hook("client.connect", lambda acc: answer())
    hooks.hook("client.connect", lambda acc: OK(acc + "!"))
    asked = hooks.ask_hooks("client.connect", (), "same")
    assert asked.result == (OK, "same!")  # type: ignore[union-attr]
    assert hooks.errors == {"client.connect": 1}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("point", ["client.connect", "client.authenticate"])
def test_issue_12_a_refusal_without_its_stop_is_one(point: str, late: bool) -> None:
    hooks, refusal = Hooks(clock=Clock()), AuthError("no")
    answer: Any = succeed(refusal) if late else refusal
    hooks.hook(point, lambda *args: answer)
    hooks.hook(point, lambda *args: STOP("in"))
    asked = hooks.ask_hooks(point, (), AUTH_IGNORE)
    result = asked.result if isinstance(asked, Deferred) else asked
    assert result == (STOP, refusal)
    assert hooks.errors == {point: 1}


def test_issue_12_a_denial_without_its_stop_is_one() -> None:
    hooks = Hooks()
    hooks.hook("client.authorize", lambda *args: Verdict.DENY)
    assert hooks.run_hooks("client.authorize", (), Verdict.IGNORE) == (STOP, Verdict.DENY)


@pytest.mark.parametrize("point", ["client.connect", "client.authenticate", "client.authorize"])
def test_issue_12_what_is_raised_for_one_client_is_no_step_to_quarantine(point: str) -> None:
    hooks, owner = Hooks(), Budget("bad")
    hooks.hook(point, raises, owner=owner)
    for _ in range(50):
        hooks.run_hooks(point, ())
    assert (owner.state, owner.faults) == (ACTIVE, {"raised": 50})


def test_a_coroutine_where_none_may_wait_is_closed_and_counted(recwarn: Any) -> None:
    async def callback(acc: object) -> HookResult:
        return OK

    hooks = Hooks()
    hooks.hook(POINT, lambda acc: callback(acc))  # type: ignore[arg-type, return-value]
    assert hooks.run_hooks(POINT, (), "same") == (OK, "same")
    assert hooks.errors == {POINT: 1}
    assert not recwarn.list


def test_timers_and_routes_of_a_plugin_are_charged_too(time: Time) -> None:
    hooks, owner = Hooks(), Budget("bad")
    assert hooks.call(owner, "timer", lambda a, b: a + b, (1, 2)) == 3
    for _ in range(10):
        assert hooks.call(owner, "timer", raises) is None
    assert owner.state == QUARANTINED
    assert hooks.call(owner, "timer", lambda: 3) is None
    assert hooks.errors == {"timer": 10}


def test_what_has_no_owner_has_a_budget_of_its_own_name() -> None:
    hooks = Hooks()
    hooks.hook(POINT, raises)
    (owner,) = hooks.budgets()
    assert owner.name == f"{__name__}.raises"
    hooks.unhook(POINT, raises)
    assert hooks.budgets() == []


def test_unloading_a_plugin_clears_the_alarm_of_its_quarantine(time: Time) -> None:
    hooks, owner, _ = quarantined()
    for point in list(POINTS):
        for entry in hooks.lookup(point):
            hooks.unhook(point, entry.callback)
    assert not hooks.alarms.active()
    assert owner.changed == []


def test_an_operator_may_end_a_quarantine(time: Time) -> None:
    hooks, owner, mend = quarantined()
    mend()
    owner.readmit()
    assert hooks.run_hooks(POINT, (), "same") == (OK, "new")
    assert not hooks.alarms.active()


def test_a_budget_describes_itself(time: Time) -> None:
    _, owner, _ = quarantined("deny")
    shown = owner.describe()
    assert shown["state"] == "quarantined"
    assert shown["errors"] == 10
    assert shown["errors_by_kind"] == {"raised": 10}
    assert shown["limits"]["per_call"] == 0.02  # type: ignore[index]
    assert repr(owner) == "<Budget bad quarantined 10/10 errors>"


@pytest.mark.parametrize(
    "mistake", [{"policy": "allow"}, {"per_call": 0}, {"error_limit": -1}, {"queue": 0}]
)
def test_limits_that_make_no_sense_are_refused(mistake: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Budget("x", **mistake)


def test_alarms_are_raised_once_told_and_bounded() -> None:
    told: list[str] = []
    alarms = Alarms(lambda event, fields: told.append(f"{event} {fields['alarm']}"), lambda: 7.0)
    alarms.activate("full", "90 %")
    alarms.activate("full", "95 %")
    assert [(alarm.text, alarm.count) for alarm in alarms.active()] == [("95 %", 2)]
    assert alarms.clear("full") and not alarms.clear("full")
    assert told == ["alarm raised full", "alarm cleared full"]
    assert alarms.past()[0].describe() == {
        "name": "full",
        "text": "95 %",
        "active": False,
        "raised_at": 7.0,
        "cleared_at": 7.0,
        "count": 2,
    }
    for i in range(MOST + 5):
        alarms.activate(str(i), "")
    assert len(alarms) == MOST
    for i in range(MOST + 5):
        alarms.clear(str(i))
    assert len(alarms.past()) == HISTORY


def test_a_message_is_what_comes_out_of_a_chain_of_several_owners() -> None:
    hooks = Hooks()
    hooks.hook(POINT, lambda message: OK(message.replace(payload=b"1")), owner=Budget("a"))
    hooks.hook(POINT, raises, owner=Budget("b"))
    hooks.hook(POINT, lambda message: OK(message.replace(qos=1)), owner=Budget("c"))
    status, message = hooks.run_hooks(POINT, (), Message(1, "a", b""))
    assert (status, message.payload, message.qos, message.id) == (OK, b"1", 1, 1)
