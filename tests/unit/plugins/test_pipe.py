"""What crosses to a plugin in another process arrives as it was."""

from __future__ import annotations

import inspect
import pickle
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from mqttd.codec.packets import Subscription
from mqttd.plugins.calls.crossing import CrossingError, pack, unpack
from mqttd.plugins.child import ChildHandle
from mqttd.plugins.pipe import Pipe
from mqttd.session.ground.message import Message
from mqttd.types import (
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


def crossed(value: object) -> object:
    return unpack(pack(value))


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
    handle = ChildHandle(None, "apart", "node", 0, 1, "/data", "/etc", None)  # type: ignore[arg-type]
    for name in ("register_mod", "add_route", "add_listener", "run_hooks", "lookup"):
        with pytest.raises(NotImplementedError, match=f"{name} is not offered to plugin apart"):
            getattr(handle, name)
    with pytest.raises(AttributeError):
        _ = handle.no_such_thing


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        1 << 63,
        -(1 << 127),
        1.5,
        "grün",
        b"\0\xff",
        [],
        (),
        (1, [2, (3,)], {"a": (4,)}),
        {1: b"x", "k": [("k", "v"), ("k", "w")], b"b": None},
        Verdict.IGNORE,
        AuthIgnore(),
        AuthOk(True, {"a": (1,)}, None, 17.0),
    ],
)
def test_data_arrives_as_it_was(value: object) -> None:
    got = crossed(value)
    assert got == value and type(got) is type(value)


class _Own:
    """A class of a plugin's."""


@pytest.mark.parametrize("value", [_Own(), [_Own()], {"a": len}, {1, 2}, ValueError("x"), "\ud800"])
def test_what_does_not_cross_is_named(value: object) -> None:
    with pytest.raises(CrossingError, match="cross"):
        pack(value)


def test_what_has_no_end_does_not_cross() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(CrossingError, match="too many"):
        pack(endless)


def test_nothing_runs_when_it_is_read() -> None:
    """What a pickle would do, and names that are none of ours."""
    for data in (
        pickle.dumps(_Own),
        msgspec.msgpack.encode(Ext(6, msgspec.msgpack.encode(["Popen", "true"]))),
        msgspec.msgpack.encode(Ext(6, msgspec.msgpack.encode(["Action"]))),
        msgspec.msgpack.encode(Ext(3, msgspec.msgpack.encode([1]))),
        msgspec.msgpack.encode(Ext(2, msgspec.msgpack.encode({}))),
        msgspec.msgpack.encode(Ext(99, b"")),
    ):
        with pytest.raises(CrossingError):
            unpack(data)


@given(st.binary(max_size=64))
def test_bytes_of_somebody_else_are_refused_or_are_data(data: bytes) -> None:
    try:
        unpack(data)
    except CrossingError:
        pass


@pytest.mark.parametrize("frame", [b"\xc1", pack("tell"), pack(()), pack(("call", 1)), pack([1])])
def test_an_end_that_sends_what_is_no_call_is_closed(frame: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        pipe = Pipe(here, lambda what, args: None)
        there.sendall(len(frame).to_bytes(4, "big") + frame)
        pipe.pump()
        assert pipe.closed
