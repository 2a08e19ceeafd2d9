"""Where a look of the watchdog breaks a callback off, and where it must not."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mqttd.plugins.calls import hooks, watchdog
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.calls.hooks import Hooks
from mqttd.plugins.calls.watchdog import IDLE, NESTED, SOON, TICK, PluginTimeout, Watch, Watchdog
from mqttd.types import OK

POINT = "message.publish"


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timers that were set, instead of timers."""
    found: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda which, *seconds: found.append(seconds[0]))
    return found


class Stage:
    """Hooks with one callback, and looks where a test wants them."""

    def __init__(self, callback: Callable[[Stage], Any]) -> None:
        self.hooks = Hooks()
        self.dog = Watchdog(self.hooks.watch)
        self.time = 0.0
        self.dog.now = lambda: self.time
        self.owner = Budget("bad")
        self.hooks.hook(POINT, lambda acc: callback(self), owner=self.owner)

    def look(self, times: int = 1, frame: FrameType | None = None, after: float = TICK) -> None:
        for _ in range(times):
            self.time += after
            self.dog._look(signal.SIGALRM, frame or sys._getframe(1))

    def run(self) -> dict[str, int]:
        assert self.hooks.run_hooks(POINT, (), "same") == (OK, "same")
        return self.owner.faults


def test_the_third_look_at_the_same_call_breaks_it_off(timers: list[float]) -> None:
    assert Stage(lambda stage: stage.look(2)).run() == {}
    assert Stage(lambda stage: stage.look(3)).run() == {"blocked": 1}
    assert timers == []


def test_the_short_way_of_a_message_is_broken_off_too(timers: list[float]) -> None:
    stage = Stage(lambda stage: stage.look(3))
    stage.owner.mask = 1
    assert [stage.hooks.ask_publish("same") for _ in range(2)] == ["same", "same"]
    assert stage.owner.faults == {"blocked": 2}
    assert stage.hooks.watch.stuck is None


@pytest.mark.parametrize("others", [0, 1])
def test_a_look_below_the_long_way_of_a_message_finds_one_call(
    timers: list[float], others: int
) -> None:
    stage = Stage(lambda stage: stage.look(3))
    for _ in range(others):
        stage.hooks.hook(POINT, lambda message: None, priority=1)
    assert stage.hooks.ask_publish("same") == "same"  # timed, or of several
    assert stage.owner.faults == {"blocked": 1}
    assert stage.hooks.watch.stuck is None


@pytest.mark.parametrize(("waited", "looks"), [(0.0001, 3), (0.005, 5), (0.0075, 8)])
def test_a_look_counts_less_if_the_processor_was_anothers(waited: float, looks: int) -> None:
    """A loaded machine breaks nothing off that has had no more than its time."""

    def callback(stage: Stage) -> None:
        waits = [0.0]

        def told() -> float:
            waits[0] += waited
            return waits[0]

        stage.dog.waited = told
        stage.look(looks - 1)
        steps.append("in time")
        stage.look()
        steps.append("too long")

    steps: list[str] = []
    assert Stage(callback).run() == {"blocked": 1}
    assert steps == ["in time"]


def test_a_look_right_behind_a_late_one_counts_what_lies_between(timers: list[float]) -> None:
    """A callback of 12 ms was broken off, as two looks at it came within a millisecond."""

    def callback(stage: Stage) -> None:
        stage.look(after=0.010)
        stage.look(after=0.0005)
        stage.look(after=0.0005)
        steps.append("in time")
        stage.look(2)
        steps.append("too long")

    steps: list[str] = []
    assert Stage(callback).run() == {"blocked": 1}
    assert steps == ["in time"]


@pytest.mark.parametrize(("waited", "charged"), [(0.3, 0.004), (0.1, 0.204)])
def test_what_the_thread_has_waited_for_a_processor_is_not_charged(
    monkeypatch: pytest.MonkeyPatch, waited: float, charged: float
) -> None:
    """A machine that is busy for 300 ms makes no call of 4 ms one that blocks."""
    now = [1000.0]
    waits = [7.0]

    def callback(stage: Stage) -> None:
        now[0] += 0.304
        waits[0] += waited

    for module in (hooks, watchdog):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    stage = Stage(callback)
    stage.dog.now = lambda: now[0]
    stage.dog.waited = lambda: waits[0]
    stage.hooks.watch.waits = stage.dog._waits
    stage.look()
    assert stage.run() == ({"blocked": 1} if charged > 5 * stage.owner.per_call else {})
    assert stage.owner.time == pytest.approx(charged)


def test_the_system_says_how_long_a_thread_has_waited(timers: list[float]) -> None:
    stage = Stage(lambda stage: None)
    stage.dog.start()
    try:
        assert stage.dog.waited() >= 0.0
    finally:
        stage.dog.stop()
    assert stage.dog.waited() == 0.0


def test_in_a_program_of_others_no_signal_is_taken(timers: list[float]) -> None:
    stage = Stage(lambda stage: None)
    stage.dog = Watchdog(stage.hooks.watch, interrupts=False)
    before = signal.getsignal(signal.SIGALRM)
    stage.dog.start()
    try:
        stage.run()
        assert stage.hooks.watch.armed
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        stage.dog.stop()
    assert timers == []


def test_the_log_says_where_the_callback_was() -> None:
    stage = Stage(lambda stage: stage.look(3))
    stage.run()
    assert "bad kept the reactor for more than 20 ms" in stage.owner.last_error
    assert __file__ in stage.owner.last_error


def test_of_a_call_that_may_block_for_longer_it_is_said_what_that_does() -> None:
    stage = Stage(lambda stage: stage.look(int(2 / TICK) + 1))
    stage.owner.per_call = 2.0
    stage.run()
    assert "bad kept the reactor for more than 2 s, in which nobody was" in stage.owner.last_error


def test_looks_at_different_calls_do_not_add_up() -> None:
    stage = Stage(lambda stage: stage.look(2))
    for _ in range(5):
        assert stage.run() == {}


def test_after_its_return_nothing_is_broken_off() -> None:
    stage = Stage(lambda stage: stage.look(2))
    stage.run()
    stage.look(5)


def test_one_that_catches_the_exception_gets_another_one() -> None:
    def stubborn(stage: Stage) -> None:
        with pytest.raises(PluginTimeout):
            stage.look(3)
        with pytest.raises(PluginTimeout):
            stage.look()
        stage.look()

    assert Stage(stubborn).run() == {"blocked": 1}


def module(name: str) -> Callable[[Callable[[], None]], None]:
    """A function of a module called `name` that calls what it is given."""
    space: dict[str, Any] = {"__name__": name}
    exec("def function(call):\n    call()\n    return None", space)
    found: Callable[[Callable[[], None]], None] = space["function"]
    return found


BROKER = pytest.mark.parametrize(
    "name", ["mqttd.broker.broker", "mqttd.plugins.handle.handle", "mqttd.service"]
)
#: The watchdog leaves broker code by a trace function, and leaves one that is there alone.
UNTRACED = pytest.mark.skipif(sys.gettrace() is not None, reason="coverage traces")


@BROKER
@UNTRACED
def test_broker_code_is_left_to_finish_and_the_callback_broken_off_behind_it(
    timers: list[float], name: str
) -> None:
    steps: list[str] = []

    def callback(stage: Stage) -> None:
        module(name)(lambda: (stage.look(5), steps.append("finished")))
        steps.append("went on")

    stage = Stage(callback)
    assert stage.run() == {"blocked": 1}
    assert steps == ["finished"]
    assert timers == [SOON] * 3  # looks again, should the broker never come back
    assert stage.dog.raised == 1
    assert stage.hooks.watch.stuck is None
    assert sys.gettrace() is None


@BROKER
@UNTRACED
def test_a_callback_that_ends_with_the_broker_code_it_called_is_counted_only(
    timers: list[float], name: str
) -> None:
    def callback(stage: Stage) -> None:
        with pytest.raises(KeyError):
            module(name)(lambda: (stage.look(5), {}["no"]))

    stage = Stage(callback)
    assert stage.run() == {"blocked": 1}
    assert stage.dog.raised == 0
    assert sys.gettrace() is None


def test_where_something_else_traces_broker_code_is_looked_at_again(timers: list[float]) -> None:
    stage = Stage(lambda stage: module("mqttd.broker.broker")(lambda: stage.look(5)))
    sys.settrace(lambda *args: None)
    try:
        assert stage.run() == {"blocked": 1}
    finally:
        sys.settrace(None)
    assert stage.dog.raised == 0
    assert timers == [SOON] * 3


@pytest.mark.parametrize("name", ["json.decoder", "mqttd.types", "mqttd.codec.topic", "plugin"])
def test_other_code_that_a_callback_has_called_is_broken_off(name: str) -> None:
    stage = Stage(lambda stage: module(name)(lambda: stage.look(3)))
    assert stage.run() == {"blocked": 1}
    assert stage.dog.raised == 1


def test_twisteds_own_code_is_left_to_finish_for_a_while(timers: list[float]) -> None:
    def callback(stage: Stage) -> None:
        space: dict[str, Any] = {"__name__": "twisted.internet.base", "sys": sys}
        exec("def function(look):\n    look(1, sys._getframe())", space)
        for _ in range(10):
            space["function"](stage.look)
        assert stage.dog.raised == 0
        for _ in range(30):
            space["function"](stage.look)

    stage = Stage(callback)
    assert stage.run() == {"blocked": 1}
    assert stage.dog.raised == 1


def test_of_nested_callbacks_the_inner_one_is_broken_off() -> None:
    inner = Budget("inner")

    def callback(stage: Stage) -> None:
        stage.look(2)
        stage.hooks.run_hooks("client.connected", ())

    stage = Stage(callback)
    stage.hooks.hook("client.connected", lambda acc: stage.look(3), owner=inner)
    assert stage.run() == {}
    assert inner.faults == {"blocked": 1}


def test_one_that_calls_others_without_end_is_broken_off_itself(timers: list[float]) -> None:
    inner = Budget("inner")
    rounds: list[int] = []

    def callback(stage: Stage) -> None:
        while len(rounds) < 100:
            rounds.append(1)
            stage.hooks.run_hooks("client.connected", ())
            stage.look()

    stage = Stage(callback)
    stage.hooks.hook("client.connected", lambda acc: stage.look(), owner=inner)
    assert stage.run() == {"blocked": 1}
    assert inner.faults == {}
    assert len(rounds) <= NESTED * stage.owner.per_call / TICK


def test_what_it_has_the_same_plugin_do_is_charged_to_a_callback(timers: list[float]) -> None:
    """It publishes without end, and has hooked message.publish itself."""
    rounds: list[int] = []

    def callback(stage: Stage) -> None:
        while len(rounds) < 100:
            rounds.append(1)
            stage.hooks.run_hooks("client.connected", ())

    stage = Stage(callback)
    stage.hooks.hook("client.connected", lambda acc: stage.look(), owner=stage.owner)
    assert stage.run() == {"blocked": 1}
    assert len(rounds) == 3
    assert sys.gettrace() is None


def test_a_timer_of_a_plugin_is_looked_after_too() -> None:
    stage, owner = Stage(lambda stage: None), Budget("timed")
    assert stage.hooks.call(owner, "timer", lambda: stage.look(3)) is None
    assert owner.faults == {"blocked": 1}


def test_a_callable_written_in_c_has_a_frame_to_be_found_by() -> None:
    stage = Stage(lambda stage: None)
    (entry,) = stage.hooks.lookup(POINT)
    assert entry.call is entry.callback
    stage.hooks.hook("client.connected", [].append)
    (entry,) = stage.hooks.lookup("client.connected")
    assert entry.call.__code__ in watchdog.STEPS  # type: ignore[attr-defined]


def test_looks_begin_with_a_call_and_end_when_there_are_none(timers: list[float]) -> None:
    former = signal.getsignal(signal.SIGALRM)
    stage = Stage(lambda stage: None)
    dog = stage.dog
    dog.start()
    try:
        assert not stage.hooks.watch.armed and not timers
        stage.run()
        assert stage.hooks.watch.armed and timers == [TICK]
        stage.look(IDLE - 1)
        assert stage.hooks.watch.armed
        stage.look()
        assert not stage.hooks.watch.armed and timers == [TICK, 0]
        stage.run()
        assert timers == [TICK, 0, TICK]
    finally:
        dog.stop()
    assert signal.getsignal(signal.SIGALRM) == former
    assert stage.hooks.watch.armed
    stage.run()
    assert timers == [TICK, 0, TICK, 0]


def test_without_a_watchdog_nobody_is_asked_to_arm_it() -> None:
    watch = Watch()
    assert watch.armed
    watch.arm()


def test_a_look_may_come_while_the_looks_are_read() -> None:
    """The looks come by a signal, between any two steps of what asks for them."""

    class Since(float):
        def __ge__(self, at: float) -> bool:
            dog._counts()
            return super().__ge__(at)

    dog = Watchdog(Watch())
    waits = [0.0]

    def told() -> float:
        waits[0] += 0.25
        return waits[0]

    dog.waited = told
    for _ in range(3):
        dog._counts()
    assert dog._waits(Since(0.0)) == 0.75
