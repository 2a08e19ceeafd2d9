"""What requests name and msgspec cannot check: topics, filters, addresses, listeners.

Each raises ApiError 400 with the name of the parameter, its value, and what was expected: a value
that means nothing must not be taken for one that nothing fits.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mqttd.admin.http.requests import ApiError
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter

__all__ = ["checked_address", "checked_listener", "checked_topic"]

_SHOWN = 80


def checked_topic(
    name: str, value: str, validate: Callable[[str], object] = validate_topic_filter
) -> str:
    """A topic filter as a client may subscribe to it, or what else `validate` takes."""
    try:
        validate(value)
    except MqttError as error:
        raise ApiError(400, "bad_topic", f"{name} = {value[:_SHOWN]!r}: {error.detail}") from None
    return value


def checked_address(name: str, value: str) -> str:
    """An IP address."""
    try:
        ipaddress.ip_address(value.partition("%")[0])
    except ValueError:
        text = f"{name} = {value[:_SHOWN]!r}: expected an address"
        raise ApiError(400, "bad_request", text) from None
    return value


def checked_listener(name: str, value: str, listeners: Iterable[Mapping[str, Any]]) -> str:
    """A listener that there is, `KIND:NAME`."""
    known = [str(one["id"]) for one in listeners if "id" in one]
    if known and value not in known:
        text = f"{name} = {value[:_SHOWN]!r}: there is none; there are: {', '.join(known)}"
        raise ApiError(400, "bad_request", text)
    return value
