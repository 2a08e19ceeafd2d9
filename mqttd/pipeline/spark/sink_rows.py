"""A row of a write becomes a message: what its columns mean, and what is wrong with them.

    topic | payload | qos | retain | properties | headers   -->   Publish

Promise: a row that is no message is a `SinkError` that names its topic, column and value. Standard
library and `mqttd.codec` only.
"""

from __future__ import annotations

from typing import Any, Final

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name

__all__ = ["PROPERTIES", "SinkError", "message_of"]

#: Names a column `properties` may have, with the property they stand for.
PROPERTIES: Final = {
    "payloadFormatIndicator": prop.PAYLOAD_FORMAT_INDICATOR,
    "messageExpiryInterval": prop.MESSAGE_EXPIRY_INTERVAL,
    "contentType": prop.CONTENT_TYPE,
    "responseTopic": prop.RESPONSE_TOPIC,
    "correlationData": prop.CORRELATION_DATA,
}

#: The whole numbers among them, with the largest that each may be.
_NUMBERS: Final = {"payloadFormatIndicator": 1, "messageExpiryInterval": (1 << 32) - 1}
#: So much of a wrong value is shown.
_SHOWN: Final = 100


class SinkError(Exception):
    """The batch was not published; the text says why."""


def message_of(row: dict[str, Any], topic: str | None, qos: int, retain: bool) -> Publish:
    """The message of a row, column by name; `topic`, `qos`, `retain`: for a row that does not say.

    Raises SinkError for one that is none.
    """
    given = row.get("topic")
    topic = topic if given is None else given
    if topic is None:
        raise SinkError("mqttd: a row has no topic, and the write no option topic")
    payload = row.get("payload")
    given = row.get("qos")
    qos = qos if given is None else int(given)
    given = row.get("retain")
    try:
        validate_topic_name(topic)
        if qos not in (0, 1, 2):
            raise MqttError(f"qos = {qos}: expected 0, 1 or 2")
        properties = _properties(row.get("properties"), row.get("headers"))
    except MqttError as error:
        raise SinkError(f"mqttd: a row with topic {_shown(topic)}: {error.detail}") from None
    return Publish(
        topic,
        payload.encode() if isinstance(payload, str) else bytes(payload or b""),
        qos,
        retain if given is None else bool(given),
        properties=properties,
    )


def _properties(named: Any, pairs: Any) -> prop.Properties | None:
    """Properties of PUBLISH: the standard's by name, others as user properties."""
    found: prop.Properties = {}
    users: list[tuple[str, str]] = []
    for name, value in (named or {}).items():
        identifier = PROPERTIES.get(name)
        if value is None:
            continue
        if identifier is None:
            users.append(_pair("properties", name, value))
        else:
            found[identifier] = _value(name, identifier, value)
    for one in pairs or ():
        if one is None or one[0] is None:
            text = "NULL" if one is None else f"key = NULL, value = {_shown(one[1])}"
            raise MqttError(f"column headers has {text}: expected a key and a value")
        users.append(_pair("headers", one[0], one[1] or ""))
    if users:
        found[prop.USER_PROPERTY] = users
    return found or None


def _value(name: str, identifier: int, text: str) -> int | str | bytes:
    """The value of a property of the standard's; raises MqttError for a wrong one."""
    largest = _NUMBERS.get(name)
    value: int | str | bytes = text
    try:
        if largest is not None:
            digits = text.isascii() and text.isdigit() and len(text) <= 10
            value = int(text) if digits else -1
            if not 0 <= value <= largest:
                raise MqttError(f"expected a whole number from 0 to {largest}")
        elif identifier == prop.CORRELATION_DATA:
            value = text.encode()
        elif identifier == prop.RESPONSE_TOPIC:
            validate_topic_name(text)
        prop.encode_properties({identifier: value})
    except MqttError as error:
        raise MqttError(f"column properties: {name} = {_shown(text)}: {error.detail}") from None
    return value


def _pair(column: str, key: str, value: str) -> tuple[str, str]:
    try:
        prop.encode_properties({prop.USER_PROPERTY: [(key, value)]})
    except MqttError as error:
        text = f"{_shown(key)} = {_shown(value)}"
        raise MqttError(f"column {column}: {text}: {error.detail}") from None
    return key, value


def _shown(text: str | None) -> str:
    return "NULL" if text is None else repr(text[:_SHOWN]) + "..." * (len(text) > _SHOWN)
