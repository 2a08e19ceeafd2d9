"""What crosses to a plugin's process and back, as msgpack: data, and a few classes by name.

    None bool int float str bytes list dict        as msgpack has them
    tuple, large int                               an extension each
    Message, Subscription, HookResult              their fields
    ClientInfo, Action, Verdict, AuthOk, ...       a name of `_CLASSES` and their fields

Reading makes nothing but these, whatever the other end writes: a plugin that has been taken over
cannot have the broker run code. What has another type does not cross, and the error names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from mqttd.codec.packets import Subscription
from mqttd.session.ground.message import Message
from mqttd.types import (
    Action,
    AuthContinue,
    AuthError,
    AuthIgnore,
    AuthOk,
    ClientInfo,
    HookResult,
    Verdict,
)

__all__ = ["CrossingError", "pack", "unpack"]

_INT: Final = 1
_TUPLE: Final = 2
_MESSAGE: Final = 3
_SUBSCRIPTION: Final = 4
_RESULT: Final = 5
_NAMED: Final = 6

#: Containers in one another that are read and written.
_DEEPEST: Final = 64

_CLASSES: Final[dict[str, Any]] = {
    made.__name__: made
    for made in (Action, AuthContinue, AuthError, AuthIgnore, AuthOk, ClientInfo, Verdict)
}
#: Fields that are objects of the broker and stay there.
_KEPT: Final = {("ClientInfo", "acl")}


class CrossingError(TypeError):
    """A value that does not cross, or bytes that are none of ours."""


def pack(value: object) -> bytes:
    """The bytes of a value; raises CrossingError for what does not cross."""
    try:
        return _encode(_plain(value, 0))
    except (UnicodeEncodeError, OverflowError) as error:
        raise CrossingError(f"does not cross to another process: {error}") from None


def unpack(data: bytes) -> Any:
    """The value of bytes; raises CrossingError for those that `pack` has not made."""
    try:
        return msgspec.msgpack.decode(data, ext_hook=_made)
    except CrossingError:
        raise
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise CrossingError(f"cannot be read: {error}") from None


_encode: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if depth > _DEEPEST:
        raise CrossingError("too many containers in one another")
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return int(value)
        size = value.bit_length() // 8 + 1
        return Ext(_INT, value.to_bytes(size, "big", signed=True))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, tuple):
        return Ext(_TUPLE, _encode([_plain(item, depth + 1) for item in value]))
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    return _ext(value, depth)


def _ext(value: Any, depth: int) -> Ext:
    """A value of one of the classes that cross."""

    def fields(code: int, items: list[Any]) -> Ext:
        return Ext(code, _encode([_plain(item, depth + 1) for item in items]))

    if isinstance(value, Message):
        return fields(
            _MESSAGE,
            [
                value.id,
                value.topic,
                value.payload,
                value.qos,
                value.retain,
                value.properties,
                value.client_id,
                value.username,
                value.expires_at,
            ],
        )
    if isinstance(value, Subscription):
        return fields(
            _SUBSCRIPTION,
            [
                value.topic_filter,
                value.qos,
                value.no_local,
                value.retain_as_published,
                value.retain_handling,
            ],
        )
    if isinstance(value, HookResult):
        nothing = object()
        acc = value.accumulate(nothing)
        return fields(_RESULT, [value.stop] if acc is nothing else [value.stop, acc])
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        if isinstance(value, Enum):
            return fields(_NAMED, [name, value.value])
        found = [
            None if (name, field.name) in _KEPT else getattr(value, field.name)
            for field in dataclasses.fields(value)
        ]
        return fields(_NAMED, [name, *found])
    raise CrossingError(f"{type(value).__qualname__} does not cross to another process")


def _made(code: int, data: memoryview) -> Any:
    if code == _INT:
        return int.from_bytes(data, "big", signed=True)
    items = msgspec.msgpack.decode(data, ext_hook=_made)
    if not isinstance(items, list):
        raise CrossingError("cannot be read: fields are no list")
    if code == _TUPLE:
        return tuple(items)
    try:
        if code == _MESSAGE:
            return Message(*items)
        if code == _SUBSCRIPTION:
            return Subscription(*items)
        if code == _RESULT:
            stop, *acc = items
            return HookResult(stop, *acc)
        if code == _NAMED:
            name, *fields = items
            return _CLASSES[name](*fields)
    except (TypeError, ValueError, KeyError) as error:
        raise CrossingError(f"cannot be read: {error}") from None
    raise CrossingError(f"cannot be read: extension {code}")
