"""What crosses to a plugin in another process arrives as it was."""

from __future__ import annotations

import inspect
import pickle

import pytest

from mqttd.codec.packets import Subscription
from mqttd.plugins.child import ChildHandle
from mqttd.plugins.pipe import _dumps
from mqttd.session.message import Message
from mqttd.types import OK, STOP, Action, AuthError, ClientInfo, HookResult, Verdict


def crossed(value: object) -> object:
    return pickle.loads(_dumps(value))


def test_a_message_keeps_all_its_fields() -> None:
    message = Message(1 << 100, "a/b", b"x", 2, True, {1: 2, 38: [("k", "v")]}, "c", "u", 17)
    got = crossed(message)
    assert isinstance(got, Message)
    # Compiled classes have no __slots__.
    fields = [name for name, value in vars(Message).items() if inspect.isdatadescriptor(value)]
    assert len(fields) >= 10
    for name in fields:
        assert getattr(got, name) == getattr(message, name)


def test_a_client_keeps_all_but_the_rules_that_are_the_brokers() -> None:
    client = ClientInfo("id", "user", "::1", 7, "tls", 5, attributes={"a": 1}, acl=object())
    got = crossed(client)
    assert isinstance(got, ClientInfo)
    assert got.acl is None
    assert (got.client_id, got.username, got.peerport, got.attributes) == (
        "id",
        "user",
        7,
        {"a": 1},
    )


@pytest.mark.parametrize("result", [OK, STOP, OK(None), STOP(None), OK([1]), STOP(Verdict.DENY)])
def test_an_answer_of_a_hook_means_the_same(result: HookResult) -> None:
    got = crossed(result)
    assert isinstance(got, HookResult)
    nothing = object()
    assert got.stop == result.stop
    assert (got.accumulate(nothing) is nothing) == (result.accumulate(nothing) is nothing)
    assert repr(got) == repr(result)


@pytest.mark.parametrize(
    "value",
    [Action("publish", 1, True), AuthError("no", 0x87), [Subscription("a/#", 1, True, False, 2)]],
)
def test_other_values_are_equal(value: object) -> None:
    assert crossed(value) == value


def test_what_the_child_does_not_offer_says_so() -> None:
    handle = ChildHandle(None, "apart", "node", "/data", "/etc", None)  # type: ignore[arg-type]
    for name in ("register_mod", "add_route", "add_listener", "run_hooks", "lookup"):
        with pytest.raises(NotImplementedError, match=f"{name} is not offered to plugin apart"):
            getattr(handle, name)
    with pytest.raises(AttributeError):
        _ = handle.no_such_thing
