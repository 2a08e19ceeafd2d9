"""Whether what a module has answered is a verdict at all, looked at where it is taken.

    AuthOk(superuser: bool, acl: str, expires_at: seconds, attributes, username, data: bytes)
    AuthError(reason: str, a reason code that CONNACK may carry)      AuthContinue(data: bytes)

A module is somebody else's code: a tuple where a text was asked for would come up much later, in
the middle of a CONNECT. What is wrong is told by its type, never by its value, which may be a
secret.

Promise: `fault_of` raises nothing, whatever it is given. Not compiled: it takes what is anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from mqttd.codec.packet_types import CONNACK
from mqttd.codec.properties import encode_properties
from mqttd.codec.reasons import CODES_OF, NOT_AUTHORIZED
from mqttd.types import AuthContinue, AuthError, AuthOk

__all__ = ["fault_of", "kind_of", "properties_fault", "refusal"]

_LONGEST: Final = 65535


def fault_of(answer: object, takes: tuple[type, ...]) -> str:
    """What is wrong with an answer that should be one of the classes `takes`; "" if nothing is."""
    if not isinstance(answer, takes):
        return f"not an AuthVerdict: {kind_of(answer)}"
    try:
        if isinstance(answer, AuthOk):
            return _fault_of_ok(answer)
        if isinstance(answer, AuthError):
            return _fault_of_error(answer)
        if isinstance(answer, AuthContinue) and not _is_data(data := answer.data):
            return f"AuthContinue(data): expected bytes, at most 65535, got {kind_of(data)}"
    except Exception as error:  # an attribute that is none, a class of its own
        return f"{type(answer).__name__}: {type(error).__name__}"
    return ""


def _fault_of_ok(ok: Any) -> str:
    fault = ""
    if type(ok.superuser) is not bool:
        fault = f"superuser: expected a bool, got {kind_of(ok.superuser)}"
    elif not (ok.acl is None or isinstance(ok.acl, str)):
        fault = f"acl: expected rules as a text, got {kind_of(ok.acl)}"
    elif not (ok.expires_at is None or _is_time(ok.expires_at)):
        got = kind_of(ok.expires_at)
        if isinstance(ok.expires_at, int | float):
            got = f"{ok.expires_at:.13g}"  # milliseconds, as a rule
        fault = f"expires_at: expected seconds since 1970, got {got}"
    elif not (ok.attributes is None or _is_named(ok.attributes)):
        fault = f"attributes: expected a mapping of names, got {kind_of(ok.attributes)}"
    elif not (ok.username is None or _is_name(ok.username)):
        fault = f"username: expected an MQTT string, got {kind_of(ok.username)}"
    elif not (ok.data is None or _is_data(ok.data)):
        fault = f"data: expected bytes, at most 65535, got {kind_of(ok.data)}"
    return f"AuthOk({fault})" if fault else ""


def _fault_of_error(refused: Any) -> str:
    if not isinstance(refused.reason, str):
        return f"AuthError(reason): expected a text, got {kind_of(refused.reason)}"
    code = refused.reason_code
    if type(code) is not int:
        return f"AuthError(reason_code): expected a number, got {kind_of(code)}"
    if not _refuses(code):
        return f"AuthError(reason_code): 0x{code & 0xFFFF:02x} is no refusal of CONNACK"
    return ""


def refusal(answer: AuthError) -> AuthError:
    """A refusal that was not put as it should be: it stays one."""
    code: Any = answer.reason_code
    reason: Any = answer.reason
    if not (type(code) is int and _refuses(code)):
        code = NOT_AUTHORIZED
    return AuthError(reason if isinstance(reason, str) else "refused", code)


def properties_fault(properties: Any) -> str:
    """What is wrong with properties that a hook has given; "" if they can be written."""
    try:
        encode_properties(properties)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def kind_of(value: object) -> str:
    """A value named without its content, which may be a secret."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _refuses(code: int) -> bool:
    return code >= 0x80 and code in CODES_OF[CONNACK]


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < 1e11


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value or len(value) > _LONGEST:
        return False
    try:
        return len(value.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _is_named(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in dict(value))


def _is_data(value: object) -> bool:
    return isinstance(value, bytes) and len(value) <= _LONGEST
