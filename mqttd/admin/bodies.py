"""What a request to the HTTP interface asks for, checked: a ban, a message, a reason code.

Each function raises `ApiError`, which names the key, its value and what was expected.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from twisted.web.iweb import IRequest

from mqttd.admin.requests import ApiError, argument_of
from mqttd.codec import reasons

__all__ = ["ban_of", "message_of", "reason_code_of"]

Json = dict[str, Any]


def reason_code_of(request: IRequest) -> int:
    """The reason code of DISCONNECT that was asked for, 0x98 if none was."""
    text = argument_of(request, b"reason_code")
    if text is None:
        return reasons.ADMINISTRATIVE_ACTION
    try:
        code = int(text, 0)
    except ValueError:
        code = 0
    if code < 0x80 or code not in reasons.CODES_OF[14]:
        raise ApiError(
            400,
            "bad_request",
            f"reason_code = {text!r}: expected a code of DISCONNECT from 0x80, such as 0x98",
        )
    return code


def ban_of(body: Json) -> tuple[str, str, str, float | None]:
    """Kind, value, reason and end of a request to ban."""
    known = ("kind", "value", "reason", "seconds")
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ApiError(
            400, "bad_request", f"unknown key {unknown[0]!r}; there are: {', '.join(known)}"
        )
    texts = [body.get("kind"), body.get("value"), body.get("reason", "")]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "bad_request", "kind, value and reason: expected texts")
    seconds = body.get("seconds")
    until = None
    if seconds is not None:
        if type(seconds) not in (int, float) or not 0 < seconds < 1e10:
            raise ApiError(400, "bad_request", f"seconds = {seconds!r}: expected a positive number")
        until = time.time() + seconds
    kind, value, reason = texts
    return str(kind), str(value), str(reason), until


def message_of(body: Json) -> tuple[str, bytes, int, bool]:
    """Topic, payload, QoS and retain flag of a request to publish."""
    known = {"topic", "payload", "payload_base64", "qos", "retain"}
    unknown = sorted(set(body) - known)
    if unknown:
        raise ApiError(
            400,
            "bad_request",
            f"unknown key {unknown[0]!r}; there are: {', '.join(sorted(known))}",
        )
    topic, qos, retain = body.get("topic"), body.get("qos", 0), body.get("retain", False)
    if not isinstance(topic, str):
        raise ApiError(400, "bad_request", f"topic = {topic!r}: expected a text")
    if type(qos) is not int or not 0 <= qos <= 2:
        raise ApiError(400, "bad_request", f"qos = {qos!r}: expected 0, 1 or 2")
    if not isinstance(retain, bool):
        raise ApiError(400, "bad_request", f"retain = {retain!r}: expected true or false")
    text, encoded = body.get("payload"), body.get("payload_base64")
    if text is not None and encoded is not None:
        raise ApiError(400, "bad_request", "expected payload or payload_base64, not both")
    try:
        topic.encode()
        if encoded is not None:
            return topic, base64.b64decode(encoded, validate=True), qos, retain
        if text is not None and not isinstance(text, str):
            raise ApiError(400, "bad_request", f"payload = {text!r}: expected a text")
        return topic, (text or "").encode(), qos, retain
    except UnicodeEncodeError:
        raise ApiError(400, "bad_request", "lone surrogates are no UTF-8 text") from None
    except (ValueError, TypeError):
        raise ApiError(400, "bad_request", "payload_base64: expected base64 text") from None
