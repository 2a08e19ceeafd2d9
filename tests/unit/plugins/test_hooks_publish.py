"""The short way of message.publish answers and counts as the chain does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.plugins.calls.budget import Budget, Policy
from mqttd.plugins.calls.hooks import Hooks
from mqttd.types import OK, STOP

POINT = "message.publish"


def fails(message: object) -> None:
    raise ValueError("no")


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "None": lambda message: None,
    "OK": lambda message: OK,
    "OK of another": lambda message: OK("other"),
    "STOP": lambda message: STOP,
    "STOP of another": lambda message: STOP("other"),
    "STOP of nothing": lambda message: STOP(None),
    "nonsense": lambda message: 17,
    "a Deferred": lambda message: Deferred(),
    "an exception": fails,
}


def of(owner: Budget) -> tuple[Any, ...]:
    return owner.calls, owner.denied, owner.errors, owner.faults, owner.state, owner.last_error


@pytest.mark.parametrize("policy", ["ignore", "deny"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_short_way_is_the_chain_of_one(answer: str, policy: Policy) -> None:
    """Whatever a callback answers, timed and not timed, until its owner is in quarantine."""
    callback = ANSWERS[answer]
    chains = []
    for _ in range(2):
        owner = Budget("p", policy, error_limit=20)
        owner.mask = 15
        hooks = Hooks()
        hooks.hook(POINT, callback, owner=owner)
        chains.append((hooks, owner))
    (short, short_owner), (long, long_owner) = chains
    for number in range(40):
        message = f"message {number}"
        given = short.ask_publish(message)
        assert given == long.run_hooks(POINT, (), message)[1]
        assert of(short_owner) == of(long_owner)
        assert short.stopped_by() == long.stopped_by()
    assert short_owner.calls > 1


def test_an_interrupt_ends_the_program_and_no_callback() -> None:
    def interrupted(message: object) -> None:
        raise KeyboardInterrupt

    hooks = Hooks()
    owner = Budget("p")
    owner.mask = 1
    hooks.hook(POINT, interrupted, owner=owner)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            hooks.ask_publish("message")


def test_several_callbacks_filters_and_arguments_take_the_long_way() -> None:
    hooks = Hooks()
    owner = Budget("p")
    owner.mask = 1
    seen: list[tuple[str, Any]] = []
    hooks.hook(POINT, lambda given, message: seen.append(("a", message)), ("x",), owner=owner)
    assert [hooks.ask_publish(number) for number in (1, 2)] == [1, 2]
    hooks.hook(POINT, lambda message: OK(message + 1), priority=-1, owner=owner)
    assert [hooks.ask_publish(number) for number in (1, 2)] == [2, 3]
    assert [what for what, _ in seen] == ["a"] * 4
